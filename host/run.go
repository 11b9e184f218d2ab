package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/process"
)

// Child does what this process is for when a daemon started it, from the
// daemon's own program, to supervise a call or to compile a module. A program
// that runs a Host asks it first thing in main and exits with code when ok:
//
//	if code, ok := host.Child(); ok {
//		os.Exit(code)
//	}
func Child() (code int, ok bool) {
	switch {
	case process.IsSupervisor():
		return process.Supervise(), true
	case guest.IsCompiler():
		return guest.Compile(), true
	}
	return 0, false
}

// Run is a whole daemon: it makes one from c, prints "ready" with its socket
// on stdout when it accepts calls, tells systemd where that asks for it, and
// serves until ctx is done. For each receive on reload it takes what load
// returns in the place of c. Logs go to stderr, one JSON object a line.
func Run(ctx context.Context, c config.Config, reload <-chan os.Signal, load func() (config.Config, error), stdout, stderr io.Writer) error {
	h, err := New(ctx, c, stderr)
	if err != nil {
		return err
	}
	defer h.Close()
	idempotency.LogRedis(h.parts.Log) // or it would write lines that are no JSON
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
		_, err := fmt.Fprintln(stdout, "ready", c.Socket)
		notify("READY=1")
		return err
	})
	cancel()
	<-done
	return err
}

// notify tells systemd a state, where NOTIFY_SOCKET says that it asks.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	c.Write([]byte(state))
}

// lockPatience is how long a daemon waits for another to be gone.
const lockPatience = 2 * time.Second

// lockState makes this the one daemon of a state folder, for as long as the
// file that it returns is open. The kernel lets go of the lock with the
// process, however it ends.
func lockState(state string) (*os.File, error) {
	path := filepath.Join(state, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	// A daemon that was killed while it started a program leaves the lock to
	// that for as long as it takes to execute.
	for end := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 100) {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the state folder: %s is in use by another toold; stop it, or choose another --instance or --state", state)
	}
	return f, nil
}
