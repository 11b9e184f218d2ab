//go:build linux

package process_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/process"
)

// random gives n bytes, and their sum in sum.
type random struct {
	src *rand.ChaCha8
	n   int
	sum hash.Hash
}

func (r *random) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), r.n)]
	r.src.Read(p)
	r.sum.Write(p)
	r.n -= len(p)
	return len(p), nil
}

func TestHundredMegabytes(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	in := &random{rand.NewChaCha8([32]byte{1}), 100 << 20, sha256.New()}
	out := sha256.New()
	dir := t.TempDir()
	c := process.Command{Path: "/bin/cat", Dir: dir, Roots: []string{dir}, Stdin: in, Stdout: out}
	say(t, r, process.Command{Path: "/bin/cat", Dir: dir, Roots: []string{dir}}) // what is made once
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	exit, err := r.Run(patient(t), c)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil || exit.Code != 0 {
		t.Fatalf("exit %+v, error %v", exit, err)
	}
	if !bytes.Equal(in.sum.Sum(nil), out.Sum(nil)) {
		t.Error("the bytes changed")
	}
	made := after.TotalAlloc - before.TotalAlloc
	t.Logf("100 MiB in %v, %d KiB allocated", took, made>>10)
	if made > 1<<20 {
		t.Errorf("%d bytes were allocated on the way", made)
	}
}

// failing is a writer that fails after n writes.
type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if f.n == 0 {
		return 0, errors.New("the caller left")
	}
	f.n--
	return len(p), nil
}

// A child whose reader left ends at once, by the signal that it would get
// from a shell's pipe.
func TestReaderLeaves(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	c := process.Command{Path: "/usr/bin/yes", Dir: dir, Roots: []string{dir}, Stdout: &failing{1}}
	exit, err := r.Run(patient(t), c)
	if err != nil || exit.Signal != syscall.SIGPIPE {
		t.Errorf("exit %+v, error %v, want SIGPIPE", exit, err)
	}
}

// Two streams into one writer keep their order.
func TestOneWriter(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	c := shell(t.TempDir(), "for i in $(seq 300); do echo out; echo err >&2; done")
	if got, want := say(t, r, c), strings.TrimSpace(strings.Repeat("out\nerr\n", 300)); got != want {
		t.Errorf("the order was lost: %q", got)
	}
}

// stuck is an input that never comes.
type stuck struct{ closed chan struct{} }

func (s stuck) Read(p []byte) (int, error) {
	<-s.closed
	return copy(p, "too late"), nil
}

func (s stuck) Close() error {
	close(s.closed)
	return nil
}

func TestInputThatNeverComes(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	say(t, r, shell(t.TempDir(), ""))
	before := count(t)
	for range 10 {
		c := shell(t.TempDir(), "echo done")
		c.Stdin = stuck{make(chan struct{})}
		if got := say(t, r, c); got != "done" {
			t.Errorf("got %q", got)
		}
	}
	if after := count(t); after.goroutines > before.goroutines || after.fds > before.fds {
		t.Errorf("before %+v, after %+v", before, after)
	}

	// One that cannot be closed does not hold the result back either.
	c := shell(t.TempDir(), "echo done")
	s := stuck{make(chan struct{})}
	c.Stdin = struct{ io.Reader }{s}
	if got := say(t, r, c); got != "done" {
		t.Errorf("got %q", got)
	}
	close(s.closed)
}

func TestNoInput(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	if got := say(t, r, shell(t.TempDir(), "cat; echo end")); got != "end" {
		t.Errorf("got %q", got)
	}
}

// gated is a writer that waits before its first write.
type gated struct {
	open <-chan struct{}
	bytes.Buffer
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(p)
}

// What lay in the pipe (it holds 64 KiB) when everything had ended still
// arrives, however late
// the writer takes it.
func TestSlowWriter(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	dir := t.TempDir()
	open := make(chan struct{})
	out := &gated{open: open}
	c := shell(dir, `echo $$ > pid.tmp; mv pid.tmp pid; head -c 60000 /dev/zero`)
	c.Stdout = out
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(patient(t), c)
		ended <- err
	}()
	var pid []byte
	for len(pid) == 0 {
		pid, _ = os.ReadFile(dir + "/pid")
		runtime.Gosched()
	}
	waitGone(t, numbers(t, string(pid))...)
	close(open)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if out.Len() != 60000 {
		t.Errorf("%d bytes arrived of 60000", out.Len())
	}
}

// A pipe that was handed to a process outside the run holds nobody up.
func TestPipeHeldOutside(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	must(t, err)
	defer l.Close()
	held := make(chan []int, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		oob := make([]byte, 64)
		_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), oob)
		if err != nil {
			t.Error(err)
		}
		m, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(m) != 1 {
			t.Errorf("%d messages, %v", len(m), err)
			return
		}
		fds, err := unix.ParseUnixRights(&m[0])
		if err != nil {
			t.Error(err)
		}
		held <- fds
	}()
	if got, _ := networked(t, r, probing(t, dir, "send-stdout", dir+"/s"), "unix:"+dir+"/s"); got != "ok" {
		t.Fatalf("got %q", got)
	}
	for _, fd := range <-held {
		unix.Close(fd)
	}
}

// A run that is stopped while its input and output are backed up stops.
func TestBackedUp(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	dir := t.TempDir()
	in := &random{rand.NewChaCha8([32]byte{2}), 100 << 20, sha256.New()}
	signals := make(chan os.Signal, 1)
	c := process.Command{Path: "/bin/cat", Dir: dir, Roots: []string{dir}, Stdin: in, Signals: signals}
	open := make(chan struct{})
	first := make(chan struct{}, 1)
	c.Stdout = writerFunc(func(p []byte) (int, error) {
		select {
		case first <- struct{}{}:
		default:
		}
		<-open
		return len(p), nil
	})
	ended := make(chan process.Exit, 1)
	go func() {
		exit, _ := r.Run(patient(t), c)
		ended <- exit
	}()
	<-first
	// Nothing else waits for that writer.
	if got := say(t, r, shell(t.TempDir(), "echo meanwhile")); got != "meanwhile" {
		t.Errorf("got %q", got)
	}
	var pid int
	for _, sup := range childrenOf(t, os.Getpid()) {
		for _, child := range childrenOf(t, sup) {
			pid = child
		}
	}
	signals <- syscall.SIGINT
	waitGone(t, pid)
	close(open)
	if exit := <-ended; exit.Signal != syscall.SIGINT {
		t.Errorf("exit %+v", exit)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
