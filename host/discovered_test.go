package host_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

const canary = "canary-4af1-swordfish"

// counter is a daemon with the module surface, behind tokens.
type counter struct {
	*hosttest.Daemon
	issuer *hosttest.Issuer
	tools  string
	config M
	hosts  []string
}

// newCounter starts one. service, when not nil, is where the module may go.
func newCounter(t testing.TB, service *httptest.Server, values M, more ...func(*config.Config)) *counter {
	t.Helper()
	c := &counter{issuer: hosttest.NewIssuer(t), tools: filepath.Join(t.TempDir(), "tools.d"), config: M{}, hosts: []string{"nowhere.test"}}
	if err := os.Mkdir(c.tools, 0o755); err != nil {
		t.Fatal(err)
	}
	if service != nil { // that one, and where it may lead
		c.config["url"], c.hosts = service.URL, []string{"127.0.0.1"}
	}
	maps.Copy(c.config, values)
	c.install(t)
	hc := config.Config{Tools: c.tools, LogLevel: "debug", Identity: config.IdentityConfig{JWKS: c.issuer.JWKS}}
	for _, m := range more {
		m(&hc)
	}
	c.Daemon = hosttest.Start(t, hc)
	return c
}

func (c *counter) install(t testing.TB) {
	t.Helper()
	hosttest.WriteTool(t, c.tools, "source", M{
		"config": c.config, "identity": M{"claims": []string{"user", "url"}, "secret": []string{"password"}},
		"capabilities": M{"http": M{"hosts": c.hosts, "methods": []string{"*"}}},
		"limits":       M{"fuel": 100_000_000_000},
		"reliability":  M{"retry": M{"initial_ms": 1, "cap_ms": 2}},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
}

func (c *counter) token(t testing.TB, claims M) string {
	t.Helper()
	all := M{"sub": "alice", "user": "alice", "password": canary}
	maps.Copy(all, claims)
	return c.issuer.Token(t, all)
}

func (c *counter) call(t testing.TB, token, tool string, payload M) *wire.Result {
	t.Helper()
	b, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Call(t.Context(), c.Socket, &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: newExecution(), Payload: b, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type toolList struct {
	Tools []struct {
		Name, Source string
		Mutating     bool
		Annotations  struct {
			ReadOnly *bool `json:"read_only"`
		}
	}
	Next    string
	Missing []struct {
		Source, Code, Message string
		Retriable             bool
	}
}

func (c *counter) list(t testing.TB, token string, page M) (l toolList) {
	t.Helper()
	r := c.call(t, token, "tools.list", page)
	if r.Err != nil {
		t.Fatalf("tools.list: %v", r.Err)
	}
	if err := json.Unmarshal(r.Data, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l toolList) names() (names []string) {
	for _, t := range l.Tools {
		names = append(names, t.Name)
	}
	return names
}

func resultCode(r *wire.Result) fault.Code {
	if r.Err == nil {
		return ""
	}
	return r.Err.Code
}

// with is a further tool of the daemon.
func with(t testing.TB, name string, def M) func(*config.Config) {
	return func(hc *config.Config) { hosttest.WriteTool(t, hc.Tools, name, def, nil) }
}

// TestBadSurfaces: what a module lists is taken whole or not at all, and the
// reason is said.
func TestBadSurfaces(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for name, tt := range map[string]struct{ surface, says string }{
		"bad name":      {`raw {"tools":[{"name":"a.b"}]}`, `the name "a.b"`},
		"reserved name": {`raw {"tools":[{"name":"tools.list"}]}`, `the name "tools.list"`},
		"empty name":    {`raw {"tools":[{"name":""}]}`, `the name ""`},
		"twice":         {`raw {"tools":[{"name":"a","title":"One"},{"name":"a","title":"Two"}]}`, `"One" and "Two" would both be a`},
		"no schema":     {`raw {"tools":[{"name":"a","schema":[]}]}`, "the schema of a must be an object"},
		"no object":     {`raw {"tools":[{"name":"a","schema":{"type":"array"}}]}`, "the schema of a admits array and no object"},
		"schema abroad": {`raw {"tools":[{"name":"a","schema":{"$ref":"http://x/y"}}]}`, "the schema of a"},
		"long text":     {`raw {"tools":[{"name":"a","description":"` + long + `"}]}`, "over 4096"},
		"too many":      {"many 5000", "the limit is 4096"},
		"an error":      {"error", "cannot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCounter(t, nil, M{"surface": tt.surface})
			token := c.token(t, nil)
			l := c.list(t, token, M{})
			if len(l.Tools) != 0 || len(l.Missing) != 1 || !strings.Contains(l.Missing[0].Message, tt.says) {
				t.Errorf("%+v", l)
			}
			if r := c.call(t, token, "a", M{}); r.Err == nil || !strings.Contains(r.Err.Message, tt.says) {
				t.Errorf("a call: %v", r.Err)
			}
		})
	}
}

// TestStaticToolsWin: a module takes nobody's name, and says nothing of its tools that
// the host believes over what they are.
func TestStaticToolsWin(t *testing.T) {
	c := newCounter(t, nil, nil, with(t, "look", M{"binary": "/bin/echo"}))
	token := c.token(t, nil)
	if r := c.call(t, token, "look", M{"args": []string{"static"}, "cwd": c.Root}); r.Err != nil || string(r.Stdout) != "static\n" {
		t.Errorf("look: %q, %v", r.Stdout, r.Err)
	}
	l := c.list(t, token, M{})
	if got, want := l.names(), []string{"change", "look", "user_alice"}; !slices.Equal(got, want) {
		t.Errorf("tools %v, want %v", got, want)
	}
	for _, tool := range l.Tools {
		if (tool.Source == "") != (tool.Name == "look") {
			t.Errorf("%s comes from %q", tool.Name, tool.Source)
		}
		if tool.Name == "change" && (!tool.Mutating || *tool.Annotations.ReadOnly) {
			t.Errorf("a tool that writes is annotated as one that reads: %+v", tool)
		}
	}
}

// TestReadingIsEnforced: the host holds a tool to what was said of it, and a
// caller to what may be done for it.
func TestReadingIsEnforced(t *testing.T) {
	var got atomic.Value
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/discover" {
			got.Store(r.Method)
		}
	}))
	defer service.Close()
	c := newCounter(t, service, nil, with(t, "touch", M{"binary": "/bin/echo", "mutating": true}))
	free, bound := c.token(t, nil), c.token(t, M{"read_only": true})
	for _, tt := range []struct {
		name, token, tool, method string
		code                      fault.Code
		arrives                   bool
	}{
		{"a read reads", free, "look", "GET", "", true},
		{"a read that writes", free, "look", "POST", fault.ToolFailed, false},
		{"a write writes", free, "change", "POST", "", true},
		{"a bound caller reads", bound, "look", "GET", "", true},
		{"a bound caller has the reading tool write", bound, "look", "DELETE", fault.ToolFailed, false},
		{"a bound caller writes", bound, "change", "POST", fault.UnknownTool, false},
		{"a bound caller has the writing tool read", bound, "change", "GET", fault.UnknownTool, false},
	} {
		got.Store("")
		r := c.call(t, tt.token, tt.tool, M{"do": "http", "method": tt.method})
		if resultCode(r) != tt.code || (got.Load() == tt.method) != tt.arrives {
			t.Errorf("%s: %v, the service saw %q", tt.name, r.Err, got.Load())
		}
	}
	// The same for a tool of tools.d that says that it changes something.
	if r := c.call(t, bound, "touch", M{"args": []string{"x"}, "cwd": c.Root}); resultCode(r) != fault.Denied || !strings.Contains(r.Err.Message, "read-only") {
		t.Errorf("touch, bound: %v", r.Err)
	}
	if r := c.call(t, free, "touch", M{"args": []string{"x"}, "cwd": c.Root}); r.Err != nil {
		t.Errorf("touch, free: %v", r.Err)
	}
	if r := c.call(t, bound, "look", M{"do": "config"}); !strings.Contains(string(r.Data), `"read_only":"true"`) {
		t.Errorf("the module is not told: %s", r.Data)
	}
}

