//go:build linux

package process_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// probeCalls are system calls that one process does to another, to the host or
// to files that it may not write. Each is made with arguments with which it
// succeeds, or fails otherwise than by a refusal, without the guard. DAEMON is a
// process of the same user that is not of the run, FILE a file of that user
// outside of what the run may write.
var probeCalls = map[string]func(daemon int, file string) error{
	"prlimit of another": func(daemon int, _ string) error {
		return unix.Prlimit(daemon, unix.RLIMIT_CPU, nil, &unix.Rlimit{})
	},
	"prlimit of itself by number": func(int, string) error {
		return unix.Prlimit(os.Getpid(), unix.RLIMIT_CPU, nil, &unix.Rlimit{})
	},
	"prlimit of itself": func(int, string) error { return unix.Prlimit(0, unix.RLIMIT_CPU, nil, &unix.Rlimit{}) },
	"setpriority of another": func(daemon int, _ string) error {
		return raw(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, uintptr(daemon), 0)
	},
	"setpriority of all of the user's": func(int, string) error { return raw(unix.SYS_SETPRIORITY, unix.PRIO_USER, 0, 0) },
	"setpriority of itself": func(int, string) error {
		now, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // as 20 less it
		if err != nil {
			return err
		}
		return unix.Setpriority(unix.PRIO_PROCESS, 0, 20-now)
	},
	"ioprio_set of another":           func(daemon int, _ string) error { return raw(unix.SYS_IOPRIO_SET, 1, uintptr(daemon), 2<<13|4) },
	"ioprio_set of all of the user's": func(int, string) error { return raw(unix.SYS_IOPRIO_SET, 3, 0, 2<<13|4) },
	"sched_setaffinity of another": func(daemon int, _ string) error {
		mask := ^uint64(0)
		return raw(unix.SYS_SCHED_SETAFFINITY, uintptr(daemon), 8, uintptr(unsafe.Pointer(&mask)))
	},
	"sched_setaffinity of itself": func(int, string) error {
		mask := ^uint64(0)
		return raw(unix.SYS_SCHED_SETAFFINITY, uintptr(unix.Gettid()), 8, uintptr(unsafe.Pointer(&mask)))
	},
	"sched_setscheduler of another": func(daemon int, _ string) error {
		param := uint32(0)
		return raw(unix.SYS_SCHED_SETSCHEDULER, uintptr(daemon), 0, uintptr(unsafe.Pointer(&param)))
	},
	"ptrace": func(daemon int, _ string) error { return unix.PtraceSeize(daemon) },
	"process_vm_readv": func(daemon int, _ string) error {
		return raw(unix.SYS_PROCESS_VM_READV, uintptr(daemon), 0, 0, 0, 0, 0)
	},
	"process_vm_writev": func(daemon int, _ string) error {
		return raw(unix.SYS_PROCESS_VM_WRITEV, uintptr(daemon), 0, 0, 0, 0, 0)
	},
	"pidfd_open": func(daemon int, _ string) error { _, err := unix.PidfdOpen(daemon, 0); return err },
	"kcmp": func(daemon int, _ string) error {
		return raw(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(daemon), 1, 0, 0)
	},
	"move_pages":      func(daemon int, _ string) error { return raw(unix.SYS_MOVE_PAGES, uintptr(daemon), 0, 0, 0, 0, 0) },
	"kill of another": func(daemon int, _ string) error { return unix.Kill(daemon, 0) },

	"io_uring_setup":  func(int, string) error { return raw(unix.SYS_IO_URING_SETUP, 0, 0, 0) },
	"userfaultfd":     func(int, string) error { return raw(unix.SYS_USERFAULTFD, 1, 0, 0) },
	"clone3":          func(int, string) error { return raw(unix.SYS_CLONE3, 0, 0, 0) },
	"bpf":             func(int, string) error { return raw(unix.SYS_BPF, 99, 0, 0) },
	"perf_event_open": func(int, string) error { return raw(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0) },
	"keyctl":          func(int, string) error { return raw(unix.SYS_KEYCTL, 0, ^uintptr(2), 0) },
	"personality":     func(int, string) error { return raw(unix.SYS_PERSONALITY, 0x0400000, 0, 0) },
	"unshare user":    func(int, string) error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"unshare network": func(int, string) error { return unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNET) },
	"setns":           func(int, string) error { return raw(unix.SYS_SETNS, ^uintptr(0), 0, 0) },
	"mount":           func(int, string) error { return unix.Mount("none", "/nowhere", "tmpfs", 0, "") },
	"open_tree":       func(int, string) error { return raw(unix.SYS_OPEN_TREE, ^uintptr(0), 0, 0) },
	"fsopen":          func(int, string) error { return raw(unix.SYS_FSOPEN, 0, 0, 0) },
	"chroot":          func(int, string) error { return unix.Chroot("/nowhere") },
	"TIOCSTI":         func(int, string) error { return raw(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0) },
	"TIOCSTI in the low half": func(int, string) error {
		return raw(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, 0)
	},
	"TIOCSETD":              func(int, string) error { return raw(unix.SYS_IOCTL, 0, unix.TIOCSETD, 0) },
	"a later kernel's call": func(int, string) error { return raw(100_000, 0, 0, 0) },

	"chmod": func(_ int, file string) error { return unix.Chmod(file, 0o600) },
	"fchmod": func(_ int, file string) error {
		return onFile(file, func(fd int) error { return unix.Fchmod(fd, 0o600) })
	},
	"fchmodat": func(_ int, file string) error { return unix.Fchmodat(unix.AT_FDCWD, file, 0o600, 0) },
	"chmod by /proc/self/fd": func(_ int, file string) error {
		return onFile(file, func(fd int) error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o600) })
	},
	"chmod relative to a folder": func(_ int, file string) error {
		return onFile(filepath.Dir(file), func(fd int) error { return unix.Fchmodat(fd, filepath.Base(file), 0o600, 0) })
	},
	"chown":  func(_ int, file string) error { return unix.Chown(file, os.Getuid(), os.Getgid()) },
	"lchown": func(_ int, file string) error { return unix.Lchown(file, os.Getuid(), os.Getgid()) },
	"fchownat": func(_ int, file string) error {
		return unix.Fchownat(unix.AT_FDCWD, file, os.Getuid(), os.Getgid(), unix.AT_SYMLINK_NOFOLLOW)
	},
	"utimensat": func(_ int, file string) error { return unix.UtimesNano(file, []unix.Timespec{{Sec: 1}, {Sec: 2}}) },
	"utimes":    func(_ int, file string) error { return unix.Utimes(file, []unix.Timeval{{Sec: 1}, {Sec: 2}}) },
	"futimens": func(_ int, file string) error {
		return onFile(file, func(fd int) error { return raw(unix.SYS_UTIMENSAT, uintptr(fd), 0, 0, 0) })
	},
	"setxattr": func(_ int, file string) error { return unix.Setxattr(file, "user.toold", []byte("x"), 0) },
	"fsetxattr": func(_ int, file string) error {
		return onFile(file, func(fd int) error { return unix.Fsetxattr(fd, "user.toold", []byte("x"), 0) })
	},
	"FS_IOC_SETFLAGS": func(_ int, file string) error {
		flags := uint32(0)
		return onFile(file, func(fd int) error {
			return raw(unix.SYS_IOCTL, uintptr(fd), 0x40086602, uintptr(unsafe.Pointer(&flags)))
		})
	},
	"FS_IOC_SETVERSION": func(_ int, file string) error {
		generation := uint32(0)
		return onFile(file, func(fd int) error {
			return raw(unix.SYS_IOCTL, uintptr(fd), 0x40087602, uintptr(unsafe.Pointer(&generation)))
		})
	},
	"FS_IOC_SET_ENCRYPTION_POLICY of a folder": func(_ int, file string) error {
		return onFile(filepath.Dir(file), func(fd int) error { return raw(unix.SYS_IOCTL, uintptr(fd), 0x800c6613, 0) })
	},
	"BTRFS_IOC_SUBVOL_SETFLAGS of a folder": func(_ int, file string) error {
		return onFile(filepath.Dir(file), func(fd int) error { return raw(unix.SYS_IOCTL, uintptr(fd), 0x4008941a, 0) })
	},

	// Whoever opens the file next waits until the lease is broken.
	"F_SETLEASE": func(_ int, file string) error {
		return onFile(file, func(fd int) error { return raw(unix.SYS_FCNTL, uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK) })
	},
	"F_SETLEASE in the low half": func(_ int, file string) error {
		return onFile(file, func(fd int) error {
			return raw(unix.SYS_FCNTL, uintptr(fd), 1<<32|unix.F_SETLEASE, unix.F_WRLCK)
		})
	},
	"fcntl of a delegation": func(_ int, file string) error {
		delegation := [2]uint64{unix.F_RDLCK << 32}
		return onFile(filepath.Dir(file), func(fd int) error {
			return raw(unix.SYS_FCNTL, uintptr(fd), 1024+16, uintptr(unsafe.Pointer(&delegation)))
		})
	},

	// What these make is there when the run is over, and is other runs' as well.
	"shmget": func(int, string) error { return removed(unix.SYS_SHMGET, unix.SYS_SHMCTL, 1, 4096, 0o600) },
	"semget": func(int, string) error { return removed(unix.SYS_SEMGET, unix.SYS_SEMCTL, 2, 1, 0o600) },
	"msgget": func(int, string) error { return removed(unix.SYS_MSGGET, unix.SYS_MSGCTL, 1, 0o600) },
	"mq_open": func(int, string) error {
		name := append([]byte("toold-test-"+strconv.Itoa(os.Getpid())), 0)
		err := raw(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o600, 0)
		raw(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0])))
		return err
	},

	// A program of the daemon's user for whoever else sees the folder.
	"set-user-ID by open":      setID(func(name string) error { return created(unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o4755)) }),
	"set-group-ID by open":     setID(func(name string) error { return created(unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o2755)) }),
	"set-user-ID by O_TMPFILE": setID(func(string) error { return created(unix.Open(".", unix.O_TMPFILE|unix.O_WRONLY, 0o4755)) }),
	"set-user-ID by openat": setID(func(name string) error {
		return created(unix.Openat(unix.AT_FDCWD, name, unix.O_CREAT|unix.O_WRONLY, 0o4755))
	}),
	"set-user-ID by creat": setID(func(name string) error { return created(unix.Creat(name, 0o4755)) }),
	"set-user-ID by openat2": setID(func(name string) error {
		return created(unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755}))
	}),
	"set-user-ID by mknod":   setID(func(name string) error { return unix.Mknod(name, unix.S_IFREG|0o4755, 0) }),
	"set-user-ID by mknodat": setID(func(name string) error { return unix.Mknodat(unix.AT_FDCWD, name, unix.S_IFREG|0o4755, 0) }),
	"set-user-ID by chmod":   setID(func(name string) error { return withFile(name, func() error { return unix.Chmod(name, 0o4755) }) }),
	"set-group-ID by chmod":  setID(func(name string) error { return withFile(name, func() error { return unix.Chmod(name, 0o2755) }) }),
	"set-user-ID by fchmodat": setID(func(name string) error {
		return withFile(name, func() error { return unix.Fchmodat(unix.AT_FDCWD, name, 0o4755, 0) })
	}),
	"set-user-ID by fchmod": setID(func(name string) error {
		return withFile(name, func() error { return onFile(name, func(fd int) error { return unix.Fchmod(fd, 0o4755) }) })
	}),
	"set-group-ID of a folder": setID(func(name string) error {
		if err := unix.Mkdir(name, 0o755); err != nil {
			return err
		}
		return unix.Chmod(name, 0o2775)
	}),
	"create a file":                     setID(func(name string) error { return created(unix.Open(name, unix.O_CREAT|unix.O_WRONLY, 0o755)) }),
	"open with a mode that is not read": setID(func(string) error { return created(unix.Open(".", unix.O_RDONLY, 0o4755)) }),
}

