package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/pdk/abi"
)

// counted counts the events of a Cache.
type counted struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counted) observe(_, event string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[event]++
}

func (c *counted) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.n)
}

func newSurfaces(t testing.TB, size int) (*Cache, *counted, *bytes.Buffer) {
	var c counted
	var logs bytes.Buffer
	s := NewCache(Settings{MaxIdentities: size, RetryAfter: 10 * time.Second, RefusedFor: time.Minute, RefreshEvery: 10 * time.Second}, c.observe, slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(s.Close)
	return s, &c, &logs
}

func keyOf(s *Cache, fingerprint string) Key {
	return Key{Fingerprint: fingerprint, Tool: "db", Version: "v1", Generation: s.Generation()}
}

// makes is a discovery that answers one tool of that name.
func makes(name string) func(context.Context) (*Surface, error) {
	return func(context.Context) (*Surface, error) {
		return NewSurface([]Tool{{Name: name}}, abi.Safety{}, 0), nil
	}
}

func fails(err error) func(context.Context) (*Surface, error) {
	return func(context.Context) (*Surface, error) { return nil, err }
}

func names(s *Surface) string {
	var list []string
	for _, o := range s.Visible(false) {
		list = append(list, o.Name)
	}
	return strings.Join(list, " ")
}

// TestRefresh is the table of identity.md, as far as time goes.
func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events, _ := newSurfaces(t, 100)
		ctx := t.Context()
		get := func(what, want string, discover func(context.Context) (*Surface, error)) {
			t.Helper()
			f, err := s.Get(ctx, keyOf(s, "a"), discover)
			got := ""
			switch {
			case err != nil:
				got = "error " + err.Error()
			case f.Stale != "":
				got = names(f) + " stale"
			default:
				got = names(f)
			}
			if got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		down := fails(fault.Errorf(fault.ToolFailed, "down"))
		get("new, and the server is down", "error TOOL_FAILED: down", down)
		get("that is not remembered", "one", makes("one"))
		get("warm", "one", makes("two"))
		time.Sleep(15*time.Minute - time.Second)
		get("just fresh", "one", makes("two"))
		time.Sleep(time.Second)
		get("after the TTL", "two", makes("two"))
		time.Sleep(15 * time.Minute)
		get("a refresh fails", "two stale", down)
		time.Sleep(10*time.Second - time.Nanosecond)
		get("not tried again at once", "two stale", makes("three"))
		time.Sleep(time.Nanosecond)
		get("tried again", "two stale", down)
		time.Sleep(15*time.Minute - 11*time.Second)
		get("just before twice the TTL", "two stale", down)
		time.Sleep(time.Second)
		get("at twice the TTL", "error TOOL_FAILED: down", down)
		get("and then", "error TOOL_FAILED: down", down)
		get("up again", "three", makes("three"))
		time.Sleep(15 * time.Minute)
		no := fails(fault.Errorf(fault.Unauthenticated, "no"))
		get("refused at a refresh", "error UNAUTHENTICATED: no", no)
		get("that is remembered", "error UNAUTHENTICATED: no", makes("four"))
		time.Sleep(time.Minute - time.Second)
		get("for a minute", "error UNAUTHENTICATED: no", makes("four"))
		time.Sleep(time.Second)
		get("and no longer", "four", makes("four"))
		s.Invalidate("a", "test")
		get("invalidated", "five", makes("five"))
		s.CheckGrants("a", abi.Safety{})
		get("the grants agree", "five", makes("six"))
		s.CheckGrants("a", abi.Safety{ReadOnly: true})
		get("they do not", "six", makes("six"))
		s.Refuse("a", fault.Errorf(fault.Unauthenticated, "no"))
		get("refused in a call", "error UNAUTHENTICATED: no", makes("seven"))
		if got, want := events.String(), "map[failed:3 hit:4 invalidated:2 miss:1 refresh:5 refused:5 stale:3]"; got != want {
			t.Errorf("events %s, want %s", got, want)
		}
	})
}

