package mcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/mcp"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

type object = map[string]any

// daemon starts a daemon with these tools and a socket for MCP, and returns the
// socket's path.
func daemon(t *testing.T, c config.Config, tools map[string]object, more ...func(dir string)) (*hosttest.Daemon, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "mcp.sock")
	c.Tools = filepath.Join(dir, "tools.d")
	if err := os.Mkdir(c.Tools, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, def := range tools {
		hosttest.WriteTool(t, c.Tools, name, def, nil)
	}
	for _, write := range more {
		write(c.Tools)
	}
	c.Sockets = append(c.Sockets, config.Socket{Path: path, Protocol: config.ProtocolMCP})
	return hosttest.Start(t, c), path
}

// bound ends what takes longer than any test should.
func bound(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connect connects the SDK's own client to the socket, as who.
func connect(t testing.TB, path string, who mcp.Caller, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(bound(t), dial(t, path, who), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// dial connects to the socket, and says who calls.
func dial(t testing.TB, path string, who mcp.Caller) *sdk.IOTransport {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	hello, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": mcp.MethodCaller, "params": who})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Write(append(hello, '\n')); err != nil {
		t.Fatal(err)
	}
	return &sdk.IOTransport{Reader: nc, Writer: nc}
}

func names(t testing.TB, s *sdk.ClientSession) []string {
	t.Helper()
	var list []string
	for tool, err := range s.Tools(bound(t), nil) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, tool.Name)
	}
	return list
}

// text is all text of a result.
func text(r *sdk.CallToolResult) string {
	var b strings.Builder
	for _, c := range r.Content {
		b.WriteString(c.(*sdk.TextContent).Text)
	}
	return b.String()
}

