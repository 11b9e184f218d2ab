// Package job keeps background calls: calls that were accepted before they ran, or that continue without their caller.
// It tracks their ids, their state and the ends of their outputs, and limits how many run and how many finished ones
// stay readable. If its session has a journal, a finished job's output is kept in a file, so that it can be read after
// a restart.
//
// Jobs belong to identities and name their session: they may outlive it. The package runs nothing itself.
package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/journal"
	"github.com/toold/toold/host/wire"
)

// Kind is the kind of an execution that is a job, as journals name it.
const Kind = "job"

const (
	// maxFinished is how many finished jobs of one identity are kept.
	maxFinished = 20
	// maxRunning is how many jobs of one identity run at a time.
	maxRunning = 64
	// maxProgress bounds a job's latest progress value, in bytes.
	maxProgress = 64 << 10
)

// Config is fixed once the table is created.
type Config struct {
	// Events receives the jobs' states.
	Events *events.Hub
	// Dir holds the files of outputs, and Output bounds those of one identity, in bytes. If Dir is empty, outputs are
	// lost when the daemon exits.
	Dir    string
	Output int64
	Log    *slog.Logger
}

// Table holds the jobs of all sessions, since a job may outlive its session.
// Ordinary calls do not use it.
type Table struct {
	events *events.Hub

	mu      sync.Mutex
	byOwner map[string][]*Job // oldest first; guarded by mu
	outputs outputs
}

// NewTable returns a table without jobs.
func NewTable(c Config) *Table {
	return &Table{events: c.Events, byOwner: map[string][]*Job{}, outputs: outputs{dir: c.Dir, limit: c.Output, log: c.Log}}
}

// Running is what a job can read of its running execution.
type Running struct {
	Abort    func(reason *fault.Error)
	LastLine func() string // of its output
	Attempts func() int
}

// Job is a background call: it was accepted before it ran. Its id is its execution's.
type Job struct {
	Spec
	Started time.Time

	table    *Table
	file     file
	finished chan struct{} // closed when it has ended

	mu      sync.Mutex // guards the fields below, and file.note
	listing listing
	phase   phase
	running *Running // set while its execution runs
	cancel  context.CancelCauseFunc
	result  result
}

// listing is whether a call is a job to its caller and in lists.
type listing struct {
	later    bool // Keep lists it instead of Admit; never changes once the job starts
	listed   bool
	admitted chan struct{} // closed when nothing can refuse the job any more
}

// phase is how far a job is.
type phase int

const (
	live    phase = iota
	settled       // its outcome is being stored, whether as a job's or not
	ended
)

// result is what a job has produced so far, and its outcome once it has ended.
type result struct {
	outcome        journal.Outcome
	message        string
	data           json.RawMessage
	progress       json.RawMessage
	stdout, stderr tail
	lastLine       string // set once it has ended
}

// file is where the output of a finished job is.
type file struct {
	size     int64  // in bytes, 0 without one; guarded by Table.mu
	restored bool   // it ended before the daemon started: its output is only there
	note     string // why the output of a restored job is missing, or empty
}

// shares reports whether j counts towards the same limits as other: those of an identity, or of the callers bound to
// one of its sessions, who could otherwise exhaust the limits of the identity.
func (j *Job) shares(other *Job) bool {
	return j.Bound == other.Bound && (!j.Bound || j.Session == other.Session)
}

