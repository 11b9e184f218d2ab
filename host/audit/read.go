package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/regular"
)

// segmentFile is one of the files of a log.
type segmentFile struct {
	number uint64
	size   int64
}

func segmentPath(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%08d.log", number))
}

// segments lists the segments of the log in dir, oldest first.
func segments(dir string) ([]segmentFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []segmentFile
	for _, e := range entries {
		number, ok := segmentNumber(e.Name())
		if !ok {
			continue
		}
		fi, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile because of its age
		}
		if err != nil {
			return nil, err
		}
		list = append(list, segmentFile{number, fi.Size()})
	}
	slices.SortFunc(list, func(a, b segmentFile) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	return list, nil
}

// segmentNumber returns the number in a file's name.
func segmentNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	n, err := strconv.ParseUint(digits, 10, 63)
	return n, ok && err == nil && n > 0 && filepath.Base(segmentPath("", n)) == name
}

// errNoFile is the error for a folder, or anything else but a file, in the place of a segment.
var errNoFile = errors.New("not a regular file")

func openSegment(dir string, number uint64) (*os.File, error) {
	f, err := regular.OpenFile(segmentPath(dir, number), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if _, other := errors.AsType[regular.Error](err); other {
		return nil, errors.Join(err, errNoFile)
	}
	return f, err
}

// lines reads the lines of one segment.
type lines struct {
	in *bufio.Reader
	at int64 // where the next line begins
}

func newLines(r io.Reader) *lines { return &lines{in: bufio.NewReaderSize(r, MaxLine)} }

// errLine is the error for an invalid line: too long or, with torn, incomplete.
type errLine struct {
	at   int64
	torn bool
}

func (e errLine) Error() string {
	if e.torn {
		return "the last line is incomplete"
	}
	return fmt.Sprintf("a line is over %d bytes", MaxLine)
}

// next returns the next line without its line break, valid until the next call, and its offset. It returns io.EOF at
// the end, and errLine for an invalid line, after which reading may continue.
func (l *lines) next() (line []byte, at int64, err error) {
	at = l.at
	line, err = l.in.ReadSlice('\n')
	l.at += int64(len(line))
	switch {
	case err == nil:
		return line[:len(line)-1], at, nil
	case errors.Is(err, bufio.ErrBufferFull):
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = l.in.ReadSlice('\n')
			l.at += int64(len(line))
		}
		if err != nil && err != io.EOF {
			return nil, at, err
		}
		return nil, at, errLine{at: at}
	case err == io.EOF && len(line) > 0:
		return line, at, errLine{at: at, torn: true}
	}
	return nil, at, err
}

// firstRecord returns the first record of a file, and the length of its line.
func firstRecord(path string) (*Record, int64, error) {
	f, err := regular.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	l := newLines(f)
	line, _, err := l.next()
	if err != nil {
		return nil, 0, err
	}
	r, err := decode(line)
	return r, l.at, err
}

// lastRecord returns the last line of f that is a record, with its hash and the offset of its end; nil and 0 if there
// is none.
func lastRecord(f io.ReaderAt, size int64) (*Record, hash, int64, error) {
	for span := int64(2 * MaxLine); ; span *= 8 {
		from := max(size-span, 0)
		b := make([]byte, size-from)
		if _, err := f.ReadAt(b, from); err != nil && err != io.EOF {
			return nil, hash{}, 0, err
		}
		for end := len(b); end > 0; {
			nl := bytes.LastIndexByte(b[:end], '\n')
			if nl < 0 {
				break
			}
			begin := bytes.LastIndexByte(b[:nl], '\n') + 1
			if begin == 0 && from > 0 {
				break // its beginning is further up
			}
			if r, err := decode(b[begin:nl]); err == nil {
				return r, hashOf(b[begin:nl]), from + int64(nl) + 1, nil
			}
			end = begin
		}
		if from == 0 {
			return nil, hash{}, 0, nil
		}
	}
}

// Position is the location of a record.
type Position struct {
	Segment uint64
	Offset  int64
}

// Read calls each with the records of the log in dir that were written at since or later, in order, and with the text
// of each, until each returns false. It skips what is not a record: Verify reports where. Text is valid until each
// returns.
func Read(dir string, since time.Time, each func(at Position, r *Record, text []byte) bool) error {
	list, err := segments(dir)
	if err != nil {
		return fmt.Errorf("read the audit log: %w", err)
	}
	for i, s := range list {
		if i+1 < len(list) && !since.IsZero() {
			// All of a segment is older than the first record of the next.
			if r, _, err := firstRecord(segmentPath(dir, list[i+1].number)); err == nil && r.At.Before(since) {
				continue
			}
		}
		more, err := readSegment(dir, s.number, since, each)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, errNoFile) {
			continue // removed meanwhile, or invalid: Verify reports it
		}
		if err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		if !more {
			return nil
		}
	}
	return nil
}

func readSegment(dir string, number uint64, since time.Time, each func(Position, *Record, []byte) bool) (more bool, err error) {
	f, err := openSegment(dir, number)
	if err != nil {
		return true, err
	}
	defer f.Close()
	in := newLines(f)
	for {
		line, at, err := in.next()
		if _, bad := errors.AsType[errLine](err); bad {
			continue
		}
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		r, err := decode(line)
		if err != nil || r.At.Before(since) {
			continue
		}
		if !each(Position{number, at}, r, line) {
			return false, nil
		}
	}
}
