package session

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/toold/toold/host/fault"
)

// Limits of a selector: its length in bytes, its evaluation cost in CEL's units
// (about one per step, and one per ten characters of a string that it builds), and
// its evaluation time.
const (
	maxSelector     = 4 << 10
	maxSelectorCost = 2_000_000
	maxSelectorTime = time.Second
)

// selectors evaluates CEL expressions over snapshots. Its zero value is ready.
type selectors struct {
	once sync.Once
	env  *cel.Env
	err  error
}

// environment creates the CEL environment on first use, since it is slow to
// create and many daemons are never queried.
func (s *selectors) environment() (*cel.Env, error) {
	s.once.Do(func() {
		s.env, s.err = cel.NewEnv(
			cel.Variable("session", cel.DynType),
			cel.Variable("sessions", cel.DynType),
			cel.Variable("jobs", cel.DynType),
			ext.Strings(), ext.Lists(), ext.Math(),
		)
	})
	return s.env, s.err
}

// query evaluates a selector over vars. Errors are INVALID_PAYLOAD for an
// expression that does not compile or fails, LIMIT_EXCEEDED for one that costs
// too much.
func (s *selectors) query(ctx context.Context, selector string, vars map[string]any) (json.RawMessage, error) {
	if selector == "" {
		selector = "session"
	}
	if len(selector) > maxSelector {
		return nil, fault.Errorf(fault.LimitExceeded, "the selector has %d bytes, and %d are the limit; ask for more and pick from the answer", len(selector), maxSelector)
	}
	env, err := s.environment()
	if err != nil {
		return nil, fmt.Errorf("make the environment of selectors: %w", err)
	}
	ast, issues := env.Compile(selector)
	if err := issues.Err(); err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: %w; it is a CEL expression over session, sessions and jobs", err)
	}
	program, err := env.Program(ast, cel.CostLimit(maxSelectorCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, maxSelectorTime)
	defer cancel()
	out, _, err := program.ContextEval(ctx, vars)
	if err != nil {
		if ctx.Err() != nil || isCostLimit(err) {
			return nil, fault.Errorf(fault.LimitExceeded, "/selector: %w; ask for less at once", err)
		}
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: %w", err)
	}
	value, err := out.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: the value is not JSON: %w", err)
	}
	data, err := json.Marshal(value.(*structpb.Value).AsInterface())
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "/selector: the value is not JSON: %w", err)
	}
	return data, nil
}

// isCostLimit reports whether an evaluation ended at its cost limit.
func isCostLimit(err error) bool { return strings.Contains(err.Error(), "cost limit exceeded") }

// sessionSnapshot returns the state of s for a query, at one moment. It has no
// arguments, inputs, variables or tokens, since those may hold secrets.
func sessionSnapshot(s *Session) map[string]any {
	tools := s.allowedTools()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	running := []any{}
	for _, x := range slices.SortedFunc(maps.Keys(s.running), func(a, b *Execution) int { return a.started.Compare(b.started) }) {
		running = append(running, x.snapshot(now))
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
		"peers": peers, "running": running, "recent": recent, "telemetry": countersSnapshot(&s.count),
	}
	m["journal_status"], m["persist"] = s.journal.Status(), !s.journal.Off
	if s.turn != nil {
		m["turn"] = s.turn.ID
	}
	return m
}

func (x *Execution) snapshot(now time.Time) map[string]any {
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
