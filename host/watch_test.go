package host_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// watching is a client that watches, and what it was told.
type watching struct {
	t     testing.TB
	from  string // where it begins
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
	e := w.next()
	if e.Kind != events.Ready || e.Cursor == "" {
		t.Fatalf("the first event is %+v", e)
	}
	w.from = e.Cursor
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

// refused is the code with which a watch is refused.
func refused(t testing.TB, who client.Sessions, session, after string) fault.Code {
	t.Helper()
	err := who.Watch(t.Context(), session, after, func(e events.Event) error {
		return errors.New("it is told " + string(e.Kind))
	})
	if e := (*fault.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	t.Fatalf("the watch of %q after %q: %v", session, after, err)
	return ""
}

// TestWatchRights: an identity watches its own sessions only, and learns of no other;
// what it is told has no arguments, input or variables, and no secret in its output.
func TestWatchRights(t *testing.T) {
	issuer := hosttest.NewIssuer(t)
	d := hosttest.Start(t, config.Config{
		Identity: config.IdentityConfig{JWKS: issuer.JWKS},
		Sockets:  []config.Socket{{Path: filepath.Join(t.TempDir(), "s.sock"), Categories: []string{"shells"}}},
	})
	const secret = "ghp_0123456789abcdefABCDEFXYZ0987654321"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	def := M{
		"binary": "/bin/bash", "stdin": true, "category": "shells", "secrets": M{"token": M{"from": "file:" + file, "env": "TOKEN"}},
		"capabilities": M{"exec": []string{"/usr/bin", "/bin"}, "env": []string{"SHOWN"}},
	}
	d.Tool(t, "sh", def, nil)
	alice, bob := issuer.Token(t, M{"sub": "alice"}), issuer.Token(t, M{"sub": "bob"})
	script := `read line; echo got ${#line} ${#SHOWN}; printf '%s' "${TOKEN:0:20}"; printf '%s\n' "${TOKEN:20}" >&2`
	call := func(token string, script string) *answer {
		return ask(t, d.Socket, M{
			"tool": "sh", "token": token, "cwd": d.Root, "args": []string{"-c", script},
			"stdin": []byte("input-of-hers\n"), "env": M{"SHOWN": "variable-of-hers"},
		})
	}
	for _, token := range []string{alice, bob} {
		if a := call(token, "true"); a.ExitCode != 0 {
			t.Fatal(a.raw)
		}
	}
	hers, his := client.Sessions{Socket: d.Socket, Token: alice}, client.Sessions{Socket: d.Socket, Token: bob}
	var her struct{ ID string }
	if data, err := hers.Do(t.Context(), client.SessionCall{Name: "mutate", Payload: M{"op": "create"}}); err != nil || json.Unmarshal(data, &her) != nil {
		t.Fatal(err)
	}
	// Another's session, also one that was closed, is like none at all.
	unknown := his.Watch(t.Context(), "aaaaaaaaaaaaaaaaaaaaaaaa", "", nil)
	closed := false
	for range 2 {
		err := his.Watch(t.Context(), her.ID, "", nil)
		if refused(t, his, her.ID, "") != fault.SessionNotFound || strings.ReplaceAll(err.Error(), her.ID, "aaaaaaaaaaaaaaaaaaaaaaaa") != unknown.Error() {
			t.Errorf("another's session, closed %v: %v", closed, err)
		}
		if _, err := hers.Do(t.Context(), client.SessionCall{Name: "mutate", Payload: M{"op": "close", "id": her.ID}}); err != nil {
			t.Fatal(err)
		}
		closed = true
	}
	if refused(t, client.Sessions{Socket: d.Socket}, "", "") != fault.Unauthenticated {
		t.Error("who has no token watches")
	}

	mine, theirs := watch(t, hers, "", ""), watch(t, his, "", "")
	operator := watch(t, client.Sessions{Operator: client.NewAdmin(d.Admin)}, "", "")
	elsewhere := watch(t, client.Sessions{Socket: d.Sockets[0].Path, Token: alice}, "", "")
	a := call(alice, script)
	if a.Stdout != "got 13 16\n[secret]" || a.Stderr != "[secret]\n" {
		t.Fatal(a.raw)
	}
	d.Tool(t, "other", M{"binary": "/bin/true", "category": "others"}, nil)
	d.Tool(t, "also", def, nil)
	for name, w := range map[string]*watching{"her": mine, "the operator": operator, "a socket": elsewhere} {
		var list []events.Event
		for len(list) == 0 || list[len(list)-1].Tool != "also" {
			e := w.next()
			if e.Kind == events.Tool && e.Tool == "other" && w == elsewhere {
				t.Error("a socket tells of a tool that it does not serve")
			}
			if e.Kind == events.Tool && e.Tool == "sh" {
				continue
			}
			list = append(list, e)
		}
		said, out := asJSON(t, list), ""
		for _, e := range list {
			if out += string(e.Data); e.Stream == "stderr" {
				out += "|"
			}
		}
		for _, word := range []string{"input-of", "variable-of", "printf", secret[:8], secret[20:], alice, file} {
			if strings.Contains(said, word) || strings.Contains(out, word) {
				t.Errorf("%s is told %q: %s", name, word, said)
			}
		}
		if name != "the operator" && (!strings.Contains(out, "got 13 16\n") || strings.Count(out, "[secret]") != 2) {
			t.Errorf("%s is told the output %q", name, out)
		}
	}
	// He was told of nothing, but of tools.
	for {
		e := theirs.next()
		if e.Kind != events.Tool {
			t.Fatalf("another is told %+v", e)
		}
		if e.Tool == "also" {
			break
		}
	}
}

// TestWatchForms: what is not an envelope that streams is refused, and so are other
// payloads and watches that modules or jobs would make.
func TestWatchForms(t *testing.T) {
	d := sessionDaemon(t, config.Config{Sessions: config.SessionsConfig{Watchers: 2}})
	envelope := func(more M) M {
		q := M{"toolId": "session.watch", "executionId": newExecution(), "payload": M{}, "stream": true}
		maps.Copy(q, more)
		return q
	}
	for name, tt := range map[string]struct {
		ask  M
		code string
	}{
		"not streamed":     {envelope(M{"stream": false}), "INVALID_ENVELOPE"},
		"plain":            {M{"tool": "session.watch", "stream": true}, "INVALID_ENVELOPE"},
		"in background":    {envelope(M{"background": true}), "INVALID_ENVELOPE"},
		"unknown field":    {envelope(M{"payload": M{"since": "x"}}), "INVALID_PAYLOAD"},
		"two sessions":     {envelope(M{"payload": M{"id": "a", "session": "b"}}), "INVALID_PAYLOAD"},
		"no cursor":        {envelope(M{"payload": M{"after": "1"}}), "INVALID_PAYLOAD"},
		"no session":       {envelope(M{"payload": M{"session": "nosuch"}}), "SESSION_NOT_FOUND"},
		"no session of it": {envelope(M{"session": "nosuch"}), "SESSION_NOT_FOUND"},
	} {
		a := ask(t, d.Socket, tt.ask)
		p, err := wire.ParseResponse(a.raw)
		if err != nil || p.Result == nil || p.Result.Err == nil || string(p.Result.Err.Code) != tt.code {
			t.Errorf("%s: %s", name, a.raw)
		}
	}
	me := client.Sessions{Socket: d.Socket}
	first, _ := watch(t, me, "", ""), watch(t, me, "default", "")
	if code := refused(t, me, "", ""); code != fault.LimitExceeded {
		t.Errorf("one watcher more than the limit is %s", code)
	}
	operator := client.Sessions{Operator: client.NewAdmin(d.Admin)}
	watch(t, operator, "", "")
	watch(t, operator, newSession(t, d.Socket), "")
	if code := refused(t, operator, "", ""); code != fault.LimitExceeded {
		t.Errorf("one operator more than the limit is %s", code)
	}
	first.stop()
	until(t, "there is room for another", func() bool {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		told := false
		me.Watch(ctx, "", "", func(events.Event) error { told = true; stop(); return nil })
		return told
	})
}

// TestWatchResumes: the events of a client that leaves and comes back at random, while
// calls, turns, jobs and steering go on, are those of one that stays.
func TestWatchResumes(t *testing.T) {
	d := sessionDaemon(t, config.Config{Sessions: config.SessionsConfig{WatchEvents: 100000, WatchOutput: 64 << 20}})
	ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", ":"}, "cwd": d.Root})
	ask(t, d.Socket, M{"tool": "cat", "stdin": []byte("x"), "cwd": d.Root})
	id := newSession(t, d.Socket)
	me := client.Sessions{Socket: d.Socket}
	stays := watch(t, me, id, "")
	leaves := watch(t, me, id, stays.from) // a tool may be loaded in between, which both are told
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for n := range 15 {
				q := M{"tool": "sh", "args": []string{"-c", fmt.Sprintf("echo %d of %d; echo err >&2; exit %d", n, i, n%2)}, "cwd": d.Root, "session": id}
				if n%5 == 4 {
					q["background"] = true
				}
				ask(t, d.Socket, q)
			}
		})
	}
	work.Go(func() {
		for range 5 {
			session(t, d.Socket, "prompt", M{"id": id, "text": "cat", "queue": true})
		}
	})
	work.Go(func() {
		for steered := 0; steered < 5; {
			if a := session(t, d.Socket, "steer", M{"id": id, "text": "hello\n", "eof": true}); a.Status == "success" {
				steered++
			}
		}
	})
	done := make(chan struct{})
	go func() { work.Wait(); close(done) }()
	r := rand.New(rand.NewPCG(1, 2))
	var got []events.Event
	after, cuts := leaves.from, 0
	for over := false; !over; cuts++ {
		for range 1 + r.IntN(40) {
			select {
			case e := <-leaves.told:
				got, after = append(got, e), e.Cursor
				continue
			case <-done:
				over = true
			}
			break
		}
		leaves.stop()
		leaves = watch(t, me, id, after) // what was sent and not read is sent again
	}
	session(t, d.Socket, "mutate", M{"id": id, "op": "rename", "params": M{"name": "done"}})
	session(t, d.Socket, "mutate", M{"id": id, "op": "close"})
	want := stays.rest()
	got = append(got, leaves.rest()...)
	if len(want) < 300 || cuts < 3 {
		t.Errorf("%d events and %d cuts show little", len(want), cuts)
	}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || asJSON(t, want[i]) != asJSON(t, got[i]) {
			t.Fatalf("event %d of %d and %d is another:\n%s\n%s", i, len(want), len(got), asJSON(t, want[i:min(i+1, len(want))]), asJSON(t, got[i:min(i+1, len(got))]))
		}
	}
	count := map[events.Kind]int{}
	for _, e := range want {
		count[e.Kind]++
	}
	if count[events.Begin] != 65 || count[events.End] != 65 || count[events.Job] != 24 || count[events.Steer] != 5 || count[events.Settings] != 1 || count[events.State] != 2 {
		t.Errorf("there were %v", count)
	}
}

