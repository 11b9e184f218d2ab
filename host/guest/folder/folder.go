// Package folder implements the file operations that guests may perform in folders of
// the host, for every version of WASI. All names are resolved by os.Root: no symlink
// leads out of a folder, whoever created it and whenever, and a call cannot leave one
// there that would lead others out. (Two calls at a time that move a folder and create a
// link in it can.) Anything other than a file or a directory (a FIFO, a
// device, a socket) is not opened: reading it might block forever.
//
// The package does no metering and no accounting: its callers do.
package folder

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero/sys"
	"golang.org/x/sys/unix"
)

// Folder is a folder of the host made visible to a guest.
type Folder struct {
	Guest    string // its path as the guest sees it
	Root     *os.Root
	ReadOnly bool
}

// MostFiles is the maximum number of files an instance may have open.
const MostFiles = 1000

// ErrTooManyFiles is returned when an instance would exceed MostFiles.
var ErrTooManyFiles = errors.New("too many open files")

// Flags for opening; both versions of WASI use these values.
const (
	Create    = 1
	Directory = 2
	Exclusive = 4
	Truncate  = 8
)

// Flags of an open file, with WASI 0.2's values.
const (
	Read   = 1
	Write  = 2
	Sync   = 4 | 8 | 16
	Mutate = 32 // the folder's entries can be changed
)

// File is a file or folder that a guest has open.
type File struct {
	Dir   bool
	Flags uint32

	in   Folder
	path string   // relative to the root
	file *os.File // nil for the Folder itself
}

// File returns the folder itself as an open File.
func (d Folder) File() *File {
	f := &File{Dir: true, Flags: Read | Mutate, in: d, path: "."}
	if d.ReadOnly {
		f.Flags = Read
	}
	return f
}

// Close closes a File that Open returned.
func (f *File) Close() {
	if f.file != nil {
		f.file.Close()
	}
}

// ReadOnly reports whether the Folder that f belongs to is read-only.
func (f *File) ReadOnly() bool { return f.in.ReadOnly }

// name resolves a name relative to f into one relative to the root. It rejects names
// that lead out of f lexically; os.Root rejects links that lead out of the root.
func (f *File) name(name string) (string, error) {
	switch {
	case !f.Dir:
		return "", syscall.ENOTDIR
	case name == "":
		return "", syscall.ENOENT
	case strings.IndexByte(name, 0) >= 0:
		return "", syscall.EINVAL
	case name[0] == '/':
		return "", syscall.EPERM
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return "", syscall.EPERM
			}
		default:
			depth++
		}
	}
	if f.path == "." {
		return name, nil
	}
	return f.path + "/" + name, nil
}

// change resolves a name for modification. It returns EROFS in a read-only folder.
func (f *File) change(name string) (string, error) {
	name, err := f.name(name)
	if err == nil && f.in.ReadOnly {
		err = syscall.EROFS
	}
	return name, err
}

// Open opens a file or a folder. how is a combination of Create and its siblings; flags
// of Read, Write and Sync.
func (f *File) Open(name string, follow bool, how, flags uint32) (*File, error) {
	name, err := f.name(name)
	if err != nil {
		return nil, err
	}
	writes := flags&Write != 0 || how&(Create|Truncate) != 0
	if f.in.ReadOnly && writes {
		return nil, syscall.EROFS
	}
	if how&Directory != 0 && how&Create != 0 {
		return nil, syscall.EINVAL
	}
	// Without O_NONBLOCK, opening a FIFO would wait for its other end.
	mode := syscall.O_NONBLOCK | syscall.O_NOCTTY
	switch {
	case writes && flags&Read != 0:
		mode |= os.O_RDWR
	case writes:
		mode |= os.O_WRONLY
	}
	for _, m := range [][2]int{{Create, os.O_CREATE}, {Exclusive, os.O_EXCL}, {Truncate, os.O_TRUNC}, {Directory, syscall.O_DIRECTORY}} {
		if int(how)&m[0] != 0 {
			mode |= m[1]
		}
	}
	if flags&Sync != 0 {
		mode |= os.O_SYNC
	}
	if !follow { // os.Root follows links regardless of the mode
		if st, err := f.in.Root.Lstat(name); err == nil && st.Mode()&fs.ModeSymlink != 0 && how&Exclusive == 0 {
			return nil, syscall.ELOOP
		}
	}
	opened, err := f.in.Root.OpenFile(name, mode, 0o666)
	if err != nil {
		return nil, err
	}
	st, err := opened.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = syscall.EPERM
	}
	if err != nil {
		opened.Close()
		return nil, err
	}
	o := &File{Dir: st.IsDir(), Flags: flags &^ Mutate, in: f.in, path: strings.TrimRight(name, "/"), file: opened}
	if o.Dir {
		o.Flags |= o.in.File().Flags
	}
	return o, nil
}

