// Package call defines the values that represent a call, one for each stage, and what can be derived from them without
// a daemon:
//
//	Request -> Admitted -> Pinned -> Decided -> Run -> Outcome
//
// Each embeds the previous one and adds the results of its stage. A stage gets one value and returns the next; no
// stage changes its input, or what that points to. So a field has one owner, records and logs show the request as it
// was, and a test of a stage can construct its input. Only Progress and Meter change while a call runs.
//
// Package pipeline defines the order of the stages.
package call

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/beneath"
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

// Request is one call as it arrived.
type Request struct {
	// Call is the call as sent. ExecutionID is never empty.
	*wire.Call
	// UID is the user who sent it, as reported by the kernel.
	UID uint32
	// Peer is where the call came from. Its Socket determines the roots and categories that apply; empty is the first
	// socket.
	Peer
	// Focus is the session for calls that name none, shared by the calls of a connection. It may be nil.
	Focus *atomic.Pointer[string]
	// Streams are the caller's. Only the front end closes them.
	Streams wire.Streams
	// JobAfter turns a call that has not ended by then into a job: its caller gets the response of a background call,
	// and it continues without the caller. Until then it belongs to its caller. The job keeps using Streams.Progress
	// and Receive. 0: never.
	JobAfter time.Duration
	// TurnKey is the key for a call that changes something and has no key of its own: one for its place in its turn. A
	// call that only reads is made anew each time. Empty: none.
	TurnKey string
	// As is the caller if it is already known: a turn and a job run as their caller. If nil, the caller is resolved
	// from token and UID.
	As *identity.Caller
	// Inner describes a call that the daemon makes within another one. A front end leaves it empty.
	Inner
}

// Peer is where a call came from.
type Peer = session.Peer

// Inner describes what contains a call that no caller sent: a prompt, a job, a module's call, a list of calls.
type Inner struct {
	// Kind is the kind of its execution; empty is session.KindCall.
	Kind string
	// PartOf is the id of the execution that requested this one: a prompt's for its turn, a call's for the job that it
	// became.
	PartOf string
	// By is the call in which a module requested this one, or nil.
	By *Parent
	// Plan, if not nil, is called with what would run, and nothing runs.
	Plan func(*Decided) error
	// Take, if not nil, belongs to a call of an approved list: it lets the call with this digest begin if it is the
	// next one, and returns the approval's id.
	Take func(digest string) (approval string, err error)
}

// CheckParent refuses what the module that requests q may not request. It refuses nothing that a caller sent. listing
// reports whether q requests a list of tools.
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

// Admitted is a request whose caller and session are known. The token is dropped here: Call.Token is empty.
type Admitted struct {
	Request
	Caller identity.Caller
	// Session is the id of its session.
	Session string
	// Execution is its execution in that session. It is nil for a discovery, which is nobody's call.
	Execution *session.Execution
	// Meter counts the resources that its modules use.
	Meter *Meter
}

// Pinned is a call of one generation of a tool, in one folder, for one identity.
type Pinned struct {
	Admitted
	// Tool is of the same version throughout: policy, schema and handler.
	Tool *tools.Tool
	// Effective is what the tool grants the caller.
	Effective *identity.Effective
	// Discovered is the tool that a module provides for the caller; nil for a tool of tools.d.
	Discovered *Discovered
	// Roots are the folders in and below which the call may work, Cwd is its working folder. Cwd is empty for a tool
	// that touches no files and was called from outside of the roots.
	Roots []string
	Cwd   string
	// Folder identifies the folder that Cwd was when it was opened; see confine.ObjectOf.
	Folder string
	// Payload is the input that the schema describes: as it was sent, or built from the arguments, and then Text says
	// how.
	Payload json.RawMessage
	Text    *arguments.Parsed
	// Clock is the tool's time limit if the call may wait for its caller; else nil.
	Clock *Clock
	// Omitted are the names of variables that the caller sent for other tools, and that are no longer in Env.
	Omitted []string
}

// AsParent returns p as the parent of the calls that its module requests while it has fuel left. changes reports that
// p was decided to change something.
//
// A module that may only make session calls could always start turns that change something, whatever it is itself: it
// is restricted to reading if its host or its caller restricts it so.
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

// Discovered is a tool that a module provides for one identity.
type Discovered struct {
	discovery.Tool
	Key    discovery.Key
	Schema *jsonschema.Schema
	// Output is the schema of its output; nil if anything is valid.
	Output *jsonschema.Schema
}

// ReadOnly reports whether the caller may only read.
func (p *Pinned) ReadOnly() bool { return p.Effective.ReadOnly }