// TestReloadDuringDiscovery: what a discovery finds that began under another
// configuration is not published, and the caller gets what counts now.
func TestReloadDuringDiscovery(t *testing.T) {
	begun, gate := make(chan bool, 10), make(chan bool)
	var n atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			begun <- true
			<-gate
		}
	}))
	defer service.Close()
	c := newCounter(t, service, nil)
	token := c.token(t, nil)
	done := make(chan toolList, 1)
	go func() { done <- c.list(t, token, M{}) }()
	<-begun
	if err := c.Reload(c.Config, nil); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if l := <-done; !slices.Contains(l.names(), "user_alice") {
		t.Errorf("%+v", l)
	}
	if n := n.Load(); n != 2 {
		t.Errorf("%d discoveries, want one before and one after the reload", n)
	}
	if logs := c.Logs(); !strings.Contains(logs, "surface superseded") || strings.Count(logs, "surface miss") != 1 {
		t.Errorf("the old result was published:\n%s", logs)
	}
}

// TestHostileTokens: through a whole daemon, cold and warm, each has its code
// and none is in the log.
func TestHostileTokens(t *testing.T) {
	c := newCounter(t, nil, nil)
	good := c.token(t, nil)
	tokens := map[string]string{
		"expired":       c.token(t, M{"exp": time.Now().Unix() - 1}),
		"not yet valid": c.token(t, M{"nbf": time.Now().Unix() + 3600}),
		"wrong key":     hosttest.NewIssuer(t).Token(t, M{"sub": "alice"}),
		"extra claim":   c.token(t, M{"role_of_mallory": "admin"}),
		"oversized":     c.token(t, M{"user": strings.Repeat("x", 20_000)}),
		"cut":           good[:len(good)-10],
		"alg none":      "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.",
		"rubbish":       strings.Repeat("rubbish", 100),
	}
	for name, token := range tokens {
		for _, heat := range []string{"cold", "warm"} {
			if r := c.call(t, token, "look", M{}); resultCode(r) != fault.Unauthenticated || r.ExitCode != 77 && r.Err.Code.ExitCode() != 77 {
				t.Errorf("%s, %s: %v", name, heat, r.Err)
			}
		}
		if r := c.call(t, good, "look", M{}); r.Err != nil {
			t.Errorf("a good token after %s: %v", name, r.Err)
		}
	}
	if r := c.call(t, "", "look", M{}); resultCode(r) != fault.Unauthenticated {
		t.Errorf("no token: %v", r.Err)
	}
	tokens["good"] = good
	logs := c.Logs()
	for name, token := range tokens {
		if strings.Contains(logs, token[len(token)-30:]) || strings.Contains(logs, canary) {
			t.Errorf("%s: a token or what is in it is in the log", name)
		}
	}
}

