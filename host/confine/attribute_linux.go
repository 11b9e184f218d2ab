package confine

import (
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/seccomp"
)

// attributeCall is one system call that changes attributes.
type attributeCall struct {
	tid, dir int
	follow   bool
	args     [4]uint64 // behind what names the file
	fd       int       // of the file, O_PATH
	self     string    // a path to it
	kind     uint32    // of the file: S_IFREG and the like
	link     bool      // it is a symbolic link
}

// open opens what is to be changed, as the caller would.
func (a *attributeCall) open(name string) (int, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if name == "" {
		fd, err := unix.Open(folderOf(a.tid, a.dir), flags, 0)
		if err != nil {
			err = unix.EBADF
		}
		return fd, err
	}
	if !a.follow {
		flags |= unix.O_NOFOLLOW
	}
	// To this process /proc/self is itself. Of what is there, the caller's own
	// descriptors are the one way on: by others it would get to the descriptors and
	// roots of processes that are closed to it, and not to this process.
	for _, self := range []string{"/proc/self/fd/", "/proc/thread-self/fd/"} {
		if fd, ok := strings.CutPrefix(name, self); ok {
			if _, err := strconv.ParseUint(fd, 10, 31); err != nil {
				return -1, unix.ENOENT
			}
			return unix.Open("/proc/"+strconv.Itoa(a.tid)+"/fd/"+fd, flags, 0)
		}
	}
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if name[0] == '/' {
		return unix.Openat2(unix.AT_FDCWD, name, &how)
	}
	dir, err := unix.Open(folderOf(a.tid, a.dir), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, unix.EBADF
	}
	defer unix.Close(dir)
	return unix.Openat2(dir, name, &how)
}

// attributeCallKind is how a system call names its file, and what it does.
type attributeCallKind struct {
	byFD bool // by a descriptor
	at   bool // by a path relative to a descriptor
	// flags is the argument with AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH; -1:
	// there is none, and follow says whether links are followed.
	flags  int
	follow bool
	change func(*attributeCall) error
}

func changeMode(a *attributeCall) error {
	if a.link {
		return unix.EOPNOTSUPP
	}
	// A program that runs as its owner runs unconfined as the daemon's user for whoever
	// else can start it. To a folder these bits say whose its files are.
	if a.args[0]&(unix.S_ISUID|unix.S_ISGID) != 0 && a.kind != unix.S_IFDIR {
		return unix.EPERM
	}
	return unix.Chmod(a.self, uint32(a.args[0])&0o7777)
}

func changeOwner(a *attributeCall) error {
	return unix.Fchownat(a.fd, "", int(int32(a.args[0])), int(int32(a.args[1])), unix.AT_EMPTY_PATH)
}

// The forms in which times are in memory.
const (
	nanoseconds  = iota // two struct timespec
	microseconds        // two struct timeval
	seconds             // struct utimbuf
)

func changeTimes(form int) func(*attributeCall) error {
	return func(a *attributeCall) error {
		at := a.args[0]
		var times *[2]unix.Timespec
		if at != 0 {
			var raw [4]int64
			size := 32
			if form == seconds {
				size = 16
			}
			b := unsafe.Slice((*byte)(unsafe.Pointer(&raw)), size)
			if err := seccomp.Fill(a.tid, at, b); err != nil {
				return err
			}
			switch form {
			case nanoseconds:
				times = &[2]unix.Timespec{{Sec: raw[0], Nsec: raw[1]}, {Sec: raw[2], Nsec: raw[3]}}
			case microseconds:
				if raw[1] < 0 || raw[1] > 999_999 || raw[3] < 0 || raw[3] > 999_999 {
					return unix.EINVAL
				}
				times = &[2]unix.Timespec{{Sec: raw[0], Nsec: raw[1] * 1000}, {Sec: raw[2], Nsec: raw[3] * 1000}}
			case seconds:
				times = &[2]unix.Timespec{{Sec: raw[0]}, {Sec: raw[1]}}
			}
		}
		if a.link {
			if times == nil {
				times = &[2]unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
			}
			return setTimes(a.fd, "", times, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
		}
		return setTimes(unix.AT_FDCWD, a.self, times, 0)
	}
}

// setTimes is utimensat, with nil for now.
func setTimes(dir int, path string, times *[2]unix.Timespec, flags int) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(times)), uintptr(flags), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func setAttribute(a *attributeCall) error {
	name, err := a.attribute()
	if err != nil {
		return err
	}
	const most = 64 << 10 // XATTR_SIZE_MAX
	size := a.args[2]
	if size > most {
		return unix.E2BIG
	}
	value := make([]byte, size)
	if err := seccomp.Fill(a.tid, a.args[1], value); err != nil {
		return err
	}
	return unix.Setxattr(a.self, name, value, int(int32(a.args[3])))
}

func removeAttribute(a *attributeCall) error {
	name, err := a.attribute()
	if err != nil {
		return err
	}
	return unix.Removexattr(a.self, name)
}

// attribute is the name of the extended attribute: one of the user's own, which are of
// files and folders only, or an access list. This process may have capabilities that the
// run has not, with which the kernel takes others: those of a program are such an attribute.
func (a *attributeCall) attribute() (string, error) {
	if a.link {
		return "", unix.EPERM
	}
	const most = 255 // XATTR_NAME_MAX
	name, cut, err := seccomp.Text(a.tid, a.args[0], most)
	switch {
	case err != nil:
	case cut || name == "":
		err = unix.ERANGE
	case !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_"):
		err = unix.EPERM
	}
	return name, err
}
