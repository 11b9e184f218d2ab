package host

import (
	"cmp"
	"time"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/pipeline"
)

// noteApproval tells watchers and the audit log what became of a request. Texts
// of a policy and of who decided are bounded by the store.
func noteApproval(p *pipeline.Parts, r approval.Request) {
	tool := r.Steps[0].Tool
	p.Events.Publish(events.Event{
		Kind: events.Approval, Owner: r.Owner, Session: r.Session, Execution: r.Execution, Tool: tool, Approval: r.ID, State: string(r.State),
	})
	p.Log.Info("approval", "id", r.ID, "state", r.State, "tool", tool, "asker", r.Asker, "decider", r.Decider, "execution_id", r.Execution, "used_by", r.UsedBy)
	if !p.Audit.On() {
		return
	}
	record := &audit.Approval{
		ID: r.ID, State: string(r.State), Began: r.Began, Outcome: r.Outcome, Asker: r.Asker, AskerName: r.Name,
		Decider: r.Decider, DeciderName: r.DeciderName, Reason: r.Reason, Execution: r.Execution, UsedBy: r.UsedBy,
		Session: r.Session, Rule: r.Rule,
	}
	for i := range r.Steps {
		record.Tools, record.Digests = append(record.Tools, r.Steps[i].Tool), append(record.Digests, r.Steps[i].Digest)
	}
	at := time.Now()
	p.Audit.Add(16<<10, func() *audit.Record { return &audit.Record{At: at, Type: audit.TypeApproval, Approval: record} })
}

// lapseApprovals ends the requests of versions of a tool other than that which
// serves; empty is none. approver.spend of package pipeline does not rely on it: it only has nobody
// decide, or wait for, what cannot run any more.
func lapseApprovals(store *approval.Store, tool, version string) {
	store.Lapse(func(r *approval.Request) string {
		for i := range r.Steps {
			if s := &r.Steps[i]; cmp.Or(s.Source, s.Tool) == tool && s.Version != version {
				return "the tool or a policy of it was replaced"
			}
		}
		return ""
	})
}