// OnlyReads reports whether the guest of p may only make requests that read: the host enforces what a module declares
// for its tool, and what an operator sets for a caller.
func (p *Pinned) OnlyReads() bool {
	return p.ReadOnly() || p.Discovered != nil && !p.Discovered.Mutating
}

// IsCommand reports whether the payload is {args, cwd, stdin?}, or is derived from these.
func (p *Pinned) IsCommand() bool {
	return p.Discovered == nil && p.Text == nil && (p.Form == wire.Plain || p.Args != nil)
}

// HasPayload reports whether the call has a payload besides its arguments.
func (p *Pinned) HasPayload() bool {
	return p.Form == wire.Envelope || p.Discovered != nil || p.Text != nil
}

// Schema returns the schema of the called tool as written; empty if any object is valid.
func (p *Pinned) Schema() string {
	if p.Discovered != nil {
		return p.Discovered.Tool.Schema
	}
	return string(p.Tool.SchemaSource)
}

// CheckOutput validates the call's output against the schema that the tool declares for it.
func (p *Pinned) CheckOutput(data json.RawMessage) error {
	schema := p.Tool.Output
	if p.Discovered != nil {
		schema = p.Discovered.Output
	}
	return tools.CheckOutput(p.Call.Tool, schema, data)
}

// TakesText reports whether the arguments of p are to be parsed by the schema: a plain call of a tool that takes a
// payload. A schema with args of its own describes the command itself.
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

// ByText returns p with the payload built from its arguments.
func (p Pinned) ByText(t *arguments.Parsed) Pinned {
	p.Text, p.Payload = t, t.Payload
	return p
}

// Validate validates the payload against the tool's schema. Without a schema, a payload for a program, or one with
// args for a module that works in a folder, can only mean arguments: a misspelled one must not run without them.
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

// WithoutEnv returns p without the variables of these names, as Omitted.
func (p Pinned) WithoutEnv(names []string) Pinned {
	if len(names) == 0 {
		return p
	}
	without := *p.Request.Call
	without.Env = maps.Clone(without.Env)
	for _, name := range names {
		delete(without.Env, name)
	}
	p.Request.Call, p.Omitted = &without, names
	return p
}

// Unpassed returns the sorted names of the variables in the caller's environment that its tool would have honoured, and
// that the caller did not pass.
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

// maxUnhonoured is the maximum number of names in a line of Unhonoured.
const maxUnhonoured = 4

// Unhonoured describes which variables of the caller's environment its tool would have honoured and d does not set, and
// what to do instead: one line for all that have the same advice; and in one line those of Omitted. It is empty if there
// are none.
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
		list, are := shortened(names[instead])
		fmt.Fprintf(&text, "%s: %s of your environment %s not passed on", d.Call.Tool, list, are)
		if instead != "" {
			text.WriteString("; " + instead)
		}
		text.WriteByte('\n')
	}
	if len(d.Omitted) > 0 {
		list, are := shortened(d.Omitted)
		fmt.Fprintf(&text, "%s: %s of TOOL_ENV, which other tools take, %s left out\n", d.Call.Tool, list, are)
	}
	return text.String()
}

// shortened returns names as a list of at most maxUnhonoured, and the verb for it.
func shortened(names []string) (list, verb string) {
	verb = "is"
	if len(names) > 1 {
		verb = "are"
	}
	if more := len(names) - maxUnhonoured; more > 0 {
		names = append(names[:maxUnhonoured:maxUnhonoured], fmt.Sprintf("%d more", more))
	}
	return enumerate(names), verb
}

// enumerate returns "a, b and c".
func enumerate(list []string) string {
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}

// Input is what a call reads from its standard input.
type Input struct {
	// Bytes came with the request, or from a policy. Fixed means that they are a policy's and the complete input, even
	// if empty.
	Bytes []byte
	Fixed bool
	// Wanted means that the call reads what its caller streams.
	Wanted bool
}

// Class describes the effects of a call.
type Class struct {
	Mutating   bool
	Idempotent bool // it may be repeated
}

// Repeatable reports whether such a call may safely be repeated.
func (c Class) Repeatable() bool { return !c.Mutating || c.Idempotent }

// Shell is what a call may run in a shell.
type Shell struct {
	Allowed bool
	// Lines are the only permitted lines; nil: any.
	Lines []string
}

// Callbacks are the caller's programs that a call may request.
type Callbacks struct {
	// Offered are the programs that a policy may allow; nil: none.
	Offered *abi.Callbacks
	// Allowed are those that policies allowed; nil if no policy named any.
	Allowed []abi.Callback
}

