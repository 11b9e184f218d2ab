// Package call has the values that a call is on its way, one for each stage, and
// what can be said of them without a daemon:
//
//	Request -> Admitted -> Pinned -> Decided -> Run -> Outcome
//
// Each holds the one before it and adds what its stage found out. A stage is
// given one value and makes the next; no stage changes what it was given, or
// what that points to. So a field has one owner, what a record or a log says of
// the request is the request, and a test of a stage builds its input. What does
// change while a call runs is in Progress and Meter, and in nothing else.
//
// Package pipeline has the order of the stages.
package call

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
	"github.com/toold/toold/pdk/abi"
)

// Request is one call as it came in.
type Request struct {
	// Call is what was sent. ExecutionID is never empty.
	*wire.Call
	// UID is the user who sent it, as the kernel says.
	UID uint32
	// Peer is where it came from. The roots and categories of its Socket count; empty
	// is the first one.
	Peer
	// Focus is the session that calls belong to which name none, shared by the
	// calls of a connection. It may be nil.
	Focus *atomic.Pointer[string]
	// Streams are the caller's. Nobody closes them but the front end.
	Streams wire.Streams
	// JobAfter makes a job of a call that has not ended by then: it is answered as
	// one in the background, and goes on without its caller. Until then it is its
	// caller's. Streams.Progress and Receive go on being used by the job. 0: never.
	JobAfter time.Duration
	// TurnKey is the key of a call that changes something and has none: one for what
	// it is in its turn. A call that only reads is made anew each time. Empty: none.
	TurnKey string
	// As is who calls, where that is known already: a turn and a job are their
	// caller's. Nil asks the token and UID.
	As *identity.Caller
	// Inner is of a call that the daemon makes in another one. A front end leaves it
	// empty.
	Inner
}

// Peer is where a call came from.
type Peer = session.Peer

// Inner says in what a call is made that no caller sent: in a prompt, as a job, by a
// module, in a list of calls.
type Inner struct {
	// Kind is that of its execution; empty is session.KindCall.
	Kind string
	// PartOf is the id of the execution that asked for this one: a prompt's for
	// its turn, a call's for the job that it became.
	PartOf string
	// By is the call in which a module asked for this one, or nil.
	By *Parent
	// Plan, unless nil, is given what would run, and nothing runs.
	Plan func(*Decided) error
	// Take, unless nil, is of a call of an approved list: it lets the call begin that
	// has this digest, where it is the next one, and returns the approval's id.
	Take func(digest string) (approval string, err error)
}

// CheckParent refuses what the module that asks for q may not ask for. It refuses
// nothing that a caller sent. listing says that q asks for a list of tools.
func (q *Request) CheckParent(listing bool) error {
	p := q.By
	if p == nil {
		return nil
	}
	turn, name := q.Kind == session.KindTurn, q.Tool
	by := p.Names[len(p.Names)-1]
	switch {
	case len(p.Names) > MaxDepth:
		return fault.Errorf(fault.LimitExceeded, "tool_call is %d deep, and that is the limit", MaxDepth)
	case session.IsCall(name):
		if !p.Allowed.Session(name) {
			return fault.Errorf(fault.Denied, "denied by rule tool_call: %s may not call %s; add it to capabilities.tool_call in its tool.json", by, name)
		}
		return nil
	case p.Allowed.Sessions() && !turn:
		return fault.Errorf(fault.InvalidPayload, "tool_call takes the envelopes of the session calls, session.query, session.mutate, session.prompt, session.abort and session.steer; to call %.64q, name it in capabilities.tool_call in tool.json", name)
	case listing || p.Allowed.Sessions():
		return nil
	case !p.Allowed.Tool(name):
		return fault.Errorf(fault.Denied, "denied by rule tool_call: %s may not call %.64q; add it to capabilities.tool_call in its tool.json", by, name)
	case slices.Contains(p.Names, name):
		return fault.Errorf(fault.Denied, "denied by rule cycle: %s is called in a call of %s already", name, name)
	case q.Call.Session != "" && q.Call.Session != p.Session && !turn:
		return fault.Errorf(fault.Denied, "denied by rule tool_call: a module calls tools in the session of its own call; leave out session")
	}
	return nil
}

