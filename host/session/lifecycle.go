package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/journal"
)

// Open opens the table of the sessions whose journals are in c.Dir. Unreadable
// journals are logged and left unchanged.
func Open(c Config) (*Table, error) {
	if c.Limit <= 0 {
		c.Limit = defaultLimit
	}
	if c.Idle <= 0 {
		c.Idle = defaultIdle
	}
	if c.Keep <= 0 {
		c.Keep = defaultKeep
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.JobOutput == 0 {
		c.JobOutput = defaultJobOutput
	}
	t := &Table{config: c, unread: map[string]bool{}}
	outputs := ""
	if !c.InMemory && c.JobOutput > 0 {
		outputs = filepath.Join(c.Dir, "output")
	}
	t.jobs = job.NewTable(job.Config{Events: c.Events, Dir: outputs, Output: c.JobOutput, Log: c.Logger})
	if !c.InMemory {
		if err := os.MkdirAll(c.Dir, 0o700); err != nil {
			// Calls that only read need no journal; others fail when they need one.
			t.config.Logger.Warn("the folder of journals cannot be made; calls that change something will be refused", "folder", c.Dir, "error", err)
		}
		if err := t.load(); err != nil {
			return nil, fmt.Errorf("load the sessions: %w", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.background.Go(func() { t.sweep(ctx) })
	return t, nil
}

// load restores the sessions from their journals. Calls that ran when the daemon
// ended get an unknown outcome.
func (t *Table) load() error {
	entries, err := os.ReadDir(t.config.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.config.Logger.Warn("the folder of journals cannot be read; earlier sessions are lost", "error", err)
		return nil
	}
	ids := map[string]bool{}
	for _, e := range entries {
		// After an interrupted rotation only the rotated file may exist.
		if id, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".1"), suffix); ok && id != "" {
			ids[id] = true
		}
	}
	work := make(chan string)
	var mu sync.Mutex
	var all []*Session
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for id := range work {
				if s := t.restore(id); s != nil {
					mu.Lock()
					all = append(all, s)
					mu.Unlock()
				}
			}
		})
	}
	for id := range ids {
		work <- id
	}
	close(work)
	wait.Wait()
	t.jobs.Restored(func(session string) bool { return t.unread[session] })
	slices.SortFunc(all, func(a, b *Session) int { return a.used.Compare(b.used) })
	byKey := map[key]*Session{}
	for _, s := range all {
		byKey[keyOf(s)] = s
	}
	for _, s := range all {
		switch p := byKey[key{s.owner, s.parent}]; {
		case s.parent == "" || s.state == Closed:
		case p != nil:
			s.above = p
			if p.state != Closed {
				p.addChild(s)
			}
		default:
			// It may call no more than its parent, whose limits are no longer known.
			s.above = &Session{settings: settings{tools: []string{}}}
			t.config.Logger.Warn("the journal of a session's parent cannot be read, so no tool can be called in the session; make another one", "session", s.id, "parent", s.parent)
		}
	}
	for _, s := range all {
		t.register(s)
	}
	return nil
}

// restore reads one journal.
func (t *Table) restore(id string) *Session {
	path := t.path(id)
	l, err := journal.Read(path)
	if err == nil && l.Header.ID != id {
		err = fmt.Errorf("read the journal %s: it belongs to another session, %q", path, l.Header.ID)
	}
	if err != nil {
		t.config.Logger.Warn("a journal cannot be read, so its session is not restored; the file is left unchanged", "file", path, "error", err)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.unread[id] = true
		return nil
	}
	if l.Skipped > 0 || l.Lost > 0 {
		t.config.Logger.Warn("a journal is damaged; its readable records are used", "file", path, "records", l.Records, "skipped", l.Skipped, "lost", l.Lost)
	}
	h := &l.Header
	s := &Session{
		t: t, done: make(chan struct{}), state: l.State,
		header:   header{id: id, owner: h.Owner, isDef: h.Default, parent: h.Parent, cwd: h.Cwd, created: h.Created, key: h.Key, digest: h.Digest},
		settings: settings{name: l.Name, labels: l.Labels, tools: l.Tools},
		history:  history{used: l.Used, count: l.Count},
	}
	s.journal.Path, s.journal.OpenIdle = path, &t.openIdle
	s.journal.Loaded(l)
	switch s.state {
	case Closed:
		close(s.done)
	case Closing:
		s.state = Closed
		close(s.done)
		s.append(&journal.Record{Type: journal.TypeState, State: Closed})
	default:
		s.state = Suspended
	}
	restoreJob := func(r *journal.Record) {
		t.jobs.Restore(job.Spec{ID: r.Execution, Owner: s.owner, Session: s.id, Bound: r.Bound, Tool: r.Tool, Detach: r.Detach}, r.Outcome())
	}
	for _, j := range l.Jobs {
		restoreJob(&j)
	}
	for _, p := range l.Pending {
		r := p
		r.Type, r.Status, r.Code = journal.TypeEnd, "error", fault.OutcomeUnknown
		r.DurationMS = time.Since(p.At).Milliseconds()
		r.Attempts = 1
		began := p.At
		s.append(&r)
		o := r.Outcome()
		s.count.Add(&o)
		if r.Job {
			r.At = began.Add(time.Duration(r.DurationMS) * time.Millisecond)
			restoreJob(&r)
		}
	}
	s.journal.Release()
	return s
}

