//go:build linux

package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// A run that demands more than the system gives is refused.
func TestLeastOfSystem(t *testing.T) {
	for _, s := range []confine.Status{{}, {Filter: true}, {ABI: 2}, {ABI: 3}, {ABI: 7}, {ABI: 7, Filter: true}, {ABI: 7, Filter: true, Namespaces: true}} {
		for least := confine.Unconfined; least <= confine.User; least++ {
			c := &Command{Path: "/bin/git", Confine: Confine{Least: least}}
			err := admits(s, c)
			var e *fault.Error
			if (err == nil) != (least <= s.Level()) || err != nil && (!errors.As(err, &e) || e.Code != fault.ToolBroken) {
				t.Errorf("%+v, %v demanded: %v", s, least, err)
			}
			c.Confine.Off = true
			if err := admits(s, c); err != nil {
				t.Errorf("%+v, off: %v", s, err)
			}
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

func TestSpecFrames(t *testing.T) {
	sp := &spec{N: 7, Path: "/bin/true", Dir: "/", Confine: true}
	sp.Args, sp.Env, sp.Sockets = confine.Join([]string{"\xff\n", ""}), confine.Join([]string{"A=b"}), confine.Join([]string{"/s"})
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

// A frame of a control socket says how long it and its lists are; nothing is read, nor
// memory taken, for more than the limit.
func TestControlFrameIsBounded(t *testing.T) {
	read := func(head uint32, body string) error {
		b := binary.LittleEndian.AppendUint32(nil, head)
		_, err := decodeSpec(strings.NewReader(string(b) + body))
		return err
	}
	sized := func(sizes ...int) error {
		frame, err := encodeFrame(&spec{Sizes: sizes})
		if err != nil {
			t.Fatal(err)
		}
		_, err = decodeSpec(bytes.NewReader(frame))
		return err
	}
	lists := make([]int, len((&spec{}).all()))
	if err := sized(lists...); err != nil {
		t.Errorf("empty lists: %v", err)
	}
	over, negative := slices.Clone(lists), slices.Clone(lists)
	over[0], over[1], negative[0] = maxFrame/2, maxFrame/2+1, -1
	for name, err := range map[string]error{
		"a frame": read(maxFrame+1, "{}"), "the longest": read(1<<32-1, "{}"),
		"lists": sized(over...), "a negative list": sized(negative...), "too few lists": sized(lists[1:]...),
	} {
		if err == nil || !strings.Contains(err.Error(), "limit") && !strings.Contains(err.Error(), "lists, not") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
