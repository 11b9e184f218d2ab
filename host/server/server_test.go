package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// patience is how long a test waits for what must come.
const patience = 20 * time.Second

// start serves handler until the test ends, and then makes sure that nothing is
// left: no goroutine, no descriptor, no file.
func start(t *testing.T, config Config) *Server {
	t.Helper()
	s, err := listen(t, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func listen(t *testing.T, config Config) (*Server, error) {
	t.Helper()
	if config.Path == "" {
		config.Path = filepath.Join(t.TempDir(), "tool.sock")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	goroutines, fds := runtime.NumGoroutine(), openFiles(t)
	s, err := Listen(config)
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if s.Conns() != 0 {
			t.Errorf("%d connections are left", s.Conns())
		}
		settle(func() bool { return runtime.NumGoroutine() <= goroutines })
		if n := runtime.NumGoroutine(); n > goroutines {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines are left:\n%s", n-goroutines, stacks[:runtime.Stack(stacks, true)])
		}
		if n := openFiles(t); n > fds {
			t.Errorf("%d descriptors are left", n-fds)
		}
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(config.Path), "*"))
		hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(config.Path), ".*"))
		if left = append(left, hidden...); len(left) > 0 {
			t.Errorf("files are left: %q", left)
		}
	})
	return s, nil
}

