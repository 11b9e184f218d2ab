package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
)

// over is a context that has ended: with it, Next tells what is there.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func mustWatch(t testing.TB, h *Hub, f Filter, after string) *Watcher {
	t.Helper()
	w, err := h.Watch(f, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	e, err := w.Next(over)
	if err != nil || e.Kind != Ready {
		t.Fatalf("the first event is %+v, %v", e, err)
	}
	return w
}

// drain takes at most so many events as are there.
func drain(t testing.TB, w *Watcher, most int) []Event {
	t.Helper()
	var list []Event
	for len(list) < most {
		e, err := w.Next(over)
		if errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

const everything = 1 << 30

// happens publishes something at random: in one of two sessions of one of two
// owners, or to a tool.
func happens(h *Hub, r *rand.Rand, i int) {
	e := Event{Kind: Begin, Owner: fmt.Sprintf("owner-%d", r.IntN(2)), Session: fmt.Sprintf("session-%d", r.IntN(2)), Execution: fmt.Sprint(i)}
	switch r.IntN(6) {
	case 0:
		e.Kind = End
	case 1:
		e = Event{Kind: Tool, Tool: fmt.Sprint(i), Change: "loaded"}
	case 2, 3:
		e.Kind, e.Data = Output, []byte(strings.Repeat("x", r.IntN(100)))
		e.Bytes = len(e.Data)
	}
	h.Publish(e)
}

func texts(t testing.TB, list []Event) []string {
	t.Helper()
	var out []string
	for _, e := range list {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(b))
	}
	return out
}

// TestResumed: what a watcher that is cut at random and resumes is told equals
// what one that is not is told, cursors included.
func TestResumed(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := NewHub(Limits{Events: 1 << 20, Output: 1 << 30})
		filters := []Filter{{Operator: true}, {Owner: "owner-0"}, {Owner: "owner-1", Session: "session-1"}, {Owner: "owner-1", Session: "session-1", Operator: true}}
		f := filters[r.IntN(len(filters))]
		whole, cut := mustWatch(t, h, f, ""), mustWatch(t, h, f, "")
		var want, got []Event
		for i := range 300 {
			happens(h, r, i)
			if r.IntN(5) == 0 {
				want = append(want, drain(t, whole, everything)...)
			}
			switch r.IntN(6) {
			case 0:
				got = append(got, drain(t, cut, r.IntN(8))...)
			case 1: // cut between any two events, with others taken and not told
				after := cut.Cursor()
				cut.Close()
				for range r.IntN(5) {
					happens(h, r, i)
				}
				cut = mustWatch(t, h, f, after)
			}
		}
		want = append(want, drain(t, whole, everything)...)
		got = append(got, drain(t, cut, everything)...)
		if a, b := texts(t, want), texts(t, got); !slices.Equal(a, b) {
			t.Fatalf("seed %d: an uncut watcher was told %d events, a resumed one %d:\n%s\n\n%s", seed, len(a), len(b), strings.Join(a, "\n"), strings.Join(b, "\n"))
		}
	}
}

// tally is what a watcher was told, and what it was told it was not.
type tally struct {
	Loss
	last int64
}

func (c *tally) add(t testing.TB, e Event) {
	t.Helper()
	p, err := parseCursor(e.Cursor)
	if err != nil {
		t.Fatalf("the cursor of %+v: %v", e, err)
	}
	if p.seq() < c.last {
		t.Errorf("%+v goes back", e)
	}
	c.last = p.seq()
	switch e.Kind {
	case Lost:
		c.State, c.Output, c.Bytes = c.State+e.Lost.State, c.Output+e.Lost.Output, c.Bytes+e.Lost.Bytes
	case Output:
		c.Output, c.Bytes = c.Output+1, c.Bytes+int64(e.Bytes)
	default:
		c.State++
	}
	if p.n != c.State || p.m != c.Output || p.bytes != c.Bytes {
		t.Errorf("at %+v were told or lost %+v", e, c.Loss)
	}
}

