package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// site is a daemon that serves MCP over HTTP, and who makes tokens for it.
type site struct {
	*hosttest.Daemon
	*hosttest.Issuer
	url string
}

var atAddress = regexp.MustCompile(`"msg":"ready".*"mcp":"([^"]+)"`)

// web starts a daemon with these tools that serves MCP over HTTP.
func web(t *testing.T, c config.Config, tools map[string]object, more ...func(dir string)) *site {
	t.Helper()
	issuer := hosttest.NewIssuer(t)
	c.MCP, c.Identity.JWKS = "127.0.0.1:0", issuer.JWKS
	d, _ := daemon(t, c, tools, more...)
	d.AwaitLog(t, 0, `"msg":"ready"`)
	at := atAddress.FindStringSubmatch(d.Logs())
	if at == nil {
		t.Fatalf("the log has no address: %s", d.Logs())
	}
	return &site{Daemon: d, Issuer: issuer, url: "http://" + at[1] + "/mcp"}
}

// bearer adds a token to requests.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// oldest and newest are versions of the protocol with sessions and without.
const oldest, newest = "2025-06-18", "2026-07-28"

// connect connects the SDK's own client with a token, in a version of the protocol.
func (s *site) connect(t testing.TB, token, version string, o *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).Connect(bound(t),
		&sdk.StreamableClientTransport{Endpoint: s.url, HTTPClient: &http.Client{Transport: bearer{token, transport}}},
		&sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// eachVersion runs a test in a version with sessions and one without.
func eachVersion(t *testing.T, test func(t *testing.T, version string)) {
	for _, version := range []string{oldest, newest} {
		t.Run(version, func(t *testing.T) { test(t, version) })
	}
}

func TestWeb(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	token := s.Token(t, object{"sub": "alice"})
	eachVersion(t, func(t *testing.T, version string) {
		c := s.connect(t, token, version, nil)
		if got := names(t, c); !slices.Equal(got, []string{"echo"}) {
			t.Errorf("tools: %q", got)
		}
		if r := invoke(t, c, "echo", object{"args": []string{"hello"}, "cwd": s.Root}); r.IsError || text(r) != "hello\n" {
			t.Errorf("echo: %q, error %v", text(r), r.IsError)
		}
		r, err := c.CallTool(bound(t), &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/token": token}, Name: "echo", Arguments: object{"args": []string{}}})
		if err != nil || !r.IsError || !strings.Contains(text(r), "INVALID_ENVELOPE") {
			t.Errorf("another token in a request: %v, %v", r, err)
		}
	})
}

// ask sends one request as it is.
func (s *site) ask(t testing.TB, method, path, token, body string, header map[string]string) (int, http.Header, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(bound(t), method, strings.TrimSuffix(s.url, "/mcp")+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		if k == "Host" {
			q.Host = v
			continue
		}
		q.Header.Set(k, v)
	}
	res, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// A request that is not of who may call is refused before anything is made of it.
func TestWebAdmission(t *testing.T) {
	const audience = "https://tools.example/mcp"
	s := web(t, config.Config{Identity: config.IdentityConfig{Audience: audience, Issuer: "https://issuer.example"}}, map[string]object{"echo": {"binary": "echo"}})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	good := s.Token(t, object{"sub": "alice", "aud": audience, "iss": "https://issuer.example"})
	other := s.Token(t, object{"sub": "alice", "aud": "https://other.example/mcp", "iss": "https://issuer.example"})
	none := s.Token(t, object{"sub": "alice", "iss": "https://issuer.example"})
	late := s.Token(t, object{"sub": "alice", "aud": audience, "iss": "https://issuer.example", "exp": 1})
	port := s.url[strings.LastIndex(s.url, ":")+1 : strings.LastIndex(s.url, "/")]
	for name, tt := range map[string]struct {
		token, body string
		header      map[string]string
		want        int
	}{
		"as it should be":                   {good, hello, nil, 200},
		"no token":                          {"", hello, nil, 401},
		"a token that is none":              {"x.y.z", hello, nil, 401},
		"a token for another server":        {other, hello, nil, 401},
		"a token for any server":            {none, hello, nil, 401},
		"a token that expired":              {late, hello, nil, 401},
		"a name that was bound anew":        {good, hello, map[string]string{"Host": "evil.example:" + port}, 403},
		"the name that clients reach":       {good, hello, map[string]string{"Host": "tools.example"}, 200},
		"localhost":                         {good, hello, map[string]string{"Host": "LOCALHOST:" + port}, 200},
		"a page of another site":            {good, hello, map[string]string{"Origin": "https://evil.example"}, 403},
		"a page of no site":                 {good, hello, map[string]string{"Origin": "null"}, 403},
		"a page of another port":            {good, hello, map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		"a page of this server":             {good, hello, map[string]string{"Origin": "http://127.0.0.1:" + port}, 200},
		"a browser that says only so":       {good, hello, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		"a batch":                           {good, "[" + hello + "]", nil, 400},
		"too much":                          {good, strings.Repeat(" ", 2<<20), nil, 413},
		"no JSON":                           {good, "hello", nil, 400},
		"a member that is there twice":      {good, strings.Replace(hello, `"id":1`, `"id":1,"id":2`, 1), nil, 400},
		"a client that is called too long":  {good, strings.Replace(hello, `"raw"`, `"`+strings.Repeat("x", 64<<10)+`"`, 1), nil, 400},
		"a session that there is not":       {good, hello, map[string]string{"Mcp-Session-Id": "guessed"}, 404},
		"a version that there is not":       {good, hello, map[string]string{"Mcp-Protocol-Version": "1999-01-01"}, 400},
		"a version that is not yet":         {good, hello, map[string]string{"Mcp-Protocol-Version": "2999-01-01"}, 400},
		"no _meta where the version has it": {good, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, map[string]string{"Mcp-Protocol-Version": newest}, 400},
	} {
		status, header, body := s.ask(t, "POST", "/mcp", tt.token, tt.body, tt.header)
		if status != tt.want {
			t.Errorf("%s: %d, want %d: %s", name, status, tt.want, body)
		}
		if strings.HasPrefix(header.Get("Content-Type"), "application/json") && !json.Valid([]byte(body)) || name == "a batch" && !strings.Contains(body, "batches are not taken") {
			t.Errorf("%s: answered %s", name, body)
		}
		if tt.want == 401 && !strings.Contains(header.Get("WWW-Authenticate"), `resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: WWW-Authenticate is %q", name, header.Get("WWW-Authenticate"))
		}
	}
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		status, _, body := s.ask(t, "GET", path, "", "", nil)
		var said struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
		}
		if err := json.Unmarshal([]byte(body), &said); status != 200 || err != nil || said.Resource != audience || !slices.Equal(said.Servers, []string{"https://issuer.example"}) {
			t.Errorf("%s: %d, %s", path, status, body)
		}
	}
	if status, _, _ := s.ask(t, "GET", "/", good, "", nil); status != 404 {
		t.Errorf("another path: %d", status)
	}
}

// A session of an older version is its identity's, whoever has its id.
func TestWebSessionOfAnother(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	alice, bob := s.Token(t, object{"sub": "alice"}), s.Token(t, object{"sub": "bob"})
	_, header, _ := s.ask(t, "POST", "/mcp", alice, hello, nil)
	id := header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("no session")
	}
	in := map[string]string{"Mcp-Session-Id": id, "Mcp-Protocol-Version": oldest}
	s.ask(t, "POST", "/mcp", alice, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, in)
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	for _, method := range []string{"POST", "GET", "DELETE"} {
		if status, _, body := s.ask(t, method, "/mcp", bob, list, in); status != 403 && status != 404 {
			t.Errorf("%s in a session of another: %d %s", method, status, body)
		}
	}
	// A newer token of the same identity is as good.
	again := s.Token(t, object{"sub": "alice", "jti": "2"})
	if status, _, body := s.ask(t, "POST", "/mcp", again, list, in); status != 200 || !strings.Contains(body, `"echo"`) || !strings.Contains(body, `"cacheScope":"private"`) {
		t.Errorf("with another token of the identity: %d %s", status, body)
	}
}

// A stream of a session is resumed by its identity alone: another one gets nothing of it,
// in that session or in its own, whatever event it names.
func TestWebResume(t *testing.T) {
	const resumable = "2025-11-25"
	s := web(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	open := func(name string) (token string, in map[string]string) {
		token = s.Token(t, object{"sub": name})
		_, header, _ := s.ask(t, "POST", "/mcp", token, strings.Replace(hello, oldest, resumable, 1), nil)
		in = map[string]string{"Mcp-Session-Id": header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version": resumable}
		s.ask(t, "POST", "/mcp", token, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, in)
		return token, in
	}
	alice, hers := open("alice")
	bob, his := open("bob")
	_, _, body := s.ask(t, "POST", "/mcp", alice, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"args":["secret"],"cwd":"`+s.Root+`"}}}`, hers)
	first, _, _ := strings.Cut(body[strings.Index(body, "id: ")+4:], "\n")
	if !strings.Contains(body, "secret") || first == "" {
		t.Fatalf("the call is answered %q", body)
	}
	resume := func(token string, in map[string]string, event string) (int, string) {
		header := map[string]string{"Last-Event-ID": event}
		for k, v := range in {
			header[k] = v
		}
		status, _, body := s.ask(t, "GET", "/mcp", token, "", header)
		return status, body
	}
	if status, body := resume(alice, hers, first); status != 200 || !strings.Contains(body, "secret") {
		t.Errorf("the rest of the stream: %d %q", status, body)
	}
	for _, event := range []string{first, strings.TrimRight(first, "0123456789") + "0", "guessed_0"} {
		for what, in := range map[string]map[string]string{"its session": hers, "another one": his} {
			if status, body := resume(bob, in, event); status/100 != 4 || strings.Contains(body, "secret") {
				t.Errorf("bob, in %s, after %q: %d %q", what, event, status, body)
			}
		}
	}
	for _, event := range []string{"", "_", "_-1", "_99999999999999999999", first + "x", strings.Repeat("9", 10_000) + "_0"} {
		if status, body := resume(alice, hers, event); status/100 != 4 {
			t.Errorf("after %.20q: %d %.100q", event, status, body)
		}
	}
}

// surface has a module that brings tools for each identity.
func surface(t *testing.T) func(dir string) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `"half of it"`) }))
	t.Cleanup(upstream.Close)
	return func(dir string) {
		hosttest.WriteTool(t, dir, "source", object{
			"config": object{"url": upstream.URL}, "identity": object{"claims": []string{"user"}},
			"capabilities": object{"http": object{"hosts": []string{"127.0.0.1"}, "methods": []string{"*"}}},
		}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
	}
}

func TestWebIdentities(t *testing.T) {
	s := web(t, config.Config{}, nil, surface(t))
	eachVersion(t, func(t *testing.T, version string) {
		var clients []*sdk.ClientSession
		for _, name := range []string{"alice", "bob"} {
			clients = append(clients, s.connect(t, s.Token(t, object{"sub": name, "user": name}), version, nil))
		}
		for range 2 {
			for i, name := range []string{"alice", "bob"} {
				if got, want := names(t, clients[i]), []string{"change", "look", "user_" + name}; !slices.Equal(got, want) {
					t.Errorf("%s sees %q, want %q", name, got, want)
				}
			}
		}
		if r := invoke(t, clients[1], "user_alice", object{}); !r.IsError || !strings.Contains(text(r), "UNKNOWN_TOOL") {
			t.Errorf("bob calls what is alice's: %q", text(r))
		}
	})
}

func TestWebListChanged(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"true": {"binary": "true"}})
	eachVersion(t, func(t *testing.T, version string) {
		changed := make(chan struct{}, 16)
		c := s.connect(t, s.Token(t, object{"sub": "alice"}), version, &sdk.ClientOptions{
			ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
		})
		names(t, c)
		name := "new-" + version
		s.Tool(t, name, object{"binary": "false"}, nil)
		for {
			select {
			case <-changed:
			case <-bound(t).Done():
				t.Fatal("nothing was told of a new tool")
			}
			if slices.Contains(names(t, c), name) {
				break
			}
		}
	})
}

