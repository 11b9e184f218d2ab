package approval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// quickDir is a folder where a sync takes no time, as far as there is one.
func quickDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "approval")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// of is a request of asker for what n stands for.
func of(asker string, n int, by ...string) Request {
	return Request{
		Asker: asker, Owner: asker, By: by,
		Steps: []Step{{Digest: digestOf(asker, n), Tool: "push", Version: "1", Plan: json.RawMessage(`{"args":["main"]}`)}},
	}
}

func digestOf(asker string, n int) string { return fmt.Sprintf("%-60s%04d", asker, n) }

var (
	operator = Person{Operator: true}
	alice    = Person{ID: "alice-id", Names: []string{"alice-id", "sub:alice"}}
	bob      = Person{ID: "bob-id", Names: []string{"bob-id", "sub:bob"}}
)

func (s *Store) must(t testing.TB, r Request) Request {
	t.Helper()
	r, err := s.Ask(r, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOneUse(t *testing.T) {
	s := open(t, t.TempDir())
	r := s.must(t, of("alice-id", 1))
	digest := r.Steps[0].Digest
	if g, err := s.Use(digest, "x"); g != nil || err != nil {
		t.Fatalf("a request that is pending is used: %v, %v", g, err)
	}
	if again := s.must(t, of("alice-id", 1)); again.ID != r.ID {
		t.Error("the same is asked for twice")
	}
	if _, err := s.Decide(r.ID, operator, true, ""); err != nil {
		t.Fatal(err)
	}
	// Of those who use it and those who decide it, at the same time, one does.
	var all sync.WaitGroup
	grants := make(chan *Grant, 16)
	for i := range 16 {
		all.Go(func() {
			g, err := s.Use(digest, fmt.Sprint(i))
			if err != nil {
				t.Error(err)
			}
			if g != nil {
				grants <- g
			}
			if _, err := s.Decide(r.ID, operator, true, ""); !errors.Is(err, ErrState) {
				t.Errorf("decided again: %v", err)
			}
		})
	}
	all.Wait()
	if len(grants) != 1 {
		t.Fatalf("it is used %d times", len(grants))
	}
	(<-grants).End("success")
	if got, _ := s.Get(r.ID, operator); got.State != Used || got.Outcome != "success" {
		t.Errorf("%+v", got)
	}
	if again := s.must(t, of("alice-id", 1)); again.ID == r.ID || again.State != Pending {
		t.Errorf("what was used is asked for anew as %+v", again)
	}
}

func TestWhoDecides(t *testing.T) {
	s := open(t, t.TempDir())
	for _, c := range []struct {
		name string
		self bool
		by   []string
		who  Person
		err  error
	}{
		{"the operator", false, nil, operator, nil},
		{"who is named", false, []string{"sub:bob"}, bob, nil},
		{"who is not named", false, []string{"sub:carol"}, bob, ErrNotFound},
		{"nobody is named", false, nil, bob, ErrNotFound},
		{"the asker", false, nil, alice, ErrNotAllowed},
		{"the asker, who is named", false, []string{"sub:alice"}, alice, ErrNotAllowed},
		{"the asker, as the policy says", true, nil, alice, nil},
		{"another where the asker may", true, nil, bob, ErrNotFound},
		{"nobody", true, []string{"sub:bob"}, Person{}, ErrNotFound},
		{"a name without an identity", true, []string{"sub:bob"}, Person{Names: bob.Names}, ErrNotFound},
		{"the asker, whom nothing names", true, nil, Person{ID: "alice-id"}, nil},
	} {
		r := of("alice-id", 0, c.by...)
		r.Self = c.self
		r = s.must(t, r)
		if _, err := s.Decide(r.ID, c.who, true, ""); !errors.Is(err, c.err) && err != c.err {
			t.Errorf("%s: %v, not %v", c.name, err, c.err)
		}
		if sees := slices.ContainsFunc(s.List(c.who), func(o Request) bool { return o.ID == r.ID }); sees != (c.err != ErrNotFound) {
			t.Errorf("%s sees it: %v", c.name, sees)
		}
		// So that the next asks anew.
		s.Lapse(func(*Request) string { return "the next one" })
		if g, _ := s.Use(r.Steps[0].Digest, "x"); g != nil {
			t.Errorf("%s: used after it lapsed", c.name)
		}
	}
}

// A caller that is bound to a session of another and its owner both see what it asks
// for, and neither decides it.
func TestOwnerSees(t *testing.T) {
	s := open(t, t.TempDir())
	r := of("bound-id", 1)
	r.Owner = "alice-id"
	r = s.must(t, r)
	for _, who := range []Person{alice, {ID: "bound-id"}} {
		if got, err := s.Get(r.ID, who); err != nil || got.ID != r.ID {
			t.Errorf("%s does not see it: %v", who.ID, err)
		}
		if _, err := s.Decide(r.ID, who, true, ""); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s decides it: %v", who.ID, err)
		}
	}
	if _, err := s.Get(r.ID, bob); !errors.Is(err, ErrNotFound) {
		t.Errorf("bob sees it: %v", err)
	}
	if _, err := s.Decide(r.ID, operator, true, strings.Repeat("x", MaxText+1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a long reason: %v", err)
	}
}

// A request whose time is over is so for whoever looks next, whatever it looks for.
func TestExpiryIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, look := range map[string]func(s *Store, id string) State{
			"list": func(s *Store, _ string) State { return s.List(operator)[0].State },
			"ask": func(s *Store, id string) State {
				if s.must(t, of("alice-id", 1)).ID != id {
					return Expired
				}
				return Pending
			},
			"lapse": func(s *Store, id string) State {
				s.Lapse(func(*Request) string { return "another version" })
				r, _ := s.Get(id, operator)
				return r.State
			},
		} {
			s := open(t, t.TempDir())
			id := s.must(t, of("alice-id", 1)).ID
			time.Sleep(time.Minute)
			if got := look(s, id); got != Expired {
				t.Errorf("%s: %s", name, got)
			}
		}
		s := open(t, t.TempDir())
		ran, left := s.must(t, of("alice-id", 1)), s.must(t, of("alice-id", 2))
		s.Decide(ran.ID, operator, true, "")
		if g, err := s.Use(ran.Steps[0].Digest, "x"); g == nil || err != nil {
			t.Fatal(g, err)
		}
		waited := make(chan State)
		go func() {
			r, _ := s.Wait(t.Context(), left.ID)
			waited <- r.State
		}()
		synctest.Wait()
		s.Close() // what is over is so, whether or not that can be written
		if got := <-waited; got != Expired {
			t.Errorf("whoever waits gets %s", got)
		}
		if r, _ := s.Get(ran.ID, operator); r.State != Used {
			t.Errorf("what ran is %s", r.State)
		}
	})
}