// setID has f make something of a name of its own in the working folder, which is
// removed then.
func setID(f func(name string) error) func(int, string) error {
	return func(int, string) error {
		defer os.Remove("made")
		return f("made")
	}
}

func created(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// withFile does f when there is a file name.
func withFile(name string, f func() error) error {
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		return err
	}
	return f()
}

// removed makes an object of System V with the call get, and removes it with the
// command IPC_RMID in the place given of control.
func removed(get, control uintptr, place int, args ...uintptr) error {
	var a [6]uintptr
	copy(a[1:], args) // behind IPC_PRIVATE
	id, _, errno := unix.Syscall6(get, a[0], a[1], a[2], a[3], 0, 0)
	if errno != 0 {
		return errno
	}
	a = [6]uintptr{id}
	a[place] = 0 // IPC_RMID
	return raw(control, a[:]...)
}

func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func onFile(file string, f func(fd int) error) error {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// allCalls makes each of probeCalls, in a process of its own where it may
// change the caller, and prints what came of it.
func allCalls(daemon int, file string) {
	for _, name := range sortedKeys(probeCalls) {
		err := probeCalls[name](daemon, file)
		answer := "ok"
		if errno, ok := err.(unix.Errno); ok {
			answer = unix.ErrnoName(errno)
		} else if err != nil {
			answer = err.Error()
		}
		fmt.Printf("%s: %s\n", name, answer)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// What the filter is for is refused with it, whether or not there are
// namespaces, and not without it.
func TestFilter(t *testing.T) {
	if !confine.Confinement().Filter {
		t.Skip(confine.Confinement().FilterReason)
	}
	absent := []string{"io_uring_setup", "userfaultfd", "clone3", "a later kernel's call", "shmget", "semget", "msgget", "mq_open", "set-user-ID by openat2"}
	mayDo := []string{"set-group-ID of a folder", "create a file", "open with a mode that is not read", "prlimit of itself", "prlimit of itself by number", "setpriority of itself", "sched_setaffinity of itself"}
	answers := func(most confine.Level, mine bool) map[string]string {
		r := newRunner(t, process.Config{Most: most, Ready: 1})
		dir, other := t.TempDir(), t.TempDir()
		file := other + "/file"
		must(t, os.WriteFile(file, []byte("x"), 0o644))
		if mine {
			file = dir + "/file"
			must(t, os.WriteFile(file, []byte("x"), 0o644))
		}
		// Of another run, so that it has no more capabilities than this one.
		neighbour := begin(t, newRunner(t, process.Config{Most: confine.Landlock, Ready: 1}), shell(t.TempDir(), "echo $$; exec sleep 1000"))
		c := probing(t, dir, "calls", neighbour.next(), file)
		c.Confine.Show = []string{other}
		m := map[string]string{}
		for line := range strings.Lines(say(t, r, c)) {
			name, answer, ok := strings.Cut(strings.TrimSpace(line), ": ")
			if ok {
				m[name] = answer
			}
		}
		if len(m) != len(probeCalls) {
			t.Fatalf("%d answers, want %d: %v", len(m), len(probeCalls), m)
		}
		return m
	}
	without := answers(confine.Landlock, false)
	for _, level := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		with := answers(level, false)
		for name, answer := range with {
			want := "EPERM"
			switch {
			case slices.Contains(absent, name):
				want = "ENOSYS"
			case slices.Contains(mayDo, name):
				want = "ok"
			}
			if answer != want && !(level == confine.Namespaces && name == "kill of another" && answer == "ESRCH") {
				t.Errorf("%v, %s: %s, want %s", level, name, answer, want)
			}
			// root may do less than it seems: it has lost most capabilities.
			if want == "EPERM" && without[name] == answer && !slices.Contains([]string{"ptrace", "kcmp", "move_pages", "unshare user", "unshare network", "mount", "chroot", "perf_event_open", "bpf", "fsopen", "open_tree", "kill of another"}, name) &&
				// Those of all processes fail with the first that may not be changed.
				name != "ioprio_set of all of the user's" && (os.Getuid() != 0 || name != "setpriority of all of the user's") {
				t.Errorf("%s: %s as well without the filter: this shows nothing", name, answer)
			}
		}
		// What it may write, it may change.
		for name, answer := range answers(level, true) {
			if strings.HasPrefix(name, "ch") && name != "chroot" || strings.HasPrefix(name, "fch") || strings.HasPrefix(name, "lch") || strings.Contains(name, "utime") || strings.Contains(name, "xattr") {
				if answer != "ok" {
					t.Errorf("%v, %s of a file of its own: %s", level, name, answer)
				}
			}
		}
	}
}

// needFilter skips what no system judges, or not at the level of these tests.
func needFilter(t *testing.T, r *process.Runner) {
	t.Helper()
	if s := r.Confinement(); !s.Filter {
		t.Skip(s.FilterReason)
	}
}

// A change of attributes is made as it was asked for.
func TestAttributes(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/file", nil, 0o644))
	must(t, os.Symlink("file", dir+"/link"))
	outside := t.TempDir() + "/file"
	must(t, os.WriteFile(outside, nil, 0o644))
	must(t, os.Symlink(outside, dir+"/out"))
	c := shell(dir, `chmod 751 link; touch -d @1000000000.25 file; touch -h -d @900000000 link; chmod 600 out; touch out; chmod g-x file`)
	c.Confine.Show = []string{outside}
	say(t, r, c)
	st, err := os.Stat(dir + "/file")
	must(t, err)
	if st.Mode() != 0o741 || st.ModTime().UnixMilli() != 1_000_000_000_250 {
		t.Errorf("mode %v, time %v", st.Mode(), st.ModTime())
	}
	link, err := os.Lstat(dir + "/link")
	must(t, err)
	if link.ModTime().Unix() != 900_000_000 {
		t.Errorf("the link's time is %v", link.ModTime())
	}
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("outside: %v, %v", st.Mode(), err)
	}
}

// The supervisor, which may look at more processes than the run may, changes nothing
// of these for it.
func TestAttributesOfOthers(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	needFilter(t, r)
	dir := t.TempDir()
	// Of this user, and not of the run: its standard output is a pipe.
	other := begin(t, newRunner(t, process.Config{Most: confine.Landlock, Ready: 1}), shell(t.TempDir(), "echo $$; exec sleep 1000")).next()
	pipe := "/proc/" + other + "/fd/1"
	was, err := os.Stat(pipe)
	must(t, err)
	for name, want := range map[string]string{
		pipe:                               "ELOOP",
		"/proc/self/.." + pipe[5:]:         "ELOOP",
		"/proc/self/root" + pipe:           "ELOOP",
		"/proc/self/task/../.." + pipe[5:]: "ELOOP",
		"/proc/self/fd/../.." + pipe[5:]:   "ENOENT",
		"/proc/self/fd/1":                  "ok",
		"/proc/thread-self/fd/1":           "ok",
	} {
		if got := say(t, r, probing(t, dir, "chmod", name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if is, err := os.Stat(pipe); err != nil || is.Mode() != was.Mode() {
			t.Fatalf("%s made it %v, %v", name, is, err)
		}
	}
}

// What is executed is judged by the file that is opened.
func TestExecute(t *testing.T) {
	if !confine.Confinement().Filter {
		t.Skip(confine.Confinement().FilterReason)
	}
	for _, most := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		r := newRunner(t, process.Config{Most: most, Ready: 1})
		dir := t.TempDir()
		ld, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
		if err != nil {
			t.Skip("not this machine's loader: ", err)
		}
		id, err := os.ReadFile("/usr/bin/id")
		must(t, err)
		must(t, os.WriteFile(dir+"/evil", id, 0o755))
		must(t, os.WriteFile(dir+"/script", []byte("#!/bin/sh\nid\n"), 0o755))
		must(t, os.WriteFile(dir+"/loader", []byte("#!"+ld+" "+dir+"/evil\n"), 0o755))
		for name, target := range map[string]string{"bin": "/usr/bin", "lib": "/lib64", "ld": ld, "id": "/usr/bin/id", "sh": "/bin/sh"} {
			must(t, os.Symlink(target, dir+"/"+name))
		}
		for _, tt := range []struct{ exec, want string }{
			{"/usr/bin/id", "ok"},
			{"/usr/lib/../bin/id", "ok"},
			{"/proc/self/root/usr/bin/id", "ok"},
			{ld + " /usr/bin/id", "it is an ELF interpreter"},
			{"/lib64/ld-linux-x86-64.so.2 ./evil", "it is an ELF interpreter"},
			{"lib/ld-linux-x86-64.so.2 ./evil", "it is an ELF interpreter"},
			{"ld ./evil", "it is an ELF interpreter"},
			{"./loader", confine.RefusedProgram},
			{"./evil", confine.RefusedProgram},
			{"./script", confine.RefusedProgram},
			{"bin/id", "leads through a folder that the tool can write"},
			{"./id", "leads through a folder that the tool can write"},
			{"/proc/self/cwd/id", "leads through a folder that the tool can write"},
			{dir + "/bin/id", "leads through a folder that the tool can write"},
			{"./sh -c id", "leads through a folder that the tool can write"},
			{"/usr/bin/env id", confine.RefusedProgram},
			{"/bin/bash -c id", "it is a shell"},
			{"/nowhere", "ENOENT"},
			{"/usr", "EACCES"},
		} {
			c := probing(t, dir, append([]string{"exec"}, strings.Fields(tt.exec)...)...)
			c.Confine.Exec = []string{"/usr/bin/id", "/bin/sh"}
			var out bytes.Buffer
			c.Stdout = &out
			exit, err := r.Run(patient(t), c)
			must(t, err)
			refused := ""
			for _, p := range exit.Programs {
				refused += p.Refused
			}
			switch ran := strings.Contains(out.String(), "uid="); {
			case tt.want == "ok":
				if !ran || refused != "" || exit.Executed != 1 || exit.Programs[0].Path != "/usr/bin/id" {
					t.Errorf("%v: %s: %s %+v", most, tt.exec, out.String(), exit)
				}
			case strings.HasPrefix(tt.want, "E"):
				if strings.TrimSpace(out.String()) != tt.want || exit.Refused != 0 {
					t.Errorf("%v: %s: %s %+v, want %s", most, tt.exec, out.String(), exit, tt.want)
				}
			case ran || !strings.Contains(refused, tt.want):
				t.Errorf("%v: %s: %s refused %q, want %q", most, tt.exec, out.String(), refused, tt.want)
			}
		}
	}
}

// A folder that is granted grants neither the loaders nor the shells in it.
func TestExecuteFromFolder(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	dir := t.TempDir()
	for program, want := range map[string]string{
		"/usr/bin/id": "uid=", "/usr/bin/dash -c id": "EACCES", "/usr/bin/bash -c id": "EACCES", "/usr/bin/ld.so /usr/bin/id": "EACCES",
	} {
		c := probing(t, dir, append([]string{"exec"}, strings.Fields(program)...)...)
		c.Confine.Exec = []string{"/usr/bin"}
		if got := say(t, r, c); !strings.HasPrefix(got, want) && got != "ENOENT" {
			t.Errorf("%s: %s, want %s", program, got, want)
		}
	}
	// Nor a loader that is none of any program's.
	ld, err := filepath.EvalSymlinks("/lib64/ld-linux-x86-64.so.2")
	if err != nil {
		t.Skip("not this machine's loader: ", err)
	}
	program, err := os.ReadFile(ld)
	must(t, err)
	folder := t.TempDir()
	must(t, os.WriteFile(folder+"/ld-other.so.2", program, 0o755))
	c := probing(t, dir, "exec", folder+"/ld-other.so.2", "/usr/bin/id")
	c.Confine.Exec = []string{folder}
	if got := say(t, r, c); got != "EACCES" {
		t.Errorf("another loader: %s", got)
	}
}

// A shell runs the lines that it may, with quoted words behind them.
func TestShellLines(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	needFilter(t, r)
	dir := t.TempDir()
	must(t, os.Symlink("/bin/sh", dir+"/sh"))
	for _, tt := range []struct {
		line string
		ok   bool
	}{
		{"echo one", true},
		{"echo one 'two'", true},
		{"echo one 'it'\\''s' 'x'", true},
		{"echo one ''", true},
		{"echo one; id", false},
		{"echo one'; id'", false},
		{"echo one 'two' id", false},
		{"echo one 'two'; id", false},
		{"echo one 'two", false},
		{"echo one '$(id)'", true},
		{"echo one \"$(id)\"", false},
		{"echo one\nid", false},
		{"echo one 'x'\nid", false},
		{" echo one", false},
		{"echo", false},
		{"", false},
	} {
		c := probing(t, dir, "exec", "/bin/sh", "-c", tt.line)
		c.Confine.Exec = []string{"/bin/sh"}
		c.Confine.ShellLines = []string{"echo one", "printf %s"}
		if got := say(t, r, c); strings.HasPrefix(got, "one") != tt.ok || !tt.ok && got != "EACCES" {
			t.Errorf("%q: %s", tt.line, got)
		}
	}
	for _, args := range [][]string{{"-s"}, {"-ec", "echo one"}, {"-c"}, {"script"}, {"-c", "echo one", "extra"}} {
		c := probing(t, dir, append([]string{"exec", "/bin/sh"}, args...)...)
		c.Confine.Exec = []string{"/bin/sh"}
		c.Confine.ShellLines = []string{"echo one"}
		if got := say(t, r, c); got != "EACCES" && len(args) < 3 {
			t.Errorf("%q: %s", args, got)
		}
	}
	// None at all.
	c := probing(t, dir, "exec", "/bin/sh", "-c", "echo one")
	c.Confine.Exec, c.Confine.ShellLines = []string{"/bin/sh"}, []string{}
	if got := say(t, r, c); got != "EACCES" {
		t.Errorf("no line: %s", got)
	}
}

// A file of the workspace is not loaded as code, by mmap or by a mount that
// allows it.
func TestLoadAsCode(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	program, err := os.ReadFile(exe)
	must(t, err)
	for _, tt := range []struct {
		most confine.Level
		want string
	}{{confine.Landlock, "ok"}, {confine.Seccomp, "EACCES"}, {confine.Namespaces, "EPERM"}} {
		r := newRunner(t, process.Config{Most: tt.most, Ready: 1})
		if r.Confinement().Level() < tt.most {
			continue
		}
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/lib.so", program, 0o755))
		if got := say(t, r, probing(t, dir, "map", "lib.so")); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.most, got, tt.want)
		}
		if got := say(t, r, probing(t, dir, "map", exe)); got != "ok" {
			t.Errorf("%v: a program of the operator's: %s", tt.most, got)
		}
	}
}

