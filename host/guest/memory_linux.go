package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const sysPage = 4096

// reserve reserves n bytes of address space that are not yet accessible.
func reserve(n uint64) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", n, err)
	}
	return b, nil
}

// commit makes [from, to) of a reservation accessible, filled with zeros.
func commit(b []byte, from, to uint64) error {
	return unix.Mprotect(b[from:to], unix.PROT_READ|unix.PROT_WRITE)
}

// discardPages releases the pages of b; they are zero when next used.
func discardPages(b []byte) error { return unix.Madvise(b, unix.MADV_DONTNEED) }

// smallPages prevents the kernel from using 2 MiB pages for b, which would exceed what
// is charged to the account. The error of a kernel without such pages is ignored.
func smallPages(b []byte) { unix.Madvise(b, unix.MADV_NOHUGEPAGE) }

// release unmaps a reservation and everything mapped over it.
func release(b []byte) {
	if err := unix.Munmap(b); err != nil {
		panic("unmap guest memory: " + err.Error())
	}
}

// image is the memory of an initialized instance: a sealed in-memory file that
// instances map copy-on-write, so that each holds only the pages it wrote.
type image struct {
	size uint64
	fd   int
	ro   []byte // all of it, for reading
}

// newImage copies mem, which must be whole pages.
func newImage(mem []byte) (*image, error) {
	fd, err := unix.MemfdCreate("toold-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("toold-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("create memory file: %w", err)
	}
	img := &image{size: uint64(len(mem)), fd: fd}
	if err := img.fill(mem); err != nil {
		img.close()
		return nil, err
	}
	return img, nil
}

