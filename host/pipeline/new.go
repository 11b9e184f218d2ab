package pipeline

import (
	"github.com/toold/toold/host/execute"
	"github.com/toold/toold/host/finder"
	"github.com/toold/toold/host/reliability"
)

// New returns a Pipeline made of parts.
func New(parts Parts) *Pipeline {
	p := &Pipeline{Parts: parts}
	p.inner = sessionCalls{Parts: parts, call: p.Call}
	p.execute = execute.New(execute.Config{
		Config: parts.Config, Runner: parts.Runner,
		SecretFiles:      func() []string { return parts.Tools.Serving().SecretFiles() },
		CertificateFiles: func() []string { return parts.Tools.Serving().CertificateFiles() },
		ToolCall:         p.inner.toolCall, Metrics: parts.Metrics, Log: parts.Log,
	})
	p.finder = finder.New(finder.Config{
		Config: parts.Config, Identity: parts.Identity, Tools: parts.Tools, Discovered: parts.Discovered, Execute: p.execute, Log: parts.Log,
	})
	p.records = &recorder{log: parts.Audit, config: parts.Config, mask: p.execute.Masker}
	p.approver = &approver{store: parts.Approvals, tools: parts.Tools, identity: parts.Identity, records: p.records}
	p.approvals = approvalCalls{p.approver, batches{p.approver, p.Call}}
	if parts.Layer != nil {
		parts.Layer.UseReconciler(reliability.Reconciler{Can: canReconcile, Facts: p.facts, Look: p.look})
	}
	return p
}
