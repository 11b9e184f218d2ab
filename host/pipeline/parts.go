package pipeline

import (
	"log/slog"

	"github.com/toold/toold/host/approval"
	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/reliability"
	"github.com/toold/toold/host/session"
)

// Parts are the components of a Pipeline, which does not close them.
type Parts struct {
	// Config and Identity return the ones in force; a reload replaces them.
	Config     func() *config.Config
	Identity   func() *identity.Resolver
	Tools      *catalog.Catalog
	Sessions   *session.Table
	Events     *events.Hub
	Discovered *discovery.Cache
	Runner     *process.Runner
	Layer      *reliability.Layer
	Approvals  *approval.Store
	Audit      *audit.Log // nil: none
	Telemetry
}

// Telemetry is where a daemon reports what it does.
type Telemetry struct {
	Tracer  *observe.Tracer // nil: no traces
	Metrics *observe.Metrics
	Log     *slog.Logger
}
