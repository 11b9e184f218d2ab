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

// Bounds on what a module is told of events at a time.
const (
	maxToldEvents = 256
	maxTold       = 256 << 10 // bytes of JSON
	// watchFor is how long a module waits for an event unless it says.
	watchFor = 10 * time.Second
)

// errTold ends a watch whose answer is full.
var errTold = errors.New("the answer is full")

// answerWatch answers a module's session.watch: with what happened after its cursor, as
// far as it fits an answer, or with what happens first. Without a cursor it is
// answered at once, with the one to go on after. A module cannot be told while it
// computes, so that it asks, and a stream keeps meanwhile what it would be told.
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
				enough(io.EOF) // what is there already is told before that counts
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