// rest is what is told until the end, without an error.
func (w *watching) rest() []events.Event {
	w.t.Helper()
	if err := <-w.ended; err != nil {
		w.t.Fatal(err)
	}
	w.ended <- nil
	close(w.told)
	var list []events.Event
	for e := range w.told {
		list = append(list, e)
	}
	return list
}

// TestWatchSlow: a watcher that does not read holds up no call; it is cut, its
// connection is ended, and what it has read by then says where to resume and what was
// lost. One that does not read holds up no end of the daemon either, and nothing is
// left of any.
func TestWatchSlow(t *testing.T) {
	d := sessionDaemon(t, config.Config{Sessions: config.SessionsConfig{WatchEvents: 8}})
	big := M{"tool": "sh", "args": []string{"-c", "head -c 100000 /dev/zero"}, "cwd": d.Root}
	ask(t, d.Socket, big)
	goroutines := runtime.NumGoroutine()
	slow := talk(t, d.Socket)
	slow.send(M{"toolId": "session.watch", "executionId": newExecution(), "payload": M{}, "stream": true})
	var ready struct{ Data events.Event }
	if raw, err := wire.ReadFrame(slow.c); err != nil || json.Unmarshal(raw, &ready) != nil || ready.Data.Kind != events.Ready {
		t.Fatalf("%v: %s", err, raw)
	}
	fast := watch(t, client.Sessions{Socket: d.Socket}, "", "")
	calls := talk(t, d.Socket)
	for range 40 {
		if a := calls.ask(big); a.ExitCode != 0 {
			t.Fatal(a.raw)
		}
	}
	var told, lost events.Loss
	count := func(e events.Event) {
		switch l := e.Lost; {
		case e.Kind == events.Ready || e.Kind == events.Cut:
		case l != nil:
			lost.State, lost.Output, lost.Bytes = lost.State+l.State, lost.Output+l.Output, lost.Bytes+l.Bytes
		case e.Kind == events.Output:
			told.Output, told.Bytes = told.Output+1, told.Bytes+int64(e.Bytes)
		default:
			told.State++
		}
	}
	// Its connection ends by itself. Until then nothing is read from it.
	hangup(t, slow.c)
	after := ready.Data.Cursor
	in := bufio.NewReader(slow.c)
	for {
		raw, err := wire.ReadFrame(in)
		if err != nil {
			break
		}
		var frame struct{ Data events.Event }
		if err := json.Unmarshal(raw, &frame); err != nil {
			t.Fatal(err)
		}
		count(frame.Data)
		after = frame.Data.Cursor
	}
	again := watch(t, client.Sessions{Socket: d.Socket}, "", after)
	ask(t, d.Socket, M{"tool": "sh", "args": []string{"-c", "echo the last one"}, "cwd": d.Root})
	for e := again.next(); ; e = again.next() {
		count(e)
		if e.Kind == events.End && e.BytesOut == 13 {
			break
		}
	}
	slowTold, slowLost := told, lost
	told, lost = events.Loss{}, events.Loss{}
	for e := fast.next(); ; e = fast.next() {
		count(e)
		if e.Kind == events.End && e.BytesOut == 13 {
			break
		}
	}
	sum := func(told, lost events.Loss) string {
		return fmt.Sprint(told.State+lost.State, told.Output+lost.Output, told.Bytes+lost.Bytes)
	}
	if sum(told, lost) != sum(slowTold, slowLost) || told.Bytes+lost.Bytes != 40*100000+13 || slowLost.State == 0 || slowLost.Output == 0 {
		t.Errorf("who reads was told %+v and lost %+v, who does not %+v and %+v", told, lost, slowTold, slowLost)
	}
	again.stop()
	fast.stop()
	calls.c.Close()
	until(t, "nothing is left of watchers", func() bool { return runtime.NumGoroutine() <= goroutines })

	never := talk(t, d.Socket)
	never.send(M{"toolId": "session.watch", "executionId": newExecution(), "payload": M{}, "stream": true})
	if _, err := wire.ReadFrame(never.c); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		ask(t, d.Socket, big)
	}
	d.Stop(t) // which is an error where a connection had to be closed
}