// New registers a job that is about to start. cancel ends it. It counts towards the limit until it ends, and is listed
// after Admit. Its error is OVERLOADED at the limit, and INVALID_ENVELOPE for an id that exists.
func (t *Table) New(spec Spec, cancel context.CancelCauseFunc) (*Job, error) {
	j := &Job{Spec: spec, Started: time.Now(), table: t, finished: make(chan struct{}), cancel: cancel}
	j.listing.admitted = make(chan struct{})
	t.mu.Lock()
	defer t.mu.Unlock()
	running := 0
	for who, jobs := range t.byOwner {
		for _, other := range jobs {
			// Ids are unique across identities: an operator selects jobs by id.
			if other.ID == j.ID {
				return nil, fault.Errorf(fault.InvalidEnvelope, "/executionId: there is a job %s already; make a new id for each execution", j.ID)
			}
			if who == spec.Owner && other.shares(j) && !other.Done() {
				running++
			}
		}
	}
	if running >= maxRunning {
		return nil, fault.Errorf(fault.Overloaded, "%d jobs are running, and that is the limit; wait for one, or cancel one with toolctl jobs cancel", running)
	}
	t.byOwner[j.Owner] = append(t.byOwner[j.Owner], j)
	return j, nil
}

// Later makes the call a job only once Keep is called: if it ends earlier, nothing of it remains. It must be called
// before the job starts.
func (j *Job) Later() { j.listing.later = true }

// Admitted returns a channel that is closed when nothing can refuse the job any more.
func (j *Job) Admitted() <-chan struct{} { return j.listing.admitted }

// Admit lists the job: nothing refused it. A nil job is ignored.
func (j *Job) Admit() {
	if j == nil || j.listing.later {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.listLocked()
}

// Keep lists the job, which continues without its caller. It returns false if the job has already ended.
func (j *Job) Keep() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.phase >= settled {
		return false
	}
	j.listLocked()
	return true
}

func (j *Job) listLocked() {
	if !j.listing.listed {
		j.listing.listed = true
		close(j.listing.admitted)
		j.publish(events.Event{State: "accepted"})
	}
}

// prune drops the oldest finished jobs that count towards the same limit as of, and
// those of its identity that never ran.
func (t *Table) prune(of *Job) {
	owner := of.Owner
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.DeleteFunc(t.byOwner[owner], func(j *Job) bool { return j.Done() && !j.Listed() })
	done := 0
	for _, j := range list {
		if j.shares(of) && j.Done() {
			done++
		}
	}
	list = slices.DeleteFunc(list, func(j *Job) bool {
		if done > maxFinished && j.shares(of) && j.Done() {
			done--
			t.removeOutput(j, noteRemoved)
			return true
		}
		return false
	})
	if len(list) == 0 {
		delete(t.byOwner, owner)
		return
	}
	t.byOwner[owner] = list
}

// List returns the listed jobs of an identity, or of all, oldest first.
func (t *Table) List(owner string, all bool) []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := slices.Clone(t.byOwner[owner])
	if all {
		list = nil
		for _, jobs := range t.byOwner {
			list = append(list, jobs...)
		}
	}
	list = slices.DeleteFunc(list, func(j *Job) bool { return !j.Listed() })
	if !all {
		return list
	}
	slices.SortFunc(list, func(a, b *Job) int { return a.Started.Compare(b.Started) })
	return list
}

// anyRunning returns one running job, or nil.
func (t *Table) anyRunning() *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, jobs := range t.byOwner {
		for _, j := range jobs {
			if !j.Done() {
				return j
			}
		}
	}
	return nil
}

// Running returns the ids of the jobs that have not ended.
func (t *Table) Running() (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, jobs := range t.byOwner {
		for _, j := range jobs {
			if !j.Done() {
				ids = append(ids, j.ID)
			}
		}
	}
	return ids
}

// Close waits for running jobs, and aborts them when ctx ends.
func (t *Table) Close(ctx context.Context) {
	for j := t.anyRunning(); j != nil; j = t.anyRunning() {
		select {
		case <-j.finished:
		case <-ctx.Done():
			j.Stop(fault.Errorf(fault.Aborted, "the daemon was stopped while the job ran"))
			<-j.finished
		}
	}
}

// Restore adds a job that ended before the daemon started. Restored must be called after the last one.
func (t *Table) Restore(spec Spec, o journal.Outcome) {
	j := &Job{Spec: spec, Started: o.Started, table: t, listing: listing{listed: true}, phase: ended, result: result{outcome: o}}
	if o.Code == fault.OutcomeUnknown {
		j.result.message = "the daemon ended while the job ran; its outcome is unknown"
	}
	t.restoreOutput(j)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byOwner[j.Owner] = append(t.byOwner[j.Owner], j)
}