// settle lets goroutines that have nothing more to do than to return do so.
func settle(done func() bool) {
	for i := 0; i < 1_000_000 && !done(); i++ {
		runtime.Gosched()
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// rawClient is a client that sends what it is told to.
type rawClient struct {
	*net.UnixConn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, s *Server) *rawClient {
	t.Helper()
	nc, err := net.Dial("unix", s.config.Path)
	if err != nil {
		t.Fatal(err)
	}
	// No test waits for ever.
	nc.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { nc.Close() })
	return &rawClient{nc.(*net.UnixConn), t, bufio.NewReader(nc)}
}

func (c *rawClient) send(frames ...string) {
	c.t.Helper()
	for _, f := range frames {
		if err := wire.WriteFrame(c, []byte(f)); err != nil {
			c.t.Fatalf("send %.80s: %v", f, err)
		}
	}
}

func (c *rawClient) receive() *wire.Response {
	c.t.Helper()
	frame, err := wire.ReadFrame(c.in)
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	p, err := wire.ParseResponse(frame)
	if err != nil {
		c.t.Fatalf("receive %s: %v", frame, err)
	}
	return p
}

// result receives until there is a result, and returns the standard output that
// came before.
func (c *rawClient) result() (*wire.Result, string) {
	c.t.Helper()
	var out bytes.Buffer
	for {
		switch p := c.receive(); p.Type {
		case wire.TypeResult:
			return p.Result, out.String()
		case wire.TypeStdout:
			out.Write(p.Data)
		}
	}
}

// refused receives an answer with the given code.
func (c *rawClient) refused(code fault.Code) string {
	c.t.Helper()
	r, _ := c.result()
	if r.Err == nil || r.Err.Code != code {
		c.t.Fatalf("answered with %+v, want %s", r, code)
	}
	return r.Err.Message
}

// ended makes sure that the server closed the connection.
func (c *rawClient) ended() {
	c.t.Helper()
	if b, err := c.in.ReadByte(); err != io.EOF {
		c.t.Fatalf("got byte %d, %v, where the connection should have ended", b, err)
	}
}

// echo answers with the arguments, or sends back the input of a streamed call.
func echo(_ context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
	if s.Stdin != nil {
		if _, err := io.Copy(s.Stdout, s.Stdin()); err != nil {
			return &wire.Result{Err: fault.Errorf(fault.Internal, "copy: %w", err)}
		}
	}
	return &wire.Result{Ran: true, Stdout: []byte(strings.Join(c.Args, " "))}
}

func stdin(p string) string {
	return `{"type":"stdin","data":"` + base64.StdEncoding.EncodeToString([]byte(p)) + `"}`
}

// sized is a request whose frame has n bytes.
func sized(n int) string {
	const empty = `{"tool":"x","args":[""]}`
	return `{"tool":"x","args":["` + strings.Repeat("y", n-len(empty)) + `"]}`
}

func TestFrameLimit(t *testing.T) {
	s := start(t, Config{Handler: echo})
	other := dial(t, s)
	other.send(`{"tool":"x","args":["before"]}`)
	other.result()

	c := dial(t, s)
	c.send(sized(wire.MaxFrame))
	if r, _ := c.result(); r.Err != nil || !r.Truncated {
		t.Errorf("a request of 65,536 bytes: %v", r.Err)
	}
	// The client goes on writing for far longer than the server reads: it
	// still gets the answer.
	for _, n := range []int{wire.MaxFrame + 1, 4 << 20} {
		c := dial(t, s)
		header := []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
		written := make(chan error, 1)
		go func() {
			_, err := c.Write(append(header, make([]byte, n)...))
			written <- err
		}()
		if message := c.refused(fault.MessageTooLarge); !strings.Contains(message, fmt.Sprint(n)) {
			t.Errorf("%d bytes: %s", n, message)
		}
		c.ended()
		if err := <-written; err != nil {
			t.Errorf("the server stopped listening while the client wrote: %v", err)
		}
		c.Close()
	}
	other.send(`{"tool":"x","args":["after"]}`)
	if r, _ := other.result(); string(r.Stdout) != "after" {
		t.Errorf("another connection was answered with %+v", r)
	}
}

func TestOneByteAtATime(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	var b bytes.Buffer
	wire.WriteFrame(&b, []byte(`{"tool":"x","args":["slow","é"]}`))
	for range 2 {
		for _, x := range b.Bytes() {
			if _, err := c.Write([]byte{x}); err != nil {
				t.Fatal(err)
			}
		}
		if r, _ := c.result(); string(r.Stdout) != "slow é" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestHalfAFrame(t *testing.T) {
	s := start(t, Config{Handler: echo})
	for _, part := range []string{"\x00", "\x00\x00\x00\x10", "\x00\x00\x00\x10{\"tool\""} {
		c := dial(t, s)
		c.send(`{"tool":"x","args":["whole"]}`)
		c.Write([]byte(part))
		c.CloseWrite()
		if r, _ := c.result(); string(r.Stdout) != "whole" {
			t.Errorf("the whole frame before it: %+v", r)
		}
		c.refused(fault.InvalidEnvelope)
		c.ended()

		gone := dial(t, s)
		gone.Write([]byte(part))
		gone.Close()
	}
}

func TestMalformedRequests(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	for frame, path := range map[string]string{
		``:                                "the request",
		`{`:                               "the request",
		`nonsense`:                        "the request",
		`[]`:                              "the request",
		`null`:                            "the request",
		`{}`:                              "the request",
		`{"tool":"x"} ` + "\x00":          "the request",
		"{\"tool\":\"\xff\"}":             "/tool",
		`{"tool":"x","tool":"x"}`:         "/tool",
		`{"tool":1}`:                      "/tool",
		`{"tool":"x","args":{}}`:          "/args",
		`{"tool":"x","args":[[]]}`:        "/args/0",
		`{"tool":"x","cwd":null}`:         "/cwd",
		`{"tool":"x","Tool":"x"}`:         "/Tool",
		`{"tool":"x","payload":{}}`:       "/payload",
		`{"type":"weather"}`:              "/type",
		`{"type":"stdin","data":"?"}`:     "/data",
		`{"type":"signal","name":"STOP"}`: "/name",
		`{"toolId":"x","executionId":"1","payload":{}}`:                                    "/executionId",
		`{"toolId":"x","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2"}`:              "/payload",
		`{"toolId":"x","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2","payload":[]}`: "/payload",
	} {
		c.send(frame)
		if message := c.refused(fault.InvalidEnvelope); !strings.HasPrefix(message, path+": ") {
			t.Errorf("%s: %s", frame, message)
		}
		c.send(`{"tool":"x","args":["still here"]}`)
		if r, _ := c.result(); string(r.Stdout) != "still here" {
			t.Errorf("after %s: %+v", frame, r)
		}
	}
}

func TestMalformedRequestIsAnsweredInItsForm(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	for request, answer := range map[string]string{
		`{"tool":1}`:               `{"exit_code":64,"stdout":`,
		`{"tool":1,"stream":true}`: `{"type":"result","exit_code":64,`,
		`{"toolId":"x","executionId":"7d444840-9dc0-41d1-b245-5ffdce74fad2","payload":1}`: `{"status":"error","error":{"code":"INVALID_ENVELOPE"`,
	} {
		c.send(request)
		frame, err := wire.ReadFrame(c.in)
		if err != nil || !strings.HasPrefix(string(frame), answer) {
			t.Errorf("%s: %s, %v", request, frame, err)
		}
	}
}

func TestRequestsAreAnsweredInOrder(t *testing.T) {
	s := start(t, Config{Handler: echo})
	c := dial(t, s)
	// Far more than may be queued, and some of them malformed.
	const n = 500
	go func() {
		for i := range n {
			frame := fmt.Sprintf(`{"tool":"x","args":["%d"]}`, i)
			if i%7 == 3 {
				frame = fmt.Sprintf(`{"tool":"x","no-%d":1}`, i)
			}
			if err := wire.WriteFrame(c, []byte(frame)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range n {
		r, _ := c.result()
		got := string(r.Stdout)
		if r.Err != nil {
			got = r.Err.Message
		}
		if want := fmt.Sprint(i); got != want && !strings.HasPrefix(got, "/no-"+want+":") {
			t.Fatalf("answer %d is %q", i, got)
		}
	}
}

// queued is how many requests of the server's one connection wait.
func queued(s *Server) (n int) {
	s.eachConn(func(c *conn) {
		c.queue.mu.Lock()
		defer c.queue.mu.Unlock()
		n = len(c.queue.calls)
	})
	return n
}

func TestQueueIsBounded(t *testing.T) {
	most := 0
	begin := make(chan struct{})
	var s *Server
	s = start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, _ wire.Streams) *wire.Result {
		<-begin
		most = max(most, queued(s))
		return &wire.Result{Ran: true}
	}})
	c := dial(t, s)
	const n = 200
	for range n {
		c.send(`{"tool":"x"}`)
	}
	// The first call waits until the queue is as long as it gets.
	for queued(s) < maxQueued {
		runtime.Gosched()
	}
	close(begin)
	for range n {
		c.result()
	}
	if most != maxQueued {
		t.Errorf("up to %d requests waited, want %d", most, maxQueued)
	}
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	begin := make(chan struct{})
	most := 0
	var s *Server
	s = start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, _ wire.Streams) *wire.Result {
		<-begin
		s.eachConn(func(c *conn) {
			c.queue.mu.Lock()
			defer c.queue.mu.Unlock()
			most = max(most, c.queue.bytesLocked())
		})
		return &wire.Result{Ran: true}
	}})
	c := dial(t, s)
	const n = 8
	long := make([]string, 2000)
	for i := range long {
		long[i] = strings.Repeat("x", 500)
	}
	frames, err := wire.EncodeRequest(&wire.Call{Tool: "x", Args: long, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range n {
			for _, f := range frames {
				if err := wire.WriteFrame(c, f); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	// Until no more is read, or all was.
	for stalled := false; !stalled; runtime.Gosched() {
		s.eachConn(func(c *conn) {
			c.queue.mu.Lock()
			defer c.queue.mu.Unlock()
			stalled = c.queue.waiting || len(c.queue.calls) == n
		})
	}
	close(begin)
	for range n {
		c.result()
	}
	<-sent
	if most < 1<<20 || most > maxQueuedBytes+1<<20+1<<17 {
		t.Errorf("up to %d bytes waited", most)
	}
}

func TestCallerLeaves(t *testing.T) {
	began, causes := make(chan struct{}), make(chan error)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		began <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return &wire.Result{}
	}})
	for name, leave := range map[string]func(*rawClient){
		"at once":                 func(*rawClient) {},
		"after a half close":      func(c *rawClient) { c.CloseWrite() },
		"after half a frame":      func(c *rawClient) { c.Write([]byte{0}) },
		"after a malformed frame": func(c *rawClient) { c.send(`{`) },
		"after a frame too large": func(c *rawClient) { c.Write([]byte{0xFF, 0, 0, 0}) },
		"asking far ahead": func(c *rawClient) {
			for range 5 * maxQueued {
				c.send(`{"tool":"y"}`)
			}
			for queued(s) < maxQueued {
				runtime.Gosched()
			}
		},
	} {
		c := dial(t, s)
		c.send(`{"tool":"x"}`)
		<-began
		leave(c)
		c.Close()
		var cause *fault.Error
		if err := <-causes; !errors.As(err, &cause) || cause.Code != fault.Aborted {
			t.Errorf("%s: the call ended with %v", name, err)
		}
		settle(func() bool { return s.Conns() == 0 })
	}
}

// TestHalfClose: a client that says that it has said all is not gone.
func TestHalfClose(t *testing.T) {
	halfClosed, gone := make(chan error), make(chan struct{})
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		if c.Tool == "cat" {
			// The end of the input is how this call sees the half close.
			io.Copy(io.Discard, s.Stdin())
			halfClosed <- ctx.Err()
			if c.Args != nil {
				<-ctx.Done()
				close(gone)
			}
		}
		return &wire.Result{Ran: true, Stdout: []byte("answer to " + c.Tool)}
	}})
	c := dial(t, s)
	c.send(`{"tool":"cat","stream":true}`, `{"tool":"next"}`)
	c.CloseWrite()
	if err := <-halfClosed; err != nil {
		t.Errorf("a half close ended the call: %v", err)
	}
	if r, out := c.result(); out != "answer to cat" {
		t.Errorf("got %q, %+v", out, r)
	}
	if r, _ := c.result(); string(r.Stdout) != "answer to next" {
		t.Errorf("got %+v", r)
	}
	c.ended()

	// A client that half closes, and later leaves, is gone then.
	c = dial(t, s)
	c.send(`{"tool":"cat","args":["wait"],"stream":true}`)
	c.CloseWrite()
	if err := <-halfClosed; err != nil {
		t.Errorf("a half close ended the call: %v", err)
	}
	c.Close()
	<-gone
}