func TestTTL(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: 15 * time.Minute, time.Millisecond: time.Second, time.Minute: time.Minute, 1000 * time.Hour: 24 * time.Hour} {
		if got := NewSurface(nil, abi.Safety{}, given).ttl; got != want {
			t.Errorf("a TTL of %v counts as %v, want %v", given, got, want)
		}
	}
}

// TestReadOnlySurface: tools that write are neither listed nor found.
func TestReadOnlySurface(t *testing.T) {
	tools := []Tool{{Name: "w", Mutating: true}, {Name: "r"}}
	for _, tt := range []struct {
		safety, reads bool
		want          string
	}{{false, false, "r w"}, {true, false, "r"}, {false, true, "r"}, {true, true, "r"}} {
		s := NewSurface(tools, abi.Safety{ReadOnly: tt.safety}, 0)
		var list []string
		for _, o := range s.Visible(tt.reads) {
			list = append(list, o.Name)
		}
		_, found := s.Find("w", tt.reads)
		if got := strings.Join(list, " "); got != tt.want || found != strings.Contains(tt.want, "w") {
			t.Errorf("%+v: %s, found %v", tt, got, found)
		}
	}
}

// TestSuperseded: what changed while a discovery ran is never overtaken by
// what it found.
func TestSuperseded(t *testing.T) {
	for name, change := range map[string]func(*Cache){
		"reload":      func(s *Cache) { s.InvalidateAll("test") },
		"new version": func(s *Cache) { s.InvalidateTool("db", "test") },
		"refresh":     func(s *Cache) { s.Invalidate("a", "test") },
		"refused":     func(s *Cache) { s.Refuse("a", fault.Errorf(fault.Unauthenticated, "no")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, _ := newSurfaces(t, 100)
				gate := make(chan struct{})
				result := make(chan error, 1)
				go func() {
					_, err := s.Get(t.Context(), keyOf(s, "a"), func(ctx context.Context) (*Surface, error) {
						<-gate
						return makes("old")(ctx)
					})
					result <- err
				}()
				synctest.Wait()
				change(s)
				if name != "refused" {
					// Who comes now does not wait for the old one, and keeps
					// what it found.
					if f, err := s.Get(t.Context(), keyOf(s, "a"), makes("new")); err != nil || names(f) != "new" {
						t.Fatalf("%v", err)
					}
				}
				close(gate)
				if err := <-result; !errors.Is(err, ErrSuperseded) {
					t.Errorf("the old discovery ended with %v", err)
				}
				f, err := s.Get(t.Context(), keyOf(s, "a"), makes("third"))
				if name == "refused" {
					if code(err) != fault.Unauthenticated {
						t.Errorf("%v, %v", f, err)
					}
				} else if err != nil || names(f) != "new" {
					t.Errorf("the old one was kept: %v, %v", f, err)
				}
			})
		})
	}
	s, _, _ := newSurfaces(t, 100)
	old := keyOf(s, "a")
	s.InvalidateAll("test")
	if _, err := s.Get(t.Context(), old, makes("x")); !errors.Is(err, ErrSuperseded) {
		t.Errorf("a key of an older generation: %v", err)
	}
}

