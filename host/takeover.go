package host

import (
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/server"
)

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
	on.h.upgrades.gate.set(true)
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
	on.h.upgrades.gate.set(false)
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
	close(on.h.upgrades.over)
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
	h := on.h
	on.byPath(func(_ string, l listener) error { l.Claim(); return nil })
	for _, s := range on.tools {
		for _, c := range h.inherited.conns[s.Path()] {
			if err := s.Take(c); err != nil {
				h.parts.Log.Error("take over a connection", "error", err)
			}
		}
		delete(h.inherited.conns, s.Path())
	}
	for path := range h.inherited.given {
		h.parts.Log.Warn("a socket was passed on that the configuration does not name; it is closed", "socket", path)
	}
	h.inherited.close()
}
