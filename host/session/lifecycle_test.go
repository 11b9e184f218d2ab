package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/job"
	"github.com/toold/toold/host/selector"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// serve makes one of the five calls and returns its data or error code.
func call(tab *Table, who, name, payload string) (string, fault.Code, string) {
	return callKeyed(tab, who, name, payload, "")
}

func callKeyed(tab *Table, who, name, payload, key string) (string, fault.Code, string) {
	r := &Request{
		Call:   &wire.Call{Form: wire.Envelope, Tool: "session." + name, ExecutionID: "e", Payload: json.RawMessage(payload), IdempotencyKey: key},
		Caller: who, Cwd: "/work",
		Run: func(ctx context.Context, c *wire.Call) *wire.Result {
			s, err := tab.Find(who, c.Session)
			if err != nil {
				return &wire.Result{Err: err.(*fault.Error)}
			}
			x, err := s.Begin(ctx, Spec{ID: c.ExecutionID, Tool: c.Tool, Kind: KindTurn})
			if err != nil {
				return &wire.Result{Err: err.(*fault.Error)}
			}
			x.Attempt(false)
			<-x.Context().Done()
			res := &wire.Result{Err: context.Cause(x.Context()).(*fault.Error)}
			x.End(res)
			return res
		},
	}
	res, err := tab.Serve(context.Background(), r)
	var e *fault.Error
	if errors.As(err, &e) {
		return "", e.Code, e.Message
	}
	if res.Err != nil {
		return string(res.Data), res.Err.Code, res.Err.Message
	}
	return string(res.Data), "", ""
}

func TestLimit(t *testing.T) {
	tab, _ := open(t, Config{Limit: 3})
	tab.Find("me", "") // does not count
	var ids []string
	for range 3 {
		data, code, _ := call(tab, "me", "mutate", `{"op":"create"}`)
		if code != "" {
			t.Fatal(code)
		}
		ids = append(ids, strings.Split(data, `"`)[3])
	}
	if _, code, message := call(tab, "me", "mutate", `{"op":"create"}`); code != fault.SessionLimit || !strings.Contains(message, "3") {
		t.Errorf("the fourth: %s %s", code, message)
	}
	if _, code, _ := call(tab, "you", "mutate", `{"op":"create"}`); code != "" {
		t.Errorf("of somebody else: %s", code)
	}
	// None was evicted, and closing one makes room.
	for _, id := range ids {
		if _, code, _ := call(tab, "me", "query", `{"id":"`+id+`"}`); code != "" {
			t.Errorf("%s: %s", id, code)
		}
	}
	call(tab, "me", "mutate", `{"op":"close","id":"`+ids[0]+`"}`)
	if _, code, _ := call(tab, "me", "mutate", `{"op":"create"}`); code != "" {
		t.Errorf("after closing one: %s", code)
	}
}

func TestCreateOnce(t *testing.T) {
	dir := t.TempDir()
	tab, _ := open(t, Config{Dir: dir})
	const create = `{"op":"create","params":{"name":"a"}}`
	one, code, _ := callKeyed(tab, "me", "mutate", create, "k")
	if code != "" {
		t.Fatal(code)
	}
	if two, _, _ := callKeyed(tab, "me", "mutate", create, "k"); two != one {
		t.Errorf("made again: %s and %s", one, two)
	}
	if _, code, _ := callKeyed(tab, "me", "mutate", `{"op":"create","params":{"name":"b"}}`, "k"); code != fault.IdempotencyKeyReused {
		t.Errorf("another with the same key: %s", code)
	}
	if other, _, _ := callKeyed(tab, "you", "mutate", create, "k"); other == one {
		t.Error("a key of somebody else's")
	}
	again, _ := open(t, Config{Dir: dir})
	if two, _, _ := callKeyed(again, "me", "mutate", create, "k"); two != one {
		t.Errorf("after a restart: %s and %s", one, two)
	}
	// A failure leaves the key free.
	if _, code, _ := callKeyed(tab, "me", "mutate", `{"op":"rename","id":"nosuch"}`, "f"); code != fault.SessionNotFound {
		t.Errorf("%s", code)
	}
	if _, code, _ := callKeyed(tab, "me", "mutate", create, "f"); code != "" {
		t.Errorf("%s", code)
	}
}

