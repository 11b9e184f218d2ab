package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Sessions makes the six session calls as one identity, or, over the admin socket,
// as the operator, with access to every session. It is safe for concurrent use;
// each call has its own connection.
type Sessions struct {
	// Socket is the tool socket. Token authenticates the caller, instead of its
	// uid.
	Socket, Token string
	// Operator, if not nil, is used instead.
	Operator *Admin
}

// SessionInfo is one session of a query's snapshot.
type SessionInfo struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Default  bool              `json:"default"`
	State    string            `json:"state"`
	Owner    string            `json:"owner"`
	Cwd      string            `json:"cwd"`
	Parent   string            `json:"parent"`
	Children []string          `json:"children"`
	Labels   map[string]string `json:"labels"`
	Tools    []string          `json:"tools"`
	Created  time.Time         `json:"created"`
	Used     time.Time         `json:"used"`
	Turn     string            `json:"turn"`
	Queued   int               `json:"queued"`
	// Peers are the callers in the session: the last of each container and socket, most recent first.
	Peers     []Peer        `json:"peers"`
	Running   []RunningCall `json:"running"`
	Recent    []EndedCall   `json:"recent"`
	Telemetry struct {
		Calls      int64            `json:"calls"`
		Attempts   int64            `json:"attempts"`
		Outcomes   map[string]int64 `json:"outcomes"`
		Events     map[string]int64 `json:"events"`
		BytesIn    int64            `json:"bytes_in"`
		BytesOut   int64            `json:"bytes_out"`
		Fuel       int64            `json:"fuel"`
		DurationMS int64            `json:"duration_ms"`
		// HTTP is the traffic of guests; bytes counts those of bodies.
		HTTP struct {
			Requests      int64 `json:"requests"`
			Replies       int64 `json:"replies"`
			BytesSent     int64 `json:"bytes_sent"`
			BytesReceived int64 `json:"bytes_received"`
		} `json:"http"`
	} `json:"telemetry"`
	Journal struct {
		Records int64  `json:"records"`
		Skipped int64  `json:"skipped"`
		Lost    int64  `json:"lost"`
		Error   string `json:"error"`
	} `json:"journal_status"`
}

// Peer is a process that made a call. PID and Container are 0 and empty if unknown.
type Peer struct {
	PID       int    `json:"pid"`
	Container string `json:"container"`
	Socket    string `json:"socket"`
}

// RunningCall is one running execution of a session.
type RunningCall struct {
	Execution string    `json:"execution"`
	Tool      string    `json:"tool"`
	Kind      string    `json:"kind"` // call, turn or job
	Started   time.Time `json:"started"`
	ElapsedMS int64     `json:"elapsed_ms"`
	Attempts  int       `json:"attempts"`
	Mutating  bool      `json:"mutating"`
	Job       bool      `json:"job"`
	BytesOut  int64     `json:"bytes_out"`
	LastLine  string    `json:"last_line"`
}

// EndedCall is one of the last executions of a session.
type EndedCall struct {
	Execution   string     `json:"execution"`
	Tool        string     `json:"tool"`
	Kind        string     `json:"kind"`
	Status      string     `json:"status"`
	Code        fault.Code `json:"code"`
	ExitCode    int        `json:"exit_code"`
	Started     time.Time  `json:"started"`
	DurationMS  int64      `json:"duration_ms"`
	Attempts    int        `json:"attempts"`
	Undelivered int        `json:"undelivered"`
	// Programs are the programs that a binary executed in turn, or was refused.
	Programs []struct {
		Path    string `json:"path"`
		Refused string `json:"refused"`
		Times   int    `json:"times"`
	} `json:"programs"`
	// Connections are the connections that a binary made or was refused.
	Connections []struct {
		Host     string `json:"host"`
		On       string `json:"on"`
		Rule     string `json:"rule"`
		Refused  string `json:"refused"`
		Failed   string `json:"failed"`
		Sent     int64  `json:"sent"`
		Received int64  `json:"received"`
		Times    int    `json:"times"`
	} `json:"connections"`
}

