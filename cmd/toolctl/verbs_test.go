package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/config"
)

// A fakeDaemon answers on an admin socket what a test tells it to, so that
// states which are hard to bring about can be looked at.
type fakeDaemon struct {
	dir    string
	status adminapi.HostStatus
	tools  []adminapi.ToolStatus
	result *adminapi.StoredResult
}

func (f *fakeDaemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(v any) { json.NewEncoder(w).Encode(v) }
	none := func() {
		w.WriteHeader(http.StatusNotFound)
		answer(map[string]string{"error": "not here"})
	}
	switch {
	case r.URL.Path == "/status":
		answer(f.status)
	case r.URL.Path == "/tools":
		answer(f.tools)
	case strings.HasPrefix(r.URL.Path, "/tools/"):
		for _, t := range f.tools {
			if r.URL.Path == "/tools/"+t.Name {
				answer(t)
				return
			}
		}
		none()
	case f.result != nil && r.URL.Path == "/results/"+f.result.ExecutionID:
		answer(f.result)
	default:
		none()
	}
}

// start listens on both sockets of the daemon.
func start(t *testing.T) *fakeDaemon {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "toold-")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeDaemon{dir: dir}
	f.status = adminapi.HostStatus{Version: version(), PID: 7, Instance: "0", Started: time.Now(), Socket: dir + "/tool.sock",
		Tools: dir + "/tools.d", State: dir, Roots: []string{dir + "/work"}, Landlock: 6}
	for _, d := range []string{"tools.d", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tool := listen(t, dir+"/tool.sock")
	admin := listen(t, dir+"/admin.sock")
	srv := &http.Server{Handler: f}
	done := make(chan struct{})
	go func() { srv.Serve(admin); close(done) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
		tool.Close()
		os.RemoveAll(dir)
	})
	return f
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	return l
}

