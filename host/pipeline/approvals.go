package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// A call whose policy asks runs by an approval, or not at all. spend is the guard:
// it is the last thing before the call begins, and takes an approval of exactly what
// begins. Everything else here only brings one about: await has a call wait for it
// that may, and ask says what to do to one that may not.

// sum is a digest of named fields, each with its length, so that no two lists of
// fields have the same bytes.
type sum struct{ hash.Hash }

func (s sum) field(name string, values ...string) {
	fmt.Fprintf(s, "%d:%s%d;", len(name), name, len(values))
	for _, v := range values {
		fmt.Fprintf(s, "%d:", len(v))
		io.WriteString(s, v)
	}
}

// digest is that of all that makes d what runs: who calls in which session, which
// version of the tool by which policies, in which folder, with what.
func digest(d *call.Decided) (string, error) {
	s := sum{sha256.New()}
	t := d.Tool
	s.field("call", "1", d.Call.Tool, t.Name, t.Version, t.HandlerDigest)
	s.field("policies", slices.Concat(t.PolicyFiles, t.PolicyDigests)...)
	program, err := programOf(t)
	if err != nil {
		return "", err
	}
	s.field("program", program)
	if d.Discovered != nil {
		binding, err := json.Marshal(d.Discovered.Binding)
		if err != nil {
			return "", err
		}
		s.field("discovered", d.Discovered.Tool.Schema, string(binding), strconv.FormatBool(d.Discovered.Mutating))
	}
	s.field("caller", d.Caller.ID, d.Caller.Owner(), strconv.FormatUint(uint64(d.UID), 10), d.Effective.Fingerprint(), d.Session, d.Socket)
	// The folder of callbacks is another one in each call. No argument holds a zero
	// byte, so that none can be taken for it.
	same := func(v string) string {
		if d.Callbacks.Offered == nil {
			return v
		}
		return strings.ReplaceAll(v, d.Callbacks.Offered.Folder, "\x00callbacks")
	}
	for _, c := range d.Callbacks.Allowed {
		s.field("callback", c.Kind, c.Name, c.Path)
	}
	args := make([]string, len(d.Args))
	for i, a := range d.Args {
		args[i] = same(a)
	}
	s.field("args", args...)
	s.field("has args", strconv.FormatBool(d.Args != nil))
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		s.field("env", name, same(d.Env[name]))
	}
	s.field("payload", same(string(d.Payload)))
	s.field("stdin", string(d.Input.Bytes))
	s.field("cwd", d.Cwd, d.Folder)
	s.field("roots", d.Roots...)
	s.field("shell", strconv.FormatBool(d.Shell.Allowed), strconv.FormatBool(d.Shell.Lines != nil))
	s.field("lines", d.Shell.Lines...)
	s.field("class", strconv.FormatBool(d.Class.Mutating), strconv.FormatBool(d.Class.Idempotent), d.Timeout.String())
	if d.Ask == nil { // a call of a batch that need not be asked for by itself
		return hex.EncodeToString(s.Sum(nil)), nil
	}
	s.field("ask", d.Ask.Rule, d.Ask.Text, strconv.FormatBool(d.Ask.Self), d.Ask.TTL.String())
	s.field("by", d.Ask.By...)
	return hex.EncodeToString(s.Sum(nil)), nil
}

// programOf is a text for the binary of t, which is another one once that was
// replaced or written to.
func programOf(t *tools.Tool) (string, error) {
	if t.Kind != tools.Binary {
		return "", nil
	}
	info, err := os.Stat(t.Binary)
	if err != nil {
		return "", fault.Errorf(fault.ToolNotInstalled, "look at the binary of %s: %w", t.Name, err)
	}
	f, err := os.Open(t.Binary)
	if err != nil { // which may be executed, and not be read
		return fmt.Sprint(t.Binary, info.Size(), info.ModTime().UnixNano()), nil
	}
	defer f.Close()
	object, err := confine.ObjectOf(f)
	return fmt.Sprint(t.Binary, info.Size(), info.ModTime().UnixNano(), object), err
}

