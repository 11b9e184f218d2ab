package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire/callbacks"
)

// Response is a frame from a server.
type Response struct {
	// Type is TypeStdout, TypeStderr, TypeProgress, TypeStdin, TypeStopped, or, for a result, TypeResult, streamed or
	// not. Unknown types must be ignored.
	Type string
	// Data is that of TypeStdout and TypeStderr.
	Data []byte
	// Progress is that of TypeProgress.
	Progress json.RawMessage
	// Open and Ack are those of TypeStdin: the tool reads input, or has read
	// Ack further bytes of it.
	Open bool
	Ack  int
	// TTY means, with Open, that the caller's terminal is the tool's from now on.
	TTY bool
	// callback is that of TypeCallback.
	callback *callbacks.Frame
	// Result is that of TypeResult. Its Ran is inferred from the response.
	Result *Result
}

// response is a frame from a server, of any type and form.
type response struct {
	Type  string          `json:"type"`
	Data  json.RawMessage `json:"data"`
	Open  bool            `json:"open"`
	Ack   int             `json:"ack"`
	TTY   bool            `json:"tty"`
	Error json.RawMessage `json:"error"`
	// A response in plain form.
	ExitCode    int        `json:"exit_code"`
	Stdout      string     `json:"stdout"`
	Stderr      string     `json:"stderr"`
	Code        fault.Code `json:"code"`
	Retriable   bool       `json:"retriable"`
	ToolCode    string     `json:"tool_code"`
	DurationMS  int64      `json:"duration_ms"`
	FromCache   bool       `json:"from_cache"`
	ExecutionID string     `json:"execution_id"`
	Truncated   bool       `json:"truncated"`
	Usage       *Usage     `json:"usage"` // in both forms
	// A response in envelope form.
	EnvelopeDuration  *int64 `json:"durationMs"`
	EnvelopeFromCache bool   `json:"fromCache"`
	EnvelopeExecution string `json:"executionId"`
}

// ParseResponse parses a frame from a server. It ignores unknown members, since
// the server may be newer.
func ParseResponse(frame []byte) (*Response, error) {
	for _, typ := range [...]string{TypeStdout, TypeStderr} {
		if data, ok := chunk(frame, typ); ok {
			return &Response{Type: typ, Data: data}, nil
		}
	}
	var q response
	if err := strictjson.UnmarshalLenient(frame, &q); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	p := &Response{Type: q.Type}
	switch q.Type {
	case TypeStdout, TypeStderr:
		var data base64Text
		if err := strictjson.Unmarshal(q.Data, &data); err != nil {
			return nil, fmt.Errorf("read the answer: /data: %w", err)
		}
		p.Data = data
		return p, nil
	case TypeProgress:
		p.Progress = q.Data
		return p, nil
	case TypeStdin:
		p.Open, p.Ack, p.TTY = q.Open, q.Ack, q.TTY
		return p, nil
	case TypeCallback:
		var err error
		p.callback, err = parseCallback(frame)
		return p, err
	case TypeResult, "":
		p.Type = TypeResult
	default:
		return p, nil
	}
	var err error
	if q.EnvelopeDuration == nil {
		p.Result, err = q.plainResult()
	} else {
		p.Result, err = q.envelopeResult()
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// plainResult returns the result in a response in plain form.
func (q *response) plainResult() (*Result, error) {
	r := &Result{
		ExitCode: q.ExitCode, Stdout: []byte(q.Stdout), Stderr: []byte(q.Stderr), Truncated: q.Truncated,
		FromCache: q.FromCache, ExecutionID: q.ExecutionID, Duration: time.Duration(q.DurationMS) * time.Millisecond,
		Usage: q.Usage,
	}
	var message string
	if q.Error != nil {
		if err := strictjson.Unmarshal(q.Error, &message); err != nil {
			return nil, fmt.Errorf("read the answer: /error: %w", err)
		}
	}
	if message == "" {
		r.Ran = true
		return r, nil
	}
	r.Err = &fault.Error{Code: q.Code, Message: message, MayRetry: q.Retriable, ToolCode: q.ToolCode}
	if q.Code == "" {
		r.Err.Code = fault.Internal
	}
	return r, nil
}

// envelopeResult returns the result in a response in envelope form.
func (q *response) envelopeResult() (*Result, error) {
	r := &Result{
		Data: q.Data, FromCache: q.EnvelopeFromCache, ExecutionID: q.EnvelopeExecution,
		Duration: time.Duration(*q.EnvelopeDuration) * time.Millisecond, Usage: q.Usage,
	}
	var output struct {
		ExitCode  *int   `json:"exit_code"`
		Stdout    string `json:"stdout"`
		Stderr    string `json:"stderr"`
		Truncated bool   `json:"truncated"`
	}
	// Data of another shape is the tool's own and stays in Data.
	if q.Data != nil && strictjson.UnmarshalLenient(q.Data, &output) == nil && output.ExitCode != nil {
		r.ExitCode, r.Stdout, r.Stderr, r.Truncated = *output.ExitCode, []byte(output.Stdout), []byte(output.Stderr), output.Truncated
		r.Ran = true
	}
	if q.Error != nil {
		var e struct {
			Code      fault.Code `json:"code"`
			Message   string     `json:"message"`
			Retriable bool       `json:"retriable"`
			ToolCode  string     `json:"tool_code"`
		}
		if err := strictjson.UnmarshalLenient(q.Error, &e); err != nil {
			return nil, fmt.Errorf("read the answer: /error: %w", err)
		}
		r.Err = &fault.Error{Code: e.Code, Message: e.Message, MayRetry: e.Retriable, ToolCode: e.ToolCode}
		if output.ExitCode == nil {
			r.ExitCode = e.Code.ExitCode()
		}
	} else {
		r.Ran = true
	}
	return r, nil
}
