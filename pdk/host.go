package pdk

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/toold/toold/pdk/abi"
)

// Config returns the value that tool.json (or the caller's identity) gives
// key, or "" for a key that is not there.
func Config(key string) string {
	v, _ := configGet(key)
	return v
}

// LookupConfig is Config for callers that distinguish "" from absent.
func LookupConfig(key string) (string, bool) { return configGet(key) }

// Level is the severity of a log line.
type Level int

// Levels, in rising order.
const (
	LevelDebug Level = iota
	LevelInfo
	LevelWarn
	LevelError
)

// Log writes one line to the host's log, which adds tool, call and caller.
// The host cuts long lines and drops what goes beyond its limit for a call.
func Log(level Level, message string) { logLine(level, message) }

// VarGet returns what VarSet stored under key for this tool, identity and
// session, or nil. It needs the capability "state".
func VarGet(key string) []byte { return varGet(key) }

// VarSet stores value under key; nil removes it. A value beyond the tool's
// state capability ends the call with LIMIT_EXCEEDED.
func VarSet(key string, value []byte) { varSet(key, value) }

// HTTPRequest is a request that the host makes for the guest.
type HTTPRequest struct {
	Method  string            `json:"method"` // GET when empty
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    []byte            `json:"-"`
}

// HTTPResponse is the answer to an HTTPRequest. Any status is an answer.
type HTTPResponse struct {
	Status  int
	Headers map[string]string // names in lower case
	Body    []byte
}

// HTTP makes a request to a host that the capability "http" lists. The error
// says why there was no answer: a host that is not listed, a name that does
// not resolve, a timeout.
func HTTP(r *HTTPRequest) (*HTTPResponse, error) {
	q := *r
	if q.Method == "" {
		q.Method = "GET"
	}
	return httpRequest(&q)
}

// Exec runs a binary that the capability "exec" lists and waits for it. A
// binary that ran and failed is an ExitCode, not an error.
func Exec(r *abi.ExecRequest) (*abi.ExecResult, error) {
	in, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var res abi.ExecResult
	if err := json.Unmarshal(toolExec(in), &res); err != nil {
		return nil, fmt.Errorf("read answer of tool_exec: %w", err)
	}
	if res.Error != nil {
		return nil, errors.New(res.Error.Message)
	}
	return &res, nil
}

// Streams of Emit.
const (
	Stdout = "stdout"
	Stderr = "stderr"
	// Progress carries one JSON value with the progress of the call.
	Progress = "progress"
)

// Emit sends output while the call runs. It waits while the caller is slow
// and fails when the caller has left.
func Emit(stream string, p []byte) error {
	name, err := json.Marshal(stream)
	if err != nil {
		return err
	}
	// Written by hand, as Recv reads by hand: encoding/json would cost more
	// than the handler itself (see decodeCall).
	in := make([]byte, 0, len(name)+base64.StdEncoding.EncodedLen(len(p))+len(`{"stream":,"data_base64":""}`))
	in = append(in, `{"stream":`...)
	in = append(in, name...)
	in = append(in, `,"data_base64":"`...)
	in = base64.StdEncoding.AppendEncode(in, p)
	in = append(in, `"}`...)
	out := toolEmit(in)
	if string(out) == "{}" {
		return nil
	}
	var res abi.EmitResult
	if err := json.Unmarshal(out, &res); err != nil {
		return fmt.Errorf("read answer of tool_emit: %w", err)
	}
	if res.Error != nil {
		return errors.New(res.Error.Message)
	}
	return nil
}

// Recv waits for the next piece of the caller's input, or for a message that
// steers this call. It returns io.EOF at the end of the input.
func Recv() ([]byte, error) {
	var res abi.RecvResult
	if err := decodeRecv(toolRecv(nil), &res); err != nil {
		return nil, fmt.Errorf("read answer of tool_recv: %w", err)
	}
	switch {
	case res.Error != nil:
		return nil, errors.New(res.Error.Message)
	case res.EOF:
		return nil, io.EOF
	}
	return base64.StdEncoding.DecodeString(res.DataBase64)
}

// decodeRecv reads what tool_recv answers, as decodeCall reads a Call.
func decodeRecv(b []byte, res *abi.RecvResult) error {
	r := &callReader{b: b}
	r.object(func(name []byte) {
		switch string(name) {
		case "data_base64":
			res.DataBase64 = r.string()
		case "eof":
			res.EOF = r.bool()
		case "error":
			if raw := r.raw(); r.err == nil {
				if err := json.Unmarshal(raw, &res.Error); err != nil {
					r.fail(err.Error())
				}
			}
		default:
			r.raw()
		}
	})
	return r.end()
}

// ToolCall makes a call as this session and identity: envelope is a request
// as a program would send it, and the answer is the response. Which tools and
// session calls it may make is said in capabilities.tool_call of tool.json.
// executionId may be left out.
func ToolCall(envelope []byte) ([]byte, error) {
	out := toolCall(envelope)
	if len(out) == 0 {
		return nil, errors.New("tool_call answered nothing")
	}
	return out, nil
}