// Command is what a tool is run with.
type Command struct {
	Args  []string
	Env   map[string]string
	Input Input
}

// Terms are the conditions of execution: whether a call may be repeated, for how long it may run, and what the
// reliability layer does with it.
type Terms struct {
	Class Class
	// Key is the key of its idempotency record; empty: none, or one derived from the payload.
	Key string
	// Timeout is the shortest that a policy set; 0: none.
	Timeout time.Duration
	Mode    Mode
}

// Decided is exactly what runs.
type Decided struct {
	Pinned
	// Command is what runs, and Payload is the module's input: as received, but with the policies' changes to the
	// arguments and the input.
	Command
	Payload json.RawMessage
	// Shell and Callbacks are what it may run in addition.
	Shell     Shell
	Callbacks Callbacks
	Terms
	// Notes are written to standard error before the tool runs.
	Notes []string
	// Rule is the last rule that a policy named.
	Rule string
	// Ask describes who has to approve it first; nil: nobody.
	Ask *Ask
	// Asked holds the input and the response of each policy, in order.
	Asked []Asked
}

// Ask is the approval that the policies of a call require.
type Ask struct {
	// By are the names of those who may approve besides the operator, Self admits the caller, TTL is how long the
	// request is valid, Text is the policies' explanation.
	By   []string
	Self bool
	TTL  time.Duration
	Text string
	// Rule is the rule of the last policy that required approval.
	Rule string
}

// askOf returns the approval that a policy requires.
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

// And combines two requirements: those who may approve under both, for the shorter time. Nil requires nothing.
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

// Asked is the input and the response of one policy: all that is needed to have the call decided again.
type Asked struct {
	// File is the policy's file, Digest its SHA-256 in hexadecimal.
	File, Digest string
	At           time.Time
	// Input is the input of its export restrict, Vars the results of its var_get calls.
	Input []byte
	Vars  []Var
	// Answer is its response; nil if it gave none, for the reason in Err.
	Answer []byte
	Err    error
}

// Var is one result of var_get; nil if there was no such variable.
type Var struct {
	Name  string
	Value []byte
}

// Undecided returns what p runs if no policy changes it.
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

// Apply returns d with a policy's decision applied. The error names the part of the decision that cannot be followed.
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

// maxCallbacks is how many programs a policy may name for one call.
const maxCallbacks = 64

// allow returns what a call may request of its caller once a policy has named the programs of list. If two policies
// name some, those that both name remain.
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
			return nil, fmt.Errorf("callbacks: %q is not a unique, plain name for a program of kind %q", by.Name, by.Kind)
		case hook != (by.Path != ""):
			return nil, fmt.Errorf("callbacks: %q: hooks have a path, and nothing else has", by.Name)
		case hook && (!filepath.IsAbs(by.Path) || filepath.Clean(by.Path) != by.Path || !slices.ContainsFunc(roots, func(root string) bool { return beneath.Has(root, by.Path) })):
			return nil, fmt.Errorf("callbacks: the path of %q is not beneath the roots", by.Name)
		}
		names[by.Name] = true
	}
	if c.Allowed == nil {
		return list, nil
	}
	return slices.DeleteFunc(slices.Clone(c.Allowed), func(was abi.Callback) bool { return !slices.Contains(list, was) }), nil
}

// withRefused returns notes with one more for each hook of named that is not allowed, and one for scripts: a tool does
// not notice that a hook is left out, and scripts must not be skipped silently.
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

// allow lets a call run lines in a shell; none means any. If two policies name some, those that both name remain.
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

// Settle returns d with what no policy can change: whatever a module declares for its tool is enforced, and so is a
// caller's restriction to reading. The error is DENIED.
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

// Shorter returns the shorter of two durations, where 0 means none.
func Shorter(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Run is a decided call while it runs, with the state that changes meanwhile.
type Run struct {
	Decided
	Progress *Progress
	// Streams are the caller's, observed by Progress.
	Streams wire.Streams
}

// NewRun returns a Run of d over streams.
func NewRun(d Decided, streams wire.Streams) *Run {
	p := &Progress{}
	return &Run{Decided: d, Progress: p, Streams: p.watch(streams)}
}

// Attempt is one execution of a call.
type Attempt struct {
	*Run
	// Number counts from 1.
	Number int
	// Trace is the W3C traceparent for what the tool requests and starts, or empty.
	Trace string
	// Asking is called when a program of the caller begins, and the function that it returns when that program has
	// ended.
	Asking func() (ended func())
}
