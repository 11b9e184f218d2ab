package reliability

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// fixture is the layer under fake time, over a tool that the test makes up.
type fixture struct {
	*Layer
	metrics *observe.Metrics
	end     context.CancelCauseFunc // of the daemon
	logs    bytes.Buffer
	tool    *tools.Tool
	mode    string
	run     func(ctx context.Context, k *attempt) (*wire.Result, error)
	ran     atomic.Int64
}

// attempt is one attempt at a call, and what it says came of it.
type attempt struct {
	call.Attempt
	call.Outcome
}

// change makes a call different.
type change = func(*call.Decided)

// stages is a fixture whose tool answers what run says, in mode "all".
func stages(t *testing.T, run func(ctx context.Context, k *attempt) (*wire.Result, error)) *fixture {
	f := &fixture{mode: config.ReliabilityAll, tool: &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}, run: run, metrics: observe.New()}
	f.metrics.RegisterGauges(observe.Gauges{})
	ending, end := context.WithCancelCause(t.Context())
	f.end = end
	var err error
	f.Layer, err = Open(t.Context(), Config{Store: "memory", Ending: ending, Metrics: f.metrics, Log: slog.New(slog.NewJSONHandler(&f.logs, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// call takes a call through the layer; changes make it different.
func (f *fixture) call(ctx context.Context, changes ...change) (*wire.Result, *fault.Error) {
	d := call.Undecided(call.Pinned{
		Admitted: call.Admitted{
			Request: call.Request{Call: &wire.Call{Tool: f.tool.Name, ExecutionID: "6fa459ea-ee8a-4ca4-894e-db77e160355e"}},
			Caller:  identity.Caller{ID: "somebody"},
		},
		Tool: f.tool, Payload: []byte(`{"n":1}`),
	})
	for _, f := range changes {
		f(&d)
	}
	d.Effective = &identity.Effective{Config: map[string]string{"host": d.Caller.ID}}
	d.Mode = call.ModeFor(f.mode, d.Class.Mutating)
	ctx, cancel := context.WithTimeout(ctx, f.tool.Def.Timeout.Duration())
	defer cancel()
	r := call.NewRun(d, d.Request.Streams)
	o := f.Do(ctx, r, func(ctx context.Context, number int) call.Outcome {
		f.ran.Add(1)
		if err := r.Progress.Begin(ctx); err != nil {
			return call.Failed(ctx, err)
		}
		k := &attempt{Attempt: call.Attempt{Run: r, Number: number}}
		k.Began = true
		res, err := f.run(ctx, k)
		if res == nil {
			res = &wire.Result{}
		}
		res.Err = call.AsError(ctx, err)
		k.Result = res
		return k.Outcome
	})
	return o.Result, o.Err()
}

func mutating(d *call.Decided)   { d.Class.Mutating = true }
func idempotent(d *call.Decided) { d.Class.Idempotent = true }

func succeed(context.Context, *attempt) (*wire.Result, error) { return &wire.Result{Ran: true}, nil }
func answerNo(context.Context, *attempt) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, nil
}

// Failures of an upstream, as a handler answers them.
func unavailable(context.Context, *attempt) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, &fault.Error{Code: fault.ToolFailed, Message: "503", MayRetry: true}
}
func badRequest(context.Context, *attempt) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, &fault.Error{Code: fault.ToolFailed, Message: "400"}
}

// only runs a call once, so that each is one failure.
func (b *fixture) noRetries() { b.tool.Def.Reliability.Retry.Max = 0 }

func TestBreakerRefusesTheSixth(t *testing.T) {
	for name, fail := range map[string]func(context.Context, *attempt) (*wire.Result, error){
		"retriable": unavailable,
		"timeout": func(ctx context.Context, _ *attempt) (*wire.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"trap": func(context.Context, *attempt) (*wire.Result, error) { return nil, &fault.Error{Code: fault.GuestTrap} },
		"declared exit": func(_ context.Context, k *attempt) (*wire.Result, error) {
			k.ExitFailed = true
			return &wire.Result{Ran: true, ExitCode: 7, MayRetry: true}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := stages(t, fail)
				b.noRetries()
				for i := range 5 {
					if _, e := b.call(t.Context()); e != nil && e.Code == fault.CircuitOpen {
						t.Fatalf("refused after %d failures", i)
					}
				}
				start := time.Now()
				res, e := b.call(t.Context())
				if e == nil || e.Code != fault.CircuitOpen || res.Ran || !e.Retriable() {
					t.Errorf("the sixth: %+v, %v", res, e)
				}
				if d := time.Since(start); d >= 10*time.Millisecond || b.ran.Load() != 5 {
					t.Errorf("refusing took %v; the tool ran %d times", d, b.ran.Load())
				}
				if !strings.Contains(b.logs.String(), `"from":"closed","to":"open"`) {
					t.Errorf("the log does not tell: %s", b.logs.String())
				}
			})
		})
	}
}

