package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

// TestMain makes the test's own program a wrapper, where a test starts it as one.
func TestMain(m *testing.M) {
	if os.Getenv("TOOLD_TEST_WRAPPER") != "" {
		main()
	}
	os.Exit(m.Run())
}

// serve runs a daemon with the handler, and returns its socket.
func serve(t testing.TB, h server.Handler) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tool.sock")
	s, err := server.Listen(server.Config{Path: path, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return path
}

// wrapper is a wrapper that is about to start, under the name of a tool.
func wrapper(t testing.TB, socket, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Args = append([]string{name}, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"TOOLD_TEST_WRAPPER=1", "TOOL_SOCKET=" + socket}
	return cmd
}

// outcome runs a wrapper.
func outcome(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// describe answers with what it was asked.
func describe(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
	asked := *c
	asked.ExecutionID = ""
	b, err := json.Marshal(asked)
	if err != nil {
		return &wire.Result{Err: fault.Errorf(fault.Internal, "%w", err)}
	}
	s.Stdout.Write(b)
	return &wire.Result{Ran: true}
}

func asked(t *testing.T, cmd *exec.Cmd) (c wire.Call) {
	t.Helper()
	out, errOut, exit := outcome(t, cmd)
	if exit != 0 || errOut != "" {
		t.Fatalf("exit %d, %s", exit, errOut)
	}
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		t.Fatal(err)
	}
	c.Payload, c.CallerInfo = nil, nil // JSON knows no difference to null
	return c
}

func TestCall(t *testing.T) {
	socket := serve(t, describe)
	for _, argv := range [][]string{{"/somewhere/git", "log", "-1", ""}, {"./tool-client", "git", "log", "-1", ""}, {"git", "log", "-1", ""}} {
		cmd := wrapper(t, socket, argv[0], argv[1:]...)
		dir, err := filepath.EvalSymlinks(cmd.Dir)
		if err != nil {
			t.Fatal(err)
		}
		got := asked(t, cmd)
		want := wire.Call{Tool: "git", Args: []string{"log", "-1", ""}, Cwd: dir, Stream: true, Callbacks: []string{callbacks.Hooks}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q asked for %+v, want %+v", argv, got, want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	socket := serve(t, describe)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(" from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		env  []string
		want wire.Call
	}{
		{nil, wire.Call{}},
		{[]string{"TOOL_SESSION=s", "TOOL_IDEMPOTENCY_KEY=k", "TOOL_TOKEN=t"}, wire.Call{Session: "s", IdempotencyKey: "k", Token: "t"}},
		{[]string{"TOOL_TOKEN_FILE=" + token}, wire.Call{Token: "from-file"}},
		{[]string{"TOOL_TOKEN=t", "TOOL_TOKEN_FILE=/nowhere"}, wire.Call{Token: "t"}},
		{[]string{"TOOL_TIMEOUT=30"}, wire.Call{Timeout: 30 * time.Second}},
		{[]string{"TOOL_TIMEOUT=0.25"}, wire.Call{Timeout: 250 * time.Millisecond}},
		{[]string{"TOOL_TIMEOUT=1m30s"}, wire.Call{Timeout: 90 * time.Second}},
		{[]string{"TOOL_ENV=A, B:C,UNSET", "A=1", "B=", "C=é\n", "D=4"}, wire.Call{Env: map[string]string{"A": "1", "B": "", "C": "é\n"}, EnvSeen: []string{"A", "B", "C"}}},
		{[]string{"TOOL_ENV=A,B-1", "A=1", "B-1=2"}, wire.Call{Env: map[string]string{"A": "1", "B-1": "2"}, EnvSeen: []string{"A"}}},
		{[]string{"TOOL_ENV=A", "TOOL_HOOK_OF=git", "A=1", "GIT_DIR=x"}, wire.Call{Env: map[string]string{"A": "1", "GIT_DIR": "x"}, EnvSeen: []string{"A"}}},
	} {
		cmd := wrapper(t, socket, "git")
		cmd.Env = append(cmd.Env, test.env...)
		got := asked(t, cmd)
		got.Cwd = ""
		test.want.Tool, test.want.Args, test.want.Stream, test.want.Callbacks = "git", []string{}, true, []string{callbacks.Hooks}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q asked for %+v, want %+v", test.env, got, test.want)
		}
	}
}

func TestFailuresOnThisSide(t *testing.T) {
	socket := serve(t, describe)
	for name, test := range map[string]struct {
		argv   []string
		env    []string
		exit   int
		stderr string
	}{
		"no tool":                   {[]string{"tool-client"}, nil, 64, "usage: tool-client TOOL"},
		"help":                      {[]string{"tool-client", "--help"}, nil, 64, "usage: tool-client TOOL"},
		"no socket":                 {[]string{"git"}, []string{"TOOL_SOCKET="}, 64, "tool-client: TOOL_SOCKET is not set"},
		"nobody listens":            {[]string{"git"}, []string{"TOOL_SOCKET=/nowhere/tool.sock"}, 127, "tool-client: connect to the daemon at /nowhere/tool.sock: no such file or directory"},
		"not a socket":              {[]string{"git"}, []string{"TOOL_SOCKET=/dev/null"}, 127, "tool-client: connect to the daemon at /dev/null: connection refused"},
		"a path too long":           {[]string{"git"}, []string{"TOOL_SOCKET=/" + strings.Repeat("x", 200)}, 127, "tool-client: connect to the daemon at /xx"},
		"no token":                  {[]string{"git"}, []string{"TOOL_TOKEN_FILE=/nowhere"}, 77, "tool-client: read the token that TOOL_TOKEN_FILE names: open /nowhere: no such file or directory"},
		"no time":                   {[]string{"git"}, []string{"TOOL_TIMEOUT=0"}, 64, `tool-client: TOOL_TIMEOUT is "0"`},
		"a strange time":            {[]string{"git"}, []string{"TOOL_TIMEOUT=soon"}, 64, `tool-client: TOOL_TIMEOUT is "soon"`},
		"what JSON can't say":       {[]string{"git", "add", "\xff"}, nil, 64, `tool-client: args/1 is not UTF-8: "\xff"`},
		"a variable JSON can't say": {[]string{"git"}, []string{"TOOL_ENV=A", "A=\xff"}, 64, `tool-client: env/A is not UTF-8`},
	} {
		cmd := wrapper(t, socket, test.argv[0], test.argv[1:]...)
		cmd.Env = append(cmd.Env, test.env...)
		out, errOut, exit := outcome(t, cmd)
		if exit != test.exit || !strings.HasPrefix(errOut, test.stderr) || out != "" {
			t.Errorf("%s: exit %d, %q, want %d, %q", name, exit, errOut, test.exit, test.stderr)
		}
	}
}

// manyArgs are arguments of n bytes together.
func manyArgs(n, each int) []string {
	args := make([]string, n/each)
	for i := range args {
		args[i] = fmt.Sprintf("%0*d", each, i)
	}
	return args
}

func TestExitCodes(t *testing.T) {
	socket := serve(t, func(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		io.WriteString(s.Stdout, "some output")
		if c.Args[0] == "exit" {
			var n int
			fmt.Sscan(c.Args[1], &n)
			return &wire.Result{Ran: true, ExitCode: n}
		}
		return &wire.Result{Err: fault.Errorf(fault.Code(c.Args[1]), "why it failed")}
	})
	for _, n := range []int{0, 1, 2, 126, 130, 137, 255} {
		out, errOut, exit := outcome(t, wrapper(t, socket, "x", "exit", fmt.Sprint(n)))
		if exit != n || out != "some output" || errOut != "" {
			t.Errorf("exit code %d became %d; %q, %q", n, exit, out, errOut)
		}
	}
	for code, want := range map[fault.Code]int{fault.Timeout: 124, fault.Denied: 126, fault.UnknownTool: 127, fault.ToolNotInstalled: 127, fault.Overloaded: 75, fault.Unauthenticated: 77, fault.InvalidPayload: 64, fault.Aborted: 130, fault.ToolBroken: 70, "LATER": 70} {
		out, errOut, exit := outcome(t, wrapper(t, socket, "x", "fail", string(code)))
		if exit != want || out != "some output" || errOut != "tool-client: why it failed\n" {
			t.Errorf("%s: exit %d, %q, %q", code, exit, out, errOut)
		}
	}
}

func TestConnectionLost(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wire.ReadFrame(c)
			c.Close()
		}
	}()
	_, errOut, exit := outcome(t, wrapper(t, socket, "git"))
	if exit != 70 || !strings.HasPrefix(errOut, "tool-client: the server ended the connection before the call") {
		t.Errorf("exit %d, %q", exit, errOut)
	}
}

