package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
)

const (
	// upgradeEnv names the descriptor on which a daemon speaks to the one that
	// started it to have it take its place.
	upgradeEnv = "TOOLD_UPGRADE_FD"
	// rehearsalTime bounds how long a new daemon takes until its tools are loaded.
	rehearsalTime = 5 * time.Minute
	// pauseTime bounds how long calls wait for those that run to end. Where these
	// take longer, calls are taken again, until they have ended.
	pauseTime = 3 * time.Second
	// takeoverTime bounds how long the new daemon takes to open the state folder and
	// to accept calls, which wait for it.
	takeoverTime = time.Minute
	// maxNote bounds a message between the two, in bytes.
	maxNote = 64 << 10
	// maxBroken is how many tools one has room for.
	maxBroken = 100
)

// note is a message between a daemon and the one that takes its place.
type note struct {
	// Listen and Connection say what the descriptor is that comes with the note: a
	// listening socket, or a connection that was made to it, by the path of the socket.
	Listen     string `json:"listen,omitempty"`
	Own        bool   `json:"own,omitempty"`
	Connection string `json:"connection,omitempty"`
	Focus      string `json:"focus,omitempty"`
	// Go says that the state folder is free.
	Go bool `json:"go,omitempty"`

	// Ready says that the tools were loaded, but for those of Broken, with the reason.
	Ready  bool              `json:"ready,omitempty"`
	Broken map[string]string `json:"broken,omitempty"`
	// Failed is why the new daemon cannot take over.
	Failed string `json:"failed,omitempty"`
	// Serving says that the new daemon accepts calls.
	Serving bool `json:"serving,omitempty"`
}

// line is what the two speak over.
type line struct{ *net.UnixConn }

func (l line) send(n note, fd ...int) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fd) > 0 {
		rights = unix.UnixRights(fd...)
	}
	_, _, err = l.WriteMsgUnix(text, rights, nil)
	return err
}

// receive waits for a note, and the descriptor that comes with it, or -1. The error
// is io.EOF when the other daemon has ended.
func (l line) receive() (n note, fd int, err error) {
	text, rights := make([]byte, maxNote), make([]byte, unix.CmsgSpace(4))
	size, control, _, _, err := l.ReadMsgUnix(text, rights)
	if err == nil && size == 0 || errors.Is(err, unix.ECONNRESET) {
		err = io.EOF
	}
	if err != nil {
		return n, -1, err
	}
	fd = -1
	if messages, err := unix.ParseSocketControlMessage(rights[:control]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			fd = fds[0]
			unix.CloseOnExec(fd)
		}
	}
	return n, fd, json.Unmarshal(text[:size], &n)
}

// inheritance is what a daemon does not open itself: by the path of its socket, what
// listens there, and connections that were made to it.
type inheritance struct {
	given map[string]*server.Given
	conns map[string][]server.Connection
}

// close gives up what nobody took.
func (in *inheritance) close() {
	for _, g := range in.given {
		unix.Close(g.FD)
	}
	for _, conns := range in.conns {
		for _, c := range conns {
			unix.Close(c.FD)
		}
	}
	in.given, in.conns = nil, nil
}

// take takes the socket for path out of it; nil: there is none.
func (in *inheritance) take(path string) *server.Given {
	g := in.given[path]
	delete(in.given, path)
	return g
}

// predecessor is the line to the daemon that started this one, or nil.
func predecessor() (*line, error) {
	text := os.Getenv(upgradeEnv)
	if text == "" {
		return nil, nil
	}
	os.Unsetenv(upgradeEnv)
	var fd int
	if _, err := fmt.Sscan(text, &fd); err != nil || fd < 3 {
		return nil, fmt.Errorf("read %s: %q is no descriptor; it is for a toold that another one starts, leave it out", upgradeEnv, text)
	}
	l, err := newLine(fd)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; it is for a toold that another one starts, leave it out", upgradeEnv, err)
	}
	return l, nil
}

func newLine(fd int) (*line, error) {
	unix.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "upgrade")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("it is not a Unix socket")
	}
	return &line{u}, nil
}

// succeed makes this process ready to be the daemon of c, and waits until the one
// before it is done with the state folder, or has ended: its lock tells then when the
// last of what it ran has ended as well.
func (l *line) succeed(ctx context.Context, c config.Config) (in inheritance, err error) {
	defer func() {
		if err != nil {
			in.close()
			l.send(note{Failed: err.Error()})
		}
	}()
	defer context.AfterFunc(ctx, func() { l.SetReadDeadline(time.Unix(1, 0)) })()
	broken, err := rehearse(ctx, c)
	if err != nil {
		return in, err
	}
	l.send(note{Ready: true, Broken: broken})
	in.given, in.conns = map[string]*server.Given{}, map[string][]server.Connection{}
	for {
		n, fd, err := l.receive()
		switch {
		case errors.Is(err, io.EOF), err == nil && n.Go:
			return in, nil
		case err != nil:
			return in, fmt.Errorf("read from the daemon before this one: %w", errors.Join(err, ctx.Err()))
		case fd < 0:
		case n.Listen != "":
			in.given[n.Listen] = &server.Given{FD: fd, Own: n.Own}
		case n.Connection != "":
			in.conns[n.Connection] = append(in.conns[n.Connection], server.Connection{FD: fd, Focus: n.Focus})
		default:
			unix.Close(fd)
		}
	}
}