// A call ends when its client leaves, where the protocol says so, or cancels it.
func TestWebCancel(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"dd": {"binary": "dd"}})
	eachVersion(t, func(t *testing.T, version string) {
		c := s.connect(t, s.Token(t, object{"sub": "alice"}), version, nil)
		fifo := gate(t, s.Daemon)
		ctx, cancel := context.WithCancel(bound(t))
		over := make(chan error, 1)
		go func() {
			_, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "dd", Arguments: object{"args": []string{"if=" + fifo, "of=/dev/null", "status=none"}, "cwd": s.Root}})
			over <- err
		}()
		open := awaitReader(t, fifo)
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled call: %v", err)
		}
		awaitEnd(t, open)
	})
}

// A mutating call with a key goes on when its stream is closed, once.
func TestWebKeyOutlivesStream(t *testing.T) {
	s := web(t, config.Config{Reliability: "all"}, map[string]object{"dd": {"binary": "dd", "mutating": true}})
	token := s.Token(t, object{"sub": "alice"})
	fifo := gate(t, s.Daemon)
	args := object{"args": []string{"if=" + fifo, "of=" + filepath.Join(s.Root, "out"), "status=none"}}
	call := func(ctx context.Context) (*sdk.CallToolResult, error) {
		return s.connect(t, token, newest, nil).CallTool(ctx, &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/turn": "t"}, Name: "dd", Arguments: args})
	}
	ctx, cut := context.WithCancel(bound(t))
	over := make(chan error, 1)
	go func() { _, err := call(ctx); over <- err }()
	open := awaitReader(t, fifo)
	// One without a key ends: the daemon has noticed that they were cut.
	other := filepath.Join(s.Root, "other")
	if err := syscall.Mkfifo(other, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := s.connect(t, token, newest, nil).CallTool(ctx, &sdk.CallToolParams{Name: "dd", Arguments: object{"args": []string{"if=" + other, "of=/dev/null", "status=none"}}})
		over <- err
	}()
	without := awaitReader(t, other)
	logged := len(s.Logs())
	cut()
	for range 2 {
		if err := <-over; err == nil {
			t.Error("a stream that was cut had an answer")
		}
	}
	awaitEnd(t, without)
	again := make(chan *sdk.CallToolResult, 1)
	go func() {
		r, err := call(bound(t))
		if err != nil {
			t.Error(err)
		}
		again <- r
	}()
	if _, err := open.WriteString("written"); err != nil {
		t.Fatal(err)
	}
	open.Close()
	if r := <-again; r == nil || r.IsError || r.Meta["io.toold/fromCache"] != true {
		t.Errorf("the same call in the same turn: %+v; %s", r, s.Logs()[logged:])
	}
	if b, err := os.ReadFile(filepath.Join(s.Root, "out")); err != nil || string(b) != "written" {
		t.Errorf("the call wrote %q, %v", b, err)
	}
}

// Clients that vanish leave nothing behind, in whatever version they spoke.
func TestWebManyClients(t *testing.T) {
	s := web(t, config.Config{}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "echo", object{"capabilities": object{"exec": []string{"/bin/echo"}, "state": 1024, "http": object{"hosts": []string{"nowhere.example"}}}}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/handler")})
	})
	token := s.Token(t, object{"sub": "alice"})
	invoke(t, s.connect(t, token, newest, nil), "echo", object{"args": []string{}, "cwd": s.Root})
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			version := []string{oldest, newest}[i%2]
			ctx, cancel := context.WithCancel(bound(t))
			defer cancel()
			c, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx,
				&sdk.StreamableClientTransport{Endpoint: s.url, HTTPClient: &http.Client{Transport: bearer{token, transport}}}, &sdk.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if i%3 == 0 { // leaves in the middle of its call
				go c.CallTool(ctx, &sdk.CallToolParams{Name: "echo", Arguments: object{"args": []string{"x"}}})
				return
			}
			if _, err := c.CallTool(ctx, &sdk.CallToolParams{Name: "echo", Arguments: object{"args": []string{"x"}, "cwd": s.Root}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	nothingLeft(t, goroutines, files)
}

// A connection on which nothing useful comes does not keep others from being served.
func TestWebStops(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"true": {"binary": "true"}})
	token := s.Token(t, object{"sub": "alice"})
	for _, version := range []string{oldest, newest} {
		names(t, s.connect(t, token, version, nil))
	}
	nc, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s.Stop(t)
}

