//go:build linux

package process_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"os/exec"
	"unsafe"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// The test binary is also a hostile tool: with this argument it does the one
// thing that the further arguments say, by a bare system call, and prints the
// error's name or "ok".
const probeArg = "test-probe"

func runProbe(args []string) int {
	err := probe(args)
	var errno syscall.Errno
	switch {
	case err == nil:
		fmt.Println("ok")
	case errors.As(err, &errno):
		fmt.Println(unix.ErrnoName(errno))
	default:
		fmt.Println(err)
	}
	return 0
}

func probe(args []string) error {
	arg := func(i int) string { return args[i] }
	pid := func() int {
		n, err := strconv.Atoi(arg(1))
		if err != nil {
			n = os.Getppid()
		}
		return n
	}
	switch arg(0) {
	case "send-descriptors": // until none can be sent; they wait until the input ends
		err := sendDescriptors()
		fmt.Println(err)
		io.Copy(io.Discard, os.Stdin)
		return nil
	case "write":
		f, err := os.OpenFile(arg(1), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString("x")
		return err
	case "append":
		_, err := os.OpenFile(arg(1), os.O_WRONLY|os.O_APPEND, 0)
		return err
	case "create":
		_, err := os.OpenFile(arg(1), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	case "open-truncate":
		_, err := os.OpenFile(arg(1), os.O_RDWR|os.O_TRUNC, 0)
		return err
	case "truncate":
		return unix.Truncate(arg(1), 0)
	case "mkdir":
		return unix.Mkdir(arg(1), 0o700)
	case "remove":
		return unix.Unlink(arg(1))
	case "rmdir":
		return unix.Rmdir(arg(1))
	case "rename":
		return unix.Rename(arg(1), arg(2))
	case "exchange":
		return unix.Renameat2(unix.AT_FDCWD, arg(1), unix.AT_FDCWD, arg(2), unix.RENAME_EXCHANGE)
	case "link":
		return unix.Link(arg(1), arg(2))
	case "symlink":
		return unix.Symlink(arg(1), arg(2))
	case "mkfifo":
		return unix.Mkfifo(arg(1), 0o600)
	case "mknod":
		return unix.Mknod(arg(1), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	case "mkdisk":
		return unix.Mknod(arg(1), unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))
	case "bind":
		l, err := net.Listen("unix", arg(1))
		if err == nil {
			l.Close()
		}
		return err
	case "mount":
		return unix.Mount(arg(1), arg(2), "", unix.MS_BIND, "")
	case "read":
		f, err := os.Open(arg(1))
		if err == nil {
			_, err = f.Read(make([]byte, 1))
			f.Close()
		}
		if err == io.EOF {
			err = nil
		}
		return err
	case "chmod":
		return unix.Chmod(arg(1), 0o600)
	case "watch":
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		watch, err := unix.InotifyAddWatch(fd, arg(1), unix.IN_ALL_EVENTS)
		if err != nil {
			return err
		}
		os.ReadDir(arg(1)) // which is an event
		var events [4096]byte
		if _, err := unix.Read(fd, events[:]); err != nil {
			return err
		}
		if of := binary.NativeEndian.Uint32(events[:]); int(of) != watch {
			return fmt.Errorf("it tells of %d, not of %d", of, watch)
		}
		return nil
	case "setxattr":
		return unix.Setxattr(arg(1), arg(2), []byte(arg(3)), 0)
	case "removexattr":
		return unix.Removexattr(arg(1), arg(2))
	case "fill": // the supervisor's memory, with what it is asked for
		value, err := make([]byte, 64<<10), os.WriteFile(arg(1), nil, 0o600)
		for n := 0; n < 8000 && err == nil; n++ {
			if err = unix.Setxattr(arg(1), "user.toold", value, 0); err == unix.ENOSPC || err == unix.E2BIG {
				err = nil // the file system takes less; it was asked all the same
			}
		}
		fmt.Println(err)
		os.Stdin.Read(value[:1])
		return nil
	case "listen-unix": // at a path; @ begins an abstract name
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil && arg(1) != "" {
			err = unix.Bind(s, &unix.SockaddrUnix{Name: arg(1)})
		}
		if err != nil {
			return err
		}
		return unix.Listen(s, 1)
	case "bind-unix": // as listen-unix, with a umask of 027; "" has the kernel choose
		unix.Umask(0o027)
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if arg(1) == "" {
			return raw(unix.SYS_BIND, uintptr(s), uintptr(unsafe.Pointer(&unix.RawSockaddrUnix{Family: unix.AF_UNIX})), 2)
		}
		if err := unix.Bind(s, &unix.SockaddrUnix{Name: arg(1)}); err != nil {
			return err
		}
		name, err := unix.Getsockname(s)
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(arg(1), &st)
		}
		return fmt.Errorf("%s %o %v", name.(*unix.SockaddrUnix).Name, st.Mode&0o777, err)
	case "bind-race": // one thread makes the name abstract while another binds
		var over atomic.Bool
		address := &unix.RawSockaddrUnix{Family: unix.AF_UNIX, Path: [108]int8{'x', 'y'}}
		first := (*uint32)(unsafe.Pointer(&address.Path[0])) // nobody's lock holds the kernel up
		path, abstract := *first, *first&^0xff
		go func() {
			for !over.Load() {
				atomic.StoreUint32(first, abstract)
				atomic.StoreUint32(first, path)
			}
		}()
		defer over.Store(true)
		for range 2000 {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			raw(unix.SYS_BIND, uintptr(s), uintptr(unsafe.Pointer(address)), 5)
			if name, err := unix.Getsockname(s); err != nil || strings.HasPrefix(name.(*unix.SockaddrUnix).Name, "@y") { // "@" is of one without a name
				return fmt.Errorf("bound to %v, %w", name, err)
			}
			unix.Close(s)
			unix.Unlink("xy")
		}
		return nil
	case "exec":
		return unix.Exec(arg(1), args[1:], nil)
	case "calls":
		daemon, _ := strconv.Atoi(arg(1))
		allCalls(daemon, arg(2))
		return nil
	case "map":
		return onFile(arg(1), func(fd int) error {
			_, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
			return err
		})
	case "exec-race":
		for range 100 {
			out, _ := exec.Command("/proc/self/exe", probeArg, "exec-race-once", arg(1), arg(2)).CombinedOutput()
			if strings.Contains(string(out), "uid=") {
				return errors.New("it was executed")
			}
		}
		return errors.New("never")
	case "exec-race-once":
		good, bad := append([]byte(arg(1)), 0), append([]byte(arg(2)), 0)
		path := make([]byte, max(len(good), len(bad)))
		copy(path, good)
		go func() {
			for {
				copy(path, bad)
				copy(path, good)
			}
		}()
		argv := []*byte{&good[0], nil}
		for range 50 {
			unix.Syscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(&path[0])), uintptr(unsafe.Pointer(&argv[0])), 0)
		}
		return nil
	case "kill":
		return unix.Kill(pid(), unix.Signal(0))
	case "trace":
		return unix.PtraceSeize(pid()) // without stopping it
	case "hold": // the supervisor, until killed
		runtime.LockOSThread()
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid()))
		if err != nil {
			return err
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			if err := unix.PtraceAttach(tid); err != nil {
				return err
			}
		}
		fmt.Println("held")
		select {}
	case "memory":
		f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid()))
		if err == nil {
			f.Close()
		}
		return err
	case "environ":
		_, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid()))
		return err
	case "dial":
		c, err := net.Dial("unix", arg(1))
		if err == nil {
			c.Close()
		}
		return err
	case "send-stdout": // to whom the socket at this path belongs
		c, err := net.Dial("unix", arg(1))
		if err != nil {
			return err
		}
		defer c.Close()
		_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(1), nil)
		return err
	}
	return networkProbe(args)
}

