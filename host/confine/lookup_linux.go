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
	root := func() (err error) {
		if p.fd >= 0 {
			p.close()
		}
		p.path = "/"
		p.fd, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		return err
	}
	var err error
	if strings.HasPrefix(path, "/") {
		err = root()
	} else {
		from := "/proc/" + strconv.Itoa(tid) + "/cwd"
		if dir != unix.AT_FDCWD {
			from = "/proc/" + strconv.Itoa(tid) + "/fd/" + strconv.Itoa(dir)
		}
		if p.path, err = os.Readlink(from); err == nil {
			p.fd, err = unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
		} else {
			err = unix.EBADF
		}
	}
	if err != nil {
		p.fd = -1
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
		var fs unix.Statfs_t
		inProc := false
		if strings.HasPrefix(p.path, "/proc") && unix.Fstatfs(p.fd, &fs) == nil && fs.Type == unix.PROC_SUPER_MAGIC {
			inProc = true
			if p.path == "/proc" && (name == "self" || name == "thread-self") {
				// To this process they are itself.
				name = strconv.Itoa(tid)
			}
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
			target := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(p.fd, name, target)
			if err != nil || n == 0 || n == len(target) {
				return fail(unix.ENOENT)
			}
			if inProc && p.path != "/proc" {
				// A link of the kernel's, which is not its text.
				if next, err = unix.Openat(p.fd, name, unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
					return fail(err)
				}
				p.close()
				p.fd, p.path = next, string(target[:n])
				continue
			}
			if target[0] == '/' {
				if err := root(); err != nil {
					p.fd = -1
					return fail(err)
				}
			}
			left = append(strings.Split(string(target[:n]), "/"), left...)
			continue
		}
		p.close()
		p.fd, p.path = next, filepath.Join(p.path, name)
	}
	return p, p.look()
}

func (p *found) look() error {
	err := unix.Fstat(p.fd, &p.stat)
	if err != nil {
		p.close()
	}
	return err
}