// rehearse makes a daemon of c with a state folder of its own, and says which tools it
// does not serve, and why. What it compiles is kept for the real one.
func rehearse(ctx context.Context, c config.Config) (broken map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rehearsalTime)
	defer cancel()
	trial, err := os.MkdirTemp(c.State, rehearsalPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder to try the new daemon in: %w", err)
	}
	defer os.RemoveAll(trial)
	if err := os.MkdirAll(filepath.Join(trial, "tools"), 0o700); err != nil {
		return nil, err
	}
	// A setup.sh that has run is not run again.
	if past, err := os.ReadFile(filepath.Join(c.State, "tools", "tools.json")); err == nil {
		if err := os.WriteFile(filepath.Join(trial, "tools", "tools.json"), past, 0o600); err != nil {
			return nil, err
		}
	}
	real := c.State
	c.State, c.Traces, c.Metrics = trial, "", ""
	h, err := newHost(ctx, c, io.Discard, filepath.Join(real, "cache"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := h.parts.Tools.Ready(ctx); err != nil {
		return nil, fmt.Errorf("the tools were not loaded in time: %w", err)
	}
	broken = map[string]string{}
	for _, s := range h.parts.Tools.List() {
		if s.State != catalog.StateOK {
			broken[s.Name] = s.Reason[:min(len(s.Reason), 400)]
		}
	}
	// One that is not named would be taken for one that serves.
	if len(broken) > maxBroken {
		return nil, fmt.Errorf("%d tools are broken, and no more than %d can be compared with those that serve; mend or remove some", len(broken), maxBroken)
	}
	return broken, nil
}

// rehearsalPrefix begins the names of folders of daemons that are tried.
const rehearsalPrefix = "upgrade-"

// removeRehearsals removes what a daemon left that was killed while it was tried.
func removeRehearsals(state string) error {
	left, err := filepath.Glob(filepath.Join(state, rehearsalPrefix+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// successor is a daemon that is to take the place of this one.
type successor struct {
	*line
	cmd   *exec.Cmd
	ended chan struct{}
	notes chan note // closed when it has ended
}

// startSuccessor starts binary as this process was started.
func startSuccessor(binary string) (*successor, error) {
	syscall.ForkLock.RLock() // or what is started meanwhile has it, too
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err == nil {
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "upgrade")
	defer theirs.Close()
	l, err := newLine(pair[0])
	if err != nil {
		return nil, err
	}
	s := &successor{line: l, ended: make(chan struct{}), notes: make(chan note, 4)}
	s.cmd = exec.Command(binary, os.Args[1:]...)
	s.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LISTEN_") }), upgradeEnv+"=3")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	s.cmd.ExtraFiles = []*os.File{theirs}
	if err := s.cmd.Start(); err != nil {
		l.Close()
		return nil, err
	}
	go func() {
		defer close(s.ended)
		s.cmd.Wait()
	}()
	go func() {
		defer close(s.notes)
		for {
			n, fd, err := s.receive()
			if fd >= 0 {
				unix.Close(fd)
			}
			if err != nil {
				return
			}
			s.notes <- n
			if n.Serving || n.Failed != "" {
				return
			}
		}
	}()
	return s, nil
}

// await waits until it says something that good takes.
func (s *successor) await(ctx context.Context, good func(note) bool) (note, error) {
	select {
	case n, ok := <-s.notes:
		switch {
		case !ok:
			<-s.ended
			return n, fmt.Errorf("it ended, %v; what it printed is in the log of this daemon", s.cmd.ProcessState)
		case n.Failed != "":
			return n, errors.New(n.Failed)
		case good(n):
			return n, nil
		}
		return n, errors.New("it answered what this daemon does not know; stop this one, and start the new one")
	case <-ctx.Done():
		return note{}, context.Cause(ctx)
	}
}

// kill ends it, and waits until it has ended.
func (s *successor) kill() {
	s.cmd.Process.Kill()
	<-s.ended
	s.Close()
	for range s.notes {
	}
}

// upgrades is what a Host knows of the daemon that is to take its place.
type upgrades struct {
	mu      sync.Mutex // held by the one upgrade at a time
	on      atomic.Pointer[sockets]
	handing chan *successor
	failed  atomic.Pointer[string] // why the last one was
	gate    gate
	inside  atomic.Int64  // calls in callMCP
	over    chan struct{} // closed when the place was given away
}

// upgrade has binary, or the program that this one was when it is empty, take the
// place of this daemon, and returns its process id when it is about to. On an error
// nothing has changed. within bounds the wait for calls that take long.
func (h *Host) upgrade(ctx context.Context, binary string, within time.Duration) (pid int, err error) {
	u := &h.upgrades
	switch {
	case runtime.GOOS != "linux":
		return 0, errors.New("upgrade: only a daemon on Linux can be; stop it, and start the new one")
	case os.Getpid() == 1:
		return 0, errors.New("upgrade: the daemon is process 1, with which its container ends; replace the container")
	case !u.mu.TryLock():
		return 0, errors.New("upgrade: another upgrade is under way; wait for it")
	}
	defer u.mu.Unlock()
	on := u.on.Load()
	if on == nil || !h.ready.Load() {
		return 0, errors.New("upgrade: this daemon starts or stops; try again")
	}
	if binary == "" {
		if binary, err = os.Executable(); err != nil {
			return 0, fmt.Errorf("upgrade: find the program: %w; name it with --binary", err)
		}
	}
	if !filepath.IsAbs(binary) {
		return 0, fmt.Errorf("upgrade: %q is not an absolute path", binary)
	}
	next, err := startSuccessor(binary)
	if err != nil {
		return 0, fmt.Errorf("upgrade: start the new daemon: %w; this one still serves", err)
	}
	pid = next.cmd.Process.Pid
	log := h.parts.Log.With("binary", binary, "successor", pid)
	log.Info("upgrade begins")
	defer func() {
		if err != nil {
			next.kill()
			err = fmt.Errorf("upgrade to %s: %w; this daemon still serves", binary, err)
			log.Error("upgrade failed", "error", err)
		}
	}()
	if err := on.pass(next.line); err != nil && !errors.Is(err, unix.EPIPE) { // then it has ended, and await says how
		return 0, fmt.Errorf("pass the sockets on: %w", err)
	}
	loading, cancel := context.WithTimeoutCause(ctx, rehearsalTime+10*time.Second, errors.New("it was not ready in time"))
	defer cancel()
	n, err := next.await(loading, func(n note) bool { return n.Ready })
	if err != nil {
		return 0, fmt.Errorf("the new daemon did not become ready: %w", err)
	}
	for _, s := range h.parts.Tools.List() {
		if reason, bad := n.Broken[s.Name]; bad && s.State == catalog.StateOK {
			return 0, fmt.Errorf("the new daemon does not serve the tool %s, which this one serves: %s", s.Name, reason)
		}
	}
	if err := h.quiesce(ctx, on, within, next.ended); err != nil {
		return 0, err
	}
	on.admin.Pause() // who asks from here on is answered by the one that serves
	select {
	case u.handing <- next:
		return pid, nil
	case <-ctx.Done():
	case <-next.ended:
		err = errors.New("the new daemon has ended")
	}
	on.admin.Resume()
	on.resume()
	return 0, errors.Join(err, ctx.Err())
}

// quiesce returns when no call runs and none is begun. While calls run for longer
// than pauseTime, others are taken: nobody waits longer for somebody else's call.
func (h *Host) quiesce(ctx context.Context, on *sockets, within time.Duration, ended <-chan struct{}) (err error) {
	long := map[string]bool{} // executions that outlasted a pause
	limit := time.NewTimer(within)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	on.pause()
	paused, pausedAt := true, time.Now()
	defer func() {
		if err != nil {
			on.resume()
		}
	}()
	for {
		running := h.parts.Sessions.Running()
		if paused {
			calls, partial := on.busy()
			over := time.Since(pausedAt) > pauseTime
			busy := calls > 0 || len(running) > 0 || h.pipeline.Running() > 0 || h.upgrades.inside.Load() > 0
			switch {
			case !busy && (partial == 0 || over):
				return nil
			case over:
				on.resume()
				paused = false
				clear(long)
				for _, id := range running {
					long[id] = true
				}
			}
		} else if !slices.ContainsFunc(running, func(id string) bool { return long[id] }) && time.Since(pausedAt) > 2*pauseTime {
			on.pause()
			paused, pausedAt = true, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("given up: %w", ctx.Err())
		case <-ended:
			return errors.New("the new daemon has ended before it took over")
		case <-limit.C:
			return fmt.Errorf("calls still run after %v: %s; wait for them, or end them with toolctl session abort, and upgrade again, or restart the daemon, which ends them", within, strings.Join(running[:min(len(running), 8)], ", "))
		}
	}
}

// gate lets calls wait while it is shut.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while it is open
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// callMCP is Call for connections that are not passed on: while the sockets are
// paused, what they ask waits.
func (h *Host) callMCP(ctx context.Context, q call.Request) call.Outcome {
	g := &h.upgrades.gate
	g.mu.Lock()
	for g.shut != nil {
		shut := g.shut
		g.mu.Unlock()
		select {
		case <-shut:
		case <-h.upgrades.over:
			return call.Failed(ctx, fault.Errorf(fault.Overloaded, "the daemon gives its place to a new one; connect again"))
		case <-ctx.Done():
			return call.Failed(ctx, context.Cause(ctx))
		}
		g.mu.Lock()
	}
	h.upgrades.inside.Add(1) // under the lock: nobody sees the gate shut and nobody inside
	g.mu.Unlock()
	defer h.upgrades.inside.Add(-1)
	return h.Call(ctx, q)
}
