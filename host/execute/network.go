package execute

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/sshkey"
)

// resolverOptions have the resolver of glibc ask over TCP, the only protocol that a
// binary can use, and for the name as given first.
const resolverOptions = "use-vc ndots:0"

// links are what a run can reach besides the hosts that its tool is granted.
type links struct {
	keys sshkey.Set
	http *egress.HTTP // as in egress.Rules
	// relayed is the socket of its callbacks, or "". It is not recorded as a
	// connection.
	relayed string
}

// run runs c, a binary of d's tool, with the network that the tool is granted.
// Refused connections are reported on its standard error and recorded with the
// others.
func (e *Executor) run(ctx context.Context, d *call.Decided, attempt int, trace string, links links, c process.Command) (process.Exit, error) {
	p := &d.Pinned
	rules := egress.ParseRules(p.Tool.Def.Capabilities.Network)
	rules.HTTP = links.http
	if links.relayed != "" {
		rules.Sockets = append(rules.Sockets, links.relayed)
	}
	// A socket that a variable names is granted with it.
	for _, path := range c.Confine.Show {
		rules.Sockets = append(rules.Sockets, filepath.Clean(path))
	}
	stderr := &sharedWriter{w: c.Stderr}
	c.Stderr = stderr
	rules.SSH = links.keys
	rules.Ask = e.asker(ctx, d, attempt, trace, stderr)
	network, theirs, err := e.gate.Start(rules, func(refused egress.Connection) {
		fmt.Fprintf(stderr, "toold: %s\n", refused.Advice())
	})
	if err != nil {
		return process.Exit{}, fault.Errorf(fault.Overloaded, "%w: this host has no room now; try again", err)
	}
	c.Confine.Network = theirs
	exit, err := e.Runner.Run(ctx, c)
	if theirs != nil {
		theirs.Close()
	}
	connections, _, _ := network.Close()
	if relayed := links.relayed; relayed != "" {
		connections = slices.DeleteFunc(connections, func(c egress.Connection) bool { return c.Refused == "" && c.Target() == egress.UnixTarget(relayed) })
	}
	e.connected(p, connections)
	executed(p, exit, e.Log)
	return exit, err
}

// connected journals the connections of a binary, and logs refused ones.
func (e *Executor) connected(p *call.Pinned, connections []egress.Connection) {
	logged := map[string]bool{}
	for _, c := range connections {
		verdict := "made"
		switch {
		case c.Refused != "":
			if verdict = "refused"; logged[c.Target()] {
				break
			}
			logged[c.Target()] = true
			e.Log.Warn("connection refused", "tool", p.Tool.Name, "execution_id", p.ExecutionID, "host", c.Target(), "reason", c.Refused)
		case c.Failed != "":
			verdict = "failed"
		}
		e.Metrics.Connected(p.Tool.Name, verdict, c.Sent, c.Received)
		for range c.Times - 1 {
			e.Metrics.Connected(p.Tool.Name, verdict, 0, 0)
		}
		if p.Execution != nil { // a discovery has no journal
			p.Execution.AddConnection(session.Connection{Host: c.Target(), Refused: c.Refused, Failed: c.Failed, Sent: c.Sent, Received: c.Received, Times: c.Times})
			for _, r := range c.Requests {
				p.Execution.AddConnection(session.Connection{Host: c.Target(), On: fmt.Sprintf("%s %s: %d", r.Method, r.Path, r.Status), Refused: r.Refused})
			}
			if c.MoreRequests > 0 {
				p.Execution.AddConnection(session.Connection{Host: c.Target(), On: session.Others, Times: c.MoreRequests})
			}
		}
	}
}

// sharedWriter is written by several goroutines.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