func TestConnectionLimit(t *testing.T) {
	const limit, others = 1000, 15 // are kept from the uid that holds most
	begin := make(chan struct{})
	s := start(t, Config{MaxConns: limit + others, Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		<-begin
		return echo(ctx, c, Peer{}, s)
	}})
	clients := make([]*rawClient, limit)
	for i := range clients {
		clients[i] = dial(t, s)
		clients[i].send(fmt.Sprintf(`{"tool":"x","args":["%d"]}`, i))
	}
	for s.Conns() < limit {
		runtime.Gosched()
	}
	for range 3 * maxTurnedAway {
		c := dial(t, s)
		// The answer is there although the client wrote first.
		wire.WriteFrame(c, []byte(sized(wire.MaxFrame)))
		if message := c.refused(fault.Overloaded); !strings.Contains(message, "1015") {
			t.Errorf("turned away with %q", message)
		}
		c.Close()
	}
	// One that is turned away is listened to for a moment: it may not read before
	// it has said all.
	away := dial(t, s)
	away.refused(fault.Overloaded)
	for range 1000 {
		away.send(`{"tool":"x"}`)
	}
	away.Close()
	close(begin)
	for i, c := range clients {
		if r, _ := c.result(); string(r.Stdout) != fmt.Sprint(i) {
			t.Errorf("connection %d was answered with %+v", i, r)
		}
	}
	clients[0].Close()
	for s.Conns() == limit {
		runtime.Gosched()
	}
	c := dial(t, s)
	c.send(`{"tool":"x","args":["room"]}`)
	if r, _ := c.result(); string(r.Stdout) != "room" {
		t.Errorf("once there was room: %+v", r)
	}
	for _, c := range clients {
		c.Close()
	}
}