// A thread that rewrites the path while another asks to execute it gets no
// program executed that was not granted.
func TestExecuteRace(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	id, err := os.ReadFile("/usr/bin/id")
	must(t, err)
	must(t, os.WriteFile(dir+"/evil", id, 0o755))
	c := probing(t, dir, "exec-race", "/usr/bin/true", dir+"/evil")
	c.Confine.Exec = []string{"/usr/bin/true"}
	if got := say(t, r, c); got != "never" {
		t.Errorf("%s", got)
	}
}

// In namespaces nothing of other processes is to be seen.
func TestNamespaces(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Namespaces, Ready: 1})
	if !r.Confinement().Namespaces {
		t.Skip(r.Confinement().NamespacesReason)
	}
	dir := t.TempDir()
	other, err := os.MkdirTemp("/tmp", "toold-other")
	must(t, err)
	defer os.RemoveAll(other)
	must(t, os.WriteFile(other+"/file", nil, 0o644))
	must(t, os.WriteFile(dir+"/kept", []byte("kept"), 0o644))
	c := shell(dir, `
		ls /proc | grep -c '^[0-9]'
		ls /tmp /var/tmp /dev/shm | wc -l
		cat kept; echo
		test -e `+other+`/file || echo hidden
		cat /proc/1/environ >/dev/null 2>&1 || echo closed
		cp /bin/true prog && { ./prog || echo noexec; }
		grep -c ' `+dir+` .*noexec' /proc/self/mountinfo
		ipcs -m 2>/dev/null | grep -c 0x`)
	got := strings.Fields(say(t, r, c))
	// The processes: the supervisor, sh, ls, and grep if it has come so far.
	if n, err := strconv.Atoi(got[0]); err != nil || n > 4 {
		t.Errorf("it sees %s processes", got[0])
	}
	for _, want := range []string{"kept", "hidden", "closed", "noexec"} {
		if !slices.Contains(got, want) {
			t.Errorf("got %q, without %s", got, want)
		}
	}
	// What else it is to see, it sees; what is granted beneath what it may
	// write, it executes.
	program, err := os.ReadFile("/usr/bin/true")
	must(t, err)
	must(t, os.WriteFile(dir+"/granted", program, 0o755))
	c = shell(dir, `cat `+other+`/file && ./granted && echo ran`)
	c.Confine.Show = []string{other + "/file"}
	c.Confine.Exec = append(c.Confine.Exec, dir+"/granted")
	if got := say(t, r, c); got != "ran" {
		t.Errorf("got %q", got)
	}
	// A folder that was removed and made anew is without programs again.
	must(t, os.RemoveAll(dir))
	must(t, os.Mkdir(dir, 0o755))
	if got := say(t, r, shell(dir, `cp /bin/true prog && ./prog || echo noexec`)); !strings.HasSuffix(got, "noexec") {
		t.Errorf("made anew: %q", got)
	}
}

