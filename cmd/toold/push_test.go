package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// cuts is how many pushes TestPushResolves has cut off at least before it ends. The
// default is for every run; TOOLD_KILLS=1000 is the whole.
func cuts(t *testing.T) int { return hosttest.Kills(t, 24) }

// TestPushResolves cuts pushes off while they run: it kills the daemon, kills git,
// lets their time run out and their callers leave. Each caller then uses its key
// again, and is held to be told the truth: what is answered as done is at the
// remote, and what runs again was not. Whoever asks gets an answer without a
// person's help, but for one in twenty at most.
func TestPushResolves(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	tools, root := filepath.Join(dir, "tools.d"), filepath.Join(dir, "work")
	for _, d := range []string{tools, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	hosttest.WriteTool(t, tools, "git", hosttest.ReadyJSON(t, "git"), map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	if err := hosttest.ShareCompiled(hosttest.ModuleRoot(), filepath.Join(dir, "state")); err != nil {
		t.Fatal(err)
	}
	p := &pushes{t: t, root: root, socket: filepath.Join(dir, "tool.sock"), want: cuts(t), kill: make(chan struct{}, 1), count: map[string]int{}}
	p.daemon = &victim{t: t, name: daemonProgram(t), until: "ready", log: log, args: []string{
		"--tools", tools, "--root", root, "--socket", p.socket, "--state", filepath.Join(dir, "state"),
		"--store", "file", "--reliability", "all", "--log-level", "info",
	}}
	p.daemon.start()
	t.Cleanup(func() { p.daemon.kill() })
	p.run()
	if p.count["stayed unknown"] > 0 || t.Failed() {
		text, _ := os.ReadFile(log.Name())
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "looked into") && strings.Contains(line, `"unknown"`) || strings.Contains(line, "recorded") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
}

type pushes struct {
	t      *testing.T
	daemon *victim
	socket string
	root   string
	want   int
	kill   chan struct{} // kills the daemon

	mu    sync.Mutex
	count map[string]int // guarded by mu
	cut   int            // guarded by mu
}

func (p *pushes) add(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count[what]++
}

func (p *pushes) cutOff() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

func (p *pushes) run() {
	var callers sync.WaitGroup
	for i := range 4 {
		c := p.newPusher(i)
		callers.Go(func() {
			for n := 0; p.cutOff() < p.want && !p.t.Failed(); n++ {
				c.push(n)
			}
		})
	}
	kills := 0
	ended := make(chan struct{})
	go func() {
		callers.Wait()
		close(ended)
	}()
	for over := false; !over; {
		select {
		case <-p.kill:
			p.daemon.kill()
			p.daemon.start()
			kills++
		case <-ended:
			over = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	resolved, open := p.count["answered from the first attempt"]+p.count["ran again"], p.count["stayed unknown"]
	p.t.Logf("the daemon was killed %d times; of %d pushes that were cut off %d resolved themselves (%.1f %%): %v", kills, p.cut, resolved, 100*float64(resolved)/float64(max(resolved+open, 1)), p.count)
	if 20*open > resolved+open {
		p.t.Errorf("%d of %d pushes stayed unknown", open, resolved+open)
	}
}

// pusher is one caller with a repository and a remote of its own.
type pusher struct {
	*pushes
	n            int
	usual        time.Duration // of a push that is not cut off
	repo, remote string
}

func (p *pushes) newPusher(n int) *pusher {
	c := &pusher{pushes: p, n: n, repo: filepath.Join(p.root, fmt.Sprint("repo", n)), remote: filepath.Join(p.root, fmt.Sprint("remote", n, ".git"))}
	c.git(p.root, "init", "-q", "--bare", "-b", "main", c.remote)
	c.git(p.root, "init", "-q", "-b", "main", c.repo)
	c.git(c.repo, "remote", "add", "origin", c.remote)
	c.git(c.repo, "config", "gc.auto", "0")
	c.git(c.remote, "config", "gc.auto", "0")
	c.usual = 2 * time.Second // until it is known
	return c
}

func (c *pusher) git(dir string, args ...string) string {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.root, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Errorf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// push commits, pushes that, has it cut off, and asks again until there is an answer.
func (c *pusher) push(n int) {
	c.git(c.repo, "commit", "-q", "--allow-empty", "-m", fmt.Sprint(n))
	object := c.git(c.repo, "rev-parse", "HEAD")
	q := &wire.Call{Tool: "git", Args: []string{"push", "origin", "main"}, Cwd: c.repo, IdempotencyKey: fmt.Sprintf("key-%d-%d", c.n, n)}
	first := *q
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	how := []string{"the daemon", "its time", "git", "its caller"}[rand.IntN(4)]
	// A random moment of the push: nothing that happens is waited for.
	after := time.Duration(rand.Int64N(int64(c.usual + c.usual/4)))
	switch how {
	case "the daemon":
		defer time.AfterFunc(after, func() {
			select {
			case c.kill <- struct{}{}:
			default: // it is about to be killed
			}
		}).Stop()
	case "its time":
		first.Timeout = after + time.Millisecond
	case "git":
		defer time.AfterFunc(after, func() { c.killGit() }).Stop()
	case "its caller":
		defer time.AfterFunc(after, cancel).Stop()
	}
	start := time.Now()
	res, out, err := c.ask(ctx, &first)
	if err == nil && res.Err == nil && res.ExitCode == 0 && !res.FromCache {
		c.add("not cut off")
		c.usual = time.Since(start)
		c.check(object, res, out, false)
		return
	}
	if errors.Is(err, client.ErrNoDaemon) { // it has not begun
		c.add("met no daemon")
	}
	c.mu.Lock()
	c.cut++
	c.mu.Unlock()
	c.add("cut off by " + how)
	unknown := false
	for end := time.Now().Add(20 * time.Second); ; {
		res, out, err = c.ask(context.Background(), q)
		switch {
		case err != nil:
			continue // the daemon is not there, or was killed again
		case res.Err == nil && res.ExitCode == 0:
			if res.FromCache {
				c.add("answered from the first attempt")
			} else {
				c.add("ran again")
			}
			if unknown {
				c.add("resolved later")
			}
			c.check(object, res, out, true)
			return
		case res.Err == nil && strings.Contains(out, ".lock': File exists"):
			// Git was killed between two steps of its own, and left its lock behind:
			// the push ran again, which was right, and answers why it cannot.
			c.add("ran again")
			c.add("found the lock of the first attempt")
			c.unlock()
			c.git(c.repo, "push", "-q", "origin", "main")
			return
		case res.Err == nil && res.FromCache:
			// What git answered when it was killed by somebody else.
			c.add("answered from the first attempt")
			c.add("a failure")
			c.unlock()
			c.git(c.repo, "push", "-q", "origin", "main")
			return
		case res.Err != nil && res.Err.Code == fault.OutcomeUnknown:
			unknown = true
			if time.Now().After(end) {
				c.add("stayed unknown")
				c.t.Logf("%s stays unknown: %v; remote %s, pushed %s", q.IdempotencyKey, res.Err, c.git(c.remote, "rev-parse", "main"), object)
				c.unlock()
				c.git(c.repo, "push", "-q", "origin", "main")
				return
			}
			<-time.After(100 * time.Millisecond)
		default:
			c.t.Errorf("%s: %+v, %v\n%s", q.IdempotencyKey, res, res.Err, out)
			return
		}
	}
}

// check holds an answer against what is at the remote.
func (c *pusher) check(object string, res *wire.Result, out string, again bool) {
	if at := c.git(c.remote, "rev-parse", "main"); at != object {
		c.t.Errorf("a wrong verdict: the push of %s is answered as done (from the record: %v), and the remote is at %s\n%s", object, res.FromCache, at, out)
	}
	if !res.FromCache && again && strings.Contains(out, "up-to-date") {
		c.t.Errorf("a wrong verdict: the push of %s ran again, and was there already\n%s", object, out)
	}
}

func (c *pusher) ask(ctx context.Context, q *wire.Call) (*wire.Result, string, error) {
	var out strings.Builder
	res, err := client.Stream(ctx, c.socket, q, wire.Local{Stdout: io.Discard, Stderr: &out})
	return res, out.String(), err
}

// unlock removes what a git that was killed left behind.
func (c *pusher) unlock() {
	for _, dir := range []string{c.remote, filepath.Join(c.repo, ".git")} {
		filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".lock") {
				os.Remove(path)
			}
			return nil
		})
	}
}

// killGit kills every git that works for c.
func (c *pusher) killGit() {
	err := hosttest.KillProcesses("git", func(cmdline, cwd string) bool {
		return (cwd == c.repo || cwd == c.remote) && strings.Contains(cmdline, "push")
	})
	if err != nil {
		c.t.Error(err)
	}
}
