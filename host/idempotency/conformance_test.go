package idempotency

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// subject is a store under test. age shifts the times of a record, since Redis
// has no clock that a test could set.
type subject struct {
	store
	age func(t testing.TB, i id, by time.Duration)
}

func memorySubject(t testing.TB) subject {
	m := newMemory(1000, 1<<20, func(string) {})
	return subject{m, func(t testing.TB, i id, by time.Duration) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if e := m.records[i]; e != nil {
			r := e.record
			r.shift(by)
			m.putLocked(e, &r)
		}
	}}
}

func (r *record) shift(by time.Duration) {
	ms := by.Milliseconds()
	for _, at := range []*int64{&r.ExpiresAt, &r.ClaimedAt, &r.EndedAt, &r.LeaseUntil} {
		if *at != 0 {
			*at -= ms
		}
	}
}

func fileSubject(t testing.TB) subject {
	f, err := openFile(filepath.Join(t.TempDir(), "s.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	return subject{f, func(t testing.TB, i id, by time.Duration) {
		err := f.update(context.Background(), func(t *tx) error {
			r, err := t.read(i.String())
			if err == nil && r != nil {
				r.shift(by)
				err = t.write(i.String(), r)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}}
}

// redisSubject is a store on server, whose records are shifted there.
func redisSubject(server *server, s *redisStore) subject {
	return subject{s, func(t testing.TB, i id, by time.Duration) {
		const script = `
			if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
			for _, f in ipairs({'expiresAt', 'claimedAt', 'endedAt', 'leaseUntil'}) do
				if redis.call('HEXISTS', KEYS[1], f) == 1 then redis.call('HINCRBY', KEYS[1], f, -ARGV[1]) end
			end
			local left = redis.call('PTTL', KEYS[1]) - ARGV[1]
			if left > 0 then redis.call('PEXPIRE', KEYS[1], left) else redis.call('DEL', KEYS[1]) end
			return 1`
		if err := server.Eval(context.Background(), script, []string{i.String()}, by.Milliseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}}
}

// each runs a test on every store.
func each(t *testing.T, f func(t *testing.T, s subject)) {
	t.Run("memory", func(t *testing.T) { f(t, memorySubject(t)) })
	t.Run("file", func(t *testing.T) { f(t, fileSubject(t)) })
	t.Run("redis", func(t *testing.T) {
		server := startRedis(t, durable...)
		f(t, redisSubject(server, openRedisAt(t, server.url(""))))
	})
}

const (
	testLease = time.Minute
	testTTL   = 10 * time.Minute
)

func testClaim(owner string) claimRequest {
	return claimRequest{owner: owner, payload: "p", ttl: testTTL.Milliseconds(), lease: testLease.Milliseconds(), label: "label of " + owner}
}

// steps wraps a store with short assertions.
type steps struct {
	*testing.T
	subject
	id id
}

func (s steps) claims(c claimRequest, want verdict) *record {
	s.Helper()
	r, _, v, err := s.claim(s.Context(), s.id, c)
	if err != nil || v != want {
		s.Fatalf("claim by %s: verdict %d, %v; want %d", c.owner, v, err, want)
	}
	return r
}

func (s steps) ends(e completion, want verdict) {
	s.Helper()
	if v, err := s.complete(s.Context(), s.id, e); err != nil || v != want {
		s.Fatalf("end by %s: verdict %d, %v; want %d", e.owner, v, err, want)
	}
}

func (s steps) resolves(x resolution, want verdict) {
	s.Helper()
	if v, err := s.resolve(s.Context(), s.id, x); err != nil || v != want {
		s.Fatalf("resolve of %s/%d, done %v: verdict %d, %v; want %d", x.owner, x.fence, x.done, v, err, want)
	}
}

func (s steps) is(want Status, unknown bool) *record {
	s.Helper()
	r, _, err := s.get(s.Context(), s.id)
	switch {
	case err != nil:
		s.Fatal(err)
	case r == nil && want != "":
		s.Fatalf("no record, want %s", want)
	case r != nil && (r.Status != want || r.outcomeUnknown() != unknown):
		s.Fatalf("the record is %s, unknown %v; want %q, %v", r.Status, r.outcomeUnknown(), want, unknown)
	}
	return r
}

func (s steps) ages(by time.Duration) { s.age(s.T, s.id, by) }

func success(owner string, fence int64) completion {
	return completion{owner: owner, fence: fence, status: Completed, result: json.RawMessage(`{"n":1,"html":"<&>"}`)}
}

func failure(owner string, fence int64) completion {
	return completion{owner: owner, fence: fence, status: Failed, result: json.RawMessage(`[]`), err: &Failure{Code: "TOOL_FAILED", Message: "no"}}
}

// TestConformance specifies a store.
func outcomeUnknown(owner string, fence int64) completion {
	return completion{owner: owner, fence: fence, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}}
}

func TestConformance(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(s steps)
	}{
		{"claim and complete", func(s steps) {
			s.is("", false)
			if r := s.claims(testClaim("a"), verdictRun); r.Fence != 1 {
				s.Fatalf("fence %d", r.Fence)
			}
			if r := s.is(Pending, false); r.Label != "label of a" {
				s.Errorf("label %q", r.Label)
			}
			s.claims(testClaim("b"), verdictHeld)
			s.ends(success("a", 1), verdictDone)
			r := s.claims(testClaim("c"), verdictReplay)
			if r.Status != Completed || string(r.Result) != `{"n":1,"html":"<&>"}` || r.Error != nil {
				s.Errorf("%+v", r)
			}
			if d := time.Until(time.UnixMilli(r.ExpiresAt)); d > testTTL || d < testTTL-time.Minute {
				s.Errorf("expires in %v", d)
			}
		}},
		{"a lost reply", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			if r := s.claims(testClaim("a"), verdictRun); r.Fence != 1 {
				s.Errorf("the same claim has fence %d", r.Fence)
			}
			s.ends(success("a", 1), verdictDone)
			s.ends(success("a", 1), verdictDone)
			s.ends(failure("a", 1), verdictDone) // nobody sends this; the first one stands
			s.is(Completed, false)
			again := testClaim("a")
			again.retry = true
			s.claims(again, verdictReplay)
		}},
		{"a late claim of its own failure", func(s steps) {
			c := testClaim("a")
			c.retry = true
			s.claims(c, verdictRun)
			s.ends(failure("a", 1), verdictDone)
			s.claims(c, verdictReplay)
		}},
		{"another payload", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			other := testClaim("b")
			other.payload = "q"
			s.claims(other, verdictReused)
			s.ends(success("a", 1), verdictDone)
			s.claims(other, verdictReused)
			s.ages(testTTL + time.Minute)
			s.claims(other, verdictRun)
		}},
		{"released", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ends(completion{owner: "a", fence: 1, released: true}, verdictDone)
			s.is("", false)
			s.ends(completion{owner: "a", fence: 1, released: true}, verdictDone)
			s.ends(success("a", 1), verdictGone)
			s.claims(testClaim("b"), verdictRun)
			s.ends(completion{owner: "a", fence: 0, released: true}, verdictLate)
			s.ends(completion{owner: "b", fence: 0, released: true}, verdictDone)
			s.is("", false)
		}},
		{"a wrong owner or fence", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ends(success("b", 1), verdictLate)
			s.ends(success("a", 2), verdictLate)
			s.ends(completion{owner: "a", fence: 2, released: true}, verdictLate)
			s.is(Pending, false)
		}},
		{"gone", func(s steps) {
			s.ends(success("a", 1), verdictGone)
			s.is("", false)
			if v, err := s.renew(s.Context(), s.id, "a", 1, 1000); v != verdictGone || err != nil {
				s.Errorf("renewed: %d, %v", v, err)
			}
			s.is("", false)
		}},
		{"lapsed", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ages(testLease + time.Second)
			s.is(Failed, true)
			s.claims(testClaim("b"), verdictUnknown)
			s.ends(success("a", 1), verdictLate)
			s.ends(completion{owner: "a", fence: 1, status: Failed, err: lapsedFailure()}, verdictDone)
			retry := testClaim("c")
			retry.retry, retry.rerun = true, true
			s.claims(retry, verdictUnknown)
			s.ages(testTTL - 5*time.Second) // the whole of it from its lapse
			s.claims(retry, verdictUnknown)
			s.ages(10 * time.Second)
			s.claims(retry, verdictRun)
		}},
		{"lapsed, and ended before anybody looked", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ages(testLease + time.Second)
			s.ends(success("a", 1), verdictDone)
			s.is(Completed, false)
		}},
		{"lapsed, and renewed before anybody looked", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ages(testLease + time.Second)
			if v, err := s.renew(s.Context(), s.id, "a", 1, testLease.Milliseconds()); v != verdictDone || err != nil {
				s.Fatalf("%d, %v", v, err)
			}
			s.claims(testClaim("b"), verdictHeld)
		}},
		{"renewed", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			for range 20 { // for longer than its time to live
				s.ages(testLease - 5*time.Second)
				if v, err := s.renew(s.Context(), s.id, "a", 1, testLease.Milliseconds()); v != verdictDone || err != nil {
					s.Fatalf("%d, %v", v, err)
				}
				if v, err := s.renew(s.Context(), s.id, "b", 1, testLease.Milliseconds()); v != verdictLate || err != nil {
					s.Fatalf("%d, %v", v, err)
				}
			}
			s.claims(testClaim("b"), verdictHeld)
			s.ends(success("a", 1), verdictDone)
			s.ages(25 * time.Second) // a result outlives the end of a long call by 30 s
			s.claims(testClaim("b"), verdictReplay)
			if v, err := s.renew(s.Context(), s.id, "a", 1, testLease.Milliseconds()); v != verdictLate || err != nil {
				s.Fatalf("%d, %v", v, err)
			}
			s.ages(6 * time.Second)
			s.claims(testClaim("b"), verdictRun)
		}},
		{"taken over", func(s steps) {
			a, b := testClaim("a"), testClaim("b")
			a.rerun, b.rerun = true, true
			s.claims(a, verdictRun)
			s.claims(b, verdictHeld)
			s.ages(testLease + time.Second)
			s.is(Pending, false)
			if r := s.claims(b, verdictTakeOver); r.Fence != 2 {
				s.Errorf("fence %d", r.Fence)
			}
			if v, err := s.renew(s.Context(), s.id, "a", 1, 1000); v != verdictLate || err != nil {
				s.Errorf("%d, %v", v, err)
			}
			s.ends(success("a", 1), verdictLate)
			s.ends(failure("b", 2), verdictDone)
			s.is(Failed, false)
		}},
		{"taken over only when both say that it is safe", func(s steps) {
			a := testClaim("a")
			a.rerun = true
			s.claims(a, verdictRun)
			s.ages(testLease + time.Second)
			s.claims(testClaim("b"), verdictUnknown)
			s.is(Failed, true)
			c := testClaim("c")
			c.rerun = true
			s.claims(c, verdictUnknown)
		}},
		{"failed", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ends(failure("a", 1), verdictDone)
			r := s.claims(testClaim("b"), verdictReplay)
			if r.Status != Failed || r.Error == nil || *r.Error != (Failure{Code: "TOOL_FAILED", Message: "no"}) || string(r.Result) != `[]` {
				s.Errorf("%+v", r)
			}
			retry := testClaim("c")
			retry.retry = true
			if r := s.claims(retry, verdictRetry); r.Fence != 2 {
				s.Errorf("fence %d", r.Fence)
			}
			s.ends(success("a", 1), verdictLate)
			s.ends(failure("c", 2), verdictDone)
			s.ages(29 * time.Second)
			s.claims(testClaim("d"), verdictReplay)
			s.ages(2 * time.Second)
			s.claims(testClaim("d"), verdictRun)
		}},
		{"unknown, as its owner says", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ages(30 * time.Second)
			s.ends(completion{owner: "a", fence: 1, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}}, verdictDone)
			s.ends(completion{owner: "a", fence: 1, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}}, verdictDone)
			s.ages(testTTL - 10*time.Second)
			retry := testClaim("c")
			retry.retry, retry.rerun = true, true
			s.claims(retry, verdictUnknown)
			s.ages(20 * time.Second)
			s.claims(retry, verdictRun)
		}},
		{"too large", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ends(completion{owner: "a", fence: 1, status: Completed, digest: "d1", size: 70_000}, verdictDone)
			if r := s.claims(testClaim("b"), verdictReplay); r.Digest != "d1" || r.Size != 70_000 || r.Result != nil {
				s.Errorf("%+v", r)
			}
		}},
		{"flushed", func(s steps) {
			flushes := func(wantFound, wantFlushed bool) {
				s.Helper()
				if found, flushed, err := s.flush(s.Context(), s.id); err != nil || found != wantFound || flushed != wantFlushed {
					s.Fatalf("found %v, flushed %v, %v", found, flushed, err)
				}
			}
			flushes(false, false)
			s.claims(testClaim("a"), verdictRun)
			flushes(true, false)
			s.is(Pending, false)
			s.ages(testLease + time.Second)
			flushes(true, true) // nobody runs it any more
			s.is("", false)
			s.ends(success("a", 1), verdictGone)
			s.claims(testClaim("b"), verdictRun)
			s.ends(success("b", 1), verdictDone)
			flushes(true, true)
			flushes(false, false)
		}},
		{"listed", func(s steps) {
			for _, i := range []id{{"tool", "a"}, {"tool", "b"}, {"tool", "released"}, {"too", "x"}, {"tool2", "x"}, {"to*", "x"}} {
				at := s
				at.id = i
				at.claims(testClaim("o"), verdictRun)
				if i.key == "released" {
					at.ends(completion{owner: "o", fence: 1, released: true}, verdictDone)
				}
				if i.key == "b" {
					at.ages(testLease + time.Second)
				}
			}
			var got []string
			err := s.list(s.Context(), "tool", func(key string, r *record) bool {
				got = append(got, fmt.Sprintf("%s %s %v", key, r.Status, r.outcomeUnknown()))
				return true
			})
			slices.Sort(got)
			if err != nil || !slices.Equal(got, []string{"a PENDING false", "b FAILED true"}) {
				s.Errorf("%q, %v", got, err)
			}
			n := 0
			if err := s.list(s.Context(), "tool", func(string, *record) bool { n++; return false }); err != nil || n != 1 {
				s.Errorf("asked to stop, it listed %d, %v", n, err)
			}
			if err := s.list(s.Context(), "to*", func(key string, r *record) bool { n++; return true }); err != nil || n != 2 {
				s.Errorf("a scope that is a pattern: %d, %v", n, err)
			}
		}},
		{"resolve the record that was looked into, and no other", func(s steps) {
			was := func(owner string, fence int64, done bool) resolution {
				x := resolution{owner: owner, fence: fence, done: done}
				if done {
					x.result = json.RawMessage(`"found"`)
				}
				return x
			}
			s.resolves(was("a", 1, true), verdictGone)
			s.claims(testClaim("a"), verdictRun)
			s.resolves(was("a", 1, false), verdictLate) // it runs
			s.ends(outcomeUnknown("a", 1), verdictDone)
			for _, done := range []bool{false, true} {
				s.resolves(was("b", 1, done), verdictLate)
				s.resolves(was("a", 2, done), verdictLate)
			}
			s.is(Failed, true)
			s.resolves(was("a", 1, false), verdictDone)
			s.is("", false)
			s.resolves(was("a", 1, true), verdictGone)
			// Of two that looked into it the slower one finds another's call.
			s.claims(testClaim("b"), verdictRun)
			s.resolves(was("a", 1, true), verdictLate)
			s.is(Pending, false)
			s.ends(outcomeUnknown("b", 1), verdictDone)
			s.resolves(was("a", 1, true), verdictLate)
			s.resolves(was("a", 1, false), verdictLate)
			s.is(Failed, true)
			s.resolves(was("b", 1, true), verdictDone)
			s.resolves(was("b", 1, false), verdictLate)
			if r := s.is(Completed, false); string(r.Result) != `"found"` || r.Note != nil {
				s.Errorf("%+v", r)
			}
		}},
		{"resolve what was lost, and nothing that runs again", func(s steps) {
			s.claims(testClaim("a"), verdictRun)
			s.ages(testLease + time.Second)
			s.resolves(resolution{owner: "b", fence: 1}, verdictLate)
			s.resolves(resolution{owner: "a", fence: 1}, verdictDone)
			again := testClaim("a")
			again.rerun = true
			s.claims(again, verdictRun)
			s.ages(testLease + time.Second)
			s.resolves(resolution{owner: "a", fence: 1}, verdictLate)
			again.owner = "b"
			s.claims(again, verdictTakeOver)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, s subject) { tt.do(steps{t, s, id{"tool", "k"}}) })
		})
	}
}