// Stat returns the FileInfo of the open file.
func (f *File) Stat() (fs.FileInfo, error) {
	if f.file != nil {
		return f.file.Stat()
	}
	return f.in.Root.Stat(f.path)
}

// StatAt returns the FileInfo of a name or, with follow, of its target.
func (f *File) StatAt(name string, follow bool) (fs.FileInfo, error) {
	name, err := f.name(name)
	if err != nil {
		return nil, err
	}
	if follow {
		return f.in.Root.Stat(name)
	}
	return f.in.Root.Lstat(name)
}

// Same reports whether both are the same file.
func (f *File) Same(other *File) bool {
	a, err := f.Stat()
	b, err2 := other.Stat()
	return err == nil && err2 == nil && os.SameFile(a, b)
}

// SetTimes sets the access and modification times; a zero time leaves the value
// unchanged.
func (f *File) SetTimes(used, changed time.Time) error {
	if f.in.ReadOnly {
		return syscall.EROFS
	}
	return f.in.Root.Chtimes(f.path, used, changed)
}

// SetTimesAt is SetTimes for a name or, with follow, for its target.
func (f *File) SetTimesAt(name string, follow bool, used, changed time.Time) error {
	name, err := f.change(name)
	if err != nil {
		return err
	}
	if follow {
		return f.in.Root.Chtimes(name, used, changed)
	}
	dir, base, err := f.parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	st, err := f.in.Root.Lstat(name)
	if err != nil {
		return err
	}
	was := sys.NewStat_t(st) // not every system can leave one of them unchanged
	at := []unix.Timespec{unix.NsecToTimespec(was.Atim), unix.NsecToTimespec(was.Mtim)}
	for i, t := range []time.Time{used, changed} {
		if t.IsZero() {
			continue
		}
		if at[i], err = unix.TimeToTimespec(t); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(int(dir.Fd()), base, at, unix.AT_SYMLINK_NOFOLLOW)
}

// parent opens the directory that contains name, for operations that os.Root does not
// offer. The returned base name has no slash; the caller must not follow a link of that
// name.
func (f *File) parent(name string) (*os.File, string, error) {
	short := strings.TrimRight(name, "/")
	if short != name {
		if st, err := f.in.Root.Lstat(short); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, "", err
		} else if err == nil && !st.IsDir() {
			return nil, "", syscall.ENOTDIR
		}
	}
	dir, base := path.Split(short)
	if base == "" || base == "." || base == ".." {
		return nil, "", syscall.EINVAL
	}
	open, err := f.in.openDir("./" + dir)
	return open, base, err
}

// data returns the underlying file if it is open for one of the uses in flags.
func (f *File) data(flags uint32) (*os.File, error) {
	switch {
	case f.Dir:
		return nil, syscall.EISDIR
	case f.Flags&flags == 0:
		return nil, syscall.EBADF
	}
	return f.file, nil
}

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	file, err := f.data(Read)
	if err == nil && off < 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return 0, err
	}
	return file.ReadAt(p, off)
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	file, err := f.data(Write)
	if err == nil && off < 0 {
		err = syscall.EINVAL
	}
	if err != nil {
		return 0, err
	}
	return file.WriteAt(p, off)
}

// Append writes at the end of a file and returns the new end.
func (f *File) Append(p []byte) (n int, end int64, err error) {
	file, err := f.data(Write)
	if err == nil {
		end, err = file.Seek(0, io.SeekEnd)
	}
	if err == nil {
		n, err = file.WriteAt(p, end)
	}
	return n, end + int64(n), err
}

// Truncate sets the size of a file.
func (f *File) Truncate(size int64) error {
	switch {
	case f.Dir:
		return syscall.EISDIR
	case size < 0:
		return syscall.EINVAL
	case f.in.ReadOnly:
		return syscall.EROFS
	}
	return f.file.Truncate(size)
}

// Sync flushes written data to disk.
func (f *File) Sync() error {
	if f.file == nil {
		return nil
	}
	return f.file.Sync()
}

// Entries opens the folder for Readdirnames. The caller closes the result.
func (f *File) Entries() (*os.File, error) {
	if !f.Dir {
		return nil, syscall.ENOTDIR
	}
	return f.in.openDir(f.path)
}

// openDir opens a folder without blocking if it has been replaced by a FIFO.
func (d Folder) openDir(name string) (*os.File, error) {
	return d.Root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
}

// Mkdir creates a folder.
func (f *File) Mkdir(name string) error {
	name, err := f.change(name)
	if err != nil {
		return err
	}
	return f.in.Root.Mkdir(name, 0o777)
}