// probing is a command that does the probe args in dir.
func probing(t testing.TB, dir string, args ...string) process.Command {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return process.Command{
		Path: exe, Args: append([]string{probeArg}, args...),
		Dir: dir, Roots: []string{dir}, Confine: process.Confine{Write: []string{dir}},
		// Under the race detector a program sleeps a second before it ends.
		Env: []string{"GORACE=atexit_sleep_ms=0"},
	}
}

// say runs c and returns its output.
func say(t testing.TB, r *process.Runner, c process.Command) string {
	t.Helper()
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if _, err := r.Run(patient(t), c); err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(out.String(), "\n")
}

func needLandlock(t *testing.T, abi int) {
	if st := confine.Confinement(); st.ABI < abi {
		t.Skipf("Landlock ABI %d is needed here, this kernel has %d: %s", abi, st.ABI, st.Reason)
	}
}

// Each probe is tried confined, and unconfined to show that it would have
// done what it is refused.
func TestConfinement(t *testing.T) {
	needLandlock(t, 6)
	root := os.Getuid() == 0
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	for _, tt := range []struct {
		name string
		// probe, in a root with `in` and `sub/deep`, next to a folder ../out
		// with `file`, `dir` and the root's link `leads-out` to it. EXE is a
		// copy of the probe itself, SELF the probe.
		probe string
		want  string // an error's name, or ok
	}{
		// What a tool needs.
		{"write in the root", "write in", "ok"},
		{"create in the root", "create new", "ok"},
		{"create deep in the root", "create sub/deep/new", "ok"},
		{"truncate in the root", "truncate in", "ok"},
		{"make a folder", "mkdir new", "ok"},
		{"remove", "remove in", "ok"},
		{"rename between folders", "rename in sub/deep/in", "ok"},
		{"link between folders", "link in sub/deep/in", "ok"},
		{"symlink", "symlink in new", "ok"},
		{"fifo", "mkfifo new", "ok"},
		{"socket", "bind new", "ok"},
		{"null", "write /dev/null", "ok"},
		{"zero", "append /dev/zero", "ok"},
		{"null with truncation", "open-truncate /dev/null", "ok"},
		{"its own output", "write /proc/self/fd/1", "xok"},
		{"read outside", "read ../out/file", "ok"},
		{"itself", "exec SELF " + probeArg + " read in", "ok"},

		// What it must not.
		{"write outside", "write ../out/file", "EACCES"},
		{"append outside", "append ../out/file", "EACCES"},
		{"create outside", "create ../out/new", "EACCES"},
		{"open and truncate outside", "open-truncate ../out/file", "EACCES"},
		{"truncate outside", "truncate ../out/file", "EACCES"},
		{"make a folder outside", "mkdir ../out/new", "EACCES"},
		{"remove outside", "remove ../out/file", "EACCES"},
		{"remove a folder outside", "rmdir ../out/dir", "EACCES"},
		{"rename outside", "rename ../out/file ../out/new", "EACCES"},
		{"rename out", "rename in ../out/new", "EACCES"},
		{"rename in", "rename ../out/file new", "EACCES"},
		{"exchange", "exchange in ../out/file", "EACCES"},
		{"link in, to write it here", "link ../out/file new", "EXDEV"},
		{"link out", "link in ../out/new", "EACCES"},
		{"symlink outside", "symlink x ../out/new", "EACCES"},
		{"fifo outside", "mkfifo ../out/new", "EACCES"},
		{"socket outside", "bind ../out/new", "EACCES"},
		{"through a link to a file", "write leads-out/file", "EACCES"},
		{"create through a link to a folder", "create leads-out/new", "EACCES"},
		{"create through a dangling link", "create leads-to-new", "EEXIST"},
		{"through the process's own root", "write /proc/self/root/OUT/file", "EACCES"},
		{"through the supervisor's working folder", "write /proc/SUPERVISOR/cwd/OUT/file", "EACCES"},
		{"memory of the daemon", "write /proc/DAEMON/mem", "EACCES"},
		{"a setting of the daemon", "write /proc/DAEMON/oom_score_adj", "EACCES"},

		{"execute", "exec /usr/bin/id", "EACCES"},
		{"execute a shell", "exec /bin/sh -c id", "EACCES"},
		{"execute what lies in the root", "exec EXE " + probeArg + " read in", "EACCES"},
		{"execute through a link", "exec sh", "EACCES"},

		{"signal the supervisor", "kill SUPERVISOR", "EPERM"},
		{"signal the daemon", "kill DAEMON", "EPERM"},
		{"trace the supervisor", "trace SUPERVISOR", "EPERM"},
		{"trace the daemon", "trace DAEMON", "EPERM"},
		{"memory of the supervisor", "memory SUPERVISOR", "EACCES"},
		{"environment of the supervisor", "environ SUPERVISOR", "EACCES"},
		{"environment of the daemon", "environ DAEMON", "EACCES"},
		{"abstract socket", "dial @ABSTRACT", "EPERM"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			abstract := "toold-test-" + newMark()
			l, err := net.Listen("unix", "@"+abstract)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for _, off := range []bool{false, true} {
				base := t.TempDir()
				in, out := filepath.Join(base, "in"), filepath.Join(base, "out")
				for _, dir := range []string{in, out, in + "/sub", in + "/sub/deep", out + "/dir"} {
					must(t, os.Mkdir(dir, 0o755))
				}
				must(t, os.WriteFile(in+"/in", []byte("in"), 0o644))
				must(t, os.WriteFile(out+"/file", []byte("file"), 0o644))
				must(t, os.Symlink(out, in+"/leads-out"))
				must(t, os.Symlink(out+"/new", in+"/leads-to-new"))
				must(t, os.Symlink("/bin/sh", in+"/sh"))
				if strings.Contains(tt.probe, "EXE") {
					b, err := os.ReadFile(exe)
					must(t, err)
					must(t, os.WriteFile(in+"/copy", b, 0o755))
				}
				before := tree(t, out)

				words := strings.Fields(strings.NewReplacer("EXE", in+"/copy", "SELF", exe, "SUPERVISOR", "parent",
					"DAEMON", strconv.Itoa(os.Getpid()), "ABSTRACT", abstract, "/OUT/", out+"/").Replace(tt.probe))
				if strings.Contains(tt.probe, "/proc/SUPERVISOR") {
					words = []string{"write", fmt.Sprintf("/proc/%d/cwd/%s/file", childrenOf(t, os.Getpid())[0], out)}
				}
				c := probing(t, in, words...)
				c.Confine.Off = off
				got := say(t, r, c)
				if !off {
					if got != tt.want {
						t.Errorf("%s: %s, want %s", tt.probe, got, tt.want)
					}
					if after := tree(t, out); after != before {
						t.Errorf("%s: outside was %s, is %s", tt.probe, before, after)
					}
				} else if got == tt.want && !strings.HasSuffix(tt.want, "ok") && tt.want != "EEXIST" && root {
					t.Errorf("%s is %s when unconfined as well: this shows nothing", tt.probe, got)
				}
			}
		})
	}
}