// TestLossIsCounted: with streams that keep little, what a watcher is told and
// what it is told that it lost add up to what there was. One that is not cut loses
// nothing but output.
func TestLossIsCounted(t *testing.T) {
	cuts, lost := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		h := NewHub(Limits{Events: 1 + r.IntN(20), Output: 300 + r.IntN(5000)})
		w := mustWatch(t, h, Filter{Owner: "owner-0"}, "")
		var c tally
		resumed := false
		take := func(most int) {
			for range most {
				e, err := w.Next(over)
				if f := (*fault.Error)(nil); errors.As(err, &f) && f.Code == fault.LimitExceeded {
					cuts++
					after := w.Cursor()
					w.Close()
					w, resumed = mustWatch(t, h, Filter{Owner: "owner-0"}, after), true
					return
				}
				if err != nil {
					return
				}
				if e.Kind == Lost {
					lost++
					if e.Lost.State > 0 && !resumed || e.Lost.Reset {
						t.Errorf("seed %d: lost without a cut: %+v", seed, e.Lost)
					}
				} else {
					resumed = false
				}
				c.add(t, e)
			}
		}
		for i := range 500 {
			happens(h, r, i)
			if r.IntN(10) == 0 {
				take(r.IntN(20))
			}
		}
		for range 5 {
			take(everything)
		}
		if end := w.stream.end; end.n != c.State || end.m != c.Output || end.bytes != c.Bytes {
			t.Fatalf("seed %d: there were %+v, and told or lost were %+v", seed, end, c.Loss)
		}
	}
	if cuts < 20 || lost < 20 {
		t.Errorf("only %d cuts and %d losses: the test shows little", cuts, lost)
	}
}

// TestSlow: a watcher that is slow loses output, and is told how much; with too
// many other events it is cut, and knows where to resume. Nobody else is.
func TestSlow(t *testing.T) {
	h := NewHub(Limits{Events: 4, Output: 3 * (outputCost + 10)})
	me := Filter{Owner: "o", Session: "s"}
	slow, fast := mustWatch(t, h, me, ""), mustWatch(t, h, me, "")
	for range 100 {
		h.Publish(Event{Kind: Output, Owner: "o", Session: "s", Data: make([]byte, 10), Bytes: 10})
		drain(t, fast, everything)
	}
	h.Publish(Event{Kind: End, Owner: "o", Session: "s"})
	list := drain(t, slow, everything)
	if len(list) != 5 || list[0].Kind != Lost || *list[0].Lost != (Loss{Output: 97, Bytes: 970}) || list[4].Kind != End {
		t.Fatalf("told %+v", list)
	}
	for i := range 5 {
		select {
		case <-slow.Over():
			t.Fatalf("cut %d events behind", i)
		default:
		}
		h.Publish(Event{Kind: Begin, Owner: "o", Session: "s"})
		drain(t, fast, everything)
	}
	<-slow.Over()
	after := slow.Cursor()
	if _, err := slow.Next(over); !errors.Is(err, errCut) {
		t.Fatalf("a watcher that is too slow: %v", err)
	}
	slow.Close()
	resumed := mustWatch(t, h, me, after)
	if list := drain(t, resumed, everything); len(list) != 5 || list[0].Kind != Lost || *list[0].Lost != (Loss{State: 1}) {
		t.Errorf("resumed: %+v", list)
	}
	select {
	case <-fast.Over():
		t.Error("a watcher that reads was cut")
	default:
	}
}

// TestOneByteOutput: output of single bytes takes no more than the limit.
func TestOneByteOutput(t *testing.T) {
	h := NewHub(Limits{Output: 10 * outputCost})
	w := mustWatch(t, h, Filter{Owner: "o"}, "")
	for range 1000 {
		h.Publish(Event{Kind: Output, Owner: "o", Session: "s", Data: []byte{1}, Bytes: 1})
	}
	if n := len(w.stream.output); n > 10 || cap(w.stream.output) > 100 {
		t.Errorf("%d are kept, in room for %d", n, cap(w.stream.output))
	}
}

// TestWhoIsTold: an identity is told of its own and of tools it sees, an operator of
// everything but output.
func TestWhoIsTold(t *testing.T) {
	h := NewHub(Limits{})
	mine := mustWatch(t, h, Filter{Owner: "me", Sees: func(tool string) bool { return tool == "git" }}, "")
	one := mustWatch(t, h, Filter{Owner: "me", Session: "a", Kinds: []Kind{Begin, Tool}}, "")
	operator := mustWatch(t, h, Filter{Operator: true}, "")
	operators := mustWatch(t, h, Filter{Owner: "you", Session: "a", Operator: true}, "")
	for _, owner := range []string{"me", "you"} {
		for _, session := range []string{"a", "b"} {
			h.Publish(Event{Kind: Begin, Owner: owner, Session: session})
			h.Publish(Event{Kind: Output, Owner: owner, Session: session, Data: []byte("secret of " + owner), Bytes: 13, LastLine: "line"})
		}
	}
	h.Publish(Event{Kind: Tool, Tool: "git", Change: "loaded"})
	h.Publish(Event{Kind: Tool, Tool: "hidden", Change: "loaded"})
	for name, tt := range map[string]struct {
		w    *Watcher
		want string
	}{
		"mine":      {mine, "begin a,output a,begin b,output b,tool git"},
		"one":       {one, "begin a,tool git,tool hidden"},
		"operators": {operators, "begin a,output a,tool git,tool hidden"},
		"operator":  {operator, "begin a,output a,begin b,output b,begin a,output a,begin b,output b,tool git,tool hidden"},
	} {
		var got []string
		for _, e := range drain(t, tt.w, everything) {
			got = append(got, string(e.Kind)+" "+e.Session+e.Tool)
			text := texts(t, []Event{e})[0]
			byOperator := strings.HasPrefix(name, "operator")
			if byOperator && e.Data != nil || name == "operator" && e.Owner == "" && e.Kind != Tool || !byOperator && strings.Contains(text, "you") {
				t.Errorf("%s is told %s", name, text)
			}
		}
		if strings.Join(got, ",") != tt.want {
			t.Errorf("%s is told %s, not %s", name, got, tt.want)
		}
	}
}