// hangup waits until the other end has closed a connection, and reads nothing.
func hangup(t testing.TB, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}} // POLLHUP is always told
		for {
			n, err := unix.Poll(p, 30_000)
			if err == unix.EINTR {
				continue
			}
			if n != 1 || err != nil {
				t.Errorf("the connection was not ended: %v", err)
			}
			return
		}
	})
}

// TestWatchRestart: a cursor of before a restart is answered with a reset, and a watch
// over the end of the daemon is told that it ends.
func TestWatchRestart(t *testing.T) {
	state := t.TempDir()
	d := hosttest.Start(t, config.Config{State: state})
	me := client.Sessions{Socket: d.Socket}
	id := newSession(t, d.Socket)
	w := watch(t, me, id, "")
	session(t, d.Socket, "mutate", M{"id": id, "op": "rename", "params": M{"name": "kept"}})
	after := w.next().Cursor
	d.Stop(t)
	if e := w.next(); e.Kind != events.Cut || e.Cursor != after || e.Reason == "" {
		t.Errorf("at the end of the daemon: %+v", e)
	}
	if e := (*fault.Error)(nil); !errors.As(<-w.ended, &e) || e.Code != fault.Overloaded {
		t.Errorf("at the end of the daemon: %v", e)
	}
	w.ended <- nil
	again := hosttest.Start(t, config.Config{State: state})
	w = watch(t, client.Sessions{Socket: again.Socket}, id, after)
	if e := w.next(); e.Kind != events.Lost || !e.Lost.Reset {
		t.Errorf("after a restart: %+v", e)
	}
}
