package session

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

const (
	// maxFinishedJobs is how many finished jobs of one identity stay readable.
	maxFinishedJobs = 20
	// maxJobs is how many jobs of one identity run at a time.
	maxJobs = 64
	// maxOutput is how many bytes at the end of each of a job's outputs are
	// kept.
	maxOutput = 256 << 10
	// maxProgress bounds a job's latest progress value, in bytes.
	maxProgress = 64 << 10
)

// jobTable holds the jobs of all sessions, since a job may outlive its session.
// Ordinary calls do not use it.
type jobTable struct {
	events *events.Hub

	mu      sync.Mutex
	byOwner map[string][]*Job // oldest first; guarded by mu
	outputs outputs
}

// Job is a background call: it was answered before it ran. Its id is its
// execution's.
type Job struct {
	ID      string
	Owner   string
	Session string
	Bound   bool // by a caller that is bound to Session; see Job.shares
	Tool    string
	Detach  bool // whether it outlives its session
	later   bool // it is listed when Keep is called, and not by Admit
	Started time.Time

	table    *jobTable
	persist  bool          // its session has a journal
	restored bool          // it ended before the daemon was started: its output is in its file
	saved    int64         // bytes of its file, 0 without one; guarded by table.mu
	admitted chan struct{} // closed when the job is sure to run
	finished chan struct{} // closed when it has ended

	mu        sync.Mutex // guards what follows
	execution *Execution // set while it runs
	cancel    context.CancelCauseFunc
	listed    bool
	ending    bool // its outcome is being kept, as that of a job or not
	done      bool
	outcome   Outcome
	message   string
	data      json.RawMessage
	progress  json.RawMessage
	stdout    tail
	stderr    tail
	lastLine  string // the last one, once it has ended
	note      string // why the output of a restored job is not there, or empty
}

// tail keeps the end of what is written to it.
type tail struct {
	b     []byte
	total int64
}

func (t *tail) write(p []byte) {
	t.total += int64(len(p))
	if len(p) > maxOutput {
		p = p[len(p)-maxOutput:]
	}
	t.b = append(t.b, p...)
	if len(t.b) > 2*maxOutput {
		t.b = append(t.b[:0], t.b[len(t.b)-maxOutput:]...)
	}
}

// bytes returns the end of what was written.
func (t *tail) bytes() []byte { return t.b[max(len(t.b)-maxOutput, 0):] }

// shares reports whether j counts towards the same limits as other: those of an
// identity, or of the callers that are bound to one of its sessions, who would else
// use up those of the identity.
func (j *Job) shares(other *Job) bool {
	return j.Bound == other.Bound && (!j.Bound || j.Session == other.Session)
}

// NewJob registers a job that is about to start. cancel ends it. It counts
// towards the limit until it ends, and is listed after Admit. bound says that its
// caller is bound to the session.
func (t *Table) NewJob(owner, session string, bound bool, call *wire.Call, cancel context.CancelCauseFunc) (*Job, error) {
	j := &Job{
		ID: call.ExecutionID, Owner: owner, Session: session, Bound: bound, Tool: call.Tool, Detach: call.Detach,
		Started: time.Now(), table: &t.jobs, admitted: make(chan struct{}), finished: make(chan struct{}), cancel: cancel,
	}
	if s, ok := t.sessions.Load(key{owner, session}); ok {
		j.persist = !s.(*Session).journal.Off
	}
	t.jobs.mu.Lock()
	defer t.jobs.mu.Unlock()
	running := 0
	for who, jobs := range t.jobs.byOwner {
		for _, other := range jobs {
			// Ids are unique across identities: an operator selects jobs by id.
			if other.ID == j.ID {
				return nil, fault.Errorf(fault.InvalidEnvelope, "/executionId: there is a job %s already; make a new id for each execution", j.ID)
			}
			if who == owner && other.shares(j) && !other.isDone() {
				running++
			}
		}
	}
	if running >= maxJobs {
		return nil, fault.Errorf(fault.Overloaded, "%d jobs are running, and that is the limit; wait for one, or cancel one with toolctl jobs cancel", running)
	}
	t.jobs.addLocked(j)
	return j, nil
}

