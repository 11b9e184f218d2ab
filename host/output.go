package host

import (
	"bytes"
	"container/list"
	"errors"
	"sync"
	"time"

	"github.com/toold/toold/host/wire"
)

// capture keeps up to max bytes and counts the rest away: a tool that writes
// more than that is not ended for it.
type capture struct {
	buf bytes.Buffer
	max int64
	cut bool
}

func (c *capture) Write(p []byte) (int, error) {
	room := c.max - int64(c.buf.Len())
	if int64(len(p)) > room {
		c.cut = true
		c.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return c.buf.Write(p)
}

// errNoResult is what results.get answers for an id that it does not hold.
var errNoResult = errors.New("no result is kept under that id: the oldest go first, and the text of a streamed call is not kept")

// results keeps the whole answers of the last calls that did not go to a stream,
// for `toolctl result`: at most maxResults of them and maxResultBytes of
// output. They do not survive a restart.
type results struct {
	mu    sync.Mutex
	byID  map[string]*list.Element // guarded by mu; values in order
	order list.List                // of *stored, oldest first; guarded by mu
	bytes int                      // guarded by mu
}

// stored is one kept answer. It does not change.
type stored struct {
	*wire.Result
	tool    string
	started time.Time
}

const (
	maxResults     = 1000
	maxResultBytes = 64 << 20
)

func size(r *wire.Result) int { return len(r.Stdout) + len(r.Stderr) + len(r.Data) }

func (rs *results) put(tool string, started time.Time, r *wire.Result) {
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
	rs.byID[r.ExecutionID] = rs.order.PushBack(&stored{r, tool, started})
	rs.bytes += size(r)
	for rs.order.Len() > maxResults || rs.bytes > maxResultBytes {
		rs.dropLocked(rs.order.Front())
	}
}

func (rs *results) dropLocked(e *list.Element) {
	r := rs.order.Remove(e).(*stored)
	delete(rs.byID, r.ExecutionID)
	rs.bytes -= size(r.Result)
}

func (rs *results) get(id string) (*stored, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	e, ok := rs.byID[id]
	if !ok {
		return nil, errNoResult
	}
	return e.Value.(*stored), nil
}