// Remove removes a file, or an empty folder if dir is set.
func (f *File) Remove(name string, dir bool) error {
	name, err := f.change(name)
	if err != nil {
		return err
	}
	st, err := f.in.Root.Lstat(name)
	switch {
	case err != nil:
		return err
	case dir && !st.IsDir():
		return syscall.ENOTDIR
	case !dir && st.IsDir():
		return syscall.EISDIR
	}
	return f.in.Root.Remove(name)
}

// both resolves two names for modification and calls do with them. It returns EXDEV if
// they are in different folders.
func (f *File) both(name string, dir *File, to string, do func(from, to string) error) error {
	from, err := f.change(name)
	if err != nil {
		return err
	}
	if to, err = dir.change(to); err != nil {
		return err
	}
	if f.in.Root != dir.in.Root {
		return syscall.EXDEV
	}
	return do(from, to)
}

// Rename moves a name into dir under the name to. It returns EXDEV for a link, or a folder
// with one, that would lead out at the new place: copied, the link alone is refused.
func (f *File) Rename(name string, dir *File, to string) error {
	return f.both(name, dir, to, func(name, to string) error {
		if err := f.in.staysWithin(name, to); err != nil {
			return err
		}
		from, old, err := f.parent(name) // os.Root does not replace empty folders
		if err != nil {
			return err
		}
		defer from.Close()
		into, base, err := dir.parent(to)
		if err != nil {
			return err
		}
		defer into.Close()
		return unix.Renameat(int(from.Fd()), old, int(into.Fd()), base)
	})
}

// Link creates another name for a file. It refuses to follow links, as other hosts do.
func (f *File) Link(name string, follow bool, dir *File, to string) error {
	if follow {
		return syscall.EINVAL
	}
	return f.both(name, dir, to, func(name, to string) error {
		if err := f.in.staysWithin(name, to); err != nil {
			return err
		}
		return f.in.Root.Link(name, to)
	})
}

// Symlink creates a link. It refuses a target outside the root: os.Root would not
// follow it, but other readers of the folder might. A target with ".." behind a name is
// refused too: where it leads depends on what that name is at the time.
func (f *File) Symlink(target, name string) error {
	name, err := f.change(name)
	if err != nil {
		return err
	}
	if target == "" {
		return syscall.ENOENT
	}
	up, ok := ascent(target)
	if !ok {
		return syscall.EPERM
	}
	at, err := f.in.real(name)
	if err != nil {
		return err
	}
	if up > strings.Count(at, "/") {
		return syscall.EPERM
	}
	return f.in.Root.Symlink(target, name)
}

// ascent returns the number of folders by which a link's target leads up before it leads
// down, and false for a target that is absolute or leads up again later.
func ascent(target string) (up int, ok bool) {
	down := path.IsAbs(target)
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			down = true
		case down:
			return 0, false
		default:
			up++
		}
	}
	return up, !path.IsAbs(target)
}

// real returns name without links, except that its last part may be one.
func (d Folder) real(name string) (string, error) {
	dir, base := path.Split(strings.TrimRight(name, "/"))
	var at []string
	todo := strings.Split(dir, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return "", syscall.EPERM
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, part)
		to, err := d.Root.Readlink(path.Join(at...))
		switch {
		case errors.Is(err, syscall.EINVAL): // no link
		case err != nil:
			return "", err
		case path.IsAbs(to):
			return "", syscall.EPERM
		case links == maxLinks:
			return "", syscall.ELOOP
		default:
			links++
			at, todo = at[:len(at)-1], append(strings.Split(to, "/"), todo...)
		}
	}
	return path.Join(append(at, base)...), nil
}

const (
	maxLinks = 40 // links that are followed in one name, as in the kernel
	// maxMoved is the maximum number of files and folders in a folder that is looked
	// through for links.
	maxMoved = 10_000
)

// staysWithin returns EXDEV if name is a link that would lead out of the root at the name
// to, or a folder with one, or a folder with more than maxMoved entries. Links that lead
// out already are not the guest's, and no worse there.
func (d Folder) staysWithin(name, to string) error {
	name, err := d.real(name)
	if err != nil {
		return err
	}
	if to, err = d.real(to); err != nil {
		return err
	}
	was, is := strings.Count(name, "/"), strings.Count(to, "/")
	if is >= was {
		return nil
	}
	link := func(at string) error {
		target, err := d.Root.Readlink(at)
		if err != nil {
			return err
		}
		depth := strings.Count(at, "/")
		if up, ok := ascent(target); ok && up <= depth && up > depth-was+is {
			return syscall.EXDEV
		}
		return nil
	}
	st, err := d.Root.Lstat(name)
	switch {
	case err != nil:
		return err
	case st.Mode()&fs.ModeSymlink != 0:
		return link(name)
	case !st.IsDir():
		return nil
	}
	seen := 0
	return fs.WalkDir(d.Root.FS(), name, func(at string, e fs.DirEntry, err error) error {
		if seen++; seen > maxMoved {
			return syscall.EXDEV
		}
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return err
		}
		return link(at)
	})
}

