package breaker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

func do(t *testing.T, b *Breaker, o Outcome) {
	t.Helper()
	tk, err := b.Enter()
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	tk.Done(o)
}

func TestOpensAfterFiveInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		b := New(Config{OnChange: func(from, to State) { told = append(told, fmt.Sprint(from, ">", to)) }})
		for _, o := range []Outcome{Failure, Failure, Failure, Failure, Success, Failure, Failure, Failure, Neutral, Failure} {
			do(t, b, o)
		}
		if b.State() != Closed {
			t.Fatal("opened before five in a row")
		}
		do(t, b, Failure)
		start := time.Now()
		_, err := b.Enter()
		var open *OpenError
		if !errors.As(err, &open) || open.RetryAfter != 30*time.Second {
			t.Fatalf("the sixth: %v", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("refusing took %v", d)
		}
		time.Sleep(30*time.Second - time.Millisecond)
		if b.State() != Open {
			t.Error("let go too early")
		}
		time.Sleep(time.Millisecond)
		if b.State() != HalfOpen {
			t.Error("not half open after the reset time")
		}
		do(t, b, Success)
		if want := []string{"closed>open", "open>half_open", "half_open>closed"}; fmt.Sprint(told) != fmt.Sprint(want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

func TestAlternatingOpensAtTheHundredth(t *testing.T) {
	b := New(Config{})
	for i := range 100 {
		if b.State() != Closed {
			t.Fatalf("open after %d outcomes", i)
		}
		do(t, b, []Outcome{Success, Failure}[i%2])
	}
	if b.State() != Open {
		t.Error("half of 100 failed and it is closed")
	}
}

func TestOneTrialOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Failures: 1})
		do(t, b, Failure)
		time.Sleep(30 * time.Second)
		in := make(chan *Ticket, 100)
		for range 100 {
			go func() {
				if tk, err := b.Enter(); err == nil {
					in <- tk
				}
			}()
		}
		synctest.Wait()
		if len(in) != 1 {
			t.Fatalf("%d trials run", len(in))
		}
		// A neutral trial is released: the next one runs.
		(<-in).Done(Neutral)
		tk, err := b.Enter()
		if err != nil {
			t.Fatalf("after a neutral trial: %v", err)
		}
		// One that never reports, as after a panic, expires.
		time.Sleep(30 * time.Second)
		second, err := b.Enter()
		if err != nil {
			t.Fatalf("after a trial that expired: %v", err)
		}
		tk.Done(Success)
		if b.State() != HalfOpen {
			t.Errorf("an expired trial closed it: %s", b.State())
		}
		second.Done(Failure)
		if b.State() != Open {
			t.Errorf("a failed trial leaves it %s", b.State())
		}
	})
}

// A breaker of calls that take longer than Reset must still be able to close.
func TestTrialMayTakeLongerThanReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Failures: 1, Trial: 5 * time.Minute})
		do(t, b, Failure)
		time.Sleep(30 * time.Second)
		tk, err := b.Enter()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if _, err := b.Enter(); err == nil {
			t.Error("a second trial beside the first")
		}
		tk.Done(Success)
		if b.State() != Closed {
			t.Errorf("%s after a slow trial that succeeded", b.State())
		}
	})
}

func TestLateResultsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Config{Failures: 1})
		late, err := b.Enter()
		if err != nil {
			t.Fatal(err)
		}
		do(t, b, Failure)
		late.Done(Success)
		if b.State() != Open {
			t.Error("a success from before the opening closed it")
		}
		time.Sleep(30 * time.Second)
		trial, err := b.Enter()
		if err != nil {
			t.Fatal(err)
		}
		b.Reset()
		trial.Done(Failure)
		if b.State() != Closed {
			t.Error("a trial from before the reset opened it")
		}
	})
}

// model is a second implementation of Breaker that evaluates the whole history.
type model struct {
	c       Config
	epoch   int
	state   State
	history []bool // failures since the breaker closed
	until   time.Time
	trial   int
	busy    bool
	expires time.Time
}

func (m *model) to(s State) {
	m.epoch++
	m.state, m.history, m.busy, m.trial = s, nil, false, 0
	if s == Open {
		m.until = time.Now().Add(m.c.Reset)
	}
}

func (m *model) tick() {
	if m.state == Open && !time.Now().Before(m.until) {
		m.to(HalfOpen)
	}
}