// TestCanary puts a secret wherever secrets go and looks for it where none
// may be.
func TestCanary(t *testing.T) {
	var elsewhere atomic.Value
	elsewhere.Store("")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.Store(fmt.Sprint(r.Header))
	}))
	defer other.Close()
	var arrived, handles atomic.Int64
	// lookInside reads the memories of modules, of which one waits for an answer.
	lookInside := func() {
		if runtime.GOOS != "linux" {
			return
		}
		for _, memory := range guestMemories(t) {
			handles.Add(int64(bytes.Count(memory, []byte("secret:"))))
			if bytes.Contains(memory, []byte(canary)) {
				t.Error("it is in the memory of a module")
			}
		}
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lookInside()
		if r.Header.Get("X-Other") == canary && r.Header.Get("Authorization") == "Bearer "+canary {
			arrived.Add(1)
		}
		if r.URL.Path == "/away" {
			http.Redirect(w, r, other.URL, http.StatusFound)
			return
		}
		// A server that says everything that it was told.
		w.Header().Set("X-Repeat", r.Header.Get("Authorization"))
		b, _ := json.Marshal(map[string]any{"repeat": r.Header, "raw": r.Header.Get("X-Other")})
		w.Write(b)
	}))
	defer service.Close()
	store, records := "file", ""
	if program, err := exec.LookPath("redis-server"); err == nil {
		store, records = startRecords(t, program)
	}
	programs := M{"exec": []string{"/bin", "/usr/bin"}}
	c := newCounter(t, service, nil, func(hc *config.Config) {
		// In namespaces a tool does not see another's processes at all.
		hc.Reliability, hc.Store, hc.ConfineMost = "all", store, "seccomp"
	},
		with(t, "shell", M{"binary": "/bin/sh", "secrets": M{"pw": M{"from": "claim:password", "env": "PGPASSWORD"}}, "capabilities": programs}),
		with(t, "nosy", M{"binary": "/bin/cat", "capabilities": programs}))
	token := c.token(t, nil)
	plain := func(tool string, args ...string) *wire.Result {
		t.Helper()
		r, err := client.Call(t.Context(), c.Socket, &wire.Call{Tool: tool, Args: args, Cwd: c.Root, Token: token, IdempotencyKey: newExecution()})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var answers []string
	keep := func(r *wire.Result) *wire.Result {
		answers = append(answers, fmt.Sprintf("%s %s %s %v", r.Stdout, r.Stderr, r.Data, r.Err))
		return r
	}
	// A binary has it in its environment, and says it in three ways.
	if r := keep(plain("shell", "-c", "echo $PGPASSWORD; echo $PGPASSWORD >&2; printenv | grep -c PGPASSWORD")); !strings.Contains(string(r.Stdout), "[secret]\n1") {
		t.Errorf("shell: %q, %v", r.Stdout, r.Err)
	}
	// Another tool looks at its environment while it runs.
	conn, err := client.Dial(t.Context(), c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	pid := make(chan string, 1)
	ended := make(chan error, 1)
	stop, halt := io.Pipe()
	go func() {
		_, err := conn.Stream(t.Context(), &wire.Call{Tool: "shell", Args: []string{"-c", "echo $$; read x"}, Cwd: c.Root, Token: token, Stream: true},
			wire.Local{Stdin: stop, Stdout: writerFunc(func(p []byte) (int, error) { pid <- strings.TrimSpace(string(p)); return len(p), nil }), Stderr: io.Discard})
		ended <- err
	}()
	seen := plain("nosy", "/proc/"+<-pid+"/environ")
	halt.Close()
	if err := <-ended; err != nil {
		t.Errorf("the shell: %v", err)
	}
	conn.Close()
	if confine.Confinement().ABI == 0 {
		t.Log("this kernel has no Landlock: processes of one user see each other's environment")
	} else if seen.ExitCode == 0 || strings.Contains(string(seen.Stdout), canary) {
		t.Errorf("another tool reads the environment of a process: %q", seen.Stdout)
	}

	until := func(do M) *wire.Result { return keep(c.call(t, token, "look", do)) }
	if r := until(M{"do": "config"}); !strings.Contains(string(r.Data), `"password":"secret:`) {
		t.Errorf("the module sees %s", r.Data)
	}
	if r := until(M{"do": "http"}); r.Err != nil || strings.Count(string(r.Data), "[secret]") < 3 {
		t.Errorf("http: %s, %v", r.Data, r.Err)
	}
	reversed := []byte(canary)
	slices.Reverse(reversed)
	if r := until(M{"do": "look", "look": string(reversed)}); string(r.Data) != "false" {
		t.Errorf("the module itself sees the secret in an answer: %s, %v", r.Data, r.Err)
	}
	until(M{"do": "leak"})
	if r := until(M{"do": "http", "path": "/away"}); r.Err != nil || elsewhere.Load() == "" {
		t.Errorf("a redirect: %v, elsewhere saw %q", r.Err, elsewhere.Load())
	}
	if s := elsewhere.Load().(string); strings.Contains(s, canary) || strings.Contains(s, "secret:") || strings.Contains(s, "X-Other") {
		t.Errorf("the other host saw %s", s)
	}
	c.list(t, token, M{})
	if n := arrived.Load(); n < 4 {
		t.Fatalf("the secret arrived %d times where it belongs", n)
	}

	admin := client.NewAdmin(c.Admin)
	for _, path := range []string{"/metrics", "/identities", "/status", "/tools", "/tools/source"} {
		answers = append(answers, adminText(t, c.Admin, path))
	}
	list, err := admin.Identities(t.Context())
	if err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	}
	for _, a := range answers {
		if strings.Contains(a, canary) {
			t.Errorf("it is in an answer: %s", a)
		}
	}
	if strings.Contains(c.Logs(), canary) || strings.Contains(c.Logs(), token[len(token)-30:]) {
		t.Error("it is in the log")
	}
	if runtime.GOOS == "linux" && handles.Load() == 0 {
		t.Error("no memory of a module was seen to hold what stands for it: that shows nothing")
	}
	c.Stop(t)
	files := 0
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), canary) || strings.Contains(string(b), token[len(token)-30:]) {
			t.Errorf("it is in %s", path)
		}
		if records != "" && strings.HasPrefix(path, records) && strings.Contains(string(b), "[secret]") {
			records = "" // the record of the call that said it is there
		}
		return err
	}
	err = filepath.WalkDir(c.State, look)
	if dir := records; dir != "" && err == nil {
		if err = filepath.WalkDir(dir, look); records != "" {
			t.Error("no record of a call is in Redis")
		}
	}
	if err != nil || files < 2 {
		t.Errorf("%d files of the state folder were read: %v", files, err)
	}
}

