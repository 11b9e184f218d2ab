package reliability

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// key is a change of a call: a key of its caller.
func key(name string) change { return func(d *call.Decided) { d.Key = name } }

func TestDuplicateAtTheSameTime(t *testing.T) {
	for _, on := range []string{"wait", "fail"} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, func(context.Context, *attempt) (*wire.Result, error) {
				time.Sleep(20 * time.Second) // longer than a lease
				return &wire.Result{Ran: true, Stdout: []byte("one")}, nil
			})
			b.tool.Def.Reliability.OnDuplicate = on
			var first, cached, pending atomic.Int64
			for range 50 {
				go func() {
					res, e := b.call(t.Context(), mutating, key("k"))
					switch {
					case e != nil && e.Code == fault.IdempotencyPending:
						pending.Add(1)
					case e == nil && string(res.Stdout) == "one" && res.FromCache:
						cached.Add(1)
					case e == nil && string(res.Stdout) == "one":
						first.Add(1)
					default:
						t.Errorf("%+v, %v", res, e)
					}
				}()
			}
			synctest.Wait()
			if on == "fail" && pending.Load() != 49 {
				t.Errorf("%d of 49 duplicates were told at once that the first is running", pending.Load())
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if want := map[string]int64{"wait": 49, "fail": 0}[on]; b.ran.Load() != 1 || first.Load() != 1 || cached.Load() != want {
				t.Errorf("on_duplicate %s: ran %d times, %d own results, %d from the cache, %d pending", on, b.ran.Load(), first.Load(), cached.Load(), pending.Load())
			}
		})
	}
}

// A waiter waits until its own deadline; that it leaves disturbs nobody.
func TestWaitersDeadlineIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			time.Sleep(time.Minute)
			return &wire.Result{Ran: true}, nil
		})
		done := make(chan *fault.Error, 1)
		go func() { _, e := b.call(t.Context(), mutating, key("k")); done <- e }()
		synctest.Wait()
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, e := b.call(brief, mutating, key("k")); e == nil || e.Code != fault.IdempotencyPending || !e.Retriable() {
			t.Errorf("a waiter whose time is over: %v", e)
		}
		leaving, leave := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); leave(wire.ErrLeft) }()
		if _, e := b.call(leaving, mutating, key("k")); e == nil || e.Code != fault.Aborted {
			t.Errorf("a waiter that left: %v", e)
		}
		if e := <-done; e != nil || b.ran.Load() != 1 {
			t.Errorf("the first: %v; ran %d times", e, b.ran.Load())
		}
	})
}

func TestDuplicateAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(context.Context, *attempt) (*wire.Result, error) {
			return &wire.Result{Ran: true, Stdout: []byte("ok\xff"), Stderr: []byte("hm"), Data: []byte(`{"n":1}`)}, nil
		})
		for i := range 3 {
			res, e := b.call(t.Context(), mutating, key("k"))
			if e != nil || res.FromCache != (i > 0) || string(res.Stdout) != "ok\xff" || string(res.Stderr) != "hm" || string(res.Data) != `{"n":1}` {
				t.Errorf("call %d: %+v, %v", i, res, e)
			}
		}
		if b.ran.Load() != 1 {
			t.Errorf("ran %d times", b.ran.Load())
		}
		if !strings.Contains(scrape(b.metrics), `idempotency_cache_hits_total{tool="tool"} 2`) {
			t.Error("two hits are not counted")
		}
		// Another payload, another caller, another time.
		if _, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Pinned.Payload = []byte(`{"n":2}`) }); e == nil || e.Code != fault.IdempotencyKeyReused {
			t.Errorf("another payload: %v", e)
		}
		if _, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Call.Env = map[string]string{"A": "b"} }); e == nil || e.Code != fault.IdempotencyKeyReused {
			t.Errorf("another environment: %v", e)
		}
		envelope := func(d *call.Decided) { d.Call.Form = wire.Envelope }
		if _, e := b.call(t.Context(), mutating, key("k"), envelope, func(d *call.Decided) { d.Call.Stdin = []byte("in") }); e == nil || e.Code != fault.IdempotencyKeyReused {
			t.Errorf("another input, beside the payload: %v", e)
		}
		if _, e := b.call(t.Context(), mutating, key("k"), envelope, func(d *call.Decided) { d.Kind, d.Pinned.Cwd = session.KindTurn, "/elsewhere" }); e == nil || e.Code != fault.IdempotencyKeyReused {
			t.Errorf("a turn in the folder of another session: %v", e)
		}
		if res, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Caller.ID = "another" }); e != nil || res.FromCache {
			t.Errorf("another caller: %+v, %v", res, e)
		}
		if res, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Pinned.Payload = []byte(`{ "n" : 1.0 }`) }); e != nil || !res.FromCache {
			t.Errorf("the same payload, written otherwise: %+v, %v", res, e)
		}
		time.Sleep(24 * time.Hour)
		if res, e := b.call(t.Context(), mutating, key("k")); e != nil || res.FromCache {
			t.Errorf("after its time to live: %+v, %v", res, e)
		}
	})
}

