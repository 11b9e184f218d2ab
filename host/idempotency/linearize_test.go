package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history holds the concurrent operations of a few clients on one key, with
// their results. It is linearizable if the state machine gives the same results
// in some sequential order, with each operation between its call and its reply.
// An operation without a reply may have happened at any later time, or never.

type stepIn struct {
	kind  string // claim, end, get, lapse
	claim claimRequest
	end   completion
}

type stepOut struct {
	known   bool // there was an answer
	verdict verdict
	status  Status // of the record that was answered with
	fence   int64
	result  string
	unknown bool
}

// state is a comparable record at a fixed time.
type state struct {
	status         Status
	owner, payload string
	fence          int64
	lapsed, rerun  bool
	unknown        bool
	result         string
}

const stillNow = 1_000_000

func (s state) record() *record {
	if s.status == "" {
		return nil
	}
	r := &record{Status: s.status, Owner: s.owner, Payload: s.payload, Fence: s.fence, Rerun: s.rerun,
		ExpiresAt: stillNow * 2, LeaseUntil: stillNow + 1, TTL: stillNow, ClaimedAt: stillNow}
	if s.lapsed {
		r.LeaseUntil = stillNow - 1
	}
	if s.result != "" {
		r.Result = json.RawMessage(s.result)
	}
	if s.unknown {
		r.Error = &Failure{Code: CodeOutcomeUnknown}
	}
	return r
}

func stateOf(r *record) state {
	if r == nil {
		return state{}
	}
	return state{r.Status, r.Owner, r.Payload, r.Fence, r.lapsed(stillNow), r.Rerun, r.outcomeUnknown(), string(r.Result)}
}

func answer(r *record, v verdict) stepOut {
	if r == nil {
		return stepOut{known: true, verdict: v}
	}
	return stepOut{true, v, r.Status, r.Fence, string(r.Result), r.outcomeUnknown()}
}

// do runs one step of the state machine and returns the new state and the reply.
func (s state) do(in stepIn) (state, stepOut) {
	old := s.record()
	switch in.kind {
	case "claim":
		next, v := claim(old, in.claim, stillNow)
		if next == nil {
			next = old
		}
		return stateOf(next), answer(next, v)
	case "end":
		next, drop, v := complete(old, in.end, stillNow)
		if drop {
			return state{}, stepOut{known: true, verdict: v}
		}
		if next == nil {
			next = old
		}
		return stateOf(next), stepOut{known: true, verdict: v}
	case "lapse":
		s.lapsed = s.lapsed || s.status == Pending
		return s, stepOut{known: true}
	default:
		if old != nil {
			old = old.settled(stillNow)
		}
		return s, answer(old, 0)
	}
}

func model() porcupine.Model {
	n := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(st, in, out any) []any {
			next, want := st.(state).do(in.(stepIn))
			switch got := out.(stepOut); {
			case !got.known:
				return []any{next, st}
			case got == want:
				return []any{next}
			}
			return nil
		},
	}
	return n.ToModel()
}

// history runs random operations of several clients on a key of s and returns
// them. lapse ends the lease of a PENDING record. faults returns how many faults
// were injected for that key so far.
func history(ctx context.Context, s store, i id, lapse func(id) error, faults func(id) int, seed uint64) []porcupine.Operation {
	const clients, steps = 4, 5
	var (
		mu    sync.Mutex
		ops   []porcupine.Operation
		clock atomic.Int64
	)
	add := func(client int, in stepIn, do func() (stepOut, error)) (stepOut, error) {
		call, before := clock.Add(1), faults(i)
		out, err := do()
		back := clock.Add(1)
		faulted := faults(i) != before
		told := out
		if err != nil || faulted && in.kind == "end" && (out.verdict == verdictLate || out.verdict == verdictGone) {
			// No answer; or one to the second copy of what was sent, when
			// others have gone on after the first.
			told, back = stepOut{}, 1<<60
		}
		mu.Lock()
		defer mu.Unlock()
		ops = append(ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: told, Return: back})
		if err == nil && in.kind == "claim" && faulted {
			// go-redis may have sent it more than once, and a copy may come
			// when the call that it was for has long ended.
			ops = append(ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: stepOut{}, Return: 1 << 60})
		}
		return out, err
	}
	var wg sync.WaitGroup
	for client := range clients {
		rnd := rand.New(rand.NewPCG(seed, uint64(client)))
		wg.Go(func() {
			ends := func(e completion) {
				_, _ = add(client, stepIn{kind: "end", end: e}, func() (stepOut, error) {
					v, err := s.complete(ctx, i, e)
					return stepOut{known: true, verdict: v}, err
				})
			}
			for n := range steps {
				switch k := rnd.IntN(10); {
				case k < 7:
					c := testClaim(fmt.Sprintf("%d.%d", client, n))
					c.rerun, c.retry = rnd.IntN(2) == 0, rnd.IntN(2) == 0
					out, err := add(client, stepIn{kind: "claim", claim: c}, func() (stepOut, error) {
						r, _, v, err := s.claim(ctx, i, c)
						if err != nil {
							return stepOut{}, err
						}
						return answer(r, v), nil
					})
					switch {
					case err != nil:
						ends(completion{owner: c.owner, released: true})
					case out.verdict != verdictRun && out.verdict != verdictTakeOver && out.verdict != verdictRetry:
					default:
						result := json.RawMessage(fmt.Sprintf(`"%s"`, c.owner))
						switch rnd.IntN(8) {
						case 0, 1:
							ends(completion{owner: c.owner, fence: out.fence, status: Completed, result: result})
						case 2, 3:
							ends(completion{owner: c.owner, fence: out.fence, status: Failed, result: result, err: &Failure{Code: "X"}})
						case 4, 5:
							ends(completion{owner: c.owner, fence: out.fence, released: true})
						case 6:
							ends(completion{owner: c.owner, fence: out.fence, status: Failed, err: &Failure{Code: CodeOutcomeUnknown}})
						} // else it has died
					}
				case k == 7:
					_, _ = add(client, stepIn{kind: "lapse"}, func() (stepOut, error) { return stepOut{known: true}, lapse(i) })
				default:
					_, _ = add(client, stepIn{kind: "get"}, func() (stepOut, error) {
						r, _, err := s.get(ctx, i)
						return answer(r, 0), err
					})
				}
			}
		})
	}
	wg.Wait()
	return ops
}