func (img *image) fill(mem []byte) error {
	if err := unix.Ftruncate(img.fd, int64(len(mem))); err != nil {
		return fmt.Errorf("size memory file: %w", err)
	}
	for off := 0; off < len(mem); {
		// Write only runs of nonzero pages; the rest stays a hole.
		if zero(mem[off : off+sysPage]) {
			off += sysPage
			continue
		}
		end := off + sysPage
		for end < len(mem) && !zero(mem[end:end+sysPage]) {
			end += sysPage
		}
		for off < end {
			n, err := unix.Pwrite(img.fd, mem[off:end], int64(off))
			if err != nil {
				return fmt.Errorf("write memory file: %w", err)
			}
			off += n
		}
	}
	_, err := unix.FcntlInt(uintptr(img.fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	if err != nil {
		return fmt.Errorf("seal memory file: %w", err)
	}
	if img.size == 0 {
		return nil
	}
	img.ro, err = unix.Mmap(img.fd, 0, int(img.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memory file: %w", err)
	}
	return nil
}

func zero(p []byte) bool {
	for len(p) >= 8 {
		if *(*uint64)(unsafe.Pointer(&p[0])) != 0 {
			return false
		}
		p = p[8:]
	}
	return true
}

// mapOver maps the image over the start of a reservation.
func (img *image) mapOver(b []byte) error {
	if img.size == 0 {
		return nil
	}
	_, err := unix.MmapPtr(img.fd, 0, unsafe.Pointer(&b[0]), uintptr(img.size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map image of guest: %w", err)
	}
	return nil
}

// close releases the image; instances that map it are unaffected.
func (img *image) close() {
	if img.ro != nil {
		unix.Munmap(img.ro)
		img.ro = nil
	}
	if img.fd >= 0 {
		unix.Close(img.fd)
		img.fd = -1
	}
}

// dropPages is the number of written pages from which memory is released rather than
// copied over. Copying is faster, even for many pages; this only limits what an idle
// instance holds.
const dropPages = 4096

// restore resets b, whose start maps the image and whose rest was grown, to its initial
// state: the image, and zeros. It returns how many pages were written and how many
// remain the instance's own.
//
// Grown memory is kept for the next call, which probably grows as far: new pages and
// mappings would cost it more than zeroing.
//
// Without faults since the last restore, the written pages are the same as then.
func (img *image) restore(b []byte, s *scanner, faulted bool) (pages, own int, err error) {
	if len(b) == 0 {
		return 0, 0, nil
	}
	if faulted || !s.scanned {
		s.scanned = false
		if s.ranges, err = s.written(b, s.ranges[:0]); err != nil {
			return 0, 0, err
		}
		s.scanned = true
	}
	for _, r := range s.ranges {
		pages += int(r.end-r.start) / sysPage
	}
	if pages > dropPages {
		s.scanned = false
		return pages, 0, unix.Madvise(b, unix.MADV_DONTNEED)
	}
	for _, r := range s.ranges {
		if r.start < img.size {
			copy(b[r.start:min(r.end, img.size)], img.ro[r.start:])
		}
		if r.end > img.size {
			clear(b[max(r.start, img.size):r.end])
		}
	}
	return pages, pages, nil
}

// span is a range of bytes in a memory.
type span struct{ start, end uint64 }

// scanner finds the written pages of a private mapping: those that no longer belong to
// the file. Such a page is not FILE, and is PRESENT or SWAPPED; a swapped page was
// written too.
type scanner struct {
	fd      int  // of /proc/self/pagemap
	ioctl   bool // use PAGEMAP_SCAN, since Linux 6.7
	ranges  []span
	scanned bool // ranges holds all pages written so far
}

// threadFaults returns the kernel's count of page faults of this thread.
func threadFaults() int64 {
	var u unix.Rusage
	if _, _, e := unix.RawSyscall(unix.SYS_GETRUSAGE, unix.RUSAGE_THREAD, uintptr(unsafe.Pointer(&u)), 0); e != 0 {
		return -1
	}
	return u.Minflt + u.Majflt
}

// The kernel's struct page_region and struct pm_scan_arg.
type pageRegion struct{ start, end, categories uint64 }

type pmScanArg struct {
	size, flags, start, end, walkEnd     uint64
	vec, vecLen, maxPages                uint64
	inverted, mask, anyOf, returnedTypes uint64
}

const (
	pagemapScan = 0xc0606610 // _IOWR('f', 16, struct pm_scan_arg)

	pageIsFile    = 1 << 2
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4

	// Bits of an entry of /proc/self/pagemap.
	entryPresent = 1 << 63
	entrySwapped = 1 << 62
	entryFile    = 1 << 61

	scanRegions = 32 // regions returned by one system call
	scanEntries = 64
)

func newScanner(ioctl bool) (*scanner, error) {
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/self/pagemap", Err: err}
	}
	return &scanner{fd: fd, ioctl: ioctl}, nil
}

// scanRoom is the buffer for the kernel's results. It is needed only briefly, and is on
// Go's heap because the kernel gets its address as a number.
type scanRoom struct {
	regions [scanRegions]pageRegion
	entries [scanEntries * 8]byte
}

var scans = sync.Pool{New: func() any { return new(scanRoom) }}

func (s *scanner) close() { unix.Close(s.fd) }

// written appends the written ranges of b to out.
func (s *scanner) written(b []byte, out []span) ([]span, error) {
	if s.ioctl {
		return s.scan(b, out)
	}
	return s.read(b, out)
}

func (s *scanner) scan(b []byte, out []span) ([]span, error) {
	to := scans.Get().(*scanRoom)
	defer scans.Put(to)
	base := uint64(uintptr(unsafe.Pointer(&b[0])))
	a := pmScanArg{
		start: base, end: base + uint64(len(b)),
		vec: uint64(uintptr(unsafe.Pointer(&to.regions[0]))), vecLen: scanRegions,
		inverted: pageIsFile, mask: pageIsFile, anyOf: pageIsPresent | pageIsSwapped,
		returnedTypes: pageIsPresent,
	}
	a.size = uint64(unsafe.Sizeof(a))
	// One call returns as many regions as there is room for, and how far it scanned.
	for a.start < a.end {
		// This takes about 10 us, too short to notify the scheduler.
		n, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(s.fd), pagemapScan, uintptr(unsafe.Pointer(&a)))
		if e != 0 {
			return nil, fmt.Errorf("scan pages: %w", e)
		}
		for _, r := range to.regions[:n] {
			out = append(out, span{r.start - base, r.end - base})
		}
		if a.walkEnd <= a.start {
			return nil, errors.New("scan pages: no progress")
		}
		a.start = a.walkEnd
	}
	return out, nil
}

func (s *scanner) read(b []byte, out []span) ([]span, error) {
	to := scans.Get().(*scanRoom)
	defer scans.Put(to)
	first := uintptr(unsafe.Pointer(&b[0])) / sysPage
	for page := 0; page < len(b)/sysPage; {
		want := min(len(b)/sysPage-page, scanEntries)
		n, err := unix.Pread(int(uintptr(s.fd)), to.entries[:want*8], int64(first+uintptr(page))*8)
		if err != nil {
			return nil, fmt.Errorf("read pagemap: %w", err)
		}
		if n < 8 {
			return nil, errors.New("read pagemap: it ends early")
		}
		for i := 0; i+8 <= n; i += 8 {
			e := binary.LittleEndian.Uint64(to.entries[i:])
			if e&(entryPresent|entrySwapped) != 0 && e&entryFile == 0 {
				at := uint64(page) * sysPage
				if k := len(out); k > 0 && out[k-1].end == at {
					out[k-1].end += sysPage
				} else {
					out = append(out, span{at, at + sysPage})
				}
			}
			page++
		}
	}
	return out, nil
}

// probe returns the best strategy that this kernel, its seccomp filters and its cgroups
// allow.
func probe() strategy {
	if os.Getpagesize() != sysPage {
		return strategyFresh
	}
	for _, w := range []strategy{strategyCount, strategyScan, strategyPagemap, strategyImage} {
		if works(w) == nil {
			return w
		}
	}
	return strategyFresh
}

// errWrong means that a strategy is available on this system but does not restore
// memory.
var errWrong = errors.New("memory was not restored")

// works tests a strategy on a small image.
func works(w strategy) error {
	if w == strategyFresh {
		return nil
	}
	img, err := newImage(make([]byte, 4*sysPage))
	if err != nil {
		return err
	}
	defer img.close()
	b, err := reserve(8 * sysPage)
	if err != nil {
		return err
	}
	defer release(b)
	if err := img.mapOver(b); err != nil {
		return err
	}
	if err := commit(b, 4*sysPage, 8*sysPage); err != nil {
		return err
	}
	b[2*sysPage], b[5*sysPage] = 1, 1
	_ = b[sysPage]
	if w == strategyImage {
		return nil
	}
	s, err := newScanner(w >= strategyScan)
	if err != nil {
		return err
	}
	defer s.close()
	pages, _, err := img.restore(b, s, true) // one page of the image, and one that was grown
	if err != nil {
		return err
	}
	if pages != 2 || b[2*sysPage] != 0 || b[5*sysPage] != 0 {
		return fmt.Errorf("%w: %d written pages were found, not 2", errWrong, pages)
	}
	if w != strategyCount {
		return nil
	}
	// Each kind of first write must cause a fault: to an untouched page, to a page that
	// was read, and to a grown page.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if b[1*sysPage]+b[6*sysPage] != 0 {
		return errWrong
	}
	for _, page := range []int{0, 1, 6, 7} {
		before := threadFaults()
		b[page*sysPage] = 1
		if threadFaults() <= before {
			return fmt.Errorf("%w: the first write to a page was not counted as a fault", errWrong)
		}
	}
	return nil
}
