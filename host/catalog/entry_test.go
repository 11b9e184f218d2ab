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
	if old := e.serve(g, seen, now); old != nil || e.current != g || !e.untouched() {
		t.Fatalf("a first generation: replaces %v, state %+v", old, e)
	}
	serving, retired, repeated := e.fail(bad("typo"), false, false, seen, now)
	if serving != g || retired != nil || repeated || e.stale == nil || e.err != nil || !e.untouched() {
		t.Errorf("a version that does not load took the one before out of service: %+v", e)
	}
	if _, _, repeated = e.fail(bad("typo"), false, false, seen, now.Add(time.Hour)); !repeated || !e.failing.Equal(now) {
		t.Errorf("the same failure is reported as a new one, since %v", e.failing)
	}
	serving, retired, _ = e.fail(bad("its policy is gone"), false, true, seen, now)
	if serving != nil || retired != g || e.current != nil || e.err == nil || e.stale != nil {
		t.Errorf("a generation without a policy that is on disk goes on serving: %+v", e)
	}
	if old, known := e.remove(); old != nil || !known || e.err != nil || !e.failing.IsZero() {
		t.Errorf("removed: %v, %v, %+v", old, known, e)
	}
	if _, known := e.remove(); known {
		t.Error("a tool that is gone is known")
	}

	// What may pass is tried again at once, then after 5 s, 10 s, ... 5 min 20 s.
	var waits []time.Duration
	for range 9 {
		e.fail(bad("no memory"), true, false, seen, now)
		waits = append(waits, e.retryAt.Sub(now))
		if e.untouched() {
			t.Error("a failure that may pass is not tried again")
		}
	}
	if waits[0] != 0 || waits[1] != restat || waits[2] != 2*restat || waits[8] != 64*restat {
		t.Errorf("waits: %v", waits)
	}
	if e.fail(bad("typo"), false, false, seen, now); e.tries != 0 {
		t.Error("a failure that is of the files is tried again without a change")
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
