package mcp_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// remote is a process with clients of MCP that do what they are told.
type remote struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Reader
}

// remoteClient is one of them.
type remoteClient struct {
	*remote
	id string
}

// said is what a remote answers.
type said struct {
	Failed    string
	Tools     []string
	Text      string
	IsError   bool
	Error     map[string]any
	Progress  []string
	Cancelled bool
	Cuts      int
}

// sdkProcess is the process of the clients by an SDK, "typescript" or "python".
func sdkProcess(t *testing.T, dir, sdk string) *exec.Cmd {
	t.Helper()
	scripts := filepath.Join(hosttest.ModuleRoot(), "host/mcp/testdata/clients")
	if sdk == "typescript" {
		cmd := node(t, filepath.Join(scripts, "client.mjs"))
		cmd.Env = append(cmd.Env, "MODULES="+dir)
		return cmd
	}
	python := filepath.Join(dir, "venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Skip("the SDK for Python is not installed; see scripts/mcp-clients")
	}
	return command(t, python, filepath.Join(scripts, "client.py"))
}

func startRemote(t testing.TB, cmd *exec.Cmd) *remote {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &remote{t, in, bufio.NewReader(out)}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return r
}

// open opens a client, until the test t ends.
func (r *remote) open(t testing.TB, id string, how object) *remoteClient {
	t.Helper()
	c := &remoteClient{&remote{t, r.in, r.out}, id}
	how["op"] = "open"
	c.do(how)
	t.Cleanup(func() {
		if !t.Failed() {
			c.do(object{"op": "close"})
		}
	})
	return c
}

func (r *remoteClient) do(op object) said {
	r.t.Helper()
	op["client"] = r.id
	b, err := json.Marshal(op)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.in.Write(append(b, '\n')); err != nil {
		r.t.Fatal(err)
	}
	line, err := r.out.ReadBytes('\n')
	var got said
	if err == nil {
		err = json.Unmarshal(line, &got)
	}
	if err != nil || got.Failed != "" {
		r.t.Fatalf("%v: %s%q, %v", op, got.Failed, line, err)
	}
	return got
}