// Restored sorts the restored jobs by start, drops the oldest over the limit, and
// removes the files of outputs whose job is gone, but not those of sessions for which
// unread reports true: their journals could not be read.
func (t *Table) Restored(unread func(session string) bool) {
	for _, list := range t.byOwner { // no lock: not shared yet
		slices.SortStableFunc(list, func(a, b *Job) int { return a.Started.Compare(b.Started) })
		list = slices.Clone(list)
		for _, j := range list {
			t.prune(j)
		}
		for _, j := range slices.Backward(list) { // the newest ones are kept first
			if j.file.size > 0 && !t.reserve(j, j.file.size) { // the limit may be lower than it was
				os.Remove(t.outputs.path(&j.Spec))
				j.file.note = noteRemoved
			}
		}
	}
	t.sweepOutputs(unread)
}

// Begin records that the job's execution is running.
func (j *Job) Begin(r *Running) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running = r
}

// Listed reports whether the call is a job to its caller and in lists.
func (j *Job) Listed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.listing.listed
}

// Settle reports whether a call that has ended is a job; nothing changes that from then on.
func (j *Job) Settle() (listed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.phase = max(j.phase, settled)
	return j.listing.listed || !j.listing.later
}

// Done reports whether the job has ended.
func (j *Job) Done() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.phase == ended
}

// Stop ends the job. A finished job is unchanged.
func (j *Job) Stop(reason *fault.Error) {
	j.mu.Lock()
	running, cancel, over := j.running, j.cancel, j.phase == ended
	j.mu.Unlock()
	if over {
		return
	}
	if running != nil {
		running.Abort(reason)
	}
	if cancel != nil {
		cancel(reason)
	}
}

// Stdout and Stderr return writers that keep the end of the job's outputs.
func (j *Job) Stdout() io.Writer { return jobWriter{j, &j.result.stdout} }
func (j *Job) Stderr() io.Writer { return jobWriter{j, &j.result.stderr} }