// A call that failed is answered with its failure for a while, and runs again
// on request.
func TestFailureIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(context.Context, *attempt) (*wire.Result, error) {
			return &wire.Result{Ran: true, ExitCode: 3, Stderr: []byte("no")}, nil
		})
		for i := range 2 {
			res, e := b.call(t.Context(), mutating, key("k"))
			if e != nil || res.ExitCode != 3 || string(res.Stderr) != "no" || !res.Ran || res.FromCache != (i > 0) {
				t.Errorf("call %d: %+v, %v", i, res, e)
			}
		}
		if res, _ := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Call.Retry = true }); res == nil || res.FromCache || b.ran.Load() != 2 {
			t.Errorf("with retry: %+v", res)
		}
		time.Sleep(30 * time.Second)
		if res, _ := b.call(t.Context(), mutating, key("k")); res == nil || res.FromCache || b.ran.Load() != 3 {
			t.Errorf("after 30 s: %+v", res)
		}
		b.tool.Def.Reliability.FailedTTL = 0
		for i := range 2 {
			if res, _ := b.call(t.Context(), mutating, key(fmt.Sprint("not kept", i/2))); res == nil || res.FromCache {
				t.Errorf("a failure that is not kept: %+v", res)
			}
		}
		b.tool.Def.Reliability.FailedTTL = 3600
		for i := range 2 {
			if res, _ := b.call(t.Context(), mutating, key("an hour")); res == nil || res.FromCache != (i > 0) {
				t.Errorf("a failure that is kept for an hour, call %d: %+v", i, res)
			}
			time.Sleep(50 * time.Minute)
		}
		b.run = func(ctx context.Context, k *attempt) (*wire.Result, error) { return badRequest(ctx, k) }
		for i := range 2 {
			res, e := b.call(t.Context(), mutating, key("other"))
			if e == nil || e.Code != fault.ToolFailed || e.Message != "400" || res.FromCache != (i > 0) {
				t.Errorf("a handler's failure, call %d: %+v, %v", i, res, e)
			}
		}
	})
}

// A mutating call that began and did not end by its own word has an outcome
// that nobody knows, for the whole time to live. One that changes nothing, or
// may be repeated, may run again.
func TestOutcomeUnknown(t *testing.T) {
	for name, run := range map[string]func(context.Context, *attempt) (*wire.Result, error){
		"timeout": func(ctx context.Context, _ *attempt) (*wire.Result, error) { <-ctx.Done(); return nil, ctx.Err() },
		"abort":   func(context.Context, *attempt) (*wire.Result, error) { return nil, &fault.Error{Code: fault.Aborted} },
		"trap":    func(context.Context, *attempt) (*wire.Result, error) { return nil, &fault.Error{Code: fault.GuestTrap} },
		"a signal": func(_ context.Context, k *attempt) (*wire.Result, error) {
			k.Killed = true
			return &wire.Result{Ran: true, ExitCode: 137}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, run)
			b.tool.Def.Reliability.Breaker.Failures = 1000
			if _, e := b.call(t.Context(), mutating, key("k")); e != nil && e.Code == fault.OutcomeUnknown {
				t.Errorf("%s: the call itself answers %v", name, e)
			}
			for _, after := range []time.Duration{0, time.Minute, 23 * time.Hour} {
				time.Sleep(after)
				if _, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Call.Retry = true }); e == nil || e.Code != fault.OutcomeUnknown || e.Retriable() {
					t.Errorf("%s: %v later the key answers %v", name, after, e)
				}
			}
			if b.ran.Load() != 1 {
				t.Errorf("%s: ran %d times", name, b.ran.Load())
			}
			if found, err := b.Records.Flush(t.Context(), "tool", "k"); err != nil || found.Flushed != 1 {
				t.Errorf("%s: flush: %+v, %v", name, found, err)
			}
			b.run = func(ctx context.Context, k *attempt) (*wire.Result, error) { return succeed(ctx, k) }
			if res, e := b.call(t.Context(), mutating, key("k")); e != nil || res.FromCache {
				t.Errorf("%s: after a flush: %+v, %v", name, res, e)
			}
			for _, safe := range [][]change{{key("safe")}, {mutating, idempotent, key("safe2")}} {
				b.run = func(ctx context.Context, k *attempt) (*wire.Result, error) { return run(ctx, k) }
				b.tool.Def.Reliability.Retry.Max = 0
				b.call(t.Context(), safe...)
				time.Sleep(31 * time.Second)
				b.run = func(ctx context.Context, k *attempt) (*wire.Result, error) { return succeed(ctx, k) }
				if res, e := b.call(t.Context(), safe...); e != nil || res.FromCache {
					t.Errorf("%s: what may be repeated: %+v, %v", name, res, e)
				}
			}
		})
	}
}