func invoke(t testing.TB, s *sdk.ClientSession, tool string, args any) *sdk.CallToolResult {
	t.Helper()
	r, err := s.CallTool(bound(t), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestListAndCall(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{
		"echo":  {"binary": "echo", "description": "says it again"},
		"false": {"binary": "false"},
		"cat": {"binary": "cat", "schema": object{
			"type": "object", "required": []string{"args"}, "additionalProperties": false,
			"properties": object{"args": object{"type": "array", "items": object{"type": "string"}, "maxItems": 1}},
		}},
	})
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	if got, want := names(t, s), []string{"cat", "echo", "false"}; !slices.Equal(got, want) {
		t.Fatalf("tools: %q, want %q", got, want)
	}
	if r := invoke(t, s, "echo", object{"args": []string{"hello", "you"}}); r.IsError || text(r) != "hello you\n" {
		t.Errorf("echo: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "false", object{"args": []string{}}); !r.IsError || !strings.Contains(text(r), "exit code 1") {
		t.Errorf("false: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "cat", object{"args": []string{"a", "b"}}); !r.IsError || !strings.Contains(text(r), "INVALID_PAYLOAD") {
		t.Errorf("a payload against the schema: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "nothere", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("no such tool: %q, error %v", text(r), r.IsError)
	}
	if r := invoke(t, s, "tools.list", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("an operation that is no tool: %q, error %v", text(r), r.IsError)
	}
}

func TestDenial(t *testing.T) {
	d, path := daemon(t, config.Config{}, nil)
	d.Tool(t, "printf", object{"binary": "/usr/bin/printf"}, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	r := invoke(t, s, "printf", object{"args": []string{"deny"}})
	if !r.IsError || !strings.Contains(text(r), "do not ask") {
		t.Errorf("a denial: %q, error %v", text(r), r.IsError)
	}
	said, _ := r.Meta["io.toold/error"].(map[string]any)
	if said["code"] != "DENIED" || said["rule"] != "test.deny" || said["retriable"] != false {
		t.Errorf("a denial for programs: %v", said)
	}
	if r := invoke(t, s, "printf", object{"args": []string{"%s", "yes"}}); r.IsError || text(r) != "yes" {
		t.Errorf("what is allowed: %q, error %v", text(r), r.IsError)
	}
}

// gate is a FIFO that a call reads: opening it waits until the call has begun.
func gate(t testing.TB, d *hosttest.Daemon) string {
	t.Helper()
	path := filepath.Join(d.Root, "gate-"+strings.ReplaceAll(t.Name(), "/", "-"))
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// awaitReader waits until a call reads the gate.
func awaitReader(t testing.TB, gate string) *os.File {
	t.Helper()
	f, err := os.OpenFile(gate, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// awaitEnd waits until nothing reads the gate any more.
func awaitEnd(t testing.TB, gate *os.File) {
	t.Helper()
	until(t, "the process has ended", func() bool {
		_, err := gate.Write([]byte("x"))
		return errors.Is(err, syscall.EPIPE)
	})
}

func until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestCancel(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"dd": {"binary": "dd"}})
	fifo := gate(t, d)
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	ctx, cancel := context.WithCancel(bound(t))
	over := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "dd", Arguments: object{"args": []string{"if=" + fifo, "of=/dev/null", "status=none"}}})
		over <- err
	}()
	open := awaitReader(t, fifo)
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	awaitEnd(t, open)
	if got := names(t, s); !slices.Equal(got, []string{"dd"}) {
		t.Errorf("the connection lives on, and lists %q", got)
	}
}

// A client that goes takes its calls with it, and leaves nothing behind.
func TestVanish(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"dd": {"binary": "dd"}, "true": {"binary": "true"}})
	fifo := gate(t, d)
	invoke(t, connect(t, path, mcp.Caller{Cwd: d.Root}, nil), "true", object{"args": []string{}})
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 2*kept + 1 {
		nc := begin(t, path, d.Root, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"dd","arguments":{"args":["if=`+fifo+`","of=/dev/null","status=none"]}}}`)
		open := awaitReader(t, fifo)
		nc.Close()
		awaitEnd(t, open)
		open.Close()
	}
	nothingLeft(t, goroutines, files)
}

// begin connects without the SDK, and sends messages after the handshake.
func begin(t testing.TB, path, cwd string, messages ...string) net.Conn {
	t.Helper()
	nc := dial(t, path, mcp.Caller{Cwd: cwd}).Writer.(net.Conn)
	messages = append([]string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
	}, messages...)
	for _, m := range messages {
		if _, err := nc.Write([]byte(m + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	return nc
}

// openFiles counts sockets: the engine keeps memory of modules in files.
func openFiles(t testing.TB) (n int) {
	t.Helper()
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/dev/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// kept is how many processes may have been started for binaries meanwhile: how many are
// there depends on the load. Each has a goroutine and two sockets. What each client of
// many would leave is more.
const kept = 8

// nothingLeft waits until no more is left than was there, but for processes. Those that
// a busy time had started are kept for 30 to 60 seconds.
func nothingLeft(t testing.TB, goroutines, files int) {
	t.Helper()
	goroutines, files = goroutines+kept, files+2*kept
	for end := time.Now().Add(100 * time.Second); runtime.NumGoroutine() > goroutines || openFiles(t) > files; runtime.Gosched() {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines where %d were, %d descriptors where %d were:\n%s", runtime.NumGoroutine(), goroutines, openFiles(t), files, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// A mutating call with a key goes on without its client, once, and its result is
// there for who asks again.
func TestKeyOutlivesConnection(t *testing.T) {
	d, path := daemon(t, config.Config{Reliability: "all"}, map[string]object{"dd": {"binary": "dd", "mutating": true}})
	fifo := gate(t, d)
	call := `"name":"dd","arguments":{"args":["if=` + fifo + `","of=` + filepath.Join(d.Root, "out") + `","status=none"]},"_meta":{"io.toold/idempotencyKey":"k"}`
	nc := begin(t, path, d.Root, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{`+call+`}}`)
	open := awaitReader(t, fifo)
	nc.Close()
	// The daemon has noticed once the connection has no place any more.
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	if _, err := open.WriteString("written"); err != nil {
		t.Fatal(err)
	}
	open.Close()
	r, err := s.CallTool(bound(t), &sdk.CallToolParams{
		Meta: sdk.Meta{"io.toold/idempotencyKey": "k"}, Name: "dd",
		Arguments: object{"args": []string{"if=" + fifo, "of=" + filepath.Join(d.Root, "out"), "status=none"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.IsError || r.Meta["io.toold/fromCache"] != true {
		t.Errorf("the same key again: %q, %v", text(r), r.Meta)
	}
	if b, err := os.ReadFile(filepath.Join(d.Root, "out")); err != nil || string(b) != "written" {
		t.Errorf("the call wrote %q, %v", b, err)
	}
}

// The module surface brings tools for each identity, and tells progress.
func TestIdentities(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `"half of it"`) }))
	t.Cleanup(site.Close)
	issuer := hosttest.NewIssuer(t)
	_, path := daemon(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS}}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "source", object{
			"config": object{"url": site.URL}, "identity": object{"claims": []string{"user"}},
			"capabilities": object{"http": object{"hosts": []string{"127.0.0.1"}, "methods": []string{"*"}}},
		}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
	})
	progress := make(chan string, 16)
	token := func(name string) string { return issuer.Token(t, object{"sub": name, "user": name}) }
	alice := connect(t, path, mcp.Caller{Token: token("alice")}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, q *sdk.ProgressNotificationClientRequest) { progress <- q.Params.Message },
	})
	bob := connect(t, path, mcp.Caller{Token: token("bob")}, nil)
	if got, want := names(t, alice), []string{"change", "look", "user_alice"}; !slices.Equal(got, want) {
		t.Errorf("alice sees %q, want %q", got, want)
	}
	if got, want := names(t, bob), []string{"change", "look", "user_bob"}; !slices.Equal(got, want) {
		t.Errorf("bob sees %q, want %q", got, want)
	}
	if r := invoke(t, bob, "user_alice", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("bob calls what is alice's: %q", text(r))
	}
	for tool, err := range alice.Tools(bound(t), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if want := tool.Name == "look"; tool.Annotations.ReadOnlyHint != want {
			t.Errorf("%s: the hint that it only reads is %v", tool.Name, !want)
		}
	}
	// A search finds what its caller's list has.
	for name, c := range map[string]*sdk.ClientSession{"alice": alice, "bob": bob} {
		if r := invoke(t, c, "tools_search", object{"query": "user"}); r.IsError || !strings.Contains(text(r), `"user_`+name+`"`) || strings.Count(text(r), `"user_`) != 1 {
			t.Errorf("%s finds %q", name, text(r))
		}
	}
	if r, err := bob.CallTool(bound(t), &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/token": "forged"}, Name: "tools_search", Arguments: object{"query": "user"}}); err != nil || !r.IsError || strings.Contains(text(r), "user_") {
		t.Errorf("a forged token finds %v, %v", r, err)
	}
	// A token of a request counts for that request.
	r, err := alice.CallTool(bound(t), &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/token": token("bob")}, Name: "user_alice"})
	if err != nil || !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
		t.Errorf("alice calls as bob: %v, %v", r, err)
	}
	if _, err := connect(t, path, mcp.Caller{}, nil).ListTools(bound(t), nil); err == nil || !strings.Contains(err.Error(), "UNAUTHENTICATED") {
		t.Errorf("without a token: %v", err)
	}
	p := &sdk.CallToolParams{Name: "change", Arguments: object{"Do": "leak", "Method": "GET", "Path": "/"}}
	p.SetProgressToken("p")
	if r, err = alice.CallTool(bound(t), p); err != nil || !r.IsError {
		t.Fatalf("a call that tells progress: %v, %v", r, err)
	}
	select {
	case got := <-progress:
		if got != "half of it" {
			t.Errorf("progress: %q", got)
		}
	case <-bound(t).Done():
		t.Error("no progress came")
	}
}