// pass makes every idle connection older, as if time had passed.
func pass(s *Server, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.queue.mu.Lock()
		c.queue.idle = c.queue.idle.Add(-d)
		c.queue.mu.Unlock()
	}
}

// Who is idle longest gives its place to a further connection, and who calls
// keeps it. What an evicted client asks next is answered, and not run.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const limit = 8
	begin, ran := make(chan struct{}), make(chan string, 100)
	s := start(t, Config{MaxConns: limit, Handler: func(ctx context.Context, c *wire.Call, p Peer, s wire.Streams) *wire.Result {
		ran <- c.Args[0]
		if c.Args[0] == "wait" {
			<-begin
		}
		return echo(ctx, c, p, s)
	}})
	call := func(c *rawClient, text string) {
		t.Helper()
		c.send(`{"tool":"x","args":["` + text + `"]}`)
		if r, _ := c.result(); string(r.Stdout) != text {
			t.Errorf("%s: %+v", text, r)
		}
		<-ran
	}
	// settle waits until only busy connections have calls: one is idle a moment after its
	// answer was read.
	settle := func(busy int) {
		for n := busy + 1; n > busy; runtime.Gosched() {
			n = 0
			s.mu.Lock()
			for c := range s.conns {
				if _, idle := c.queue.idleSince(); !idle {
					n++
				}
			}
			s.mu.Unlock()
		}
	}
	var clients []*rawClient
	for i := range limit {
		clients = append(clients, dial(t, s))
		call(clients[i], fmt.Sprint(i))
		settle(0)
	}
	clients[1].send(`{"tool":"x","args":["wait"]}`)
	<-ran
	call(clients[0], "again") // 2 is now idle longest, and 3 after it
	settle(1)
	// All of them have only just asked, and keep their places.
	early := dial(t, s)
	early.refused(fault.Overloaded)
	early.ended()
	for _, gone := range []int{2, 3} {
		pass(s, minIdle)
		call(dial(t, s), "new")
		if message := clients[gone].refused(fault.Overloaded); !strings.Contains(message, "connect again") {
			t.Errorf("%d was told %q", gone, message)
		}
		clients[gone].ended()
	}
	// What was written before the words were read was not run.
	pass(s, minIdle)
	call(dial(t, s), "new")
	wire.WriteFrame(clients[4], []byte(`{"tool":"x","args":["never"]}`))
	clients[4].refused(fault.Overloaded)
	clients[4].ended()
	close(begin)
	if r, _ := clients[1].result(); string(r.Stdout) != "wait" {
		t.Errorf("the one that called: %+v", r)
	}
	call(clients[0], "still")
	call(clients[1], "still")
	if n := s.Conns(); n != limit {
		t.Errorf("%d connections", n)
	}
	if len(ran) > 0 {
		t.Errorf("%q ran", <-ran)
	}
}