// startRecords starts a redis-server that writes each change to a folder.
func startRecords(t *testing.T, program string) (store, dir string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	dir = t.TempDir()
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", "")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			go io.Copy(io.Discard, out)
			return "redis://127.0.0.1:" + port + "/0", dir
		}
	}
	t.Fatal("redis-server did not start")
	return "", ""
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func adminText(t testing.TB, socket, path string) string {
	t.Helper()
	cl := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	resp, err := cl.Get("http://toold" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestManyIdentities: TOOLD_IDENTITIES of them (100) list at once; at most 16 are
// discovered at a time, each once.
func TestManyIdentities(t *testing.T) {
	n := 100
	if s := os.Getenv("TOOLD_IDENTITIES"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	var now, most, all atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := now.Add(1)
		for m := most.Load(); v > m && !most.CompareAndSwap(m, v); m = most.Load() {
		}
		all.Add(1)
		runtime.Gosched()
		now.Add(-1)
	}))
	defer service.Close()
	c := newCounter(t, service, nil, func(hc *config.Config) { hc.MaxConnections = 2 * n })
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			user := fmt.Sprintf("u%d", i)
			token := c.token(t, M{"sub": user, "user": user})
			for range 2 {
				l := c.list(t, token, M{})
				if want := []string{"change", "look", "user_" + user}; !slices.Equal(l.names(), want) {
					t.Errorf("%s sees %v, missing %v", user, l.names(), l.Missing)
				}
			}
		})
	}
	wg.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if most.Load() > 16 || all.Load() != int64(n) {
		t.Errorf("%d discoveries for %d identities, %d at a time", all.Load(), n, most.Load())
	}
	t.Logf("%d identities: %d discoveries, at most %d at a time, %d KiB of heap more, daemon and test together", n, all.Load(), most.Load(), (int64(after.HeapAlloc)-int64(before.HeapAlloc))/1024)
}