// Admitted is a request whose caller and session are known. The token has ended
// here: Call.Token is empty.
type Admitted struct {
	Request
	Caller identity.Caller
	// Session is the id of the session that it belongs to.
	Session string
	// Execution is its part of that session. It is nil for what is nobody's
	// call: a discovery.
	Execution *session.Execution
	// Meter counts what its modules take.
	Meter *Meter
}

// Pinned is a call of one generation of a tool, in one folder, for one identity.
type Pinned struct {
	Admitted
	// Tool is of one version throughout: policy, schema and handler.
	Tool *tools.Tool
	// Effective is what the caller is to the tool.
	Effective *identity.Effective
	// Discovered is the tool that a module brought for the caller; nil for a
	// tool of tools.d.
	Discovered *Discovered
	// Roots are the folders in and below which the call may work, Cwd the one
	// that it works in. Cwd is empty for a tool that touches no files and was
	// called from outside of them.
	Roots []string
	Cwd   string
	// Folder says which folder Cwd was when it was opened; see confine.ObjectOf.
	Folder string
	// Payload is what the schema describes: as it was sent, or made of the
	// arguments, and then Text says how.
	Payload json.RawMessage
	Text    *arguments.Parsed
	// Clock is the tool's time limit where the call may wait for its caller; else nil.
	Clock *Clock
}

// AsParent is p as the parent of what its module asks for while it has fuel left.
// changes says that p was decided to change something.
//
// A module that may make session calls only could always have turns that change
// something, whatever it is itself: it is held to reading where its host or its
// caller holds it to that.
func (p *Pinned) AsParent(changes bool, fuel int64) *Parent {
	allowed := p.Tool.Def.Capabilities.ToolCall
	c := &Parent{
		Execution: p.ExecutionID, Session: p.Session, Allowed: allowed, Fuel: &Fuel{},
		ReadsOnly: p.OnlyReads() || !changes && !allowed.Sessions(),
	}
	c.Fuel.left.Store(fuel)
	if by := p.By; by != nil {
		c.Names, c.Holds = slices.Clone(by.Names), slices.Clone(by.Holds)
		c.ReadsOnly = c.ReadsOnly || by.ReadsOnly
	}
	c.Names, c.Holds = append(c.Names, p.Call.Tool), append(c.Holds, p.Tool.Name)
	return c
}

// Discovered is a tool that a module brings for one identity.
type Discovered struct {
	discovery.Tool
	Key    discovery.Key
	Schema *jsonschema.Schema
	// Output is that of what it answers; nil where anything goes.
	Output *jsonschema.Schema
}

// ReadOnly reports whether the caller may only read.
func (p *Pinned) ReadOnly() bool { return p.Effective.ReadOnly }

// OnlyReads reports whether the guest of p may make requests that read, and no
// others: what a module says of its tool, or an operator of a caller, the host
// holds it to.
func (p *Pinned) OnlyReads() bool {
	return p.ReadOnly() || p.Discovered != nil && !p.Discovered.Mutating
}

// IsCommand reports whether the payload is {args, cwd, stdin?}, or follows from
// these.
func (p *Pinned) IsCommand() bool {
	return p.Discovered == nil && p.Text == nil && (p.Form == wire.Plain || p.Args != nil)
}

// HasPayload reports whether the call has a payload beside its arguments.
func (p *Pinned) HasPayload() bool {
	return p.Form == wire.Envelope || p.Discovered != nil || p.Text != nil
}

// Schema is that of what is called, as it was written; empty where any object is
// taken.
func (p *Pinned) Schema() string {
	if p.Discovered != nil {
		return p.Discovered.Tool.Schema
	}
	return string(p.Tool.SchemaSource)
}