// Device nodes would be a way around the mode of every file.
func TestNoDeviceNodes(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Ready: 1})
	for _, kind := range []string{"mknod", "mkdisk"} {
		if got := say(t, r, probing(t, t.TempDir(), kind, "new")); got != "EACCES" && got != "EPERM" {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if got := say(t, r, probing(t, t.TempDir(), "mount", "/etc", ".")); got != "EPERM" {
		t.Errorf("mount: %s", got)
	}
}

// A tool of root's has root's rights over files, and no other capability.
func TestCapabilities(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root has any")
	}
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	c := shell(dir, "grep ^Cap /proc/self/status")
	const few = "00000000000004db" // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETGID, SETUID, NET_BIND_SERVICE
	for line := range strings.Lines(say(t, r, c)) {
		set, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if want := map[string]string{"CapPrm": few, "CapEff": few, "CapAmb": few}[set]; want != "" && value != want {
			t.Errorf("%s is %s, want %s", set, value, want)
		}
	}
}

// setuid programs gain nothing, unless confinement is off.
func TestNoNewPrivileges(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	for off, want := range map[bool]string{false: "NoNewPrivs:\t1", true: "NoNewPrivs:\t0"} {
		c := shell(t.TempDir(), "grep ^NoNewPrivs: /proc/self/status")
		c.Confine.Off = off
		if got := say(t, r, c); got != want {
			t.Errorf("off %v: %q", off, got)
		}
	}
}

