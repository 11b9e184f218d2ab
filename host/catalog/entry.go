package catalog

import (
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
)

// restat is the interval at which Watch checks all folders even if no change was
// reported, and the first delay after a failure that may pass.
const restat = 5 * time.Second

// entry is the state of one name. Its fields are guarded by Catalog.mu; stamps
// and programs are replaced, never modified.
type entry struct {
	name string
	// current is the generation that serves. It is nil while the first load runs,
	// and when err is set.
	current *generation
	err     *fault.Error
	// stale is why the version on disk has not replaced current.
	stale   *fault.Error
	failing time.Time
	// compiling is since when a version is being compiled that may replace
	// current; zero if there is none.
	compiling time.Time
	// failed is the digest of the version on disk if it is broken, and script whether
	// it has a setup.sh, which is not run again for the same files.
	failed string
	script bool
	// tries counts consecutive loads that failed; the next one without a change of the
	// files' stamps is not before retryAt.
	tries   int
	retryAt time.Time
	// anew makes the next load read the files even if they have not changed.
	anew bool
	// stamps are those of the files that the last load read, programs are what it
	// found on the host.
	stamps   *disk.Stamps
	programs []*disk.Program
	// setup reports whether a setup.sh may restore a missing binary.
	setup bool
	// done is closed when the load that is under way ends; nil if there is none.
	// next is the same for the load after it; nil if none was requested.
	done, next chan struct{}
}

// unchanged records that the version on disk, with the files seen, is the one that
// serves.
func (e *entry) unchanged(seen *disk.Stamps) {
	e.stamps = seen
	e.stale, e.failing, e.failed, e.script, e.tries = nil, time.Time{}, "", false, 0
}

// due reports whether a version that does not load is to be looked at although no file
// seems to have changed.
func (e *entry) due(now time.Time) bool { return e.tries > 0 && !now.Before(e.retryAt) }

// postpone sets when a version that does not load is looked at next, if no file seems to
// have changed: with increasing delays, since a module that takes minutes to fail must
// not keep the machine busy.
func (e *entry) postpone(now time.Time, first time.Duration) {
	if e.tries > 0 {
		first = restat << min(e.tries-1, 6)
	}
	e.retryAt = now.Add(first)
	e.tries++
}

// serve makes g the current generation and returns the one before, which may be nil.
func (e *entry) serve(g *generation, seen *disk.Stamps, now time.Time) (old *generation) {
	old = e.current
	g.begin(old, now)
	e.unchanged(seen)
	e.current, e.err, e.compiling = g, nil, time.Time{}
	return old
}

// fail records that v does not load for the reason err; v may be nil if the error is
// transient. With deny the current generation does not go on serving. seen are the files
// that were read: the version is tried again when one of them changes, and also without
// a change, less and less often. It reports what serves in spite of it, what is to be
// retired, and whether the same was recorded before.
func (e *entry) fail(v *candidate, err *fault.Error, transient, deny bool, seen *disk.Stamps, now time.Time) (serving, retired *generation, repeated bool) {
	if e.failing.IsZero() {
		e.failing = now
	}
	e.stamps = seen
	if transient {
		e.failed, e.script = "", false
		e.postpone(now, 0)
	} else {
		if e.failed != v.digest { // another version: it may still be in the making
			e.failed, e.script, e.tries = v.digest, v.setup != nil, 0
		}
		e.postpone(now, restat)
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
	return e.done == nil && e.stamps != nil && !e.anew && !e.due(now)
}