// TestReload: what was kept before a reload and counts after it stays; what is of
// neither configuration for certain does not.
func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newSurfaces(t, 100)
		get := func(fingerprint, settings, makesIt string) string {
			t.Helper()
			key := keyOf(s, fingerprint)
			key.Settings = settings
			f, err := s.Get(t.Context(), key, makes(makesIt))
			if err != nil {
				return err.Error()
			}
			return names(f)
		}
		get("kept", "same", "1")
		get("other", "old", "1")
		get("refused", "same", "1")
		s.Refuse("refused", fault.Errorf(fault.Unauthenticated, "no"))
		gate, late := make(chan struct{}), make(chan error, 1)
		slow := keyOf(s, "slow")
		slow.Settings = "same"
		go func() {
			_, err := s.Get(t.Context(), slow, func(ctx context.Context) (*Surface, error) {
				<-gate
				return makes("of the old configuration")(ctx)
			})
			late <- err
		}()
		synctest.Wait()
		end := s.BeginReload()
		get("between", "same", "of neither")
		end(func(settings string) bool { return settings == "same" })
		for fingerprint, want := range map[string]string{"kept": "1", "other": "2", "refused": "2", "between": "2", "slow": "2"} {
			settings := "same"
			if fingerprint == "other" {
				settings = "old"
			}
			if got := get(fingerprint, settings, "2"); got != want {
				t.Errorf("%s: %s, want %s", fingerprint, got, want)
			}
		}
		close(gate)
		if err := <-late; !errors.Is(err, ErrSuperseded) {
			t.Errorf("what was being discovered: %v", err)
		}
		if got := get("slow", "same", "3"); got != "2" {
			t.Errorf("afterwards: %s", got)
		}
	})
}

// TestCallersWish: what a caller asks for is discovered once, in its turn, and not
// while a server is given rest.
func TestCallersWish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events, _ := newSurfaces(t, 100)
		s.Configure(Settings{MaxIdentities: 100, RetryAfter: 30 * time.Second, RefusedFor: 40 * time.Second, RefreshEvery: 20 * time.Second})
		get := func(what, want string, discover func(context.Context) (*Surface, error)) {
			t.Helper()
			f, err := s.Get(t.Context(), keyOf(s, "a"), discover)
			got := fmt.Sprint(err)
			if err == nil {
				got = names(f)
			}
			if got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		wish := func(what string, want time.Duration) {
			t.Helper()
			if got := s.Refresh(keyOf(s, "a")); got != want {
				t.Errorf("%s: %v to wait, want %v", what, got, want)
			}
		}
		get("new", "1", makes("1"))
		wish("the first", 0)
		get("done", "2", makes("2"))
		wish("at once", 20*time.Second)
		get("not done", "2", makes("3"))
		time.Sleep(20 * time.Second)
		wish("in time", 0)
		down := fails(fault.Errorf(fault.ToolFailed, "down"))
		get("down", "2", down)
		wish("while it is given rest", 30*time.Second)
		get("it rests", "2", makes("3"))
		time.Sleep(30 * time.Second)
		get("and is tried again", "3", makes("3"))
		wish("the last", 0)
		get("refused", "UNAUTHENTICATED: no", fails(fault.Errorf(fault.Unauthenticated, "no")))
		time.Sleep(25 * time.Second)
		wish("a refusal is remembered", 15*time.Second)
		get("refused yet", "UNAUTHENTICATED: no", makes("4"))
		time.Sleep(15 * time.Second)
		get("no longer", "4", makes("4"))

		// Whoever waits for a discovery that began before the wish gets what is
		// there after it.
		s.Invalidate("a", "test")
		gate, before := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := s.Get(t.Context(), keyOf(s, "a"), func(ctx context.Context) (*Surface, error) {
				<-gate
				return makes("before")(ctx)
			})
			before <- err
		}()
		synctest.Wait()
		wish("during a discovery", 0)
		get("after it", "after", makes("after"))
		close(gate)
		if err := <-before; !errors.Is(err, ErrSuperseded) {
			t.Errorf("%v", err)
		}
		get("kept", "after", makes("5"))
		if !strings.Contains(events.String(), "asked:4") {
			t.Error(events)
		}
	})
}

// TestOneDiscovery: many callers of one identity make one discovery, and the
// one that began it may leave.
func TestOneDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newSurfaces(t, 100)
		gate := make(chan struct{})
		var runs atomic.Int64
		slow := func(ctx context.Context) (*Surface, error) {
			runs.Add(1)
			<-gate
			return makes("one")(ctx)
		}
		first, leave := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.Get(first, keyOf(s, "a"), slow)
			left <- err
		}()
		synctest.Wait()
		var rest sync.WaitGroup
		for range 50 {
			rest.Go(func() {
				if f, err := s.Get(t.Context(), keyOf(s, "a"), slow); err != nil || names(f) != "one" {
					t.Errorf("%v", err)
				}
			})
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that left: %v", err)
		}
		close(gate)
		rest.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("%d discoveries", n)
		}
	})
}

