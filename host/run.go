package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/callback"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/lfsshim"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/redisdb"
	"github.com/toold/toold/host/sshshim"
)

// Child does what this process is for when a daemon started it, from the
// daemon's own program, to supervise a call, to compile a module or to be the ssh
// or the git-lfs of a tool, or when a call started it to have its caller run a program. A program
// that runs a Host asks it first thing in main and exits with code when ok:
//
//	if code, ok := host.Child(); ok {
//		os.Exit(code)
//	}
func Child() (code int, ok bool) {
	switch {
	case sshshim.Is(): // first: what a tool can execute is nothing else, whatever its arguments
		return sshshim.Run(), true
	case lfsshim.Is():
		return lfsshim.Run(), true
	case callback.IsShim():
		return callback.RunShim(), true
	case process.IsSupervisor():
		return process.Supervise(), true
	case guest.IsCompiler():
		return guest.Compile(), true
	}
	return 0, false
}

// Run runs a whole daemon: it makes one from c, prints "ready" with its socket on stdout when
// it accepts calls, notifies systemd if asked to, and serves until ctx is done. For each
// receive on reload it replaces c with what load returns. Logs go to stderr, one JSON object
// per line.
//
// It listens on the sockets that systemd passes, and takes over from the daemon that started it
// for an upgrade. When it has handed over to another one it returns nil; if that one fails to
// take over, it serves again.
func Run(ctx context.Context, c config.Config, reload <-chan os.Signal, load func() (config.Config, error), stdout, stderr io.Writer) error {
	// Guests may use all processors that there are, and hinder nothing else.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(guest.Processors(runtime.GOMAXPROCS(0))))
	before, err := predecessor()
	if err != nil {
		return err
	}
	var in inheritance
	if before != nil {
		defer before.Close()
		if in, err = before.succeed(ctx, func(ctx context.Context) (map[string]string, error) { return rehearse(ctx, c) }); err != nil {
			return err
		}
	} else if in, err = activated(&c); err != nil {
		return err
	}
	refused := ""
	for {
		h, err := New(ctx, c, stderr)
		if err == nil {
			h.upgrades.inherited = in
			if refused != "" {
				h.upgrades.failed.Store(&refused)
			}
			err = h.run(ctx, reload, load, stdout, before)
		} else {
			in.close()
		}
		if err != nil && before != nil {
			before.send(note{Failed: err.Error()})
		}
		if err != nil || h.upgrades.next == nil {
			return err
		}
		if err = h.giveWay(ctx); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			h.upgrades.left.close()
			return nil
		}
		h.parts.Log.Error("the new daemon did not take over; this one serves again", "error", err)
		refused, in, c = err.Error(), h.upgrades.left, *h.config()
		before = nil
	}
}

// run serves until ctx ends or another daemon takes the place of h, and closes h.
func (h *Host) run(ctx context.Context, reload <-chan os.Signal, load func() (config.Config, error), stdout io.Writer, before *line) (err error) {
	defer func() { err = errors.Join(err, h.Close()) }()
	redisdb.LogTo(h.parts.Log) // or it would write lines that are no JSON
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-reload:
				notify("RELOADING=1")
				h.Reload(load()) // logs what comes of it
				notify("READY=1")
			case <-ctx.Done():
				return
			}
		}
	}()
	err = h.Serve(ctx, func() error {
		if before != nil {
			before.send(note{Serving: true})
		}
		_, err := fmt.Fprintln(stdout, "ready", h.config().Socket)
		notify("READY=1")
		return err
	})
	cancel()
	<-done
	return err
}

// giveWay has the successor of h, which is closed, serve. On an error it is dead, and
// what is left is this process's again.
func (h *Host) giveWay(ctx context.Context) (err error) {
	next := h.upgrades.next
	defer func() {
		if err != nil {
			next.kill()
		}
	}()
	next.SetWriteDeadline(time.Now().Add(takeoverTime)) // it may not read, and all calls wait
	for path, conns := range h.upgrades.left.conns {
		for _, c := range conns {
			// Where it has hung up, await says how.
			if err := next.send(note{Connection: path, Focus: c.Focus}, c.FD); err != nil && !errors.Is(err, unix.EPIPE) {
				return fmt.Errorf("pass a connection on: %w", err)
			}
		}
	}
	if err := next.send(note{Go: true}); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("tell the new daemon to begin: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, takeoverTime, errors.New("it did not serve in time"))
	defer cancel()
	if _, err := next.await(ctx, func(n note) bool { return n.Serving }); err != nil {
		return fmt.Errorf("the new daemon did not take over: %w", err)
	}
	// From the main process, which is the only one that systemd listens to.
	notify(fmt.Sprintf("MAINPID=%d", next.cmd.Process.Pid))
	h.upgrades.left.close()
	h.parts.Log.Info("upgraded", "successor", next.cmd.Process.Pid)
	return nil
}
