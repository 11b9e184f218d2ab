package audit

import (
	"slices"
	"time"
)

// CallEntry is one call, assembled from its records.
type CallEntry struct {
	// N is the number of its first record, EndN that of its end; 0 if there is none.
	N    uint64    `json:"n"`
	EndN uint64    `json:"end_n,omitempty"`
	At   time.Time `json:"at"`
	Call *Call     `json:"call"`
	// End is nil for a call that is running, or that was cut off when its daemon ended.
	End *End `json:"end,omitempty"`

	dropped bool
	settled bool
}

// Query selects calls.
type Query struct {
	// Since and Until bound the start of a call, unless zero.
	Since, Until time.Time
	// Match filters calls; nil accepts all.
	Match func(*CallEntry) bool
	// Limit is the maximum number of calls, the newest ones unless Oldest; 0 means all.
	Limit  int
	Oldest bool
	// Whole keeps the inputs and responses of policies, which are most of a record.
	Whole bool
}

// Calls returns the calls in the log in dir that match q, oldest first.
func Calls(dir string, q Query) ([]*CallEntry, error) {
	var list []*CallEntry
	begun := map[uint64]*CallEntry{} // no end so far
	settled := 0
	settle := func(e *CallEntry) {
		delete(begun, e.N)
		e.settled = true
		settled++
		if e.dropped || q.Match != nil && !q.Match(e) {
			e.dropped = true // so that it is omitted below
			settled--
		}
		if q.Limit > 0 && !q.Oldest && settled > 2*q.Limit+64 {
			list, settled = newest(list, q.Limit)
		}
	}
	err := Read(dir, q.Since, func(_ Position, r *Record, _ []byte) bool {
		late := !q.Until.IsZero() && r.At.After(q.Until)
		full := q.Oldest && q.Limit > 0 && settled >= q.Limit
		switch {
		case r.Type == TypeBegin && r.Call != nil && !late && !full:
			e := &CallEntry{N: r.N, At: r.At, Call: r.Call}
			if was := begun[r.Call.Replaces]; was != nil {
				e.At, was.dropped = was.At, true
				settle(was)
			}
			list = append(list, e)
			begun[r.N] = e
		case r.Type == TypeEnd && r.End != nil && r.End.Begin != 0:
			if e := begun[r.End.Begin]; e != nil {
				e.EndN, e.End = r.N, r.End
				settle(e)
			}
		case r.Type == TypeEnd && r.End != nil && r.Call != nil && !late && !full:
			began := r.At.Add(-time.Duration(r.End.DurationMS) * time.Millisecond)
			e := &CallEntry{N: r.N, EndN: r.N, At: began, Call: r.Call, End: r.End}
			list = append(list, e)
			settle(e)
		}
		if !q.Whole && r.Call != nil {
			for i := range r.Call.Asked {
				a := &r.Call.Asked[i]
				a.Input, a.Decision, a.Vars = nil, nil, nil
			}
		}
		return !(late || full) || len(begun) > 0
	})
	for _, e := range begun {
		settle(e)
	}
	list = slices.DeleteFunc(list, func(e *CallEntry) bool { return e.dropped })
	if n := len(list); q.Limit > 0 && n > q.Limit {
		if q.Oldest {
			list = list[:q.Limit]
		} else {
			list = list[n-q.Limit:]
		}
	}
	return list, err
}

// newest returns list with only the newest keep of the settled calls.
func newest(list []*CallEntry, keep int) ([]*CallEntry, int) {
	var out []*CallEntry
	kept := 0
	for _, e := range slices.Backward(list) {
		if e.settled && (e.dropped || kept == keep) {
			continue
		}
		if e.settled {
			kept++
		}
		out = append(out, e)
	}
	slices.Reverse(out)
	return out, kept
}
