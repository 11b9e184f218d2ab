package callback_test

import (
	"context"
	"encoding/binary"
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
	"sync"
	"testing"

	"github.com/toold/toold/host/callback"
	"github.com/toold/toold/host/wire/callbacks"
)

// TestMain makes the test's own program a shim, where a run starts it as one.
func TestMain(m *testing.M) {
	if callback.IsShim() {
		os.Exit(callback.RunShim())
	}
	os.Exit(m.Run())
}

func program(t testing.TB) string {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// TestOnlyShim: what a run may execute as a shim is nothing else, by whatever name and
// with whatever arguments.
func TestOnlyShim(t *testing.T) {
	own, err := os.ReadFile(program(t))
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), callback.ShimName)
	if err := os.WriteFile(copied, own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"toold", "-test.run=^$"}, {"/usr/bin/toold", "-test.run=^$"}, {"callbacks-x/editor", "-test.run=^$"}} {
		cmd := &exec.Cmd{Path: copied, Args: args}
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 127 || !strings.HasPrefix(string(out), callback.ShimName+": ") {
			t.Errorf("%q: %v: %s", args, cmd.ProcessState, out)
		}
	}
}

type asking func(ctx context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (int, error)

// open makes a relay with an editor, a pager and a hook, whose caller is ask.
func open(t testing.TB, root string, ask asking) *callback.Relay {
	t.Helper()
	c := callback.Config{
		Folder:  callback.NewFolder(t.TempDir()),
		Program: program(t),
		Roots:   []string{root},
		Shims:   []callback.Shim{{Name: "editor", Kind: "editor"}, {Name: "pager", Kind: "pager"}, {Name: "pre-push", Kind: "hooks", Path: root + "/hooks/pre-push"}, {Name: "scripts", Kind: "scripts"}},
		Ask:     ask,
	}
	r, err := callback.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		if _, err := os.Stat(c.Folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the folder is still there: %v", err)
		}
	})
	return r
}

