package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// Limits on the events that a module is sent at a time.
const (
	maxToldEvents = 256
	maxTold       = 256 << 10 // bytes of JSON
	// watchFor is how long a module waits for an event by default.
	watchFor = 10 * time.Second
)

// errTold ends a watch whose response is full.
var errTold = errors.New("the answer has no more room")

// answerWatch serves a module's session.watch: with the events after its cursor, as many as fit in a response, or else
// with the next ones to occur. Without a cursor it responds at once, with the one to continue after. A module cannot
// receive events while it computes, so it polls, and a stream buffers them meanwhile.
func answerWatch(ctx context.Context, sessions *session.Table, r *session.Request) call.Outcome {
	var payload struct {
		After string `json:"after"`
	}
	if err := json.Unmarshal(r.Payload, &payload); err != nil {
		return call.Failed(ctx, fault.Errorf(fault.InvalidPayload, "/payload: %w", err))
	}
	ctx, enough := context.WithCancelCause(ctx)
	defer enough(nil)
	of := *r.Call
	of.Timeout = cmp.Or(of.Timeout, watchFor)
	answer := struct {
		Events []json.RawMessage `json:"events"`
		Cursor string            `json:"cursor"`
	}{Events: []json.RawMessage{}}
	size := 0
	r.Call, r.TakeBy = &of, nil
	r.Tell = func(list []json.RawMessage) error {
		for _, b := range list {
			var e events.Event
			if err := json.Unmarshal(b, &e); err != nil {
				return err
			}
			if size += len(b); size > maxTold && len(answer.Events) > 0 || len(answer.Events) == maxToldEvents {
				return errTold
			}
			answer.Cursor = e.Cursor
			if e.Kind != events.Ready {
				answer.Events = append(answer.Events, b)
			}
			if e.Kind != events.Ready || payload.After == "" {
				enough(io.EOF) // events that are already buffered are still delivered
			}
		}
		return nil
	}
	if _, err := sessions.Serve(ctx, r); err != nil && !errors.Is(err, errTold) {
		return call.Failed(ctx, err)
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return call.Failed(ctx, err)
	}
	return call.Outcome{Result: &wire.Result{Ran: true, Data: data}}
}