// TestCursorsOfOthers: a cursor of another stream, also of the same name in another
// run, is answered with a reset, and what is no cursor is refused.
func TestCursorsOfOthers(t *testing.T) {
	h, before := NewHub(Limits{}), NewHub(Limits{})
	me := Filter{Owner: "me"}
	cursor := mustWatch(t, h, me, "").Cursor()
	for name, after := range map[string]string{
		"another run":        mustWatch(t, before, me, "").Cursor(),
		"another's":          mustWatch(t, h, Filter{Owner: "you"}, "").Cursor(),
		"of everything":      mustWatch(t, h, Filter{Operator: true}, "").Cursor(),
		"of what is to come": strings.Replace(cursor, ".0.0.0", ".99.0.0", 1),
	} {
		w := mustWatch(t, h, me, after)
		h.Publish(Event{Kind: Begin, Owner: "me"})
		list := drain(t, w, everything)
		if len(list) != 2 || list[0].Kind != Lost || !list[0].Lost.Reset || list[0].Reason == "" || list[1].Kind != Begin {
			t.Errorf("%s: told %+v", name, list)
		}
	}
	for _, after := range []string{"x", "....", cursor + ".", cursor + "0000000000000000000000", strings.Replace(cursor, ".0", ".-1", 1), strings.Replace(cursor, ".0", ".00", 1), strings.Repeat("a", 1000), "0123456789abcdeg.0.0.0"} {
		_, err := h.Watch(me, after)
		if f := (*fault.Error)(nil); !errors.As(err, &f) || f.Code != fault.InvalidPayload {
			t.Errorf("%q is taken for a cursor: %v", after, err)
		}
	}
}

// TestBounds: watchers are bounded for an identity and for all, what they leave
// behind as well, and in the end nothing is left.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(Limits{Watchers: 20, AllWatchers: 30, Keep: time.Minute})
		refused := func(f Filter) bool {
			_, err := h.Watch(f, "")
			e := (*fault.Error)(nil)
			if err != nil && (!errors.As(err, &e) || e.Code != fault.LimitExceeded) {
				t.Fatal(err)
			}
			return err != nil
		}
		var all []*Watcher
		more := func(owner string, n int, operator bool) {
			for i := range n {
				w, err := h.Watch(Filter{Owner: owner, Session: fmt.Sprint(i), Operator: operator}, "")
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, w)
			}
		}
		more("a", 20, false)
		if !refused(Filter{Owner: "a"}) {
			t.Error("one watcher more than an identity may have")
		}
		more("b", 10, false)
		if !refused(Filter{Owner: "c"}) {
			t.Error("one watcher more than all may have")
		}
		more("a", 20, true) // operators are not kept out by callers
		if !refused(Filter{Operator: true}) {
			t.Error("one watcher more than operators may have")
		}
		first := all[0].stream
		for _, w := range all {
			w.Close()
			w.Close()
			time.Sleep(time.Millisecond)
		}
		if n := len(h.streams); n != maxUnwatched+10 || h.watched != 0 || len(h.held) != 0 {
			t.Errorf("%d streams are kept, and %d watchers held", n, h.watched)
		}
		if h.streams[first.scope] != nil {
			t.Error("the oldest one was not the first to go")
		}
		again, err := h.Watch(Filter{Owner: "b"}, "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(h.streams); n != 1 || !h.Watched() {
			t.Errorf("%d streams are kept after their time", n)
		}
		again.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(h.streams); n != 0 || h.Watched() {
			t.Errorf("%d streams are kept after their time", n)
		}
	})
}