// TestScriptsAgree runs the same random operations on the three stores and
// compares the results: the state machine exists in Go and in Lua.
func TestScriptsAgree(t *testing.T) {
	names := []string{"memory", "file", "redis"}
	server := startRedis(t, "--save", "")
	subjects := []subject{memorySubject(t), fileSubject(t), redisSubject(server, openRedisAt(t, server.url("")))}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	ctx := t.Context()
	seen := map[string]int{}
	for round := range 60 {
		i := id{"tool", fmt.Sprint("k", round)}
		generation := 0
		for step := range 60 {
			owner := fmt.Sprint(string(rune('a'+rnd.IntN(3))), generation)
			fence := rnd.Int64N(4)
			var do func(s subject) string
			switch n := rnd.IntN(12); {
			case n < 5:
				c := testClaim(owner)
				c.note = json.RawMessage([]string{"", `{"c":1}`}[rnd.IntN(2)])
				if len(c.note) == 0 {
					c.note = nil
				}
				c.rerun, c.retry = rnd.IntN(2) == 0, rnd.IntN(2) == 0
				if rnd.IntN(8) == 0 {
					c.payload = "other"
				}
				do = func(s subject) string {
					r, _, v, err := s.claim(ctx, i, c)
					return fmt.Sprintf("claim %+v: %d %s %d %v", c, v, r.Status, r.Fence, err)
				}
			case n < 8:
				e := []completion{
					success(owner, fence), failure(owner, fence), {owner: owner, fence: fence, released: true},
					{owner: owner, fence: fence, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}},
					{owner: owner, fence: fence, status: Completed, digest: "d", size: 9},
				}[rnd.IntN(5)]
				do = func(s subject) string {
					v, err := s.complete(ctx, i, e)
					return fmt.Sprintf("end %+v: %d %v", e, v, err)
				}
			case n == 8:
				do = func(s subject) string {
					v, err := s.renew(ctx, i, owner, fence, testLease.Milliseconds())
					return fmt.Sprintf("renew %s %d: %d %v", owner, fence, v, err)
				}
			case n == 9 && rnd.IntN(3) == 0:
				do = func(s subject) string {
					v, err := s.annotate(ctx, i, owner, fence, json.RawMessage(`{"a":1}`))
					return fmt.Sprintf("note %s %d: %d %v", owner, fence, v, err)
				}
			case n == 9 && rnd.IntN(2) == 0:
				x := []resolution{{owner: owner, fence: fence}, {owner: owner, fence: fence, done: true, result: json.RawMessage(`1`)}, {owner: owner, fence: fence, done: true, digest: "d", size: 9}}[rnd.IntN(3)]
				do = func(s subject) string {
					v, err := s.resolve(ctx, i, x)
					return fmt.Sprintf("resolve %+v: %d %v", x, v, err)
				}
			case n == 9:
				do = func(s subject) string {
					found, flushed, err := s.flush(ctx, i)
					return fmt.Sprintf("flush: %v %v %v", found, flushed, err)
				}
			case n < 11:
				by := []time.Duration{31 * time.Second, 61 * time.Second, testTTL + 7*time.Second}[rnd.IntN(3)]
				do = func(s subject) string {
					s.age(t, i, by)
					return fmt.Sprintf("age by %v", by)
				}
			default:
				do = func(s subject) string { return "look" }
			}
			var first string
			for n, s := range subjects {
				got := do(s)
				r, left, err := s.get(ctx, i)
				if r != nil {
					got += fmt.Sprintf(" -> %s %s %d %q %v %q %d %s, lease %v, expires %v", r.Status, r.Owner, r.Fence, r.Result, r.Error, r.Digest, r.Size, r.Note,
						r.Status == Pending && left > 0, time.Until(time.UnixMilli(r.ExpiresAt)).Round(10*time.Second))
				}
				got += fmt.Sprint(" ", err)
				if n == 0 {
					first = got
					seen[got[:6]]++
				} else if got != first {
					t.Fatalf("round %d, step %d:\n%s: %s\n%s: %s", round, step, names[0], first, names[n], got)
				}
			}
			if strings.HasPrefix(first, "end ") && strings.Contains(first, "released:true") {
				generation++ // who has released does not come back: Redis minds
			}
		}
	}
	t.Logf("%d steps: %v", 60*60, seen)
}