func (m *model) enter() (epoch, trial int, ok bool) {
	m.tick()
	switch m.state {
	case Open:
		return 0, 0, false
	case HalfOpen:
		if m.busy && time.Now().Before(m.expires) {
			return 0, 0, false
		}
		m.trial++
		m.busy, m.expires = true, time.Now().Add(max(m.c.Trial, m.c.Reset))
	}
	return m.epoch, m.trial, true
}

// counts returns the part of the history that counts.
func (m *model) counts() (failed, counted int) {
	last := m.history[max(0, len(m.history)-m.c.Window):]
	for _, f := range last {
		if f {
			failed++
		}
	}
	return failed, len(last)
}

// current reports whether an outcome would be counted.
func (m *model) current(epoch, trial int) bool {
	m.tick()
	return epoch == m.epoch && m.state != Open &&
		(m.state == Closed || trial == m.trial && m.busy && time.Now().Before(m.expires))
}

func (m *model) done(epoch, trial int, o Outcome) {
	m.tick()
	if epoch != m.epoch {
		return
	}
	if m.state == HalfOpen {
		if trial != m.trial || !m.busy || !time.Now().Before(m.expires) {
			return
		}
		switch o {
		case Neutral:
			m.busy = false
		case Success:
			m.to(Closed)
		case Failure:
			m.to(Open)
		}
		return
	}
	if o == Neutral {
		return
	}
	m.history = append(m.history, o == Failure)
	n := len(m.history)
	row, failed := 0, 0
	for i := n - 1; i >= 0 && m.history[i]; i-- {
		row++
	}
	for _, f := range m.history[max(0, n-m.c.Window):] {
		if f {
			failed++
		}
	}
	if row >= m.c.Failures || n >= m.c.Window && float64(failed)/float64(m.c.Window) >= m.c.Ratio {
		m.to(Open)
	}
}

// TestAgainstModel runs 10,000 random sequences of calls, late outcomes,
// calls that never answer (as after a panic), resets and time.
func TestAgainstModel(t *testing.T) {
	seen := map[State]int{}
	for seed := range uint64(10000) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			c := Config{Failures: 1 + r.IntN(5), Window: 1 + r.IntN(20), Ratio: []float64{.3, .5, .9, 1}[r.IntN(4)], Reset: time.Second,
				Trial: []time.Duration{0, 700 * time.Millisecond, 2500 * time.Millisecond}[r.IntN(3)]}
			m := &model{c: c, state: Closed}
			b := New(c)
			type ticket struct {
				*Ticket
				epoch, trial int
			}
			var out []ticket
			bias := r.Float64()
			for step := range 60 {
				switch k := r.IntN(10); {
				case k < 4:
					tk, err := b.Enter()
					epoch, trial, ok := m.enter()
					if ok != (err == nil) {
						t.Fatalf("seed %d step %d: let in %v, the model %v", seed, step, err == nil, ok)
					}
					if ok {
						out = append(out, ticket{tk, epoch, trial})
					}
				case k < 8 && len(out) > 0:
					i := r.IntN(len(out))
					if got, want := out[i].Current(), m.current(out[i].epoch, out[i].trial); got != want {
						t.Fatalf("seed %d step %d: a ticket is current: %v, in the model %v", seed, step, got, want)
					}
					o := Success
					if r.Float64() < bias {
						o = Failure
					}
					if r.IntN(6) == 0 {
						o = Neutral
					}
					out[i].Done(o)
					m.done(out[i].epoch, out[i].trial, o)
					out[i].Done(Failure) // does nothing
					out = append(out[:i], out[i+1:]...)
				case k == 8:
					time.Sleep(time.Duration(r.IntN(1200)) * time.Millisecond)
				case k == 9 && r.IntN(20) == 0:
					b.Reset()
					m.to(Closed)
				}
				m.tick()
				if got := b.State(); got != m.state {
					t.Fatalf("seed %d step %d: %s, the model is %s", seed, step, got, m.state)
				}
				seen[m.state]++
				s := b.Snapshot()
				if failed, counted := m.counts(); s.State != m.state || s.Failed != failed || s.Counted != counted {
					t.Fatalf("seed %d step %d: %+v, the model has %d failed of %d", seed, step, s, failed, counted)
				}
			}
		})
	}
	for _, s := range []State{Closed, Open, HalfOpen} {
		if seen[s] < 10000 {
			t.Errorf("the sequences were %s only %d times", s, seen[s])
		}
	}
}
