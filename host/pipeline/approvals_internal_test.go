package pipeline

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// A tool of which anything is another is another tool.
func TestSameVersion(t *testing.T) {
	of := func(change func(*tools.Tool)) *tools.Tool {
		tool := &tools.Tool{Version: "1", HandlerDigest: "h", PolicyDigests: []string{"p", "q"}}
		change(tool)
		return tool
	}
	same := of(func(*tools.Tool) {})
	if !sameVersion(same, of(func(*tools.Tool) {})) {
		t.Error("a tool is another than itself")
	}
	for what, change := range map[string]func(*tools.Tool){
		"version": func(o *tools.Tool) { o.Version = "2" }, "handler": func(o *tools.Tool) { o.HandlerDigest = "" },
		"a policy": func(o *tools.Tool) { o.PolicyDigests[1] = "r" }, "its policies": func(o *tools.Tool) { o.PolicyDigests = nil },
	} {
		if sameVersion(same, of(change)) || sameVersion(of(change), same) {
			t.Errorf("another %s makes no other tool", what)
		}
	}
}

// A call whose tool was replaced does not run by the approval of the one that it was
// decided for, though nobody has had that lapse yet, alone and as one of a list.
func TestReplacedToolSpendsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tool", "tool.json"), []byte(`{"binary":"true"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := catalog.Open(context.Background(), catalog.Config{Dir: dir, StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	serves, release, err := c.Acquire(t.Context(), "tool")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	was := *serves
	was.Version = "before"
	v := &approver{tools: c}
	took := false
	for name, d := range map[string]*call.Decided{
		"alone": {Ask: &call.Ask{}}, "of a list": {},
	} {
		d.Call, d.Tool, d.Caller = &wire.Call{Tool: "tool"}, &was, identity.Caller{ID: "x:1"}
		if name == "of a list" {
			d.Take = func(string) (string, error) { took = true; return "", nil }
		}
		var e *fault.Error
		if err := v.spend(t.Context(), d, &consent{}); !errors.As(err, &e) || e.Code != fault.ApprovalRequired || took {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Who approves has seen all of the input: one that streams is refused where the call
// reads it, and a call has nothing by which more would come to it.
func TestWhole(t *testing.T) {
	table, err := session.Open(session.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close(t.Context())
	s, err := table.Find("alice", "")
	if err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		kind    tools.Kind
		entry   string
		in      call.Input
		nothing bool // streams
		refused bool
	}{
		"a stream":                       {kind: tools.Binary, in: call.Input{Wanted: true}, refused: true},
		"a stream that nobody reads":     {kind: tools.Binary},
		"a policy's input":               {kind: tools.Binary, in: call.Input{Wanted: true, Fixed: true}},
		"input that came":                {kind: tools.Binary, in: call.Input{Wanted: true, Bytes: []byte("in")}},
		"no stream":                      {kind: tools.Binary, in: call.Input{Wanted: true}, nothing: true},
		"a module that asks for it":      {kind: tools.Handler, in: call.Input{Wanted: true}},
		"a module that gets it as input": {kind: tools.Handler, entry: tools.EntryStdin, in: call.Input{Wanted: true}, refused: true},
	} {
		x, err := s.Begin(t.Context(), session.Spec{ID: what, Tool: "tool", Kind: session.KindCall})
		if err != nil {
			t.Fatal(err)
		}
		d := call.Decided{}
		d.Call, d.Execution, d.Input = &wire.Call{Tool: "tool"}, x, tt.in
		d.Tool = &tools.Tool{Kind: tt.kind, Def: &tools.Definition{}, Entry: &tools.Entry{Input: tt.entry}}
		if !tt.nothing {
			d.Streams.Stdin = func() io.ReadCloser { return io.NopCloser(nil) }
		}
		d.Streams.Terminal = &wire.Terminal{}
		d.Streams.Steer = func([]byte, func()) bool { return true }
		d.Streams.Receive = func(context.Context) ([]byte, error) { return nil, nil }
		got, err := whole(d)
		if (err != nil) != tt.refused {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil && (!got.Input.Fixed || got.Streams.Stdin != nil || got.Streams.Terminal != nil || got.Streams.Steer != nil || got.Streams.Receive != nil) {
			t.Errorf("%s: more may come to it: %+v", what, got.Streams)
		}
		x.End(&wire.Result{})
	}
}

// A call waits for its approval where somebody sees that it does, and never one that a
// module waits for: it would keep what that holds.
func TestWhoWaits(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(*call.Decided)
		waits  bool
	}{
		"a call":                        {func(*call.Decided) {}, false},
		"a turn":                        {func(d *call.Decided) { d.Kind = session.KindTurn }, true},
		"a job":                         {func(d *call.Decided) { d.Execution.Job = &job.Job{} }, true},
		"at a terminal":                 {func(d *call.Decided) { d.TTY = &wire.TTY{} }, true},
		"of a module that waits for it": {func(d *call.Decided) { d.TTY, d.By = &wire.TTY{}, &call.Parent{Holds: []string{}} }, false},
		"of a job of a module":          {func(d *call.Decided) { d.Execution.Job, d.By = &job.Job{}, &call.Parent{} }, true},
	} {
		d := &call.Decided{}
		d.Call, d.Execution = &wire.Call{}, &session.Execution{}
		tt.change(d)
		if got := waits(d); got != tt.waits {
			t.Errorf("%s waits: %v", what, got)
		}
	}
}

// What of a call cannot be masked is shown to nobody, so that nobody approves it.
func TestWithheldIsNotApproved(t *testing.T) {
	v := &approver{records: &recorder{config: func() *config.Config { return &config.Config{} }}}
	d := &call.Decided{}
	d.Call, d.Caller, d.Effective = &wire.Call{Tool: "tool"}, identity.Caller{ID: "alice"}, &identity.Effective{}
	d.Tool = &tools.Tool{Name: "tool", Kind: tools.Handler, Def: &tools.Definition{}}
	for _, readable := range []bool{true, false} {
		v.records.mask = func(*call.Pinned, ...string) (func(string) string, error) {
			if !readable {
				return nil, errors.New("no such file")
			}
			return func(s string) string { return s }, nil
		}
		var e *fault.Error
		if _, err := v.step(d); readable && err != nil || !readable && (!errors.As(err, &e) || e.Code != fault.ToolBroken) {
			t.Errorf("secrets that can be read, %v: %v", readable, err)
		}
	}
}
