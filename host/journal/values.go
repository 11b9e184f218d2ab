package journal

import (
	"time"

	"github.com/toold/toold/host/fault"
)

// Outcome is the result of an execution, as kept in journals and snapshots.
type Outcome struct {
	ID          string
	Tool        string
	Kind        string
	Parent      string
	Status      string // as returned by wire.Result.Status
	Code        fault.Code
	ExitCode    int
	Attempts    int
	Started     time.Time
	Duration    time.Duration
	BytesIn     int64
	BytesOut    int64
	Fuel        int64
	Undelivered int // bytes of unread steering text
	// Programs are the further programs that a binary executed or was refused.
	Programs []Program
	// Connections are those that a binary made or was refused.
	Connections []Connection
	HTTP        HTTP
}

// HTTP sums up the requests of guests that were sent, and the replies. The bytes are
// those of the bodies.
type HTTP struct {
	Requests      int64 `json:"requests"`
	Replies       int64 `json:"replies"`
	BytesSent     int64 `json:"bytes_sent"`
	BytesReceived int64 `json:"bytes_received"`
}

// Add adds o to h.
func (h *HTTP) Add(o HTTP) {
	h.Requests += o.Requests
	h.Replies += o.Replies
	h.BytesSent += o.BytesSent
	h.BytesReceived += o.BytesReceived
}

// Program is a program that an execution executed, or was refused, Times times.
// Its arguments are not kept: they may hold secrets.
type Program struct {
	Path    string `json:"path"`
	Refused string `json:"refused,omitempty"` // why
	Times   int    `json:"times"`
}

// Connection is a host that a binary connected to, or was refused, Times times; or,
// where On is set, what it was about to send there, once a policy was asked.
type Connection struct {
	Host     string `json:"host"`              // with its port, or unix:PATH
	On       string `json:"on,omitempty"`      // what was to be sent
	Rule     string `json:"rule,omitempty"`    // of the policy
	Refused  string `json:"refused,omitempty"` // why
	Failed   string `json:"failed,omitempty"`  // why the host was not reached
	Sent     int64  `json:"sent,omitempty"`    // bytes, like those received
	Received int64  `json:"received,omitempty"`
	Times    int    `json:"times"`
}

// Found is what a look into a call found out, as journals keep it.
type Found struct {
	Of       string `json:"of"` // the call's execution id
	Verdict  string `json:"verdict"`
	Evidence string `json:"evidence,omitempty"`
}

// Counters sum up the executions of one session. They are JSON in journals.
type Counters struct {
	Calls    int64            `json:"calls"`
	Attempts int64            `json:"attempts"`
	Outcomes map[string]int64 `json:"outcomes,omitempty"` // by code; "ok" for success
	BytesIn  int64            `json:"bytes_in"`
	BytesOut int64            `json:"bytes_out"`
	Fuel     int64            `json:"fuel"`
	HTTP     HTTP             `json:"http,omitzero"`
	Duration time.Duration    `json:"duration"`
	Events   map[string]int64 `json:"events,omitempty"` // state changes of the session, by new state
}

// Add counts the execution with this outcome.
func (c *Counters) Add(o *Outcome) {
	c.Calls++
	c.Attempts += int64(o.Attempts)
	if c.Outcomes == nil {
		c.Outcomes = map[string]int64{}
	}
	code := string(o.Code)
	switch {
	case code != "":
	case o.ExitCode != 0:
		code = string(fault.ToolFailed)
	default:
		code = "ok"
	}
	c.Outcomes[code]++
	c.BytesIn += o.BytesIn
	c.BytesOut += o.BytesOut
	c.Fuel += o.Fuel
	c.HTTP.Add(o.HTTP)
	c.Duration += o.Duration
}

// CountEvent counts a change of the session's state.
func (c *Counters) CountEvent(name string) {
	if c.Events == nil {
		c.Events = map[string]int64{}
	}
	c.Events[name]++
}

// Merge adds the counters of another session.
func (c *Counters) Merge(d *Counters) {
	sum := func(to *map[string]int64, from map[string]int64) {
		for k, n := range from {
			if *to == nil {
				*to = map[string]int64{}
			}
			(*to)[k] += n
		}
	}
	c.Calls += d.Calls
	c.Attempts += d.Attempts
	c.BytesIn += d.BytesIn
	c.BytesOut += d.BytesOut
	c.Fuel += d.Fuel
	c.HTTP.Add(d.HTTP)
	c.Duration += d.Duration
	sum(&c.Outcomes, d.Outcomes)
	sum(&c.Events, d.Events)
}

// Clone returns a deep copy of c.
func (c *Counters) Clone() Counters {
	var d Counters
	d.Merge(c)
	return d
}
