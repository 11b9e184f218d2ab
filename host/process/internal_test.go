//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		abi                int
		filter, namespaces bool
		level              Level
		lost               int
	}{
		{0, false, false, Unconfined, 10},
		{0, true, false, Unconfined, 5},
		{2, false, false, Unconfined, 8},
		{3, false, false, Landlock, 7},
		{5, false, false, Landlock, 6},
		{6, false, false, Landlock, 4},
		{7, false, false, Landlock, 4},
		{7, true, false, Seccomp, 0},
		{5, true, false, Seccomp, 1},
		{7, true, true, Namespaces, 0},
	} {
		s := Status{ABI: tt.abi, Filter: tt.filter, Namespaces: tt.namespaces}
		s.lose()
		if s.Level() != tt.level || len(s.Lost) != tt.lost {
			t.Errorf("%+v: %v, %d lost: %q", tt, s.Level(), len(s.Lost), s.Lost)
		}
		for least := Unconfined; least <= User; least++ {
			c := &Command{Path: "/bin/git", Confine: Confine{Least: least}}
			err := s.admits(c)
			var e *fault.Error
			if (err == nil) != (least <= tt.level) || err != nil && (!errors.As(err, &e) || e.Code != fault.ToolBroken) {
				t.Errorf("%+v, %v demanded: %v", tt, least, err)
			}
			c.Confine.Off = true
			if err := s.admits(c); err != nil {
				t.Errorf("%+v, off: %v", tt, err)
			}
		}
	}
	if s := Confinement(); s.ABI == 0 && s.Reason == "" || !s.Filter && s.FilterReason == "" || !s.Namespaces && s.NamespacesReason == "" {
		t.Errorf("something is missing, for no reason: %+v", s)
	}
}