// What lies in a folder that is hidden is bound into it, run after run.
func TestFoldersInHidden(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Namespaces, Ready: 1, Max: 1})
	base := t.TempDir()
	must(t, os.Mkdir(base+"/in", 0o755))
	must(t, os.MkdirAll(base+"/state/key", 0o755))
	for i := range 200 {
		own := fmt.Sprintf("%s/state/own/%d", base, i)
		must(t, os.MkdirAll(own, 0o755))
		must(t, os.WriteFile(own+"/file", []byte("own"), 0o644))
		c := shell(base+"/in", "cat "+own+"/file; ls "+base+"/state/key "+base+"/state/own 2>/dev/null")
		if r.Confinement().Namespaces { // where not even a name is told
			c.Args[1] += "; test ! -e " + base + "/state/key || echo seen"
		}
		c.Confine.Write = append(c.Confine.Write, own)
		c.Confine.Hide = []string{base + "/state"}
		if i%2 == 1 {
			c.Confine.Show = []string{base}
		}
		if got := say(t, r, c); got != "own" {
			t.Fatalf("run %d: %q", i, got)
		}
		must(t, os.RemoveAll(own))
	}
}

// A socket of the daemon's is not to be connected to.
func TestHiddenSocket(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Namespaces, Ready: 1})
	if !r.Confinement().Namespaces {
		t.Skip(r.Confinement().NamespacesReason)
	}
	dir := t.TempDir()
	socket := dir + "/s"
	l, err := net.Listen("unix", socket)
	must(t, err)
	defer l.Close()
	c := probing(t, dir, "dial", socket)
	if got, _ := networked(t, r, c, "unix:"+socket); got != "ok" {
		t.Errorf("it is to be seen otherwise: %s", got)
	}
	c.Confine.Sockets = []string{socket}
	if got, _ := networked(t, r, c, "unix:"+socket); got != "ECONNREFUSED" {
		t.Errorf("got %s", got)
	}
}