// CheckOutput checks what the call answered, by the schema that the tool says it is of.
func (p *Pinned) CheckOutput(data json.RawMessage) error {
	schema := p.Tool.Output
	if p.Discovered != nil {
		schema = p.Discovered.Output
	}
	if schema == nil {
		return nil
	}
	if len(data) == 0 {
		return fault.Errorf(fault.ToolFailed, "%s answered no data, which its output schema is of; have it answer data, or take output_schema away", p.Call.Tool)
	}
	if err := (&tools.Tool{Name: p.Call.Tool, Schema: schema}).Validate(data); err != nil {
		return fault.Errorf(fault.ToolFailed, "the data that %s answered is not what its output schema says: %s", p.Call.Tool, err)
	}
	return nil
}

// TakesText reports whether the arguments of p are to be read by the schema: a
// plain call of what takes a payload. A schema with args of its own describes the
// command itself.
func (p *Pinned) TakesText() bool {
	switch {
	case p.Form != wire.Plain || p.Schema() == "":
		return false
	case p.Discovered != nil:
		return true
	case p.Tool.Kind != tools.Handler || p.Tool.Entry.Input == tools.EntryStdin:
		return false
	}
	return p.Tool.Schema.Properties["args"] == nil
}

// ByText is p with the payload that its arguments make.
func (p Pinned) ByText(t *arguments.Parsed) Pinned {
	p.Text, p.Payload = t, t.Payload
	return p
}

// Validate checks the payload against the schema of what is called. Where there is
// none, nothing but arguments can be meant by a payload that a program is given,
// or that has args for a module which works in a folder: one that is misspelled
// must not run without them.
func (p *Pinned) Validate() error {
	if p.Discovered == nil {
		if p.Tool.Schema == nil && !p.IsCommand() {
			isProgram := p.Tool.Kind != tools.Handler
			if err := wire.CommandFault(p.Payload); err != nil && (isProgram || len(p.Tool.Def.Capabilities.Exec) > 0 && hasArgs(p.Payload)) {
				return err
			}
		}
		return p.Tool.Validate(p.Payload)
	}
	t := &tools.Tool{Name: p.Call.Tool, Schema: p.Discovered.Schema}
	return t.Validate(p.Payload)
}

func hasArgs(payload json.RawMessage) bool {
	var has struct {
		Args json.RawMessage `json:"args"`
	}
	return strictjson.UnmarshalLenient(payload, &has) == nil && has.Args != nil
}