// One who keeps opening connections and reads nothing holds no more of them.
func TestEvictionIsBounded(t *testing.T) {
	const limit = 4
	s := start(t, Config{MaxConns: limit, Handler: echo})
	for range 4 * maxTurnedAway {
		pass(s, minIdle)
		dial(t, s)
	}
	// Who asks is served as soon as the last one that was opened has been idle.
	for tries := 0; ; tries++ {
		pass(s, minIdle)
		c := dial(t, s)
		c.send(`{"tool":"x","args":["served"]}`)
		if r, _ := c.result(); string(r.Stdout) == "served" {
			break
		} else if tries == 100 || r.Err.Code != fault.Overloaded {
			t.Fatalf("%+v", r)
		}
	}
	if n := s.Conns(); n > limit {
		t.Errorf("%d connections", n)
	}
	if n := len(s.turnedAway); n > maxTurnedAway {
		t.Errorf("%d are listened to", n)
	}
}

// unserved returns a connection that no goroutine reads or serves.
func unserved(t *testing.T, nc *net.UnixConn) *conn {
	c := &conn{nc: nc}
	c.queue.init(nc)
	c.reader = reader{nc: nc, ctx: t.Context(), q: &c.queue, out: &c.out}
	return c
}

// leavesPlaces fills a server of limit connections as uid 1 and then enters as 2 and 3:
// some places are not for the uid that holds most.
func leavesPlaces(t *testing.T, limit int, enter func(uid uint32) bool) {
	t.Helper()
	n := 0
	for enter(1) {
		n++
	}
	if n != limit-limit/64 {
		t.Errorf("one uid holds %d of %d", n, limit)
	}
	if !enter(2) || !enter(3) {
		t.Error("there is no place for others")
	}
	if enter(1) {
		t.Error("who holds most takes another's place")
	}
}

