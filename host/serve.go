package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toold/toold/host/admin"
	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/dashboard"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/wire"
)

// Version is the version of this build: the module's, or what the version
// control says of a build from a checkout.
func Version() string {
	if released != "" {
		return released
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "(devel)"
}

// released is the version of a release. The linker sets it: what the go command takes
// from version control depends on the kind of checkout.
var released string

// admitsOperator refuses what a tool runs: it may have the daemon's own user,
// and where there are no namespaces nothing confines what it connects to. Who
// cannot be told from a tool is refused as well.
func (h *Host) admitsOperator(p server.Peer) error {
	switch {
	case p.PID == 0:
		return nil // of a namespace around this one; what tools run can be seen
	case h.parts.Runner.Runs(p.PID):
		return errors.New("the admin socket is the operator's, and this process is, or may be, one that a tool runs: it descends from toold, or it has a system call filter and no_new_privs like one; call from another shell")
	case p.Ended():
		return errors.New("the admin socket is the operator's, and the process that connected has ended: keep it until it is answered")
	}
	return nil
}

// admitsCaller refuses what a tool runs on the sockets that containers call: a
// tool would act with the rights of a socket that is not its caller's. Modules
// call through tool_call, as who called them.
func (h *Host) admitsCaller(p server.Peer) error {
	if p.PID == 0 {
		return nil // of a container, whose processes cannot be seen from here
	}
	if uid := os.Geteuid(); uid != 0 && int(p.UID) != uid {
		return nil
	}
	if h.parts.Runner.Runs(p.PID) || p.Ended() {
		return fault.Errorf(fault.Denied, "denied by rule caller: this process is, or may be, one that a tool runs, and tools do not call tools; call from the container itself, and stay until the answer")
	}
	return nil
}

// Serve listens on every socket, calls ready once all of them accept calls,
// and serves until ctx is done. Then it takes no more calls, lets those that
// run finish for the configured grace, and ends the rest.
func (h *Host) Serve(ctx context.Context, ready func() error) error {
	p := &h.parts
	on, err := h.listen()
	if err != nil {
		on.shutdown(ctx)
		return err
	}
	// The end of ctx, which comes with that of any part too, stops the listening.
	// It ends no call: a call belongs to its caller, and shutdown gives it time.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, failed := errgroup.WithContext(context.WithoutCancel(ctx))
	on.serve(ctx, g)
	g.Go(func() error { return p.Tools.Watch(ctx) })

	on.takeOver()
	h.upgrades.on.Store(on)
	h.ready.Store(true)
	if err := ready(); err != nil {
		p.Log.Warn("say that calls are accepted", "error", err)
	}
	g.Go(func() error { h.sayStore(ctx); return nil })
	c := h.config()
	p.Log.Info("ready", "socket", c.Socket, "mcp", on.mcpAddr(), "admin", c.Admin, "dashboard", on.pageAddr(), "tools", c.Tools)
	select {
	case <-ctx.Done():
	case <-failed.Done(): // one of them cannot go on
	case h.next = <-h.upgrades.handing:
		if h.left, err = on.leave(); err != nil {
			p.Log.Error("leave the sockets to the new daemon", "error", err)
		}
	}
	stop()
	h.ready.Store(false)
	if h.next == nil {
		notify("STOPPING=1")
	}
	grace := h.config().Grace() // a reload may have changed it
	p.Log.Info("shutting down", "running", h.pipeline.Running(), "grace", grace.String())
	p.Approvals.EndWaits() // nobody decides in so short a time
	h.mcp.EndWaits()
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	defer context.AfterFunc(graceful, func() {
		h.end(fault.Errorf(fault.Aborted, "the daemon was stopped while the call ran"))
	})()
	if err := errors.Join(on.shutdown(graceful), g.Wait()); err != nil {
		return err
	}
	p.Log.Info("stopped", "calls", h.pipeline.Calls())
	return nil
}

// sayStore logs what the store survives and what it does not, so that nobody
// learns it from a loss.
func (h *Host) sayStore(ctx context.Context) {
	if h.config().Reliability == config.ReliabilityOff {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h.parts.Log.Info("idempotency store", "store", h.config().StoreKind(), "survives", h.parts.Layer.Records.Survives(ctx))
}

// sockets are what a daemon listens on.
type sockets struct {
	h       *Host
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

// listen opens all of them. With an error come those that are open.
func (h *Host) listen() (*sockets, error) {
	c := h.config()
	on := &sockets{h: h}
	paths := []string{c.Socket}
	speaksMCP := map[string]bool{}
	for _, s := range c.Sockets {
		paths = append(paths, s.Path)
		speaksMCP[s.Path] = s.Protocol == config.ProtocolMCP
	}
	for _, path := range paths {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return on, fmt.Errorf("make the folder of the socket: %w; choose another with --socket", err)
		}
		mode, group, err := c.Access(path)
		if err != nil {
			return on, err
		}
		if speaksMCP[path] {
			d, err := h.listenMCP(c, path, os.FileMode(mode), group)
			if err != nil {
				return on, err
			}
			on.mcp = append(on.mcp, d)
			h.warnOfFolder(path, os.FileMode(mode), group)
			continue
		}
		s, err := server.Listen(server.Config{
			Path:     path,
			Given:    h.inherited.take(path),
			Lock:     config.SocketLock(c.State, path),
			Mode:     os.FileMode(mode),
			Group:    group,
			Grouped:  group >= 0,
			MaxConns: c.MaxConnections,
			Admits:   h.admitsCaller,
			Logger:   h.parts.Log,
			Handler: func(ctx context.Context, c *wire.Call, from server.Peer, streams wire.Streams) *wire.Result {
				return h.Call(ctx, call.Request{Call: c, UID: from.UID, Peer: call.Peer{PID: from.PID, Container: from.Container(), Socket: path}, Focus: from.Focus, Streams: streams}).Result
			},
		})
		if err != nil {
			return on, err
		}
		on.tools = append(on.tools, s)
		h.warnOfFolder(path, os.FileMode(mode), group)
	}
	operator, err := h.listenPage(c, on)
	if err != nil {
		return on, err
	}
	if on.admin, err = server.ListenAdmin(h.inherited.take(c.Admin), c.Admin, config.SocketLock(c.State, c.Admin), h.admitsOperator, operator); err != nil {
		return on, err
	}
	if c.MCP != "" {
		if on.web, err = h.mcp.ListenWeb(mcp.WebConfig{
			Addr: c.MCP, MaxConns: c.MaxConnections, Audience: c.Identity.Audience, Issuer: c.Identity.Issuer, Identify: h.identify,
		}); err != nil {
			return on, err
		}
	}
	if c.Metrics != "" {
		if on.metrics, err = net.Listen("tcp", c.Metrics); err != nil {
			return on, fmt.Errorf("listen for metrics: %w; choose another address with --metrics", err)
		}
	}
	return on, nil
}

// warnOfFolder says where those whom the socket at path admits cannot enter its
// folder: a container that has the folder mounted enters that alone.
func (h *Host) warnOfFolder(path string, mode os.FileMode, group int) {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch perm := info.Mode().Perm(); {
	case mode&0o006 != 0 && perm&0o001 == 0:
		h.parts.Log.Warn("not everybody who may use the socket may enter its folder; chmod o+x it", "socket", path, "folder", dir, "mode", fmt.Sprintf("%04o", perm))
	case group >= 0 && ok && perm&0o001 == 0 && (int(owner.Gid) != group || perm&0o010 == 0):
		h.parts.Log.Warn("the group that may use the socket may not enter its folder; chgrp it and chmod g+x it", "socket", path, "group", group, "folder", dir, "mode", fmt.Sprintf("%04o", perm))
	}
}

// serve serves all of them in g until ctx ends; the operator's until shutdown.
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
	g.Go(on.admin.Serve)
	if on.metrics != nil {
		g.Go(func() error { return serveMetrics(on.metrics, on.h.parts.Metrics.Handler()) })
	}
}

// shutdown lets what runs finish until ctx ends, and closes all of them.
func (on *sockets) shutdown(ctx context.Context) error {
	on.h.parts.Events.Close() // who watches waits for no end of its own
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
	down.Go(func() error { return on.h.parts.Sessions.Close(ctx) })
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

// listenPage opens the page, where there is to be one, and returns what answers the
// operator.
func (h *Host) listenPage(c *config.Config, on *sockets) (http.Handler, error) {
	operator := h.admin(on)
	if c.Dashboard == "" {
		return operator, nil
	}
	addr := c.Dashboard
	if addr == config.DashboardAdmin {
		addr = ""
	}
	var err error
	if on.page, err = dashboard.New(addr, dashboard.Config{Operator: operator, Events: h.parts.Events, Admits: h.admitsPage}); err != nil {
		if h.inherited.given == nil {
			return nil, err
		}
		// The port was free for a moment. Calls that wait are worth more than the page.
		on.page = nil
		h.parts.Log.Error("this daemon took the place of another and has no dashboard", "error", err)
		return operator, nil
	}
	if addr == "" {
		operator = on.page.Beside(operator)
	}
	return operator, nil
}

// listenMCP opens a socket for clients of MCP, under the rules of the others.
func (h *Host) listenMCP(c *config.Config, path string, mode os.FileMode, group int) (*server.Door, error) {
	return server.ListenDoor(server.DoorConfig{
		Path:     path,
		Given:    h.inherited.take(path),
		Lock:     config.SocketLock(c.State, path),
		Mode:     mode,
		Group:    group,
		MaxConns: c.MaxConnections,
		Admits:   h.admitsCaller,
		Logger:   h.parts.Log,
		Refusal:  mcp.Refusal,
		Handle: func(ctx context.Context, stopping <-chan struct{}, nc *net.UnixConn, from server.Peer) {
			h.mcp.Serve(ctx, stopping, nc, mcp.Peer{UID: from.UID, PID: from.PID, Container: from.Container(), Socket: path, Focus: from.Focus})
		},
	})
}

// identify is who a token is of, and until when it is good.
func (h *Host) identify(ctx context.Context, token string) (string, time.Time, error) {
	caller, err := h.identity.Load().Resolve(token, mcp.NoUID)
	if err != nil && h.parts.Tools.Ready(ctx) == nil {
		// A tool that was still being loaded may declare a claim of it.
		caller, err = h.identity.Load().Resolve(token, mcp.NoUID)
	}
	if err != nil {
		return "", time.Time{}, err
	}
	if !caller.HasToken() {
		return "", time.Time{}, fault.Errorf(fault.Unauthenticated, "a token is missing")
	}
	return caller.ID, caller.Expires(), nil
}

// admin serves what the operator asks of h, whose sockets are on.
func (h *Host) admin(on *sockets) http.Handler {
	d := &admin.Daemon{
		Parts: h.parts, Pipeline: h.pipeline, Version: Version(), Started: h.started,
		Ready: h.ready.Load,
		Refused: func() string {
			if msg := h.refused.Load(); msg != nil {
				return *msg
			}
			return ""
		},
		Upgrade: h.upgrade,
		UpgradeRefused: func() string {
			if msg := h.upgrades.failed.Load(); msg != nil {
				return *msg
			}
			return ""
		},
		Conns: func() (n int) {
			for _, s := range on.tools {
				n += s.Conns()
			}
			for _, d := range on.mcp {
				n += d.Conns()
			}
			if on.web != nil {
				n += on.web.Conns()
			}
			return n
		},
		Linked: h.linked,
		Page: func() *adminapi.Dashboard {
			if on.page == nil {
				return nil
			}
			return &adminapi.Dashboard{Address: on.page.Addr(), Path: dashboard.Path, Token: on.page.Token()}
		},
	}
	return d.Handler()
}

// serveMetrics serves the metrics over TCP until l is closed.
func serveMetrics(l net.Listener, metrics http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer srv.Close()
	if err := srv.Serve(l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