// histories checks n of them, several at a time.
func histories(t *testing.T, s store, lapse func(id) error, faults func(id) int, n int) (bad int) {
	t.Helper()
	seed := rand.Uint64()
	var unanswered, steps atomic.Int64
	var failed atomic.Int64
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for k := range work {
				ops := history(t.Context(), s, id{"tool", fmt.Sprint("h", k)}, lapse, faults, seed+uint64(k))
				for _, op := range ops {
					steps.Add(1)
					if !op.Output.(stepOut).known {
						unanswered.Add(1)
					}
				}
				if got := porcupine.CheckOperationsTimeout(model(), ops, 30*time.Second); got != porcupine.Ok {
					if failed.Add(1) == 1 {
						for _, op := range ops {
							t.Logf("history %d: %+v", k, op)
						}
					}
				}
			}
		})
	}
	for k := range n {
		work <- k
	}
	close(work)
	wg.Wait()
	t.Logf("seed %d: %d histories, %d steps, %d of them unanswered or repeated; %d bad", seed, n, steps.Load(), unanswered.Load(), failed.Load())
	return int(failed.Load())
}

func faultless(id) int { return 0 }

func TestLinearizable(t *testing.T) {
	n := count(t, "TOOLD_HISTORIES", 200)
	t.Run("memory", func(t *testing.T) {
		m := newMemory(100_000, 1<<30, func(string) {})
		if histories(t, m, m.lapse, faultless, n) != 0 {
			t.Error("not linearizable")
		}
	})
	t.Run("file", func(t *testing.T) {
		f := fileSubject(t).store.(*file)
		if histories(t, f, f.lapse, faultless, n) != 0 {
			t.Error("not linearizable")
		}
	})
	t.Run("redis", func(t *testing.T) {
		server := startRedis(t, durable...)
		proxy := startProxy(t, server.addr, nil)
		s := openRedisAt(t, "redis://"+proxy.addr+"/0?read_timeout=50ms&dial_timeout=200ms&max_retries=3&min_retry_backoff=1ms&max_retry_backoff=3ms&wait_replicas=0")
		proxy.faulty.Store(true)
		lapse := func(i id) error { // not through the proxy
			return server.Eval(context.Background(), `if redis.call('HGET', KEYS[1], 'status') == 'PENDING' then redis.call('HSET', KEYS[1], 'leaseUntil', '1') end return 1`, []string{i.String()}).Err()
		}
		if histories(t, s, lapse, proxy.faultsOf, n) != 0 {
			t.Error("not linearizable")
		}
		t.Logf("%d faults injected", proxy.faults)
		if proxy.faults < n/2 {
			t.Error("too few")
		}
		proxy.faulty.Store(false)
	})
}

func (m *memory) lapse(i id) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.records[i]; e != nil && e.Status == Pending {
		r := e.record
		r.LeaseUntil = 1
		m.putLocked(e, &r)
	}
	return nil
}

func (f *file) lapse(i id) error {
	return f.update(context.Background(), func(t *tx) error {
		r, err := t.read(i.String())
		if err == nil && r != nil && r.Status == Pending {
			r.LeaseUntil = t.now - 1
			err = t.write(i.String(), r)
		}
		return err
	})
}

// flawed is a store with one fault each.
type flawed struct {
	*memory
	flaw string
	n    atomic.Int64
}

