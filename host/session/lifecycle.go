package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/fault"
)

// Open makes the table of the sessions whose journals are in c.Dir. Journals that
// cannot be read are left as they are, and said.
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
	t := &Table{config: c, log: c.Logger}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		// Calls that only read need no journal; those that do need one are told.
		t.log.Warn("the folder of journals cannot be made; calls that change something will be refused", "folder", c.Dir, "error", err)
	}
	if err := t.load(); err != nil {
		return nil, fmt.Errorf("load the sessions: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.working.Go(func() { t.sweep(ctx) })
	return t, nil
}

// load brings back the sessions whose journals are there. What ran when the
// daemon ended has an unknown outcome now.
func (t *Table) load() error {
	entries, err := os.ReadDir(t.config.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.log.Warn("the folder of journals cannot be read; no session of before is known", "error", err)
		return nil
	}
	ids := map[string]bool{}
	for _, e := range entries {
		// One that was cut short when it was begun anew has only its older name.
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
	t.jobs.restored()
	slices.SortFunc(all, func(a, b *Session) int { return a.used.Compare(b.used) })
	for _, s := range all {
		t.enlist(s)
	}
	for _, s := range all {
		if p, ok := t.sessions.Load(key{s.owner, s.parent}); ok && s.parent != "" && s.state != Closed {
			p.(*Session).adoptAgain(s)
		}
	}
	return nil
}

// restore reads one journal.
func (t *Table) restore(id string) *Session {
	path := t.path(id)
	l, err := readFile(path)
	if err == nil && l.header.ID != id {
		err = fmt.Errorf("read the journal %s: it is of another session, %q", path, l.header.ID)
	}
	if err != nil {
		t.log.Warn("a journal cannot be read, so its session is not there; the file is left as it is", "file", path, "error", err)
		return nil
	}
	if l.skipped > 0 || l.lost > 0 {
		t.log.Warn("a journal is not whole; what can be read of it counts", "file", path, "records", l.records, "skipped", l.skipped, "lost", l.lost)
	}
	h := &l.header
	s := &Session{
		t: t, id: id, owner: h.Owner, isDef: h.Default, parent: h.Parent, cwd: h.Cwd, created: h.Created, key: h.Key, digest: h.Digest,
		over: make(chan struct{}), name: l.name, labels: l.labels, tools: l.tools, used: l.used, state: l.state, count: l.count,
	}
	s.journal.path, s.journal.kept, s.journal.old = path, &t.kept, h.Version != journalVersion && h.Version != 0
	s.journal.records.Store(int64(l.records))
	s.journal.skipped.Store(int64(l.skipped))
	switch s.state {
	case Closed:
		close(s.over)
	case Closing: // it was about to be closed
		s.state = Closed
		close(s.over)
		s.note(&record{Type: recState, State: Closed})
	default:
		s.state = Suspended
	}
	for _, j := range l.jobs {
		t.jobs.restore(s, &j)
	}
	for _, p := range l.pending {
		r := p
		r.Type, r.Status, r.Code = recEnd, "error", fault.OutcomeUnknown
		r.DurationMS = time.Since(p.At).Milliseconds()
		r.Attempts = 1
		began := p.At
		s.note(&r)
		o := r.outcome()
		s.count.add(&o)
		if r.Job {
			r.At = began.Add(time.Duration(r.DurationMS) * time.Millisecond)
			t.jobs.restore(s, &r)
		}
	}
	s.journal.release()
	return s
}

// restore brings back a finished job, without its output.
func (jt *jobTable) restore(s *Session, r *record) {
	o := r.outcome()
	j := &Job{
		ID: r.Execution, Owner: s.owner, Session: s.id, Tool: r.Tool, Detach: r.Detach, Started: o.Started,
		table: jt, listed: true, done: true, outcome: o,
	}
	if r.Code == fault.OutcomeUnknown {
		j.message = "the daemon ended while the job ran; nobody knows how far it came"
	}
	jt.mu.Lock()
	defer jt.mu.Unlock()
	jt.addLocked(j)
}

// restored puts the jobs that were brought back in their order, and keeps the
// last of them.
func (jt *jobTable) restored() {
	for owner, list := range jt.byOwner { // nobody else has it yet
		slices.SortStableFunc(list, func(a, b *Job) int { return a.Started.Compare(b.Started) })
		jt.prune(owner)
	}
}

// enlist makes a restored session known.
func (t *Table) enlist(s *Session) {
	o := t.ownerOf(s.owner)
	if s.state == Closed {
		t.entomb(s)
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
		o.made = append(o.made, &made{key: s.key, digest: s.digest, data: object("id", s.id)})
	}
}

// adoptAgain is adopt of a child that was one before.
func (p *Session) adoptAgain(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.children == nil {
		p.children = map[*Session]struct{}{}
	}
	p.children[s] = struct{}{}
}

// keptOpen is how long the journal of an idle session may stay open.
const keptOpen = 30 * time.Second

// sweep suspends what is idle and closes what stays suspended, until ctx ends.
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
				// It may have begun to run; then it stays. One that waits for a
				// disk keeps no other from its rest.
				t.working.Go(func() { s.suspend() })
			case state == Suspended && idle >= t.config.Idle+t.config.Keep:
				t.working.Go(s.close)
			case idle >= keptOpen:
				t.working.Go(s.releaseIfIdle)
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

// suspend puts s to rest: its journal is on the disk, and what it needs only to
// run is dropped. SESSION_BUSY while something runs in it.
func (s *Session) suspend() error {
	s.mu.Lock()
	switch {
	case s.state == Suspended:
		s.mu.Unlock()
		return nil
	case s.state != Active:
		s.mu.Unlock()
		return notFound(s.id)
	case len(s.running) > 0 || s.inTurn:
		n := len(s.running)
		s.mu.Unlock()
		return fault.Errorf(fault.SessionBusy, "%d calls are running; wait for them, or end them with toolctl session abort", n)
	}
	s.state = Suspended
	s.recent, s.running = nil, nil
	s.count.event(Suspended)
	s.mu.Unlock()
	s.note(&record{Type: recState, State: Suspended})
	return s.flush()
}

// flush puts the journal on the disk.
func (s *Session) flush() error {
	err := s.journal.flush(s.fresh)
	s.mu.Lock()
	idle := len(s.running) == 0
	s.mu.Unlock()
	if idle {
		s.journal.release()
	}
	if err != nil {
		return fault.Errorf(fault.StoreUnavailable, "the journal of the session cannot be written: %w; see the sessions folder in the daemon's state", err)
	}
	return nil
}

// resume takes s back into use.
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
	s.count.event(Active)
	s.mu.Unlock()
	s.note(&record{Type: recState, State: Active})
	s.releaseIfIdle()
	return nil
}

func (s *Session) releaseIfIdle() {
	s.mu.Lock()
	idle := len(s.running) == 0
	s.mu.Unlock()
	if idle {
		s.journal.release()
	}
}

// errClosed is why the calls of a closed session end. It is never written to.
var errClosed = fault.Errorf(fault.Aborted, "the session was closed")

// close takes no more calls into s and its children, and lets what runs there
// end: detached jobs for as long as they take, all else within the grace. It does
// not wait for that; over is closed then. Closing again does nothing.
func (s *Session) close() {
	s.mu.Lock()
	if s.state == Closing || s.state == Closed {
		s.mu.Unlock()
		return
	}
	s.state = Closing
	s.count.event(Closing)
	s.used = time.Now()
	children := make([]*Session, 0, len(s.children))
	for c := range s.children {
		children = append(children, c)
	}
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, c := range children {
		c.close()
	}
	for _, w := range waiting {
		w.cancel(errClosed)
	}
	t, o := s.t, s.t.ownerOf(s.owner)
	t.entomb(s)
	t.sessions.Delete(keyOf(s))
	o.mu.Lock()
	if s.isDef {
		o.def.CompareAndSwap(s, nil)
	} else {
		o.explicit--
	}
	o.mu.Unlock()
	s.note(&record{Type: recState, State: Closing})
	t.working.Go(func() {
		for _, c := range children {
			<-c.over
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
		s.count.event(Closed)
		s.used = time.Now()
		s.children, s.recent = nil, nil
		s.mu.Unlock()
		s.note(&record{Type: recState, State: Closed})
		s.flush()
		if s.parent != "" {
			if p, ok := t.sessions.Load(key{s.owner, s.parent}); ok {
				p.(*Session).disown(s)
			}
		}
		close(s.over)
	})
}

// executions is what runs in s, detached jobs only where they are asked for.
func (s *Session) executions(detached bool) []*Execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.executionsLocked(detached)
}

func (s *Session) executionsLocked(detached bool) []*Execution {
	var list []*Execution
	for x := range s.running {
		if detached || x.Job == nil || !x.Job.Detach {
			list = append(list, x)
		}
	}
	return list
}

// drain waits until nothing but detached jobs runs in s; false when ctx ends
// first.
func (s *Session) drain(ctx context.Context) bool {
	for {
		s.mu.Lock()
		if len(s.executionsLocked(false)) == 0 {
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

// entomb remembers a closed session, so that closing it again is no error and
// its journal can still be read by the operator.
func (t *Table) entomb(s *Session) {
	o := t.ownerOf(s.owner)
	t.closed.Store(keyOf(s), s)
	var oldest *Session
	o.mu.Lock()
	o.closed = append(o.closed, s)
	if len(o.closed) > keptClosed {
		oldest = o.closed[0]
		o.closed = o.closed[1:]
	}
	o.mu.Unlock()
	if oldest != nil {
		t.forget(oldest)
	}
}

// forget takes a closed session away, journal and all.
func (t *Table) forget(s *Session) {
	if _, ok := t.closed.LoadAndDelete(keyOf(s)); !ok {
		return
	}
	s.mu.Lock()
	count := s.count.clone()
	s.mu.Unlock()
	t.mu.Lock()
	t.gone.plus(&count)
	t.mu.Unlock()
	s.journal.remove()
}

// Close waits for the jobs that run, until ctx ends; then it ends them. Nothing
// else is begun or suspended after it.
func (t *Table) Close(ctx context.Context) error {
	for {
		j := t.jobs.running()
		if j == nil {
			break
		}
		select {
		case <-j.over:
		case <-ctx.Done():
			j.Stop(fault.Errorf(fault.Aborted, "the daemon was stopped while the job ran"))
			<-j.over
		}
	}
	t.stop()
	t.working.Wait()
	return nil
}
