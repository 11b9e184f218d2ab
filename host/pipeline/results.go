package pipeline

import (
	"container/list"
	"errors"
	"sync"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// errNoResult is the error of results.get for an id that is not kept.
var errNoResult = errors.New("no result is kept under that id: the oldest go first, and the text of a streamed call is not kept")

// Results keeps the complete results of the last calls that were not streamed, for `toolctl result`: at most
// maxResults of them and maxResultBytes of output. They do not survive a restart.
//
// The caller chooses an execution's id, and an operator has nothing else to ask by. So an id belongs to one caller at
// a time: while an execution with that id runs, and as long as its result is kept.
type Results struct {
	mu      sync.Mutex
	running map[string]*runs         // by id; guarded by mu
	byID    map[string]*list.Element // guarded by mu; values in order
	order   list.List                // of *Stored, oldest first; guarded by mu
	bytes   int                      // guarded by mu
}

// runs are the running executions of one id: several if one of them is a turn or a job that the other asked for.
type runs struct {
	caller string
	tool   string // of the first
	n      int
}

// Stored is one kept result. It does not change.
type Stored struct {
	*wire.Result
	caller  string
	Tool    string
	Started time.Time
}

const (
	maxResults     = 1000
	maxResultBytes = 64 << 20
)

func size(r *wire.Result) int { return len(r.Stdout) + len(r.Stderr) + len(r.Data) }

// begin registers that q runs for caller, until end. It is INVALID_ENVELOPE if its id belongs to another caller, or to
// a running execution that q is not part of. again reports that a result of an earlier execution with that id is kept.
func (rs *Results) begin(q *call.Request, caller string) (again bool, err error) {
	id := q.ExecutionID
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.running[id]
	e, kept := rs.byID[id]
	if r != nil && r.caller != caller || kept && e.Value.(*Stored).caller != caller {
		return false, fault.Errorf(fault.InvalidEnvelope, "/executionId: %s was used already; make a new id for each execution", id)
	}
	if r != nil && q.PartOf != id {
		return false, fault.Errorf(fault.InvalidEnvelope, "/executionId: %s is running, as a call of %.64q; wait for its answer, and make a new id for each execution", id, r.tool)
	}
	if r == nil {
		if rs.running == nil {
			rs.running = map[string]*runs{}
		}
		r = &runs{caller: caller, tool: q.Tool}
		rs.running[id] = r
	}
	r.n++
	return kept && q.PartOf != id, nil
}

func (rs *Results) end(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r := rs.running[id]; r.n > 1 {
		r.n--
	} else {
		delete(rs.running, id)
	}
}

// put keeps the result of an execution that has begun and not ended, in place of one that its caller has under the
// same id.
func (rs *Results) put(caller, tool string, started time.Time, r *wire.Result) {
	if size(r) > maxResultBytes {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = map[string]*list.Element{}
	}
	if e, ok := rs.byID[r.ExecutionID]; ok {
		rs.dropLocked(e)
	}
	rs.byID[r.ExecutionID] = rs.order.PushBack(&Stored{r, caller, tool, started})
	rs.bytes += size(r)
	for rs.order.Len() > maxResults || rs.bytes > maxResultBytes {
		rs.dropLocked(rs.order.Front())
	}
}

func (rs *Results) dropLocked(e *list.Element) {
	r := rs.order.Remove(e).(*Stored)
	delete(rs.byID, r.ExecutionID)
	rs.bytes -= size(r.Result)
}

// Get returns the result kept under an execution id.
func (rs *Results) Get(id string) (*Stored, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e, ok := rs.byID[id]
	if !ok {
		return nil, errNoResult
	}
	return e.Value.(*Stored), nil
}