// What never began leaves no record: an open breaker, no room, a caller that
// left before.
func TestWhatNeverBeganLeavesNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, unavailable)
		for i := range 5 {
			b.call(t.Context(), mutating, key(fmt.Sprint(i)))
		}
		if _, e := b.call(t.Context(), mutating, key("k")); e == nil || e.Code != fault.CircuitOpen {
			t.Fatalf("%v", e)
		}
		b.run = func(_ context.Context, k *attempt) (*wire.Result, error) {
			k.Progress.TakeBack(k.Number)
			return nil, &fault.Error{Code: fault.ToolNotInstalled}
		}
		time.Sleep(30 * time.Second)
		if _, e := b.call(t.Context(), mutating, key("k")); e == nil || e.Code != fault.ToolNotInstalled {
			t.Fatalf("%v", e)
		}
		if found, err := b.Records.Show(t.Context(), "tool", "k"); err != nil || len(found) != 0 {
			t.Errorf("records %+v, %v", found, err)
		}
	})
}

// Automatic keys: only for mutating calls, only where the payload says all,
// for one hour.
func TestAutomaticKeys(t *testing.T) {
	yes, no := true, false
	schema := new(jsonschema.Schema)
	envelope := func(d *call.Decided) { d.Call.Form = wire.Envelope }
	args := func(d *call.Decided) { d.Call.Form = wire.Envelope; d.Call.Args = []string{"push"} }
	plain := func(d *call.Decided) { d.Call.Form = wire.Plain; d.Call.Args = []string{"push"} }
	stdin := func(d *call.Decided) {
		d.Request.Streams.Stdin = func() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }
		d.Input.Wanted = true
	}
	for _, tt := range []struct {
		name   string
		schema *jsonschema.Schema
		auto   *bool
		change []change
		want   bool
	}{
		{"a schema", schema, nil, []change{mutating, envelope}, true},
		{"no schema", nil, nil, []change{mutating, envelope}, false},
		{"a schema, declined", schema, &no, []change{mutating, envelope}, false},
		{"read only", schema, &yes, []change{envelope}, false},
		{"arguments", schema, nil, []change{mutating, args}, false},
		{"arguments in plain form", schema, nil, []change{mutating, plain}, false},
		{"arguments, declared", nil, &yes, []change{mutating, args}, true},
		{"arguments in plain form, declared", nil, &yes, []change{mutating, plain}, true},
		{"input that comes by a stream", nil, &yes, []change{mutating, plain, stdin}, false},
		{"the policy names it", nil, nil, []change{mutating, plain, key("of the policy")}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, succeed)
			b.tool.Schema, b.tool.Def.Reliability.AutoKey = tt.schema, tt.auto
			b.call(t.Context(), tt.change...)
			res, e := b.call(t.Context(), tt.change...)
			if e != nil || res.FromCache != tt.want {
				t.Errorf("%s: from the cache %v, %v", tt.name, res.FromCache, e)
			}
			if !tt.want || strings.HasPrefix(tt.name, "the policy") {
				return
			}
			if res, _ := b.call(t.Context(), append(tt.change, func(d *call.Decided) { d.Caller.ID = "another" })...); res.FromCache {
				t.Errorf("%s: answered to another caller", tt.name)
			}
			time.Sleep(time.Hour)
			if res, _ := b.call(t.Context(), tt.change...); res.FromCache {
				t.Errorf("%s: answered after an hour", tt.name)
			}
		})
	}
	b := stages(t, succeed)
	b.tool.Schema = schema
	for _, payload := range []string{`{"n":9007199254740993}`} {
		if _, e := b.call(t.Context(), mutating, envelope, func(d *call.Decided) { d.Pinned.Payload = []byte(payload) }); e == nil || e.Code != fault.InvalidPayload {
			t.Errorf("%s: %v", payload, e)
		}
	}
	if _, e := b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Caller.ID = "" }); e == nil || e.Code != fault.Unauthenticated {
		t.Errorf("a key of nobody: %v", e)
	}
}