// What is an answer, or no word of the upstream at all, opens nothing.
func TestBreakerDoesNotCount(t *testing.T) {
	for name, run := range map[string]func(context.Context, *attempt) (*wire.Result, error){
		"an exit code":       answerNo,
		"a failure for good": badRequest,
		"the caller left": func(context.Context, *attempt) (*wire.Result, error) {
			return nil, &fault.Error{Code: fault.Aborted}
		},
		"a call that never began": func(_ context.Context, k *attempt) (*wire.Result, error) {
			k.Began = false
			return nil, &fault.Error{Code: fault.Timeout}
		},
		"no room": func(context.Context, *attempt) (*wire.Result, error) {
			return nil, &fault.Error{Code: fault.Overloaded}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, run)
			for range 250 {
				b.call(t.Context())
			}
			if b.ran.Load() != 250 {
				t.Errorf("%s: the tool ran %d of 250 times", name, b.ran.Load())
			}
		})
	}
}

func TestBreakerHalfOpenLetsOneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := unavailable
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) { return run(ctx, k) })
		b.noRetries()
		for range 5 {
			b.call(t.Context())
		}
		time.Sleep(30 * time.Second)
		release := make(chan struct{})
		run = func(context.Context, *attempt) (*wire.Result, error) { <-release; return &wire.Result{Ran: true}, nil }
		b.ran.Store(0)
		var refused atomic.Int64
		for range 50 {
			go func() {
				if _, e := b.call(t.Context()); e != nil && e.Code == fault.CircuitOpen {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		if b.ran.Load() != 1 || refused.Load() != 49 {
			t.Errorf("of 50 callers %d ran and %d were refused", b.ran.Load(), refused.Load())
		}
		close(release)
		synctest.Wait()
		if _, e := b.call(t.Context()); e != nil {
			t.Errorf("after a trial that succeeded: %v", e)
		}
	})
}

func TestBreakerTrialThatPanicsIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run := unavailable
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) { return run(ctx, k) })
		b.noRetries()
		for range 5 {
			b.call(t.Context())
		}
		time.Sleep(30 * time.Second)
		run = func(context.Context, *attempt) (*wire.Result, error) { panic("a fault of ours") }
		func() {
			defer func() { recover() }()
			b.call(t.Context())
		}()
		run = succeed
		if _, e := b.call(t.Context()); e != nil {
			t.Errorf("after a trial that panicked: %v", e)
		}
	})
}

func TestBreakerAlternatingOpensAtTheHundredth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			if n++; n%2 == 0 {
				return unavailable(ctx, k)
			}
			return succeed(ctx, k)
		})
		b.noRetries()
		for i := range 100 {
			if _, e := b.call(t.Context()); e != nil && e.Code == fault.CircuitOpen {
				t.Fatalf("open after %d", i)
			}
		}
		if _, e := b.call(t.Context()); e == nil || e.Code != fault.CircuitOpen {
			t.Errorf("after 50 failures of 100: %v", e)
		}
	})
}

// One identity's dead host refuses nobody else's calls, where the tool works
// for identities.
func TestBreakerScope(t *testing.T) {
	for _, claims := range [][]string{nil, {"host"}} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
				if k.Caller.ID == "dead" {
					return unavailable(ctx, k)
				}
				return succeed(ctx, k)
			})
			b.noRetries()
			b.tool.Def.Identity.Claims = claims
			for range 5 {
				b.call(t.Context(), func(d *call.Decided) { d.Caller.ID = "dead" })
			}
			_, e := b.call(t.Context())
			if shared := claims == nil; shared != (e != nil) {
				t.Errorf("with claims %v another identity gets %v", claims, e)
			}
		})
	}
}

func TestRetryFourAttemptsWithGrowingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		var attempts []int
		start := time.Now()
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			at, attempts = append(at, time.Since(start)), append(attempts, k.Number)
			return nil, &fault.Error{Code: fault.Timeout, Message: "no answer in time"}
		})
		_, e := b.call(t.Context())
		if e == nil || e.Code != fault.Timeout || !slices.Equal(attempts, []int{1, 2, 3, 4}) {
			t.Fatalf("attempts %v, %v", attempts, e)
		}
		for i, most := range []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second} {
			if i > 0 && at[i]-at[i-1] > most {
				t.Errorf("waited %v before attempt %d, at most %v", at[i]-at[i-1], i+1, most)
			}
		}
	})
}

func TestRetryOnlyWhatMay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		run    func(context.Context, *attempt) (*wire.Result, error)
		change []change
		want   int64
	}{
		{"503", unavailable, nil, 4},
		{"400", badRequest, nil, 1},
		{"an exit code", answerNo, nil, 1},
		{"a trap", func(context.Context, *attempt) (*wire.Result, error) { return nil, &fault.Error{Code: fault.GuestTrap} }, nil, 1},
		{"no room here", func(context.Context, *attempt) (*wire.Result, error) {
			return nil, &fault.Error{Code: fault.Overloaded}
		}, nil, 1},
		{"mutating 503", unavailable, []change{mutating}, 1},
		{"mutating 503, declared idempotent", unavailable, []change{mutating, idempotent}, 4},
		{"output was passed on", func(ctx context.Context, k *attempt) (*wire.Result, error) {
			k.Streams.Stdout.Write([]byte("so far"))
			return unavailable(ctx, k)
		}, []change{streamed}, 1},
		{"only diagnostics were passed on", func(ctx context.Context, k *attempt) (*wire.Result, error) {
			k.Streams.Stderr.Write([]byte("curl: (7)"))
			return unavailable(ctx, k)
		}, []change{streamed}, 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := stages(t, tt.run)
			b.call(t.Context(), tt.change...)
			if b.ran.Load() != tt.want {
				t.Errorf("%s: %d attempts, want %d", tt.name, b.ran.Load(), tt.want)
			}
		})
	}
}

func streamed(d *call.Decided) {
	d.Request.Streams.Stdout, d.Request.Streams.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
}

// The caller that leaves and the breaker that opens end the retries, also
// while one waits.
func TestRetryNotAfterLeavingOrOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, unavailable)
		b.tool.Def.Reliability.Retry.InitialMS, b.tool.Def.Reliability.Retry.CapMS = 60_000, 60_000
		ctx, leave := context.WithCancel(t.Context())
		go b.call(ctx)
		synctest.Wait()
		leave()
		synctest.Wait()
		time.Sleep(time.Hour)
		if b.ran.Load() != 1 {
			t.Errorf("%d attempts for a caller that left", b.ran.Load())
		}

		b = stages(t, unavailable)
		b.tool.Def.Reliability.Retry.InitialMS, b.tool.Def.Reliability.Retry.CapMS = 60_000, 60_000
		b.tool.Def.Timeout = 3600
		for range 5 { // each fails and waits
			go b.call(t.Context())
		}
		synctest.Wait()
		b.ran.Store(0)
		fast := *b.tool.Def // with the same breaker
		fast.Reliability.Retry.Max = 0
		b.tool = &tools.Tool{Name: "tool", Def: &fast}
		for range 5 {
			b.call(t.Context())
		}
		if b.ran.Load() != 5 {
			t.Fatalf("%d of 5 calls ran", b.ran.Load())
		}
		time.Sleep(29 * time.Second) // the breaker is open
		synctest.Wait()
		time.Sleep(time.Hour) // and later says: those calls are of before
		if b.ran.Load() != 5 {
			t.Errorf("%d retries after the breaker opened", b.ran.Load()-5)
		}
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
			at = append(at, time.Now())
			if len(at) == 1 {
				k.RetryAfter = 20 * time.Second
			}
			return nil, &fault.Error{Code: fault.ToolFailed, Message: "slow down", MayRetry: len(at) == 1}
		})
		b.call(t.Context())
		if len(at) != 2 || at[1].Sub(at[0]) < 20*time.Second {
			t.Errorf("attempts at %v", at)
		}
	})
}

