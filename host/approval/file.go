package approval

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/strictjson"
)

// A file has one line for each request and for each change of one, in order: the
// CRC-32C of the JSON in eight hexadecimal digits, a space, the JSON, a line feed.
const (
	// maxLine bounds a line, with its line feed.
	maxLine = 256 << 10
	// compactAt is the size from which a file is written anew, in bytes, once
	// it is twice what it was then.
	compactAt = 1 << 20
	// maxFile is the most that is read: what open and remembered requests can
	// come to, twice.
	maxFile = 2 * (MaxOpen + maxClosed) * (MaxPlan + 64<<10)
)

// line is what one line holds.
type line struct {
	Ask    *Request `json:"ask,omitempty"`
	Change *change  `json:"change,omitempty"`
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func encodeLine(l line) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	if len(b)+10 > maxLine {
		return nil, fmt.Errorf("%w: its record has %d bytes, and %d are the limit", ErrInvalid, len(b)+10, maxLine)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(b, crcTable), b), nil
}

func decodeLine(b []byte) (l line, err error) {
	if len(b) < 9 || b[8] != ' ' {
		return l, errors.New("it has no checksum")
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(b[9:], crcTable)); sum != string(b[:8]) {
		return l, errors.New("its checksum is wrong")
	}
	if err := strictjson.Unmarshal(b[9:], &l); err != nil {
		return l, err
	}
	if (l.Ask == nil) == (l.Change == nil) {
		return l, errors.New("it is neither a request nor a change")
	}
	return l, nil
}

// decode reads a file: the requests in the order in which they were made, and how
// many bytes of it are whole. What follows these is a line that was cut off. Any
// other fault is an error, and nothing of the file is to be used then.
func decode(b []byte) (list []*Request, whole int, err error) {
	byID := map[string]*Request{}
	for n := 1; ; n++ {
		i := bytes.IndexByte(b[whole:], '\n')
		if i < 0 {
			return list, whole, nil
		}
		if i >= maxLine {
			return nil, 0, fmt.Errorf("line %d is over %d bytes", n, maxLine)
		}
		l, err := decodeLine(b[whole : whole+i])
		if err != nil {
			return nil, 0, fmt.Errorf("line %d: %w", n, err)
		}
		if r := l.Ask; r != nil {
			// After it was written anew, a file has requests in any state.
			if err := r.checkKept(); err != nil {
				return nil, 0, fmt.Errorf("line %d: %w", n, err)
			}
			if byID[r.ID] != nil {
				return nil, 0, fmt.Errorf("line %d: request %.64q is there twice", n, r.ID)
			}
			byID[r.ID] = r
			list = append(list, r)
		} else {
			r := byID[l.Change.ID]
			if r == nil {
				return nil, 0, fmt.Errorf("line %d: there is no request %.64q", n, l.Change.ID)
			}
			next, err := r.after(l.Change)
			if err != nil {
				return nil, 0, fmt.Errorf("line %d: %w", n, err)
			}
			*r = next
		}
		whole += i + 1
	}
}

// checkKept reports why r cannot be a request that was kept.
func (r *Request) checkKept() error {
	fresh := *r
	fresh.State, fresh.Decided, fresh.Decider, fresh.DeciderName, fresh.Reason = Pending, time.Time{}, "", "", ""
	fresh.Used, fresh.UsedBy, fresh.Began, fresh.Outcome = time.Time{}, "", 0, ""
	if err := fresh.check(); err != nil {
		return err
	}
	decided := r.State == Approved || r.State == Denied || r.State == Used
	switch {
	case r.State != Pending && r.State != Expired && r.State != Lapsed && !decided:
		return fmt.Errorf("there is no state %.32q", r.State)
	case decided && r.Decider == "", r.State == Pending && r.Decider != "":
		return errors.New("its state and who decided differ")
	case (r.State == Used) != (r.UsedBy != ""), (r.State == Used) != (r.Began > 0), r.Began < 0 || r.Began > len(r.Steps):
		return errors.New("its state and what ran differ")
	}
	return nil
}

// file is the file of a store. It belongs to its store, whose lock guards it.
type file struct {
	path string
	f    *os.File
	size int64
	// torn says that a write failed, and what is past size is to be cut off
	// before the next one.
	torn bool
	// base is how many bytes it had when it was written anew.
	base int64
	// broken is why nothing is written any more.
	broken error
}

const fileName = "approvals.log"

// openFile opens or makes the file in dir. aside is where a file that was damaged
// is now, and why.
func openFile(dir string) (f *file, list []*Request, aside string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, "", err
	}
	f = &file{path: filepath.Join(dir, fileName)}
	b, err := readBounded(f.path)
	if err == nil {
		var whole int
		if list, whole, err = decode(b); err == nil {
			f.size = int64(whole)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		damaged := f.path + ".damaged"
		if e := os.Rename(f.path, damaged); e != nil {
			return nil, nil, "", fmt.Errorf("%w, and it cannot be set aside: %w", err, e)
		}
		aside, list = fmt.Sprintf("%s: %v", damaged, err), nil
	}
	if f.f, err = regular.OpenFile(f.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, nil, "", err
	}
	f.torn = true // what was cut off goes before the first line is written
	if err = f.mend(); err == nil {
		err = regular.SyncDir(dir)
	}
	if err != nil {
		f.f.Close()
		return nil, nil, "", err
	}
	return f, list, aside, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := regular.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("it is over %d bytes", maxFile)
	}
	return b, err
}

// mend cuts off what a failed write left.
func (f *file) mend() error {
	if !f.torn {
		return nil
	}
	if err := f.f.Truncate(f.size); err != nil {
		return err
	}
	if err := f.f.Sync(); err != nil {
		return err
	}
	f.torn = false
	return nil
}

// write appends a line and, with sync, has it on the disk.
func (f *file) write(l line, sync bool) error {
	b, err := encodeLine(l)
	if err != nil {
		return err
	}
	if f.broken == nil {
		err = f.mend()
	}
	if err := errors.Join(f.broken, err); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	f.torn = true
	if _, err := f.f.WriteAt(b, f.size); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if sync {
		if err := f.f.Sync(); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	f.torn = false
	f.size += int64(len(b))
	return nil
}

// grown reports whether f is worth to be written anew.
func (f *file) grown() bool { return f.size >= max(compactAt, 2*f.base) }

// rewrite puts a file with these requests alone in the place of f.
func (f *file) rewrite(list []*Request) error {
	var all bytes.Buffer
	for _, r := range list {
		b, err := encodeLine(line{Ask: r})
		if err != nil {
			return err
		}
		all.Write(b)
	}
	next, err := regular.OpenFile(f.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = next.Write(all.Bytes()); err == nil {
		err = next.Sync()
	}
	if err == nil {
		err = os.Rename(next.Name(), f.path)
	}
	if err != nil {
		return errors.Join(err, next.Close(), os.Remove(f.path+".new"))
	}
	f.f.Close()
	f.f, f.size, f.torn = next, int64(all.Len()), false
	f.base = f.size
	if err := regular.SyncDir(filepath.Dir(f.path)); err != nil {
		// A reboot might bring the old file back, without what is written from here
		// on: an approval that was used would not be.
		f.broken = fmt.Errorf("its folder cannot be synced: %w; restart the daemon", err)
	}
	return f.broken
}