// step is d as a step of a request: what is shown of it, whole, and its digest.
func (p *Pipeline) step(d *call.Decided) (approval.Step, error) {
	s := p.draft(&d.Request, &d.Pinned, d, d.Caller)
	if s.Withheld != "" {
		return approval.Step{}, fault.Errorf(fault.ToolBroken, "%s needs an approval, and cannot be shown to anybody: %s", d.Call.Tool, s.Withheld)
	}
	hide := s.HideText
	x := adminapi.ApprovalPlan{
		Cwd: hide(d.Cwd), Folder: d.Folder, Mutating: d.Class.Mutating, Shell: d.Shell.Allowed, Timeout: d.Timeout.Milliseconds(),
	}
	for _, line := range d.Shell.Lines {
		x.Lines = append(x.Lines, hide(line))
	}
	if d.Tool.Kind == tools.Binary {
		x.Binary = d.Tool.Binary
	}
	for _, c := range d.Callbacks.Allowed {
		x.Callbacks = append(x.Callbacks, adminapi.ApprovalCallback{Kind: c.Kind, Name: c.Name, Path: hide(c.Path)})
	}
	for i, file := range d.Tool.PolicyFiles {
		x.Policies = append(x.Policies, file+" sha256:"+d.Tool.PolicyDigests[i])
	}
	for i, a := range d.Args {
		if a = hide(a); i > 0 && record.IsSecretFlag(d.Args[i-1]) {
			a = mask.Placeholder
		}
		x.Args = append(x.Args, a)
	}
	for name, value := range d.Env {
		if x.Env == nil {
			x.Env = map[string]string{}
		}
		if x.Env[name] = hide(value); record.IsSecretName(name) {
			x.Env[name] = mask.Placeholder
		}
	}
	if !d.IsCommand() {
		x.Payload, _ = s.HideJSON(d.Payload)
	}
	if in := hide(string(d.Input.Bytes)); utf8.ValidString(in) {
		x.Stdin = in
	} else {
		x.StdinB64 = []byte(in)
	}
	shown, err := json.Marshal(x)
	if err != nil {
		return approval.Step{}, err
	}
	of := approval.Step{Tool: d.Call.Tool, Version: d.Tool.Version, Plan: shown}
	if d.Tool.Name != d.Call.Tool {
		of.Source = d.Tool.Name
	}
	of.Digest, err = digest(d)
	return of, err
}

// whole is d with an input that is known before it runs. The error says what of it
// nobody could approve.
func whole(d call.Decided) (call.Decided, error) {
	streams := d.Input.Wanted && !d.Input.Fixed && len(d.Input.Bytes) == 0 && d.Streams.Stdin != nil
	if d.Tool.Kind == tools.Handler && d.Tool.Entry.Input != tools.EntryStdin {
		streams = false // it runs without, where it asks for any
	}
	if streams {
		return d, fault.Errorf(fault.Denied, "denied by rule approval.input: %s needs an approval, and its input comes as a stream, which nobody can review before; send the input with the call, or call it without", d.Call.Tool)
	}
	// Neither what is steered nor a terminal adds to what was approved.
	d.Execution.RejectSteering("what runs is approved as it is")
	d.Input.Fixed = true
	d.Streams.Stdin, d.Streams.Terminal, d.Streams.Steer, d.Streams.Receive = nil, nil, nil, nil
	return d, nil
}

// request is the request for steps, the last of which is d. A policy may have put what
// its caller wrote into its text.
func (p *Pipeline) request(d *call.Decided, steps ...approval.Step) approval.Request {
	names := namesOf(d.Caller)
	hide := p.draft(&d.Request, &d.Pinned, d, d.Caller).HideText
	return approval.Request{
		Asker: d.Caller.ID, Owner: d.Caller.Owner(), Name: names[len(names)-1], Session: d.Session, Execution: d.ExecutionID,
		By: d.Ask.By, Self: d.Ask.Self, Rule: hide(d.Ask.Rule), Text: hide(d.Ask.Text), Steps: steps,
	}
}