// Who demands more than there is gets nothing.
func TestLeast(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Landlock, Ready: 1})
	c := shell(t.TempDir(), "echo ran")
	c.Confine.Least = confine.Seccomp
	if _, err := r.Run(context.Background(), c); codeOf(err) != fault.ToolBroken || !strings.Contains(err.Error(), "seccomp") {
		t.Errorf("error %v", err)
	}
}

// A run ends with its supervisor, also what left its session, and is known for
// what it is until then.
func TestOrphansOfASupervisor(t *testing.T) {
	for _, most := range []confine.Level{confine.Seccomp, confine.Namespaces} {
		r := newRunner(t, process.Config{Most: most, Ready: 1})
		mark := newMark()
		c := shell(t.TempDir(), `(setsid sh -c 'trap "" TERM HUP; sh -c "echo there; sleep 1000; :"; :' &); sleep 1000; :`)
		c.Env = append(c.Env, "MARK="+mark)
		u := begin(t, r, c)
		u.next()
		var pids []int
		for _, line := range alive(t, mark) {
			pid := numbers(t, strings.Fields(line)[0])[0]
			if pids = append(pids, pid); !r.Runs(pid) {
				t.Errorf("%v: %s is not known as one of the run's", most, line)
			}
		}
		if r.Runs(os.Getpid()) || r.Runs(os.Getppid()) {
			t.Errorf("%v: this process, or its parent, is taken for one of the run's", most)
		}
		for _, pid := range childrenOf(t, os.Getpid()) {
			unix.Kill(pid, unix.SIGKILL)
		}
		if _, err := u.wait(); codeOf(err) != fault.Internal {
			t.Errorf("%v: error %v, want INTERNAL", most, err)
		}
		if len(pids) < 3 {
			t.Errorf("%v: the run had the processes %v", most, pids)
		}
		for _, pid := range pids {
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(stat), ") Z ") {
				t.Errorf("%v: still alive: %s", most, stat)
			}
		}
	}
}

