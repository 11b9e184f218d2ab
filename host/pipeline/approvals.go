package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
)

// The calls with which an identity decides on the requests it may decide on.
const (
	approvalList    = "approval.list"
	approvalShow    = "approval.show"
	approvalApprove = "approval.approve"
	approvalDeny    = "approval.deny"
	approvalPlan    = "approval.plan"
	approvalRun     = "approval.run"
)

// isApprovalCall reports whether a tool id is one of the calls above.
func isApprovalCall(tool string) bool {
	return slices.Contains([]string{approvalList, approvalShow, approvalApprove, approvalDeny, approvalPlan, approvalRun}, tool)
}

// A call whose policy asks for approval runs under an approval, or not at all. spend enforces that: it is the last
// step before the call begins, and takes an approval of exactly what begins. Everything else here only leads to one:
// wait makes a call wait for it if it may, and ask tells the caller what to do if it may not.

// approver gets calls approved.
type approver struct {
	store    *approval.Store
	tools    *catalog.Catalog
	identity func() *identity.Resolver
	records  *recorder
}

// step returns d as a step of a request: its full description, and its digest.
func (v *approver) step(d *call.Decided) (approval.Step, error) {
	s := v.records.draft(&d.Request, &d.Pinned, d, d.Caller)
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

// whole returns d with an input that is known before it runs. The error names the part that nobody could approve.
func whole(d call.Decided) (call.Decided, error) {
	streams := d.Input.Wanted && !d.Input.Fixed && len(d.Input.Bytes) == 0 && d.Streams.Stdin != nil
	if d.Tool.Kind == tools.Handler && d.Tool.Entry.Input != tools.EntryStdin {
		streams = false // it runs without streams, if it asks for any
	}
	if streams {
		return d, fault.Errorf(fault.Denied, "denied by rule approval.input: %s needs an approval, and its input comes as a stream, which nobody can review before; send the input with the call, or call it without", d.Call.Tool)
	}
	// Neither steering nor a terminal may add to what was approved.
	d.Execution.RejectSteering("what runs is approved as it is")
	d.Input.Fixed = true
	d.Streams.Stdin, d.Streams.Terminal, d.Streams.Steer, d.Streams.Receive = nil, nil, nil, nil
	return d, nil
}

// request returns the request for steps, the last of which is d. A policy may have copied input from its caller into
// its text.
func (v *approver) request(d *call.Decided, steps ...approval.Step) approval.Request {
	names := namesOf(d.Caller)
	hide := v.records.draft(&d.Request, &d.Pinned, d, d.Caller).HideText
	return approval.Request{
		Asker: d.Caller.ID, Owner: d.Caller.Owner(), Name: names[len(names)-1], Session: d.Session, Execution: d.ExecutionID,
		By: d.Ask.By, Self: d.Ask.Self, Rule: hide(d.Ask.Rule), Text: hide(d.Ask.Text), Steps: steps,
	}
}

// namesOf returns the names by which a policy may refer to c, the human-readable one last.
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

// current returns an error if d can no longer run under any approval: its tool has been replaced, or its caller is no
// longer valid.
func (v *approver) current(ctx context.Context, d *call.Decided) error {
	t, release, err := v.tools.Acquire(ctx, d.Tool.Name)
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
		if _, err := v.identity().Resolve("", d.UID); err != nil {
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

// storeError converts an error of the store to one of a call.
func storeError(err error) error {
	switch {
	case errors.Is(err, approval.ErrFull):
		return &fault.Error{Code: fault.Overloaded, Message: err.Error(), Cause: err}
	case errors.Is(err, approval.ErrInvalid):
		return fault.Errorf(fault.LimitExceeded, "the call cannot be approved: %w", err)
	}
	return &fault.Error{Code: fault.StoreUnavailable, Cause: err, Message: "the store of approvals cannot be written, so nothing that needs one runs; ask the operator to check the disk space and the daemon's state (toold's log says why)"}
}

// spend takes the approval of d, if it needs one, and returns once that is durably spent. On an error d must not run.
func (v *approver) spend(ctx context.Context, d *call.Decided, c *consent) error {
	if d.Ask == nil && d.Take == nil {
		return nil
	}
	if err := v.current(ctx, d); err != nil {
		return err
	}
	if d.Take != nil {
		now, err := digest(d)
		if err != nil {
			return err
		}
		if c.approval, err = d.Take(now); err != nil {
			return err
		}
		c.allowed = true
		return nil
	}
	s, err := v.step(d)
	if err != nil {
		return err
	}
	grant, err := v.store.Use(s.Digest, d.ExecutionID)
	if err != nil {
		return storeError(err)
	}
	if grant == nil {
		r, err := v.ask(d, s)
		if err == nil {
			err = fault.Errorf(fault.Internal, "request %s is asked for, and its call went on", r.ID)
		}
		c.asked = &r
		return err
	}
	c.grant, c.approval, c.allowed = grant, grant.ID, true
	return nil
}

// ask requests approval of d. The error is for a caller that does not wait.
func (v *approver) ask(d *call.Decided, s approval.Step) (approval.Request, error) {
	r, err := v.store.Ask(v.request(d, s), d.Ask.TTL)
	if err != nil {
		return r, storeError(err)
	}
	switch r.State {
	case approval.Denied:
		return r, refused(&r)
	case approval.Approved: // since the check
		return r, fault.Errorf(fault.ApprovalRequired, "%s was approved just now as %s; make the same call again", d.Call.Tool, r.ID)
	}
	return r, fault.Errorf(fault.ApprovalRequired, "%s; then make the same call again", toApprove(d, &r))
}

// toApprove says who has to do what to approve.
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

// refused returns the error of a call that was not approved.
func refused(r *approval.Request) error {
	reason := ""
	if r.Reason != "" {
		reason = ": " + r.Reason
	}
	return fault.Errorf(fault.Denied, "denied by rule %s: %s has refused request %s%s; the same call is refused until %s",
		cmp.Or(r.Rule, "approval"), cmp.Or(r.DeciderName, r.Decider), r.ID, reason, r.Expires.UTC().Format("2006-01-02 15:04:05 MST"))
}

// waits reports whether d waits for its approval: a turn, a job, and a call at a terminal, where somebody sees that it
// waits.
func waits(d *call.Decided) bool {
	return !d.By.Waits() && (d.Kind == session.KindTurn || d.Execution.Job != nil || d.TTY != nil)
}

// wait requests approval of d, and returns its step and the request once it is approved. The tool's time limit does
// not apply: the wait ends with the request or with ctx.
func (v *approver) wait(ctx context.Context, d *call.Decided) (s approval.Step, r approval.Request, err error) {
	if s, err = v.step(d); err != nil {
		return s, r, err
	}
	r, err = v.ask(d, s)
	if e := (*fault.Error)(nil); errors.As(err, &e) && e.Code != fault.ApprovalRequired {
		return s, r, err
	}
	d.Execution.Job.Admit()
	if out := d.Streams.Stderr; out != nil && r.State == approval.Pending {
		fmt.Fprintf(out, "toold: waiting: %s\n", toApprove(d, &r))
	}
	r, err = v.store.Wait(ctx, r.ID)
	if errors.Is(err, approval.ErrEnding) {
		return s, r, fault.Errorf(fault.Aborted, "the daemon was stopped while the call waited for request %s, which stays; make the call again", r.ID)
	}
	if err != nil {
		return s, r, err
	}
	switch r.State {
	case approval.Denied:
		return s, r, refused(&r)
	case approval.Expired:
		return s, r, fault.Errorf(fault.ApprovalRequired, "nobody approved request %s in time; make the call again to ask again", r.ID)
	case approval.Lapsed:
		return s, r, lapsed(d, r.Reason)
	}
	return s, r, v.current(ctx, d)
}

// compare lets the request with that id lapse unless d, which was decided anew, still matches s. The error is then
// APPROVAL_REQUIRED.
func (v *approver) compare(d *call.Decided, s approval.Step, id string) error {
	now, err := digest(d)
	if err == nil && now != s.Digest {
		err = lapsed(d, "its folder, its binary or what its policy says has changed")
		v.store.Lapse(func(open *approval.Request) string {
			if open.ID == id {
				return "what would run has changed"
			}
			return ""
		})
	}
	return err
}

// askedData describes, for programs, a request for which their call does not wait.
func askedData(r *approval.Request) json.RawMessage {
	b, err := json.Marshal(map[string]any{"approval": map[string]any{
		"id": r.ID, "state": r.State, "rule": r.Rule, "by": append([]string{}, r.By...), "self": r.Self, "expires": r.Expires,
	}})
	if err != nil {
		return nil
	}
	return b
}

// approvalStatus returns r as seen by who.
func approvalStatus(r *approval.Request, who approval.Person) adminapi.Approval {
	a := adminapi.Approval{
		ID: r.ID, State: string(r.State), Asker: r.Asker, AskerName: r.Name, Session: r.Session, Execution: r.Execution,
		By: r.By, Self: r.Self, Yours: approval.MayDecide(r, who), Rule: r.Rule, Text: r.Text, Batch: r.Batch,
		Made: r.Made, Expires: r.Expires, Decided: r.Decided, Decider: r.Decider, DeciderName: r.DeciderName, Reason: r.Reason,
		Used: r.Used, UsedBy: r.UsedBy, Began: r.Began, Outcome: r.Outcome,
	}
	for _, s := range r.Steps {
		a.Steps = append(a.Steps, adminapi.ApprovalStep{Tool: s.Tool, Source: s.Source, Version: s.Version, Digest: s.Digest, Plan: s.Plan})
	}
	return a
}
