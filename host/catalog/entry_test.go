package catalog

import (
	"testing"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
)

// An entry goes from one state to the next without a catalog: what serves after a
// failure, what is retired, when it is tried again.
func TestEntryFails(t *testing.T) {
	now := time.Unix(1000, 0)
	seen := &disk.Stamps{}
	bad := func(text string) *fault.Error { return fault.Errorf(fault.ToolBroken, "%s", text) }

	e, g := &entry{name: "t"}, &generation{}
	if old := e.serve(g, seen, now); old != nil || e.current != g || !e.untouched(now) {
		t.Fatalf("a first generation: replaces %v, state %+v", old, e)
	}
	serving, retired, repeated := e.fail(&candidate{digest: "1"}, bad("typo"), false, false, seen, now)
	if serving != g || retired != nil || repeated || e.stale == nil || e.err != nil || !e.untouched(now) {
		t.Errorf("a version that does not load took the one before out of service: %+v", e)
	}
	if _, _, repeated = e.fail(&candidate{digest: "1"}, bad("typo"), false, false, seen, now.Add(time.Hour)); !repeated || !e.failure.since.Equal(now) {
		t.Errorf("the same failure is reported as a new one, since %v", e.failure.since)
	}
	serving, retired, _ = e.fail(&candidate{digest: "1"}, bad("its policy is gone"), false, true, seen, now)
	if serving != nil || retired != g || e.current != nil || e.err == nil || e.stale != nil {
		t.Errorf("a generation without a policy that is on disk goes on serving: %+v", e)
	}
	if old, known := e.remove(); old != nil || !known || e.err != nil || !e.failure.since.IsZero() {
		t.Errorf("removed: %v, %v, %+v", old, known, e)
	}
	if _, known := e.remove(); known {
		t.Error("a tool that is gone is known")
	}

	waits := func(digest string, transient bool) (waits []time.Duration) {
		e := &entry{name: "t"}
		for range 9 {
			e.fail(&candidate{digest: digest}, bad("text"), transient, false, seen, now)
			waits = append(waits, e.failure.retryAt.Sub(now))
			if !e.untouched(e.failure.retryAt.Add(-1)) || e.untouched(e.failure.retryAt) {
				t.Errorf("transient %v: looked at again before or after %v", transient, e.failure.retryAt)
			}
		}
		return waits
	}
	// What may pass is tried again at once, then after 5 s, 10 s, ... 5 min 20 s. Files
	// that are at fault are looked at again after 5 s.
	if w := waits("1", true); w[0] != 0 || w[1] != restat || w[2] != 2*restat || w[8] != 64*restat {
		t.Errorf("waits after what may pass: %v", w)
	}
	if w := waits("1", false); w[0] != restat || w[1] != restat || w[2] != 2*restat || w[8] != 64*restat {
		t.Errorf("waits for files: %v", w)
	}
	e = &entry{name: "t"}
	for _, digest := range []string{"1", "1", "1", "2"} {
		e.fail(&candidate{digest: digest}, bad("text"), false, false, seen, now)
	}
	if e.failure.retryAt.Sub(now) != restat {
		t.Error("another version is looked at as seldom as the one before")
	}
}

// Only the last reference of a retired generation ends it.
func TestGenerationRetires(t *testing.T) {
	if (*generation)(nil).retire() {
		t.Error("there is none to end")
	}
	g := &generation{refs: 2}
	if g.release() {
		t.Error("ended in service")
	}
	if g.retire() {
		t.Error("ended under a call")
	}
	if !g.release() {
		t.Error("not ended with its last call")
	}
	if g := (&generation{}); !g.retire() {
		t.Error("nobody ends a generation without calls")
	}
}