// Real clients list, call, read denials, see progress, cancel, and see a tool that is
// new; two identities beside each other see their own.
func TestRealClients(t *testing.T) {
	dir := clients(t)
	upstream := surface(t)
	s := web(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}, "dd": {"binary": "dd"}}, func(tools string) {
		upstream(tools)
		hosttest.WriteTool(t, tools, "printf", object{"binary": "/usr/bin/printf"}, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	})
	toolctl := filepath.Join(hosttest.Programs(t), "toolctl")
	token := func(name string) string { return s.Token(t, object{"sub": name, "user": name}) }
	for _, kind := range []struct {
		name  string
		modes []string // of the protocol, where the SDK leaves that to its caller
	}{
		{"typescript", []string{""}},
		{"python", []string{"legacy", newest}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			process := startRemote(t, sdkProcess(t, dir, kind.name))
			each := func(t *testing.T, mode string, stdio bool) {
				as := func(name string) *remoteClient {
					how := object{"mode": mode, "token": token(name), "url": s.url}
					if stdio {
						delete(how, "url")
						how["command"] = []string{toolctl, "mcp", "--cwd", s.Root, "--socket", s.Config.Sockets[0].Path}
					}
					return process.open(t, name, how)
				}
				alice, bob := as("alice"), as("bob")
				for range 2 {
					if got := alice.do(object{"op": "list"}).Tools; !slices.Contains(got, "user_alice") || slices.Contains(got, "user_bob") {
						t.Errorf("alice sees %q", got)
					}
					if got := bob.do(object{"op": "list"}).Tools; !slices.Contains(got, "user_bob") || slices.Contains(got, "user_alice") {
						t.Errorf("bob sees %q", got)
					}
				}
				call := func(name string, args any) said {
					t.Helper()
					return alice.do(object{"op": "call", "name": name, "args": args})
				}
				if got := call("echo", object{"args": []string{"hello"}}); got.IsError || got.Text != "hello\n" {
					t.Errorf("echo: %+v", got)
				}
				if got := call("user_bob", object{}); !got.IsError || got.Error["code"] != "UNKNOWN_TOOL" {
					t.Errorf("alice calls what is bob's: %+v", got)
				}
				if got := call("printf", object{"args": []string{"deny"}}); !got.IsError || got.Error["code"] != "DENIED" || got.Error["rule"] != "test.deny" || !strings.Contains(got.Text, "do not ask") {
					t.Errorf("a denial: %+v", got)
				}
				// The SDK for TypeScript takes notice of progress a turn of its loop after it
				// was read, and forgets it where the result came in the same piece.
				got := call("change", object{"Do": "leak", "Method": "GET", "Path": "/"})
				for until := bound(t); kind.name == "typescript" && len(got.Progress) == 0 && until.Err() == nil; {
					got = call("change", object{"Do": "leak", "Method": "GET", "Path": "/"})
				}
				if !slices.Contains(got.Progress, "half of it") {
					t.Errorf("progress: %+v", got)
				}
				fifo := gate(t, s.Daemon)
				alice.do(object{"op": "start", "name": "dd", "args": object{"args": []string{"if=" + fifo, "of=/dev/null", "status=none"}}})
				open := awaitReader(t, fifo)
				if !alice.do(object{"op": "cancel"}).Cancelled {
					t.Error("a call that was cancelled ended well")
				}
				awaitEnd(t, open)
				fresh := "new-" + strings.ReplaceAll(strings.ToLower(t.Name()[len("TestRealClients/"):]), "/", "-")
				s.Tool(t, fresh, object{"binary": "true"}, nil)
				for until := bound(t); ; {
					alice.do(object{"op": "changed"})
					if slices.Contains(alice.do(object{"op": "list"}).Tools, fresh) {
						break
					}
					if until.Err() != nil {
						t.Fatal("the new tool was never listed")
					}
				}
			}
			for _, mode := range kind.modes {
				for way, stdio := range map[string]bool{"http": false, "stdio": true} {
					t.Run(strings.TrimPrefix(mode+"/"+way, "/"), func(t *testing.T) { each(t, mode, stdio) })
				}
			}
		})
	}
	t.Run("inspector", func(t *testing.T) {
		t.Parallel()
		for _, way := range []string{"http", "stdio"} {
			t.Run(way, func(t *testing.T) {
				t.Parallel()
				inspect(t, s, way == "stdio")
			})
		}
	})
}