// TestOtherIdentities: for every call, another identity's session gives the same
// answer as one that never existed.
func TestOtherIdentities(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	closed := explicit(t, tab, "me")
	closed.close()
	<-closed.done
	never := newID()
	run(t, s, "e1", false)
	for _, c := range []struct{ name, payload string }{
		{"query", `{"id":"ID"}`},
		{"query", `{"id":"ID","selector":"session.journal"}`},
		{"mutate", `{"id":"ID","op":"rename"}`},
		{"mutate", `{"id":"ID","op":"close"}`},
		{"mutate", `{"id":"ID","op":"suspend"}`},
		{"mutate", `{"id":"ID","op":"resume"}`},
		{"mutate", `{"id":"ID","op":"flush"}`},
		{"mutate", `{"id":"ID","op":"set-tools"}`},
		{"mutate", `{"id":"ID","op":"label"}`},
		{"mutate", `{"op":"create","params":{"parent":"ID"}}`},
		{"prompt", `{"id":"ID","text":"git"}`},
		{"prompt", `{"id":"ID","text":"'"}`},
		{"abort", `{"id":"ID"}`},
		{"abort", `{"id":"ID","execution":"e1"}`},
		{"steer", `{"id":"ID","text":"x"}`},
		{"steer", `{"id":"ID","execution":"e1","text":"x"}`},
	} {
		ask := func(id string) string {
			data, code, message := call(tab, "you", c.name, strings.ReplaceAll(c.payload, "ID", id))
			return strings.ReplaceAll(data+string(code)+message, id, "ID")
		}
		want := ask(never)
		if !strings.HasPrefix(want, string(fault.SessionNotFound)) {
			t.Errorf("%s %s of none: %s", c.name, c.payload, want)
		}
		for _, id := range []string{s.id, closed.id} {
			if got := ask(id); got != want {
				t.Errorf("%s %s: %s, of none: %s", c.name, c.payload, got, want)
			}
		}
	}
	// Nor is it in any list.
	if data, _, _ := call(tab, "you", "query", `{"selector":"[sessions, jobs, session]"}`); strings.Contains(data, s.id) || strings.Contains(data, `"me"`) {
		t.Errorf("it is listed: %s", data)
	}
	if len(s.running) != 1 || s.state != Active {
		t.Errorf("it was touched: %s", s.state)
	}
}