// Unpassed are the names, sorted, of the variables that the caller has, that its
// tool would have honoured, and that the caller did not pass.
func (p *Pinned) Unpassed() []string {
	var names []string
	for _, name := range p.EnvSeen {
		_, passed := p.Env[name]
		if _, matters := p.Tool.Def.Seen(name); matters && !passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// maxUnhonoured is how many names a line of Unhonoured has.
const maxUnhonoured = 4

// Unhonoured says which variables of the caller's environment its tool would have
// honoured and d does not set, and what to do instead: a line for all that have the
// same advice; empty where there are none.
func (d *Decided) Unhonoured() string {
	names := map[string][]string{} // by advice
	var order []string
	for _, name := range d.Unpassed() {
		if _, set := d.Env[name]; set { // by a policy
			continue
		}
		instead, _ := d.Tool.Def.Seen(name)
		if instead == "" && slices.Contains(d.Tool.Def.Capabilities.Env, name) {
			instead = "name it in TOOL_ENV to have it passed on"
		}
		if names[instead] == nil {
			order = append(order, instead)
		}
		names[instead] = append(names[instead], name)
	}
	var text strings.Builder
	for _, instead := range order {
		list, are := names[instead], " of your environment is not passed on"
		if len(list) > 1 {
			are = " of your environment are not passed on"
		}
		if more := len(list) - maxUnhonoured; more > 0 {
			list = append(list[:maxUnhonoured:maxUnhonoured], fmt.Sprintf("%d more", more))
		}
		fmt.Fprintf(&text, "%s: %s%s", d.Call.Tool, enumerate(list), are)
		if instead != "" {
			text.WriteString("; " + instead)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

// enumerate is "a, b and c".
func enumerate(list []string) string {
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}

// Input is what a call reads on its standard input.
type Input struct {
	// Bytes came with the request, or are a policy's. Fixed says that they are
	// a policy's, and all there is, even where there are none.
	Bytes []byte
	Fixed bool
	// Wanted says that the call reads what its caller streams.
	Wanted bool
}

// Class says what a call does to the world.
type Class struct {
	Mutating   bool
	Idempotent bool // it may be made twice
}

// Repeatable reports whether such a call may safely be made twice.
func (c Class) Repeatable() bool { return !c.Mutating || c.Idempotent }

// Shell says what a call may give to a shell.
type Shell struct {
	Allowed bool
	// Lines are the only ones; nil: any.
	Lines []string
}

// Callbacks are the programs of its caller that a call may ask for.
type Callbacks struct {
	// Offered is what a policy may allow; nil: nothing.
	Offered *abi.Callbacks
	// Allowed are those of them that it did; nil where no policy said so.
	Allowed []abi.Callback
}

// Command is what a tool is run with.
type Command struct {
	Args  []string
	Env   map[string]string
	Input Input
}

// Terms are how a call may be executed: whether again, for how long, and what the
// reliability layer does with it.
type Terms struct {
	Class Class
	// Key is that of its idempotency record; empty: none, or one that is made
	// of the payload.
	Key string
	// Timeout is the shortest that a policy set; 0: none.
	Timeout time.Duration
	Mode    Mode
}

// Decided is what runs, exactly.
type Decided struct {
	Pinned
	// Command is what runs, and Payload how a module finds it: as it came, but with
	// what the policies made of the arguments and the input.
	Command
	Payload json.RawMessage
	// Shell and Callbacks are what it may run besides.
	Shell     Shell
	Callbacks Callbacks
	Terms
	// Notes are said on the standard error before the tool runs.
	Notes []string
	// Rule is the last one that a policy named.
	Rule string
	// Ask is who has to approve it first; nil: nobody has to.
	Ask *Ask
	// Asked is what each policy was asked, and what it answered, in turn.
	Asked []Asked
}

// Ask is what the policies of a call ask for.
type Ask struct {
	// By are the names of those who may approve beside the operator, Self admits
	// the caller, TTL is how long there is, Text what the policies say of it.
	By   []string
	Self bool
	TTL  time.Duration
	Text string
	// Rule is the last one that asked.
	Rule string
}

// askOf is what a policy asks for.
func askOf(by *abi.Approval) (*Ask, error) {
	ttl := approval.DefaultTTL
	if by.TTLMS != 0 {
		ttl = time.Duration(by.TTLMS) * time.Millisecond
		if by.TTLMS < approval.MinTTL.Milliseconds() || by.TTLMS > approval.MaxTTL.Milliseconds() {
			return nil, fmt.Errorf("ask: ttl_ms is %d, and it is between %d and %d", by.TTLMS, approval.MinTTL.Milliseconds(), approval.MaxTTL.Milliseconds())
		}
	}
	if slices.Contains(by.By, "") {
		return nil, errors.New("ask: by has an empty name")
	}
	return &Ask{By: by.By, Self: by.Self, TTL: ttl, Text: by.Text}, nil
}

// And is what both ask for: who both admit, for the shorter time. Nil asks for
// nothing.
func (a *Ask) And(by *Ask) *Ask {
	switch {
	case a == nil:
		return by
	case by == nil:
		return a
	}
	both := &Ask{Self: a.Self && by.Self, TTL: min(a.TTL, by.TTL), Rule: cmp.Or(by.Rule, a.Rule), Text: strings.Trim(a.Text+"\n"+by.Text, "\n")}
	for _, name := range a.By {
		if slices.Contains(by.By, name) {
			both.By = append(both.By, name)
		}
	}
	return both
}

// Asked is what one policy was asked about a call, and what it answered: what it
// takes to have the call decided again.
type Asked struct {
	// File is that of the policy, Digest its SHA-256 in hexadecimal.
	File, Digest string
	At           time.Time
	// Input is what its export restrict was given, Vars what var_get answered it.
	Input []byte
	Vars  []Var
	// Answer is what it answered; nil where it did not, for the reason Err.
	Answer []byte
	Err    error
}

// Var is one answer of var_get; nil where there was no such variable.
type Var struct {
	Name  string
	Value []byte
}

// Undecided is what p runs if no policy says otherwise.
func Undecided(p Pinned) Decided {
	def := p.Tool.Def
	input := Input{Bytes: p.Stdin, Wanted: def.Stdin}
	if p.Text != nil && p.Text.ReadStdin { // it is in the payload
		input = Input{Fixed: true}
	}
	return Decided{
		Pinned:  p,
		Command: Command{Args: p.Args, Env: p.Env, Input: input},
		Payload: p.Payload,
		Terms:   Terms{Class: Class{Mutating: def.Mutating, Idempotent: def.Idempotent}, Key: p.IdempotencyKey},
	}
}

// Apply makes d what a policy decided about it. The error says which part of the
// decision cannot be followed.
func (d Decided) Apply(by *abi.Decision) (Decided, error) {
	switch asks := by.Effect == abi.Ask; {
	case asks != (by.Ask != nil):
		return d, errors.New("ask: it goes with the effect ask, and that with it")
	case asks:
		ask, err := askOf(by.Ask)
		if err != nil {
			return d, err
		}
		ask.Rule = by.Rule
		d.Ask = d.Ask.And(ask)
	}
	d.Rule = by.Rule
	if by.Args != nil {
		if (d.Discovered != nil || d.Text != nil) && !slices.Equal(by.Args, d.Args) {
			return d, fmt.Errorf("args: %s takes its payload, and other arguments change nothing in that", d.Call.Tool)
		}
		d.Args = by.Args
	}
	if by.Env != nil {
		d.Env = by.Env
	}
	if by.StdinBase64 != nil {
		b, err := base64.StdEncoding.DecodeString(*by.StdinBase64)
		if err != nil {
			return d, fmt.Errorf("stdin_base64: %w", err)
		}
		d.Input.Bytes, d.Input.Fixed = b, true
	}
	if d.IsCommand() && (by.Args != nil || by.StdinBase64 != nil) {
		payload, err := json.Marshal(struct {
			Args  []string `json:"args"`
			Cwd   string   `json:"cwd"`
			Stdin []byte   `json:"stdin,omitempty"`
		}{append([]string{}, d.Args...), d.Cwd, d.Input.Bytes})
		if err != nil {
			return d, err
		}
		d.Payload = payload
	}
	if by.Stdin != nil {
		d.Input.Wanted = *by.Stdin
	}
	if by.Mutating != nil {
		d.Class.Mutating = *by.Mutating
	}
	if by.Idempotent != nil {
		d.Class.Idempotent = *by.Idempotent
	}
	if by.IdempotencyKey != "" {
		d.Key = by.IdempotencyKey
	}
	if by.Shell {
		d.Shell = d.Shell.allow(by.ShellLines)
	}
	if by.Callbacks != nil {
		allowed, err := d.Callbacks.allow(by.Callbacks, d.Roots)
		if err != nil {
			return d, err
		}
		d.Notes = withRefused(d.Notes, slices.Concat(d.Callbacks.Allowed, by.Callbacks), allowed)
		d.Callbacks.Allowed = allowed
	}
	d.Notes = append(d.Notes[:len(d.Notes):len(d.Notes)], by.Notes...)
	d.Timeout = Shorter(time.Duration(by.TimeoutMS)*time.Millisecond, d.Timeout)
	return d, nil
}

// maxCallbacks is how many programs a policy names for one call.
const maxCallbacks = 64

// allow is what a call may ask its caller for once a policy named the programs of
// list. Where two policies name some, those that both name remain.
func (c Callbacks) allow(list []abi.Callback, roots []string) ([]abi.Callback, error) {
	if len(list) > maxCallbacks {
		return nil, fmt.Errorf("callbacks: are %d, and %d is the most", len(list), maxCallbacks)
	}
	names := map[string]bool{}
	for _, by := range list {
		hook := by.Kind == callbacks.Hooks
		switch {
		case c.Offered == nil || !slices.Contains(c.Offered.Kinds, by.Kind):
			return nil, fmt.Errorf("callbacks: %q was not offered", by.Kind)
		case strings.Trim(by.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || by.Name == "" || len(by.Name) > 64 || names[by.Name] || !hook && by.Name != by.Kind:
			return nil, fmt.Errorf("callbacks: %q is no name of its own for a program of kind %q", by.Name, by.Kind)
		case hook != (by.Path != ""):
			return nil, fmt.Errorf("callbacks: %q: hooks have a path, and nothing else has", by.Name)
		case hook && (!filepath.IsAbs(by.Path) || filepath.Clean(by.Path) != by.Path || !slices.ContainsFunc(roots, func(root string) bool { return confine.Beneath(root, by.Path) })):
			return nil, fmt.Errorf("callbacks: the path of %q is not beneath the roots", by.Name)
		}
		names[by.Name] = true
	}
	if c.Allowed == nil {
		return list, nil
	}
	return slices.DeleteFunc(slices.Clone(c.Allowed), func(was abi.Callback) bool { return !slices.Contains(list, was) }), nil
}

// withRefused is notes with one for each hook of named that is not allowed, and one for
// scripts: a hook that is left out is nothing to the tool, and scripts are not skipped
// in silence.
func withRefused(notes []string, named, allowed []abi.Callback) []string {
	notes = slices.Clone(notes)
	for _, c := range named {
		note := ""
		switch c.Kind {
		case callbacks.Hooks:
			note = "hook " + c.Name + " is not run: a policy refuses it"
		case callbacks.Scripts:
			note = "scripts are not run: a policy refuses them"
		}
		if note != "" && !slices.Contains(allowed, c) && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}

// allow lets a call have a shell for lines; none is any. Where two policies name
// some, those that both name remain.
func (s Shell) allow(lines []string) Shell {
	s.Allowed = true
	switch {
	case len(lines) == 0:
	case s.Lines == nil:
		s.Lines = lines
	default:
		s.Lines = slices.DeleteFunc(slices.Clone(s.Lines), func(line string) bool { return !slices.Contains(lines, line) })
	}
	return s
}

// Settle is d with what no policy has a say in: whatever a module says of its
// tool holds, and a caller that may only read is held to that. The error is
// DENIED.
func (d Decided) Settle(reliability string) (Decided, error) {
	d.Class.Mutating = d.Class.Mutating || d.Discovered != nil && d.Discovered.Mutating
	if d.ReadOnly() && d.Class.Mutating {
		return d, fault.Errorf(fault.Denied, "denied by rule read-only: %s changes something, and this identity may only read; use a tool that reads", d.Call.Tool)
	}
	if d.By != nil && d.By.ReadsOnly && d.Class.Mutating {
		by := d.By.Names[len(d.By.Names)-1]
		return d, fault.Errorf(fault.Denied, "denied by rule tool_call: %s changes something, and the call of %s that asks for it does not; call a tool that reads, or have the call of %s be mutating", d.Call.Tool, by, by)
	}
	if d.Class.Mutating && d.Key == "" {
		d.Key = d.TurnKey
	}
	d.Mode = ModeFor(reliability, d.Class.Mutating)
	return d, nil
}

// Shorter is the shorter of two durations, 0 standing for none.
func Shorter(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Run is a decided call that runs, with what changes meanwhile.
type Run struct {
	Decided
	Progress *Progress
	// Streams are the caller's, watched by Progress.
	Streams wire.Streams
}

// NewRun begins to run d over streams.
func NewRun(d Decided, streams wire.Streams) *Run {
	p := &Progress{}
	return &Run{Decided: d, Progress: p, Streams: p.watch(streams)}
}

// Attempt is one of the times that a call is executed.
type Attempt struct {
	*Run
	// Number counts from 1.
	Number int
	// Trace is the W3C traceparent for what the tool asks and starts, or empty.
	Trace string
	// Asking is called when a program of the caller begins, and what it returns when that
	// has ended.
	Asking func() (ended func())
}