// Some places are not for the uid that holds most.
func TestPlacesOfOthers(t *testing.T) {
	const limit = 128
	s := &Server{config: Config{MaxConns: limit}, conns: map[*conn]struct{}{}, held: map[uint32]int{}, turnedAway: make(chan struct{}, maxTurnedAway)}
	enter := func(uid uint32, busy bool) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.roomLocked(uid) {
			return false
		}
		c := unserved(t, unixConn(t))
		c.peer.UID, c.turnedAway, c.queue.idle = uid, s.turnedAway, time.Time{} // idle longest
		if busy {
			c.queue.calls = []*call{{}}
		}
		s.conns[c] = struct{}{}
		s.held[uid]++
		return true
	}
	leavesPlaces(t, limit, func(uid uint32) bool { return enter(uid, uid != 2) })
	if !enter(4, true) || enter(4, true) {
		t.Error("an idle one makes room for one other, once")
	}
}

func unixConn(t *testing.T) *net.UnixConn {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc.(*net.UnixConn)
}

func TestPeer(t *testing.T) {
	peers := make(chan Peer, 1)
	s := start(t, Config{Handler: func(_ context.Context, _ *wire.Call, p Peer, _ wire.Streams) *wire.Result {
		peers <- p
		return &wire.Result{Ran: true}
	}})
	dial(t, s).send(`{"tool":"x"}`)
	got := <-peers
	if got.Focus == nil {
		t.Error("a peer has no place for its focus")
	}
	if got.UID != uint32(os.Getuid()) || got.GID != uint32(os.Getgid()) || got.PID != os.Getpid() || got.Ended() {
		t.Errorf("got %+v", got)
	}
}

