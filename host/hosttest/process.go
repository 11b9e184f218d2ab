package hosttest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/config"
)

// processVerb is the argument with which a test binary is a daemon.
const processVerb = "hosttest-daemon"

// Process is a daemon in a process of its own, which a test can kill and start again.
type Process struct {
	config.Config
	// Root is the one root.
	Root string

	t     testing.TB
	file  string // its toold.json
	cmd   *exec.Cmd
	begin func(*exec.Cmd) error // starts cmd
	logs  *logBuffer
	done  chan error
}

// StartProcess starts a daemon as Start does, in a process that is killed when the
// test ends.
func StartProcess(t testing.TB, c config.Config) *Process {
	t.Helper()
	return startProcess(t, c, (*exec.Cmd).Start)
}

func startProcess(t testing.TB, c config.Config, begin func(*exec.Cmd) error) *Process {
	t.Helper()
	dir := complete(t, &c)
	p := &Process{Config: c, Root: c.Roots[0], t: t, file: filepath.Join(dir, "toold.json"), logs: newLogBuffer(), begin: begin}
	text, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(p.file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", p.logs)
		}
	})
	p.Start()
	return p
}

// Start starts the daemon again and waits until it serves.
func (p *Process) Start() {
	p.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(self, processVerb, p.file)
	p.cmd.Stdout, p.cmd.Stderr = w, p.logs
	err = p.begin(p.cmd)
	w.Close()
	if err != nil {
		p.t.Fatal(err)
	}
	p.done = make(chan error, 1)
	go func() { p.done <- p.cmd.Wait() }()
	// It reports that it is ready, or it ends; what it runs does not have this pipe.
	if n, _ := r.Read(make([]byte, 1)); n == 0 {
		p.t.Fatalf("the daemon did not start: %v", <-p.done)
	}
}

// Kill ends the daemon with SIGKILL and waits for it; a second call does nothing.
func (p *Process) Kill() {
	if p.done == nil {
		return
	}
	p.cmd.Process.Kill()
	<-p.done
	p.done = nil
}

// AwaitLog is Daemon.AwaitLog.
func (p *Process) AwaitLog(after int, words ...string) {
	p.t.Helper()
	if err := p.logs.wait(patience, p.logs.hasLine(after, words), p.done); err != nil {
		p.t.Fatalf("wait for a line of the log with %q: %v", words, err)
	}
}

// Logs returns all that the daemon logged, also before it was killed.
func (p *Process) Logs() string { return p.logs.String() }

// AgeRecords has the calls in the file of idempotency records begin and end that much
// earlier. It is for a daemon that was killed, and saves a test from waiting.
func (p *Process) AgeRecords(by time.Duration) {
	p.t.Helper()
	db, err := bolt.Open(filepath.Join(p.State, "idempotency.db"), 0o600, &bolt.Options{Timeout: patience})
	if err != nil {
		p.t.Fatal(err)
	}
	defer db.Close()
	const head = 10 // before the JSON of a record
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("records"))
		aged := map[string][]byte{}
		err := b.ForEach(func(name, value []byte) error {
			var r map[string]json.RawMessage
			if err := json.Unmarshal(value[head:], &r); err != nil {
				return err
			}
			for _, field := range []string{"claimedAt", "endedAt"} {
				var ms int64
				if json.Unmarshal(r[field], &ms) == nil && ms > 0 {
					r[field] = fmt.Appendf(nil, "%d", ms-by.Milliseconds())
				}
			}
			text, err := json.Marshal(r)
			aged[string(name)] = append(append([]byte{}, value[:head]...), text...)
			return err
		})
		for name, value := range aged {
			if err == nil {
				err = b.Put([]byte(name), value)
			}
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// serveProcess is what the process of a Process does. It returns its exit code.
func serveProcess(file string) int {
	nothing := func(string) (string, bool) { return "", false }
	c, err := config.Load(file, nothing)
	if err == nil {
		err = c.Complete(nothing)
	}
	if err == nil {
		ctx := context.Background()
		err = host.Run(ctx, c, nil, func() (config.Config, error) { return c, nil }, os.Stdout, os.Stderr)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
