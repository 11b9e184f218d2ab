package guest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tetratelabs/wazero"
	wasisys "github.com/tetratelabs/wazero/experimental/sys"
	"github.com/tetratelabs/wazero/experimental/sysfs"
	"github.com/tetratelabs/wazero/sys"
)

// mount lets a guest see folders.
func (in *instance) mount(p *part, config wazero.ModuleConfig, dirs []Mount) (wazero.ModuleConfig, error) {
	if len(dirs) == 0 {
		return config, nil
	}
	fsc := wazero.NewFSConfig()
	for _, d := range dirs {
		r, err := os.OpenRoot(d.Host)
		if err != nil {
			return nil, in.m.errorf(BadMount, "", "open folder for the guest: %w", err)
		}
		p.roots = append(p.roots, r)
		fsc = fsc.(sysfs.FSConfig).WithSysFSMount(&folder{c: &in.c, root: r, ro: d.ReadOnly}, d.Guest)
	}
	return config.WithFSConfig(fsc), nil
}

// folder is a folder of the host as a guest sees it. All names are resolved by
// os.Root: no symlink leads out, whoever made it and whenever. A guest makes
// none that would lead others out. What is neither a file nor a folder (a
// FIFO, a device, a socket) cannot be opened: reading it might never end.
type folder struct {
	wasisys.UnimplementedFS
	c    *call
	root *os.Root
	ro   bool
}

// name is a guest's path, which is relative to the folder, as os.Root wants
// it.
func name(path string) string {
	path = strings.TrimLeft(path, "/")
	if path == "" {
		return "."
	}
	return path
}

func errno(err error) wasisys.Errno {
	if err == nil || err == io.EOF {
		return 0
	}
	var path *os.PathError
	if errors.As(err, &path) && strings.Contains(path.Err.Error(), "escapes") {
		return wasisys.EPERM
	}
	var link *os.LinkError
	if errors.As(err, &link) && strings.Contains(link.Err.Error(), "escapes") {
		return wasisys.EPERM
	}
	return wasisys.UnwrapOSError(err)
}

// step is what every operation costs; it ends the call when that has ended.
func (f *folder) step(n int) {
	f.c.charge(uint64(n) + 16_000)
	f.c.checkCanceled()
}

func (f *folder) OpenFile(path string, flag wasisys.Oflag, perm fs.FileMode) (wasisys.File, wasisys.Errno) {
	f.step(0)
	f.c.inst.m.opened.Add(1)
	const writes = wasisys.O_RDWR | wasisys.O_WRONLY | wasisys.O_CREAT | wasisys.O_TRUNC | wasisys.O_APPEND
	if f.ro && flag&writes != 0 {
		return nil, wasisys.EROFS
	}
	// O_NONBLOCK: opening a FIFO would wait for its other end.
	how := syscall.O_NONBLOCK | syscall.O_NOCTTY
	switch {
	case flag&wasisys.O_RDWR != 0:
		how |= os.O_RDWR
	case flag&wasisys.O_WRONLY != 0:
		how |= os.O_WRONLY
	}
	for _, m := range []struct {
		theirs wasisys.Oflag
		ours   int
	}{
		{wasisys.O_CREAT, os.O_CREATE}, {wasisys.O_EXCL, os.O_EXCL}, {wasisys.O_TRUNC, os.O_TRUNC},
		{wasisys.O_SYNC, os.O_SYNC}, {wasisys.O_DSYNC, os.O_SYNC},
		{wasisys.O_NOFOLLOW, syscall.O_NOFOLLOW}, {wasisys.O_DIRECTORY, syscall.O_DIRECTORY},
	} {
		if flag&m.theirs != 0 {
			how |= m.ours
		}
	}
	file, err := f.root.OpenFile(name(path), how, perm&0o777)
	if err != nil {
		return nil, errno(err)
	}
	st, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, errno(err)
	}
	if !st.Mode().IsRegular() && !st.IsDir() {
		file.Close()
		return nil, wasisys.EPERM
	}
	return &openFile{folder: f, path: path, file: file, dir: st.IsDir(), appends: flag&wasisys.O_APPEND != 0}, 0
}

func (f *folder) Lstat(path string) (sys.Stat_t, wasisys.Errno) {
	f.step(0)
	st, err := f.root.Lstat(name(path))
	if err != nil {
		return sys.Stat_t{}, errno(err)
	}
	return sys.NewStat_t(st), 0
}

func (f *folder) Stat(path string) (sys.Stat_t, wasisys.Errno) {
	f.step(0)
	st, err := f.root.Stat(name(path))
	if err != nil {
		return sys.Stat_t{}, errno(err)
	}
	return sys.NewStat_t(st), 0
}

// change does what writes, unless the folder is read-only.
func (f *folder) change(do func() error) wasisys.Errno {
	f.step(0)
	if f.ro {
		return wasisys.EROFS
	}
	return errno(do())
}

func (f *folder) Mkdir(path string, perm fs.FileMode) wasisys.Errno {
	return f.change(func() error { return f.root.Mkdir(name(path), perm&0o777) })
}

func (f *folder) Chmod(path string, perm fs.FileMode) wasisys.Errno {
	return f.change(func() error { return f.root.Chmod(name(path), perm&0o777) })
}

func (f *folder) Rename(from, to string) wasisys.Errno {
	return f.change(func() error { return f.root.Rename(name(from), name(to)) })
}