// Readlink returns the target of a link, unless the target is lexically outside.
func (f *File) Readlink(name string) (string, error) {
	name, err := f.name(name)
	if err != nil {
		return "", err
	}
	to, err := f.in.Root.Readlink(name)
	if err == nil && filepath.IsAbs(to) {
		err = syscall.EPERM
	}
	return to, err
}

// errnos maps system errors to what guests see: the name in WASI 0.2 and the number in
// preview 1.
var errnos = []struct {
	no     syscall.Errno
	name   string
	number uint16
}{
	{syscall.EACCES, "access", 2}, {syscall.EAGAIN, "would-block", 6}, {syscall.EALREADY, "already", 7}, {syscall.EBADF, "bad-descriptor", 8},
	{syscall.EBUSY, "busy", 10}, {syscall.EDEADLK, "deadlock", 16}, {syscall.EDQUOT, "quota", 19}, {syscall.EEXIST, "exist", 20},
	{syscall.EFBIG, "file-too-large", 22}, {syscall.EILSEQ, "illegal-byte-sequence", 25}, {syscall.EINPROGRESS, "in-progress", 26},
	{syscall.EINTR, "interrupted", 27}, {syscall.EINVAL, "invalid", 28}, {syscall.EIO, "io", 29}, {syscall.EISDIR, "is-directory", 31},
	{syscall.ELOOP, "loop", 32}, {syscall.EMLINK, "too-many-links", 34}, {syscall.EMSGSIZE, "message-size", 35}, {syscall.ENAMETOOLONG, "name-too-long", 37},
	{syscall.ENODEV, "no-device", 43}, {syscall.ENOENT, "no-entry", 44}, {syscall.ENOLCK, "no-lock", 46}, {syscall.ENOMEM, "insufficient-memory", 48},
	{syscall.ENOSPC, "insufficient-space", 51}, {syscall.ENOTDIR, "not-directory", 54}, {syscall.ENOTEMPTY, "not-empty", 55},
	{syscall.ENOTSUP, "unsupported", 58}, {syscall.ENOTTY, "no-tty", 59}, {syscall.ENXIO, "no-such-device", 60}, {syscall.EOVERFLOW, "overflow", 61},
	{syscall.EPERM, "not-permitted", 63}, {syscall.EPIPE, "pipe", 64}, {syscall.EROFS, "read-only", 69}, {syscall.ESPIPE, "invalid-seek", 70},
	{syscall.ETXTBSY, "text-file-busy", 74}, {syscall.EXDEV, "cross-device", 75}, {syscall.EMFILE, "quota", 33}, {syscall.ENFILE, "quota", 41},
}

// Error returns the WASI 0.2 name and the preview 1 number for an error.
func Error(err error) (name string, number uint16) {
	no, ok := errors.AsType[syscall.Errno](err)
	switch {
	case ok:
	case errors.Is(err, ErrTooManyFiles):
		no = syscall.EMFILE
	case strings.Contains(err.Error(), "escapes"): // the text of os.Root's error
		no = syscall.EPERM
	case errors.Is(err, fs.ErrInvalid):
		no = syscall.EINVAL
	}
	for _, e := range errnos {
		if e.no == no {
			return e.name, e.number
		}
	}
	return "io", 29
}

// Identity returns the device and inode that identify a file, and its link count.
func Identity(st fs.FileInfo) (dev, ino, links uint64) {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(sys.Dev), uint64(sys.Ino), uint64(sys.Nlink)
	}
	return 0, 0, 1
}

// Kind is the type of a file.
type Kind uint8

// The kinds, in WASI 0.2's order.
const (
	Unknown Kind = iota
	BlockDevice
	CharacterDevice
	Directories
	FIFO
	Link
	Regular
	Socket
)

// KindOf returns the kind for a file mode.
func KindOf(m fs.FileMode) Kind {
	switch {
	case m.IsRegular():
		return Regular
	case m.IsDir():
		return Directories
	case m&fs.ModeSymlink != 0:
		return Link
	case m&fs.ModeNamedPipe != 0:
		return FIFO
	case m&fs.ModeSocket != 0:
		return Socket
	case m&fs.ModeCharDevice != 0:
		return CharacterDevice
	case m&fs.ModeDevice != 0:
		return BlockDevice
	}
	return Unknown
}