// TestClose: who waits is told that the Hub closes, after what there was, and
// nothing is left.
func TestClose(t *testing.T) {
	h := NewHub(Limits{})
	w := mustWatch(t, h, Filter{Owner: "me", Session: "s"}, "")
	got := make(chan error)
	go func() {
		_, err := w.Next(t.Context())
		got <- err
	}()
	h.Close()
	h.Close()
	if err := <-got; !errors.Is(err, errStopping) {
		t.Errorf("who waited got %v", err)
	}
	<-w.Over()
	if _, err := h.Watch(Filter{Owner: "me"}, ""); !errors.Is(err, errStopping) {
		t.Errorf("a watch of a closed Hub: %v", err)
	}
	w.Close()
	if len(h.streams) != 0 || h.Watched() {
		t.Error("a stream is left")
	}
	var none *Hub
	none.Publish(Event{Kind: Begin})
	none.Close()
}

// TestEnded: a watch of a session ends with it, also one that begins after.
func TestEnded(t *testing.T) {
	h := NewHub(Limits{})
	me := Filter{Owner: "me", Session: "s"}
	w, all := mustWatch(t, h, me, ""), mustWatch(t, h, Filter{Owner: "me"}, "")
	after := w.Cursor()
	h.Publish(Event{Kind: State, State: Closed, Owner: "me", Session: "s"})
	me.Ended = true
	for _, w := range []*Watcher{w, mustWatch(t, h, me, after), mustWatch(t, NewHub(Limits{}), me, "")} {
		for range 2 {
			e, err := w.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil || e.Kind != State {
				t.Fatalf("%+v, %v", e, err)
			}
		}
	}
	drain(t, all, everything)
	if _, err := all.Next(over); !errors.Is(err, context.Canceled) {
		t.Errorf("the watch of an identity ended with a session: %v", err)
	}
}

// TestUnwatchedCostsNothing: where nobody watches, nothing is allocated.
func TestUnwatchedCostsNothing(t *testing.T) {
	h := NewHub(Limits{})
	e := Event{Kind: Begin, Owner: "me", Session: "s", Execution: "x", Tool: "git"}
	if n := testing.AllocsPerRun(1000, func() { h.Publish(e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAtTheSameTime: publishers, watchers that come and go, and the end.
func TestAtTheSameTime(t *testing.T) {
	h := NewHub(Limits{Events: 16, Output: 4096})
	var publishers, watchers sync.WaitGroup
	for i := range 4 {
		watchers.Go(func() {
			after := ""
			for n := 0; ; n++ {
				w, err := h.Watch(Filter{Owner: "owner-0", Operator: i == 0}, after)
				if err != nil {
					return
				}
				for {
					if _, err = w.Next(context.Background()); err != nil {
						break
					}
					if n%2 == 0 {
						break
					}
				}
				after = w.Cursor()
				w.Close()
				if errors.Is(err, errStopping) {
					return
				}
			}
		})
		publishers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			for n := range 2000 {
				happens(h, r, n)
			}
		})
	}
	publishers.Wait()
	h.Close()
	watchers.Wait()
	if h.Watched() || len(h.held) != 0 || h.watched != 0 {
		t.Errorf("left: %d streams, %v held", len(h.streams), h.held)
	}
}

// FuzzCursor watches after what a caller sends: it is refused, or the watch goes
// on and says no nonsense.
func FuzzCursor(f *testing.F) {
	f.Add("", uint8(3))
	f.Add("0.0.0", uint8(200))
	f.Add("5.1.9", uint8(40))
	f.Add("9999999999999999999.1.1", uint8(1))
	f.Fuzz(func(t *testing.T, place string, n uint8) {
		h := NewHub(Limits{Events: 8, Output: 2000})
		me := Filter{Owner: "owner-0"}
		whole := mustWatch(t, h, me, "")
		r := rand.New(rand.NewPCG(uint64(n), 4))
		for i := range int(n) {
			happens(h, r, i)
		}
		for _, after := range []string{place, whole.stream.id + "." + place} {
			w, err := h.Watch(me, after)
			if e := (*fault.Error)(nil); err != nil {
				if !errors.As(err, &e) || e.Code != fault.InvalidPayload {
					t.Fatalf("%q: %v", after, err)
				}
				continue
			}
			for {
				e, err := w.Next(over)
				if err != nil {
					break
				}
				if l := e.Lost; l != nil && (min(l.State, l.Output, l.Bytes) < 0 || *l == Loss{}) {
					t.Fatalf("%q: lost %+v", after, *l)
				}
			}
			if at := w.at; at != w.stream.end {
				t.Fatalf("%q: ends at %+v of %+v", after, at, w.stream.end)
			}
			w.Close()
		}
	})
}
