package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/hosttest"
)

// small mounts a file system of a MiB at a folder, and returns its path.
func small(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("mount a file system of its own: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestDiskIsFull: while the disk of the state folder is full, calls that only read run,
// one that must leave a record first does not, and all is well when there is room.
func TestDiskIsFull(t *testing.T) {
	state := small(t)
	p := hosttest.StartProcess(t, config.Config{State: state, Reliability: "all"})
	hosttest.WriteTool(t, p.Tools, "reads", M{"binary": "/bin/echo"}, nil)
	hosttest.WriteTool(t, p.Tools, "writes", M{"binary": "/bin/echo", "mutating": true}, nil)
	for _, tool := range []string{"reads", "writes"} {
		if a := ask(t, p.Socket, M{"tool": tool, "args": []string{"x"}, "cwd": p.Root}); a.Stdout != "x\n" {
			t.Fatalf("with room: %s", a.raw)
		}
	}
	filler, err := os.Create(filepath.Join(state, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(filler, zeros{})
	filler.Close()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	if a := ask(t, p.Socket, M{"tool": "reads", "args": []string{"x"}, "cwd": p.Root}); a.Stdout != "x\n" {
		t.Errorf("a call that reads: %s", a.raw)
	}
	a := ask(t, p.Socket, M{"tool": "writes", "args": []string{"x"}, "cwd": p.Root, "idempotency_key": "full"})
	if a.Code != "STORE_UNAVAILABLE" || a.ExitCode != 75 {
		t.Errorf("a call that writes: %s", a.raw)
	}
	p.AwaitLog(0, "the audit log cannot be written", "no space left on device")
	// The operator is told where to look, and again nothing when there is room, before
	// anybody calls.
	doctor := func() string {
		t.Helper()
		out, _ := exec.CommandContext(t.Context(), filepath.Join(hosttest.Programs(t), "toolctl"), "doctor", "--socket", p.Socket, "--admin", p.Admin, "--state", state).CombinedOutput()
		return string(out)
	}
	ready := func() (int, string) {
		t.Helper()
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", p.Admin)
		}}}
		a, err := c.Get("http://toold/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		text, _ := io.ReadAll(a.Body)
		return a.StatusCode, string(text)
	}
	if said := doctor(); !strings.Contains(said, "FAIL  audit") || !strings.Contains(said, "no space left on device") || !strings.Contains(said, "next: df "+state) || !strings.Contains(said, "FAIL  tools       writes: ") || strings.Contains(said, "reads: ") {
		t.Errorf("doctor: %s", said)
	}
	if code, said := ready(); code != http.StatusServiceUnavailable || !strings.Contains(said, "no space left on device") || !strings.Contains(said, "tool writes is refusing") || strings.Contains(said, "tool reads") {
		t.Errorf("readyz: %d %s", code, said)
	}
	if err := os.Remove(filepath.Join(state, "filler")); err != nil {
		t.Fatal(err)
	}
	if code, said := ready(); code != http.StatusOK {
		t.Errorf("readyz with room again: %d %s", code, said)
	}
	if said := doctor(); strings.Contains(said, "FAIL") {
		t.Errorf("doctor with room again: %s", said)
	}
	if a := ask(t, p.Socket, M{"tool": "writes", "args": []string{"x"}, "cwd": p.Root, "idempotency_key": "again"}); a.Stdout != "x\n" {
		t.Errorf("a call that writes, with room again: %s", a.raw)
	}
	if a := ask(t, p.Socket, M{"tool": "reads", "args": []string{"x"}, "cwd": p.Root}); a.Stdout != "x\n" {
		t.Errorf("with room again: %s", a.raw)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestStateIsReadOnly: a daemon that cannot write its state folder does not start, and
// says which folder it is.
func TestStateIsReadOnly(t *testing.T) {
	state := small(t)
	if err := unix.Mount("none", state, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(hosttest.Programs(t), "toold"), "--tools", dir, "--root", dir, "--state", state, "--socket", filepath.Join(dir, "s"))
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); err == nil || code != 70 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if !strings.Contains(said.String(), state) || !strings.Contains(said.String(), "read-only file system") {
		t.Errorf("said: %s", &said)
	}
}

// TestStateOfOthers: a daemon keeps others from writing to its state folder, does not
// start on one that is another's, and leaves nothing in that.
func TestStateOfOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o777, 0o770, 0o755} {
		state := t.TempDir()
		if err := os.Chmod(state, mode); err != nil {
			t.Fatal(err)
		}
		p := hosttest.StartProcess(t, config.Config{State: state})
		info, err := os.Stat(state)
		if err != nil || info.Mode().Perm() != mode&^0o022 {
			t.Errorf("a folder of mode %o: now it is %v, %v", mode, info.Mode(), err)
		}
		if said := strings.Contains(p.Logs(), "its mode was narrowed"); said != (mode != 0o755) {
			t.Errorf("a folder of mode %o: the log has %s", mode, p.Logs())
		}
	}
	state := t.TempDir()
	if os.Chown(state, 65532, -1) != nil {
		return // as another user than root
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(hosttest.Programs(t), "toold"), "--tools", state, "--root", state, "--state", state, "--socket", filepath.Join(t.TempDir(), "s"))
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 70 || !strings.Contains(string(out), state) || !strings.Contains(string(out), "belongs to user 65532") {
		t.Errorf("a folder of another user: exit code %d, %v, %s", code, err, out)
	}
	if left, err := os.ReadDir(state); err != nil || len(left) > 0 {
		t.Errorf("a folder of another user: it left %v, %v", left, err)
	}
}

// TestDescriptorsAreExhausted: a daemon that can open nothing refuses calls, lives, and
// serves when it can again.
func TestDescriptorsAreExhausted(t *testing.T) {
	p := hosttest.StartProcess(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "reads", M{"binary": "/bin/echo"}, nil)
	call := M{"tool": "reads", "args": []string{"x"}, "cwd": p.Root}
	if a := ask(t, p.Socket, call); a.Stdout != "x\n" {
		t.Fatalf("before: %s", a.raw)
	}
	status, err := client.NewAdmin(p.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := talk(t, p.Socket)
	if a := d.ask(call); a.Stdout != "x\n" {
		t.Fatalf("before: %s", a.raw)
	}
	var was unix.Rlimit
	if err := unix.Prlimit(status.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4, Max: 4096}, &was); err != nil {
		t.Skipf("limit another process: %v", err)
	}
	a := d.ask(call)
	if a.Code != "OVERLOADED" || !strings.Contains(a.message(), "too many open files") {
		t.Errorf("a call without descriptors: %s", a.raw)
	}
	if err := unix.Prlimit(status.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4096, Max: 4096}, nil); err != nil {
		t.Fatal(err)
	}
	if a := d.ask(call); a.Stdout != "x\n" {
		t.Errorf("after: %s", a.raw)
	}
	if a := ask(t, p.Socket, call); a.Stdout != "x\n" {
		t.Errorf("after, on a connection of its own: %s", a.raw)
	}
}