// A tool that says what its data is answers that, as structured content, or fails; its
// icons and its schema are listed.
func TestOutputSchema(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"true": {"binary": "true", "annotations": object{"title": "Always true"}}}, showing(t, object{}))
	token := s.Token(t, object{"sub": "alice"})
	eachVersion(t, func(t *testing.T, version string) {
		c := s.connect(t, token, version, nil)
		list, err := c.ListTools(bound(t), &sdk.ListToolsParams{Meta: sdk.Meta{"io.toold/query": "always"}})
		if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "true" || list.Tools[0].Title != "Always true" {
			t.Fatalf("listed: %+v, %v", list, err)
		}
		list, err = c.ListTools(bound(t), &sdk.ListToolsParams{Meta: sdk.Meta{"io.toold/query": "FORE cast"}})
		if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "forecast" || list.Tools[0].OutputSchema == nil || len(list.Tools[0].Icons) != 1 {
			t.Fatalf("listed: %+v, %v", list, err)
		}
		for _, how := range []string{"right", "said"} {
			r := invoke(t, c, "forecast", object{"how": how})
			if got, _ := r.StructuredContent.(map[string]any); r.IsError || got["degrees"] != 21.5 {
				t.Errorf("%s: %q, %v", how, text(r), r.StructuredContent)
			}
		}
		for _, how := range []string{"wrong", "nothing"} {
			r := invoke(t, c, "forecast", object{"how": how})
			if !r.IsError || r.StructuredContent != nil || !strings.Contains(text(r), "output schema") || strings.Contains(text(r), "warm\"") {
				t.Errorf("%s: %q, %v", how, text(r), r.StructuredContent)
			}
		}
		if r := invoke(t, c, "forecast", object{"how": "failed"}); !r.IsError || !strings.Contains(text(r), "exit code 3") {
			t.Errorf("a failure: %q", text(r))
		}
		// A client that is not to be flooded asks for some, and by pages.
		var seen []string
		for p := (&sdk.ListToolsParams{Meta: sdk.Meta{"io.toold/limit": 7}}); ; {
			list, err := c.ListTools(bound(t), p)
			if err != nil || len(list.Tools) > 7 {
				t.Fatalf("a page has %d tools, %v", len(list.Tools), err)
			}
			for _, tool := range list.Tools {
				seen = append(seen, tool.Name)
			}
			if p.Cursor = list.NextCursor; p.Cursor == "" {
				break
			}
		}
		if all := names(t, c); seen[0] != "tools_search" || !slices.Equal(seen[1:], all) {
			t.Errorf("the pages have %q, and the list %q", seen, all)
		}
		r := invoke(t, c, "tools_search", object{"query": "FORE cast"})
		found, err := json.Marshal(r.StructuredContent)
		if err != nil || r.IsError || !strings.Contains(string(found), `"name":"forecast"`) || !strings.Contains(string(found), `"degrees"`) || strings.Contains(string(found), "greet") {
			t.Errorf("a search finds %s, %v", found, err)
		}
	})
	task, _ := s.modern(t, token, "tools/call", `"name":"forecast","arguments":{"how":"later"}`, "")
	if got := s.settled(t, token, task.ID); got.Result == nil || got.Result.Structured["degrees"] != 21.5 {
		t.Errorf("of a task: %+v", got)
	}
}
