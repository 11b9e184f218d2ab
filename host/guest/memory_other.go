//go:build !linux

package guest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Other systems create a new instance for every call: the same results, but slower.

var (
	errNoImages = errors.New("images of guests need Linux")
	errWrong    = errors.New("memory was not restored")
)

func probe() strategy { return strategyFresh }

// reserve reserves n bytes of address space that are not yet accessible.
func reserve(n uint64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", n, err)
	}
	return b, nil
}

// commit makes [from, to) of a reservation accessible, filled with zeros.
func commit(b []byte, from, to uint64) error {
	return unix.Mprotect(b[from:to], unix.PROT_READ|unix.PROT_WRITE)
}

// discardPages releases the pages of b.
func discardPages(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

func smallPages([]byte) {}

// release unmaps a reservation.
func release(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic("unmap guest memory: " + err.Error())
	}
}

func works(w strategy) error {
	if w == strategyFresh {
		return nil
	}
	return errNoImages
}

type image struct{ size uint64 }

func newImage([]byte) (*image, error)   { return nil, errNoImages }
func (img *image) mapOver([]byte) error { return errNoImages }
func (img *image) close()               {}

func (img *image) restore([]byte, *scanner, bool) (int, int, error) { return 0, 0, errNoImages }

func threadFaults() int64 { return 0 }

type scanner struct{}

func newScanner(bool) (*scanner, error) { return nil, errNoImages }
func (s *scanner) close()               {}
