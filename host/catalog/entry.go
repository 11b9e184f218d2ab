package catalog

import (
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
)

// restat is the interval at which Watch checks all folders even if no change was
// reported, and the first delay after a failure that may pass.
const restat = 5 * time.Second

// entry is the state of one name. Its fields are guarded by Catalog.mu; the
// stamps and programs of seen are replaced, never modified.
type entry struct {
	name string
	// current is the generation that serves. It is nil while the first load runs,
	// and when err is set.
	current *generation
	err     *fault.Error
	// stale is why the version on disk has not replaced current.
	stale   *fault.Error
	failure failure
	// compiling is since when a version is being compiled that may replace
	// current; zero if there is none.
	compiling time.Time
	// reread makes the next load read the files even if they have not changed.
	reread bool
	seen   seen
	// done is closed when the load that is under way ends; nil if there is none.
	// next is the same for the load after it; nil if none was requested.
	done, next chan struct{}
}

// failure is since when the version on disk does not load, and when it is looked at
// next. It is the zero value if that version serves.
type failure struct {
	since time.Time
	// digest is the version's if its files are at fault, and script whether it has a
	// setup.sh, which is not run again for the same files.
	digest string
	script bool
	// tries counts consecutive loads that failed; the next one without a change of the
	// files' stamps is not before retryAt.
	tries   int
	retryAt time.Time
}

// seen is what the last load found on the host.
type seen struct {
	stamps   *disk.Stamps // of the files that it read
	programs []*disk.Program
	// setup reports whether a setup.sh may restore a missing binary.
	setup bool
}

// unchanged records that the version on disk, with these stamps of its files, is the one
// that serves.
func (e *entry) unchanged(stamps *disk.Stamps) {
	e.seen.stamps = stamps
	e.stale, e.failure = nil, failure{}
}

// due reports whether a version that does not load is to be looked at although no file
// seems to have changed.
func (f *failure) due(now time.Time) bool { return f.tries > 0 && !now.Before(f.retryAt) }

// postpone sets when a version that does not load is looked at next, if no file seems to
// have changed: with increasing delays, since a module that takes minutes to fail must
// not keep the machine busy.
func (f *failure) postpone(now time.Time, first time.Duration) {
	if f.tries > 0 {
		first = restat << min(f.tries-1, 6)
	}
	f.retryAt = now.Add(first)
	f.tries++
}

// serve makes g the current generation and returns the one before, which may be nil.
func (e *entry) serve(g *generation, stamps *disk.Stamps, now time.Time) (old *generation) {
	old = e.current
	g.begin(old, now)
	e.unchanged(stamps)
	e.current, e.err, e.compiling = g, nil, time.Time{}
	return old
}

// fail records that v does not load for the reason err; v may be nil if the error is
// transient. With deny the current generation does not go on serving. stamps are of the
// files that were read: the version is tried again when one of them changes, and also without
// a change, less and less often. It reports what serves in spite of it, what is to be
// retired, and whether the same was recorded before.
func (e *entry) fail(v *candidate, err *fault.Error, transient, deny bool, stamps *disk.Stamps, now time.Time) (serving, retired *generation, repeated bool) {
	f := &e.failure
	if f.since.IsZero() {
		f.since = now
	}
	e.seen.stamps = stamps
	if transient {
		f.digest, f.script = "", false
		f.postpone(now, 0)
	} else {
		if f.digest != v.digest { // another version: it may still be in the making
			f.digest, f.script, f.tries = v.digest, v.setup.data != nil, 0
		}
		f.postpone(now, restat)
	}
	if e.current != nil && !deny {
		repeated = e.stale != nil && e.stale.Message == err.Message
		e.stale = err
		return e.current, nil, repeated
	}
	repeated = e.err != nil && e.err.Message == err.Message
	retired = e.current
	e.current, e.err, e.stale = nil, err, nil
	return nil, retired, repeated
}

// remove records that the folder is gone. It returns the generation that served, if
// there was one, and reports whether there was a tool at all.
func (e *entry) remove() (old *generation, known bool) {
	old, known = e.current, e.current != nil || e.err != nil
	e.unchanged(nil)
	e.current, e.err = nil, nil
	return old, known
}

// untouched reports whether a load would do nothing as long as the files are those of
// stamps.
func (e *entry) untouched(now time.Time) bool {
	return e.done == nil && e.seen.stamps != nil && !e.reread && !e.failure.due(now)
}