func TestBytesPassUnchanged(t *testing.T) {
	socket := serve(t, func(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		io.Copy(io.MultiWriter(s.Stdout, s.Stderr), s.Stdin())
		return &wire.Result{Ran: true}
	})
	all := make([]byte, 0, 1<<20)
	for len(all) < cap(all) {
		all = append(all, byte(len(all)), byte(len(all)>>8), byte(len(all)>>16))
	}
	cmd := wrapper(t, socket, "cat")
	cmd.Stdin = bytes.NewReader(all)
	out, errOut, exit := outcome(t, cmd)
	if out != string(all) || errOut != string(all) || exit != 0 {
		t.Errorf("%d and %d bytes of %d came back, exit %d", len(out), len(errOut), len(all), exit)
	}
}

// TestInputIsTheShells: a tool that wants no input leaves it to the loop around
// it.
func TestInputIsTheShells(t *testing.T) {
	socket := serve(t, func(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		fmt.Fprintln(s.Stdout, c.Args)
		return &wire.Result{Ran: true}
	})
	cmd := wrapper(t, socket, "sh", "-c", `while read f; do "$0" log "$f"; done`, os.Args[0])
	cmd.Path = "/bin/sh"
	// The wrapper has the test program's name here.
	cmd.Stdin = strings.NewReader("a\nb\nc\n")
	if out, errOut, _ := outcome(t, cmd); out != "[log a]\n[log b]\n[log c]\n" {
		t.Errorf("got %q, %q", out, errOut)
	}
}