func TestListChanged(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"true": {"binary": "true"}})
	changed := make(chan struct{}, 16)
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, &sdk.ClientOptions{
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
	})
	names(t, s)
	d.Tool(t, "false", object{"binary": "false"}, nil)
	for want := []string{"false", "true"}; ; {
		select {
		case <-changed:
		case <-bound(t).Done():
			t.Fatal("nothing was told of a new tool")
		}
		if got := names(t, s); slices.Equal(got, want) {
			break
		}
	}
}

func TestTooLong(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	_, err := s.CallTool(bound(t), &sdk.CallToolParams{Name: "echo", Arguments: object{"args": []string{strings.Repeat("x", 10<<20)}}})
	if err == nil || !strings.Contains(err.Error(), "MESSAGE_TOO_LARGE") {
		t.Errorf("10 MiB: %v", err)
	}
	if r := invoke(t, s, "echo", object{"args": []string{"on"}}); text(r) != "on\n" {
		t.Errorf("after that: %q", text(r))
	}
}

func TestManyClients(t *testing.T) {
	// A module: how many processes are kept for binaries depends on the load.
	d, path := daemon(t, config.Config{}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "echo", object{"capabilities": object{"exec": []string{"/bin/echo"}, "state": 1024, "http": object{"hosts": []string{"nowhere.example"}}}}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/handler")})
	})
	invoke(t, connect(t, path, mcp.Caller{Cwd: d.Root}, nil), "echo", object{"args": []string{}})
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if i%2 == 0 { // leaves in the middle of its call
				begin(t, path, d.Root, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"args":["x"]}}}`).Close()
				return
			}
			s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(bound(t), dial(t, path, mcp.Caller{Cwd: d.Root}), nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			want := strconv.Itoa(i)
			r, err := s.CallTool(bound(t), &sdk.CallToolParams{Name: "echo", Arguments: object{"args": []string{want}}})
			if err != nil || !strings.HasPrefix(text(r), want) {
				t.Errorf("client %d: %v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	nothingLeft(t, goroutines, files)
}

func TestNotMCP(t *testing.T) {
	_, path := daemon(t, config.Config{}, nil)
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	in := bufio.NewReader(nc)
	for _, tt := range []struct{ send, want string }{
		{"\r\n \nno JSON", `"id":null,"error":{"code":-32700`},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "batches are not taken"},
		{strings.Repeat(`{"a":`, 100_000), `"id":null,"error":{"code":-32700`},
		{`{"jsonrpc":"2.0","id":5,"method":"ping","params":{"a":1,"a":2}}`, `"id":5,"error":{"code":-32700`},
		{`{"jsonrpc":"2.0","id":6,"method":"ping","params":{"_meta":{"x":"` + strings.Repeat("y", 64<<10) + `"}}}`, `MESSAGE_TOO_LARGE`},
		{`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, `"id":1,"error"`},
		{`{"jsonrpc":"2.0","id":2,"method":"ping"}`, `"id":2,"result":{}`},
		{`{"jsonrpc":"2.0","id":"seven","method":"ping","params":{"x":"` + strings.Repeat("y", 2<<20) + `"}}`, `"id":"seven","error":{"code":-32600`},
		{`{"jsonrpc":"2.0","method":"notifications/io.toold/caller","params":{"token":"late"}}`, "send it first"},
	} {
		if _, err := io.WriteString(nc, tt.send+"\n"); err != nil {
			t.Fatal(err)
		}
		line, err := in.ReadString('\n')
		if err != nil || !strings.Contains(line, tt.want) {
			t.Errorf("%.60s is answered %q, %v; want %q", tt.send, line, err, tt.want)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after a caller that came late: %v, want the end", err)
	}
	// It would call as whoever it is without the token.
	nc, err = net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, `{"jsonrpc":"2.0","method":"notifications/io.toold/caller","params":{"Token":"misspelled"}}`+"\n"+`{"jsonrpc":"2.0","id":1,"method":"ping"}`+"\n")
	nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	if all, err := io.ReadAll(nc); err != nil || !strings.Contains(string(all), "INVALID_ENVELOPE") || strings.Contains(string(all), "result") {
		t.Errorf("a caller that cannot be read: %q, %v; want an error and the end", all, err)
	}
}