// A tool with a user of its own owns nothing of the daemon's.
func TestUser(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	if !r.Confinement().Users {
		t.Skip(r.Confinement().UsersReason)
	}
	dir, home, other := t.TempDir(), t.TempDir(), t.TempDir()
	const uid, gid = 54321, 54322
	must(t, os.Chown(dir, uid, gid))
	must(t, os.Chown(home, uid, gid))
	must(t, os.Chmod(home, 0o700))
	must(t, os.WriteFile(other+"/private", []byte("x"), 0o600))
	must(t, os.WriteFile(other+"/public", []byte("x"), 0o644))
	mark := newMark()
	c := shell(dir, `
		id -u; id -g; id -G
		grep ^CapEff: /proc/self/status
		echo > made; chmod 700 made; chmod 4755 made 2>/dev/null || chmod 2755 made 2>/dev/null || echo plain; mkdir ours; chmod 2775 ours
		touch -d @5 made; echo > `+home+`/made; echo streams > /dev/stdout
		cat `+other+`/private 2>/dev/null || echo closed
		chmod 600 `+other+`/public 2>/dev/null || echo kept
		kill -0 1 2>/dev/null || echo safe
		setsid sleep 1000 &
		exit 3`)
	c.Env = append(c.Env, "MARK="+mark)
	c.Confine.Write = append(c.Confine.Write, home)
	c.Confine.Show = []string{other}
	c.Confine.User = &confine.UserID{UID: uid, GID: gid}
	c.Confine.Least = confine.User
	var out bytes.Buffer
	c.Stdout = &out
	exit, err := r.Run(patient(t), c)
	must(t, err)
	if want := "54321\n54322\n54322\nCapEff:\t0000000000000000\nplain\nstreams\nclosed\nkept\nsafe\n"; out.String() != want || exit.Code != 3 {
		t.Errorf("%+v: %q, want %q", exit, out.String(), want)
	}
	st, err := os.Stat(dir + "/made")
	must(t, err)
	if owner := st.Sys().(*syscall.Stat_t); owner.Uid != uid || st.Mode().Perm() != 0o700 || st.ModTime().Unix() != 5 {
		t.Errorf("%v of %d, %v", st.Mode(), owner.Uid, st.ModTime())
	}
	if st, err := os.Stat(dir + "/ours"); err != nil || st.Mode() != fs.ModeDir|fs.ModeSetgid|0o775 {
		t.Errorf("%v, %v", st, err)
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("still alive: %q", left)
	}
	// The next run in the same supervisor has this process's user.
	if got := say(t, r, shell(t.TempDir(), "id -u")); got != fmt.Sprint(os.Getuid()) {
		t.Errorf("the next run is user %s", got)
	}
	// Where that cannot be, nothing runs.
	low := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	if _, err := low.Run(patient(t), c); codeOf(err) != fault.ToolBroken || !strings.Contains(err.Error(), "user") {
		t.Errorf("error %v", err)
	}
}

