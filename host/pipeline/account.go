package pipeline

import (
	"strconv"
	"strings"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// account is what is known of a call when it ends, for its session, the log, the metrics and the audit log. Stages
// write to it, but never decide by it.
type account struct {
	caller    identity.Caller    // once it is known
	execution *session.Execution // once its session is known
	pinned    *call.Pinned       // once its tool is known
	decided   *call.Decided      // as far as it got
	consent
	begin   uint64 // number of its begin record in the audit log
	cleared bool   // what has to be on disk before it runs is
	counted bool   // its id belongs to the caller now; see Results
	job     bool   // it continues as a job, which is a call of its own
	found   *audit.Found
	meter   call.Meter
}

// consent is whether a call may run, according to its policies and approvers.
type consent struct {
	allowed  bool
	planned  bool              // and not run
	asked    *approval.Request // the request, if the call does not wait for it
	approval string            // id of the approval under which it runs
	grant    *approval.Grant   // of that; nil for one of a batch
}

// endGrant records the outcome of an approved call.
func (c *consent) endGrant(res *wire.Result) {
	if c.grant == nil {
		return
	}
	outcome := res.Status() + ", exit code " + strconv.Itoa(res.ExitCode)
	if res.Err != nil {
		outcome += ", " + string(res.Err.Code)
	}
	c.grant.End(outcome)
	c.grant = nil
}

// verdict derives from e and the account whether the call was let through, and by which rule.
func (acc *account) verdict(e *fault.Error) record.Verdict {
	v := record.Verdict{Effect: audit.EffectAllow, Approval: acc.approval}
	if acc.decided != nil {
		v.Rule = acc.decided.Rule
	}
	if acc.planned {
		v.Effect = audit.EffectAsk
	}
	if acc.planned || acc.allowed || e == nil {
		return v
	}
	v.Effect = audit.EffectError
	if e.Code == fault.ApprovalRequired {
		v.Effect = audit.EffectAsk
	}
	if e.Code == fault.Denied || e.Code == fault.Unauthenticated {
		v.Effect = audit.EffectDeny
	}
	// A rule of the host has its name in the message, as a policy's rule has.
	if rest, ok := strings.CutPrefix(e.Message, "denied by rule "); ok {
		v.Rule, _, _ = strings.Cut(rest, ": ")
	}
	return v
}