// BenchmarkOtherIdentities: both lookups take the same time.
func BenchmarkOtherIdentities(b *testing.B) {
	tab, _ := open(b, Config{})
	s := explicit(b, tab, "me")
	tab.Find("you", "")
	for name, id := range map[string]string{"another's": s.id, "none": newID()} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := tab.Find("you", id); err == nil {
					b.Fatal("found")
				}
			}
		})
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		parent := explicit(t, tab, "me")
		var children []*Session
		for range 2 {
			c, err := tab.create("me", parent, &params{Cwd: "/"}, "", "")
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, c)
		}
		start := func(s *Session, id string, detach bool) *job.Job {
			j, err := tab.NewJob("me", s.id, false, &wire.Call{ExecutionID: id, Tool: "t", Detach: detach}, nil)
			if err != nil {
				t.Fatal(err)
			}
			x, err := s.Begin(context.Background(), Spec{ID: id, Tool: "t", Kind: KindJob, Job: j})
			if err != nil {
				t.Fatal(err)
			}
			j.Admit()
			x.Attempt(true)
			go func() { // the tool, which ends when it is told to
				<-x.Context().Done()
				x.End(&wire.Result{Err: context.Cause(x.Context()).(*fault.Error)})
			}()
			return j
		}
		stays, ends := start(children[0], "stays", true), start(children[0], "ends", false)
		began := time.Now()
		data, code, _ := call(tab, "me", "mutate", `{"op":"close","id":"`+parent.id+`"}`)
		if code != "" || !strings.Contains(data, parent.id) {
			t.Fatalf("%s %s", data, code)
		}
		// From now on nothing can be called in any of them, and closing again is
		// no error.
		for _, s := range append(children, parent) {
			if _, err := tab.Find("me", s.id); err == nil {
				t.Error("a closed session is found")
			}
			if _, err := s.Begin(context.Background(), Spec{ID: "late"}); err == nil || !strings.Contains(err.Error(), "SESSION_NOT_FOUND") {
				t.Errorf("a call in a closed session: %v", err)
			}
			if _, code, _ := call(tab, "me", "mutate", `{"op":"close","id":"`+s.id+`"}`); code != "" {
				t.Errorf("closing again: %s", code)
			}
		}
		if _, err := tab.create("me", parent, &params{Cwd: "/"}, "", ""); err == nil {
			t.Error("a closed session got a child")
		}
		<-children[1].done
		if d := time.Since(began); d != 0 {
			t.Errorf("the idle child took %v", d)
		}
		synctest.Wait()
		if ends.Done() || stateOf(parent) != Closing {
			t.Errorf("before the grace the job is done: %v; the parent is %s", ends.Done(), stateOf(parent))
		}
		<-parent.done
		if d := time.Since(began); d != defaultGrace {
			t.Errorf("the parent took %v, must be %v", d, defaultGrace)
		}
		select {
		case <-children[0].done:
		default:
			t.Error("the parent was closed before its child")
		}
		if end := ends.Snapshot(time.Now(), false); end["state"] != "done" || end["code"] != string(fault.OutcomeUnknown) {
			t.Errorf("the job that ends: %v", end)
		}
		if stays.Done() {
			t.Error("the detached job was ended")
		}
		// The same identity still reads and ends it.
		if data, _, _ := call(tab, "me", "query", `{"selector":"jobs.map(j, j.id + j.state)"}`); !strings.Contains(data, "staysrunning") || !strings.Contains(data, "endsdone") {
			t.Errorf("jobs: %s", data)
		}
		if data, _, _ := call(tab, "you", "query", `{"selector":"jobs"}`); strings.Contains(data, "stays") {
			t.Errorf("jobs of another: %s", data)
		}
		if _, code, _ := call(tab, "you", "mutate", `{"op":"cancel-job","params":{"job":"stays"}}`); code != fault.NotRunning {
			t.Errorf("another's job: %s", code)
		}
		call(tab, "me", "mutate", `{"op":"cancel-job","params":{"job":"stays"}}`)
		synctest.Wait()
		if !stays.Done() {
			t.Error("the job that was cancelled runs")
		}
		if o := tab.ownerOf("me"); o.explicit != 0 {
			t.Errorf("%d still count", o.explicit)
		}
		tab.Close(ended())
	})
}

func stateOf(s *Session) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// TestIdle: an idle session is suspended, resumed by its next call, and closed
// after a day of suspension.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		s, busy := explicit(t, tab, "me"), explicit(t, tab, "me")
		x := run(t, busy, "long", false)
		state := stateOf
		time.Sleep(29 * time.Minute)
		if state(s) != Active {
			t.Errorf("after 29 minutes it is %s", state(s))
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if state(s) != Suspended || state(busy) != Active {
			t.Errorf("after 32 minutes it is %s, and the busy one %s", state(s), state(busy))
		}
		run(t, s, "again", false).End(fine)
		if state(s) != Active {
			t.Errorf("after a call it is %s", state(s))
		}
		x.End(fine)
		time.Sleep(24 * time.Hour)
		if state(s) != Suspended {
			t.Errorf("after a day it is %s", state(s))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if state(s) != Closed {
			t.Errorf("after a day of rest it is %s", state(s))
		}
		if _, err := os.Stat(s.journal.Path); err != nil {
			t.Errorf("its journal went with it: %v", err)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if files, _ := filepath.Glob(filepath.Join(tab.config.Dir, "*")); len(files) != 0 {
			t.Errorf("a day later there are %v", files)
		}
		if sum, _ := tab.Totals(); sum.Calls != 2 {
			t.Errorf("the totals have %d calls, must be 2", sum.Calls)
		}
		tab.Close(ended())
	})
}

