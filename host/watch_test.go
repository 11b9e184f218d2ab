package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
)

// watching is a client that watches, and what it was told.
type watching struct {
	t     testing.TB
	told  chan events.Event
	ended chan error
	stop  context.CancelFunc
}

// watch begins to watch over a socket, and waits until it does.
func watch(t testing.TB, who client.Sessions, session, after string) *watching {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &watching{t: t, told: make(chan events.Event, 10000), ended: make(chan error, 1), stop: stop}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended <- who.Watch(ctx, session, after, func(e events.Event) error { w.told <- e; return nil })
	}()
	t.Cleanup(func() { stop(); <-done })
	if e := w.next(); e.Kind != events.Ready || e.Cursor == "" {
		t.Fatalf("the first event is %+v", e)
	}
	return w
}

// next waits for an event.
func (w *watching) next() events.Event {
	w.t.Helper()
	select {
	case e := <-w.told:
		return e
	case err := <-w.ended:
		w.ended <- err
		select {
		case e := <-w.told: // it was told before the end
			return e
		default:
		}
		w.t.Fatalf("the watch ended: %v", err)
	}
	panic("not reached")
}

// until waits for an event of a kind, and returns all up to it.
func (w *watching) until(kind events.Kind) []events.Event {
	w.t.Helper()
	var list []events.Event
	for {
		e := w.next()
		if list = append(list, e); e.Kind == kind {
			return list
		}
	}
}

func kinds(list []events.Event) string {
	var words []string
	for _, e := range list {
		words = append(words, string(e.Kind))
	}
	return strings.Join(words, " ")
}

// TestWatch: two clients that watch a session, and one that watches all of its
// identity, are told the same of a call, its output included.
func TestWatch(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "echo", M{}, nil)
	ask(t, d.Socket, M{"tool": "echo", "cwd": d.Root}) // which it is loaded for
	id := newSession(t, d.Socket)
	me := client.Sessions{Socket: d.Socket}
	a, b, all := watch(t, me, id, ""), watch(t, me, id, ""), watch(t, me, "", "")
	operator := watch(t, client.Sessions{Operator: client.NewAdmin(d.Admin)}, "", "")
	ask(t, d.Socket, M{"tool": "echo", "args": []string{"elsewhere"}, "cwd": d.Root})
	turn := session(t, d.Socket, "prompt", M{"id": id, "text": "echo hello"})
	if turn.Status != "success" {
		t.Fatal(turn.raw)
	}
	mine, same := a.until(events.End), b.until(events.End)
	if got := kinds(mine); got != "begin attempt output end" {
		t.Fatalf("told %s", got)
	}
	for i, e := range mine {
		if f := same[i]; asJSON(t, e) != asJSON(t, f) {
			t.Errorf("the two are told %+v and %+v", e, f)
		}
		if e.Session != id || e.Owner != "" || e.At.IsZero() || e.Cursor == "" {
			t.Errorf("%+v", e)
		}
	}
	if e := mine[2]; string(e.Data) != "hello\n" || e.Stream != "stdout" || e.LastLine != "hello" {
		t.Errorf("output: %+v", e)
	}
	if e := mine[3]; e.Tool != "echo" || e.Type != "turn" || e.Status != "success" || e.BytesOut != 6 || e.Attempts != 1 {
		t.Errorf("end: %+v", e)
	}
	list := append(all.until(events.End), all.until(events.End)...)
	if got := kinds(list); got != "begin attempt output end begin attempt output end" {
		t.Errorf("all of the identity: %s", got)
	}
	list = append(operator.until(events.End), operator.until(events.End)...)
	if got := kinds(list); got != "begin attempt output end begin attempt output end" {
		t.Errorf("the operator: %s", got)
	}
	for _, e := range list {
		if e.Owner == "" || e.Data != nil {
			t.Errorf("to the operator: %+v", e)
		}
	}
	if e := list[6]; e.LastLine != "hello" || e.Bytes != 6 {
		t.Errorf("output to the operator: %+v", e)
	}
	session(t, d.Socket, "mutate", M{"op": "close", "id": id})
	if list := a.until(events.State); list[len(list)-1].State != "closing" {
		t.Errorf("%+v", list)
	}
	if list := a.until(events.State); list[len(list)-1].State != "closed" {
		t.Errorf("%+v", list)
	}
	if err := <-a.ended; err != nil {
		t.Errorf("the watch of a session that was closed ended with %v", err)
	}
	err := me.Watch(t.Context(), "nosuch", "", func(events.Event) error { return nil })
	if e := (*fault.Error)(nil); !errors.As(err, &e) || e.Code != fault.SessionNotFound {
		t.Errorf("a session that is not there: %v", err)
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