// TestPages: a listing that does not fit a frame comes in pages.
// One tool that says much, or a module that fails with many words, hides no other
// tool from a list.
func TestListsFitAnAnswer(t *testing.T) {
	long := strings.Repeat("x", 62<<10)
	c := newCounter(t, nil, M{"surface": `raw {"tools":[{"name":"a"},{"name":"b","schema":{"type":"object","description":"` + long + `"}},{"name":"c"}]}`})
	token := c.token(t, nil)
	seen := []string{}
	for after := ""; ; {
		l := c.list(t, token, M{"after": after})
		seen = append(seen, l.names()...)
		if after = l.Next; after == "" {
			break
		}
	}
	if !slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("tools %v", seen)
	}
	c.config["surface"] = `raw {"error":{"code":"X","message":"` + long + long + `"}}`
	c.install(t)
	until(t, "the module fails", func() bool { return len(c.list(t, token, M{}).Missing) == 1 })
}

func TestPages(t *testing.T) {
	c := newCounter(t, nil, M{"surface": "many 1000"})
	token := c.token(t, nil)
	seen, pages := []string{}, 0
	for after := ""; ; pages++ {
		l := c.list(t, token, M{"after": after})
		seen = append(seen, l.names()...)
		if after = l.Next; after == "" {
			break
		}
	}
	if len(seen) != 1000 || !slices.IsSorted(seen) || pages < 2 {
		t.Errorf("%d tools on %d pages", len(seen), pages+1)
	}
	if l := c.list(t, token, M{"limit": 3, "after": "tool_0009"}); !slices.Equal(l.names(), []string{"tool_0010", "tool_0011", "tool_0012"}) || l.Next != "tool_0012" {
		t.Errorf("%v, next %s", l.names(), l.Next)
	}
	if r := c.call(t, token, "tools.list", M{"first": 3}); resultCode(r) != fault.InvalidPayload {
		t.Errorf("an unknown field: %v", r.Err)
	}
	// The plain form has the names.
	r, err := client.Call(t.Context(), c.Socket, &wire.Call{Tool: "tools.list", Token: token})
	if err != nil || strings.Count(string(r.Stdout), "\n") != 1000 {
		t.Errorf("%d names, %v", strings.Count(string(r.Stdout), "\n"), err)
	}
}

