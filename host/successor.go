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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
)

const (
	// upgradeEnv names the descriptor on which a daemon speaks to the one that
	// started it to have it take its place.
	upgradeEnv = "TOOLD_UPGRADE_FD"
	// endTime is how long after its last word a new daemon may take to end.
	endTime = 2 * time.Second
	// takeoverTime bounds how long the new daemon takes to open the state folder and
	// to accept calls, which wait for it.
	takeoverTime = time.Minute
	// maxNote bounds a message between the two, in bytes.
	maxNote = 64 << 10
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
		return nil, fmt.Errorf("read %s: %q is not a descriptor; it is for a toold that another one starts, leave it out", upgradeEnv, text)
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

// succeed makes this process ready to be the next daemon, and waits until the one
// before it is done with the state folder, or has ended: its lock tells then when the
// last of what it ran has ended as well. rehearse says which tools it will not serve.
func (l *line) succeed(ctx context.Context, rehearse func(context.Context) (broken map[string]string, err error)) (in inheritance, err error) {
	defer func() {
		if err != nil {
			in.close()
			l.send(note{Failed: err.Error()})
		}
	}()
	defer context.AfterFunc(ctx, func() { l.SetReadDeadline(time.Unix(1, 0)) })()
	broken, err := rehearse(ctx)
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
			// It ends, or it has closed the line, or written what is no note, and runs on.
			select {
			case <-s.ended:
				return n, fmt.Errorf("it ended, %v; what it printed is in the log of this daemon", s.cmd.ProcessState)
			case <-time.After(endTime):
				return n, errors.New("it sends nothing that this daemon understands, and does not end; is it toold?")
			}
		case n.Failed != "":
			return n, errors.New(n.Failed)
		case good(n):
			return n, nil
		}
		return n, errors.New("its answer is unknown to this daemon; stop this one, and start the new one")
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

// upgrades is what a Host knows of the daemon before it and of the one that is to take
// its place.
type upgrades struct {
	mu      sync.Mutex // held by the one upgrade at a time
	handing chan *successor
	failed  atomic.Pointer[string] // why the last one was
	gate    gate
	inside  atomic.Int64  // calls between enter and leave
	over    chan struct{} // closed when the place was given away
	// inherited is what Serve listens with; left, what it leaves to next.
	inherited, left inheritance
	next            *successor
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

// enter begins a call on a connection that is not passed on: while the sockets are
// paused, it waits. leave has to be called when the call has ended.
func (u *upgrades) enter(ctx context.Context) (leave func(), err error) {
	g := &u.gate
	g.mu.Lock()
	for g.shut != nil {
		shut := g.shut
		g.mu.Unlock()
		select {
		case <-shut:
		case <-u.over:
			return nil, fault.Errorf(fault.Overloaded, "the daemon gives its place to a new one; connect again")
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		g.mu.Lock()
	}
	u.inside.Add(1) // under the lock: nobody sees the gate shut and nobody inside
	g.mu.Unlock()
	return func() { u.inside.Add(-1) }, nil
}
