package examples_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestAsk runs the example that asks, as a turn, and answers it.
func TestAsk(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "release", nil, map[string]string{"handler.wasm": hosttest.Guest(t, "sdk-examples/go/ask")})
	n := 0
	call := func(tool string, payload map[string]any) *wire.Result {
		t.Helper()
		body, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		n++
		res, err := client.Call(t.Context(), d.Socket, &wire.Call{
			Form: wire.Envelope, Tool: tool, ExecutionID: fmt.Sprintf("5bd3ea0f-1f50-4d5c-9a4f-%012d", n), Payload: body,
		})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for _, c := range []struct {
		answers []string
		says    string
	}{
		{[]string{"yes\n"}, "released 1.2"},
		{[]string{"perhaps", "no"}, "left 1.2 as it is"},
		{[]string{""}, "nobody answers"},
	} {
		t.Run(strings.Join(c.answers, "-"), func(t *testing.T) {
			var made struct{ ID string }
			if err := json.Unmarshal(call("session.mutate", map[string]any{"op": "create"}).Data, &made); err != nil {
				t.Fatal(err)
			}
			turn := make(chan *wire.Result)
			go func() {
				body, _ := json.Marshal(map[string]any{"id": made.ID, "text": "release 1.2"})
				res, err := client.Call(t.Context(), d.Socket, &wire.Call{
					Form: wire.Envelope, Tool: "session.prompt", ExecutionID: "5bd3ea0f-1f50-4d5c-9a4f-6f1f6a2f0c11", Payload: body,
				})
				if err != nil {
					t.Error(err)
				}
				turn <- res
			}()
			for _, answer := range c.answers {
				steer := map[string]any{"id": made.ID, "text": answer}
				if answer == "" {
					steer["eof"] = true
				}
				// It may not have begun yet, and not have asked again.
				deadline := time.Now().Add(20 * time.Second)
				for {
					res := call("session.steer", steer)
					if res.Err == nil {
						break
					}
					if res.Err.Code != fault.NotRunning || time.Now().After(deadline) {
						t.Fatal(res.Err)
					}
				}
			}
			res := <-turn
			if res == nil || !strings.Contains(string(res.Data), c.says) {
				t.Fatalf("the turn ended with %+v", res)
			}
		})
	}
}
