package host_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// shownJob is what a query says of a job.
type shownJob struct {
	State, Stdout, Stderr, Code string
	LastLine                    string `json:"last_line"`
	Note                        string `json:"output_note"`
	ExitCode                    int    `json:"exit_code"`
	StdoutBytes                 int    `json:"stdout_bytes"`
	Truncated                   bool
}

func jobOf(t testing.TB, socket, id string) shownJob {
	t.Helper()
	list := value[[]shownJob](t, socket, "", fmt.Sprintf("jobs.filter(j, j.id == %q && j.stdout != null)", id))
	if len(list) != 1 {
		t.Fatalf("%d jobs %s", len(list), id)
	}
	return list[0]
}

// runJob runs a script as a job until it has ended.
func runJob(t testing.TB, d *hosttest.Daemon, session, script string) (id string) {
	t.Helper()
	req := M{"tool": "sh", "args": []string{"-c", script}, "background": true}
	if session != "" {
		req["session"] = session
	}
	a := ask(t, d.Socket, req)
	if id = strings.TrimSpace(a.Stdout); a.Status != "success" || id == "" {
		t.Fatalf("%s", a.raw)
	}
	until(t, "the job ends", func() bool {
		return value[bool](t, d.Socket, "", fmt.Sprintf("jobs.exists(j, j.id == %q && j.state == 'done')", id))
	})
	return id
}

// outputDaemon keeps its state in a folder of its own.
func outputDaemon(t *testing.T, sessions config.SessionsConfig) (c config.Config, output string) {
	t.Helper()
	dir := t.TempDir()
	c = config.Config{State: filepath.Join(dir, "state"), Tools: filepath.Join(dir, "tools.d"), Roots: []string{filepath.Join(dir, "work")}, Sessions: sessions}
	for _, d := range []string{c.Tools, c.Roots[0]} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2-canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	hosttest.WriteTool(t, c.Tools, "sh", M{
		"binary": "/bin/sh", "capabilities": M{"exec": []string{"/bin", "/usr/bin"}},
		"secrets": M{"token": M{"env": "TOKEN", "from": "file:" + secret}},
	}, nil)
	return c, filepath.Join(c.State, "sessions", "output")
}

func filesIn(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// The output of a finished job is there after a restart, masked as it was; that of a
// session in memory never reaches the disk.
func TestJobOutputSurvivesARestart(t *testing.T) {
	c, output := outputDaemon(t, config.SessionsConfig{})
	d := hosttest.Start(t, c)
	a := session(t, d.Socket, "mutate", M{"op": "create", "params": M{"persist": false}})
	memory := strings.TrimSuffix(strings.TrimPrefix(string(a.Data), `{"id":"`), `"}`)
	runJob(t, d, memory, "echo only in memory")
	if files := filesIn(t, output); len(files) > 0 {
		t.Errorf("a session in memory has the files %q", files)
	}
	script := "echo out $TOKEN; echo err >&2; exit 3"
	id := runJob(t, d, "", script)
	long := runJob(t, d, "", "head -c 700000 /dev/zero | tr '\\0' x; echo end")
	end := func() string { // the whole is more than an answer has
		return value[string](t, d.Socket, "", fmt.Sprintf("jobs.filter(j, j.id == %q).map(j, string(j.stdout.size()) + j.stdout.substring(j.stdout.size() - 6) + string(j.truncated) + string(j.stdout_bytes))[0]", long))
	}
	want, wantEnd := jobOf(t, d.Socket, id), end()
	if want.Stdout != "out [secret]\n" || want.Stderr != "err\n" || want.ExitCode != 3 || wantEnd != "262144xxend\ntrue700004" {
		t.Fatalf("%+v %q", want, wantEnd)
	}
	d.Stop(t)
	for _, name := range filesIn(t, output) {
		path := filepath.Join(output, name)
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("hunter2")) || bytes.Contains(b, []byte("only in memory")) {
			t.Errorf("%s has %.200q: %v", name, b, err)
		}
	}
	d = hosttest.Start(t, c)
	if got, gotEnd := jobOf(t, d.Socket, id), end(); got != want || gotEnd != wantEnd {
		t.Errorf("after a restart: %+v %q, before: %+v %q", got, gotEnd, want, wantEnd)
	}

	// It goes with the job: the last 20 are kept.
	for i := range 20 {
		runJob(t, d, "", fmt.Sprint("echo ", i))
	}
	// The oldest is removed once the end of the newest is told.
	until(t, "20 jobs have 20 files", func() bool { return len(filesIn(t, output)) == 20 })
}

