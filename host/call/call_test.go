package call

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// pinned is a call of a command with two arguments, a variable and an input.
func pinned() Pinned {
	c := &wire.Call{Tool: "tool", Args: []string{"a", "b"}, Cwd: "/w", Stdin: []byte("in"), Env: map[string]string{"A": "1"}, IdempotencyKey: "sent"}
	c.Payload = json.RawMessage(`{"args":["a","b"],"cwd":"/w","stdin":"aW4="}`)
	return Pinned{
		Admitted:  Admitted{Request: Request{Call: c}, Caller: identity.Caller{ID: "somebody"}},
		Tool:      &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()},
		Effective: &identity.Effective{},
		Cwd:       "/w", Payload: c.Payload,
	}
}

// What a policy decides is in the value after it, and in none before.
func TestApplyChangesNothingBefore(t *testing.T) {
	p := pinned()
	before, err := json.Marshal(p.Call)
	if err != nil {
		t.Fatal(err)
	}
	first := Undecided(p)
	yes, input := true, "bmV3"
	second, err := first.Apply(&abi.Decision{
		Rule: "r", Args: []string{"c"}, Env: map[string]string{"B": "2"}, StdinBase64: &input, Stdin: &yes,
		Mutating: &yes, Idempotent: &yes, IdempotencyKey: "theirs", Shell: true, ShellLines: []string{"x"}, TimeoutMS: 1500,
	})
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := json.Marshal(p.Call); string(after) != string(before) {
		t.Errorf("the request became %s", after)
	}
	if !reflect.DeepEqual(first, Undecided(pinned())) {
		t.Errorf("what was undecided became %+v", first)
	}
	want := Decided{
		Pinned: first.Pinned, Rule: "r", Command: Command{Args: []string{"c"}, Env: map[string]string{"B": "2"}, Input: Input{Bytes: []byte("new"), Fixed: true, Wanted: true}},
		Payload: json.RawMessage(`{"args":["c"],"cwd":"/w","stdin":"bmV3"}`),
		Shell:   Shell{Allowed: true, Lines: []string{"x"}}, Terms: Terms{Class: Class{Mutating: true, Idempotent: true}, Key: "theirs", Timeout: 1500 * time.Millisecond},
	}
	if !reflect.DeepEqual(second, want) {
		t.Errorf("got %+v\nwant %+v", second, want)
	}
}

// A second policy narrows: the shorter timeout, the shell lines that both name.
func TestApplyTwice(t *testing.T) {
	d := Undecided(pinned())
	for _, by := range []abi.Decision{
		{Shell: true, ShellLines: []string{"x", "y"}, TimeoutMS: 1000},
		{Shell: true, ShellLines: []string{"y", "z"}, TimeoutMS: 2000},
		{Shell: true},
	} {
		var err error
		if d, err = d.Apply(&by); err != nil {
			t.Fatal(err)
		}
	}
	if d.Timeout != time.Second || !reflect.DeepEqual(d.Shell, Shell{Allowed: true, Lines: []string{"y"}}) {
		t.Errorf("timeout %v, shell %+v", d.Timeout, d.Shell)
	}
	// Lines that have none in common leave none, which is not any.
	none, err := d.Apply(&abi.Decision{Shell: true, ShellLines: []string{"other"}})
	if err != nil || none.Shell.Lines == nil || len(none.Shell.Lines) != 0 {
		t.Errorf("lines of policies that agree on none: %#v, %v", none.Shell.Lines, err)
	}
	if !reflect.DeepEqual(d.Shell.Lines, []string{"y"}) {
		t.Errorf("the lines before became %q", d.Shell.Lines)
	}
}