// JobInfo is one job. Stdout and Stderr are the end of its outputs, if requested.
type JobInfo struct {
	ID          string          `json:"id"`
	Session     string          `json:"session"`
	Tool        string          `json:"tool"`
	Detach      bool            `json:"detach"`
	State       string          `json:"state"` // running or done
	Status      string          `json:"status"`
	Code        fault.Code      `json:"code"`
	Message     string          `json:"message"`
	ExitCode    int             `json:"exit_code"`
	Attempts    int             `json:"attempts"`
	Started     time.Time       `json:"started"`
	ElapsedMS   int64           `json:"elapsed_ms"`
	LastLine    string          `json:"last_line"`
	StdoutBytes int64           `json:"stdout_bytes"`
	StderrBytes int64           `json:"stderr_bytes"`
	Progress    json.RawMessage `json:"progress"`
	Data        json.RawMessage `json:"data"`
	Stdout      string          `json:"stdout"`
	Stderr      string          `json:"stderr"`
	Truncated   bool            `json:"truncated"`
	// OutputNote is why the output is missing; empty if it is not.
	OutputNote string `json:"output_note"`
}

// SessionCall is one of the six calls; Watch makes session.watch.
type SessionCall struct {
	Name    string // query, mutate, prompt, abort or steer
	Payload any    // an object
	Session string // the session, unless the payload names one
	Key     string // an idempotency key, for mutate and prompt
	Timeout time.Duration
}

// call converts q to a call for the tool socket.
func (s *Sessions) call(q *SessionCall) (*wire.Call, error) {
	payload, err := json.Marshal(q.Payload)
	if err != nil {
		return nil, fmt.Errorf("make the call session.%s: %w", q.Name, err)
	}
	return &wire.Call{
		Form: wire.Envelope, Tool: "session." + q.Name, ExecutionID: wire.NewExecutionID(), Payload: payload,
		Session: q.Session, Token: s.Token, IdempotencyKey: q.Key, Timeout: q.Timeout,
	}, nil
}

// Do makes one of the calls and returns its data. A refusal is a *fault.Error.
func (s *Sessions) Do(ctx context.Context, q SessionCall) (json.RawMessage, error) {
	if s.Operator != nil {
		return s.Operator.session(ctx, &q)
	}
	call, err := s.call(&q)
	if err != nil {
		return nil, err
	}
	r, err := Call(ctx, s.Socket, call)
	if err != nil {
		return nil, err
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return r.Data, nil
}

// Query evaluates selector over a snapshot of a session and decodes the result into
// value. An empty id is the caller's default session; an operator has none.
func (s *Sessions) Query(ctx context.Context, id, selector string, value any) error {
	q := SessionCall{Name: "query", Payload: map[string]string{"id": id, "selector": selector}}
	if s.Operator != nil {
		data, err := s.Operator.session(ctx, &q)
		if err != nil {
			return err
		}
		var answer struct {
			Value json.RawMessage `json:"value"`
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			return fmt.Errorf("read the answer to a query: %w", err)
		}
		return json.Unmarshal(answer.Value, value)
	}
	call, err := s.call(&q)
	if err != nil {
		return err
	}
	// A stream carries a value of any size.
	var out bytes.Buffer
	r, err := Stream(ctx, s.Socket, call, wire.Local{Stdout: &out, Stderr: &out})
	if err != nil {
		return err
	}
	if r.Err != nil {
		return r.Err
	}
	if err := json.Unmarshal(out.Bytes(), value); err != nil {
		return fmt.Errorf("read the answer to a query: %w", err)
	}
	return nil
}

// Prompt runs a turn and streams its output to l.
func (s *Sessions) Prompt(ctx context.Context, q SessionCall, l wire.Local) (*wire.Result, error) {
	q.Name = "prompt"
	call, err := s.call(&q)
	if err != nil {
		return nil, err
	}
	return Stream(ctx, s.Socket, call, l)
}

// session makes one of the calls as the operator.
func (a *Admin) session(ctx context.Context, q *SessionCall) (json.RawMessage, error) {
	body, err := json.Marshal(q.Payload)
	if err != nil {
		return nil, fmt.Errorf("make the call session.%s: %w", q.Name, err)
	}
	var answer struct {
		Data    json.RawMessage `json:"data"`
		Code    fault.Code      `json:"code"`
		Message string          `json:"message"`
	}
	if err := a.do(ctx, http.MethodPost, "/session/"+q.Name, bytes.NewReader(body), &answer); err != nil {
		return nil, err
	}
	if answer.Code != "" {
		return nil, &fault.Error{Code: answer.Code, Message: answer.Message}
	}
	return answer.Data, nil
}