// TestSuspendUnderLoad: suspending and resuming concurrently with calls loses none
// and counts each.
func TestSuspendUnderLoad(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	const callers, calls = 8, 200
	var wait, flip sync.WaitGroup
	stop := make(chan struct{})
	busy, rested := 0, 0
	flip.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch err := s.suspend(); {
			case err == nil:
				rested++
			case strings.Contains(err.Error(), "SESSION_BUSY"):
				busy++
			default:
				t.Error(err)
				return
			}
			if err := s.resume(); err != nil {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for i := range callers {
		wait.Go(func() {
			for j := range calls {
				x, err := s.Begin(context.Background(), Spec{ID: fmt.Sprint(i, j), Tool: "t", Kind: KindCall})
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := x.Attempt(true); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
				x.End(fine)
			}
		})
	}
	wait.Wait()
	close(stop)
	flip.Wait()
	t.Logf("suspended %d times, and told SESSION_BUSY %d times", rested, busy)
	again, _ := open(t, Config{Dir: tab.config.Dir})
	got, err := again.Find("me", s.id)
	if err != nil || got.count.Calls != callers*calls || statusOf(got, "skipped") != 0 {
		t.Errorf("%v: %d calls, must be %d; %d skipped", err, got.count.Calls, callers*calls, statusOf(got, "skipped"))
	}
}

// TestTurnsAreSerial: turns run one at a time, in order, and an abort ends all
// queued ones.
func TestTurnsAreSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		s := explicit(t, tab, "me")
		ends := make(chan fault.Code, 100)
		prompt := func(queue bool) {
			go func() {
				_, code, _ := call(tab, "me", "prompt", fmt.Sprintf(`{"id":%q,"text":"x","queue":%v}`, s.id, queue))
				ends <- code
			}()
			synctest.Wait()
		}
		prompt(false)
		if prompt(false); <-ends != fault.SessionBusy {
			t.Error("a second turn was not told SESSION_BUSY")
		}
		for range maxTurns {
			prompt(true)
		}
		if prompt(true); <-ends != fault.SessionBusy {
			t.Error("one too many may wait")
		}
		// The end of a turn lets the next one in.
		s.turn.abort(fault.Errorf(fault.Aborted, "on request"))
		if <-ends != fault.Aborted {
			t.Error("the turn was not aborted")
		}
		synctest.Wait()
		if s.turn == nil || len(s.waiting) != maxTurns-1 {
			t.Errorf("%d wait", len(s.waiting))
		}
		call(tab, "me", "abort", `{"id":"`+s.id+`"}`)
		for range maxTurns {
			if code := <-ends; code != fault.Aborted {
				t.Errorf("a turn that waited: %s", code)
			}
		}
		synctest.Wait()
		if s.turn != nil || s.turnTaken {
			t.Error("the turn was not given back")
		}
		tab.Close(ended())
	})
}

// TestTurnCalls: a prompt is translated to the right call.
func TestTurnCalls(t *testing.T) {
	r := &Request{Call: &wire.Call{Form: wire.Envelope, Tool: Prompt, ExecutionID: "7d444840-9dc0-41d1-b245-5ffdce74fad2"}, Cwd: "/root"}
	s := &Session{header: header{id: "s", cwd: "/work"}}
	for prompt, want := range map[string]string{
		`{"text":"git push 'a b'"}`: `{"args":["push","a b"],"cwd":"/work"}`,
		// Past 2^53: the tool decides whether it takes such a number.
		`{"envelope":{"toolId":"x","payload":{"n":9007199254740993}}}`: `{"n":9007199254740993}`,
	} {
		var p promptPayload
		if err := strictjson.Unmarshal([]byte(prompt), &p); err != nil {
			t.Fatal(err)
		}
		c, err := turnCall(r, s, &p)
		if err != nil {
			t.Errorf("%s: %v", prompt, err)
			continue
		}
		if string(c.Payload) != want {
			t.Errorf("%s\nhas the payload %s\nwant            %s", prompt, c.Payload, want)
		}
		if !strings.HasPrefix(c.Cwd, "/work") || c.Session != "s" {
			t.Errorf("%s runs in %q of %q", prompt, c.Cwd, c.Session)
		}
	}
}

