package host

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

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// bench is the reliability stages of a daemon under fake time, over a tool
// that the test makes up.
type bench struct {
	*Host
	t    *testing.T
	logs bytes.Buffer
	tool *tools.Tool
	mode string
	ran  atomic.Int64
}

// stages is a bench whose tool answers what run says, in mode "all".
func stages(t *testing.T, run func(ctx context.Context, k *call) (*wire.Result, error)) *bench {
	b := &bench{t: t, mode: config.ReliabilityAll, tool: &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}}
	b.Host = &Host{metrics: observe.New(), log: slog.New(slog.NewJSONHandler(&b.logs, nil))}
	b.guards.onChange = b.breakerChanged
	b.metrics.Watch(observe.Now{})
	b.ending, b.end = context.WithCancelCause(t.Context())
	if err := b.openRecords(t.Context(), &config.Config{Store: "memory"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.records.Close(); b.watched.Close() })
	b.Host.run = func(ctx context.Context, k *call) (*wire.Result, error) {
		b.ran.Add(1)
		if err := k.begin(ctx); err != nil {
			return nil, err
		}
		return run(ctx, k)
	}
	return b
}

// call is a call from the idempotency stage on; change makes it different.
func (b *bench) call(ctx context.Context, change ...func(*call)) (*wire.Result, *fault.Error) {
	k := &call{Call: &wire.Call{Tool: b.tool.Name, ExecutionID: "6fa459ea-ee8a-4ca4-894e-db77e160355e", Payload: []byte(`{"n":1}`)}, tool: b.tool, caller: identity.Caller{ID: "somebody"}}
	k.mutating, k.idempotent = b.tool.Def.Mutating, b.tool.Def.Idempotent
	for _, f := range change {
		f(k)
	}
	k.stance = stanceTo(b.mode, k.mutating)
	ctx, cancel := context.WithTimeout(ctx, b.tool.Def.Timeout.Duration())
	defer cancel()
	res, err := b.keyed(ctx, k)
	return res, asErrorOrNil(ctx, err)
}

func mutating(k *call)   { k.mutating = true }
func idempotent(k *call) { k.idempotent = true }

func succeed(context.Context, *call) (*wire.Result, error) { return &wire.Result{Ran: true}, nil }
func answerNo(context.Context, *call) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, nil
}

// Failures of an upstream, as a handler answers them.
func unavailable(context.Context, *call) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, &fault.Error{Code: fault.ToolFailed, Message: "503", MayRetry: true}
}
func badRequest(context.Context, *call) (*wire.Result, error) {
	return &wire.Result{Ran: true, ExitCode: 1}, &fault.Error{Code: fault.ToolFailed, Message: "400"}
}

// only runs a call once, so that each is one failure.
func (b *bench) noRetries() { b.tool.Def.Reliability.Retry.Max = 0 }

