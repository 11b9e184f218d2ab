package pipeline

import (
	"context"
	"log/slog"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// TestNoAttemptUncleared: a call that needs an approval does not run without, in
// whichever attempt it is the first to have a place.
func TestNoAttemptUncleared(t *testing.T) {
	c, err := catalog.Open(context.Background(), catalog.Config{Dir: t.TempDir(), StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := &Pipeline{approver: &approver{tools: c}}
	for _, number := range []int{1, 2} {
		r := &call.Run{Decided: call.Decided{Ask: &call.Ask{}}}
		r.Call, r.Tool = &wire.Call{Tool: "gone"}, &tools.Tool{Name: "gone", Def: &tools.Definition{}}
		r.Tool.Def.Limits.Concurrency = 1
		acc := &account{}
		if o := p.attempt(t.Context(), acc, r, number); o.Err() == nil || o.Err().Code != fault.UnknownTool || acc.cleared {
			t.Errorf("attempt %d: %+v", number, o.Result)
		}
	}
}