// TestSteering covers text that is read, queued, undeliverable, over the limit, and
// sent between two attempts.
func TestSteering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		s := explicit(t, tab, "me")
		x, err := s.Begin(t.Context(), Spec{ID: "turn", Tool: "t", Kind: KindTurn})
		if err != nil {
			t.Fatal(err)
		}
		steer := func(text string) (string, fault.Code, string) {
			return call(tab, "me", "steer", fmt.Sprintf(`{"id":%q,"text":%q}`, s.id, text))
		}
		began := time.Now()
		if data, _, _ := steer("waits"); !strings.Contains(data, `"queued":true`) || time.Since(began) != defaultSteerWait {
			t.Errorf("%s after %v", data, time.Since(began))
		}
		// The first attempt reads it; the second one reads text sent between
		// them.
		buf := make([]byte, 100)
		first := x.Input(true)
		if n, err := first.Read(buf); string(buf[:n]) != "waits" || err != nil {
			t.Errorf("%q, %v", buf[:n], err)
		}
		if !x.Steered() {
			t.Error("it does not say that an attempt has read")
		}
		first.Close()
		if n, err := first.Read(buf); err == nil {
			t.Errorf("an attempt that has ended read %q", buf[:n])
		}
		steer("between")
		second := x.Input(true)
		if n, _ := second.Read(buf); string(buf[:n]) != "between" {
			t.Errorf("the second attempt read %q", buf[:n])
		}
		big := strings.Repeat("x", maxInbox)
		steer(big)
		if _, code, message := steer("y"); code != fault.LimitExceeded || !strings.Contains(message, "1 bytes were not delivered") {
			t.Errorf("too much: %s %s", code, message)
		}
		// Unread text is reported to the waiting steer, and counted.
		go func() {
			time.Sleep(defaultSteerWait / 2)
			second.Close()
			x.End(fine)
		}()
		x.inbox.mu.Lock()
		x.inbox.queue, x.inbox.size = nil, 0
		x.inbox.mu.Unlock()
		if _, code, message := steer("never"); code != fault.NotRunning || !strings.Contains(message, "5 bytes were not delivered") {
			t.Errorf("never read: %s %s", code, message)
		}
		synctest.Wait()
		if n := s.recent[0].Undelivered; n != 5 {
			t.Errorf("%d bytes are said to be undelivered, must be 5", n)
		}
		tab.Close(ended())
	})
}

// TestSteeringStreamedInput: the limit on unread text also applies when the caller
// streams its input.
func TestSteeringStreamedInput(t *testing.T) {
	b := newInbox()
	var taken []func()
	b.forwardTo(func(_ []byte, f func()) bool { taken = append(taken, f); return true })
	half := make([]byte, maxInbox/2)
	for range 2 {
		if _, err := b.put(half, false); err != nil {
			t.Fatal(err)
		}
	}
	var e *fault.Error
	if _, err := b.put([]byte("x"), false); !errors.As(err, &e) || e.Code != fault.LimitExceeded {
		t.Errorf("one byte over the limit: %v", err)
	}
	taken[0]()
	if _, err := b.put(half, false); err != nil {
		t.Errorf("after some was read: %v", err)
	}
	if n := b.close(); n != maxInbox {
		t.Errorf("%d bytes are said to be undelivered, must be %d", n, maxInbox)
	}
}

// TestAbortQueuedTurns: a queued turn is aborted by its id, and one in the
// background by its session.
func TestAbortQueuedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		s := explicit(t, tab, "me")
		s.turnTaken = true
		ends := make(chan error, 2)
		for _, id := range []string{"first", "second"} {
			go func() { ends <- s.takeTurn(t.Context(), &wire.Call{ExecutionID: id, Tool: "t"}, true, func() {}) }()
			synctest.Wait()
		}
		data, _, _ := call(tab, "me", "abort", fmt.Sprintf(`{"id":%q,"execution":"second"}`, s.id))
		if !strings.Contains(data, `"execution":"second"`) || !strings.Contains(data, `"outcome":"ABORTED"`) {
			t.Errorf("%s", data)
		}
		synctest.Wait()
		if len(ends) != 1 || len(s.waiting) != 1 || s.waiting[0].id != "first" {
			t.Fatalf("%d ended, %d wait", len(ends), len(s.waiting))
		}
		s.passTurn()
		s.passTurn()
		j, err := tab.NewJob("me", s.id, false, &wire.Call{ExecutionID: "job", Tool: "t"}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		x, err := s.Begin(t.Context(), Spec{ID: "job", Tool: "t", Kind: KindTurn, Job: j})
		if err != nil {
			t.Fatal(err)
		}
		if data, _, _ := call(tab, "me", "abort", fmt.Sprintf(`{"id":%q}`, s.id)); !strings.Contains(data, `"job"`) || x.Context().Err() == nil {
			t.Errorf("the turn in the background: %s", data)
		}
		x.End(fine)
		tab.Close(ended())
	})
}