// TestChildIsKilled: a process that the kernel kills, as it does when memory is short,
// ends its own call only.
func TestChildIsKilled(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "dies", M{"binary": "/bin/sh"}, nil)
	a := ask(t, d.Socket, M{"tool": "dies", "args": []string{"-c", "kill -9 $$"}, "cwd": d.Root})
	if a.ExitCode != 137 || a.Code != "TOOL_FAILED" {
		t.Errorf("answered %s", a.raw)
	}
	if a := ask(t, d.Socket, M{"tool": "dies", "args": []string{"-c", "echo x"}, "cwd": d.Root}); a.Stdout != "x\n" {
		t.Errorf("the next: %s", a.raw)
	}
}

// group makes a group of processes that have 400 MiB together, and returns its folder and
// what counts there those that the kernel killed.
func group(t *testing.T) (dir, counted string) {
	t.Helper()
	mine, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	limit := ""
	for line := range strings.Lines(string(mine)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case fields[1] == "memory":
			dir, limit, counted = filepath.Join("/sys/fs/cgroup/memory", fields[2]), "memory.limit_in_bytes", "memory.oom_control"
		case fields[1] == "" && dir == "":
			dir, limit, counted = filepath.Join("/sys/fs/cgroup", fields[2]), "memory.max", "memory.events"
		}
	}
	if dir, err = os.MkdirTemp(dir, "toold-"); err != nil {
		t.Skipf("make a control group: %v", err)
	}
	t.Cleanup(func() {
		// It is empty a moment after its last process was waited for.
		for err := unix.Rmdir(dir); err == unix.EBUSY; err = unix.Rmdir(dir) {
		}
	})
	if err := os.WriteFile(filepath.Join(dir, limit), []byte("419430400"), 0o644); err != nil {
		t.Skipf("limit the memory of a control group: %v", err)
	}
	return dir, filepath.Join(dir, counted)
}