// Going on without a caller is for what has begun. It is no reason to begin again.
func TestNoRetryWithoutACaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			time.Sleep(10 * time.Second)
			return unavailable(ctx, k)
		})
		ctx, leave := context.WithCancelCause(t.Context())
		ended := make(chan *fault.Error, 1)
		go func() { _, e := b.call(ctx, mutating, idempotent, key("k")); ended <- e }()
		time.Sleep(time.Second)
		leave(wire.ErrLeft)
		if e := <-ended; e == nil || e.Code != fault.ToolFailed || b.ran.Load() != 1 {
			t.Errorf("%d attempts for a caller that left, ended by %v", b.ran.Load(), e)
		}
	})
}

// A call that is ended while it waits for its store was ended: the store's silence
// is no reason for its caller to try again.
func TestAbortWhileTheStoreIsSilent(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b := stages(t, succeed)
	b.Records.Close()
	if b.Records, err = idempotency.Open(t.Context(), idempotency.Config{Store: "redis://" + silent.Addr().String(), Lease: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ctx, abort := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { abort(fault.Errorf(fault.Aborted, "on request")) })
	if _, e := b.call(ctx, mutating, key("k")); e == nil || e.Code != fault.Aborted {
		t.Errorf("%v", e)
	}
	if b.ran.Load() != 0 {
		t.Error("it ran")
	}
}

// A mutating call with a key goes on when its caller has left, and stores its
// result; other calls end, and so does this one by an abort.
func TestCallerLeaves(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  []change
		goesOn  bool
		unknown bool
	}{
		{"mutating, with a key", []change{mutating, key("k")}, true, false},
		{"mutating, without a key", []change{mutating}, false, false},
		{"read only, with a key", []change{key("k")}, false, false},
		{"mutating, with a key, its input not all there", []change{mutating, key("k"), openInput}, false, true},
		{"mutating, with a key, streamed", []change{mutating, key("k"), goneStreams}, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
				if k.Streams.Stdin != nil {
					in := k.Streams.Stdin()
					defer in.Close()
					go in.Read(make([]byte, 1))
				}
				select {
				case <-time.After(10 * time.Second):
					if k.Streams.Stdout != nil { // of a caller that has left, as package execute writes there
						if _, err := k.Streams.Stdout.Write([]byte("done")); err != nil && !k.Progress.GoesOn() {
							return nil, err
						}
					}
					k.Streamed = &[2][]byte{[]byte("done")}
					return &wire.Result{Ran: true}, nil
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			})
			ctx, leave := context.WithCancelCause(t.Context())
			ended := make(chan *fault.Error, 1)
			start := time.Now()
			go func() { _, e := b.call(ctx, tt.change...); ended <- e }()
			time.Sleep(time.Second)
			leave(wire.ErrLeft)
			e := <-ended
			if took := time.Since(start); tt.goesOn != (took == 10*time.Second) || tt.goesOn != (e == nil) {
				t.Errorf("%s: ended after %v with %v", tt.name, took, e)
			}
			if !tt.goesOn && !tt.unknown {
				return
			}
			res, e := b.call(t.Context(), tt.change...)
			if tt.unknown && (e == nil || e.Code != fault.OutcomeUnknown) || !tt.unknown && (e != nil || !res.FromCache || string(res.Stdout) != "done") {
				t.Errorf("%s: the key answers %+v, %v", tt.name, res, e)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		ctx, leave := context.WithCancelCause(t.Context())
		ended := make(chan *fault.Error, 1)
		go func() { _, e := b.call(ctx, mutating, key("k")); ended <- e }()
		synctest.Wait()
		leave(wire.ErrLeft)
		synctest.Wait()
		b.end(fault.Errorf(fault.Aborted, "the daemon stops"))
		if e := <-ended; e == nil || e.Code != fault.Aborted {
			t.Errorf("when the daemon stops: %v", e)
		}
		aborted, abort := context.WithCancelCause(t.Context())
		abort(fault.Errorf(fault.Aborted, "on request"))
		b2 := stages(t, succeed)
		if _, e := b2.call(aborted, mutating, key("k")); e == nil || e.Code != fault.Aborted {
			t.Errorf("a call that was aborted before it began: %v", e)
		}
		if found, _ := b2.Records.Show(t.Context(), "tool", "k"); len(found) != 0 {
			t.Errorf("it left %+v", found)
		}
	})
}