// TestLabelsAreBounded: too many labels are refused.
func TestLabelsAreBounded(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	label := func(from, n int) fault.Code {
		labels := map[string]string{}
		for i := range n {
			labels[fmt.Sprint("l", from+i)] = "x"
		}
		b, _ := json.Marshal(map[string]any{"id": s.id, "op": "label", "params": map[string]any{"labels": labels}})
		_, code, _ := call(tab, "me", "mutate", string(b))
		return code
	}
	if code := label(0, maxLabels); code != "" {
		t.Fatal(code)
	}
	if code := label(maxLabels, 1); code != fault.LimitExceeded || len(s.labels) != maxLabels {
		t.Errorf("one label more: %q, and there are %d", code, len(s.labels))
	}
	if code := label(0, 1); code != "" {
		t.Errorf("one that is there: %s", code)
	}
}

// TestSelectors covers valid selectors and the cost limit.
func TestSelectors(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	run(t, s, "e", false).End(fine)
	for _, tt := range []struct {
		selector string
		want     string // of the value
		code     fault.Code
	}{
		{"session.state", `"active"`, ""},
		{"session.telemetry.outcomes.ok", "1", ""},
		{"sessions.size()", "1", ""},
		{"session.tools == null", "true", ""},
		{"session.journal.map(r, r.t)", `["session","state","set","snapshot","begin","end"]`, ""},
		{"{'a': [1, 2.5, null, b'x']}", `{"a":[1,2.5,null,"eA=="]}`, ""},
		{"session..id", "", fault.InvalidPayload},
		{"nosuch", "", fault.InvalidPayload},
		{"session.nosuch", "", fault.InvalidPayload},
		{"1 / 0", "", fault.InvalidPayload},
		{strings.Repeat("x", selector.MaxLength+1), "", fault.LimitExceeded},
		// A thousand million steps, and a string that doubles.
		{"[1,2,3,4,5,6,7,8,9,10].all(a, " + strings.Repeat("[1,2,3,4,5,6,7,8,9,10].all(a, ", 8) + "true" + strings.Repeat(")", 9), "", fault.LimitExceeded},
		{"[" + strings.Repeat("1,", 40) + "1].map(x, 'xxxxxxxxxx').join('').replace('x', session.journal.map(r, 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').join('')).replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('x','xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').replace('x','xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx').size()", "", fault.LimitExceeded},
	} {
		payload, _ := json.Marshal(map[string]string{"id": s.id, "selector": tt.selector})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		data, code, message := call(tab, "me", "query", string(payload))
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		if code != tt.code || tt.code == "" && data != `{"value":`+tt.want+`}` {
			t.Errorf("%.60s: %s %s %.200s", tt.selector, data, code, message)
		}
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 256 || took > 3*time.Second {
			t.Errorf("%.60s: took %v and allocated %d MiB", tt.selector, took, mib)
		}
	}
}

