package idempotency

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"
)

// memory holds records in this process. It drops what has expired, and beyond
// its bounds what has ended and was asked for least recently, never what runs.
type memory struct {
	maxRecords int
	maxBytes   int64
	evicted    func(scope string)
	start      time.Time

	mu      sync.Mutex
	records map[id]*entry // guarded by mu, as is all that follows
	bytes   int64
	ends    expiry // all records, the first to expire first
	recent  entry  // a ring of those that have ended: next was used last
}

// entry is a record in its three places.
type entry struct {
	record
	id         id
	at         int    // in memory.ends
	prev, next *entry // in memory.recent; nil while it runs
}

// entryBytes is what a record takes beside its texts: measured by
// TestMemoryOfRecords.
const entryBytes = 384

func (e *entry) bytes() int64 {
	return entryBytes + int64(len(e.id.key)+len(e.Result)+len(e.Payload)+len(e.Owner)+len(e.Digest)+len(e.Label))
}

type expiry []*entry

func (x expiry) Len() int           { return len(x) }
func (x expiry) Less(a, b int) bool { return x[a].ExpiresAt < x[b].ExpiresAt }
func (x expiry) Swap(a, b int)      { x[a], x[b] = x[b], x[a]; x[a].at, x[b].at = a, b }
func (x *expiry) Push(e any)        { e.(*entry).at = len(*x); *x = append(*x, e.(*entry)) }
func (x *expiry) Pop() any {
	old := *x
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*x = old[:len(old)-1]
	return e
}

func newMemory(maxRecords int, maxBytes int64, evicted func(scope string)) *memory {
	m := &memory{maxRecords: maxRecords, maxBytes: maxBytes, evicted: evicted, start: time.Now(), records: map[id]*entry{}}
	m.recent.prev, m.recent.next = &m.recent, &m.recent
	return m
}

func (m *memory) claim(_ context.Context, i id, c claiming) (*record, time.Duration, verdict, error) {
	m.mu.Lock()
	now := m.expireLocked()
	e := m.records[i]
	next, v := claim(e.rec(), c, now)
	var evicted []string
	switch {
	case next == nil:
	case e == nil:
		evicted = m.makeRoomLocked(1)
		if len(m.records) >= m.maxRecords {
			m.mu.Unlock()
			return nil, 0, 0, fmt.Errorf("%w: %d of them", ErrOverloaded, m.maxRecords)
		}
		e = &entry{record: *next, id: i}
		m.records[i] = e
		m.bytes += e.bytes()
		heap.Push(&m.ends, e)
	default:
		m.putLocked(e, next)
	}
	if e.next != nil {
		m.useLocked(e)
	}
	r := e.record
	m.mu.Unlock()
	m.tellEvicted(evicted)
	return &r, time.Duration(r.LeaseUntil-now) * time.Millisecond, v, nil
}

// rec is the record of an entry, nil for none.
func (e *entry) rec() *record {
	if e == nil {
		return nil
	}
	return &e.record
}

func (m *memory) end(_ context.Context, i id, x ending) (verdict, error) {
	m.mu.Lock()
	now := m.expireLocked()
	e := m.records[i]
	next, drop, v := end(e.rec(), x, now)
	var evicted []string
	if drop {
		m.dropLocked(e)
	} else if next != nil {
		m.putLocked(e, next)
		evicted = m.makeRoomLocked(0)
	}
	m.mu.Unlock()
	m.tellEvicted(evicted)
	return v, nil
}

func (m *memory) renew(_ context.Context, i id, owner string, fence, lease int64) (verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.records[i]
	next, v := renew(e.rec(), owner, fence, lease, now)
	if next != nil {
		m.putLocked(e, next)
	}
	return v, nil
}

func (m *memory) get(_ context.Context, i id) (*record, time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.records[i]
	if e == nil {
		return nil, 0, nil
	}
	r := *e.settled(now)
	return &r, time.Duration(r.LeaseUntil-now) * time.Millisecond, nil
}

func (m *memory) list(_ context.Context, scope string, f func(string, *record) bool) error {
	m.mu.Lock()
	now := m.expireLocked()
	var found []*entry
	for i, e := range m.records {
		if i.scope == scope {
			found = append(found, &entry{record: *e.settled(now), id: i})
		}
	}
	m.mu.Unlock()
	for _, e := range found {
		if !f(e.id.key, &e.record) {
			break
		}
	}
	return nil
}

func (m *memory) flush(_ context.Context, i id) (found, flushed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.records[i]
	if e == nil {
		return false, false, nil
	}
	if !flushable(&e.record, now) {
		return true, false, nil
	}
	m.dropLocked(e)
	return true, true, nil
}

func (m *memory) watch(context.Context) error { return nil }
func (m *memory) ping(context.Context) error  { return nil }
func (m *memory) close() error                { return nil }

func (m *memory) survives(context.Context) string {
	return fmt.Sprintf("memory: no record survives the end of this process, however it ends; after it every key runs again. "+
		"It holds %d records or %d MiB; beyond that the result that was asked for least recently is forgotten before its time, and its key runs again.",
		m.maxRecords, m.maxBytes>>20)
}

// expireLocked drops what has expired, and returns the time.
func (m *memory) expireLocked() (now int64) {
	// By the monotonic clock: one that is set forward must not end leases.
	now = m.start.UnixMilli() + time.Since(m.start).Milliseconds()
	for len(m.ends) > 0 && m.ends[0].ExpiresAt <= now {
		m.dropLocked(m.ends[0])
	}
	return now
}

// makeRoomLocked drops what was used least recently until n more records fit
// in, and returns the scopes of what it dropped. The last result that ended
// stays, whatever its size.
func (m *memory) makeRoomLocked(n int) (scopes []string) {
	over := func() bool { return len(m.records)+n > m.maxRecords || m.bytes+int64(n)*entryBytes > m.maxBytes }
	for last := m.recent.prev; last != &m.recent && (n > 0 || last != m.recent.next) && over(); last = m.recent.prev {
		scopes = append(scopes, last.id.scope)
		m.dropLocked(last)
	}
	return scopes
}

func (m *memory) tellEvicted(scopes []string) {
	for _, s := range scopes {
		m.evicted(s)
	}
}

func (m *memory) putLocked(e *entry, r *record) {
	m.bytes -= e.bytes()
	e.record = *r
	m.bytes += e.bytes()
	heap.Fix(&m.ends, e.at)
	m.useLocked(e)
}

// useLocked makes e the last that was used, if it has ended.
func (m *memory) useLocked(e *entry) {
	e.unlink()
	if e.Status != Pending {
		e.prev, e.next = &m.recent, m.recent.next
		e.prev.next, e.next.prev = e, e
	}
}

func (e *entry) unlink() {
	if e.next != nil {
		e.prev.next, e.next.prev = e.next, e.prev
		e.prev, e.next = nil, nil
	}
}

func (m *memory) dropLocked(e *entry) {
	e.unlink()
	heap.Remove(&m.ends, e.at)
	delete(m.records, e.id)
	m.bytes -= e.bytes()
}