func (f *folder) Rmdir(path string) wasisys.Errno {
	return f.change(func() error {
		st, err := f.root.Lstat(name(path))
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return syscall.ENOTDIR
		}
		return f.root.Remove(name(path))
	})
}

func (f *folder) Unlink(path string) wasisys.Errno {
	return f.change(func() error {
		st, err := f.root.Lstat(name(path))
		if err != nil {
			return err
		}
		if st.IsDir() {
			return syscall.EISDIR
		}
		return f.root.Remove(name(path))
	})
}

func (f *folder) Link(from, to string) wasisys.Errno {
	return f.change(func() error { return f.root.Link(name(from), name(to)) })
}

// Symlink refuses what leads out: os.Root would not follow it, but what else
// reads the folder might.
func (f *folder) Symlink(target, link string) wasisys.Errno {
	return f.change(func() error {
		if filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name(link)), target)) {
			return syscall.EPERM
		}
		return f.root.Symlink(target, name(link))
	})
}

func (f *folder) Readlink(path string) (string, wasisys.Errno) {
	f.step(0)
	s, err := f.root.Readlink(name(path))
	return s, errno(err)
}

func (f *folder) Utimens(path string, atim, mtim int64) wasisys.Errno {
	at := func(ns int64) time.Time {
		if ns == wasisys.UTIME_OMIT {
			return time.Time{}
		}
		return time.Unix(0, ns)
	}
	return f.change(func() error { return f.root.Chtimes(name(path), at(atim), at(mtim)) })
}

// openFile is a file or a folder that a guest has opened.
type openFile struct {
	wasisys.UnimplementedFile
	*folder
	path    string
	file    *os.File
	dir     bool
	appends bool
}

func (f *openFile) stat() (sys.Stat_t, wasisys.Errno) {
	st, err := f.file.Stat()
	if err != nil {
		return sys.Stat_t{}, errno(err)
	}
	return sys.NewStat_t(st), 0
}

func (f *openFile) Dev() (uint64, wasisys.Errno) {
	st, e := f.stat()
	return st.Dev, e
}

func (f *openFile) Ino() (sys.Inode, wasisys.Errno) {
	st, e := f.stat()
	return st.Ino, e
}

func (f *openFile) IsDir() (bool, wasisys.Errno)        { return f.dir, 0 }
func (f *openFile) IsAppend() bool                      { return f.appends }
func (f *openFile) SetAppend(enable bool) wasisys.Errno { f.appends = enable; return 0 }
func (f *openFile) Stat() (sys.Stat_t, wasisys.Errno)   { f.step(0); return f.stat() }
func (f *openFile) Close() wasisys.Errno                { return errno(f.file.Close()) }
func (f *openFile) Sync() wasisys.Errno {
	f.step(0)
	f.folder.c.pause()
	return errno(f.file.Sync())
}
func (f *openFile) Datasync() wasisys.Errno { return f.Sync() }
func (f *openFile) Utimens(atim, mtim int64) wasisys.Errno {
	return f.folder.Utimens(f.path, atim, mtim)
}

// piece is how much is read or written at a time: a guest may ask for all of
// its memory at once.
const piece = 1 << 20

func (f *openFile) moved(do func() (int, error)) (int, wasisys.Errno) {
	if f.dir {
		return 0, wasisys.EISDIR
	}
	f.step(0)
	n, err := do()
	f.c.charge(uint64(n))
	return n, errno(err)
}

func (f *openFile) Read(p []byte) (int, wasisys.Errno) {
	return f.moved(func() (int, error) { return f.file.Read(p[:min(len(p), piece)]) })
}

func (f *openFile) Pread(p []byte, off int64) (int, wasisys.Errno) {
	return f.moved(func() (int, error) { return f.file.ReadAt(p[:min(len(p), piece)], off) })
}

func (f *openFile) Write(p []byte) (int, wasisys.Errno) {
	return f.moved(func() (int, error) {
		if f.appends {
			if _, err := f.file.Seek(0, io.SeekEnd); err != nil {
				return 0, err
			}
		}
		return f.file.Write(p[:min(len(p), piece)])
	})
}

func (f *openFile) Pwrite(p []byte, off int64) (int, wasisys.Errno) {
	return f.moved(func() (int, error) { return f.file.WriteAt(p[:min(len(p), piece)], off) })
}

// offset keeps vet from taking Seek for an io.Seeker's.
type offset = int64

func (f *openFile) Seek(off offset, whence int) (int64, wasisys.Errno) {
	f.step(0)
	if f.dir && (off != 0 || whence != io.SeekStart) {
		return 0, wasisys.EISDIR
	}
	n, err := f.file.Seek(off, whence)
	return n, errno(err)
}

func (f *openFile) Truncate(size int64) wasisys.Errno {
	if size < 0 {
		return wasisys.EINVAL
	}
	return f.change(func() error { return f.file.Truncate(size) })
}

func (f *openFile) Readdir(n int) ([]wasisys.Dirent, wasisys.Errno) {
	f.step(0)
	if !f.dir {
		return nil, wasisys.ENOTDIR
	}
	es, err := f.file.Readdir(n)
	out := make([]wasisys.Dirent, 0, len(es))
	for _, e := range es {
		st := sys.NewStat_t(e)
		out = append(out, wasisys.Dirent{Ino: st.Ino, Name: e.Name(), Type: e.Mode().Type()})
	}
	f.c.charge(uint64(len(es)) * 1000)
	return out, errno(err)
}