// TestSelectorsOfAnySize: a selector whose values, steps or types are far more than its
// cost says is refused soon, and takes little meanwhile. Each is one that a caller could
// otherwise end the daemon with, or hold a processor for good.
func TestSelectorsOfAnySize(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	const ten, double = ".map(a,[a,a,a,a,a,a,a,a,a,a])", ".map(s,s+s)"
	for _, selector := range []string{
		"[0]" + strings.Repeat(ten, 8),
		"[0]" + strings.Repeat(ten, 9) + ".map(a,a==a)",
		"[0]" + strings.Repeat(ten, 9) + ".map(a,'%s'.format([a]).size())",
		"[0]" + strings.Repeat(ten, 100), // which would be compiled for seconds
		"['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa']" + strings.Repeat(double, 13) + ".map(s,s.replace('a',s).size())",
		"['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa']" + strings.Repeat(double, 13) + ".map(s,s.replace('',s,100000).size())",
		"['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa']" + strings.Repeat(double, 13) + ".map(s,s.split('').join(s).size())",
		"lists.range(1000000).distinct().size()",
		"lists.range(3000).map(x,[x]).distinct().size()",
		"[lists.range(100000)].map(a,lists.range(20000).map(x,a)).map(a,a==a)",
		"[[0,0,0,0]].exists(a,[[a,a,a,a,a,a,a,a]].exists(b,[[b,b,b,b,b,b,b,b]].exists(c,[[c,c,c,c,c,c,c,c]].exists(d," +
			"[[d,d,d,d,d,d,d,d]].exists(e,[[e,e,e,e,e,e,e,e]].exists(f,[[f,f,f,f,f,f,f,f]].exists(g,[[g,g,g,g,g,g,g,g]].exists(h,h!=h))))))))",
		"[[0,0,0,0]].exists(a,[a+a+a+a+a+a+a+a+a+a].exists(b,[b+b+b+b+b+b+b+b+b+b].exists(c,[c+c+c+c+c+c+c+c+c+c].exists(d," +
			"[d+d+d+d+d+d+d+d+d+d].exists(e,[e+e+e+e+e+e+e+e+e+e].exists(f,[f+f+f+f+f+f+f+f+f+f].exists(g,[g+g+g+g+g+g+g+g+g].exists(h,h!=h))))))))",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		payload, _ := json.Marshal(map[string]string{"id": s.id, "selector": selector})
		_, code, message := call(tab, "me", "query", string(payload))
		runtime.ReadMemStats(&after)
		if code != fault.LimitExceeded {
			t.Errorf("%.60s: %s %.200s", selector, code, message)
		}
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 256 {
			t.Errorf("%.60s: allocated %d MiB", selector, mib)
		}
	}
	for selector, want := range map[string]string{
		"'abab'.replace('b', 'xx') + 'aaa'.replace('a', '', 2) + 'ab'.replace('', '-')":   `"axxaxxa-a-b-"`,
		"['a', 'b'].join() + ['a', 'b'].join(', ')":                                       `"aba, b"`,
		"[1, 'a', 2, 'a', 1, 1.0, [1], [1]].distinct()":                                   `[1,"a",2,[1]]`,
		"lists.range(5000).map(x, 'tool' + string(x % 7)).distinct().size()":              "7",
		"sessions.map(x, {'id': x.id, 'n': x.recent.map(r, r.tool)}).filter(x, false)":    "[]",
		"sessions.map(x, x.recent.map(r, [r.tool, r.status])).map(x, x.size()).sort()[0]": "0",
		"session.journal.map(r, r.t).filter(r, r == 'session').map(r, r + 's').join('') ": `"sessions"`,
	} {
		payload, _ := json.Marshal(map[string]string{"id": s.id, "selector": selector})
		if data, code, message := call(tab, "me", "query", string(payload)); data != `{"value":`+want+`}` {
			t.Errorf("%s: %s %s %s", selector, data, code, message)
		}
	}
}

// TestSelectorsTakeTurns: one selector of an identity is evaluated at a time, and none
// of another's waits for it.
func TestSelectorsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab, _ := open(t, Config{})
		explicit(t, tab, "me")
		tab.ownerOf("me").selects <- struct{}{} // as one that is being evaluated
		if data, code, _ := call(tab, "you", "query", `{"selector":"1"}`); data != `{"value":1}` {
			t.Errorf("another identity: %s %s", data, code)
		}
		answered := make(chan string, 1)
		go func() {
			data, _, _ := call(tab, "me", "query", `{"selector":"1"}`)
			answered <- data
		}()
		synctest.Wait()
		if len(answered) > 0 {
			t.Errorf("a second one did not wait")
		}
		<-tab.ownerOf("me").selects
		if data := <-answered; data != `{"value":1}` {
			t.Errorf("once the first has ended: %s", data)
		}
		tab.Close(ended())
	})
}

// TestSnapshotsHoldNoSecrets: neither a query nor the journal holds a call's
// arguments, input or variables.
func TestSnapshotsHoldNoSecrets(t *testing.T) {
	tab, _ := open(t, Config{})
	s := explicit(t, tab, "me")
	call(tab, "me", "prompt", `{"id":"`+s.id+`","text":"'"}`)
	x := run(t, s, "e", true)
	x.AddInput(7)
	data, _, _ := call(tab, "me", "query", `{"selector":"[session, sessions, jobs]","id":"`+s.id+`"}`)
	for _, word := range []string{"args", "stdin", "env", "token", "payload"} {
		if strings.Contains(data, `"`+word+`"`) {
			t.Errorf("a snapshot has %s: %s", word, data)
		}
	}
}

