package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/regular"
	"golang.org/x/sys/unix"
)

const (
	// rehearsalTime bounds how long a new daemon takes until its tools are loaded.
	rehearsalTime = 5 * time.Minute
	// pauseTime bounds how long calls wait for those that run to end. Where these
	// take longer, calls are taken again, until they have ended.
	pauseTime = 3 * time.Second
	// maxBroken is how many tools one has room for.
	maxBroken = 100
)

// upgrade has binary, or the program that this one was when it is empty, take the
// place of this daemon, which serves on, and returns its process id when it is about to. On an error
// nothing has changed. within bounds the wait for calls that take long.
func (h *Host) upgrade(ctx context.Context, on *sockets, binary string, within time.Duration) (pid int, err error) {
	u := &h.upgrades
	switch {
	case runtime.GOOS != "linux":
		return 0, errors.New("upgrade: only a daemon on Linux can be; stop it, and start the new one")
	case os.Getpid() == 1:
		return 0, errors.New("upgrade: the daemon is process 1, with which its container ends; replace the container")
	case !u.mu.TryLock():
		return 0, errors.New("upgrade: another upgrade is under way; wait for it")
	}
	defer u.mu.Unlock()
	if !h.ready.Load() {
		return 0, errors.New("upgrade: this daemon starts or stops; try again")
	}
	if binary == "" {
		if binary, err = os.Executable(); err != nil {
			return 0, fmt.Errorf("upgrade: find the program: %w; name it with --binary", err)
		}
	}
	if !filepath.IsAbs(binary) {
		return 0, fmt.Errorf("upgrade: %q is not an absolute path", binary)
	}
	next, err := startSuccessor(binary)
	if err != nil {
		return 0, fmt.Errorf("upgrade: start the new daemon: %w; this one still serves", err)
	}
	pid = next.cmd.Process.Pid
	log := h.parts.Log.With("binary", binary, "successor", pid)
	log.Info("upgrade begins")
	defer func() {
		if err != nil {
			next.kill()
			err = fmt.Errorf("upgrade to %s: %w; this daemon still serves", binary, err)
			log.Error("upgrade failed", "error", err)
		}
	}()
	next.SetWriteDeadline(time.Now().Add(takeoverTime))                       // it may never read
	if err := on.pass(next.line); err != nil && !errors.Is(err, unix.EPIPE) { // then it has ended, and await says how
		return 0, fmt.Errorf("pass the sockets on: %w", err)
	}
	loading, cancel := context.WithTimeoutCause(ctx, rehearsalTime+10*time.Second, errors.New("it was not ready in time"))
	defer cancel()
	n, err := next.await(loading, func(n note) bool { return n.Ready })
	if err != nil {
		return 0, fmt.Errorf("the new daemon did not become ready: %w", err)
	}
	for _, s := range h.parts.Tools.List() {
		if reason, bad := n.Broken[s.Name]; bad && s.State == catalog.StateOK {
			return 0, fmt.Errorf("the new daemon does not serve the tool %s, which this one serves: %s", s.Name, reason)
		}
	}
	if err := h.quiesce(ctx, on, within, next.ended); err != nil {
		return 0, err
	}
	on.admin.Pause() // who asks from here on is answered by the one that serves
	select {
	case u.handing <- next:
		// While it leaves it is still asked for its status, by who upgrades too: why an
		// earlier upgrade failed is not to be taken for the end of this one.
		u.failed.Store(nil)
		return pid, nil
	case <-ctx.Done():
	case <-next.ended:
		err = errors.New("the new daemon has ended")
	}
	on.admin.Resume()
	on.resume()
	return 0, errors.Join(err, ctx.Err())
}

// quiesce returns when no call runs and none is begun. While calls run for longer
// than pauseTime, others are taken: nobody waits longer for somebody else's call.
func (h *Host) quiesce(ctx context.Context, on *sockets, within time.Duration, ended <-chan struct{}) (err error) {
	long := map[string]bool{} // executions that outlasted a pause
	limit := time.NewTimer(within)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	on.pause()
	paused, pausedAt := true, time.Now()
	defer func() {
		if err != nil {
			on.resume()
		}
	}()
	for {
		running := h.parts.Sessions.Running()
		if paused {
			calls, partial := on.busy()
			over := time.Since(pausedAt) > pauseTime
			busy := calls > 0 || len(running) > 0 || h.pipeline.Running() > 0 || h.upgrades.inside.Load() > 0
			switch {
			case !busy && (partial == 0 || over):
				return nil
			case over:
				on.resume()
				paused = false
				clear(long)
				for _, id := range running {
					long[id] = true
				}
			}
		} else if !slices.ContainsFunc(running, func(id string) bool { return long[id] }) && time.Since(pausedAt) > 2*pauseTime {
			on.pause()
			paused, pausedAt = true, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("given up: %w", ctx.Err())
		case <-ended:
			return errors.New("the new daemon has ended before it took over")
		case <-limit.C:
			return fmt.Errorf("calls still run after %v: %s; wait for them, or end them with toolctl session abort, and upgrade again, or restart the daemon, which ends them", within, strings.Join(running[:min(len(running), 8)], ", "))
		}
	}
}

// rehearse makes a daemon of c with a state folder of its own, and says which tools it
// does not serve, and why. What it compiles is kept for the real one.
func rehearse(ctx context.Context, c config.Config) (broken map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rehearsalTime)
	defer cancel()
	trial, err := os.MkdirTemp(c.State, rehearsalPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder to try the new daemon in: %w", err)
	}
	defer os.RemoveAll(trial)
	if err := os.MkdirAll(filepath.Join(trial, "tools"), 0o700); err != nil {
		return nil, err
	}
	// A setup.sh that has run is not run again.
	if past, err := regular.ReadFile(filepath.Join(c.State, "tools", "tools.json")); err == nil {
		if err := os.WriteFile(filepath.Join(trial, "tools", "tools.json"), past, 0o600); err != nil {
			return nil, err
		}
	}
	real := c.State
	c.State, c.Traces, c.Metrics = trial, "", ""
	h, err := newHost(ctx, c, io.Discard, filepath.Join(real, "cache"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := h.parts.Tools.Ready(ctx); err != nil {
		return nil, fmt.Errorf("the tools were not loaded in time: %w", err)
	}
	broken = map[string]string{}
	for _, s := range h.parts.Tools.List() {
		if s.State != catalog.StateOK {
			broken[s.Name] = s.Reason[:min(len(s.Reason), 400)]
		}
	}
	// One that is not named would be taken for one that serves.
	if len(broken) > maxBroken {
		return nil, fmt.Errorf("%d tools are broken, and no more than %d can be compared with those that serve; repair or remove some", len(broken), maxBroken)
	}
	return broken, nil
}