// The guards hold for a daemon without privileges, whose namespaces are a user
// namespace, as for one of root's.
func TestGuardsUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this is the case in all other tests")
	}
	needFilter(t, newRunner(t, process.Config{Ready: 1}))
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chown(dir, 65534, 65534))
	self, err := os.Executable()
	must(t, err)
	program, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(dir+"/process.test", program, 0o755)) // the folder of go test is closed to others
	for _, name := range []string{"TestFilter", "TestAttributes", "TestExecute", "TestExecuteFromFolder", "TestShellLines", "TestLoadAsCode",
		"TestNamespaces", "TestFoldersInHidden", "TestHiddenSocket", "TestMountsOfOthers", "TestBinding", "TestOrphansOfASupervisor", "TestHide", "TestTimeout", "TestForkRacers",
		"TestConnect", "TestNetworkAttacks", "TestNetworkNames", "TestDescriptorsInSockets"} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(dir+"/process.test", "-test.v", "-test.run", "^"+name+"$")
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.CombinedOutput()
			below := most(t) != 0 && strings.Contains(string(out), "--- SKIP: "+name+" ") // of a level that is asked for
			if err != nil || !strings.Contains(string(out), "--- PASS: "+name+" ") && !below && confine.Confinement().Filter {
				t.Errorf("%v\n%s", err, failures(string(out)))
			}
		})
	}
}

// failures is the part of a test's verbose output that is not of tests that passed:
// a log keeps only so much of it.
func failures(out string) string {
	var kept []string
	for line := range strings.Lines(out) {
		if word := strings.TrimSpace(line); !strings.HasPrefix(word, "=== ") && !strings.HasPrefix(word, "--- PASS") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
