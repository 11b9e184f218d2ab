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
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	// PID is the process that sent it, as the kernel says; 0 where that is not
	// known.
	PID int
	// Container is the id of the container of that process, for people to see;
	// empty where that is not known.
	Container string
	// Socket is the path of the daemon's socket that it came over: its roots
	// and categories count. Empty is the first one.
	Socket string
	// Focus is the session that calls belong to which name none, shared by the
	// calls of a connection. It may be nil.
	Focus *atomic.Pointer[string]
	// Streams are the caller's. Nobody closes them but the front end.
	Streams wire.Streams
	// JobAfter makes a job of a call that has not ended by then: it is answered as
	// one in the background, and goes on without its caller. Until then it is its
	// caller's. Streams.Progress and Receive go on being used by the job. 0: never.
	JobAfter time.Duration
	// Kind is that of its execution; empty is session.KindCall.
	Kind string
	// PartOf is the id of the execution that asked for this one: a prompt's for
	// its turn, a call's for the job that it became. It is empty for what a
	// caller sent.
	PartOf string
	// By is the call in which a module asked for this one; nil for what a caller
	// sent.
	By *Parent
	// Plan, unless nil, is given what would run, and nothing runs.
	Plan func(*Decided) error
	// Take, unless nil, is of a call of an approved list: it lets the call begin that
	// has this digest, where it is the next one, and returns the approval's id.
	Take func(digest string) (approval string, err error)
	// As is who calls, where that is known already: a turn and a job are their
	// caller's. Nil asks the token and UID.
	As *identity.Caller
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

// Decided is what runs, exactly.
type Decided struct {
	Pinned
	// Rule is the last one that a policy named.
	Rule string
	Args []string
	Env  map[string]string
	// Input, and Payload as a module finds it: as it came, but with what the
	// policies made of the arguments and the input.
	Input   Input
	Payload json.RawMessage
	Shell   Shell
	// Offered is what a policy may have the call ask its caller to run; nil: nothing.
	Offered *abi.Callbacks
	// Callbacks are those of them that it may; nil where no policy said so.
	Callbacks []abi.Callback
	// Notes are said on the standard error before the tool runs.
	Notes []string
	Class Class
	// Key is that of its idempotency record; empty: none, or one that is made
	// of the payload.
	Key string
	// Timeout is the shortest that a policy set; 0: none.
	Timeout time.Duration
	Mode    Mode
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
		Args:    p.Args,
		Env:     p.Env,
		Input:   input,
		Payload: p.Payload,
		Class:   Class{Mutating: def.Mutating, Idempotent: def.Idempotent},
		Key:     p.IdempotencyKey,
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
		var err error
		was := d.Callbacks
		if d.Callbacks, err = d.allowCallbacks(by.Callbacks); err != nil {
			return d, err
		}
		// A hook that is left out is nothing to the tool, and scripts are not skipped
		// in silence.
		for _, c := range append(was[:len(was):len(was)], by.Callbacks...) {
			if note := "hook " + c.Name + " is not run: a policy refuses it"; c.Kind == callbacks.Hooks && !slices.Contains(d.Callbacks, c) && !slices.Contains(d.Notes, note) {
				d.Notes = append(d.Notes[:len(d.Notes):len(d.Notes)], note)
			}
			if note := "scripts are not run: a policy refuses them"; c.Kind == callbacks.Scripts && !slices.Contains(d.Callbacks, c) && !slices.Contains(d.Notes, note) {
				d.Notes = append(d.Notes[:len(d.Notes):len(d.Notes)], note)
			}
		}
	}
	d.Notes = append(d.Notes[:len(d.Notes):len(d.Notes)], by.Notes...)
	d.Timeout = Shorter(time.Duration(by.TimeoutMS)*time.Millisecond, d.Timeout)
	return d, nil
}

// maxCallbacks is how many programs a policy names for one call.
const maxCallbacks = 64