// Later has the job be one only once Keep is called: where it ends before, nothing is
// left of it. It is called before the job starts.
func (j *Job) Later() { j.later = true }

// Admitted returns a channel that is closed when the job is sure to run.
func (j *Job) Admitted() <-chan struct{} { return j.admitted }

// Admit lists the job: nothing refused it. A nil job is ignored.
func (j *Job) Admit() {
	if j == nil || j.later {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.listLocked()
}

// Keep lists the job, which goes on without its caller. It reports false where the job
// has ended already.
func (j *Job) Keep() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ending {
		return false
	}
	j.listLocked()
	return true
}

func (j *Job) listLocked() {
	if !j.listed {
		j.listed = true
		close(j.admitted)
		j.publish(events.Event{State: "accepted"})
	}
}

func (jt *jobTable) addLocked(j *Job) {
	if jt.byOwner == nil {
		jt.byOwner = map[string][]*Job{}
	}
	jt.byOwner[j.Owner] = append(jt.byOwner[j.Owner], j)
}

// prune drops the oldest finished jobs that count towards the same limit as of, and
// those of its identity that never ran.
func (jt *jobTable) prune(of *Job) {
	owner := of.Owner
	jt.mu.Lock()
	defer jt.mu.Unlock()
	list := slices.DeleteFunc(jt.byOwner[owner], func(j *Job) bool { return j.isDone() && !j.isListed() })
	done := 0
	for _, j := range list {
		if j.shares(of) && j.isDone() {
			done++
		}
	}
	list = slices.DeleteFunc(list, func(j *Job) bool {
		if done > maxFinishedJobs && j.shares(of) && j.isDone() {
			done--
			jt.removeOutput(j, noteRemoved)
			return true
		}
		return false
	})
	if len(list) == 0 {
		delete(jt.byOwner, owner)
		return
	}
	jt.byOwner[owner] = list
}

// list returns the listed jobs of an identity, or of all, oldest first.
func (jt *jobTable) list(owner string, all bool) []*Job {
	jt.mu.Lock()
	defer jt.mu.Unlock()
	list := slices.Clone(jt.byOwner[owner])
	if all {
		list = nil
		for _, jobs := range jt.byOwner {
			list = append(list, jobs...)
		}
	}
	list = slices.DeleteFunc(list, func(j *Job) bool { return !j.isListed() })
	if !all {
		return list
	}
	slices.SortFunc(list, func(a, b *Job) int { return a.Started.Compare(b.Started) })
	return list
}

// running returns one running job, or nil.
func (jt *jobTable) running() *Job {
	jt.mu.Lock()
	defer jt.mu.Unlock()
	for _, jobs := range jt.byOwner {
		for _, j := range jobs {
			if !j.isDone() {
				return j
			}
		}
	}
	return nil
}

func (j *Job) setExecution(x *Execution) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.execution = x
}

// Listed reports whether the job is one, to its caller and in lists.
func (j *Job) Listed() bool { return j.isListed() }

func (j *Job) isListed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.listed
}

// settle says whether what has ended is a job, which nothing changes from here on.
func (j *Job) settle() (listed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ending = true
	return j.listed || !j.later
}

func (j *Job) isDone() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.done
}

// Stop ends the job. A finished job is unchanged.
func (j *Job) Stop(reason *fault.Error) {
	j.mu.Lock()
	x, cancel, done := j.execution, j.cancel, j.done
	j.mu.Unlock()
	if done {
		return
	}
	if x != nil {
		x.abort(reason)
	}
	if cancel != nil {
		cancel(reason)
	}
}