// namesOf are the names by which a policy may call c, the one for people last.
func namesOf(c identity.Caller) []string {
	names := []string{c.ID}
	if sub, ok := c.Claim("sub"); ok && sub != "" {
		return append(names, "sub:"+sub)
	}
	if !c.HasToken() && !call.IsExtension(c.ID) {
		names = append(names, "uid:"+strconv.FormatUint(uint64(c.UID), 10))
	}
	return names
}

// current reports why d cannot run by any approval any more: its tool is not the one
// that serves, or its caller does not count any longer.
func (p *Pipeline) current(ctx context.Context, d *call.Decided) error {
	t, release, err := p.Tools.Acquire(ctx, d.Tool.Name)
	if err != nil {
		return err
	}
	release()
	if !sameVersion(t, d.Tool) {
		return lapsed(d, "the tool or a policy of it was replaced")
	}
	if err := d.Caller.Current(); err != nil {
		return err
	}
	if !d.Caller.HasToken() && !call.IsExtension(d.Caller.ID) {
		if _, err := p.Identity().Resolve("", d.UID); err != nil {
			return err
		}
	}
	return nil
}

func sameVersion(a, b *tools.Tool) bool {
	return a.Version == b.Version && a.HandlerDigest == b.HandlerDigest && slices.Equal(a.PolicyDigests, b.PolicyDigests)
}

func lapsed(d *call.Decided, why string) error {
	return fault.Errorf(fault.ApprovalRequired, "what %s would run is not what was asked for any more: %s; make the call again, to have it approved as it is now", d.Call.Tool, why)
}

// storeError is the error of a call for one of the store.
func storeError(err error) error {
	switch {
	case errors.Is(err, approval.ErrFull):
		return &fault.Error{Code: fault.Overloaded, Message: err.Error(), Cause: err}
	case errors.Is(err, approval.ErrInvalid):
		return fault.Errorf(fault.LimitExceeded, "the call cannot be approved: %w", err)
	}
	return &fault.Error{Code: fault.StoreUnavailable, Cause: err, Message: "the store of approvals cannot be written, so nothing that needs one runs; ask the operator to check the disk space and the daemon's state (toold's log says why)"}
}

// spend takes the approval of d, where it needs one, and returns once that is spent
// for good. On an error d must not run.
func (p *Pipeline) spend(ctx context.Context, d *call.Decided, acc *account) error {
	if d.Ask == nil && d.Take == nil {
		return nil
	}
	if err := p.current(ctx, d); err != nil {
		return err
	}
	if d.Take != nil {
		now, err := digest(d)
		if err != nil {
			return err
		}
		if acc.approval, err = d.Take(now); err != nil {
			return err
		}
		acc.allowed = true
		return nil
	}
	s, err := p.step(d)
	if err != nil {
		return err
	}
	grant, err := p.Approvals.Use(s.Digest, d.ExecutionID)
	if err != nil {
		return storeError(err)
	}
	if grant == nil {
		r, err := p.ask(d, s)
		if err == nil {
			err = fault.Errorf(fault.Internal, "request %s is asked for, and its call went on", r.ID)
		}
		acc.asked = &r
		return err
	}
	acc.grant, acc.approval, acc.allowed = grant, grant.ID, true
	return nil
}

// ask has d approved by somebody. The error is what its caller is told who does not
// wait.
func (p *Pipeline) ask(d *call.Decided, s approval.Step) (approval.Request, error) {
	r, err := p.Approvals.Ask(p.request(d, s), d.Ask.TTL)
	if err != nil {
		return r, storeError(err)
	}
	switch r.State {
	case approval.Denied:
		return r, refused(&r)
	case approval.Approved: // between the look and this
		return r, fault.Errorf(fault.ApprovalRequired, "%s was approved just now as %s; make the same call again", d.Call.Tool, r.ID)
	}
	return r, fault.Errorf(fault.ApprovalRequired, "%s; then make the same call again", toApprove(d, &r))
}

// toApprove says who has to do what.
func toApprove(d *call.Decided, r *approval.Request) string {
	rule := ""
	if r.Rule != "" {
		rule = fmt.Sprintf(" (rule %s)", r.Rule)
	}
	who := "the operator"
	if len(r.By) > 0 {
		who = strings.Join(r.By, ", ") + " or " + who
	}
	if r.Self {
		who = "you, " + who
	}
	return fmt.Sprintf("%s runs only once it is approved%s; until %s %s can do that: toolctl approvals approve %s",
		d.Call.Tool, rule, r.Expires.UTC().Format("2006-01-02 15:04:05 MST"), who, r.ID)
}

