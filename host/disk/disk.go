package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/inode"
	"github.com/toold/toold/host/tools"
)

// Place identifies a file by its slash-separated path in tools.d or in the restricted
// folder.
type Place struct {
	Restricted bool
	Path       string
}

// Stamp is the result of stat for a file. If two stamps of a place are equal, the file
// was not changed in between.
type Stamp struct {
	// Fault is the error of stat, as a verb phrase; the other fields are then not set.
	Fault    string
	Mode     fs.FileMode
	dev, ino uint64
	size     int64
	modified int64
	changed  int64 // of the file, or of a link to it when that is later; unix nanoseconds
}

// absent is the Fault of a file that does not exist.
const absent = "absent"

// Present reports whether there is a file, readable or not.
func (s Stamp) Present() bool { return s.Fault != absent }

// Disk reads the files of one tool. It keeps the stamp of each file that it looked
// at, whether it exists or not, to find out later whether anything has changed. It
// follows links, but never out of the two folders.
type Disk struct {
	tools      *os.Root
	restricted *os.Root // nil: there is no restricted folder
	dir        string   // of tools, for messages
	rdir       string   // of restricted
	seen       map[Place]Stamp
}

// Current reports whether the open folders are still those at their paths. If not,
// what was read comes from a folder that was replaced, and that may have been emptied
// while it was read.
func (d *Disk) Current() bool {
	is := func(root *os.Root, dir string) bool {
		opened, err := root.Stat(".")
		if err != nil {
			return false
		}
		now, err := os.Stat(dir)
		return err == nil && os.SameFile(opened, now)
	}
	return is(d.tools, d.dir) && (d.restricted == nil || is(d.restricted, d.rdir))
}

// Open opens the folders. They are opened for each load, since either may be a
// link that has changed.
func Open(dir, restricted string) (*Disk, error) {
	d := &Disk{dir: dir, rdir: restricted, seen: map[Place]Stamp{}}
	var err error
	if d.tools, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	if restricted != "" {
		if d.restricted, err = os.OpenRoot(restricted); err != nil {
			d.tools.Close()
			return nil, fmt.Errorf("open the restricted folder: %w", err)
		}
	}
	return d, nil
}

// Close closes the folders. The stamps remain.
func (d *Disk) Close() {
	d.tools.Close()
	if d.restricted != nil {
		d.restricted.Close()
	}
}

// root returns the folder that p is in, or nil if there is none.
func (d *Disk) root(p Place) *os.Root {
	if p.Restricted {
		return d.restricted
	}
	return d.tools
}

// Name returns the path of p for messages.
func (d *Disk) Name(p Place) string {
	if p.Restricted {
		return filepath.Join(d.rdir, filepath.FromSlash(p.Path))
	}
	return filepath.Join(d.dir, filepath.FromSlash(p.Path))
}

// stat returns the stamp of p without keeping it.
func (d *Disk) stat(p Place) Stamp {
	root := d.root(p)
	if root == nil {
		return Stamp{Fault: absent}
	}
	link, err := root.Lstat(p.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Stamp{Fault: absent}
	}
	if err != nil {
		return Stamp{Fault: "cannot be read: " + reason(err)}
	}
	at, _ := inode.Of(link)
	fi := link
	if link.Mode()&fs.ModeSymlink != 0 {
		// A link whose target is missing or outside is a file that exists and
		// cannot be read. To treat it as absent would lift a policy.
		if fi, err = root.Stat(p.Path); err != nil {
			return Stamp{Fault: "is a link that cannot be followed: " + reason(err), changed: at.Changed.UnixNano()}
		}
	}
	s := Stamp{Mode: fi.Mode(), size: fi.Size(), modified: fi.ModTime().UnixNano()}
	of, _ := inode.Of(fi)
	s.dev, s.ino = of.Dev, of.Ino
	s.changed = max(at.Changed.UnixNano(), of.Changed.UnixNano())
	if fi.IsDir() {
		// Temporary files of an editor change the folder and not the tool.
		s.size, s.modified = 0, 0
	}
	return s
}

// Look returns the stamp of p and keeps it.
func (d *Disk) Look(p Place) Stamp {
	if s, ok := d.seen[p]; ok {
		return s
	}
	s := d.stat(p)
	d.seen[p] = s
	return s
}

// Read returns the content of a regular file of at most limit bytes.
func (d *Disk) Read(p Place, limit int64) ([]byte, error) {
	s := d.Look(p)
	switch {
	case !s.Present():
		return nil, fs.ErrNotExist
	case s.Fault != "":
		return nil, errors.New(s.Fault)
	case !s.Mode.IsRegular():
		return nil, fmt.Errorf("is not a regular file but %s", s.Kind())
	}
	// O_NONBLOCK, in case the file was replaced by a pipe since.
	f, err := d.root(p).OpenFile(p.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("cannot be read: " + reason(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	// A file may grow meanwhile; io.ReadAll takes four times the size of any.
	var b bytes.Buffer
	b.Grow(int(min(fi.Size(), limit)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, errors.New("cannot be read: " + reason(err))
	}
	if int64(b.Len()) > limit {
		return nil, fmt.Errorf("is larger than %s", tools.Size(limit))
	}
	return b.Bytes(), nil
}

// Stamps are those of the files that a Disk looked at, kept for as long as a tool
// serves: most of them are absent.
type Stamps struct {
	present []stamped
	absent  []Place
}

type stamped struct {
	Place
	Stamp
}

// All returns the files, each with its stamp.
func (s *Stamps) All() iter.Seq2[Place, Stamp] {
	return func(yield func(Place, Stamp) bool) {
		for _, f := range s.present {
			if !yield(f.Place, f.Stamp) {
				return
			}
		}
		for _, p := range s.absent {
			if !yield(p, Stamp{Fault: absent}) {
				return
			}
		}
	}
}

// Same reports whether no file has changed since its stamp.
func (d *Disk) Same(stamps *Stamps) bool {
	for p, s := range stamps.All() {
		now := d.stat(p)
		if s.Mode.IsDir() && now.Mode.IsDir() {
			now.changed = s.changed
		}
		if now != s {
			return false
		}
	}
	return true
}

// Seen returns the stamps of the files that were looked at, but for those of a
// folder that there is not.
func (d *Disk) Seen() *Stamps {
	n := 0
	for _, s := range d.seen {
		if s.Present() {
			n++
		}
	}
	all := &Stamps{present: make([]stamped, 0, n), absent: make([]Place, 0, len(d.seen)-n)}
	for p, s := range d.seen {
		switch {
		case s.Present():
			all.present = append(all.present, stamped{p, s})
		case d.root(p) != nil:
			all.absent = append(all.absent, p)
		}
	}
	return all
}

// Newest returns the time of the latest change of any file that was looked at, or of
// the folder (a file was created or removed), in Unix nanoseconds.
func (d *Disk) Newest() int64 {
	var n int64
	for _, s := range d.seen {
		n = max(n, s.changed)
	}
	return n
}

// reason returns the text of err without operation and path, for messages that name
// them.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// Kind describes a file that is neither regular nor missing, for messages: "a folder".
func (s Stamp) Kind() string {
	m := s.Mode
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return strings.TrimSpace(m.Type().String())
}

// WritableByOthers reports whether anyone but its owner may write to path. Files on a
// read-only mount are not writable regardless of their mode: Kubernetes mounts the
// folders of a ConfigMap read-only with mode 0777.
func WritableByOthers(path string, mode fs.FileMode) bool {
	if mode&0o022 == 0 {
		return false
	}
	return !errors.Is(unix.Access(path, unix.W_OK), unix.EROFS)
}