// allowCallbacks lets a call ask its caller for the programs of list. Where two
// policies name some, those that both name remain.
func (d *Decided) allowCallbacks(list []abi.Callback) ([]abi.Callback, error) {
	if len(list) > maxCallbacks {
		return nil, fmt.Errorf("callbacks: are %d, and %d is the most", len(list), maxCallbacks)
	}
	names := map[string]bool{}
	for _, c := range list {
		hook := c.Kind == callbacks.Hooks
		switch {
		case d.Offered == nil || !slices.Contains(d.Offered.Kinds, c.Kind):
			return nil, fmt.Errorf("callbacks: %q was not offered", c.Kind)
		case strings.Trim(c.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || c.Name == "" || len(c.Name) > 64 || names[c.Name] || !hook && c.Name != c.Kind:
			return nil, fmt.Errorf("callbacks: %q is no name of its own for a program of kind %q", c.Name, c.Kind)
		case hook != (c.Path != ""):
			return nil, fmt.Errorf("callbacks: %q: hooks have a path, and nothing else has", c.Name)
		case hook && (!filepath.IsAbs(c.Path) || filepath.Clean(c.Path) != c.Path || !slices.ContainsFunc(d.Roots, func(root string) bool { return confine.Beneath(root, c.Path) })):
			return nil, fmt.Errorf("callbacks: the path of %q is not beneath the roots", c.Name)
		}
		names[c.Name] = true
	}
	if d.Callbacks == nil {
		return list, nil
	}
	return slices.DeleteFunc(slices.Clone(d.Callbacks), func(c abi.Callback) bool { return !slices.Contains(list, c) }), nil
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

// Outcome is what came of a call, or of one attempt at it.
type Outcome struct {
	// Result is never nil. Result.Err is why it failed.
	Result *wire.Result
	// Job says that the call goes on as a job, after Request.JobAfter; Result is that
	// of a call in the background.
	Job bool
	// Began says that the tool itself was started in this attempt.
	Began bool
	// Killed says that a signal ended it.
	Killed bool
	// ExitFailed says that its exit is a failure, and not only its answer.
	ExitFailed bool
	// Unanswered says of a module that failed that it sent a request which may
	// change something, and got no answer: its failure does not say what became
	// of that.
	Unanswered bool
	// RetryAfter is the least wait before another attempt that its upstream
	// asked for.
	RetryAfter time.Duration
	// Streamed is what went to the caller's streams, as far as a record may hold
	// it; nil where nothing was kept.
	Streamed *[2][]byte
	// Answer is what a handler itself answered, where it did.
	Answer *abi.Result
}

// Failed is the outcome of a call that ended with err. ctx is the call's, which
// may tell why.
func Failed(ctx context.Context, err error) Outcome {
	return Outcome{Result: &wire.Result{Err: AsError(ctx, err)}}
}

// Err is why the call failed, or nil.
func (o *Outcome) Err() *fault.Error { return o.Result.Err }

// AsError gives an error of the pipeline its code; nil stays nil. One that comes
// from the end of the call's context is TIMEOUT or ABORTED, whatever it was
// wrapped in.
func AsError(ctx context.Context, err error) *fault.Error {
	if err == nil {
		return nil
	}
	var e *fault.Error
	if errors.As(err, &e) {
		return e
	}
	// The end of a call's context may have a reason of its own: a caller that
	// broke the protocol, a daemon that stops.
	if errors.As(context.Cause(ctx), &e) {
		return e
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &fault.Error{Code: fault.Timeout, Message: "the call took longer than it may", Cause: err}
	case errors.Is(err, context.Canceled):
		return &fault.Error{Code: fault.Aborted, Message: "the call was ended", Cause: err}
	}
	return fault.Errorf(fault.Internal, "%w; see the daemon's log", err)
}

// Meter adds up what the modules of one call take. It is safe for concurrent use.
type Meter struct {
	mu    sync.Mutex
	usage *wire.Usage // nil until there is something to say; guarded by mu
}

// Add adds what one call of a module took: metered instructions, bytes of memory
// at most, pages of 4 KiB restored. A nil Meter counts nothing.
func (m *Meter) Add(fuel, memory int64, pages int) {
	m.update(func(u *wire.Usage) {
		u.Fuel += fuel
		u.Memory = max(u.Memory, memory)
		u.Pages += int64(pages)
	})
}

// Retried notes that the call was executed so many times, and how many retries
// that its settings still allowed the budget of its upstream did not.
func (m *Meter) Retried(attempts, cut int) {
	m.update(func(u *wire.Usage) { u.Attempts, u.RetriesCut = attempts, cut })
}

func (m *Meter) update(with func(*wire.Usage)) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		m.usage = &wire.Usage{}
	}
	with(m.usage)
}

// Usage is what it came to; nil where no module ran and nothing was retried.
func (m *Meter) Usage() *wire.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.usage == nil {
		return nil
	}
	u := *m.usage
	return &u
}

// Text returns the outcome of a call that text answers, and nothing runs for.
func Text(ctx context.Context, q *Request, text string) Outcome {
	res := &wire.Result{Ran: true}
	if q.Streams.Stdout == nil {
		res.Stdout = []byte(text)
	} else if _, err := io.WriteString(q.Streams.Stdout, text); err != nil {
		return Failed(ctx, err)
	}
	return Outcome{Result: res}
}