// register adds a restored session to the table.
func (t *Table) register(s *Session) {
	o := t.ownerOf(s.owner)
	if s.state == Closed {
		t.archive(s)
		return
	}
	t.sessions.Store(keyOf(s), s)
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.isDef {
		if d := o.def.Load(); d == nil || d.used.Before(s.used) {
			o.def.Store(s)
		}
	} else {
		o.explicit++
	}
	if s.key != "" {
		o.keyed.restore(s.key, s.digest, object("id", s.id))
	}
}

// maxIdleOpen is how long the journal of an idle session may stay open.
const maxIdleOpen = 30 * time.Second

// sweep suspends idle sessions and closes long suspended ones, until ctx ends.
func (t *Table) sweep(ctx context.Context) {
	tick := time.NewTicker(min(max(t.config.Idle/4, time.Second), time.Minute))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		t.sessions.Range(func(_, v any) bool {
			s := v.(*Session)
			s.mu.Lock()
			state, idle := s.state, now.Sub(s.used)
			s.mu.Unlock()
			switch {
			case state == Active && idle >= t.config.Idle:
				// suspend fails if a call has begun meanwhile. In a goroutine, so
				// that a slow disk does not delay other sessions.
				t.background.Go(func() { s.suspend() })
			case state == Suspended && idle >= t.config.Idle+t.config.Keep:
				t.background.Go(s.close)
			case idle >= maxIdleOpen:
				t.background.Go(s.releaseIfIdle)
			}
			return true
		})
		t.closed.Range(func(_, v any) bool {
			s := v.(*Session)
			s.mu.Lock()
			old := now.Sub(s.used) >= t.config.Keep && len(s.running) == 0
			s.mu.Unlock()
			if old {
				t.forget(s)
			}
			return true
		})
	}
}

// suspend syncs the journal of s and drops what only a running session needs. The
// error is SESSION_BUSY while something runs in it.
func (s *Session) suspend() error {
	s.mu.Lock()
	switch {
	case s.state == Suspended:
		s.mu.Unlock()
		return nil
	case s.state != Active:
		s.mu.Unlock()
		return notFound(s.id)
	case len(s.running) > 0 || s.turnTaken:
		n := len(s.running)
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, "%d calls are running; wait for them, or end them with toolctl session abort", n)
	}
	s.state = Suspended
	s.recent, s.running = nil, nil
	s.count.CountEvent(Suspended)
	s.publish(inState(Suspended))
	s.mu.Unlock()
	s.append(&journal.Record{Type: journal.TypeState, State: Suspended})
	return s.flush()
}

// flush syncs the journal to disk.
func (s *Session) flush() error {
	err := s.journal.Flush(func() []journal.Record { return firstRecords(s) })
	s.mu.Lock()
	idle := len(s.running) == 0
	s.mu.Unlock()
	if idle {
		s.journal.Release()
	}
	if err != nil {
		return fault.Errorf(fault.StoreUnavailable, "the journal of the session cannot be written: %w; check the sessions folder in the daemon's state", err)
	}
	return nil
}

// resume makes a suspended session active.
func (s *Session) resume() error {
	s.mu.Lock()
	switch s.state {
	case Active:
		s.mu.Unlock()
		return nil
	case Suspended:
	default:
		s.mu.Unlock()
		return notFound(s.id)
	}
	s.state = Active
	s.used = time.Now()
	s.count.CountEvent(Active)
	s.publish(inState(Active))
	s.mu.Unlock()
	s.append(&journal.Record{Type: journal.TypeState, State: Active})
	s.releaseIfIdle()
	return nil
}

// errClosed ends the calls of a closed session. It is never modified.
var errClosed = fault.Errorf(fault.Aborted, "the session was closed")