func realDir(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestShim: a shim has the streams, the arguments and the exit code of the program.
func TestShim(t *testing.T) {
	root := realDir(t)
	var got callbacks.Request
	r := open(t, root, func(_ context.Context, q callbacks.Request, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
		got = q
		n, err := io.Copy(stdout, stdin)
		fmt.Fprint(stderr, n, err)
		return 7, nil
	})
	cmd := exec.Command(filepath.Dir(r.Socket())+"/pre-push", "a", "")
	cmd.Dir = root
	cmd.Env = []string{
		"GIT_DIR=.git", "GIT_INDEX_FILE=" + root + "/.git/next", "GIT_WORK_TREE=" + filepath.Dir(root), "GIT_EDITOR=vi", "GIT_SSH_COMMAND=x", "GIT_CONFIG_COUNT=1", "PATH=/x",
		"GIT_AUTHOR_NAME=A", "GIT_PREFIX=../..",
	}
	input := strings.Repeat("0123456789", 100_000)
	cmd.Stdin = strings.NewReader(input)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 || out.String() != input || errs.String() != "1000000 <nil>" {
		t.Errorf("%v, %d bytes, %s", err, out.Len(), &errs)
	}
	want := callbacks.Request{Kind: "hooks", Path: root + "/hooks/pre-push", Args: []string{"a", ""}, Cwd: root,
		Env: map[string]string{"GIT_DIR": ".git", "GIT_INDEX_FILE": root + "/.git/next", "GIT_AUTHOR_NAME": "A"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("asked for %+v, not %+v", got, want)
	}
}

// TestScripts: a script of a package has its text, its streams and what npm says of the
// package. What is about the host, npm's configuration and its credentials, goes nowhere.
func TestScripts(t *testing.T) {
	root := realDir(t)
	var got callbacks.Request
	r := open(t, root, func(_ context.Context, q callbacks.Request, stdin io.Reader, stdout, _ io.Writer) (int, error) {
		got = q
		_, err := io.Copy(stdout, stdin)
		return 7, err
	})
	cmd := exec.Command(filepath.Dir(r.Socket())+"/scripts", "-c", "echo 'x'\n y")
	cmd.Dir = root
	given := []string{
		"npm_lifecycle_event=test", "npm_lifecycle_script=echo 'x'", "npm_command=test", "npm_package_name=p", "npm_package_config_a-b=c=d", "npm_package_json=" + root + "/package.json",
		"npm_config_user_agent=npm/11", "npm_config_local_prefix=" + root, "INIT_CWD=" + root, "NODE_ENV=production",
	}
	cmd.Env = append([]string{
		"HOME=/h", "NODE_OPTIONS=--require /x", "NODE=/usr/bin/node", "npm_execpath=/x", "npm_node_execpath=/x", "npm_config_userconfig=/secret", "NPM_CONFIG_USERCONFIG=/secret", "npm_config_registry=x",
		"npm_config__auth=x", "npm_config_node_gyp=/x", "NPM_TOKEN=x", "NODE_PATH=/x", "NODE_EXTRA_CA_CERTS=/x", "GIT_DIR=.git", "LD_PRELOAD=/x",
		"PATH=" + root + "/node_modules/.bin:relative:" + root + "/../x:/usr/bin:" + root +
			// Of so many, the last is not looked at any more.
			strings.Repeat(":/usr/bin", 256) + ":" + root + "/late",
	}, given...)
	cmd.Stdin = strings.NewReader("input")
	if out, err := cmd.Output(); cmd.ProcessState.ExitCode() != 7 || string(out) != "input" {
		t.Errorf("%v, %q", err, out)
	}
	want := callbacks.Request{Kind: "scripts", Args: []string{"echo 'x'\n y"}, Cwd: root, Env: map[string]string{"PATH": root + "/node_modules/.bin:" + root}}
	for _, v := range given {
		name, value, _ := strings.Cut(v, "=")
		want.Env[name] = value
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("asked for %+v, not %+v", got, want)
	}
}

// TestLongFolder: the path of a socket may be longer than an address of one.
func TestLongFolder(t *testing.T) {
	root := realDir(t)
	parent := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	c := callback.Config{Folder: callback.NewFolder(parent), Program: program(t), Roots: []string{root}, Shims: []callback.Shim{{Name: "pager", Kind: "pager"}},
		Ask: func(context.Context, callbacks.Request, io.Reader, io.Writer, io.Writer) (int, error) {
			return 5, nil
		}}
	r, err := callback.Open(t.Context(), c)
	if err != nil {
		t.Skip(err)
	}
	defer r.Close()
	cmd := exec.Command(c.Folder + "/pager")
	cmd.Dir = root
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}

func frame(kind byte, p string) string {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(p)))
	return string(b) + p
}

