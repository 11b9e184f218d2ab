package confine

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
)

// interpreter returns the ELF interpreter that the file path names; "" if it names none, or is
// not an ELF file.
func interpreter(path string) (string, error) {
	// Without O_NONBLOCK a FIFO would wait for its writer.
	fd, err := beneath.RetryEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return elfInterpreter(preader(fd)), nil
}

// preader reads a descriptor at offsets.
type preader int

func (fd preader) ReadAt(p []byte, off int64) (int, error) {
	n, err := beneath.RetryEINTR(func() (int, error) { return unix.Pread(int(fd), p, off) })
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return max(n, 0), err
}

// elfInterpreter reads what the kernel reads when it executes r: the first PT_INTERP, in this
// machine's byte order, of a program of either word size. debug/elf would read all sections
// too, which takes ten times as long and happens on every run.
func elfInterpreter(r io.ReaderAt) string {
	var head [64]byte
	if n, _ := r.ReadAt(head[:], 0); n < 52 || string(head[:4]) != "\x7fELF" {
		return ""
	}
	var (
		order        = binary.NativeEndian
		table, entry uint64
		count        uint16
	)
	const wide, narrow = 2, 1 // EI_CLASS
	switch head[4] {
	case wide:
		table, entry, count = order.Uint64(head[32:]), 56, order.Uint16(head[56:])
		if uint64(order.Uint16(head[54:])) != entry {
			return ""
		}
	case narrow:
		table, entry, count = uint64(order.Uint32(head[28:])), 32, order.Uint16(head[44:])
		if uint64(order.Uint16(head[42:])) != entry {
			return ""
		}
	default:
		return ""
	}
	size := uint64(count) * entry
	if size > 1<<16 || table > 1<<62 { // the kernel's limit, and a file's
		return ""
	}
	headers := make([]byte, size)
	if n, _ := r.ReadAt(headers, int64(table)); n < len(headers) {
		return ""
	}
	for h := headers; len(h) > 0; h = h[entry:] {
		const ptInterp = 3
		if order.Uint32(h) != ptInterp {
			continue
		}
		var at, length uint64
		if head[4] == wide {
			at, length = order.Uint64(h[8:]), order.Uint64(h[32:])
		} else {
			at, length = uint64(order.Uint32(h[4:])), uint64(order.Uint32(h[16:]))
		}
		if length < 2 || length > unix.PathMax || at > 1<<62 {
			return ""
		}
		name := make([]byte, length)
		if n, _ := r.ReadAt(name, int64(at)); n < len(name) {
			return ""
		}
		if end := bytes.IndexByte(name, 0); end >= 0 {
			return string(name[:end])
		}
		return ""
	}
	return ""
}
