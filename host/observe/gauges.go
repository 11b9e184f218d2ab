package observe

import "github.com/prometheus/client_golang/prometheus"

// Gauges holds callbacks for gauges. Each is called at each scrape and must not
// block; nil ones are left out.
type Gauges struct {
	// Breakers calls emit with the state of each circuit breaker in force.
	Breakers func(emit func(tool, state string))
	// GuestMemory returns the bytes that all instances of modules hold, and
	// their limit.
	GuestMemory func() (held, limit int64)
}

// breakerStates are all states of a breaker. Each tool has a series for each of
// them, so that a former state returns to 0.
var breakerStates = [...]string{"closed", "open", "half_open"}

var (
	breakerDesc = prometheus.NewDesc("circuit_breaker_state",
		"Circuit breakers by tool and state, closed, open or half_open: 1 for the state that a tool's is in, more for a tool that has one for each identity.",
		[]string{"tool", "state"}, nil)
	memoryDesc = prometheus.NewDesc("toold_guest_memory_bytes",
		"Bytes that all instances of modules, running and pooled, hold together.", nil, nil)
	memoryLimitDesc = prometheus.NewDesc("toold_guest_memory_limit_bytes",
		"Bytes that all instances of modules may hold together.", nil, nil)
)

// RegisterGauges registers g. It is called once.
func (m *Metrics) RegisterGauges(g Gauges) { m.registry.MustRegister(gauges{g}) }

type gauges struct{ Gauges }

func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{breakerDesc, memoryDesc, memoryLimitDesc} {
		ch <- d
	}
}

func (g gauges) Collect(ch chan<- prometheus.Metric) {
	emit := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if g.Breakers != nil {
		tools := map[string]map[string]int{}
		g.Breakers(func(tool, state string) {
			if tools[tool] == nil {
				tools[tool] = map[string]int{}
			}
			tools[tool][state]++
		})
		for tool, states := range tools {
			for _, state := range breakerStates {
				emit(breakerDesc, float64(states[state]), tool, state)
			}
		}
	}
	if g.GuestMemory != nil {
		held, limit := g.GuestMemory()
		emit(memoryDesc, float64(held))
		emit(memoryLimitDesc, float64(limit))
	}
}