// TestNamedArguments: a plain call of a tool with a schema gives its
// properties by name.
func TestNamedArguments(t *testing.T) {
	c := newCounter(t, nil, M{"surface": "many 1"})
	token := c.token(t, nil)
	for args, want := range map[string]fault.Code{
		"a=1": "", "--a=1": "", `{"a":1}`: "", "": "", "a=x": fault.InvalidPayload, "a": fault.InvalidPayload, "b=1": fault.InvalidPayload, "a=1 a=2": fault.InvalidPayload,
	} {
		r, err := client.Call(t.Context(), c.Socket, &wire.Call{Tool: "tool_0000", Args: strings.Fields(args), Token: token})
		if err != nil || resultCode(r) != want {
			t.Errorf("%s: %v, %v, want %q", args, r.Err, err, want)
		}
	}
}

// BenchmarkIdentity is a call with a warm identity beside the same call
// without a token, and a listing of 1,000 tools.
func BenchmarkIdentity(b *testing.B) {
	yes := true
	c := newCounter(b, nil, M{"surface": "many 1000"}, func(hc *config.Config) { hc.Identity.AllowUID = &yes })
	conn, err := client.Dial(b.Context(), c.Socket)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	token := c.token(b, nil)
	do := func(token, tool, payload string) {
		r, err := conn.Call(b.Context(), &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: newExecution(), Payload: json.RawMessage(payload), Token: token})
		if err != nil || r.Err != nil {
			b.Fatal(err, r.Err)
		}
	}
	// In turns, so that what else the machine does meets both.
	b.Run("call", func(b *testing.B) {
		do("", "tool_0000", `{}`)
		do(token, "tool_0000", `{}`)
		var without, with []time.Duration
		for b.Loop() {
			start := time.Now()
			do("", "tool_0000", `{}`)
			middle := time.Now()
			do(token, "tool_0000", `{}`)
			without, with = append(without, middle.Sub(start)), append(with, time.Since(middle))
		}
		// Medians: a busy machine makes some of each take long.
		slices.Sort(without)
		slices.Sort(with)
		one, other := float64(without[len(without)/2]), float64(with[len(with)/2])
		b.ReportMetric(one, "ns/without")
		b.ReportMetric(other, "ns/with")
		b.ReportMetric(other/one, "with/without")
	})
	b.Run("list-1000", func(b *testing.B) {
		do(token, "tools.list", `{}`)
		for b.Loop() {
			n, after := 0, ""
			for page := 0; page == 0 || after != ""; page++ {
				l := c.list(b, token, M{"after": after})
				n, after = n+len(l.Tools), l.Next
			}
			if n != 1000 {
				b.Fatal(n)
			}
		}
	})
}

// guestMemories are what the instances of modules in this process have mapped.
// One that goes meanwhile is left out.
func guestMemories(t *testing.T) (list [][]byte) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Error(err)
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Error(err)
		return nil
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if !strings.Contains(line, "memfd:toold-guest") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil {
			t.Error(err)
		}
		b := make([]byte, to-from)
		if _, err := mem.ReadAt(b, from); err == nil && mode[0] == 'r' {
			list = append(list, b)
		}
	}
	return list
}
