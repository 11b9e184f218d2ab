package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
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

// Serve listens on every socket, calls ready once all of them accept calls, and serves until
// ctx is done. Then it accepts no more calls, lets running ones finish for the configured grace
// period, and ends the rest.
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
	h.ready.Store(true)
	// Only now, and until shutdown: whoever has an answer can ask for an upgrade next.
	g.Go(on.admin.Serve)
	if err := ready(); err != nil {
		p.Log.Warn("say that calls are accepted", "error", err)
	}
	g.Go(func() error { h.sayStore(ctx); return nil })
	c := h.config()
	p.Log.Info("ready", "socket", c.Socket, "mcp", on.mcpAddr(), "admin", c.Admin, "dashboard", on.pageAddr(), "tools", c.Tools)
	select {
	case <-ctx.Done():
	case <-failed.Done(): // one of them cannot go on
	case h.upgrades.next = <-h.upgrades.handing:
		if h.upgrades.left, err = on.leave(); err != nil {
			p.Log.Error("leave the sockets to the new daemon", "error", err)
		}
	}
	stop()
	h.ready.Store(false)
	if h.upgrades.next == nil {
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

// listen opens all of them. With an error come those that are open.
func (h *Host) listen() (*sockets, error) {
	c := h.config()
	on := &sockets{parts: &h.parts, upgrades: &h.upgrades}
	admits := admission{h.parts.Runner}
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
			warnOfFolder(h.parts.Log, path, os.FileMode(mode), group)
			continue
		}
		s, err := server.Listen(server.Config{
			Path:     path,
			Given:    h.upgrades.inherited.take(path),
			Lock:     config.SocketLock(c.State, path),
			Mode:     os.FileMode(mode),
			Group:    group,
			Grouped:  group >= 0,
			MaxConns: c.MaxConnections,
			Admits:   admits.caller,
			Logger:   h.parts.Log,
			Handler: func(ctx context.Context, c *wire.Call, from server.Peer, streams wire.Streams) *wire.Result {
				return h.Call(ctx, call.Request{Call: c, UID: from.UID, Peer: call.Peer{PID: from.PID, Container: from.Container(), Socket: path}, Focus: from.Focus, Streams: streams}).Result
			},
		})
		if err != nil {
			return on, err
		}
		on.tools = append(on.tools, s)
		warnOfFolder(h.parts.Log, path, os.FileMode(mode), group)
	}
	operator, err := h.listenPage(c, on)
	if err != nil {
		return on, err
	}
	if on.admin, err = server.ListenAdmin(h.upgrades.inherited.take(c.Admin), c.Admin, config.SocketLock(c.State, c.Admin), admits.operator, operator); err != nil {
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
func warnOfFolder(log *slog.Logger, path string, mode os.FileMode, group int) {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch perm := info.Mode().Perm(); {
	case mode&0o006 != 0 && perm&0o001 == 0:
		log.Warn("not everybody who may use the socket may enter its folder; chmod o+x it", "socket", path, "folder", dir, "mode", fmt.Sprintf("%04o", perm))
	case group >= 0 && ok && perm&0o001 == 0 && (int(owner.Gid) != group || perm&0o010 == 0):
		log.Warn("the group that may use the socket may not enter its folder; chgrp it and chmod g+x it", "socket", path, "group", group, "folder", dir, "mode", fmt.Sprintf("%04o", perm))
	}
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
	if on.page, err = dashboard.New(addr, dashboard.Config{Operator: operator, Events: h.parts.Events, Admits: admission{h.parts.Runner}.page}); err != nil {
		if h.upgrades.inherited.given == nil {
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
		Given:    h.upgrades.inherited.take(path),
		Lock:     config.SocketLock(c.State, path),
		Mode:     mode,
		Group:    group,
		MaxConns: c.MaxConnections,
		Admits:   admission{h.parts.Runner}.caller,
		Logger:   h.parts.Log,
		Refusal:  mcp.Refusal,
		Handle: func(ctx context.Context, stopping <-chan struct{}, nc *net.UnixConn, from server.Peer, begin func() bool) {
			h.mcp.Serve(ctx, stopping, nc, mcp.Peer{UID: from.UID, PID: from.PID, Container: from.Container(), Socket: path, Focus: from.Focus, Begin: begin})
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
		Upgrade: func(ctx context.Context, binary string, within time.Duration) (int, error) {
			return h.upgrade(ctx, on, binary, within)
		},
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