func TestExecutionID(t *testing.T) {
	s := start(t, Config{Handler: func(_ context.Context, c *wire.Call, _ Peer, _ wire.Streams) *wire.Result {
		return &wire.Result{Ran: true, Stdout: []byte(c.ExecutionID)}
	}})
	c := dial(t, s)
	seen := make(map[string]bool)
	for range 100 {
		c.send(`{"tool":"x"}`)
		r, _ := c.result()
		id := string(r.Stdout)
		if id != r.ExecutionID || seen[id] {
			t.Fatalf("the handler had %q, the caller was told %q", id, r.ExecutionID)
		}
		seen[id] = true
		if _, err := wire.Parse([]byte(`{"toolId":"x","executionId":"` + id + `","payload":{}}`)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHandlerFails(t *testing.T) {
	var log bytes.Buffer
	s := start(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Handler: func(_ context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		switch c.Tool {
		case "panic":
			panic("of the test")
		case "nil":
			return nil
		}
		return &wire.Result{Ran: true}
	}})
	c := dial(t, s)
	for _, tool := range []string{"panic", "nil", "panic"} {
		c.send(`{"tool":"`+tool+`"}`, `{"tool":"x"}`)
		if message := c.refused(fault.Internal); strings.Contains(message, "of the test") {
			t.Errorf("%s: the caller was told %q", tool, message)
		}
		if r, _ := c.result(); r.Err != nil {
			t.Errorf("after %s: %v", tool, r.Err)
		}
	}
	if !strings.Contains(log.String(), "of the test") || !strings.Contains(log.String(), "server_test.go") {
		t.Errorf("the log does not say what happened: %s", log.String())
	}
}

func TestSignals(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		first, second := <-s.Signals, <-s.Signals
		return &wire.Result{Ran: true, Stdout: []byte(fmt.Sprint(first, second))}
	}})
	for _, stream := range []string{"true", "false"} {
		c := dial(t, s)
		c.send(`{"tool":"x","stream":`+stream+`}`, `{"type":"signal","name":"INT"}`, `{"type":"signal","name":"TERM"}`)
		r, out := c.result()
		if got, want := out+string(r.Stdout), fmt.Sprint(os.Interrupt, syscall.SIGTERM); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestSignalsThatNobodyTakes do not keep the reader waiting.
func TestSignalsThatNobodyTakes(t *testing.T) {
	c := unserved(t, nil)
	cl := newCall(t.Context(), &c.out, &wire.Call{Tool: "x"}, 0)
	c.queue.push(cl)
	for range 100 {
		c.reader.take([]byte(`{"type":"signal","name":"INT"}`))
	}
	if len(cl.signals) != cap(cl.signals) {
		t.Errorf("%d of 100 signals wait, want %d", len(cl.signals), cap(cl.signals))
	}
}

func TestFramesAfterTheResult(t *testing.T) {
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		select {
		case sig := <-s.Signals:
			return &wire.Result{Err: fault.Errorf(fault.Internal, "a late signal came: %v", sig)}
		default:
			return &wire.Result{Ran: true}
		}
	}})
	c := dial(t, s)
	for range 10 {
		c.send(`{"tool":"x","stream":true}`)
		if r, _ := c.result(); r.Err != nil {
			t.Fatal(r.Err)
		}
		c.send(stdin("late"), `{"type":"stdin","eof":true}`, `{"type":"signal","name":"INT"}`, `{"type":"args","args":["late"]}`)
	}
}

func TestWriteAfterTheResult(t *testing.T) {
	streams := make(chan wire.Streams, 1)
	s := start(t, Config{Handler: func(ctx context.Context, c *wire.Call, _ Peer, s wire.Streams) *wire.Result {
		streams <- s
		return &wire.Result{Ran: true}
	}})
	c := dial(t, s)
	c.send(`{"tool":"x","stream":true}`)
	c.result()
	late := <-streams
	if _, err := late.Stdout.Write([]byte("late")); err == nil {
		t.Error("writing to a call that is over did not fail")
	}
	if err := late.Progress(json.RawMessage(`1`)); err == nil {
		t.Error("progress of a call that is over did not fail")
	}
	if _, err := late.Stdin().Read(make([]byte, 1)); err == nil {
		t.Error("reading the input of a call that is over did not fail")
	}
	c.send(`{"tool":"x"}`)
	if p := c.receive(); p.Type != wire.TypeResult {
		t.Errorf("a late frame was sent: %+v", p)
	}
}

// TestFrameWhileTheResultIsWritten: a frame that comes between a result and what
// follows it is not the finished call's.
func TestFrameWhileTheResultIsWritten(t *testing.T) {
	c := unserved(t, nil)
	finished := newCall(t.Context(), &c.out, &wire.Call{Tool: "x", Stream: true}, 0)
	finished.answered = true
	c.queue.push(finished)
	c.reader.take([]byte(`{"type":"signal","name":"INT"}`))
	c.reader.take([]byte(stdin("late")))
	if len(c.queue.calls) != 1 || len(finished.signals) > 0 || finished.input.buf.Len() > 0 {
		t.Errorf("a late frame was taken: %d in the queue, %d signals", len(c.queue.calls), len(finished.signals))
	}
	c.reader.take([]byte(`{"type":"stdin","data":"?"}`))
	if finished.ctx.Err() != nil || len(c.queue.calls) != 2 || c.queue.calls[1].refused == nil {
		t.Errorf("a malformed frame has no answer of its own: %d in the queue, %v", len(c.queue.calls), finished.ctx.Err())
	}
}