// answer is what a relay answers to bytes on its socket, until it hangs up.
func answer(t testing.TB, r *callback.Relay, bytes string) string {
	t.Helper()
	nc, err := net.Dial("unix", r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	go io.WriteString(nc, bytes)
	b, _ := io.ReadAll(nc) // it may be reset
	return string(b)
}

// TestRefused: code of the run cannot have its caller run what git would not.
func TestRefused(t *testing.T) {
	root := realDir(t)
	var mu sync.Mutex
	asked := 0
	r := open(t, root, func(context.Context, callbacks.Request, io.Reader, io.Writer, io.Writer) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return 0, nil
	})
	for name, bytes := range map[string]string{
		"noise":                   "\x00\x01\x02\x03\x04\x05",
		"too long":                "b\xff\xff\xff\xff",
		"another frame first":     frame('i', "x"),
		"no JSON":                 frame('b', "x"),
		"other fields":            frame('b', `{"name":"editor","args":["`+root+`/x"],"cwd":"`+root+`","kind":"hooks"}`),
		"a path":                  frame('b', `{"name":"pre-push","path":"/bin/sh","args":[],"cwd":"`+root+`"}`),
		"another program":         frame('b', `{"name":"pre-commit","args":[],"cwd":"`+root+`"}`),
		"a folder above":          frame('b', `{"name":"pre-push","args":[],"cwd":"/"}`),
		"a folder beside":         frame('b', `{"name":"pre-push","args":[],"cwd":"`+root+`x"}`),
		"a way out":               frame('b', `{"name":"pre-push","args":[],"cwd":"`+root+`/../x"}`),
		"no folder":               frame('b', `{"name":"pre-push","args":[]}`),
		"a zero byte":             frame('b', `{"name":"pre-push","args":["\u0000"],"cwd":"`+root+`"}`),
		"much":                    frame('b', `{"name":"pre-push","args":["`+strings.Repeat("x", 50<<10)+`"],"cwd":"`+root+`"}`),
		"flags of an editor":      frame('b', `{"name":"editor","args":["-c","`+root+`/x"],"cwd":"`+root+`"}`),
		"no file for an editor":   frame('b', `{"name":"editor","args":[],"cwd":"`+root+`"}`),
		"a file elsewhere":        frame('b', `{"name":"editor","args":["/etc/passwd"],"cwd":"`+root+`"}`),
		"a file above":            frame('b', `{"name":"editor","args":["../x"],"cwd":"`+root+`"}`),
		"flags of a shell":        frame('b', `{"name":"scripts","args":["-x","x"],"cwd":"`+root+`"}`),
		"no script":               frame('b', `{"name":"scripts","args":["-c"],"cwd":"`+root+`"}`),
		"an empty script":         frame('b', `{"name":"scripts","args":["-c"," "],"cwd":"`+root+`"}`),
		"more than a script":      frame('b', `{"name":"scripts","args":["-c","x","y"],"cwd":"`+root+`"}`),
		"a script elsewhere":      frame('b', `{"name":"scripts","args":["-c","x"],"cwd":"/etc"}`),
		"a zero byte in a script": frame('b', `{"name":"scripts","args":["-c","x\u0000"],"cwd":"`+root+`"}`),
		"flags of a pager":        frame('b', `{"name":"pager","args":["+!touch x"],"cwd":"`+root+`"}`),
	} {
		if got := answer(t, r, bytes); name == "noise" || name == "too long" {
			if got != "" {
				t.Errorf("%s: answered %q", name, got)
			}
		} else if !strings.HasPrefix(got, "!") {
			t.Errorf("%s: answered %q", name, got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if asked > 0 {
		t.Errorf("the caller was asked %d times", asked)
	}
}

// TestHalfAnInput: what a program makes of half of its input is not its exit code.
func TestHalfAnInput(t *testing.T) {
	root := realDir(t)
	r := open(t, root, func(_ context.Context, _ callbacks.Request, stdin io.Reader, _, _ io.Writer) (int, error) {
		io.Copy(io.Discard, stdin)
		return 0, nil
	})
	begin := frame('b', `{"name":"pre-push","args":[],"cwd":"`+root+`"}`) + frame('i', "half")
	for name, rest := range map[string]string{"a frame over the limit": "i\xff\xff\xff\xff", "another kind": frame('b', "x")} {
		if got := answer(t, r, begin+rest); !strings.HasPrefix(got, "!") {
			t.Errorf("%s: answered %q", name, got)
		}
	}
}

// TestLinksOut: a link of the repository leads no program out of the roots, and what
// leads to another place beneath them is named by that.
func TestLinksOut(t *testing.T) {
	root, away := realDir(t), realDir(t)
	if err := errors.Join(os.Mkdir(root+"/real", 0o755), os.Symlink("real", root+"/in"), os.Symlink(away, root+"/out"), os.WriteFile(away+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	r := open(t, root, func(_ context.Context, q callbacks.Request, _ io.Reader, stdout, _ io.Writer) (int, error) {
		fmt.Fprint(stdout, q.Cwd, q.Args, q.Env)
		return 0, nil
	})
	for _, tt := range []struct{ begin, want string }{
		{`{"name":"editor","args":["` + root + `/out/file"],"cwd":"` + root + `"}`, "is not beneath the roots"},
		{`{"name":"editor","args":["out/file"],"cwd":"` + root + `"}`, "is not beneath the roots"},
		{`{"name":"editor","args":["file"],"cwd":"` + root + `/out"}`, "is not beneath the roots"},
		{`{"name":"pager","args":[],"cwd":"` + root + `/out"}`, "is not beneath the roots"},
		{`{"name":"editor","args":["in/file"],"cwd":"` + root + `"}`, root + "[" + root + "/real/file]"},
		{`{"name":"editor","args":["file"],"cwd":"` + root + `/in"}`, root + "/real[" + root + "/real/file]"},
		{`{"name":"pre-push","args":[],"cwd":"` + root + `","env":{"GIT_DIR":"out","GIT_INDEX_FILE":"` + root + `/out/file","GIT_WORK_TREE":"out/../real","GIT_PREFIX":"in/../","GIT_OBJECT_DIRECTORY":"in/new/x"}}`, root + "[] map[GIT_OBJECT_DIRECTORY:in/new/x GIT_PREFIX:in/../]"},
		{`{"name":"scripts","args":["-c","x"],"cwd":"` + root + `/out"}`, "is not beneath the roots"},
		{`{"name":"scripts","args":["-c","x"],"cwd":"` + root + `/in","env":{"PATH":"` + root + `/out:` + root + `/in/x:` + root + `/out/../real","INIT_CWD":"` + root + `/out","npm_package_a\u0000":"x","npm_package_b=c":"x","npm_package_d":"e\u0000"}}`, root + "/real[x] map[PATH:" + root + "/in/x]"},
	} {
		if got := answer(t, r, frame('b', tt.begin)); !strings.Contains(got, tt.want) {
			t.Errorf("%s: answered %q", tt.begin, got)
		}
	}
}

// TestFlagsAreFiles: what looks like a flag is a file beneath the roots to an editor.
func TestFlagsAreFiles(t *testing.T) {
	root := realDir(t)
	r := open(t, root, func(_ context.Context, q callbacks.Request, _ io.Reader, stdout, _ io.Writer) (int, error) {
		fmt.Fprint(stdout, q.Args)
		return 0, nil
	})
	if got := answer(t, r, frame('b', `{"name":"editor","args":["+!x"],"cwd":"`+root+`"}`)); !strings.Contains(got, "["+root+"/+!x]") {
		t.Errorf("%q", got)
	}
}

// TestAtATime: so many programs run at a time, and the others wait.
func TestAtATime(t *testing.T) {
	root := realDir(t)
	began, release := make(chan bool), make(chan bool)
	var mu sync.Mutex
	now, most := 0, 0
	r := open(t, root, func(context.Context, callbacks.Request, io.Reader, io.Writer, io.Writer) (int, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		began <- true
		<-release
		mu.Lock()
		now--
		mu.Unlock()
		return 0, nil
	})
	const all = 4 * callbacks.Max
	var callers sync.WaitGroup
	for range all {
		callers.Go(func() { answer(t, r, frame('b', `{"name":"pager","args":[],"cwd":"`+root+`"}`)) })
	}
	for i := range all {
		<-began
		if i >= callbacks.Max-1 {
			release <- true
		}
	}
	for range callbacks.Max - 1 {
		release <- true
	}
	callers.Wait()
	if most != callbacks.Max {
		t.Errorf("%d ran at a time", most)
	}
}

// TestBound: so many programs and no more.
func TestBound(t *testing.T) {
	root := realDir(t)
	var mu sync.Mutex
	now, most, all := 0, 0, 0
	r := open(t, root, func(context.Context, callbacks.Request, io.Reader, io.Writer, io.Writer) (int, error) {
		mu.Lock()
		now++
		all++
		most = max(most, now)
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		return 0, nil
	})
	begin := frame('b', `{"name":"pager","args":[],"cwd":"`+root+`"}`)
	var callers sync.WaitGroup
	for range 4 * callbacks.Max {
		callers.Go(func() {
			for range callback.MaxPrograms/(4*callbacks.Max) + 1 {
				answer(t, r, begin)
			}
		})
	}
	callers.Wait()
	if all != callback.MaxPrograms || most > callbacks.Max {
		t.Errorf("%d programs ran, %d at a time", all, most)
	}
	if got := answer(t, r, begin); !strings.Contains(got, "all it may") {
		t.Errorf("%q", got)
	}
}

// TestShimGone: a program whose shim is gone is ended, and so is one whose run is.
func TestShimGone(t *testing.T) {
	root := realDir(t)
	began, ended := make(chan bool), make(chan bool)
	r := open(t, root, func(ctx context.Context, _ callbacks.Request, _ io.Reader, _, _ io.Writer) (int, error) {
		began <- true
		<-ctx.Done()
		ended <- true
		return 0, ctx.Err()
	})
	nc, err := net.Dial("unix", r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(nc, frame('b', `{"name":"pager","args":[],"cwd":"`+root+`"}`)+frame('i', "x")+frame('e', ""))
	<-began
	nc.Close()
	<-ended
	if nc, err = net.Dial("unix", r.Socket()); err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	io.WriteString(nc, frame('b', `{"name":"pager","args":[],"cwd":"`+root+`"}`))
	<-began
	go r.Close()
	<-ended
}

// FuzzShim: whatever a run sends, only what it may ask for is asked.
func FuzzShim(f *testing.F) {
	const root = "/ws"
	for _, s := range []string{
		"", frame('b', `{"name":"pager","args":[],"cwd":"/ws"}`), frame('b', `{"name":"editor","args":["x"],"cwd":"/ws/a"}`) + frame('e', ""),
		frame('b', `{"name":"pre-push","args":["a"],"cwd":"/ws","env":{"GIT_DIR":"/ws/.git","GIT_EDITOR":":","X":"y"}}`) + frame('i', "input") + frame('e', ""),
		frame('b', `{"name":"scripts","args":["-c","x"],"cwd":"/ws","env":{"PATH":"/ws/a:/b:/ws/../c","npm_package_name":"p","npm_token":"x"}}`) + frame('e', ""),
		frame('b', `{"name":"editor","args":["/ws/../x"],"cwd":"/ws"}`), frame('x', "\x00"),
	} {
		f.Add(s)
	}
	r := open(f, root, func(_ context.Context, q callbacks.Request, stdin io.Reader, stdout, _ io.Writer) (int, error) {
		inside := func(path string) bool {
			return (path == root || strings.HasPrefix(path, root+"/")) && filepath.Clean(path) == path
		}
		switch {
		case !inside(q.Cwd):
			panic("folder " + q.Cwd)
		case q.Kind == "editor" && (len(q.Args) != 1 || !inside(q.Args[0])), q.Kind == "pager" && len(q.Args) > 0, q.Kind != "hooks" && q.Path != "", q.Kind != "hooks" && q.Kind != "scripts" && q.Env != nil, q.Kind == "scripts" && (len(q.Args) != 1 || strings.ContainsRune(q.Args[0], 0)), q.Kind == "hooks" && q.Path != root+"/hooks/pre-push":
			panic(fmt.Sprintf("%+v", q))
		}
		for name, value := range q.Env {
			if q.Kind == "scripts" {
				if strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) || !strings.HasPrefix(name, "npm_") && !slices.Contains([]string{"INIT_CWD", "NODE_ENV", "PATH"}, name) {
					panic(name + "=" + value)
				}
				for _, dir := range filepath.SplitList(value) {
					if name == "PATH" && !inside(dir) {
						panic("PATH=" + value)
					}
				}
				continue
			}
			if !strings.HasPrefix(name, "GIT_") || name == "GIT_EDITOR" && value != ":" || strings.ContainsRune(value, 0) {
				panic(name + "=" + value)
			}
		}
		io.Copy(io.Discard, io.LimitReader(stdin, 10))
		return 0, nil
	})
	f.Fuzz(func(t *testing.T, bytes string) {
		nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.Socket(), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		io.WriteString(nc, bytes)
		nc.CloseWrite()
		io.Copy(io.Discard, nc)
	})
}