// refused is the error of a call that was not approved.
func refused(r *approval.Request) error {
	reason := ""
	if r.Reason != "" {
		reason = ": " + r.Reason
	}
	return fault.Errorf(fault.Denied, "denied by rule %s: %s has refused request %s%s; the same call is refused until %s",
		cmp.Or(r.Rule, "approval"), cmp.Or(r.DeciderName, r.Decider), r.ID, reason, r.Expires.UTC().Format("2006-01-02 15:04:05 MST"))
}

// waits reports whether d waits for its approval: a turn, a job, and a call at a
// terminal, where somebody sees that it does.
func waits(d *call.Decided) bool {
	return !d.By.Waits() && (d.Kind == session.KindTurn || d.Execution.Job != nil || d.TTY != nil)
}

// await has d wait until it is approved, and decides it anew then: as pinned, which
// is d before any policy was asked. A policy that says otherwise by now has the last
// word. Its time is not that of the tool: it ends with the request, or with ctx.
func (p *Pipeline) await(ctx context.Context, d call.Decided, pinned call.Pinned) (call.Decided, error) {
	if p.Layer.Recorded(ctx, &d) {
		return d, nil // it will be answered by its key
	}
	if pinned.Timeout > 0 { // the caller's own is all that it waits
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, pinned.Timeout)
		defer cancel()
	}
	s, err := p.step(&d)
	if err != nil {
		return d, err
	}
	r, err := p.ask(&d, s)
	if e := (*fault.Error)(nil); errors.As(err, &e) && e.Code != fault.ApprovalRequired {
		return d, err
	}
	d.Execution.Job.Admit()
	if out := d.Streams.Stderr; out != nil && r.State == approval.Pending {
		fmt.Fprintf(out, "toold: waiting: %s\n", toApprove(&d, &r))
	}
	r, err = p.Approvals.Wait(ctx, r.ID)
	if errors.Is(err, approval.ErrEnding) {
		return d, fault.Errorf(fault.Aborted, "the daemon was stopped while the call waited for request %s, which stays; make the call again", r.ID)
	}
	if err != nil {
		return d, err
	}
	switch r.State {
	case approval.Denied:
		return d, refused(&r)
	case approval.Expired:
		return d, fault.Errorf(fault.ApprovalRequired, "nobody approved request %s in time; make the call again to ask again", r.ID)
	case approval.Lapsed:
		return d, lapsed(&d, r.Reason)
	}
	if err := p.current(ctx, &d); err != nil {
		return d, err
	}
	if pinned, err = place(pinned, p.Config().Entrance(d.Request.Socket).Roots); err != nil {
		return d, err
	}
	again, err := p.decide(ctx, pinned)
	if err != nil || again.Ask == nil {
		return again, err
	}
	now, err := digest(&again)
	if err == nil && now != s.Digest {
		err = lapsed(&d, "its folder, its binary or what its policy says has changed")
		p.Approvals.Lapse(func(open *approval.Request) string {
			if open.ID == r.ID {
				return "what would run has changed"
			}
			return ""
		})
	}
	return again, err
}

// endGrant notes what came of an approved call.
func (acc *account) endGrant(res *wire.Result) {
	if acc.grant == nil {
		return
	}
	outcome := res.Status() + ", exit code " + strconv.Itoa(res.ExitCode)
	if res.Err != nil {
		outcome += ", " + string(res.Err.Code)
	}
	acc.grant.End(outcome)
	acc.grant = nil
}

// askedData is what programs are told of a request for which their call does not
// wait.
func askedData(r *approval.Request) json.RawMessage {
	b, err := json.Marshal(map[string]any{"approval": map[string]any{
		"id": r.ID, "state": r.State, "rule": r.Rule, "by": append([]string{}, r.By...), "self": r.Self, "expires": r.Expires,
	}})
	if err != nil {
		return nil
	}
	return b
}
