package idempotency

import (
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// memory holds records in this process. It drops expired records and, over its
// limits, the least recently used ended ones, never those of running calls.
type memory struct {
	maxRecords int
	maxBytes   int64
	evicted    func(scope string)
	start      time.Time

	mu       sync.Mutex
	records  map[id]*entry // guarded by mu, as is all that follows
	bytes    int64
	byExpiry expiryHeap // all records, the first to expire first
	lru      entry      // a ring of those that have ended: next was used last
}

// entry is a record, indexed by id, expiry and last use.
type entry struct {
	record
	id         id
	heapIndex  int    // in memory.ends
	prev, next *entry // in memory.recent; nil while it runs
}

// entryBytes is the size of a record without its texts, measured by
// TestMemoryOfRecords.
const entryBytes = 384

func (e *entry) bytes() int64 {
	return entryBytes + int64(len(e.id.key)+len(e.Result)+len(e.Payload)+len(e.Owner)+len(e.Digest)+len(e.Label)+len(e.Note))
}

type expiryHeap []*entry

func (x expiryHeap) Len() int           { return len(x) }
func (x expiryHeap) Less(a, b int) bool { return x[a].ExpiresAt < x[b].ExpiresAt }
func (x expiryHeap) Swap(a, b int)      { x[a], x[b] = x[b], x[a]; x[a].heapIndex, x[b].heapIndex = a, b }
func (x *expiryHeap) Push(e any)        { e.(*entry).heapIndex = len(*x); *x = append(*x, e.(*entry)) }
func (x *expiryHeap) Pop() any {
	old := *x
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*x = old[:len(old)-1]
	return e
}

func newMemory(maxRecords int, maxBytes int64, evicted func(scope string)) *memory {
	m := &memory{maxRecords: maxRecords, maxBytes: maxBytes, evicted: evicted, start: time.Now(), records: map[id]*entry{}}
	m.lru.prev, m.lru.next = &m.lru, &m.lru
	return m
}

func (m *memory) claim(_ context.Context, i id, c claimRequest) (*record, time.Duration, verdict, error) {
	m.mu.Lock()
	now := m.expireLocked()
	e := m.records[i]
	next, v := claim(e.recordOrNil(), c, now)
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
		heap.Push(&m.byExpiry, e)
	default:
		m.putLocked(e, next)
	}
	if e.next != nil {
		m.touchLocked(e)
	}
	r := e.record
	m.mu.Unlock()
	m.notifyEvicted(evicted)
	return &r, time.Duration(r.LeaseUntil-now) * time.Millisecond, v, nil
}

// recordOrNil returns the record of e, nil for a nil entry.
func (e *entry) recordOrNil() *record {
	if e == nil {
		return nil
	}
	return &e.record
}

func (m *memory) complete(_ context.Context, i id, x completion) (verdict, error) {
	return m.change(i, func(r *record, now int64) (*record, bool, verdict) { return complete(r, x, now) }), nil
}

// change replaces the record of i by what decide answers for it, or drops it, and
// makes room for what has become longer.
func (m *memory) change(i id, decide func(r *record, now int64) (next *record, drop bool, v verdict)) verdict {
	m.mu.Lock()
	now := m.expireLocked()
	e := m.records[i]
	next, drop, v := decide(e.recordOrNil(), now)
	var evicted []string
	if drop {
		m.dropLocked(e)
	} else if next != nil {
		m.putLocked(e, next)
		evicted = m.makeRoomLocked(0)
	}
	m.mu.Unlock()
	m.notifyEvicted(evicted)
	return v
}

func (m *memory) renew(_ context.Context, i id, owner string, fence, lease int64) (verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.records[i]
	next, v := renew(e.recordOrNil(), owner, fence, lease, now)
	if next != nil {
		m.putLocked(e, next)
	}
	return v, nil
}

func (m *memory) annotate(_ context.Context, i id, owner string, fence int64, note json.RawMessage) (verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.expireLocked()
	e := m.records[i]
	next, v := annotate(e.recordOrNil(), owner, fence, note, now)
	if next != nil {
		m.putLocked(e, next)
	}
	return v, nil
}

func (m *memory) resolve(_ context.Context, i id, x resolution) (verdict, error) {
	return m.change(i, func(r *record, now int64) (*record, bool, verdict) { return resolve(r, x, now) }), nil
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

func (m *memory) subscribe(context.Context) error { return nil }
func (m *memory) ping(context.Context) error      { return nil }
func (m *memory) close() error                    { return nil }

func (m *memory) survives(context.Context) string {
	return fmt.Sprintf("memory: no record survives the end of this process; afterwards every key runs again. "+
		"It holds %d records or %d MiB; beyond that the least recently used results are evicted early, and their keys run again.",
		m.maxRecords, m.maxBytes>>20)
}

// expireLocked drops expired records and returns the time.
func (m *memory) expireLocked() (now int64) {
	// By the monotonic clock: setting the wall clock forward must not end leases.
	now = m.start.UnixMilli() + time.Since(m.start).Milliseconds()
	for len(m.byExpiry) > 0 && m.byExpiry[0].ExpiresAt <= now {
		m.dropLocked(m.byExpiry[0])
	}
	return now
}

// makeRoomLocked evicts least recently used records until n more fit, and
// returns their scopes. The newest result stays, whatever its size.
func (m *memory) makeRoomLocked(n int) (scopes []string) {
	over := func() bool { return len(m.records)+n > m.maxRecords || m.bytes+int64(n)*entryBytes > m.maxBytes }
	for last := m.lru.prev; last != &m.lru && (n > 0 || last != m.lru.next) && over(); last = m.lru.prev {
		scopes = append(scopes, last.id.scope)
		m.dropLocked(last)
	}
	return scopes
}

func (m *memory) notifyEvicted(scopes []string) {
	for _, s := range scopes {
		m.evicted(s)
	}
}

func (m *memory) putLocked(e *entry, r *record) {
	m.bytes -= e.bytes()
	e.record = *r
	m.bytes += e.bytes()
	heap.Fix(&m.byExpiry, e.heapIndex)
	m.touchLocked(e)
}

// touchLocked marks e as most recently used, if its call has ended.
func (m *memory) touchLocked(e *entry) {
	e.unlink()
	if e.Status != Pending {
		e.prev, e.next = &m.lru, m.lru.next
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
	heap.Remove(&m.byExpiry, e.heapIndex)
	delete(m.records, e.id)
	m.bytes -= e.bytes()
}