func TestBreakerRefusesTheSixth(t *testing.T) {
	for name, fail := range map[string]func(context.Context, *call) (*wire.Result, error){
		"retriable": unavailable,
		"timeout": func(ctx context.Context, _ *call) (*wire.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"trap": func(context.Context, *call) (*wire.Result, error) { return nil, &fault.Error{Code: fault.GuestTrap} },
		"declared exit": func(_ context.Context, k *call) (*wire.Result, error) {
			k.exitFailed = true
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
				if e == nil || e.Code != fault.CircuitOpen || res != nil || !e.Retriable() {
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
	for name, run := range map[string]func(context.Context, *call) (*wire.Result, error){
		"an exit code":       answerNo,
		"a failure for good": badRequest,
		"the caller left": func(context.Context, *call) (*wire.Result, error) {
			return nil, &fault.Error{Code: fault.Aborted}
		},
		"a call that never began": func(_ context.Context, k *call) (*wire.Result, error) {
			k.began = false
			return nil, &fault.Error{Code: fault.Timeout}
		},
		"no room": func(context.Context, *call) (*wire.Result, error) { return nil, &fault.Error{Code: fault.Overloaded} },
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
		b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) { return run(ctx, k) })
		b.noRetries()
		for range 5 {
			b.call(t.Context())
		}
		time.Sleep(30 * time.Second)
		release := make(chan struct{})
		run = func(context.Context, *call) (*wire.Result, error) { <-release; return &wire.Result{Ran: true}, nil }
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
		b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) { return run(ctx, k) })
		b.noRetries()
		for range 5 {
			b.call(t.Context())
		}
		time.Sleep(30 * time.Second)
		run = func(context.Context, *call) (*wire.Result, error) { panic("a fault of ours") }
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
		b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) {
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
			b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) {
				if k.caller.ID == "dead" {
					return unavailable(ctx, k)
				}
				return succeed(ctx, k)
			})
			b.noRetries()
			b.tool.Def.Identity.Claims = claims
			for range 5 {
				b.call(t.Context(), func(k *call) { k.caller.ID = "dead" })
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
		b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) {
			at, attempts = append(at, time.Since(start)), append(attempts, k.attempt)
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
		run    func(context.Context, *call) (*wire.Result, error)
		change []func(*call)
		want   int64
	}{
		{"503", unavailable, nil, 4},
		{"400", badRequest, nil, 1},
		{"an exit code", answerNo, nil, 1},
		{"a trap", func(context.Context, *call) (*wire.Result, error) { return nil, &fault.Error{Code: fault.GuestTrap} }, nil, 1},
		{"no room here", func(context.Context, *call) (*wire.Result, error) { return nil, &fault.Error{Code: fault.Overloaded} }, nil, 1},
		{"mutating 503", unavailable, []func(*call){mutating}, 1},
		{"mutating 503, declared idempotent", unavailable, []func(*call){mutating, idempotent}, 4},
		{"output was passed on", func(ctx context.Context, k *call) (*wire.Result, error) {
			k.streams.Stdout.Write([]byte("so far"))
			return unavailable(ctx, k)
		}, []func(*call){streamed}, 1},
		{"only diagnostics were passed on", func(ctx context.Context, k *call) (*wire.Result, error) {
			k.streams.Stderr.Write([]byte("curl: (7)"))
			return unavailable(ctx, k)
		}, []func(*call){streamed}, 4},
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

func streamed(k *call) { k.streams.Stdout, k.streams.Stderr = &bytes.Buffer{}, &bytes.Buffer{} }

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
		b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) {
			at = append(at, time.Now())
			k.answered = false
			if len(at) == 1 {
				k.upstreamAnswered(429, "20")
			} else {
				k.upstreamAnswered(200, "")
			}
			return nil, k.blameUpstream(&fault.Error{Code: fault.ToolFailed, Message: "slow down"})
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
		read, mut  stance
	}{
		{"", "", absent, absent},
		{"off", "", absent, absent},
		{"shadow", "", shadows, shadows},
		{"read-only", "", acts, shadows},
		{"all", "", acts, acts},
		{"", "all", acts, acts},
		{"off", "all", absent, absent}, // off is off
		{"all", "off", absent, absent},
		{"all", "shadow", shadows, shadows},
		{"shadow", "read-only", acts, shadows},
	} {
		mode := (&config.Config{Reliability: tt.host}).ModeOf(tt.tool)
		if stanceTo(mode, false) != tt.read || stanceTo(mode, true) != tt.mut {
			t.Errorf("host %q, tool %q: %v and %v", tt.host, tt.tool, stanceTo(mode, false), stanceTo(mode, true))
		}
	}
}

// A call that waits for its turn is of no breaker's business, and guards are
// bounded.
func TestGuardsAreBounded(t *testing.T) {
	g := guards{}
	tool := &tools.Tool{Name: "tool", Def: tools.DefaultDefinition()}
	for i := range maxGuards + 100 {
		g.of(upstream{tool: "tool", identity: fmt.Sprint(i)}, tool)
	}
	if n := len(g.list()); n != maxGuards || len(g.byKey) != n {
		t.Errorf("%d guards, %d by key", n, len(g.byKey))
	}
	g.forget("tool")
	if n := len(g.list()); n != 0 {
		t.Errorf("%d guards of a tool that is gone", n)
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
			b := stages(t, func(ctx context.Context, k *call) (*wire.Result, error) {
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
