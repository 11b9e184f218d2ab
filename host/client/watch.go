package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// maxEvent bounds one event on the admin socket, in bytes.
const maxEvent = 1 << 20

// Watch passes the events of one session, or of all if session is empty, to tell, from now on or after a cursor, until
// ctx ends or tell returns an error, which Watch returns. It returns nil when the session was closed. If the daemon
// disconnects it because tell was slow, it resumes where it was; an event of events.Lost then describes what was lost.
func (s *Sessions) Watch(ctx context.Context, session, after string, tell func(events.Event) error) error {
	for {
		cut := false
		err := s.watchOnce(ctx, session, after, func(e events.Event) error {
			if e.Cursor != "" {
				after = e.Cursor
			}
			if e.Kind == events.Cut && e.Code == fault.LimitExceeded {
				cut = true
				return nil
			}
			return tell(e)
		})
		if !cut {
			return err
		}
	}
}

func (s *Sessions) watchOnce(ctx context.Context, session, after string, tell func(events.Event) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	take := func(data []byte) {
		var e events.Event
		err := json.Unmarshal(data, &e)
		if err != nil {
			err = fmt.Errorf("read an event: %w", err)
		} else if ctx.Err() == nil {
			err = tell(e)
		}
		if err != nil {
			cancel(err)
		}
	}
	q := SessionCall{Name: "watch", Payload: map[string]string{"id": session, "after": after}}
	var err error
	if s.Operator != nil {
		err = s.Operator.watch(ctx, &q, take)
	} else {
		var call *wire.Call
		if call, err = s.call(&q); err != nil {
			return err
		}
		var r *wire.Result
		r, err = Stream(ctx, s.Socket, call, wire.Local{Stdout: io.Discard, Stderr: io.Discard, Progress: func(data json.RawMessage) { take(data) }})
		if err == nil && r.Err != nil {
			err = r.Err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// watch passes the lines of the operator's session.watch to take: events, and the response.
func (a *Admin) watch(ctx context.Context, q *SessionCall, take func([]byte)) error {
	body, err := json.Marshal(q.Payload)
	if err != nil {
		return fmt.Errorf("make the call session.watch: %w", err)
	}
	return a.lines(ctx, http.MethodPost, "/session/"+q.Name, bytes.NewReader(body), maxEvent, func(line []byte) error {
		var answer struct {
			Event   string          `json:"event"`
			Data    json.RawMessage `json:"data"`
			Code    fault.Code      `json:"code"`
			Message string          `json:"message"`
		}
		switch err := json.Unmarshal(line, &answer); {
		case err != nil:
			return fmt.Errorf("read an event: %w", err)
		case answer.Event != "":
			take(line)
			return nil
		case answer.Code != "":
			return &fault.Error{Code: answer.Code, Message: answer.Message}
		}
		return io.EOF
	})
}