// TestReaderLeaves: whoever reads the output has seen enough.
func TestReaderLeaves(t *testing.T) {
	ended := make(chan error)
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		for {
			if _, err := fmt.Fprintln(s.Stdout, "line"); err != nil {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return &wire.Result{}
			}
		}
	})
	for name, script := range map[string]string{
		"by default":        `{ "$0" log; echo exit $? >&2; } | head -1`,
		"with PIPE ignored": `trap '' PIPE; { "$0" log; echo exit $? >&2; } | head -1`,
	} {
		cmd := wrapper(t, socket, "sh", "-c", script, os.Args[0])
		cmd.Path = "/bin/sh"
		type result struct{ out, errOut string }
		done := make(chan result)
		go func() {
			out, errOut, _ := outcome(t, cmd)
			done <- result{out, errOut}
		}()
		if err := <-ended; err == nil {
			t.Errorf("%s: the call ended with %v", name, err)
		}
		if r := <-done; r.out != "line\n" || r.errOut != "exit 141\n" {
			t.Errorf("%s: got %+v", name, r)
		}
	}
}

func TestSignals(t *testing.T) {
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		s.Stdin() // and never reads it
		fmt.Fprintln(s.Stdout, "ready")
		select {
		case sig := <-s.Signals:
			return &wire.Result{Ran: true, ExitCode: 128 + int(sig.(syscall.Signal))}
		case <-ctx.Done():
			return &wire.Result{}
		}
	})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		cmd := wrapper(t, socket, "x")
		zero, err := os.Open("/dev/zero")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdin = zero // input is backed up all the while
		started(t, cmd)
		zero.Close()
		cmd.Process.Signal(sig)
		cmd.Wait()
		if !endedBy(cmd, sig) {
			t.Errorf("%v: %v", sig, cmd.ProcessState)
		}
	}
}