// Callbacks are what was offered, and what all policies that speak of them name.
func TestApplyCallbacks(t *testing.T) {
	p := pinned()
	p.Roots = []string{"/ws"}
	d := Undecided(p)
	d.Callbacks.Offered = &abi.Callbacks{Kinds: []string{"editor", "hooks"}, Folder: "/f"}
	editor := abi.Callback{Kind: "editor", Name: "editor"}
	hook := abi.Callback{Kind: "hooks", Name: "pre-push", Path: "/ws/hooks/pre-push"}
	for name, test := range map[string]struct {
		by    [][]abi.Callback
		want  []abi.Callback
		notes int
	}{
		"none":              {[][]abi.Callback{nil}, nil, 0},
		"one policy":        {[][]abi.Callback{{editor, hook}}, []abi.Callback{editor, hook}, 0},
		"another is silent": {[][]abi.Callback{nil, {editor, hook}, nil}, []abi.Callback{editor, hook}, 0},
		"fewer":             {[][]abi.Callback{{editor, hook}, {editor}}, []abi.Callback{editor}, 1},
		"refused after":     {[][]abi.Callback{{editor, hook}, {}}, []abi.Callback{}, 1},
		"refused before":    {[][]abi.Callback{{}, {editor, hook}}, []abi.Callback{}, 1},
		"another file":      {[][]abi.Callback{{hook}, {{Kind: "hooks", Name: "pre-push", Path: "/ws/x"}}}, []abi.Callback{}, 1},
	} {
		got := d
		var err error
		for _, by := range test.by {
			if got, err = got.Apply(&abi.Decision{Callbacks: by}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !reflect.DeepEqual(got.Callbacks.Allowed, test.want) || len(got.Notes) != test.notes {
			t.Errorf("%s: %#v, and notes %q", name, got.Callbacks.Allowed, got.Notes)
		}
	}
	for name, by := range map[string][]abi.Callback{
		"not offered":      {{Kind: "pager", Name: "pager"}},
		"a path":           {{Kind: "editor", Name: "editor", Path: "/ws/editor"}},
		"another name":     {{Kind: "editor", Name: "vi"}},
		"a name of a path": {{Kind: "hooks", Name: "../x", Path: "/ws/x"}},
		"no name":          {{Kind: "hooks", Path: "/ws/x"}},
		"no path":          {{Kind: "hooks", Name: "pre-push"}},
		"outside":          {{Kind: "hooks", Name: "pre-push", Path: "/etc/x"}},
		"a way out":        {{Kind: "hooks", Name: "pre-push", Path: "/ws/../etc/x"}},
		"relative":         {{Kind: "hooks", Name: "pre-push", Path: "ws/x"}},
		"the socket":       {{Kind: "hooks", Name: "socket", Path: "/ws/x"}, {Kind: "hooks", Name: "socket", Path: "/ws/y"}},
		"many":             slices.Repeat([]abi.Callback{editor}, 65),
	} {
		if got, err := d.Apply(&abi.Decision{Callbacks: by}); err == nil {
			t.Errorf("%s: %+v", name, got.Callbacks.Allowed)
		}
	}
	if _, err := Undecided(p).Apply(&abi.Decision{Callbacks: []abi.Callback{editor}}); err == nil {
		t.Error("callbacks that nobody offered were taken")
	}
}

func TestApplyRefuses(t *testing.T) {
	bad := "not base64"
	if _, err := Undecided(pinned()).Apply(&abi.Decision{StdinBase64: &bad}); err == nil || !strings.Contains(err.Error(), "stdin_base64") {
		t.Errorf("%v", err)
	}
	p := pinned()
	p.Discovered = &Discovered{}
	if _, err := Undecided(p).Apply(&abi.Decision{Args: []string{"c"}}); err == nil || !strings.Contains(err.Error(), "args") {
		t.Errorf("other arguments for a tool that takes its payload: %v", err)
	}
}

// Whatever a policy says, what a module says of its tool holds, and a caller that
// may only read is held to that.
func TestSettle(t *testing.T) {
	p := pinned()
	p.Discovered = &Discovered{Tool: discovery.Tool{Name: "tool", Mutating: true}}
	no := false
	d, err := Undecided(p).Apply(&abi.Decision{Mutating: &no})
	if err != nil {
		t.Fatal(err)
	}
	if d, err = d.Settle(config.ReliabilityReadOnly); err != nil || !d.Class.Mutating || d.Mode != Shadow {
		t.Errorf("%+v, %v, %v", d.Class, d.Mode, err)
	}
	p.Effective = &identity.Effective{ReadOnly: true}
	var e *fault.Error
	if _, err := Undecided(p).Settle("all"); !errors.As(err, &e) || e.Code != fault.Denied {
		t.Errorf("a caller that may only read: %v", err)
	}
}

func TestAsError(t *testing.T) {
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(fault.Errorf(fault.InvalidEnvelope, "broke the protocol"))
	late, stop := context.WithTimeout(t.Context(), -1)
	defer stop()
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		want fault.Code
	}{
		{t.Context(), fault.Errorf(fault.Denied, "no"), fault.Denied},
		{canceled, context.Canceled, fault.InvalidEnvelope},
		{late, context.DeadlineExceeded, fault.Timeout},
		{t.Context(), context.Canceled, fault.Aborted},
		{t.Context(), io.ErrUnexpectedEOF, fault.Internal},
	} {
		if e := AsError(tt.ctx, tt.err); e.Code != tt.want {
			t.Errorf("%v: %v, want %s", tt.err, e, tt.want)
		}
	}
	if e := AsError(t.Context(), nil); e != nil {
		t.Errorf("nil became %v", e)
	}
}

// The input of a call is spent when an attempt has read some of it, or has not
// seen its end.
func TestInputSpent(t *testing.T) {
	for _, tt := range []struct {
		name, input string
		read        bool
		want        bool
	}{
		{"never opened", "x", false, false},
		{"some was read", "x", true, true},
		{"it was empty", "", true, false},
	} {
		r := NewRun(Undecided(pinned()), wire.Streams{Stdin: func() io.ReadCloser { return io.NopCloser(strings.NewReader(tt.input)) }})
		if tt.read {
			io.ReadAll(r.Streams.Stdin())
		}
		if got := r.Progress.InputSpent(); got != tt.want {
			t.Errorf("%s: spent %v", tt.name, got)
		}
	}
}

// Begin refuses what has ended; TakeBack leaves what an earlier attempt began.
func TestBegin(t *testing.T) {
	p := &Progress{}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Begin(over); err == nil || p.Begun() {
		t.Errorf("begun under a context that has ended: %v", err)
	}
	if err := p.Begin(t.Context()); err != nil || !p.Begun() {
		t.Fatal(err)
	}
	if p.TakeBack(2); !p.Begun() {
		t.Error("the first attempt is forgotten")
	}
	if p.TakeBack(1); p.Begun() {
		t.Error("what was not started has begun")
	}
}

// What is not passed on is said in a line for all that have the same advice.
func TestUnhonoured(t *testing.T) {
	def := &tools.Definition{EnvironmentSeen: map[string]string{"A*": "", "B": "use -b", "C": "use -b", "D": "never"}}
	d := &Decided{Pinned: Pinned{Tool: &tools.Tool{Def: def}}}
	d.Request.Call = &wire.Call{Tool: "x", EnvSeen: []string{"A6", "A1", "A2", "A3", "A4", "A5", "C", "B", "other", "D"}, Env: map[string]string{"A1": "passed"}}
	d.Env = map[string]string{"D": "set by a policy"}
	want := "x: A2, A3, A4, A5 and 1 more of your environment are not passed on\n" +
		"x: B and C of your environment are not passed on; use -b\n"
	if got := d.Unhonoured(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.Omitted = []string{"E"}
	if got, want := d.Unhonoured(), want+"x: E of TOOL_ENV, which other tools take, is left out\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.Omitted = []string{"E", "F"}
	if got, want := d.Unhonoured(), want+"x: E and F of TOOL_ENV, which other tools take, are left out\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// WithoutEnv leaves the caller's request as it is: what waits for an approval is judged by it once more.
func TestWithoutEnv(t *testing.T) {
	p := Pinned{}
	p.Request.Call = &wire.Call{Env: map[string]string{"A": "1", "B": "2"}}
	got := p.WithoutEnv([]string{"B"})
	if len(p.Env) != 2 || len(got.Env) != 1 || got.Env["A"] != "1" || !slices.Equal(got.Omitted, []string{"B"}) {
		t.Errorf("%v of %v, without %q", got.Env, p.Env, got.Omitted)
	}
}
