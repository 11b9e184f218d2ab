// Package observe exports a daemon's metrics and traces.
//
// Metric names and labels are a stable interface for dashboards and alerts. A
// label never holds a caller's input; calls of tools that do not exist share the
// label value Unknown.
package observe

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/toold/toold/host/fault"
)

// Unknown is the tool label of every call whose tool does not exist.
const Unknown = "unknown"

// Outcomes of a policy, for Decision.
const (
	PolicyAllow = "allow"
	PolicyDeny  = "deny"
	PolicyAsk   = "ask"
	PolicyError = "error" // the policy failed: the call was refused
)

// Level returns the log level for a call that ended with code: ERROR for what an operator must
// look at, WARN for what should stay rare, INFO for what callers cause and can see. The table
// is in docs/operating.md.
func Level(code fault.Code) slog.Level {
	switch code {
	case fault.Internal, fault.ToolBroken, fault.StoreUnavailable:
		return slog.LevelError
	case fault.Timeout, fault.GuestTrap, fault.OutcomeUnknown:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// Metrics are the metrics of one daemon. It is safe for concurrent use.
type Metrics struct {
	registry             *prometheus.Registry
	executions           *prometheus.CounterVec
	durations            *prometheus.HistogramVec
	decisions            *prometheus.CounterVec
	changes              *prometheus.CounterVec
	inFlight             *prometheus.GaugeVec
	shadow               *prometheus.CounterVec
	retries              *prometheus.CounterVec
	breakers             *prometheus.CounterVec
	dropped              *prometheus.CounterVec
	surfaces             *prometheus.CounterVec
	connections, network *prometheus.CounterVec
	cut                  *prometheus.CounterVec
	hits                 *prometheus.CounterVec
	keyed                *prometheus.CounterVec
	stored               *prometheus.HistogramVec
	storeFails           *prometheus.CounterVec
	fuel                 *prometheus.HistogramVec
	memory               *prometheus.HistogramVec
	pages                *prometheus.CounterVec
}

// New returns the metrics of one daemon, in their own registry.
func New() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		executions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tool_execution_total",
			Help: "Calls that ended, by tool and by status as envelope answers give it.",
		}, []string{"tool", "status"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tool_duration_seconds",
			Help:    "How long calls took, from the request to the answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"tool"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_policy_decisions_total",
			Help: "Decisions of policies, by tool and effect: allow, deny, or error when a policy did not answer.",
		}, []string{"tool", "effect"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_tool_changes_total",
			Help: "Changes of tools: loaded, swapped, failed (the old version serves), broken (nothing serves), removed, closed (a version ended with its last call).",
		}, []string{"tool", "change"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "toold_calls_in_flight",
			Help: "Executions that are running now, by tool.",
		}, []string{"tool"}),
		shadow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_reliability_shadow_total",
			Help: "What the reliability layer would have decided for calls that it only watches, by tool and decision.",
		}, []string{"tool", "decision"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_retries_total",
			Help: "Attempts after the first, by tool.",
		}, []string{"tool"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_retries_cut_total",
			Help: "Retries that calls were still allowed and the budget of their tool was not, by tool.",
		}, []string{"tool"}),
		fuel: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "toold_guest_fuel",
			Help:    "Metered instructions that one call of a module took, policies and handlers alike, by tool.",
			Buckets: prometheus.ExponentialBuckets(10_000, 10, 7),
		}, []string{"tool"}),
		memory: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "toold_guest_memory_peak_bytes",
			Help:    "The most memory that one call of a module held, by tool.",
			Buckets: prometheus.ExponentialBuckets(64<<10, 4, 9),
		}, []string{"tool"}),
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_guest_pages_restored_total",
			Help: "Pages of 4 KiB that calls of modules wrote and that were put back, by tool.",
		}, []string{"tool"}),
		breakers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_circuit_breaker_changes_total",
			Help: "Changes of circuit breakers, by tool and the state that they came to.",
		}, []string{"tool", "state"}),
		hits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idempotency_cache_hits_total",
			Help: "Calls with an idempotency key that were answered with the result of the first, by tool.",
		}, []string{"tool"}),
		keyed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_idempotency_events_total",
			Help: "What happened to idempotency records, by tool and event: claimed, replayed, pending, unknown, late, gone (an alarm), and further ones.",
		}, []string{"tool", "event"}),
		stored: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "toold_store_duration_seconds",
			Help:    "How long the store of idempotency records took, by operation: claim, end, renew, get.",
			Buckets: []float64{.00001, .00005, .0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5},
		}, []string{"operation"}),
		storeFails: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "toold_store_errors_total",
			Help: "Operations of the store of idempotency records that failed.",
		}, []string{"operation"}),
	}
	m.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toold_events_dropped_total", Help: "Events that a tool was not run with, since others waited.",
	}, []string{"tool"})
	m.surfaces = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toold_surface_events_total",
		Help: "What happened to the tools that modules bring for identities, by tool: hit, miss, refresh, stale, failed, refused, invalidated, asked, superseded, evicted.",
	}, []string{"tool", "event"})
	m.connections = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toold_connections_total",
		Help: "Connections of binaries, by tool and verdict: made, refused, failed. The first 64 made and refused of a run are counted; hosts are in journals.",
	}, []string{"tool", "verdict"})
	m.network = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "toold_connection_bytes_total",
		Help: "Bytes of connections of binaries, by tool and direction: sent, received.",
	}, []string{"tool", "direction"})
	m.registry.MustRegister(m.surfaces, m.dropped, m.connections, m.network, m.executions, m.durations, m.decisions, m.changes, m.inFlight,
		m.shadow, m.retries, m.cut, m.breakers, m.hits, m.keyed, m.stored, m.storeFails, m.fuel, m.memory, m.pages,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Executed counts a finished call.
func (m *Metrics) Executed(tool, status string, d time.Duration) {
	m.executions.WithLabelValues(tool, status).Inc()
	m.durations.WithLabelValues(tool).Observe(d.Seconds())
}

// Connected counts one connection of a binary, whose verdict is made, refused or
// failed, and its bytes.
func (m *Metrics) Connected(tool, verdict string, sent, received int64) {
	m.connections.WithLabelValues(tool, verdict).Inc()
	m.network.WithLabelValues(tool, "sent").Add(float64(sent))
	m.network.WithLabelValues(tool, "received").Add(float64(received))
}

// Decision counts one decision of a policy.
func (m *Metrics) Decision(tool, effect string) {
	m.decisions.WithLabelValues(tool, effect).Inc()
}

// Spent observes the usage of one call of a module: metered instructions, bytes,
// and pages of 4 KiB.
func (m *Metrics) Spent(tool string, fuel, memory int64, pages int) {
	m.fuel.WithLabelValues(tool).Observe(float64(fuel))
	m.memory.WithLabelValues(tool).Observe(float64(memory))
	m.pages.WithLabelValues(tool).Add(float64(pages))
}

// Changed counts one change of a tool; change is a catalog.Change.
func (m *Metrics) Changed(tool, change string) {
	m.changes.WithLabelValues(tool, change).Inc()
}

// Dropped counts events that a tool was not run with, though it asked for them.
func (m *Metrics) Dropped(tool string, n int64) { m.dropped.WithLabelValues(tool).Add(float64(n)) }

// Surface counts one event of discovery, such as discovery.Hit.
func (m *Metrics) Surface(tool, event string) { m.surfaces.WithLabelValues(tool, event).Inc() }

// Running counts an execution of tool until the returned func is called.
func (m *Metrics) Running(tool string) (done func()) {
	g := m.inFlight.WithLabelValues(tool)
	g.Inc()
	return g.Dec
}

// Shadow counts one decision that the reliability layer would have made.
func (m *Metrics) Shadow(tool, decision string) {
	m.shadow.WithLabelValues(tool, decision).Inc()
}

// Retried counts attempts after the first.
func (m *Metrics) Retried(tool string, n int) {
	m.retries.WithLabelValues(tool).Add(float64(n))
}

// RetriesCut counts retries that a budget did not allow.
func (m *Metrics) RetriesCut(tool string, n int) {
	m.cut.WithLabelValues(tool).Add(float64(n))
}

// CacheHit counts a call whose result came from a record.
func (m *Metrics) CacheHit(tool string) { m.hits.WithLabelValues(tool).Inc() }

// Keyed counts an event of idempotency records, an idempotency.Event.
func (m *Metrics) Keyed(tool, event string) {
	if tool == "" {
		tool = Unknown
	}
	m.keyed.WithLabelValues(tool, event).Inc()
}

// Stored observes an operation of the store of records.
func (m *Metrics) Stored(operation string, took time.Duration, err error) {
	m.stored.WithLabelValues(operation).Observe(took.Seconds())
	if err != nil {
		m.storeFails.WithLabelValues(operation).Inc()
	}
}

// BreakerChanged counts one change of a circuit breaker.
func (m *Metrics) BreakerChanged(tool, state string) {
	m.breakers.WithLabelValues(tool, state).Inc()
}

// Sessions registers the metrics of sessions. read is called at each scrape; it
// returns the number of sessions in each state and of all their calls.
func (m *Metrics) Sessions(states []string, read func() (byState map[string]int, calls int64)) {
	for _, state := range states {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "toold_sessions", Help: "Sessions, by state: active, suspended, closing.", ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { n, _ := read(); return float64(n[state]) }))
	}
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "toold_session_calls_total", Help: "Calls that ended, of all sessions whose journals there were.",
	}, func() float64 { _, calls := read(); return float64(calls) }))
}

// Handler serves the metrics in the Prometheus text format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