// Shadow decides, logs and counts, and changes nothing.
func TestShadowChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stages(t, unavailable)
		b.mode = config.ReliabilityShadow
		for range 20 {
			if _, e := b.call(t.Context()); e == nil || e.Code != fault.ToolFailed {
				t.Fatalf("%v", e)
			}
		}
		if b.ran.Load() != 20 {
			t.Errorf("20 calls ran %d times", b.ran.Load())
		}
		for _, want := range []string{`{decision="retry",tool="tool"} 5`, `{decision="circuit_open",tool="tool"} 15`} {
			if text := scrape(b.metrics); !strings.Contains(text, "toold_reliability_shadow_total"+want) {
				t.Errorf("the metrics lack %s", want)
			}
		}
		// What only watched has no say in what decides.
		b.mode = config.ReliabilityAll
		if _, e := b.call(t.Context()); e.Code == fault.CircuitOpen {
			t.Error("a breaker that watched refuses")
		}
	})
}

func TestModes(t *testing.T) {
	for _, tt := range []struct {
		host, tool string
		read, mut  call.Mode
	}{
		{"", "", call.Off, call.Off},
		{"off", "", call.Off, call.Off},
		{"shadow", "", call.Shadow, call.Shadow},
		{"read-only", "", call.Enforce, call.Shadow},
		{"all", "", call.Enforce, call.Enforce},
		{"", "all", call.Enforce, call.Enforce},
		{"off", "all", call.Off, call.Off}, // off is off
		{"all", "off", call.Off, call.Off},
		{"all", "shadow", call.Shadow, call.Shadow},
		{"shadow", "read-only", call.Enforce, call.Shadow},
	} {
		mode := (&config.Config{Reliability: tt.host}).ModeOf(tt.tool)
		if call.ModeFor(mode, false) != tt.read || call.ModeFor(mode, true) != tt.mut {
			t.Errorf("host %q, tool %q: %v and %v", tt.host, tt.tool, call.ModeFor(mode, false), call.ModeFor(mode, true))
		}
	}
}

// A call that waits for its turn is of no breaker's business, and breakers are
// bounded.
func TestBreakersAreBounded(t *testing.T) {
	g := Breakers{}
	tool := &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}
	for i := range maxBreakers + 100 {
		g.of(upstream{tool: "tool", identity: fmt.Sprint(i)}, tool)
	}
	if n := len(g.list()); n != maxBreakers || len(g.byKey) != n {
		t.Errorf("%d breakers, %d by key", n, len(g.byKey))
	}
	g.Forget("tool")
	if n := len(g.list()); n != 0 {
		t.Errorf("%d breakers of a tool that is gone", n)
	}
}

// scrape is the metrics as they are scraped.
func scrape(m *observe.Metrics) string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// An upstream that fails for ten seconds under 200 callers gets little more
// than what was asked for, also where no breaker opens.
func TestRetryStorm(t *testing.T) {
	for _, failures := range []int{5, 1_000_000} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			b := stages(t, func(ctx context.Context, k *attempt) (*wire.Result, error) {
				time.Sleep(20 * time.Millisecond)
				if time.Since(start) < 10*time.Second {
					return unavailable(ctx, k)
				}
				return succeed(ctx, k)
			})
			b.tool.Def.Reliability.Breaker.Failures, b.tool.Def.Limits.Concurrency = failures, 200
			if failures > 100 {
				b.tool.Def.Reliability.Breaker.Window = 100_000
			}
			var asked, well atomic.Int64
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() {
					for time.Since(start) < 12*time.Second {
						asked.Add(1)
						if _, e := b.call(t.Context()); e == nil {
							well.Add(1)
						}
						time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
					}
				})
			}
			callers.Wait()
			got, most := b.ran.Load(), 1.2*float64(asked.Load())
			t.Logf("breaker at %d failures: %d calls asked for, the upstream got %d (%.2f times)", failures, asked.Load(), got, float64(got)/float64(asked.Load()))
			if float64(got) > most || got == 0 {
				t.Errorf("%d calls asked for became %d", asked.Load(), got)
			}
			if failures > 100 && (got <= asked.Load() || well.Load() == 0) {
				t.Errorf("of %d calls %d came through, and the upstream got %d: nothing was retried", asked.Load(), well.Load(), got)
			}
		})
	}
}