// TestThousand: a thousand identities at once are discovered 16 at a time, and
// the cache stays as large as it may be.
func TestThousand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, events, _ := newSurfaces(t, 300)
		var now, most atomic.Int64
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				_, err := s.Get(t.Context(), keyOf(s, fmt.Sprint(i)), func(ctx context.Context) (*Surface, error) {
					n := now.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					time.Sleep(100 * time.Millisecond)
					now.Add(-1)
					return makes("one")(ctx)
				})
				if err != nil {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		all.Wait()
		if n := most.Load(); n != 16 {
			t.Errorf("%d discoveries at a time, want 16", n)
		}
		s.entries.CleanUp()
		if n := s.entries.EstimatedSize(); n > 300 {
			t.Errorf("%d entries are kept, want 300 at most", n)
		}
		if n := events.n[Evicted]; n < 700 {
			t.Errorf("%d were evicted", n)
		}
	})
}

// TestSlow: a discovery has three seconds, and one that cannot begin says so.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newSurfaces(t, 100)
		hangs := func(ctx context.Context) (*Surface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		if _, err := s.Get(t.Context(), keyOf(s, "a"), hangs); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != MaxTime {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		deaf := make(chan struct{})
		for i := range 16 {
			go s.Get(t.Context(), keyOf(s, fmt.Sprint(i)), func(context.Context) (*Surface, error) { <-deaf; return nil, errors.New("late") })
		}
		synctest.Wait()
		if _, err := s.Get(t.Context(), keyOf(s, "b"), makes("x")); code(err) != fault.Overloaded {
			t.Errorf("no turn: %v", err)
		}
		close(deaf)
		synctest.Wait()
		s.Close()
		if _, err := s.Get(t.Context(), keyOf(s, "c"), makes("x")); code(err) != fault.Overloaded {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestEntries(t *testing.T) {
	s, _, logs := newSurfaces(t, 100)
	k := keyOf(s, "a")
	k.Shown = map[string]string{"user": "alice"}
	s.Get(t.Context(), k, makes("one"))
	s.Get(t.Context(), keyOf(s, "b"), fails(fault.Errorf(fault.Unauthenticated, "no")))
	s.Get(t.Context(), keyOf(s, "c"), fails(fault.Errorf(fault.ToolFailed, "down")))
	var got []string
	for _, e := range s.List() {
		got = append(got, fmt.Sprintf("%s %s %d %s", e.Fingerprint, e.State, e.Tools, e.Reason))
	}
	if want := "a fresh 1 ,b refused 0 no,c empty 0 "; strings.Join(got, ",") != want {
		t.Errorf("%q, want %q", strings.Join(got, ","), want)
	}
	for _, want := range []string{"surface miss", "surface refused", "surface failed"} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("the log has no %q: %s", want, logs)
		}
	}
}

// A discovery that panics is the failure of those who asked for it, and nobody
// else's.
func TestDiscoveryThatPanics(t *testing.T) {
	s, _, logs := newSurfaces(t, 10)
	_, err := s.Get(t.Context(), keyOf(s, "f"), func(context.Context) (*Surface, error) { panic("a fault") })
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != fault.Internal || strings.Contains(e.Message, "a fault") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(logs.String(), "a fault") {
		t.Errorf("the log does not tell: %s", logs)
	}
	if found, err := s.Get(t.Context(), keyOf(s, "f"), makes("a")); err != nil || names(found) != "a" {
		t.Errorf("afterwards: %v", err)
	}
}

func code(err error) fault.Code {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Code
	}
	return ""
}