// With the rules of each older version writing and executing are confined as
// well, on a thread that ends.
func TestOlderVersions(t *testing.T) {
	kernel, _ := landlockABI()
	if kernel < abiRefer {
		t.Skip("no Landlock")
	}
	for abi := abiRefer; abi <= kernel; abi++ {
		t.Run(fmt.Sprint(abi), func(t *testing.T) {
			base := t.TempDir()
			in, out := base+"/in", base+"/out"
			for _, dir := range []string{in, in + "/sub", out} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(dir+"/file", []byte("x"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := make(chan string, 1)
			onThread(func() {
				var words []string
				say := func(err error) { words = append(words, errName(err)) }
				rulesets := rulesets{abi: abi}
				set, step, err := rulesets.get(confinement{path: "/bin/true", write: in})
				scoped := false
				if err == nil {
					step, err = renounce(false)
				}
				if err == nil {
					scoped, step, err = restrictThread(abi, set.fd)
				}
				if err != nil {
					got <- step + ": " + err.Error()
					return
				}
				say(unix.Rename(in+"/file", in+"/sub/new"))
				say(unix.Rename(in+"/sub/new", out+"/new"))
				say(unix.Mkdir(out+"/dir", 0o755))
				say(unix.Truncate(out+"/file", 0))
				if os.Getuid() == 0 { // others may not anyway
					if err := unix.Mknod(in+"/null", unix.S_IFCHR, int(unix.Mkdev(1, 3))); err != unix.EACCES {
						words = append(words, "mknod "+errName(err))
					}
				}
				say(unix.Exec("/bin/sh", []string{"sh", "-c", "exit 9"}, nil))
				words = append(words, fmt.Sprint(scoped))
				got <- strings.Join(words, " ")
			})
			truncate := "EACCES"
			if abi < abiTruncate {
				truncate = "ok"
			}
			if got, want := <-got, fmt.Sprintf("ok EACCES EACCES %s EACCES %v", truncate, abi >= abiScope); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func errName(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return "ok"
}

// What runs on a thread of its own leaves no thread behind that is confined.
func TestThreadEnds(t *testing.T) {
	dir := t.TempDir()
	rulesets := rulesets{abi: abiRefer}
	for range 50 {
		done := make(chan struct{})
		onThread(func() {
			defer close(done)
			set, step, err := rulesets.get(confinement{path: "/bin/true"})
			if err == nil {
				if step, err = renounce(false); err == nil {
					_, step, err = restrictThread(abiRefer, set.fd)
				}
			}
			if err != nil {
				t.Error(step, err)
			}
		})
		<-done
	}
	for range 50 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewInSupervisor(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"toold", verb}
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Supervise") {
		t.Errorf("error %v", err)
	}
}

// Started by hand, the verb says what it is.
func TestSuperviseByHand(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	p := exec.Command(exe, verb)
	p.Stderr = &said
	if err := p.Run(); err == nil || p.ProcessState.ExitCode() != 64 || !strings.Contains(said.String(), "toold starts it") {
		t.Errorf("%v: %s", err, said.String())
	}
}

// whenAll ends when each of a group of them is read.
type whenAll struct{ *sync.WaitGroup }

func (w whenAll) Read([]byte) (int, error) {
	w.Done()
	w.Wait()
	return 0, io.EOF
}

// After more runs at once than supervisors are kept ready, the rest stay for a
// while, and go when nobody took them.
func TestTrim(t *testing.T) {
	const ready, burst = 2, 6
	r, err := New(Config{Ready: ready})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := t.TempDir()
	var all []*supervisor
	for range burst {
		s, err := r.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	r.mu.Lock()
	for _, s := range all {
		r.keepLocked(s)
	}
	r.mu.Unlock()
	idle := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.idle)
	}
	if n := idle(); n < burst {
		t.Errorf("%d are kept after the burst, want %d", n, burst)
	}
	run := func(together int) {
		var runs, under sync.WaitGroup
		under.Add(together)
		for range together {
			runs.Go(func() {
				c := Command{Path: "/bin/cat", Dir: dir, Roots: []string{dir}, Stdin: whenAll{&under}}
				if _, err := r.Run(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		runs.Wait()
	}
	r.trim() // as many were idle at the least as the last of the burst left
	run(burst)
	r.trim()
	if n := idle(); n < burst-1 {
		t.Errorf("%d are kept that were in use, want %d", n, burst)
	}
	run(1)
	r.trim()
	r.trim()
	if n := idle(); n != ready {
		t.Errorf("%d are kept, want %d", n, ready)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trimming != nil {
		t.Error("it goes on trimming")
	}
}

// A supervisor that died while it was idle, a moment before its run, is not
// the end of that run.
func TestIdleSupervisorDied(t *testing.T) {
	r, err := New(Config{Ready: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	r.mu.Lock()
	r.idle = append(r.idle, &supervisor{conn: os.NewFile(uintptr(pair[0]), "dead")})
	r.mu.Unlock()
	dir := t.TempDir()
	if exit, err := r.Run(t.Context(), Command{Path: "/bin/true", Dir: dir, Roots: []string{dir}}); err != nil || exit.Code != 0 {
		t.Errorf("exit %+v, error %v", exit, err)
	}
}

// A supervisor that has served long enough is replaced.
func TestUsedUp(t *testing.T) {
	r, err := New(Config{Ready: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := t.TempDir()
	c := Command{Path: "/bin/true", Dir: dir, Roots: []string{dir}}
	pids := map[int]bool{}
	for range 3 {
		if _, err := r.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		s, err := r.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.runs = runsEach - 1
		pids[s.cmd.Process.Pid] = true
		r.mu.Lock()
		r.keepLocked(s)
		r.mu.Unlock()
	}
	if len(pids) != 3 {
		t.Errorf("%d supervisors, want 3: %v", len(pids), pids)
	}
}

func TestJoin(t *testing.T) {
	for _, list := range [][]string{nil, {""}, {"", ""}, {"a"}, {"a", "", "\xff\n "}, {"", "b", ""}} {
		if got := split(join(list)); !slices.Equal(got, list) {
			t.Errorf("%q became %q", list, got)
		}
	}
}

// The working folder that is entered is the one that was judged.
func TestOpenSame(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"/in", "/other"} {
		if err := os.Mkdir(base+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := openResolved(base + "/in")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	same, err := openSame(base+"/in", fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(same)
	if err := errors.Join(os.Rename(base+"/in", base+"/was"), os.Rename(base+"/other", base+"/in")); err != nil {
		t.Fatal(err)
	}
	if other, err := openSame(base+"/in", fd); err == nil {
		unix.Close(other)
		t.Error("another folder was taken for it")
	}
	if err := errors.Join(os.Rename(base+"/in", base+"/other"), os.Symlink("was", base+"/in")); err != nil {
		t.Fatal(err)
	}
	if link, err := openSame(base+"/in", fd); err == nil {
		unix.Close(link)
		t.Error("a link to it was followed")
	}
}

func TestSpecFrames(t *testing.T) {
	sp := &spec{N: 7, Path: "/bin/true", Dir: "/", Confine: true}
	sp.Args, sp.Env, sp.Sockets = join([]string{"\xff\n", ""}), join([]string{"A=b"}), join([]string{"/s"})
	frame, err := encodeSpec(sp)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeSpec(bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	for i, list := range got.all() {
		if want := *sp.all()[i]; string(*list) != string(want) {
			t.Errorf("list %d is %q, was %q", i, *list, want)
		}
	}
	if got.N != sp.N || got.Path != sp.Path || !got.Confine {
		t.Errorf("%+v became %+v", sp, got)
	}
	for _, sizes := range [][]int{nil, {1}, {-1, 0, 0, 0, 0, 0, 0, 0}, {maxFrame, 1, 0, 0, 0, 0, 0, 0}, {1 << 62, 1 << 62, 0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0, 0, 0}} {
		frame, err := encodeFrame(&spec{Sizes: sizes})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeSpec(bytes.NewReader(frame)); err == nil || err == io.EOF {
			t.Errorf("sizes %v: %v", sizes, err)
		}
	}
}

// What is ordered about a run is about that one: it waits until its child is
// there, and is nothing to the next.
func TestOrdersAreOfTheirRun(t *testing.T) {
	s := &service{over: make(chan int, 2)}
	s.begun.L = &s.mu
	ours, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	s.orders = theirs
	go s.listen()
	c := child{s: &supervisor{orders: ours}}
	for c.n = 1; c.n <= 4; c.n++ {
		before := child{s: c.s, n: c.n - 1}
		p := exec.Command("/bin/sleep", "1000")
		p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if c.n%2 == 0 {
			c.order(&order{Signal: int(unix.SIGUSR1)})
		}
		s.begin(&job{sp: &spec{N: c.n}}, p.Process.Pid)
		before.order(&order{Kill: true})
		if c.n%2 == 1 {
			c.order(&order{Signal: int(unix.SIGUSR1)})
		}
		p.Wait()
		if got := p.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != unix.SIGUSR1 {
			t.Errorf("run %d was ended by %v", c.n, got)
		}
	}
	ours.Close()
	if code := <-s.over; code != 0 {
		t.Errorf("exit code %d when no more is ordered", code)
	}
	theirs.Close()
}

// A child that comes to be when the supervisor ends is killed.
func TestEndingKillsWhatBegins(t *testing.T) {
	s := &service{}
	s.begun.L = &s.mu
	s.end()
	p := exec.Command("/bin/sleep", "1000")
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(time.Minute, func() { p.Process.Signal(unix.SIGTERM) })
	defer guard.Stop()
	s.begin(&job{sp: &spec{N: 1}}, p.Process.Pid)
	p.Wait()
	if got := p.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != unix.SIGKILL {
		t.Errorf("it was ended by %v", got)
	}
}