// Whoever watches is told each change once, in order, with what goes with it.
func TestChangesAreTold(t *testing.T) {
	var told []string
	s, err := Open(Config{Dir: t.TempDir(), OnChange: func(r Request) {
		told = append(told, fmt.Sprintf("%s %s%s", r.State, r.Reason, r.Outcome))
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := s.must(t, of("alice-id", 1))
	s.must(t, of("alice-id", 1)) // the same
	s.Decide(a.ID, operator, true, "fine")
	s.Lapse(func(*Request) string { return "another version" })
	if want := "pending |approved fine|lapsed another version"; strings.Join(told, "|") != want {
		t.Errorf("%q, want %q", told, want)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Ask(of("alice-id", 2), time.Minute); !errors.Is(err, ErrUnavailable) {
		t.Errorf("asked of a store that is closed: %v", err)
	}
	if err := (*Store)(nil).Close(); err != nil {
		t.Error(err)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		pending, approved, denied := s.must(t, of("alice-id", 1)), s.must(t, of("alice-id", 2)), s.must(t, of("alice-id", 3))
		s.Decide(approved.ID, operator, true, "")
		s.Decide(denied.ID, operator, false, "no")
		if r := s.must(t, of("alice-id", 3)); r.ID != denied.ID || r.State != Denied || r.Reason != "no" {
			t.Errorf("what was denied is asked for anew: %+v", r)
		}
		waited := make(chan Request, 1)
		go func() {
			r, _ := s.Wait(t.Context(), pending.ID)
			waited <- r
		}()
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		select {
		case r := <-waited:
			t.Fatalf("it waits no longer: %+v", r)
		default:
		}
		time.Sleep(time.Nanosecond)
		if r := <-waited; r.State != Expired {
			t.Errorf("%+v", r)
		}
		for _, r := range []Request{pending, approved} {
			if _, err := s.Decide(r.ID, operator, true, ""); !errors.Is(err, ErrState) {
				t.Errorf("decided after its time: %v", err)
			}
			if g, err := s.Use(r.Steps[0].Digest, "x"); g != nil || err != nil {
				t.Errorf("used after its time: %v %v", g, err)
			}
		}
		if r := s.must(t, of("alice-id", 3)); r.ID == denied.ID {
			t.Error("denied for ever")
		}
	})
}

// What was asked and decided is there after a restart; a clock that was set back
// makes nothing younger.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		a, b, c := s.must(t, of("alice-id", 1)), s.must(t, of("alice-id", 2)), s.must(t, of("alice-id", 3))
		s.Decide(b.ID, operator, true, "fine")
		s.Decide(c.ID, operator, true, "")
		if g, err := s.Use(c.Steps[0].Digest, "x"); g == nil || err != nil {
			t.Fatal(g, err)
		}
		// No Close: the process was killed.
		s = open(t, dir)
		for id, want := range map[string]State{a.ID: Pending, b.ID: Approved, c.ID: Used} {
			if r, err := s.Get(id, operator); err != nil || r.State != want {
				t.Errorf("%s: %v, %v", want, r.State, err)
			}
		}
		if g, _ := s.Use(c.Steps[0].Digest, "y"); g != nil {
			t.Error("used twice, over a restart")
		}
		g, _ := s.Use(b.Steps[0].Digest, "y")
		if g == nil {
			t.Fatal("an approval is lost")
		}
		g.End("success")
		s = open(t, dir)
		if r, err := s.Get(b.ID, operator); err != nil || r.State != Used || r.UsedBy != "y" || r.Outcome != "success" {
			t.Errorf("what ran is %+v, %v", r, err)
		}
	})
	dir := t.TempDir()
	s := open(t, dir)
	var later []byte
	for i, state := range []State{Pending, Approved, Denied, Used} {
		r := of("alice-id", i)
		r.ID, r.State, r.Made = fmt.Sprint(i), state, time.Now().Add(time.Hour)
		r.Expires = r.Made.Add(time.Minute)
		if state != Pending {
			r.Decider = Operator
		}
		if state == Used {
			r.UsedBy, r.Began = "x", 1
		}
		l, err := encodeLine(line{Ask: &r})
		if err != nil {
			t.Fatal(err)
		}
		later = append(later, l...)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, fileName), later, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range open(t, dir).List(operator) {
		if r.State != Expired && r.UsedBy == "" || r.UsedBy != "" && r.State != Used {
			t.Errorf("made an hour from now, and %s", r.State)
		}
	}
	// A clock that is set back while the process runs does not move the end of a request.
	s = open(t, t.TempDir())
	s.must(t, of("alice-id", 1))
	if end := open(t, s.config.Dir).List(operator)[0].Expires; !strings.Contains(end.String(), " m=") {
		t.Errorf("its end %v is of the clock on the wall", end)
	}
}