// inspect has the Inspector's command line do all that it can: each of its processes
// makes one request and prints the result. It prints no notification, so that progress
// is looked for in what it was sent, and it cancels nothing but by its end.
func inspect(t *testing.T, s *site, stdio bool) {
	toolctl := filepath.Join(hosttest.Programs(t), "toolctl")
	script := filepath.Join(clients(t), "node_modules/@modelcontextprotocol/inspector-cli/build/cli.js")
	sent := &recording{}
	relay := httptest.NewServer(sent.relay(t, s))
	t.Cleanup(relay.Close)
	tee := filepath.Join(t.TempDir(), "tee")
	if err := os.WriteFile(tee, []byte("#!/bin/sh\n"+toolctl+" mcp --cwd "+s.Root+" --socket "+s.Config.Sockets[0].Path+" | tee \"$0.said\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	inspector := func(name string, args ...string) *exec.Cmd {
		token := s.Token(t, object{"sub": name, "user": name})
		to := []string{"--cli", relay.URL + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + token}
		if stdio {
			to = []string{"--cli", tee}
		}
		cmd := node(t, script, append(to, args...)...)
		cmd.Env = append(cmd.Env, "TOOL_TOKEN="+token)
		return cmd
	}
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := inspector(name, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s, %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	call := func(tool string, args ...string) string {
		t.Helper()
		return run("alice", append([]string{"--method", "tools/call", "--tool-name", tool}, args...)...)
	}
	for name, other := range map[string]string{"alice": "bob", "bob": "alice"} {
		if got := run(name, "--method", "tools/list"); !strings.Contains(got, `"user_`+name+`"`) || strings.Contains(got, "user_"+other) {
			t.Errorf("%s sees: %s", name, got)
		}
	}
	if got := call("echo", "--tool-arg", `args=["hello"]`); !strings.Contains(got, `"hello\n"`) {
		t.Errorf("a call: %s", got)
	}
	if got := call("printf", "--tool-arg", `args=["deny"]`); !strings.Contains(got, "DENIED") || !strings.Contains(got, "test.deny") || !strings.Contains(got, "do not ask") {
		t.Errorf("a denial: %s", got)
	}
	if got := call("user_bob"); !strings.Contains(got, "UNKNOWN_TOOL") {
		t.Errorf("what is bob's: %s", got)
	}

	// It asks for progress and is sent it before the result, in the same stream.
	sent.forget()
	got := call("change", "--tool-arg", "Do=leak", "Method=GET", "Path=/", "--metadata", "progressToken=seven")
	if strings.Contains(got, "notifications/progress") {
		t.Error("the Inspector prints progress: say so in docs/mcp.md")
	}
	said := sent.String()
	if stdio {
		b, err := os.ReadFile(tee + ".said")
		if err != nil {
			t.Fatal(err)
		}
		said = string(b)
	}
	told, rest, _ := strings.Cut(said, `"notifications/progress"`)
	line, rest, _ := strings.Cut(rest, "\n")
	if !strings.Contains(line, `"progressToken":"seven"`) || !strings.Contains(line, "half of it") || strings.Contains(told, `"content"`) || !strings.Contains(rest, `"content"`) {
		t.Errorf("progress: %s\nof %s", line, said)
	}

	// A tool that is swapped between two of them is the new one in the second.
	swapped := "swapped-" + map[bool]string{false: "http", true: "stdio"}[stdio]
	for i, binary := range []string{"echo", "/usr/bin/printf"} {
		after := len(s.Logs())
		s.Tool(t, swapped, object{"binary": binary, "description": "it is " + binary}, nil)
		s.AwaitLog(t, after, []string{"tool loaded", "tool swapped"}[i], swapped)
		if got := run("alice", "--method", "tools/list"); !strings.Contains(got, "it is "+binary+`"`) {
			t.Errorf("%s: it sees %s", binary, got)
		}
	}
	if got := call(swapped, "--tool-arg", `args=["%%"]`); !strings.Contains(got, `"%"`) {
		t.Errorf("the new one is answered %s", got)
	}

	// Over HTTP its version of the protocol has no cancellation by a closed stream.
	if stdio {
		fifo := gate(t, s.Daemon)
		cmd := inspector("alice", "--method", "tools/call", "--tool-name", "dd", "--tool-arg", `args=["if=`+fifo+`","of=/dev/null","status=none"]`)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it starts others
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		open := awaitReader(t, fifo)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		cmd.Wait()
		awaitEnd(t, open)
	}
}

// recording keeps what was sent to clients.
type recording struct {
	mu  sync.Mutex
	all bytes.Buffer // guarded by mu
}

func (r *recording) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.Write(b)
}

func (r *recording) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all.String()
}

func (r *recording) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.Reset()
}

// relay passes requests on to s, and keeps the answers as they come.
func (r *recording) relay(t *testing.T, s *site) http.Handler {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite: func(q *httputil.ProxyRequest) {
			q.Out.URL.Scheme, q.Out.URL.Host, q.Out.Host = to.Scheme, to.Host, to.Host
		},
		ModifyResponse: func(res *http.Response) error {
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(res.Body, r), res.Body}
			return nil
		},
		FlushInterval: -1,
	}
}