// Progress keeps the job's latest progress value.
func (j *Job) Progress(data json.RawMessage) error {
	if !json.Valid(data) || len(data) > maxProgress {
		return fault.Errorf(fault.InvalidPayload, "progress is not one JSON value of at most %d bytes", maxProgress)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.result.progress = bytes.Clone(data)
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

// Finish stores the outcome of the job's execution. The output in r is appended.
func (j *Job) Finish(o *journal.Outcome, r *wire.Result) {
	j.Settle()
	j.mu.Lock()
	j.result.outcome, j.result.data = *o, r.Data
	if r.Err != nil {
		j.result.message = r.Err.Message
	}
	j.result.stdout.write(r.Stdout)
	j.result.stderr.write(r.Stderr)
	if j.running != nil {
		j.result.lastLine = j.running.LastLine()
	}
	j.mu.Unlock()
	j.table.save(j) // before its end is announced: whoever hears of it may stop the daemon
	j.mu.Lock()
	j.running, j.cancel, j.phase = nil, nil, ended
	if j.listing.listed {
		j.publish(events.Event{State: "done", Status: o.Status, Code: o.Code, ExitCode: o.ExitCode})
	}
	close(j.finished)
	j.mu.Unlock()
	j.table.prune(j)
}

// Snapshot returns the job as a query sees it, with its outputs only if output
// is true, since they may be large.
func (j *Job) Snapshot(now time.Time, output bool) map[string]any {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := &j.result
	m := map[string]any{
		"id": j.ID, "session": j.Session, "tool": j.Tool, "detach": j.Detach, "started": j.Started.UTC().Format(time.RFC3339Nano),
		"state": "running", "status": "", "code": "", "message": r.message, "exit_code": int64(0), "attempts": int64(0),
		"elapsed_ms": now.Sub(j.Started).Milliseconds(), "last_line": r.lastLine,
		"stdout_bytes": r.stdout.total, "stderr_bytes": r.stderr.total, "progress": fromJSON(r.progress), "data": fromJSON(r.data),
	}
	if j.running != nil {
		m["last_line"] = j.running.LastLine()
		m["attempts"] = int64(j.running.Attempts())
	}
	if j.phase == ended {
		m["state"], m["status"], m["code"] = "done", r.outcome.Status, string(r.outcome.Code)
		m["exit_code"], m["attempts"] = int64(r.outcome.ExitCode), int64(r.outcome.Attempts)
		m["elapsed_ms"] = r.outcome.Duration.Milliseconds()
	}
	if output {
		stdout, stderr := j.outputLocked()
		m["stdout"], m["stderr"] = validText(stdout), validText(stderr)
		m["truncated"] = r.stdout.total > int64(len(stdout)) || r.stderr.total > int64(len(stderr))
	}
	m["output_note"] = ""
	if j.file.restored { // else it is in memory
		m["output_note"] = j.file.note
	}
	return m
}

func validText(b []byte) string { return string(bytes.ToValidUTF8(b, []byte("\uFFFD"))) }

// End finishes a job whose execution never began. Otherwise it does nothing.
func (j *Job) End(r *wire.Result) {
	if j.Done() {
		return
	}
	o := journal.Outcome{ID: j.ID, Tool: j.Tool, Kind: Kind, Status: r.Status(), ExitCode: r.ExitCode, Started: j.Started, Duration: time.Since(j.Started)}
	if r.Err != nil {
		o.Code = r.Err.Code
	}
	j.Finish(&o, r)
}

// publish sends a change of the job to watchers.
func (j *Job) publish(e events.Event) {
	e.Kind, e.Owner, e.Session, e.Execution, e.Tool, e.Job = events.Job, j.Owner, j.Session, j.ID, j.Tool, true
	j.table.events.Publish(e)
}

// fromJSON decodes data for a selector.
func fromJSON(data json.RawMessage) any {
	var v any
	if len(data) == 0 || json.Unmarshal(data, &v) != nil {
		return nil
	}
	return v
}

// save writes the output of a job that has ended. If it is not called or fails, the output is lost when the daemon
// exits.
func (t *Table) save(j *Job) {
	o := &t.outputs
	if o.dir == "" || !j.Persist {
		return
	}
	j.mu.Lock()
	r := &j.result
	h := outputHeader{
		Version: outputVersion, Owner: j.Owner, Session: j.Session, Execution: j.ID, Message: r.message, LastLine: r.lastLine,
		Stdout: len(r.stdout.bytes()), Stderr: len(r.stderr.bytes()), StdoutTotal: r.stdout.total, StderrTotal: r.stderr.total,
		Progress: r.progress,
	}
	if json.Valid(r.data) {
		h.Data = r.data
	}
	b, listed := h.encode(r.stdout.bytes(), r.stderr.bytes()), j.listing.listed
	j.mu.Unlock()
	if !listed || len(b) > maxOutputFile || !t.reserve(j, int64(len(b))) {
		return
	}
	err := os.MkdirAll(o.dir, 0o700)
	if err == nil {
		err = writeOutput(o.path(&j.Spec), b)
	}
	if err != nil {
		t.reserve(j, 0)
		o.log.Warn("the output of a job cannot be kept, so it ends with the daemon", "execution_id", j.ID, "session", j.Session, "error", err)
	}
}

// reserve reserves size bytes for the output of j, and removes older outputs that share its limit until it fits. It
// returns false, and j keeps no output, if that exceeds the limit on its own.
func (t *Table) reserve(j *Job, size int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	j.file.size = 0
	if size > t.outputs.limit {
		return false
	}
	total := size
	for _, other := range t.byOwner[j.Owner] {
		if other.shares(j) {
			total += other.file.size
		}
	}
	for _, other := range t.byOwner[j.Owner] { // oldest first
		if total <= t.outputs.limit {
			break
		}
		if other != j && other.shares(j) && other.file.size > 0 {
			total -= other.file.size
			t.removeOutput(other, noteRemoved)
		}
	}
	j.file.size = size
	return true
}

// removeOutput removes the file of j, and records why it is missing. t.mu must be held, unless the table is not shared
// yet.
func (t *Table) removeOutput(j *Job, why string) {
	if j.file.size == 0 {
		return
	}
	j.file.size = 0
	os.Remove(t.outputs.path(&j.Spec))
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file.note = why
}

// restoreOutput loads the header of a restored job's file. Its output is read on demand.
func (t *Table) restoreOutput(j *Job) {
	o := &t.outputs
	j.file.restored, j.file.note = true, noteLost
	if o.dir == "" {
		return
	}
	h, stdout, stderr, err := o.read(&j.Spec)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		j.file.note = noteDamaged
		o.log.Warn("the output of a job cannot be read; its file is left as it is", "file", o.path(&j.Spec), "error", err)
		return
	}
	j.file.note, j.file.size = "", int64(len(h.encode(stdout, stderr)))
	r := &j.result
	r.stdout.total, r.stderr.total, r.lastLine, r.progress, r.data = h.StdoutTotal, h.StderrTotal, h.LastLine, h.Progress, h.Data
	if r.message == "" {
		r.message = h.Message
	}
}

// sweepOutputs removes the files of jobs that no longer exist. It leaves other files alone, and those of a session
// that is unread.
func (t *Table) sweepOutputs(unread func(session string) bool) {
	o := &t.outputs
	if o.dir == "" {
		return
	}
	entries, err := os.ReadDir(o.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.log.Warn("the folder of jobs' outputs cannot be read", "folder", o.dir, "error", err)
	}
	known := map[string]bool{}
	for _, jobs := range t.byOwner {
		for _, j := range jobs {
			known[filepath.Base(o.path(&j.Spec))] = true
		}
	}
	for _, e := range entries {
		name := outputName.FindStringSubmatch(e.Name())
		if name == nil || e.IsDir() {
			o.log.Warn("a file in the folder of job outputs is not one; it is left as it is", "file", filepath.Join(o.dir, e.Name()))
			continue
		}
		if known[e.Name()] || name[2] == "" && unread(name[1]) {
			continue
		}
		os.Remove(filepath.Join(o.dir, e.Name()))
	}
}

// RemoveOutputs removes the files of a session that is deleted.
func (t *Table) RemoveOutputs(owner, session string) {
	if t.outputs.dir == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.byOwner[owner] {
		if j.Session == session {
			t.removeOutput(j, noteRemoved)
		}
	}
}

// outputLocked returns the ends of both outputs of j. If they are missing, note says why.
func (j *Job) outputLocked() (stdout, stderr []byte) {
	if !j.file.restored || j.file.note != "" {
		return j.result.stdout.bytes(), j.result.stderr.bytes()
	}
	_, stdout, stderr, err := j.table.outputs.read(&j.Spec)
	if err != nil {
		j.file.note = noteDamaged
		j.table.outputs.log.Warn("the output of a job cannot be read", "file", j.table.outputs.path(&j.Spec), "error", err)
	}
	return stdout, stderr
}

// contextKey is the context key of NewContext.
type contextKey struct{}

// NewContext returns a context for the call of j; a nil j is for a call that is not a job.
func NewContext(ctx context.Context, j *Job) context.Context {
	return context.WithValue(ctx, contextKey{}, j)
}

// FromContext returns the job of ctx, or nil.
func FromContext(ctx context.Context) *Job {
	j, _ := ctx.Value(contextKey{}).(*Job)
	return j
}

// Answer returns the data of the response to a background call.
func Answer(id string) json.RawMessage {
	data, err := json.Marshal(map[string]string{"job": id})
	if err != nil {
		panic(err) // cannot fail: a string
	}
	return data
}
