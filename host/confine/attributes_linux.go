package confine

import (
	"maps"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/seccomp"
)

// attributes makes, in the caller's place, a change of a file's mode, owner,
// times or extended attributes: Landlock does not confine these. The file is
// opened first and judged by where it is; then it is that file that is changed,
// whatever the caller's memory and folders hold by then.
func (r *run) attributes(n *seccomp.Call) seccomp.Answer {
	tid := int(n.TID)
	c := attributeCalls[uint32(n.NR)]
	if c == nil {
		return seccomp.Fail(unix.EPERM)
	}
	a := attributeCall{tid: tid, dir: unix.AT_FDCWD, follow: c.follow}
	rest := n.Args[:]
	if c.byFD || c.at {
		a.dir, rest = int(int32(rest[0])), rest[1:]
	}
	name := ""
	if !c.byFD {
		if c.at && rest[0] == 0 {
			if uint32(n.NR) != unix.SYS_UTIMENSAT {
				return seccomp.Fail(unix.EFAULT)
			}
			// utimensat without a path is futimens.
		} else {
			var err error
			if name, err = seccomp.Path(tid, rest[0]); err != nil {
				return seccomp.Fail(err)
			}
			if name == "" && (c.flags < 0 || n.Args[c.flags]&unix.AT_EMPTY_PATH == 0) {
				return seccomp.Fail(unix.ENOENT)
			}
		}
		rest = rest[1:]
	}
	copy(a.args[:], rest)
	if c.flags >= 0 {
		a.follow = n.Args[c.flags]&unix.AT_SYMLINK_NOFOLLOW == 0
		if n.Args[c.flags]&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
			return seccomp.Fail(unix.EINVAL)
		}
	}
	fd, err := r.open(&a, name)
	if err != nil {
		return seccomp.Fail(err)
	}
	defer unix.Close(fd)
	a.self = "/proc/self/fd/" + strconv.Itoa(fd)
	where, err := os.Readlink(a.self)
	if err != nil || !r.listener.Valid(n) {
		return seccomp.Fail(unix.EPERM)
	}
	// A pipe, a socket or memory without a name is the run's own.
	if where[0] == '/' && !r.grants.Load().canWrite(where) {
		return seccomp.Fail(unix.EPERM)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return seccomp.Fail(err)
	}
	a.fd, a.kind = fd, st.Mode&unix.S_IFMT
	a.link = a.kind == unix.S_IFLNK
	if r.user == nil {
		return seccomp.Fail(c.change(&a))
	}
	return seccomp.Fail(r.asCaller(-1, func() error { return c.change(&a) }))
}

// open opens the file of a as the run's user, to whom some folders on the way may be closed.
func (r *run) open(a *attributeCall, name string) (fd int, err error) {
	if r.user == nil {
		return a.open(name)
	}
	err = r.asCaller(-1, func() (err error) {
		fd, err = a.open(name)
		return err
	})
	return fd, err
}

var attributeCalls = func() map[uint32]*attributeCallKind {
	m := map[uint32]*attributeCallKind{
		unix.SYS_FCHMOD:       {byFD: true, flags: -1, change: changeMode},
		unix.SYS_FCHMODAT:     {at: true, flags: -1, follow: true, change: changeMode},
		unix.SYS_FCHMODAT2:    {at: true, flags: 3, change: changeMode},
		unix.SYS_FCHOWN:       {byFD: true, flags: -1, change: changeOwner},
		unix.SYS_FCHOWNAT:     {at: true, flags: 4, change: changeOwner},
		unix.SYS_UTIMENSAT:    {at: true, flags: 3, change: changeTimes(nanoseconds)},
		unix.SYS_SETXATTR:     {flags: -1, follow: true, change: setAttribute},
		unix.SYS_LSETXATTR:    {flags: -1, change: setAttribute},
		unix.SYS_FSETXATTR:    {byFD: true, flags: -1, change: setAttribute},
		unix.SYS_REMOVEXATTR:  {flags: -1, follow: true, change: removeAttribute},
		unix.SYS_LREMOVEXATTR: {flags: -1, change: removeAttribute},
		unix.SYS_FREMOVEXATTR: {byFD: true, flags: -1, change: removeAttribute},
	}
	maps.Copy(m, archAttributes)
	return m
}()
