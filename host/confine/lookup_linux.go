package confine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// found is a file that was looked up as the kernel would, for a caller.
type found struct {
	fd   int // O_PATH
	path string
	stat unix.Stat_t
	// exposed says that the way to it leads through a folder that the tool, or
	// whoever else writes there, can change.
	exposed bool
	// proc says that the way leads through /proc, which has other files for others.
	proc bool
}

func (p *found) close() { unix.Close(p.fd) }

// maxLinks is the kernel's own limit for symbolic links in a path.
const maxLinks = 40

// lookup finds path, relative to dir, for the thread tid. It goes component by
// component, so that it sees each folder of the way.
func (g *grants) lookup(tid, dir int, path string) (*found, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	p := &found{fd: -1}
	fail := func(err error) (*found, error) {
		if p.fd >= 0 {
			p.close()
		}
		return nil, err
	}
	var err error
	if strings.HasPrefix(path, "/") {
		err = p.toRoot()
	} else {
		err = p.toDir(tid, dir)
	}
	if err != nil {
		return fail(err)
	}
	if path == "" {
		return p, p.look()
	}
	left := strings.Split(path, "/")
	for links := 0; len(left) > 0; {
		name := left[0]
		left = left[1:]
		if name == "" || name == "." {
			if len(left) == 0 && unix.Fstat(p.fd, &p.stat) == nil && p.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
				return fail(unix.ENOTDIR)
			}
			continue
		}
		p.exposed = p.exposed || g.canWrite(p.path)
		inProc := p.inProc()
		p.proc = p.proc || inProc
		if inProc && p.path == "/proc" && (name == "self" || name == "thread-self") {
			// To this process they are itself.
			name = strconv.Itoa(tid)
		}
		next, err := unix.Openat(p.fd, name, flags, 0)
		if err != nil {
			return fail(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return fail(err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			unix.Close(next)
			if links++; links > maxLinks {
				return fail(unix.ELOOP)
			}
			if inProc && p.path != "/proc" {
				err = p.jump(tid, name)
			} else {
				left, err = p.follow(name, left)
			}
			if err != nil {
				return fail(err)
			}
			continue
		}
		p.close()
		p.fd, p.path = next, filepath.Join(p.path, name)
	}
	return p, p.look()
}

// follow returns the names that the text of the link name in p leads to, before those that
// are left. It makes p the topmost folder if they begin there.
func (p *found) follow(name string, left []string) ([]string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.fd, name, target)
	if err != nil || n == 0 || n == len(target) {
		return nil, unix.ENOENT
	}
	if target[0] == '/' {
		err = p.toRoot()
	}
	return append(strings.Split(string(target[:n]), "/"), left...), err
}

// jump makes p what the link name in p leads to, one of the kernel's in /proc, which is not
// its text. Where it leads may change at any moment: what was opened counts. Others' are
// closed to the thread tid, and what they lead to may have a path that is something else here.
func (p *found) jump(tid int, name string) error {
	if pid, _, _ := strings.Cut(strings.TrimPrefix(p.path, "/proc/"), "/"); !isThread(tid, pid) {
		return unix.EACCES
	}
	next, err := unix.Openat(p.fd, name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.close()
	if p.fd = next; p.where() != nil {
		return unix.EACCES
	}
	return nil
}

// isThread reports whether the process or thread other is of the process of tid.
func isThread(tid int, other string) bool {
	_, err := os.Lstat("/proc/" + strconv.Itoa(tid) + "/task/" + other)
	return err == nil
}

// toRoot makes p the root folder. If it fails, p is nothing.
func (p *found) toRoot() error {
	if p.fd >= 0 {
		p.close()
	}
	p.fd, p.path = -1, "/"
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		p.fd = fd
	}
	return err
}

// toDir makes p, which is nothing yet, the folder that dir is for the thread tid.
func (p *found) toDir(tid, dir int) error {
	fd, err := unix.Open(folderOf(tid, dir), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return unix.EBADF
	}
	p.fd = fd
	return p.where()
}

// folderOf returns a link to what dir, a descriptor or AT_FDCWD, is for the thread tid.
func folderOf(tid, dir int) string {
	if dir == unix.AT_FDCWD {
		return "/proc/" + strconv.Itoa(tid) + "/cwd"
	}
	return "/proc/" + strconv.Itoa(tid) + "/fd/" + strconv.Itoa(dir)
}

// where sets the path of p to that of the open file, whatever way led there: another thread of
// the caller may have changed that since, and the judgement goes by the path.
func (p *found) where() (err error) {
	p.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(p.fd))
	return err
}

// inProc reports whether p is in /proc, whose links are not their text.
func (p *found) inProc() bool {
	var fs unix.Statfs_t
	return strings.HasPrefix(p.path, "/proc") && unix.Fstatfs(p.fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC
}

// look completes the lookup of p.
func (p *found) look() error {
	err := unix.Fstat(p.fd, &p.stat)
	if err == nil {
		err = p.where()
	}
	if err != nil {
		p.close()
	}
	return err
}