func TestLastLine(t *testing.T) {
	for _, tt := range []struct {
		writes []string
		want   string
	}{
		{[]string{"one\n", "two\n"}, "two"},
		{[]string{"one\ntw", "o"}, "two"},
		{[]string{"one\n", "\n", "\r\n"}, "one"},
		{[]string{"10%\r", "20%\r"}, "20%"},
		{[]string{strings.Repeat("é", 200)}, strings.Repeat("é", 100)},
		{[]string{"\xff\xfe"}, "\uFFFD"},
	} {
		x := &Execution{}
		for _, w := range tt.writes {
			x.line = lastLine(x.line, []byte(w))
		}
		if got := x.lastLineText(); got != tt.want && !(tt.want == "\uFFFD" && strings.Trim(got, "\uFFFD") == "") {
			t.Errorf("%q: %q, must be %q", tt.writes, got, tt.want)
		}
	}
}

// TestIdleSessionsAreSmall counts the bytes of memory that an idle session holds.
func TestIdleSessionsAreSmall(t *testing.T) {
	const n, most = 10_000, 8 << 10
	tab, _ := open(t, Config{Limit: n})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before, files := heap(), openFiles(t)
	keep := make([]*Session, n)
	for i := range keep {
		keep[i] = explicit(t, tab, "me")
		run(t, keep[i], "e", false).End(fine)
	}
	bytes := (heap() - before) / n
	t.Logf("%d bytes of memory a session, one call made in each", bytes)
	if bytes > most {
		t.Errorf("a session holds %d bytes, and %d are the most", bytes, most)
	}
	if now := openFiles(t); now > files+128+8 {
		t.Errorf("%d files are open, before there were %d", now, files)
	}
	runtime.KeepAlive(keep)
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // where there is no /proc nothing is counted
	}
	return len(list)
}

// TestAThousandSessions at once, each with calls, turns that are steered, aborts
// and an end of its own, for the race detector.
func TestAThousandSessions(t *testing.T) {
	tab, _ := open(t, Config{Limit: 2000, Grace: time.Millisecond})
	var wait sync.WaitGroup
	for i := range 1000 {
		who := fmt.Sprint("owner", i%10)
		wait.Go(func() {
			data, code, _ := call(tab, who, "mutate", `{"op":"create"}`)
			if code != "" {
				t.Error(code)
				return
			}
			id := strings.Split(data, `"`)[3]
			s, err := tab.Find(who, id)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range 5 {
				x, err := s.Begin(context.Background(), Spec{ID: fmt.Sprint(j), Tool: "t", Kind: KindCall})
				if err != nil {
					t.Error(err)
					return
				}
				x.Attempt(j%2 == 0)
				x.CountOutput("stdout", discard{}).Write([]byte("a line\n"))
				if j == 3 {
					call(tab, who, "abort", `{"id":"`+id+`"}`)
				}
				x.End(fine)
			}
			turn := make(chan fault.Code)
			go func() {
				_, code, _ := call(tab, who, "prompt", `{"id":"`+id+`","text":"x"}`)
				turn <- code
			}()
			for {
				if data, _, _ := call(tab, who, "abort", `{"id":"`+id+`"}`); strings.Contains(data, "turn") {
					break
				}
				runtime.Gosched()
			}
			if code := <-turn; code != fault.Aborted {
				t.Errorf("the turn: %s", code)
			}
			call(tab, who, "mutate", `{"op":"rename","id":"`+id+`","params":{"name":"x"}}`)
			if i%2 == 0 {
				call(tab, who, "mutate", `{"op":"suspend","id":"`+id+`"}`)
			}
			if i%3 == 0 {
				call(tab, who, "mutate", `{"op":"close","id":"`+id+`"}`)
			}
		})
		if i%100 == 0 {
			wait.Go(func() { call(tab, who, "query", `{"selector":"sessions.size()"}`); tab.Totals() })
		}
	}
	wait.Wait()
	sum, states := tab.Totals()
	if sum.Calls != 6000 {
		t.Errorf("%d calls, must be 6000", sum.Calls)
	}
	t.Logf("%d calls, %v", sum.Calls, states)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