// Stdout and Stderr return writers that keep the end of the job's outputs.
func (j *Job) Stdout() io.Writer { return jobWriter{j, &j.stdout} }
func (j *Job) Stderr() io.Writer { return jobWriter{j, &j.stderr} }

// Progress keeps the job's latest progress value.
func (j *Job) Progress(data json.RawMessage) error {
	if !json.Valid(data) || len(data) > maxProgress {
		return fault.Errorf(fault.InvalidPayload, "progress is not one JSON value of at most %d bytes", maxProgress)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.progress = bytes.Clone(data)
	return nil
}

type jobWriter struct {
	j *Job
	t *tail
}

func (w jobWriter) Write(p []byte) (int, error) {
	w.j.mu.Lock()
	defer w.j.mu.Unlock()
	w.t.write(p)
	return len(p), nil
}

// finish stores the outcome of the job's execution. The output in r is appended.
func (j *Job) finish(o *Outcome, r *wire.Result) {
	j.settle()
	j.mu.Lock()
	j.outcome, j.data = *o, r.Data
	if r.Err != nil {
		j.message = r.Err.Message
	}
	j.stdout.write(r.Stdout)
	j.stderr.write(r.Stderr)
	if j.execution != nil {
		j.lastLine = j.execution.lastLineText()
	}
	j.mu.Unlock()
	j.table.save(j) // before anybody hears of its end, who may end the daemon
	j.mu.Lock()
	j.execution, j.cancel, j.done = nil, nil, true
	if j.listed {
		j.publish(events.Event{State: "done", Status: o.Status, Code: o.Code, ExitCode: o.ExitCode})
	}
	close(j.finished)
	j.mu.Unlock()
	j.table.prune(j)
}

// snapshot returns the job as a query sees it, with its outputs only if output
// is true, since they may be large.
func (j *Job) snapshot(now time.Time, output bool) map[string]any {
	j.mu.Lock()
	defer j.mu.Unlock()
	m := map[string]any{
		"id": j.ID, "session": j.Session, "tool": j.Tool, "detach": j.Detach, "started": timeText(j.Started),
		"state": "running", "status": "", "code": "", "message": j.message, "exit_code": int64(0), "attempts": int64(0),
		"elapsed_ms": now.Sub(j.Started).Milliseconds(), "last_line": j.lastLine,
		"stdout_bytes": j.stdout.total, "stderr_bytes": j.stderr.total, "progress": fromJSON(j.progress), "data": fromJSON(j.data),
	}
	if j.execution != nil {
		m["last_line"] = j.execution.lastLineText()
		m["attempts"] = int64(j.execution.attempts.Load())
	}
	if j.done {
		m["state"], m["status"], m["code"] = "done", j.outcome.Status, string(j.outcome.Code)
		m["exit_code"], m["attempts"] = int64(j.outcome.ExitCode), int64(j.outcome.Attempts)
		m["elapsed_ms"] = j.outcome.Duration.Milliseconds()
	}
	if output {
		stdout, stderr := j.outputLocked()
		m["stdout"], m["stderr"] = validText(stdout), validText(stderr)
		m["truncated"] = j.stdout.total > int64(len(stdout)) || j.stderr.total > int64(len(stderr))
	}
	m["output_note"] = ""
	if j.restored { // else it is in memory
		m["output_note"] = j.note
	}
	return m
}

func validText(b []byte) string { return string(bytes.ToValidUTF8(b, []byte("\uFFFD"))) }

// End finishes a job whose execution never began. Otherwise it does nothing.
func (j *Job) End(r *wire.Result) {
	if j.isDone() {
		return
	}
	o := Outcome{ID: j.ID, Tool: j.Tool, Kind: KindJob, Status: r.Status(), ExitCode: r.ExitCode, Started: j.Started, Duration: time.Since(j.Started)}
	if r.Err != nil {
		o.Code = r.Err.Code
	}
	j.finish(&o, r)
}