// The next run in the same supervisor has its own confinement, not that of
// the one before.
func TestSupervisorIsReused(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	a, b := t.TempDir(), t.TempDir()
	say(t, r, shell(a, "")) // beside the one that starts in the background
	pids := map[string]bool{}
	for range 5 {
		for _, dir := range []string{a, b} {
			c := shell(dir, `echo $PPID; echo > made && rm made; echo > `+a+`/x && echo a; echo > `+b+`/x && echo b`)
			c.Env = nil
			var out bytes.Buffer
			c.Stdout = &out
			if _, err := r.Run(patient(t), c); err != nil {
				t.Fatal(err)
			}
			pid, wrote, _ := strings.Cut(out.String(), "\n")
			pids[pid] = true
			if want := map[string]string{a: "a\n", b: "b\n"}[dir]; wrote != want {
				t.Errorf("wrote %q, want %q", wrote, want)
			}
		}
	}
	for pid := range pids {
		if cwd, err := os.Readlink("/proc/" + pid + "/cwd"); err != nil || cwd != "/" {
			t.Errorf("the supervisor stands in %s, %v", cwd, err)
		}
	}
	if len(pids) != 1 {
		t.Errorf("%d supervisors served, want 1: %v", len(pids), pids)
	}
}

// Where the kernel has no Landlock a tool runs as well as it can be held, its
// tree is killed, and one that must be confined is refused.
func TestWithoutLandlock(t *testing.T) {
	for _, required := range []string{"", "1"} {
		dir, mark := t.TempDir(), newMark()
		outside := t.TempDir() + "/made"
		d := daemon(t, mark, stubbornTree+"echo > "+outside+"; exit 6", dir)
		d.Env = append(d.Env, "WITHOUT=1", "MOST=seccomp", "REQUIRED="+required)
		out, err := d.Output()
		must(t, err)
		_, made := os.Stat(outside)
		if required == "" {
			if !strings.HasSuffix(string(out), "ended 6 signal 0 <nil>\n") || made != nil {
				t.Errorf("%s, %v", out, made)
			}
		} else if !strings.Contains(string(out), "ended 0 signal 0 TOOL_BROKEN") || !strings.Contains(string(out), "no Landlock") || made == nil {
			t.Errorf("required: %s, %v", out, made)
		}
		if left := alive(t, mark); len(left) > 0 {
			t.Errorf("still alive: %q", left)
		}
	}
}

// A folder to write that became a link is not followed.
func TestWriteThroughLink(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Ready: 1})
	dir, link := t.TempDir(), t.TempDir()+"/link"
	must(t, os.Symlink("/", link))
	c := probing(t, dir, "read", ".")
	c.Confine.Write = append(c.Confine.Write, link)
	if _, err := r.Run(patient(t), c); codeOf(err) != fault.ToolBroken || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v", err)
	}
	c.Confine.Write[1] = dir + "/missing"
	if got := say(t, r, c); got != "EISDIR" {
		t.Errorf("got %s", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is what lies beneath dir, in words.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", strings.TrimPrefix(path, dir), info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", content)
		}
		b.WriteString("; ")
		return nil
	}))
	return b.String()
}
