package dashboard

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
)

const (
	// minutes is for how long it is kept how calls went, one minute a step.
	minutes = 60
	// maxCalls and maxFailures are how many calls are kept that ended last, and how
	// many of those that a person should look at.
	maxCalls    = 200
	maxFailures = 100
	// steps of durations are a quarter of a doubling wide, from 1 ms on.
	durations = 96
)

// history summarizes the calls of the last hour. It is safe for concurrent use.
type history struct {
	mu       sync.Mutex
	since    time.Time
	minutes  []*minute // the oldest first, without those in which nothing ended
	calls    []events.Event
	failures []events.Event
}

// minute is one step. Failed are calls that a person should look at, Refused those
// with another error code; times are milliseconds.
type minute struct {
	At      time.Time `json:"at"`
	Calls   int       `json:"calls"`
	Failed  int       `json:"failed"`
	Refused int       `json:"refused"`
	P50     int64     `json:"p50"`
	P95     int64     `json:"p95"`
	Max     int64     `json:"max"`
	Fuel    int64     `json:"fuel"`

	took [durations]int32
}

// whole is the first line for a page.
type whole struct {
	Event    string         `json:"event"`
	Since    time.Time      `json:"since"`
	Minutes  []minute       `json:"minutes"`
	Calls    []events.Event `json:"calls"`
	Failures []events.Event `json:"failures"`
}

func newHistory() *history { return &history{since: time.Now().UTC()} }

// record follows the events until ctx ends or the hub is closed.
func (h *history) record(ctx context.Context, hub *events.Hub) {
	for ctx.Err() == nil {
		w, err := hub.Watch(events.Filter{Operator: true, Kinds: []events.Kind{events.End}}, "")
		if err != nil {
			return // the hub is closed, or there are too many watchers: nothing to show then
		}
		for err == nil {
			var e events.Event
			if e, err = w.Next(ctx); err == nil && e.Kind == events.End {
				h.add(e)
			}
		}
		w.Close() // too slow, and begins again; or over
	}
}

// serious are the codes that a person should look at, as in the log.
func serious(code fault.Code) bool {
	switch code {
	case fault.Internal, fault.ToolBroken, fault.StoreUnavailable, fault.Timeout, fault.GuestTrap, fault.OutcomeUnknown:
		return true
	}
	return false
}

// add counts one call that ended.
func (h *history) add(e events.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := e.At.Truncate(time.Minute)
	var m *minute
	if n := len(h.minutes); n > 0 && !h.minutes[n-1].At.Before(at) {
		m = h.minutes[n-1] // also where the clock was set back
	} else {
		m = &minute{At: at}
		h.minutes = append(h.minutes, m)
		h.trim(at)
	}
	m.Calls++
	m.Fuel += e.Fuel
	m.Max = max(m.Max, e.DurationMS)
	m.took[stepOf(e.DurationMS)]++
	h.calls = keep(h.calls, e, maxCalls)
	switch {
	case serious(e.Code):
		m.Failed++
		h.failures = keep(h.failures, e, maxFailures)
	case e.Code != "":
		m.Refused++
	}
}

// keep returns list with e appended, and without its first element if it is too long.
func keep(list []events.Event, e events.Event, most int) []events.Event {
	if len(list) == most {
		copy(list, list[1:])
		list = list[:most-1]
	}
	return append(list, e)
}

// trim drops what is over an hour old. h.mu is held.
func (h *history) trim(now time.Time) {
	for len(h.minutes) > 0 && now.Sub(h.minutes[0].At) >= minutes*time.Minute {
		h.minutes = h.minutes[1:]
	}
}

// all returns everything that is kept.
func (h *history) all() whole {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trim(time.Now().UTC().Truncate(time.Minute))
	w := whole{Event: "history", Since: h.since, Minutes: []minute{}, Calls: append([]events.Event{}, h.calls...), Failures: append([]events.Event{}, h.failures...)}
	for _, m := range h.minutes {
		w.Minutes = append(w.Minutes, m.sum())
	}
	return w
}

// current returns the last minute in which anything ended, or nil.
func (h *history) current() *minute {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.minutes) == 0 {
		return nil
	}
	m := h.minutes[len(h.minutes)-1].sum()
	return &m
}

// sum returns m with its quantiles.
func (m *minute) sum() minute {
	s := *m
	quantile := func(q float64) int64 {
		left := int32(math.Ceil(q * float64(m.Calls)))
		for i, n := range m.took {
			if left -= n; left <= 0 {
				return min(upTo(i), m.Max)
			}
		}
		return m.Max
	}
	s.P50, s.P95 = quantile(0.5), quantile(0.95)
	return s
}

// stepOf returns the step of a duration, and upTo the longest duration of a step.
func stepOf(ms int64) int {
	if ms <= 1 {
		return 0
	}
	return min(int(math.Ceil(4*math.Log2(float64(ms)))), durations-1)
}

func upTo(step int) int64 { return int64(math.Exp2(float64(step) / 4)) }
