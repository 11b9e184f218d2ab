package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/toold/toold/host/wire"
)

func TestResultsAreBounded(t *testing.T) {
	var rs Results
	for i := range maxResults + 10 {
		rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: fmt.Sprint(i)})
	}
	if _, err := rs.Get("9"); err == nil {
		t.Error("the tenth oldest is still there")
	}
	if _, err := rs.Get("10"); err != nil {
		t.Errorf("the last thousand: %v", err)
	}
	for i := range 5 {
		rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: fmt.Sprint("big", i), Stdout: make([]byte, 16<<20)})
	}
	if _, err := rs.Get("big0"); err == nil || rs.bytes > maxResultBytes {
		t.Errorf("%d bytes kept of %d", rs.bytes, maxResultBytes)
	}
	rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: "big4", Stdout: []byte("x")})
	if rs.bytes != 48<<20+1 {
		t.Errorf("a result put twice counts %d bytes", rs.bytes)
	}
}

// TestOtterDropsWhatIsNew shows why results are kept in a list of our own: a cache
// that admits by frequency drops entries that were put just now and that nobody has
// asked for yet, and an operator asks for a result after its call. When an update of
// the library makes this test fail, the list can go.
func TestOtterDropsWhatIsNew(t *testing.T) {
	cache := otter.Must(&otter.Options[int, int]{MaximumSize: maxResults, Executor: func(fn func()) { fn() }})
	const calls, last = 3 * maxResults, 100
	for i := range calls {
		cache.Set(i, i)
	}
	kept := 0
	for i := calls - last; i < calls; i++ {
		if _, ok := cache.GetIfPresent(i); ok {
			kept++
		}
	}
	if kept == last {
		t.Error("otter keeps the last results: use it")
	}
	var rs Results
	for i := range calls {
		rs.put("alice", "t", time.Time{}, &wire.Result{ExecutionID: fmt.Sprint(i)})
	}
	for i := calls - maxResults; i < calls; i++ {
		if _, err := rs.Get(fmt.Sprint(i)); err != nil {
			t.Fatalf("result %d of %d: %v", i, calls, err)
		}
	}
	t.Logf("otter keeps %d of the last %d", kept, last)
}
