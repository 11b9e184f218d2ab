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

// Files with a fixed name in a tool's folder.
const (
	definitionFile = "tool.json"
	policyFile     = "restricted.wasm"
	handlerFile    = "handler.wasm"
	setupFile      = "setup.sh"
)

// Files in the restricted folder that apply to every tool.
const (
	globalPolicy = "_all.wasm"
	// globalNone is an empty file that confirms that _all.wasm was removed on
	// purpose.
	globalNone = "_all.none"
)

// Maximum sizes of files, in bytes.
const (
	maxModule = 256 << 20 // the engine has a stricter one of its own
	maxSetup  = 1 << 20
)

// place identifies a file by its slash-separated path in tools.d or in the restricted
// folder.
type place struct {
	restricted bool
	path       string
}

// stamp is the result of stat for a file. If two stamps of a place are equal, the file
// was not changed in between.
type stamp struct {
	// fault is absent, or the error of stat; the other fields are then not set.
	fault    string
	dev, ino uint64
	mode     fs.FileMode
	size     int64
	modified int64
	changed  int64 // of the file, or of a link to it when that is later; unix nanoseconds
}

const absent = "absent"

func (s stamp) present() bool { return s.fault != absent }

// disk reads the files of one tool. It keeps the stamp of each file that it looked
// at, whether it exists or not, to find out later whether anything has changed. It
// follows links, but never out of the two folders.
type disk struct {
	tools      *os.Root
	restricted *os.Root // nil: there is no restricted folder
	dir        string   // of tools, for messages
	rdir       string   // of restricted
	seen       map[place]stamp
}

// current reports whether the open folders are still those at their paths. If not,
// what was read comes from a folder that was replaced, and that may have been emptied
// while it was read.
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

// openDisk opens the folders. They are opened for each load, since either may be a
// link that has changed.
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

// root returns the folder that p is in, or nil if there is none.
func (d *disk) root(p place) *os.Root {
	if p.restricted {
		return d.restricted
	}
	return d.tools
}

// name returns the path of p for messages.
func (d *disk) name(p place) string {
	if p.restricted {
		return filepath.Join(d.rdir, filepath.FromSlash(p.path))
	}
	return filepath.Join(d.dir, filepath.FromSlash(p.path))
}

// stat returns the stamp of p without keeping it.
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
		// A link whose target is missing or outside is a file that exists and
		// cannot be read. To treat it as absent would lift a policy.
		if fi, err = root.Stat(p.path); err != nil {
			return stamp{fault: "is a link that cannot be followed: " + reason(err), changed: changed.UnixNano()}
		}
	}
	s := stamp{mode: fi.Mode(), size: fi.Size(), modified: fi.ModTime().UnixNano()}
	var target time.Time
	s.dev, s.ino, target = inode(fi)
	s.changed = max(changed.UnixNano(), target.UnixNano())
	if fi.IsDir() {
		// Temporary files of an editor change the folder and not the tool.
		s.size, s.modified = 0, 0
	}
	return s
}

// look returns the stamp of p and keeps it.
func (d *disk) look(p place) stamp {
	if s, ok := d.seen[p]; ok {
		return s
	}
	s := d.stat(p)
	d.seen[p] = s
	return s
}

// read returns the content of a regular file of at most limit bytes.
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
	// O_NONBLOCK, in case the file was replaced by a pipe since.
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

// same reports whether no file has changed since its stamp.
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

// newest returns the time of the latest change of any file that was looked at, or of
// the folder (a file was created or removed), in Unix nanoseconds.
func (d *disk) newest() int64 {
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

// writableByOthers reports whether anyone but its owner may write to path. Files on a
// read-only mount are not writable regardless of their mode: Kubernetes mounts the
// folders of a ConfigMap read-only with mode 0777.
func writableByOthers(path string, mode fs.FileMode) bool {
	if mode&0o022 == 0 {
		return false
	}
	return !errors.Is(unix.Access(path, unix.W_OK), unix.EROFS)
}
