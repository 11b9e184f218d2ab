package guest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
)

// Guests leave a processor to the rest, and calls that are soon done have places
// of their own.
func TestPlaces(t *testing.T) {
	for cores := 1; cores <= 256; cores++ {
		all := Processors(cores)
		turns := newTurns(all)
		if turns.longs != cores || turns.places < cores+shortPlaces || turns.places >= all || !turns.spares {
			t.Errorf("%d cores, %d processors: %d places, %d of them for long", cores, all, turns.places, turns.longs)
		}
	}
	for processors := 1; processors <= 256; processors++ {
		turns := newTurns(processors)
		if turns.longs < 1 || turns.longs > turns.places || turns.places > max(1, processors-1) || turns.spares != (processors > 1) {
			t.Errorf("%d processors: %d places, %d of them for long", processors, turns.places, turns.longs)
		}
	}
}

// The places go around among identities, then among the modules of one,
// whatever the number of calls.
func TestTurnsAreFair(t *testing.T) {
	turns := &turns{places: 1, longs: 1}
	if turns.take(true, "first", "m") != nil {
		t.Fatal("no place for the first call")
	}
	waits := map[string]*waiter{}
	for _, name := range []string{"many a 1", "many a 2", "many a 3", "many b 1", "one a 1", "other b 1", "other b 2"} {
		f := strings.Fields(name)
		waits[name] = turns.take(true, f[0], f[1])
	}
	var order []string
	for range waits {
		turns.leave(true)
		for name, w := range waits {
			select {
			case <-w.come:
				order = append(order, name)
				w.come = nil
			default:
			}
		}
	}
	if got, want := strings.Join(order, ", "), "many a 1, one a 1, other b 1, many b 1, other b 2, many a 2, many a 3"; got != want {
		t.Errorf("the places went to %s; want %s", got, want)
	}
	if turns.take(true, "late", "m") == nil || len(turns.wait[1].identities) != 1 {
		t.Error("the place of the last call was given twice, or a line was left behind")
	}
}

// Neither line keeps the other from going on.
func TestLinesComeInTurns(t *testing.T) {
	turns := &turns{places: 1, longs: 1}
	turns.take(false, "", "")
	var long, short []*waiter
	for range 4 {
		long, short = append(long, turns.take(true, "a", "m")), append(short, turns.take(false, "b", "m"))
	}
	now := true
	for i := range 8 {
		turns.leave(i > 0 && !now)
		w := short[i/2]
		if now {
			w = long[i/2]
		}
		select {
		case <-w.come:
		default:
			t.Fatalf("place %d went not to where long is %v", i, now)
		}
		now = !now
	}
}

// crowd makes n calls of m that compute until the end of the test; it returns when
// all of them want a place for long.
func crowd(t *testing.T, m *Module, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			_, err := m.Call(ctx, Invocation{Export: "run", Input: []byte("loop"), Identity: fmt.Sprint(i % 3)})
			if codeOf(err) != fault.Aborted {
				t.Errorf("an endless call: %v", err)
			}
		})
	}
	turns := m.e.turns
	t.Cleanup(func() {
		cancel()
		calls.Wait()
		turns.mu.Lock()
		defer turns.mu.Unlock()
		if turns.taken != 0 || turns.long != 0 || turns.queued.Load() != 0 || !turns.wait[0].empty() || !turns.wait[1].empty() {
			t.Errorf("after all calls: %d places taken, %d for long, %d calls wait", turns.taken, turns.long, turns.queued.Load())
		}
	})
	all := func() bool {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return turns.long == min(n, turns.longs) && int(turns.queued.Load())+turns.taken == n
	}
	for !all() {
		do(t, m, "check", string(policyInput))
	}
}

// crowded is a module whose engine has the places of a machine with two cores.
func crowded(t *testing.T) *Module {
	e := newEngine(t)
	e.turns = newTurns(Processors(2))
	return load(t, e, Spec{Name: "kitchen.wasm", Wasm: built["kitchen"], Fuel: 1 << 60})
}

// However many calls compute without end, only so many do at a time, and all of
// them go on; and there is a place for one that is soon done.
func TestEndlessCallsShare(t *testing.T) {
	m := crowded(t)
	turns := m.e.turns
	crowd(t, m, 8)
	seen := func() (n, long int) {
		turns.mu.Lock()
		defer turns.mu.Unlock()
		return turns.taken, turns.long
	}
	for range 50 {
		do(t, m, "check", string(policyInput))
		if taken, long := seen(); taken > turns.places || long > 2 {
			t.Fatalf("%d calls compute, %d of them for long", taken, long)
		}
	}
	// One of another identity that takes many quanta ends all the same.
	if _, err := m.Call(context.Background(), Invocation{Export: "run", Input: []byte("loop"), Identity: "other", Fuel: 200_000_000}); codeOf(err) != fault.LimitExceeded {
		t.Errorf("a long call beside endless ones: %v", err)
	}
}

// A call that waits for its turn ends with its context.
func TestWaitingForATurnEnds(t *testing.T) {
	m := crowded(t)
	turns := m.e.turns
	for range turns.places {
		if turns.take(false, "", "") != nil {
			t.Fatal("no place in an engine without calls")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := m.Call(ctx, Invocation{Export: "run", Input: []byte("loop")}); codeOf(err) != fault.Timeout {
		t.Errorf("a call with a deadline when others have all places: %v", err)
	}
	if n := turns.queued.Load(); n != 0 || !turns.wait[0].empty() {
		t.Errorf("%d calls wait after it", n)
	}
}

// A call that computed for long, and waits now, keeps nobody from computing:
// for input, for somebody to read its output, or for a sleep.
func TestWaitingCallsHaveNoPlace(t *testing.T) {
	e := newEngine(t)
	e.turns = newTurns(1)
	// It computes for longer than a short call, then waits.
	var a asm
	recv := a.imp(userModule, "tool_recv", op(0x7e), op(0x7e))
	a.memory(1)
	a.exported("run", op(0x7f),
		loop(get(0), i32c(1), add32, op(0x22, 0), i32c(50_000_000), lt32u, brif(0)),
		i64c(0), callf(recv), drop, i32c(0))
	m := load(t, e, Spec{Wasm: a.bytes()})
	_, err := m.Call(context.Background(), Invocation{Export: "run", Services: Services{
		Recv: func(context.Context) ([]byte, error) { isFree(t, e, "for input"); return nil, io.EOF },
	}})
	if err != nil {
		t.Fatal(err)
	}

	in, out := io.Pipe()
	go out.Write([]byte(strings.Repeat("x", 100)))
	c := load(t, e, Spec{Name: "command.wasm", Wasm: built["command"]})
	_, _, err = c.Run(context.Background(), Command{Args: []string{"c", "cat"},
		Stdin: reads(func(p []byte) (int, error) { isFree(t, e, "for standard input"); out.Close(); return in.Read(p) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Run(context.Background(), Command{Args: []string{"c", "args"},
		Stdout: writes(func(p []byte) (int, error) { isFree(t, e, "for a reader"); return len(p), nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
}

type reads func([]byte) (int, error)

func (f reads) Read(p []byte) (int, error) { return f(p) }

type writes func([]byte) (int, error)

func (f writes) Write(p []byte) (int, error) { return f(p) }

func isFree(t *testing.T, e *Engine, what string) {
	e.turns.mu.Lock()
	defer e.turns.mu.Unlock()
	if e.turns.taken != 0 {
		t.Errorf("a call that waits %s has %d places", what, e.turns.taken)
	}
}
