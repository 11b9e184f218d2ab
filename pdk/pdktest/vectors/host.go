package vectors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

// Host answers one call of a guest as a vector says, and keeps what it was
// asked and told. It is of one goroutine.
type Host struct {
	v        *Vector
	recv     []string
	log      []Line
	emitted  []Emitted
	vars     map[string]string
	http     *HTTPAsked
	exec     *abi.ExecRequest
	toolCall []byte
}

// Host makes a host for one call.
func (v *Vector) Host() *Host {
	h := &Host{v: v, recv: v.Recv, vars: maps.Clone(v.Vars)}
	if h.vars == nil {
		h.vars = map[string]string{}
	}
	return h
}

// Log takes a line of the log; level is "debug", "info", "warn" or "error".
func (h *Host) Log(level, text string) { h.log = append(h.log, Line{level, text}) }

// Emit takes a piece of output.
func (h *Host) Emit(stream string, p []byte) {
	h.emitted = append(h.emitted, Emitted{stream, string(p)})
}

// VarGet returns a variable, or nil.
func (h *Host) VarGet(key string) []byte {
	if value, ok := h.vars[key]; ok {
		return []byte(value)
	}
	return nil
}

// VarSet sets a variable, or removes it when value is nil.
func (h *Host) VarSet(key string, value []byte) {
	if value == nil {
		delete(h.vars, key)
	} else {
		h.vars[key] = string(value)
	}
}

// Recv returns the next piece of input, or io.EOF.
func (h *Host) Recv() ([]byte, error) {
	if len(h.recv) == 0 {
		return nil, io.EOF
	}
	p := h.recv[0]
	h.recv = h.recv[1:]
	return []byte(p), nil
}

// HTTP answers a request, or returns why there is no answer.
func (h *Host) HTTP(r HTTPAsked) (*HTTPAnswer, error) {
	h.http = &r
	switch {
	case h.v.HTTP == nil:
		return nil, errors.New("this case has no answer")
	case h.v.HTTP.Error != "":
		return nil, errors.New(h.v.HTTP.Error)
	}
	return h.v.HTTP, nil
}

// Exec answers for a program.
func (h *Host) Exec(r *abi.ExecRequest) *abi.ExecResult {
	h.exec = r
	if h.v.Exec == nil {
		return &abi.ExecResult{Error: &abi.Error{Message: "this case has no answer"}}
	}
	return h.v.Exec
}

// ToolCall answers a call of another tool.
func (h *Host) ToolCall(envelope []byte) []byte {
	h.toolCall = bytes.Clone(envelope)
	return h.v.ToolCall
}

// Check returns how what the host was asked and sent differs from what it must
// have been.
func (h *Host) Check() error {
	switch {
	case !slices.Equal(h.log, h.v.Log):
		return fmt.Errorf("logged %+v, must be %+v", h.log, h.v.Log)
	case !slices.Equal(h.emitted, h.v.Emitted):
		return fmt.Errorf("emitted %+v, must be %+v", h.emitted, h.v.Emitted)
	}
	return h.CheckAsked()
}

// CheckAsked is Check without the log and the output, of which a guest that
// runs natively leaves no order.
func (h *Host) CheckAsked() error {
	v, vars := h.v, h.v.VarsAfter
	if vars == nil {
		vars = v.Vars
	}
	switch {
	case !maps.Equal(h.vars, vars):
		return fmt.Errorf("left variables %v, must be %v", h.vars, vars)
	case !reflect.DeepEqual(h.exec, v.AskedExec):
		return fmt.Errorf("ran %+v, must be %+v", h.exec, v.AskedExec)
	case (h.http == nil) != (v.AskedHTTP == nil):
		return fmt.Errorf("asked %+v, must be %+v", h.http, v.AskedHTTP)
	case (h.toolCall == nil) != (v.AskedForCall == nil):
		return fmt.Errorf("called %s, must be %s", h.toolCall, v.AskedForCall)
	}
	if h.http != nil {
		// Names of headers are of no case.
		got := *h.http
		got.Headers = map[string]string{}
		for k, value := range h.http.Headers {
			got.Headers[strings.ToLower(k)] = value
		}
		if !reflect.DeepEqual(&got, v.AskedHTTP) {
			return fmt.Errorf("asked %+v, must be %+v", got, *v.AskedHTTP)
		}
	}
	if h.toolCall != nil {
		got, err := Canonical(h.toolCall)
		if err != nil {
			return fmt.Errorf("called with something that is not JSON: %w: %s", err, h.toolCall)
		}
		if want, err := Canonical(v.AskedForCall); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("called with %s, must be %s", got, want)
		}
	}
	return nil
}