// ctl runs toolctl against the daemon.
func (f *fakeDaemon) ctl(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append([]string{"--socket", f.dir + "/tool.sock", "--state", f.dir}, args...)
	code = run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestTools(t *testing.T) {
	f := start(t)
	if code, out, _ := f.ctl(t, "tools"); code != 0 || !strings.Contains(out, "no tools; ") {
		t.Errorf("without tools: %d, %s", code, out)
	}
	f.tools = []adminapi.ToolStatus{
		{Name: "echo", State: adminapi.ToolOK, Kind: "handler", Description: "says\x1b[2J it\nagain"},
		{Name: "gh", State: adminapi.ToolAbsent, Kind: "binary", Reason: "gh is not installed"},
		{Name: "git", State: adminapi.ToolStale, Kind: "binary", Policies: []string{"restricted.wasm"}, Reason: "restricted.wasm: bad magic"},
	}
	code, out, _ := f.ctl(t, "tools")
	want := `TOOL  STATE   KIND     POLICY  DESCRIPTION
echo  ok      handler  -       says [2J it again
gh    absent  binary   -       gh is not installed
git   stale   binary   yes     restricted.wasm: bad magic
`
	if code != 0 || out != want {
		t.Errorf("code %d, got\n%swant\n%s", code, out, want)
	}
	if code, out, _ := f.ctl(t, "tools", "--json"); code != 0 || !json.Valid([]byte(out)) || !strings.Contains(out, `"stale"`) {
		t.Errorf("--json: %d, %s", code, out)
	}
	if code, out, _ := f.ctl(t, "tools", "git"); code != 1 || !strings.Contains(out, "bad magic") {
		t.Errorf("one that is stale: %d, %s", code, out)
	}
	if code, _, _ := f.ctl(t, "tools", "echo"); code != 0 {
		t.Errorf("one that is ok: %d", code)
	}
	if code, _, errs := f.ctl(t, "tools", "nosuch"); code != 1 || !strings.Contains(errs, "toolctl tools") {
		t.Errorf("one that is not there: %d, %s", code, errs)
	}
	if code, _, errs := f.ctl(t, "tools", "a", "b"); code != 64 || !strings.Contains(errs, "--help") {
		t.Errorf("two: %d, %s", code, errs)
	}
}

func TestResult(t *testing.T) {
	f := start(t)
	f.result = &adminapi.StoredResult{ExecutionID: "id", ExitCode: 3, Stdout: []byte("out\x00\xff"), Stderr: []byte("err"), Truncated: true}
	code, out, errs := f.ctl(t, "result", "id")
	if code != 3 || out != "out\x00\xff" || !strings.HasPrefix(errs, "err") || !strings.Contains(errs, "limits.output") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if code, _, errs := f.ctl(t, "result", "other"); code != 1 || !strings.Contains(errs, "latest") {
		t.Errorf("none: %d, %s", code, errs)
	}
}

func TestDoctor(t *testing.T) {
	healthy := []adminapi.ToolStatus{{Name: "echo", State: adminapi.ToolOK}}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, f *fakeDaemon)
		code  int
		want  string // in a finding
		next  string // at its end
	}{
		{"healthy", func(*testing.T, *fakeDaemon) {}, 0, "1 of 1 ready", ""},
		{"no socket", func(t *testing.T, f *fakeDaemon) { remove(t, f.dir+"/tool.sock") }, 1, "no daemon has made it", "toold --socket"},
		{"a socket that somebody removed", func(t *testing.T, f *fakeDaemon) {
			remove(t, f.dir+"/tool.sock")
			lock, err := os.Create(config.SocketLock(f.dir, f.dir+"/tool.sock"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { lock.Close() })
			if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}, 1, "still runs and holds its lock", "fuser"},
		{"a file for a socket", func(t *testing.T, f *fakeDaemon) {
			remove(t, f.dir+"/tool.sock")
			write(t, f.dir+"/tool.sock", "")
		}, 1, "is not a socket", "ls -l"},
		{"an open socket", func(t *testing.T, f *fakeDaemon) { chmod(t, f.dir+"/tool.sock", 0o666) }, 0, "every user", "chmod o="},
		{"no admin socket", func(t *testing.T, f *fakeDaemon) { remove(t, f.dir+"/admin.sock") }, 1, "no daemon runs", "toold --admin"},
		{"another socket", func(t *testing.T, f *fakeDaemon) { f.status.Socket = "/elsewhere" }, 0, "listens on /elsewhere", "TOOL_SOCKET=/elsewhere"},
		{"another version", func(t *testing.T, f *fakeDaemon) { f.status.Version = "v9" }, 0, "version v9", "toold --version"},
		{"root", func(t *testing.T, f *fakeDaemon) { f.status.UID = 0 }, 0, "it runs as root", "setpriv"},
		{"a session that all share", func(t *testing.T, f *fakeDaemon) { f.status.SharedSession = true }, 0, "share the default one", "explicit_sessions"},
		{"a secret for everyone", func(t *testing.T, f *fakeDaemon) { f.status.Exposed = []string{"/etc/key"} }, 0, "/etc/key has secrets", "chmod o-rwx"},
		{"a refused reload", func(t *testing.T, f *fakeDaemon) { f.status.ConfigError = "unknown field" }, 1, "unknown field", "kill -HUP 7"},
		{"no root", func(t *testing.T, f *fakeDaemon) { remove(t, f.dir+"/work") }, 1, "are refused", "mkdir -p"},
		{"a tools folder for everyone", func(t *testing.T, f *fakeDaemon) { chmod(t, f.dir+"/tools.d", 0o777) }, 1, "decide what runs", "chmod go-w"},
		{"a tool for everyone", func(t *testing.T, f *fakeDaemon) {
			if err := os.Mkdir(f.dir+"/tools.d/git", 0o755); err != nil {
				t.Fatal(err)
			}
			chmod(t, f.dir+"/tools.d/git", 0o775)
		}, 1, "decide what runs", "chmod go-w"},
		{"a broken tool", func(t *testing.T, f *fakeDaemon) {
			f.tools = []adminapi.ToolStatus{{Name: "git", State: adminapi.ToolBroken, Reason: "empty module"}}
		}, 1, "empty module", "toolctl tools git"},
		{"a stale tool", func(t *testing.T, f *fakeDaemon) {
			f.tools = []adminapi.ToolStatus{{Name: "git", State: adminapi.ToolStale, Reason: "empty module"}}
		}, 0, "empty module", "toolctl tools git"},
		{"no tools", func(t *testing.T, f *fakeDaemon) { f.tools = nil }, 0, "there are none", "ls "},
		{"a poor kernel", func(t *testing.T, f *fakeDaemon) { f.status.Lost = []string{"no PAGEMAP_SCAN: slower"} }, 0, "no PAGEMAP_SCAN", "uname -r"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t)
			f.tools = healthy
			tt.spoil(t, f)
			code, out, errs := f.ctl(t, "doctor", "--json")
			var findings []finding
			if err := json.Unmarshal([]byte(out), &findings); err != nil {
				t.Fatalf("%v: %s%s", err, out, errs)
			}
			found := false
			for _, f := range findings {
				if strings.Contains(f.Text, tt.want) && strings.Contains(f.Next, tt.next) {
					found = true
				}
				if (f.Level == levelOK) != (f.Next == "") {
					t.Errorf("%s finding %q ends with %q", f.Level, f.Text, f.Next)
				}
			}
			if !found || code != tt.code {
				t.Errorf("exit code %d, want %d; want %q, next %q, in\n%s", code, tt.code, tt.want, tt.next, out)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{"/a/b-c": "/a/b-c", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'"} {
		if got := quote(in); got != want {
			t.Errorf("quote(%q) = %s, want %s", in, got, want)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