// TestMemoryIsShort: where the kernel kills a tool that takes all the memory that the
// daemon and its tools have together, its call fails, and every other goes on.
func TestMemoryIsShort(t *testing.T) {
	dir, counted := group(t)
	p := hosttest.StartProcess(t, config.Config{})
	hosttest.WriteTool(t, p.Tools, "grows", M{"binary": "/bin/sh", "limits": M{"concurrency": 4}}, nil)
	run := func(script string) *answer {
		return ask(t, p.Socket, M{"tool": "grows", "args": []string{"-c", script}, "cwd": p.Root})
	}
	st, err := client.NewAdmin(p.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The daemon and what it has running already, which starts tools.
	for pids := []string{fmt.Sprint(st.PID)}; len(pids) > 0; pids = pids[1:] {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(pids[0]), 0o644); err != nil {
			t.Fatal(err)
		}
		children, _ := filepath.Glob("/proc/" + pids[0] + "/task/*/children")
		for _, file := range children {
			text, _ := os.ReadFile(file)
			pids = append(pids, strings.Fields(string(text))...)
		}
	}
	if err := unix.Mkfifo(filepath.Join(p.Root, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	watched := watchAll(t, &hosttest.Daemon{Config: p.Config})
	other := make(chan *answer, 1)
	go func() { other <- run("read x <gate; echo $x") }()
	watched(events.Attempt)
	if a := run("ulimit -v 4000000; x=0123456789abcdef; while :; do x=$x$x; done"); a.ExitCode != 137 || a.Code != "TOOL_FAILED" {
		t.Errorf("answered %s", a.raw)
	}
	if text, err := os.ReadFile(counted); err != nil || !strings.Contains(string(text), "oom_kill 1\n") {
		t.Errorf("the kernel killed %s, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(p.Root, "gate"), []byte("x\n"), 0); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*answer{<-other, run("echo x")} {
		if a.Stdout != "x\n" {
			t.Errorf("another call: %s", a.raw)
		}
	}
}

// TestInotifyIsExhausted: a daemon that is told of no changes looks for them now and
// then, and says so.
func TestInotifyIsExhausted(t *testing.T) {
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// A limit of a user namespace of its own. A shell keeps it from being lifted.
	cmd := exec.Command("unshare", "-Ur", "sh", "-c", `echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"`, "sh",
		filepath.Join(hosttest.Programs(t), "toold"), "--tools", dir, "--root", dir, "--state", filepath.Join(dir, "state"), "--socket", filepath.Join(dir, "s"))
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Skipf("make a user namespace: %v", err)
	}
	w.Close()
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var said []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(said, []byte("no notice of changes in tools.d")) {
		n, err := r.Read(buf)
		said = append(said, buf[:n]...)
		if err != nil {
			if bytes.Contains(said, []byte("unshare:")) || bytes.Contains(said, []byte("max_inotify_instances")) {
				t.Skipf("a limit of its own: %s", said)
			}
			t.Fatalf("it ended without a warning: %s", said)
		}
	}
}

// TestClockWasAhead: a daemon whose clock was set back by an hour while it was stopped
// finds records of the future, and answers from them; nothing runs twice.
func TestClockWasAhead(t *testing.T) {
	p := hosttest.StartProcess(t, config.Config{Reliability: "all"})
	hosttest.WriteTool(t, p.Tools, "writes", M{"binary": "/bin/sh", "mutating": true}, nil)
	call := func(key string) *answer {
		return ask(t, p.Socket, M{"tool": "writes", "args": []string{"-c", "echo ran >>ledger; echo x"}, "cwd": p.Root, "idempotency_key": key})
	}
	if a := call("before"); a.Stdout != "x\n" {
		t.Fatalf("before: %s", a.raw)
	}
	sessions := func() int {
		t.Helper()
		var list []any
		if err := (&client.Sessions{Operator: client.NewAdmin(p.Admin)}).Query(t.Context(), "", "sessions", &list); err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	n := sessions()
	p.Kill()
	p.AgeRecords(-time.Hour)
	p.Start()
	if got := sessions(); got != n {
		t.Errorf("%d sessions, and were %d", got, n)
	}
	for _, key := range []string{"before", "after", "after"} {
		if a := call(key); a.Stdout != "x\n" {
			t.Errorf("%s: %s", key, a.raw)
		}
	}
	text, err := os.ReadFile(filepath.Join(p.Root, "ledger"))
	if err != nil || string(text) != "ran\nran\n" {
		t.Errorf("the tool ran: %q, %v", text, err)
	}
}

// TestSomethingElseInThePlaceOfAFile: whatever is in the place of a file that a daemon
// opens, a pipe or a folder, it serves, or ends and says which file it is; nothing
// hangs.
func TestSomethingElseInThePlaceOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state, toolsDir, settings := filepath.Join(dir, "state"), filepath.Join(dir, "tools.d"), filepath.Join(dir, "toold.json")
	module := filepath.Join(dir, "handler.wasm")
	err := errors.Join(os.Mkdir(toolsDir, 0o755), os.WriteFile(module, []byte(keepingHandler), 0o600),
		os.WriteFile(settings, []byte("{\"reliability\": \"all\"}\n"), 0o600), os.WriteFile(filepath.Join(dir, ".env"), []byte("A=b\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	hosttest.WriteTool(t, toolsDir, "keeps", M{"capabilities": M{"state": 200}}, map[string]string{"handler.wasm": module})
	hosttest.WriteTool(t, toolsDir, "writes", M{"binary": "/bin/echo", "mutating": true}, nil)
	socket, program := filepath.Join(dir, "s"), filepath.Join(hosttest.Programs(t), "toold")
	// run starts a daemon, has it called once it serves, and ends it.
	run := func(call func()) (said string, served bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--config", settings, "--tools", toolsDir, "--root", toolsDir, "--state", state, "--socket", socket)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		n, _ := out.Read(make([]byte, 1)) // it says that it is ready, or it ends
		if n > 0 {
			call()
			cmd.Process.Signal(syscall.SIGTERM)
		}
		io.Copy(io.Discard, out)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); ctx.Err() != nil || n > 0 && code != 0 || n == 0 && code != 64 && code != 70 {
			t.Errorf("exit code %d, %v", code, ctx.Err())
		}
		return errs.String(), n > 0
	}
	keeps := func() *answer { return ask(t, socket, M{"tool": "keeps", "cwd": toolsDir}) }
	const ran = "keeps answered no result" // which this module never does
	said, served := run(func() {
		if a := keeps(); !strings.Contains(a.message(), ran) {
			t.Errorf("before: %s", a.raw)
		}
		if a := ask(t, socket, M{"tool": "writes", "args": []string{"x"}, "cwd": toolsDir, "idempotency_key": "k"}); a.Stdout != "x\n" {
			t.Errorf("before: %s", a.raw)
		}
	})
	if !served {
		t.Fatal(said)
	}
	var files []string
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && path != module {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) < 15 {
		t.Fatalf("the daemon left %q: %v", files, err)
	}
	for _, file := range files {
		for kind, put := range map[string]func() error{
			"a pipe":   func() error { return unix.Mkfifo(file, 0o600) },
			"a folder": func() error { return os.MkdirAll(filepath.Join(file, "x"), 0o700) },
		} {
			name := strings.TrimPrefix(file, dir+"/")
			was, err := os.ReadFile(file)
			if err == nil {
				err = errors.Join(os.Remove(file), put())
			}
			if err != nil {
				t.Fatal(err)
			}
			said, served := run(func() {
				a := keeps()
				inTool := strings.HasPrefix(file, filepath.Join(toolsDir, "keeps"))
				if a.Code != "TOOL_BROKEN" || strings.Contains(a.message(), ran) == inTool {
					t.Errorf("%s in the place of %s: the call is answered %s", kind, name, a.raw)
				}
				if inTool && !strings.Contains(a.message(), filepath.Base(file)) { // with the reason
					t.Errorf("%s in the place of %s is not named: %s", kind, name, a.raw)
				}
			})
			if !served && !strings.Contains(said, file) {
				t.Errorf("%s in the place of %s: it ended and did not name it: %s", kind, name, said)
			}
			if err := errors.Join(os.RemoveAll(file), os.WriteFile(file, was, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