func TestBounds(t *testing.T) {
	s := open(t, quickDir(t))
	for n := range MaxOpenOf {
		s.must(t, of("alice-id", n))
	}
	if _, err := s.Ask(of("alice-id", 99), time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("%d of one identity: %v", MaxOpenOf+1, err)
	}
	bound := of("bound-to-alice", 99)
	bound.Owner = "alice-id"
	if _, err := s.Ask(bound, time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("one that is bound to a session of it: %v", err)
	}
	for n := MaxOpenOf; n < MaxOpen; n++ {
		s.must(t, of(fmt.Sprint("other-", n), 0))
	}
	if _, err := s.Ask(of("yet-another", 0), time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("%d: %v", MaxOpen+1, err)
	}
	if len(s.List(alice)) != MaxOpenOf {
		t.Errorf("alice sees %d", len(s.List(alice)))
	}
	for name, change := range map[string]func(*Request){
		"too much to read": func(r *Request) { r.Steps[0].Plan = json.RawMessage(`"` + strings.Repeat("x", MaxPlan) + `"`) },
		"a long text":      func(r *Request) { r.Text = strings.Repeat("x", MaxText+1) },
		"no name":          func(r *Request) { r.By = []string{""} },
		"no digest":        func(r *Request) { r.Steps[0].Digest = "" },
		"no call":          func(r *Request) { r.Steps = nil },
		"two calls":        func(r *Request) { r.Steps = append(r.Steps, r.Steps[0]) },
		"no plan":          func(r *Request) { r.Steps[0].Plan = nil },
		"no tool":          func(r *Request) { r.Steps[0].Tool = "" },
		"nobody who asks":  func(r *Request) { r.Asker = "" },
		"nobody's session": func(r *Request) { r.Owner = "" },
		"a long rule":      func(r *Request) { r.Rule = strings.Repeat("x", MaxText+1) },
		"a long name":      func(r *Request) { r.By = []string{strings.Repeat("x", MaxText+1)} },
		"many who decide":  func(r *Request) { r.By = slices.Repeat([]string{"sub:bob"}, MaxBy+1) },
		"many calls":       func(r *Request) { r.Batch, r.Steps = true, slices.Repeat(r.Steps, MaxSteps+1) },
		"who decided":      func(r *Request) { r.Decider = Operator },
		"what ran by it":   func(r *Request) { r.UsedBy = "x" },
		"how much ran":     func(r *Request) { r.Began = 1 },
	} {
		r := of("somebody", 0)
		change(&r)
		if _, err := s.Ask(r, time.Minute); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ttl := range []time.Duration{0, MinTTL - 1, MaxTTL + 1} {
		if _, err := s.Ask(of("somebody", 0), ttl); !errors.Is(err, ErrInvalid) {
			t.Errorf("for %v: %v", ttl, err)
		}
	}
}

// The file and what is remembered stay small, however many are asked and decided,
// and what is open survives that the file is written anew.
func TestFileStaysSmall(t *testing.T) {
	dir := quickDir(t)
	s := open(t, dir)
	kept := s.must(t, of("alice-id", 1))
	s.Decide(kept.ID, operator, true, "")
	running := s.must(t, of("alice-id", 2))
	s.Decide(running.ID, operator, true, "")
	grant, err := s.Use(running.Steps[0].Digest, "x")
	if grant == nil || err != nil {
		t.Fatal(grant, err)
	}
	n := 0
	denied := func(times int) {
		t.Helper()
		for range times {
			r := of("bob-id", n)
			n++
			r.Steps[0].Plan = json.RawMessage(`"` + strings.Repeat("x", 20<<10) + `"`)
			r = s.must(t, r)
			if _, err := s.Decide(r.ID, operator, false, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	denied(600)
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(2*(maxClosed+3)*(21<<10) + compactAt); info.Size() > most {
		t.Errorf("the file has %d bytes, over %d", info.Size(), most)
	}
	grant.End("success") // of a request that is older than those that were forgotten
	if r, err := s.Get(running.ID, operator); err != nil || r.Outcome != "success" {
		t.Errorf("what ran is %+v, %v", r, err)
	}
	denied(2)
	if _, err := s.Get(running.ID, operator); !errors.Is(err, ErrNotFound) {
		t.Errorf("what ended long ago is remembered: %v", err)
	}
	if n := len(s.List(operator)); n > maxClosed+3 {
		t.Errorf("%d are remembered", n)
	}
	s = open(t, dir)
	if r, err := s.Get(kept.ID, operator); err != nil || r.State != Approved {
		t.Errorf("what was open is %v, %v", r.State, err)
	}
	if n := len(s.List(operator)); n > maxClosed+3 {
		t.Errorf("%d are remembered", n)
	}
}

// A file that was cut off in its last line is used without it; one that was damaged
// in any other way is set aside, and nothing of it counts.
func TestDamage(t *testing.T) {
	dir := quickDir(t)
	s := open(t, dir)
	a := s.must(t, of("alice-id", 1))
	if _, err := s.Decide(a.ID, operator, true, ""); err != nil {
		t.Fatal(err)
	}
	s.Close()
	path := filepath.Join(dir, fileName)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndexByte(good[:len(good)-1], '\n') + 1
	state := func(b []byte) State {
		t.Helper()
		os.RemoveAll(path + ".damaged")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open(t, dir)
		defer s.Close()
		r, err := s.Get(a.ID, operator)
		if err != nil {
			if _, err := os.Stat(path + ".damaged"); err != nil && len(b) > 0 && bytes.IndexByte(b, '\n') >= 0 {
				t.Errorf("not set aside: %v", err)
			}
			return ""
		}
		// What is written now is read after the next restart.
		s.must(t, of("alice-id", 2))
		if n := len(open(t, dir).List(operator)); n != 2 {
			t.Errorf("%d requests after a line that was cut off", n)
		}
		return r.State
	}
	for cut := last; cut < len(good); cut++ {
		if got := state(good[:cut]); got != Pending {
			t.Fatalf("cut to %d of %d: %q", cut, len(good), got)
		}
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1
		if got := state(b); got == Approved {
			t.Fatalf("a bit of byte %d is another, and it is approved", i)
		}
	}
	// What a crash left of a line goes, however long it is.
	if got := state(append(bytes.Clone(good), bytes.Repeat([]byte("x"), 64<<10)...)); got != Approved {
		t.Errorf("with a long line that was cut off: %q", got)
	}
	ask, change := good[:last], good[last:]
	for name, b := range map[string][]byte{
		"twice":     slices.Concat(good, change),
		"reordered": slices.Concat(change, ask),
		"doubled":   slices.Concat(ask, ask, change),
		"alone":     change,
	} {
		if got := state(b); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestPipeForAFile: what is no file is set aside as one that is damaged, and nobody waits
// for its other end.
func TestPipeForAFile(t *testing.T) {
	dir := quickDir(t)
	path := filepath.Join(dir, fileName)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	defer s.Close()
	if info, err := os.Lstat(path + ".damaged"); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("not set aside: %v, %v", info, err)
	}
	s.must(t, of("alice-id", 1))
}

// Of all that might follow a state only what is listed does, for what is asked of a
// store and for what its file says.
func TestWhatFollows(t *testing.T) {
	follows := map[State]string{
		Pending: "approved denied expired lapsed", Approved: "expired lapsed used", Denied: "expired",
		Used: "used 2 of 2, used with an outcome", Expired: "", Lapsed: "",
	}
	changes := map[string]change{
		"approved": {State: Approved, Decider: Operator}, "denied": {State: Denied, Decider: Operator},
		"approved by nobody": {State: Approved}, "denied by nobody": {State: Denied},
		"expired": {State: Expired}, "lapsed": {State: Lapsed}, "pending": {State: Pending}, "unheard": {State: "unheard"},
		"used": {State: Used, Execution: "x", Began: 1}, "used by nothing": {State: Used, Began: 1},
		"used 2 of 2": {State: Used, Execution: "x", Began: 2}, "used 3 of 2": {State: Used, Execution: "x", Began: 3},
		"used 2 by another": {State: Used, Execution: "y", Began: 2},
		"used 0":            {State: Used, Execution: "x"}, "used 3 with an outcome": {State: Used, Execution: "x", Began: 3, Outcome: "success"},
		"used by nothing with an outcome": {State: Used, Outcome: "success"},
		"used with an outcome":            {State: Used, Execution: "x", Outcome: "success"}, "used with another's outcome": {State: Used, Execution: "y", Outcome: "success"},
	}
	for state, may := range follows {
		may = " " + strings.NewReplacer("used 2 of 2", "used-2-of-2", "used with an outcome", "used-with-an-outcome", ",", "").Replace(may) + " "
		for name, c := range changes {
			r := of("alice-id", 1)
			r.Batch, r.Steps, r.State = true, append(r.Steps, of("alice-id", 2).Steps...), state
			if state == Used {
				r.UsedBy, r.Began = "x", 1
			}
			next, err := r.after(&c)
			want := strings.Contains(may, " "+strings.ReplaceAll(name, " ", "-")+" ")
			if (err == nil) != want || err != nil && !errors.Is(err, ErrState) || want && next.State != c.State || !want && next.State != state {
				t.Errorf("%s, then %s: %s, %v", state, name, next.State, err)
			}
		}
	}
	whole := of("alice-id", 1)
	whole.State, whole.UsedBy, whole.Began = Used, "x", 1
	if _, err := whole.after(&change{State: Used, Execution: "x", Began: 2}); !errors.Is(err, ErrState) {
		t.Errorf("a call past the end: %v", err)
	}
	done := of("alice-id", 1)
	done.State, done.UsedBy, done.Began, done.Outcome = Used, "x", 1, "success"
	if _, err := done.after(&change{State: Used, Execution: "x", Outcome: "failed"}); !errors.Is(err, ErrState) {
		t.Errorf("a second outcome: %v", err)
	}
}

// What cannot be written does not happen, and works again once it can be.
func TestDiskFails(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	a, b := s.must(t, of("alice-id", 1)), s.must(t, of("alice-id", 2))
	for _, r := range []Request{a, b} {
		if _, err := s.Decide(r.ID, operator, true, ""); err != nil {
			t.Fatal(err)
		}
	}
	c := s.must(t, of("alice-id", 3))
	writable := s.file.f
	readOnly, err := os.Open(s.file.path)
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	s.file.f = readOnly
	if g, err := s.Use(a.Steps[0].Digest, "x"); g != nil || !errors.Is(err, ErrUnavailable) {
		t.Errorf("used: %v %v", g, err)
	}
	if _, err := s.Decide(c.ID, operator, true, ""); !errors.Is(err, ErrUnavailable) {
		t.Errorf("decided: %v", err)
	}
	if _, err := s.Ask(of("alice-id", 4), time.Minute); !errors.Is(err, ErrUnavailable) {
		t.Errorf("asked: %v", err)
	}
	s.file.f = writable
	if g, err := s.Use(a.Steps[0].Digest, "x"); g != nil || err != nil {
		t.Errorf("an approval whose use may be on the disk is used again: %v %v", g, err)
	}
	if r, _ := s.Get(c.ID, operator); r.State != Pending {
		t.Errorf("approved without a record: %v", r.State)
	}
	if g, err := s.Use(b.Steps[0].Digest, "x"); g == nil || err != nil {
		t.Errorf("another one: %v %v", g, err)
	}
	if n := len(open(t, dir).List(operator)); n != 3 {
		t.Errorf("%d after a restart", n)
	}
}

// What is answered is on the disk: where it cannot be synced, nothing is asked for,
// approved or used, and no further call of a list begins.
func TestDiskCannotSync(t *testing.T) {
	s := open(t, t.TempDir())
	list := of("alice-id", 5)
	list.Batch, list.Steps = true, append(list.Steps, of("alice-id", 6).Steps...)
	pending, approved, batch := s.must(t, of("alice-id", 1)), s.must(t, of("alice-id", 2)), s.must(t, list)
	for _, r := range []Request{approved, batch} {
		if _, err := s.Decide(r.ID, operator, true, ""); err != nil {
			t.Fatal(err)
		}
	}
	running, err := s.UseBatch(batch.ID, "alice-id", digestOf("alice-id", 5), "x")
	if running == nil || err != nil {
		t.Fatal(running, err)
	}
	// It takes what is written, and says of a sync that there is no such thing.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	disk := s.file.f
	for what, try := range map[string]func() error{
		"asked":    func() error { _, err := s.Ask(of("alice-id", 3), time.Minute); return err },
		"approved": func() error { _, err := s.Decide(pending.ID, operator, true, ""); return err },
		"used": func() error {
			g, err := s.Use(approved.Steps[0].Digest, "x")
			if g != nil {
				t.Error("it may run")
			}
			return err
		},
		"the next of a list": func() error { return running.Next(digestOf("alice-id", 6)) },
	} {
		s.file.f, s.file.torn = null, false
		if err := try(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		s.file.f = disk
		if err := s.file.mend(); err != nil {
			t.Fatal(err)
		}
	}
	if r, _ := s.Get(pending.ID, operator); r.State != Pending {
		t.Errorf("it is %s", r.State)
	}
}

func TestBatch(t *testing.T) {
	s := open(t, t.TempDir())
	plan := func() Request {
		r := of("alice-id", 1)
		r.Batch = true
		for n := 2; n <= 3; n++ {
			r.Steps = append(r.Steps, of("alice-id", n).Steps...)
		}
		return r
	}
	r := s.must(t, plan())
	s.Decide(r.ID, operator, true, "")
	if g, _ := s.Use(digestOf("alice-id", 1), "x"); g != nil {
		t.Error("a call of a list is used alone")
	}
	alone := s.must(t, of("alice-id", 1))
	s.Decide(alone.ID, operator, true, "")
	if g, _ := s.UseBatch(alone.ID, "alice-id", digestOf("alice-id", 1), "x"); g != nil {
		t.Error("a call alone is used as a list")
	}
	single := of("alice-id", 1)
	single.Batch = true
	if s.must(t, single).ID == alone.ID {
		t.Error("a list of one call is that call")
	}
	if g, _ := s.UseBatch(r.ID, "bob-id", digestOf("alice-id", 1), "x"); g != nil {
		t.Error("a list is used by another")
	}
	other := plan()
	other.Steps = other.Steps[:2]
	if g, _ := s.UseBatch(s.must(t, other).ID, "alice-id", digestOf("alice-id", 1), "x"); g != nil {
		t.Error("a list is used by the approval of another that begins as it does")
	}
	if g, _ := s.UseBatch(r.ID, "alice-id", digestOf("alice-id", 2), "x"); g != nil {
		t.Error("a list is begun in the middle")
	}
	g, err := s.UseBatch(r.ID, "alice-id", digestOf("alice-id", 1), "x")
	if g == nil || err != nil {
		t.Fatal(g, err)
	}
	if err := g.Next(digestOf("alice-id", 3)); !errors.Is(err, ErrState) {
		t.Errorf("one was left out: %v", err)
	}
	if err := g.Next(digestOf("alice-id", 2)); err != nil {
		t.Error(err)
	}
	if err := g.Next(digestOf("alice-id", 2)); !errors.Is(err, ErrState) {
		t.Errorf("one runs twice: %v", err)
	}
	if err := g.Next(digestOf("alice-id", 3)); err != nil {
		t.Error(err)
	}
	if err := g.Next(digestOf("alice-id", 3)); !errors.Is(err, ErrState) {
		t.Errorf("past the end: %v", err)
	}
	g.End("success")
	if g, _ := s.UseBatch(r.ID, "alice-id", digestOf("alice-id", 1), "y"); g != nil {
		t.Error("a list runs twice")
	}
}

// TestSchedules holds the store to its promise in 500 schedules of askers, deciders,
// uses that race, time that passes and processes that are killed, also in the middle
// of a write: nothing runs but by an approval of exactly that, by who may, in its
// time, and nothing runs twice by one.
func TestSchedules(t *testing.T) {
	ran := 0
	for seed := range uint64(500) {
		synctest.Test(t, func(t *testing.T) { ran += schedule(t, seed) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if ran < 500 {
		t.Errorf("%d calls ran in all: nothing is tried", ran)
	}
}

type model struct {
	digest   string
	expires  time.Time
	by       []string
	approved bool // by a call that was answered, or may have been
	ran      int
	ended    bool // denied, or lapsed
}

// schedule is one schedule. It returns how many calls ran.
func schedule(t *testing.T, seed uint64) (ran int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := quickDir(t)
	s := open(t, dir)
	defer func() { s.Close() }()
	path := filepath.Join(dir, fileName)
	known := map[string]*model{}
	use := func(digest string) {
		g, err := s.Use(digest, "x")
		if err != nil || g == nil {
			return
		}
		m := known[g.ID]
		switch {
		case m == nil:
			t.Errorf("it runs by an unknown request")
			return
		case !m.approved || m.ended:
			t.Errorf("it runs, and nobody approved it")
		case m.digest != digest:
			t.Errorf("it runs by an approval of something else")
		case !time.Now().Before(m.expires):
			t.Errorf("it runs after its time")
		}
		ran++
		if m.ran++; m.ran > 1 {
			t.Errorf("it runs twice")
		}
		if rng.IntN(2) == 0 {
			g.End("success")
		}
	}
	ids := func() (out []string) {
		for id := range known {
			out = append(out, id)
		}
		slices.Sort(out) // by chance alone: ids are random
		return append(out, "guessed")
	}
	step := func() {
		asker := []string{"alice-id", "bob-id"}[rng.IntN(2)]
		digest := digestOf(asker, rng.IntN(3))
		switch rng.IntN(8) {
		case 0, 1:
			r := of(asker, 0, "sub:bob")
			r.Steps[0].Digest = digest
			if r, err := s.Ask(r, time.Duration(1+rng.IntN(60))*time.Second); err == nil && known[r.ID] == nil {
				known[r.ID] = &model{digest: digest, expires: r.Expires, by: r.By}
			}
		case 2, 3, 4:
			who := []Person{operator, alice, bob}[rng.IntN(3)]
			all := ids()
			id, approve := all[rng.IntN(len(all))], rng.IntN(3) > 0
			r, err := s.Decide(id, who, approve, "")
			m := known[id]
			if err != nil {
				return
			}
			if m == nil || m.approved || m.ended || !time.Now().Before(m.expires) {
				t.Errorf("decided as %s: %+v", r.State, m)
				return
			}
			if who.ID == alice.ID || who.ID == bob.ID && r.Asker == bob.ID {
				t.Errorf("decided by who may not")
			}
			m.approved, m.ended = approve, !approve
		case 5:
			use(digest)
		case 6:
			time.Sleep(time.Duration(rng.IntN(20)) * time.Second)
		case 7:
			all := ids()
			id := all[rng.IntN(len(all))]
			s.Lapse(func(r *Request) string {
				if r.ID == id {
					known[id].ended = true
					return "another version"
				}
				return ""
			})
		}
	}
	for range 150 {
		switch rng.IntN(12) {
		case 0: // several at the same time
			digest := digestOf("alice-id", rng.IntN(3))
			var mu sync.Mutex
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { mu.Lock(); defer mu.Unlock(); use(digest) })
			}
			all.Wait()
		case 1: // killed: what was not answered is there or not
			before, _ := os.ReadFile(path)
			was := map[string]model{}
			for id, m := range known {
				was[id] = *m
			}
			step()
			after, _ := os.ReadFile(path)
			s.Close()
			if len(after) > len(before) {
				after = after[:len(before)+rng.IntN(len(after)-len(before)+1)]
				if len(after) < len(before)+1 {
					after = before
				}
				// What ran had its answer: the whole of it is on the disk.
				for id, m := range known {
					if m.ran > was[id].ran {
						after, _ = os.ReadFile(path)
					}
				}
				// A lapse needs no sync, and what lapsed has another digest.
				for id, m := range known {
					if m.ended && !was[id].ended {
						m.ended = false
						if was[id].approved {
							m.approved = true
						}
					}
					if m.approved && !was[id].approved {
						m.approved = true // or not: either is right
					}
				}
				if err := os.WriteFile(path, after, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s = open(t, dir)
			for id, m := range known {
				r, err := s.Get(id, operator)
				if err != nil { // its line was cut off, or it was forgotten
					if m.approved && time.Now().Before(m.expires) && was[id].approved && m.ran == 0 {
						t.Errorf("an approval that was answered is lost")
					}
					delete(known, id)
					continue
				}
				m.approved = r.State == Approved || r.State == Used || m.approved && r.State != Pending
				m.ended = r.State == Denied || r.State == Lapsed
				if m.ran > 0 && r.State == Approved {
					t.Errorf("what ran can run again after a crash")
				}
			}
		default:
			step()
		}
	}
	return ran
}

func TestWaitEnds(t *testing.T) {
	s := open(t, t.TempDir())
	r := s.must(t, of("alice-id", 1))
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	cancel(left)
	if _, err := s.Wait(ctx, r.ID); err != left {
		t.Errorf("%v", err)
	}
	if _, err := s.Wait(t.Context(), "guessed"); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	ending := make(chan error, 1)
	other := s.must(t, of("alice-id", 2))
	go s.Decide(r.ID, operator, true, "")
	if got, err := s.Wait(t.Context(), r.ID); err != nil || got.State != Approved {
		t.Errorf("%v %v", got.State, err)
	}
	go func() {
		_, err := s.Wait(t.Context(), other.ID)
		ending <- err
	}()
	s.EndWaits()
	s.EndWaits()
	if err := <-ending; !errors.Is(err, ErrEnding) {
		t.Errorf("%v", err)
	}
	if got, err := s.Get(other.ID, operator); err != nil || got.State != Pending {
		t.Errorf("%v %v", got.State, err)
	}
}

func FuzzDecode(f *testing.F) {
	r := of("alice-id", 1, "sub:bob")
	r.ID, r.State, r.Made = "a", Pending, time.Unix(1e9, 0).UTC()
	r.Expires = r.Made.Add(time.Minute)
	var file []byte
	for _, l := range []line{{Ask: &r}, {Change: &change{ID: "a", At: r.Made, State: Approved, Decider: Operator}}, {Change: &change{ID: "a", At: r.Made, State: Used, Execution: "x", Began: 1}}} {
		b, err := encodeLine(l)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(slices.Clone(file), b)
		file = append(file, b...)
	}
	f.Add(file, []byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		b := slices.Concat(head, tail)
		list, whole, err := decode(b)
		if err != nil {
			if list != nil || whole != 0 {
				t.Fatal("something of a damaged file counts")
			}
			return
		}
		if whole > len(b) || bytes.IndexByte(b[whole:], '\n') >= 0 {
			t.Fatalf("%d of %d bytes are whole", whole, len(b))
		}
		var again []byte
		for _, r := range list {
			l, err := encodeLine(line{Ask: r})
			if err != nil {
				return // over the limit as one line
			}
			again = append(again, l...)
			if r.State == Used && r.Decider == "" {
				t.Fatal("used, and nobody approved it")
			}
		}
		if same, n, err := decode(again); err != nil || n != len(again) || len(same) != len(list) {
			t.Fatalf("written anew: %v", err)
		}
	})
}

// What is wrong with a store as it is opened is said, whether its opener has a log or not.
func TestOpenSays(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	for _, own := range []bool{false, true} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte("nothing of ours\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var said, other bytes.Buffer
		c := Config{Dir: dir}
		slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
		if own {
			slog.SetDefault(slog.New(slog.NewTextHandler(&other, nil)))
			c.Logger = slog.New(slog.NewTextHandler(&said, nil))
		}
		s, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := said.String(); !strings.Contains(got, "what was approved is asked for again") || !strings.Contains(got, filepath.Join(dir, fileName+".damaged")) || other.Len() > 0 {
			t.Errorf("a log of its own: %v: %q, %q", own, got, other.String())
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: file})
	if s != nil || err == nil || !strings.HasPrefix(err.Error(), "open the store of approvals in "+file+": ") || !strings.Contains(err.Error(), "; check the folder, or move it away") {
		t.Errorf("%v, %v", s, err)
	}
}