// endedBy reports whether the wrapper was ended by the signal, without a core.
func endedBy(cmd *exec.Cmd, sig syscall.Signal) bool {
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status.Signaled() && status.Signal() == sig && !status.CoreDump()
}

// TestInterruptedInput: a tool that is interrupted together with the program that writes its
// input does not take what was written until then for all of it; and a code of that kind is
// no signal where none was sent.
func TestInterruptedInput(t *testing.T) {
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		in := s.Stdin()
		fmt.Fprintln(s.Stdout, "ready")
		if len(c.Args) > 0 {
			return &wire.Result{Ran: true, ExitCode: 130}
		}
		read := make(chan struct{})
		go func() { io.Copy(io.Discard, in); close(read) }()
		sig := <-s.Signals
		fmt.Fprintln(s.Stdout, "signalled")
		select {
		case <-read:
			return &wire.Result{Ran: true}
		case <-time.After(keptOpen / 4):
			return &wire.Result{Ran: true, ExitCode: 128 + int(sig.(syscall.Signal))}
		}
	})
	cmd := wrapper(t, socket, "x")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	lines := bufio.NewReader(out)
	lines.ReadString('\n')
	w.WriteString("half of")
	cmd.Process.Signal(syscall.SIGINT)
	lines.ReadString('\n')
	w.Close()
	cmd.Wait()
	if !endedBy(cmd, syscall.SIGINT) {
		t.Errorf("interrupted: %v", cmd.ProcessState)
	}

	cmd = wrapper(t, socket, "x", "130")
	started(t, cmd)
	cmd.Wait()
	if cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("a tool that ends with 130: %v", cmd.ProcessState)
	}
}

// started starts a wrapper and waits until its tool says something.
func started(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
}

// TestIgnoredSignals: what nohup and shells have their children ignore stays
// ignored.
func TestIgnoredSignals(t *testing.T) {
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		fmt.Fprintln(s.Stdout, "ready")
		return &wire.Result{Ran: true, ExitCode: int((<-s.Signals).(syscall.Signal))}
	})
	cmd := wrapper(t, socket, "sh", "-c", `trap '' HUP INT; exec "$0"`, os.Args[0])
	cmd.Path = "/bin/sh"
	started(t, cmd)
	cmd.Process.Signal(syscall.SIGHUP)
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != int(syscall.SIGTERM) {
		t.Errorf("exit %d, want the number of TERM", got)
	}
}

// TestInsisting: a tool that does not listen cannot keep who waits for it.
func TestInsisting(t *testing.T) {
	got, left := make(chan os.Signal, 10), make(chan struct{})
	socket := serve(t, func(ctx context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		fmt.Fprintln(s.Stdout, "ready")
		for {
			select {
			case sig := <-s.Signals:
				got <- sig
			case <-ctx.Done():
				close(left)
				return &wire.Result{}
			}
		}
	})
	cmd := wrapper(t, socket, "x")
	started(t, cmd)
	for range insistTimes - 1 {
		cmd.Process.Signal(syscall.SIGINT)
		<-got
	}
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if !endedBy(cmd, syscall.SIGINT) {
		t.Errorf("%v", cmd.ProcessState)
	}
	<-left
}

func TestLongArguments(t *testing.T) {
	socket := serve(t, func(_ context.Context, c *wire.Call, _ server.Peer, s wire.Streams) *wire.Result {
		return &wire.Result{Ran: true, Stdout: fmt.Append(nil, len(c.Args), len(strings.Join(c.Args, "")))}
	})
	args := append(manyArgs(600000, 30), strings.Repeat("x", 130000))
	if out, errOut, exit := outcome(t, wrapper(t, socket, "git", args...)); exit != 0 || out != fmt.Sprint(20001, 730000) {
		t.Errorf("exit %d, %q, %q", exit, out, errOut)
	}
}