// close stops accepting calls in s and its children. Detached jobs run to their
// end, other executions are aborted after the grace. close does not wait: done is
// closed when that has happened. Closing again does nothing.
func (s *Session) close() {
	s.mu.Lock()
	if s.state == Closing || s.state == Closed {
		s.mu.Unlock()
		return
	}
	s.state = Closing
	s.count.CountEvent(Closing)
	s.publish(inState(Closing))
	s.used = time.Now()
	children := make([]*Session, 0, len(s.children))
	for c := range s.children {
		children = append(children, c)
	}
	waiting := s.waiting
	s.waiting = nil
	if len(waiting) > 0 {
		s.publish(s.queued())
	}
	s.mu.Unlock()
	for _, c := range children {
		c.close()
	}
	for _, w := range waiting {
		w.cancel(errClosed)
	}
	t, o := s.t, s.t.ownerOf(s.owner)
	t.archive(s)
	t.sessions.Delete(keyOf(s))
	o.mu.Lock()
	if s.isDef {
		o.def.CompareAndSwap(s, nil)
	} else {
		o.explicit--
	}
	o.mu.Unlock()
	s.append(&journal.Record{Type: journal.TypeState, State: Closing})
	t.background.Go(func() {
		for _, c := range children {
			<-c.done
		}
		grace, cancel := context.WithTimeout(context.Background(), t.config.Grace)
		defer cancel()
		if !s.drain(grace) {
			for _, x := range s.executions(false) {
				x.abort(errClosed)
			}
			s.drain(context.Background())
		}
		s.mu.Lock()
		s.state = Closed
		s.count.CountEvent(Closed)
		s.publish(inState(Closed))
		s.used = time.Now()
		s.children, s.recent = nil, nil
		s.mu.Unlock()
		s.append(&journal.Record{Type: journal.TypeState, State: Closed})
		s.flush()
		if s.parent != "" {
			if p, ok := t.sessions.Load(key{s.owner, s.parent}); ok {
				p.(*Session).removeChild(s)
			}
		}
		close(s.done)
	})
}

// drain waits until only detached jobs run in s; it returns false if ctx ends
// first.
func (s *Session) drain(ctx context.Context) bool {
	for {
		s.mu.Lock()
		if len(s.runs.list(false)) == 0 {
			s.mu.Unlock()
			return true
		}
		if s.drained == nil {
			s.drained = make(chan struct{})
		}
		next := s.drained
		s.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return false
		}
	}
}

// archive keeps a closed session, so that closing it again is not an error and
// an operator can still read its journal.
func (t *Table) archive(s *Session) {
	o := t.ownerOf(s.owner)
	t.closed.Store(keyOf(s), s)
	var oldest *Session
	o.mu.Lock()
	o.closed = append(o.closed, s)
	if len(o.closed) > maxClosed {
		oldest = o.closed[0]
		o.closed = o.closed[1:]
	}
	o.mu.Unlock()
	if oldest != nil {
		t.forget(oldest)
	}
}

// forget removes a closed session and its journal.
func (t *Table) forget(s *Session) {
	if _, ok := t.closed.LoadAndDelete(keyOf(s)); !ok {
		return
	}
	s.mu.Lock()
	count := s.count.Clone()
	s.mu.Unlock()
	t.mu.Lock()
	t.forgotten.Merge(&count)
	t.mu.Unlock()
	s.journal.Remove()
	t.jobs.RemoveOutputs(s.owner, s.id)
}

// Close waits for running jobs, and aborts them when ctx ends. Sessions are no
// longer suspended or closed after it.
func (t *Table) Close(ctx context.Context) error {
	t.jobs.Close(ctx)
	t.stop()
	t.background.Wait()
	return nil
}

// create makes an explicit session. parent may be nil.
func (t *Table) create(caller string, parent *Session, p *params, key, digest string) (*Session, error) {
	o := t.ownerOf(caller)
	s := t.newSession(caller)
	if parent != nil && parent.journal.Off {
		s.journal.Off = true
	}
	switch {
	case p.Persist == nil:
	case *p.Persist && s.journal.Off: // its journal would name the parent
		return nil, fault.Errorf(fault.InvalidPayload, "/payload/params/persist: this daemon, or the parent, keeps sessions in memory only; leave persist out, or choose another parent")
	default:
		s.journal.Off = !*p.Persist
	}
	s.cwd, s.name, s.labels, s.key, s.digest = p.Cwd, p.Name, maps.Clone(p.Labels), key, digest
	if p.Tools != nil {
		s.tools = slices.Clone(*p.Tools)
	}
	o.mu.Lock()
	if o.explicit >= t.config.Limit {
		n := o.explicit
		o.mu.Unlock()
		return nil, fault.Errorf(fault.SessionLimit, "there are %d sessions, and the limit is %d; close one with toolctl session close", n, t.config.Limit)
	}
	o.explicit++
	o.mu.Unlock()
	giveUp := func(err error) (*Session, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.explicit--
		return nil, err
	}
	if parent != nil {
		s.parent, s.above = parent.id, parent
		s.tools = narrow(s.tools, parent.allowedTools())
		if err := parent.addChild(s); err != nil {
			return giveUp(err)
		}
	}
	if err := s.append(nil); err != nil {
		if parent != nil {
			parent.removeChild(s)
		}
		s.journal.Remove()
		return giveUp(fault.Errorf(fault.StoreUnavailable, "the journal of a new session cannot be written: %w; check the sessions folder in the daemon's state", err))
	}
	s.journal.Release()
	s.publish(inState(Active))
	t.sessions.Store(keyOf(s), s)
	s.mu.Lock()
	closed := s.state == Closing || s.state == Closed
	s.mu.Unlock()
	if closed { // with its parent, before it could be found
		t.sessions.Delete(keyOf(s))
		return nil, notFound(s.parent)
	}
	return s, nil
}
