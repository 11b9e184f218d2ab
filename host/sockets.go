package host

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/dashboard"
	"github.com/toold/toold/host/mcp"
	"github.com/toold/toold/host/pipeline"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/webserver"
)

// sockets are what a daemon listens on.
type sockets struct {
	parts    *pipeline.Parts
	upgrades *upgrades

	tools   []*server.Server
	mcp     []*server.Door
	web     *mcp.Web // nil without one
	admin   *server.Admin
	metrics net.Listener
	page    *dashboard.Dashboard // nil without one
}

// mcpAddr is the address of MCP over HTTP, or empty.
func (on *sockets) mcpAddr() string {
	if on.web == nil {
		return ""
	}
	return on.web.Addr()
}

// pageAddr is where the page is, without its token, or empty.
func (on *sockets) pageAddr() string {
	switch {
	case on.page == nil:
		return ""
	case on.page.Addr() == "":
		return config.DashboardAdmin
	}
	return on.page.Addr()
}

// serve serves all of them in g until ctx ends, but for the operator's.
func (on *sockets) serve(ctx context.Context, g *errgroup.Group) {
	for _, s := range on.tools {
		g.Go(func() error { return s.Serve(ctx) })
	}
	for _, d := range on.mcp {
		g.Go(func() error { return d.Serve(ctx) })
	}
	if on.web != nil {
		g.Go(on.web.Serve)
	}
	if on.page != nil {
		g.Go(on.page.Serve)
	}
	if on.metrics != nil {
		g.Go(func() error { return serveMetrics(on.metrics, on.parts.Metrics.Handler()) })
	}
}

// shutdown lets what runs finish until ctx ends, and closes all of them.
func (on *sockets) shutdown(ctx context.Context) error {
	on.parts.Events.Close() // who watches waits for no end of its own
	down := new(errgroup.Group)
	for _, s := range on.tools {
		down.Go(func() error { return s.Shutdown(ctx) })
	}
	for _, d := range on.mcp {
		down.Go(func() error { return d.Shutdown(ctx) })
	}
	if on.web != nil {
		down.Go(func() error { return on.web.Shutdown(ctx) })
	}
	down.Go(func() error { return on.parts.Sessions.Close(ctx) })
	err := down.Wait()
	if on.metrics != nil {
		on.metrics.Close()
	}
	if on.page != nil {
		on.page.Close()
	}
	if on.admin != nil {
		err = errors.Join(err, on.admin.Shutdown(ctx))
	}
	return err
}

// maxScrapers is how many connections are open to the metrics at a time.
const maxScrapers = 64

// serveMetrics serves the metrics over TCP until l is closed.
func serveMetrics(l net.Listener, metrics http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	srv := webserver.New(webserver.Config{Handler: mux, MaxConns: maxScrapers, MaxHeader: 16 << 10, Patience: 10 * time.Second})
	defer srv.Close()
	return srv.Serve(l)
}

// listener is what the three kinds of sockets have in common in an upgrade.
type listener interface {
	Pause()
	Resume()
	Copy() (*server.Given, error)
	Claim()
}

// byPath calls f with each socket until it has an error.
func (on *sockets) byPath(f func(path string, l listener) error) error {
	for _, s := range on.tools {
		if err := f(s.Path(), s); err != nil {
			return err
		}
	}
	for _, d := range on.mcp {
		if err := f(d.Path(), d); err != nil {
			return err
		}
	}
	return f(on.admin.Path(), on.admin)
}

// pass gives the next daemon what this one listens with.
func (on *sockets) pass(l *line) error {
	return on.byPath(func(path string, from listener) error {
		g, err := from.Copy()
		if err != nil {
			return err
		}
		defer unix.Close(g.FD)
		return l.send(note{Listen: path, Own: g.Own}, g.FD)
	})
}

// pause begins no more calls; those that come wait. The operator is still answered.
func (on *sockets) pause() {
	on.upgrades.gate.set(true)
	for _, s := range on.tools {
		s.Pause()
	}
	for _, d := range on.mcp {
		d.Pause()
	}
}

// resume ends what pause began.
func (on *sockets) resume() {
	for _, s := range on.tools {
		s.Resume()
	}
	for _, d := range on.mcp {
		d.Resume()
	}
	on.upgrades.gate.set(false)
}

// busy counts what paused sockets have not answered, and requests that are only
// partly there.
func (on *sockets) busy() (calls, partial int) {
	for _, s := range on.tools {
		c, p := s.Busy()
		calls, partial = calls+c, partial+p
	}
	return calls, partial
}

// leave makes the sockets ones that are closed without an end of what they are to
// others, and returns what goes on in the next daemon, or again in this process.
func (on *sockets) leave() (in inheritance, err error) {
	close(on.upgrades.over)
	in.given, in.conns = map[string]*server.Given{}, map[string][]server.Connection{}
	err = on.byPath(func(path string, l listener) error {
		g, err := l.Copy()
		in.given[path] = g
		if err != nil {
			delete(in.given, path)
		}
		return err
	})
	if err != nil {
		return in, err
	}
	for _, s := range on.tools {
		in.conns[s.Path()] = s.Leave()
	}
	for _, d := range on.mcp {
		d.Leave()
	}
	on.admin.Leave()
	return in, nil
}

// takeOver serves the connections of the daemon before this one, and gives up what
// this one has no use for.
func (on *sockets) takeOver() {
	in := &on.upgrades.inherited
	on.byPath(func(_ string, l listener) error { l.Claim(); return nil })
	for _, s := range on.tools {
		for _, c := range in.conns[s.Path()] {
			if err := s.Take(c); err != nil {
				on.parts.Log.Error("take over a connection", "error", err)
			}
		}
		delete(in.conns, s.Path())
	}
	for path := range in.given {
		on.parts.Log.Warn("a socket was passed on that the configuration does not name; it is closed", "socket", path)
	}
	in.close()
}
