package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/toold/toold/host/callback"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/redisdb"
)

// Child does what this process is for when a daemon started it, from the
// daemon's own program, to supervise a call, to compile a module or to be the ssh
// of a tool, or when a call started it to have its caller run a program. A program
// that runs a Host asks it first thing in main and exits with code when ok:
//
//	if code, ok := host.Child(); ok {
//		os.Exit(code)
//	}
func Child() (code int, ok bool) {
	switch {
	case egress.IsShim(): // first: what a tool can execute is nothing else, whatever its arguments
		return egress.Shim(), true
	case callback.IsShim():
		return callback.RunShim(), true
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
	// Guests may use all processors that there are, and hinder nothing else.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(guest.Processors(runtime.GOMAXPROCS(0))))
	h, err := New(ctx, c, stderr)
	if err != nil {
		return err
	}
	defer h.Close()
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
		_, err := fmt.Fprintln(stdout, "ready", c.Socket)
		notify("READY=1")
		return err
	})
	cancel()
	<-done
	return err
}