// BenchmarkStart is what a wrapper costs before and after its call, against the
// cheapest program there is. The daemon answers at once.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	client := filepath.Join(dir, "git")
	build := exec.Command("go", "build", "-ldflags=-s", "-o", client, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	socket := serve(b, func(context.Context, *wire.Call, server.Peer, wire.Streams) *wire.Result {
		return &wire.Result{Ran: true}
	})
	for _, program := range []string{"/bin/true", client} {
		b.Run(filepath.Base(program), func(b *testing.B) {
			for b.Loop() {
				cmd := exec.Command(program)
				cmd.Env = []string{"TOOL_SOCKET=" + socket}
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestNamesOfVariables: the wrapper says which variables it has that its tool may
// honour, and the value of none.
func TestNamesOfVariables(t *testing.T) {
	socket := serve(t, describe)
	for _, tt := range []struct {
		tool string
		env  []string
		want []string
	}{
		{"git", []string{"GIT_DIR=s3cr3t", "PATH=/bin", "HOME=/h", "DIGIT=1"}, []string{"GIT_DIR"}},
		{"npm", []string{"npm_config_registry=x", "NPM_TOKEN=s3cr3t", "NODE_OPTIONS=x", "GIT_DIR=x"}, []string{"NODE_OPTIONS", "NPM_TOKEN", "npm_config_registry"}},
		{"python3.12", []string{"PYTHONPATH=x"}, []string{"PYTHONPATH"}},
		{"my-tool", []string{"MY_TOOL_X=1", "MYTOOLY=1", "MY=1"}, []string{"MYTOOLY", "MY_TOOL_X"}},
		{"curl", []string{"https_proxy=s3cr3t", "NO_PROXY=", "CURL_HOME=a\xffb", "CURL(x)=1"}, []string{"CURL_HOME", "https_proxy"}},
		{"git", []string{"TOOL_ENV=GIT_DIR", "GIT_DIR=x", "GIT_SSH=x", "TOOLD_TEST_WRAPPER=1"}, []string{"GIT_DIR", "GIT_SSH"}},
		{"tool", []string{"TOOL_SESSION=x"}, nil},
		{"x", []string{"XDG_RUNTIME_DIR=/x"}, nil},
	} {
		cmd := wrapper(t, socket, tt.tool)
		cmd.Env = append(cmd.Env, tt.env...)
		out, _, _ := outcome(t, cmd)
		var got wire.Call
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got.EnvSeen)
		if !slices.Equal(got.EnvSeen, tt.want) || strings.Contains(out, "s3cr3t") {
			t.Errorf("%s with %q: %q in %s", tt.tool, tt.env, got.EnvSeen, out)
		}
	}
}

// TestOlderDaemon: one from before env_seen refuses the call by that name, before it
// has run anything, and gets it without.
func TestOlderDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan string, 2)
	go func() {
		defer close(asked)
		for range cap(asked) {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			frame, err := wire.ReadFrame(conn)
			if err != nil {
				return
			}
			asked <- string(frame)
			r := &wire.Result{Ran: true, ExitCode: 3}
			if strings.Contains(string(frame), "env_seen") {
				r = &wire.Result{Err: fault.Errorf(fault.InvalidEnvelope, "/env_seen: is not a known name; valid: tool, args (byte 9)")}
			}
			wire.WriteFrame(conn, wire.EncodeStreamResult(wire.Plain, r))
			conn.Close()
		}
	}()
	cmd := wrapper(t, path, "git", "status")
	cmd.Env = append(cmd.Env, "GIT_DIR=x")
	if _, stderr, exit := outcome(t, cmd); exit != 3 || stderr != "" {
		t.Errorf("exit %d, %s", exit, stderr)
	}
	first, second := <-asked, <-asked
	if !strings.Contains(first, `"env_seen":["GIT_DIR"]`) || second == "" || strings.Contains(second, "env_seen") {
		t.Errorf("asked %s, then %s", first, second)
	}
}
