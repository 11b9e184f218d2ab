package session

import (
	"maps"
	"slices"
	"time"
)

// sessionSnapshot returns the state of s for a query, at one moment. It has no
// arguments, inputs, variables or tokens, since those may hold secrets.
func sessionSnapshot(s *Session) map[string]any {
	tools := s.allowedTools()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	executions := []any{}
	for _, x := range slices.SortedFunc(maps.Keys(s.running), func(a, b *runState) int { return a.started.Compare(b.started) }) {
		executions = append(executions, runSnapshot(x, now))
	}
	recent := []any{}
	for i := range s.recent {
		recent = append(recent, outcomeSnapshot(&s.recent[i]))
	}
	peers := []any{}
	for _, p := range s.peers {
		peers = append(peers, map[string]any{"pid": int64(p.PID), "container": p.Container, "socket": p.Socket})
	}
	children := []any{}
	for c := range s.children {
		children = append(children, c.id)
	}
	m := map[string]any{
		"id": s.id, "name": s.name, "default": s.isDef, "state": s.state, "cwd": s.cwd, "owner": s.owner,
		"labels": stringMap(s.labels), "tools": stringList(tools), "parent": s.parent, "children": children,
		"created": timeText(s.created), "used": timeText(s.used), "turn": nil, "queued": int64(len(s.waiting)),
		"peers": peers, "running": executions, "recent": recent, "telemetry": countersSnapshot(&s.count),
	}
	m["journal_status"], m["persist"] = s.journal.Status(), !s.journal.Off
	if s.turn != nil {
		m["turn"] = s.turn.ID
	}
	return m
}

func runSnapshot(x *runState, now time.Time) map[string]any {
	return map[string]any{
		"execution": x.ID, "tool": x.Tool, "kind": x.Kind, "parent": x.Parent, "started": timeText(x.started),
		"elapsed_ms": now.Sub(x.started).Milliseconds(), "attempts": int64(x.attempts.Load()),
		"mutating": x.mutating.Load(), "bytes_in": x.bytesIn.Load(), "bytes_out": x.bytesOut.Load(), "fuel": x.fuel.Load(),
		"job": x.Job != nil, "last_line": x.lastLineText(),
	}
}

func outcomeSnapshot(o *Outcome) map[string]any {
	programs := []any{}
	for _, p := range o.Programs {
		programs = append(programs, map[string]any{"path": p.Path, "refused": p.Refused, "times": int64(p.Times)})
	}
	connections := []any{}
	for _, c := range o.Connections {
		connections = append(connections, map[string]any{
			"host": c.Host, "on": c.On, "rule": c.Rule, "refused": c.Refused, "failed": c.Failed, "sent": c.Sent, "received": c.Received, "times": int64(c.Times),
		})
	}
	return map[string]any{
		"programs": programs, "connections": connections,
		"execution": o.ID, "tool": o.Tool, "kind": o.Kind, "parent": o.Parent, "status": o.Status, "code": string(o.Code),
		"exit_code": int64(o.ExitCode), "started": timeText(o.Started), "duration_ms": o.Duration.Milliseconds(),
		"attempts": int64(o.Attempts), "undelivered": int64(o.Undelivered),
	}
}

func countersSnapshot(c *Counters) map[string]any {
	count := func(m map[string]int64) map[string]any {
		out := map[string]any{}
		for k, n := range m {
			out[k] = n
		}
		return out
	}
	return map[string]any{
		"calls": c.Calls, "attempts": c.Attempts, "outcomes": count(c.Outcomes), "events": count(c.Events),
		"bytes_in": c.BytesIn, "bytes_out": c.BytesOut, "fuel": c.Fuel, "duration_ms": c.Duration.Milliseconds(),
		"http": map[string]any{
			"requests": c.HTTP.Requests, "replies": c.HTTP.Replies, "bytes_sent": c.HTTP.BytesSent, "bytes_received": c.HTTP.BytesReceived,
		},
	}
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func stringMap(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

func stringList(l []string) any {
	if l == nil {
		return nil
	}
	out := make([]any, len(l))
	for i, v := range l {
		out[i] = v
	}
	return out
}