func openInput(d *call.Decided) {
	r, _ := io.Pipe()
	d.Request.Streams.Stdin, d.Input.Wanted = func() io.ReadCloser { return r }, true
}

// goneStreams fail as those of a caller that has left do.
func goneStreams(d *call.Decided) {
	d.Request.Streams.Stdout, d.Request.Streams.Stderr = failing{}, failing{}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A result that is too large is not kept, and the call is not run again.
func TestResultTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, func(context.Context, *attempt) (*wire.Result, error) {
			return &wire.Result{Ran: true, Stdout: bytes.Repeat([]byte("x"), 70_000)}, nil
		})
		if res, e := b.call(t.Context(), mutating, key("k")); e != nil || len(res.Stdout) != 70_000 {
			t.Fatalf("%v", e)
		}
		_, e := b.call(t.Context(), mutating, key("k"))
		if e == nil || e.Code != fault.LimitExceeded || !strings.Contains(e.Message, "not run again") || b.ran.Load() != 1 {
			t.Errorf("%v; ran %d times", e, b.ran.Load())
		}
	})
}

// Shadow counts what a key would have done, and runs every call; nothing of it
// is answered from later.
func TestShadowOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, succeed)
		b.mode = config.ReliabilityShadow
		for range 3 {
			if res, e := b.call(t.Context(), mutating, key("k")); e != nil || res.FromCache {
				t.Errorf("%+v, %v", res, e)
			}
		}
		b.call(t.Context(), mutating, key("k"), func(d *call.Decided) { d.Pinned.Payload = []byte(`{}`) })
		text := scrape(b.metrics)
		for _, want := range []string{`{decision="replayed",tool="tool"} 2`, `{decision="key_reused",tool="tool"} 1`} {
			if !strings.Contains(text, "toold_reliability_shadow_total"+want) {
				t.Errorf("the metrics lack %s", want)
			}
		}
		b.mode = config.ReliabilityAll
		if res, e := b.call(t.Context(), mutating, key("k")); e != nil || res.FromCache || b.ran.Load() != 5 {
			t.Errorf("after shadow: %+v, %v; ran %d times", res, e, b.ran.Load())
		}
		// In read-only a mutating call is only watched.
		b.mode = config.ReliabilityReadOnly
		if res, e := b.call(t.Context(), mutating, key("k")); e != nil || res.FromCache {
			t.Errorf("a mutating call in read-only: %+v, %v", res, e)
		}
		b.call(t.Context(), key("r"))
		if res, e := b.call(t.Context(), key("r")); e != nil || !res.FromCache {
			t.Errorf("a read-only call in read-only: %+v, %v", res, e)
		}
	})
}

// Only what changes nothing, or is declared to bear it, is run again after an
// owner that vanished.
func TestTakenOverByDeclarationOnly(t *testing.T) {
	for _, tt := range []struct {
		change []change
		want   bool
	}{{nil, true}, {[]change{mutating}, false}, {[]change{mutating, idempotent}, true}} {
		d := call.Undecided(call.Pinned{
			Admitted: call.Admitted{Request: call.Request{Call: &wire.Call{Tool: "tool", IdempotencyKey: "k"}}, Caller: identity.Caller{ID: "somebody"}},
			Tool:     &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}, Payload: []byte(`{}`),
		})
		for _, f := range tt.change {
			f(&d)
		}
		if r, err := recordRequest(&d); err != nil || r.Rerun != tt.want {
			t.Errorf("mutating %v, idempotent %v: %+v, %v", d.Class.Mutating, d.Class.Idempotent, r, err)
		}
	}
}