func (s *flawed) claim(ctx context.Context, i id, c claimRequest) (*record, time.Duration, verdict, error) {
	r, left, v, err := s.memory.claim(ctx, i, c)
	if s.flaw == "two owners" && v == verdictHeld && s.n.Add(1)%5 == 0 {
		return r, left, verdictRun, err
	}
	if s.flaw == "a claim is forgotten" && v == verdictRun && s.n.Add(1)%5 == 0 {
		_, _ = s.memory.complete(ctx, i, completion{owner: c.owner, released: true})
	}
	return r, left, v, err
}

func (s *flawed) complete(ctx context.Context, i id, e completion) (verdict, error) {
	if s.flaw == "an end is forgotten" && e.status == Completed && s.n.Add(1)%3 == 0 {
		return verdictDone, nil
	}
	return s.memory.complete(ctx, i, e)
}

func (s *flawed) get(ctx context.Context, i id) (*record, time.Duration, error) {
	r, left, err := s.memory.get(ctx, i)
	if s.flaw == "a stale read" && r != nil && r.Status == Completed {
		r.Status, r.Result = Pending, nil
	}
	return r, left, err
}

// The linearizability check finds faulty stores.
func TestLinearizableSeesFaults(t *testing.T) {
	for _, flaw := range []string{"two owners", "a claim is forgotten", "an end is forgotten", "a stale read"} {
		t.Run(flaw, func(t *testing.T) {
			s := &flawed{memory: newMemory(100_000, 1<<30, func(string) {}), flaw: flaw}
			t.Run("histories", func(t *testing.T) {
				if histories(t, s, s.lapse, faultless, 60) == 0 {
					t.Error("the fault was not seen")
				}
			})
		})
	}
}

// proxy drops, delays and truncates traffic between go-redis and Redis.
type proxy struct {
	addr   string
	to     string
	faulty atomic.Bool
	// requests counts what clients send at a time.
	requests atomic.Int32

	mu     sync.Mutex
	faults int            // guarded by mu
	of     map[string]int // faults by the name of the record; guarded by mu

	// hold, when set, is asked about each chunk from the server for a
	// connection that began with first; it returns whether it may go on.
	hold func(first string) bool
}

func startProxy(t testing.TB, to string, hold func(first string) bool) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), to: to, hold: hold, of: map[string]int{}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	keep := func(c net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
		return c
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				s, err := net.Dial("tcp", p.to)
				if err != nil {
					return
				}
				defer s.Close()
				p.pass(keep(c), keep(s))
				mu.Lock()
				delete(open, c)
				delete(open, s)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return p
}

var nameRule = regexp.MustCompile(`idemp:tool:\w+`)

// fault counts one, before it happens.
func (p *proxy) fault(request []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults++
	p.of[string(nameRule.Find(request))]++
}

func (p *proxy) faultsOf(i id) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[i.String()] + p.of[""] // those of no record may have been of any
}

func (p *proxy) pass(c, s net.Conn) {
	var first atomic.Value
	var last atomic.Pointer[[]byte] // the last request
	last.Store(new([]byte))
	var wg sync.WaitGroup
	// Requests. What was taken is delivered, even when the client has gone:
	// this is how a copy comes late.
	wg.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, err := c.Read(b)
			if n > 0 {
				if first.Load() == nil || len(first.Load().(string)) < 4096 {
					was, _ := first.Load().(string)
					first.Store(was + string(b[:n]))
				}
				p.requests.Add(1)
				request := bytes.Clone(b[:n])
				last.Store(&request)
				if p.faulty.Load() {
					switch rand.IntN(40) {
					case 0: // lost on the way
						p.fault(request)
						_ = c.Close()
						_ = s.Close()
						return
					case 1: // on the way for longer than the client waits
						p.fault(request)
						<-time.After(time.Duration(40+rand.IntN(40)) * time.Millisecond)
					case 2, 3, 4:
						p.fault(request)
						<-time.After(time.Duration(rand.IntN(5)) * time.Millisecond)
					}
				}
				if _, err := s.Write(b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				if err == io.EOF {
					_ = s.(*net.TCPConn).CloseWrite()
				}
				return
			}
		}
	})
	wg.Go(func() {
		b := make([]byte, 64<<10)
		for {
			n, err := s.Read(b)
			if n > 0 {
				if p.hold != nil {
					began, _ := first.Load().(string)
					if !p.hold(began) {
						_ = c.Close()
						_ = s.Close()
						return
					}
				}
				if p.faulty.Load() {
					switch rand.IntN(40) {
					case 0, 1: // the reply is lost
						p.fault(*last.Load())
						_ = c.Close()
						_ = s.Close()
						return
					case 2, 3:
						p.fault(*last.Load())
						<-time.After(time.Duration(rand.IntN(5)) * time.Millisecond)
					}
				}
				if _, err := c.Write(b[:n]); err != nil {
					_ = s.Close()
					return
				}
			}
			if err != nil {
				_ = c.Close()
				return
			}
		}
	})
	wg.Wait()
}