// What is not whole, or is no output at all, is said, and the rest serves.
func TestJobOutputDamaged(t *testing.T) {
	c, output := outputDaemon(t, config.SessionsConfig{})
	d := hosttest.Start(t, c)
	var jobs []string
	path := map[string]string{}
	for i := range 6 {
		before := filesIn(t, output)
		jobs = append(jobs, runJob(t, d, "", fmt.Sprintf("echo job %d; echo more >&2", i)))
		for _, name := range filesIn(t, output) {
			if !strings.Contains(strings.Join(before, " "), name) {
				path[jobs[i]] = filepath.Join(output, name)
			}
		}
	}
	d.Stop(t)
	whole, err := os.ReadFile(path[jobs[0]])
	if err != nil {
		t.Fatal(err)
	}
	read := func(id string) []byte {
		t.Helper()
		b, err := os.ReadFile(path[id])
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path[jobs[1]], whole[:len(whole)/2]) // torn
	write(path[jobs[2]], bytes.Replace(read(jobs[2]), []byte("job 2\n"), []byte("job 9\n"), 1))
	write(path[jobs[3]], whole) // another job's
	os.Remove(path[jobs[4]])
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	write(elsewhere, read(jobs[5]))
	os.Remove(path[jobs[5]])
	if err := os.Symlink(elsewhere, path[jobs[5]]); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(output, "notes.txt")
	write(foreign, []byte("somebody's"))
	left := path[jobs[0]] + ".new" // of a daemon that was killed while it wrote
	write(left, whole[:10])
	gone := filepath.Join(output, strings.Repeat("a", 24)+"."+strings.Repeat("0", 32)) // of a session that is gone
	write(gone, whole)

	d = hosttest.Start(t, c)
	if got := jobOf(t, d.Socket, jobs[0]); got.Stdout != "job 0\n" || got.Stderr != "more\n" || got.Note != "" {
		t.Errorf("the one that is whole: %+v", got)
	}
	for i, id := range jobs[1:] {
		got := jobOf(t, d.Socket, id)
		note := "damaged"
		if i+1 == 4 {
			note = "not kept"
		}
		if got.Stdout != "" || got.Stderr != "" || !strings.Contains(got.Note, note) || got.State != "done" {
			t.Errorf("job %d: %+v", i+1, got)
		}
	}
	for _, id := range []string{jobs[1], jobs[2], jobs[3], jobs[5]} {
		if !strings.Contains(d.Logs(), filepath.Base(path[id])) {
			t.Errorf("the log does not say %s", path[id])
		}
	}
	for file, stays := range map[string]bool{foreign: true, left: false, gone: false, path[jobs[1]]: true} {
		if _, err := os.Lstat(file); (err == nil) != stays {
			t.Errorf("%s is there: %v, must be %v", file, err == nil, stays)
		}
	}
	if !strings.Contains(d.Logs(), "notes.txt") {
		t.Error("the log does not say which file is none of ours")
	}
}

// No identity has more than its share of the disk: the oldest output goes.
func TestJobOutputIsBounded(t *testing.T) {
	limit := int64(100_000)
	c, output := outputDaemon(t, config.SessionsConfig{JobOutput: &limit})
	used := func() (n int64) {
		for _, name := range filesIn(t, output) {
			info, err := os.Stat(filepath.Join(output, name))
			if err != nil {
				t.Fatal(err)
			}
			n += info.Size()
		}
		return n
	}
	d := hosttest.Start(t, c)
	var jobs []string
	for range 4 {
		jobs = append(jobs, runJob(t, d, "", "head -c 40000 /dev/zero | tr '\\0' x"))
	}
	huge := runJob(t, d, "", "head -c 140000 /dev/zero | tr '\\0' x")
	if n := used(); n > limit || n < 80_000 {
		t.Errorf("%d bytes on the disk", n)
	}
	if got := jobOf(t, d.Socket, jobs[0]); len(got.Stdout) != 40_000 || got.Note != "" {
		t.Errorf("before a restart all is there: %d bytes, %s", len(got.Stdout), got.Note)
	}
	d.Stop(t)
	limit = 50_000
	d = hosttest.Start(t, c)
	for i, id := range append(jobs, huge) {
		got := jobOf(t, d.Socket, id)
		if kept := i == 3; kept != (len(got.Stdout) == 40_000) || kept != (got.Note == "") {
			t.Errorf("job %d: %d bytes, %q", i, len(got.Stdout), got.Note)
		}
	}
	if n := used(); n > limit {
		t.Errorf("%d bytes on the disk with a lower limit", n)
	}
	d.Stop(t)
	limit = 0
	d = hosttest.Start(t, c)
	runJob(t, d, "", "echo a")
	if got := jobOf(t, d.Socket, jobs[3]); got.Stdout != "" || got.Note == "" {
		t.Errorf("where none are kept: %+v", got)
	}
}
