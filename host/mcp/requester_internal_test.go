package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// requesterOf is one whose pipeline is answer.
func requesterOf(answer func(context.Context, call.Request) call.Outcome, maxCalls, maxListens int) *requester {
	return newRequester(Config{Call: answer, Logger: slog.New(slog.DiscardHandler)}, &waits{}, Peer{}, maxCalls, maxListens)
}

// A place is refused to a request past the limit, and to one that comes while the daemon
// stops; a panic ends its request only.
func TestPlacesOfRequests(t *testing.T) {
	list := func(r *requester) error {
		_, err := r.receive(nil)(t.Context(), "tools/list", &sdk.ListToolsRequest{})
		return err
	}
	if err := list(requesterOf(brief, 0, 0)); err == nil || !strings.Contains(err.Error(), "OVERLOADED") {
		t.Errorf("a list past the limit: %v", err)
	}
	r := requesterOf(brief, 1, 0)
	r.drain()
	if err := list(r); err == nil || !strings.Contains(err.Error(), "stopping") {
		t.Errorf("a list while the daemon stops: %v", err)
	}
	r = requesterOf(func(context.Context, call.Request) call.Outcome { panic("as the test wants it") }, 1, 0)
	for range 2 {
		if err := list(r); err == nil || !strings.Contains(err.Error(), "INTERNAL") {
			t.Errorf("a panic in a list: %v", err)
		}
	}
	refused := fault.Errorf(fault.Unauthenticated, "nobody")
	r = requesterOf(func(context.Context, call.Request) call.Outcome {
		return call.Outcome{Result: &wire.Result{Err: refused}}
	}, 1, 0)
	if err := list(r); err == nil || !strings.Contains(err.Error(), "UNAUTHENTICATED") {
		t.Errorf("a list that is refused: %v", err)
	}
}

// Streams of notifications are bounded, and give their places back.
func TestListensAreBounded(t *testing.T) {
	r := requesterOf(brief, 1, 2)
	began, release := make(chan struct{}), make(chan struct{})
	receive := r.receive(func(context.Context, string, sdk.Request) (sdk.Result, error) {
		began <- struct{}{}
		<-release
		return nil, nil
	})
	listen := func() error {
		_, err := receive(t.Context(), "subscriptions/listen", &sdk.ServerRequest[*sdk.PingParams]{})
		return err
	}
	for range 2 {
		over := make(chan error, 2)
		for range 2 {
			go func() { over <- listen() }()
			<-began
		}
		refused := make(chan error, 1)
		go func() { refused <- listen() }()
		select {
		case err := <-refused:
			if err == nil || !strings.Contains(err.Error(), "OVERLOADED") {
				t.Errorf("a stream too many: %v", err)
			}
		case <-began:
			t.Error("a stream too many is served")
			release <- struct{}{}
		}
		for range 2 {
			release <- struct{}{}
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
	}
}

// Nothing is kept of a request that is over, for as long as its client is there.
func TestRequestsLeaveNothing(t *testing.T) {
	r := requesterOf(brief, 1, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for range 50_000 {
		_, done, refused := r.begin(ctx, nil)
		if refused != nil {
			t.Fatal(refused)
		}
		done()
	}
	if after := heap(); after > before+2<<20 {
		t.Errorf("the heap grew from %d to %d KiB", before>>10, after>>10)
	}
	runtime.KeepAlive(r)
}

// A caller that cannot be read is refused: it would be another one.
func TestCallerOfARequest(t *testing.T) {
	r := requesterOf(brief, 1, 0)
	r.caller = Caller{Token: "of the connection", Session: "its own"}
	for _, key := range []string{metaToken, metaSession} {
		for _, v := range []any{nil, 7.0, []any{"x"}} {
			if as, refused := r.as(sdk.Meta{key: v}, ""); refused == nil || refused.Code != fault.InvalidEnvelope {
				t.Errorf("%s is %v: %+v, %v", key, v, as, refused)
			}
		}
	}
	if as, refused := r.as(sdk.Meta{metaToken: "another"}, ""); refused != nil || as.Token != "another" || as.Session != "its own" {
		t.Errorf("a token of its own: %+v, %v", as, refused)
	}
}

func TestChoiceOfTools(t *testing.T) {
	for _, meta := range []sdk.Meta{
		{metaQuery: 7.0}, {metaQuery: nil}, {metaQuery: strings.Repeat("x", maxQuery+1)},
		{metaLimit: "3"}, {metaLimit: nil}, {metaLimit: 0.0}, {metaLimit: -1.0}, {metaLimit: 1.5},
	} {
		if _, _, refused := choiceOf(meta); refused == nil || refused.Code != fault.InvalidEnvelope {
			t.Errorf("%v: %v", meta, refused)
		}
	}
	if _, limit, refused := choiceOf(sdk.Meta{metaQuery: "x", metaLimit: 3.0}); refused != nil || limit != 3 {
		t.Errorf("a good one: %d, %v", limit, refused)
	}
}

// The lists that are remembered are bounded, whatever sessions a client names, and other
// clients of an identity are told of a newer one.
func TestListsAreBounded(t *testing.T) {
	l := &requesterOf(brief, 1, 0).lists
	for i := range 3 * maxListed {
		l.gave(Caller{Session: fmt.Sprint(i)}, nil)
	}
	if len(l.listed) > maxListed {
		t.Errorf("%d lists are remembered", len(l.listed))
	}
	r := requesterOf(brief, 1, 0)
	r.identity = "alice"
	for i, name := range []string{"a", "a", "b"} {
		r.lists.gave(Caller{}, []translate.Tool{{Name: name, Schema: json.RawMessage("{}")}})
		if told := len(r.lists.changed) > 0; told != (i == 2) || r.lists.stale != told {
			t.Errorf("list %d: told %v, stale %v", i, told, r.lists.stale)
		}
	}
}
