// Package replay keeps what was sent in sessions of older versions of MCP for clients
// that lose a stream and come back for the rest. All of it is bounded: if it is too
// much, the oldest of the identity that has the most is dropped, so that no client
// loses what is kept for it to another identity. Unlike the SDK's own store it counts
// streams too, of which a session has one for each request that it ever made.
//
// host/mcp is its only user.
package replay

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// perEvent is about what an event or a stream takes beside its text, in bytes.
const perEvent = 512

// Store is an sdk.EventStore. Make one with New.
type Store struct {
	max      int // bytes
	identity func(context.Context) string

	mu       sync.Mutex // guards what follows
	size     int
	owners   map[string]*owner // by identity
	sessions map[string]*sessionEntry
}

type owner struct {
	sessions int
	size     int
	kept     *list.List // of *event, the oldest first
}

type sessionEntry struct {
	identity string
	*owner
	streams map[string]*streamEntry
}

type streamEntry struct {
	first int             // the index of the first event that is kept
	kept  []*list.Element // of the stream's events
	open  *list.Element   // stands for the stream itself; nil for that of the session, which stays
}

// event is one that is kept, or stands for its stream.
type event struct {
	of     *sessionEntry
	stream string
	data   []byte
}

// New returns an empty store of at most max bytes. identity returns who makes the
// request of a context, or "" for one of nobody.
func New(max int, identity func(context.Context) string) *Store {
	return &Store{max: max, identity: identity, owners: map[string]*owner{}, sessions: map[string]*sessionEntry{}}
}

// Open implements sdk.EventStore.
func (e *Store) Open(ctx context.Context, session, stream string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil {
		identity := e.identity(ctx)
		if identity == "" {
			return errors.New("a session was opened by a request of nobody; report this")
		}
		o := e.owners[identity]
		if o == nil {
			o = &owner{kept: list.New()}
			e.owners[identity] = o
		}
		o.sessions++
		s = &sessionEntry{identity, o, map[string]*streamEntry{}}
		e.sessions[session] = s
	}
	if s.streams[stream] != nil {
		return nil
	}
	of := &streamEntry{}
	s.streams[stream] = of
	if stream != "" {
		of.open = e.keepLocked(&event{of: s, stream: stream})
	}
	e.trimLocked()
	return nil
}

// Append implements sdk.EventStore. What belongs to a stream that is forgotten is not kept.
func (e *Store) Append(_ context.Context, session, stream string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil || s.streams[stream] == nil {
		return nil
	}
	of := s.streams[stream]
	of.kept = append(of.kept, e.keepLocked(&event{s, stream, data}))
	e.trimLocked()
	return nil
}

// After implements sdk.EventStore.
func (e *Store) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	data, err := e.after(session, stream, index)
	return func(yield func([]byte, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		for _, d := range data {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (e *Store) after(session, stream string, index int) ([][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil || s.streams[stream] == nil {
		return nil, fmt.Errorf("no stream %.64q of this session is kept: %w", stream, sdk.ErrEventsPurged)
	}
	of := s.streams[stream]
	if index < of.first-1 {
		return nil, fmt.Errorf("what came after event %d of stream %.64q is not kept: %w", index, stream, sdk.ErrEventsPurged)
	}
	if index >= of.first+len(of.kept)-1 {
		return nil, nil
	}
	var data [][]byte
	for _, k := range of.kept[index+1-of.first:] {
		data = append(data, k.Value.(*event).data)
	}
	return data, nil
}

// SessionClosed implements sdk.EventStore.
func (e *Store) SessionClosed(_ context.Context, session string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil {
		return nil
	}
	for name := range s.streams {
		e.forgetLocked(s, name)
	}
	delete(e.sessions, session)
	if s.sessions--; s.sessions == 0 {
		delete(e.owners, s.identity)
	}
	return nil
}

func (v *event) size() int { return perEvent + len(v.data) }

func (e *Store) keepLocked(v *event) *list.Element {
	e.size += v.size()
	v.of.owner.size += v.size()
	return v.of.kept.PushBack(v)
}

func (e *Store) dropLocked(k *list.Element) {
	v := k.Value.(*event)
	e.size -= v.size()
	v.of.owner.size -= v.size()
	v.of.kept.Remove(k)
}

// forgetLocked forgets a stream with all that is kept of it.
func (e *Store) forgetLocked(s *sessionEntry, stream string) {
	of := s.streams[stream]
	delete(s.streams, stream)
	if of.open != nil {
		e.dropLocked(of.open)
	}
	for _, k := range of.kept {
		e.dropLocked(k)
	}
}

// trimLocked drops the oldest of whoever has the most, until all is within bounds.
func (e *Store) trimLocked() {
	for e.size > e.max {
		var most *owner
		for _, o := range e.owners {
			if most == nil || o.size > most.size {
				most = o
			}
		}
		k := most.kept.Front()
		v := k.Value.(*event)
		of := v.of.streams[v.stream]
		switch {
		case of.open == k && len(of.kept) == 0:
			e.forgetLocked(v.of, v.stream)
			continue
		case of.open == k: // it is as old as what is kept of it
			most.kept.MoveToBack(k)
			continue
		}
		// The events of a stream are in its order.
		of.kept[0] = nil
		of.kept = of.kept[1:]
		of.first++
		e.dropLocked(k)
	}
}
