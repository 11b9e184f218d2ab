package tools

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Files of a tool's folder that have a meaning by their name.
const (
	definitionFile = "tool.json"
	policyFile     = "restricted.wasm"
	handlerFile    = "handler.wasm"
	setupFile      = "setup.sh"
)

// Files of the restricted folder that concern every tool.
const (
	globalPolicy = "_all.wasm"
	// globalNone confirms, by being there, that tools which once had a
	// _all.wasm are meant to have none.
	globalNone = "_all.none"
)

// Bounds of what is read of a file, in bytes.
const (
	maxModule = 256 << 20 // the engine has a stricter one of its own
	maxSetup  = 1 << 20
)

// place names one file: a slash path in tools.d, or in the restricted folder.
type place struct {
	restricted bool
	path       string
}

// stamp is what stat says of one file. Two equal stamps of a place mean that
// nobody has touched it in between.
type stamp struct {
	// fault is why nothing else is known: "absent", or what stat said.
	fault    string
	dev, ino uint64
	mode     fs.FileMode
	size     int64
	modified int64
	changed  int64 // of the file, or of a link to it when that is later; unix nanoseconds
}

const absent = "absent"

func (s stamp) present() bool { return s.fault != absent }

// disk reads the files of one tool and keeps the stamp of each one that it
// looked at, there or not, so that it can say later whether anything has
// changed. It follows links, but never out of the two folders.
type disk struct {
	tools      *os.Root
	restricted *os.Root // nil: there is no restricted folder
	dir        string   // of tools, for messages
	rdir       string   // of restricted
	seen       map[place]stamp
}

// current reports whether the folders are still those that their names stand
// for. When not, what was read is of a folder that another has replaced, and
// may have been emptied meanwhile.
func (d *disk) current() bool {
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

// openDisk opens the folders anew for each look: either may itself be a link
// that was pointed elsewhere since.
func openDisk(dir, restricted string) (*disk, error) {
	d := &disk{dir: dir, rdir: restricted, seen: map[place]stamp{}}
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

func (d *disk) Close() {
	d.tools.Close()
	if d.restricted != nil {
		d.restricted.Close()
	}
}

// root is the folder that p is in; nil when there is none.
func (d *disk) root(p place) *os.Root {
	if p.restricted {
		return d.restricted
	}
	return d.tools
}

// name is p for a person.
func (d *disk) name(p place) string {
	if p.restricted {
		return filepath.Join(d.rdir, filepath.FromSlash(p.path))
	}
	return filepath.Join(d.dir, filepath.FromSlash(p.path))
}

// stat looks at p without keeping its stamp.
func (d *disk) stat(p place) stamp {
	root := d.root(p)
	if root == nil {
		return stamp{fault: absent}
	}
	link, err := root.Lstat(p.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return stamp{fault: absent}
	}
	if err != nil {
		return stamp{fault: "cannot be read: " + reason(err)}
	}
	_, _, changed := inode(link)
	fi := link
	if link.Mode()&fs.ModeSymlink != 0 {
		// A link whose target is missing or outside is a file that is there
		// and cannot be read, never one that is not there.
		if fi, err = root.Stat(p.path); err != nil {
			return stamp{fault: "is a link that cannot be followed: " + reason(err), changed: changed.UnixNano()}
		}
	}
	s := stamp{mode: fi.Mode(), size: fi.Size(), modified: fi.ModTime().UnixNano()}
	var target time.Time
	s.dev, s.ino, target = inode(fi)
	s.changed = max(changed.UnixNano(), target.UnixNano())
	if fi.IsDir() {
		// A folder changes with every temporary file of an editor, which is
		// no change of the tool.
		s.size, s.modified = 0, 0
	}
	return s
}

// look is stat, and keeps the stamp.
func (d *disk) look(p place) stamp {
	if s, ok := d.seen[p]; ok {
		return s
	}
	s := d.stat(p)
	d.seen[p] = s
	return s
}

// read returns the bytes of a regular file of at most limit bytes.
func (d *disk) read(p place, limit int64) ([]byte, error) {
	s := d.look(p)
	switch {
	case !s.present():
		return nil, fs.ErrNotExist
	case s.fault != "":
		return nil, errors.New(s.fault)
	case !s.mode.IsRegular():
		return nil, fmt.Errorf("is not a regular file but %s", kindOf(s.mode))
	}
	// Not blocking, lest something put a pipe there just now.
	f, err := d.root(p).OpenFile(p.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("cannot be read: " + reason(err))
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, errors.New("cannot be read: " + reason(err))
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("is larger than %s", Size(limit))
	}
	return b, nil
}

// same reports whether every file that was looked at still is what it was.
func (d *disk) same(stamps map[place]stamp) bool {
	for p, s := range stamps {
		now := d.stat(p)
		if s.mode.IsDir() && now.mode.IsDir() {
			now.changed = s.changed
		}
		if now != s {
			return false
		}
	}
	return true
}

// newest is the latest change of any file that was looked at, or of the folder
// (a file came or went), in unix nanoseconds.
func (d *disk) newest() int64 {
	var n int64
	for _, s := range d.seen {
		n = max(n, s.changed)
	}
	return n
}

// reason is err without the operation and the path, which the message around
// it has already.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

func kindOf(m fs.FileMode) string {
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

// writableByOthers reports whether anyone but the owner of path may write to
// it. Files on a read-only mount are not writable whatever their mode says:
// Kubernetes mounts the folders of a ConfigMap with mode 0777, read-only.
func writableByOthers(path string, mode fs.FileMode) bool {
	if mode&0o022 == 0 {
		return false
	}
	return !errors.Is(unix.Access(path, unix.W_OK), unix.EROFS)
}
