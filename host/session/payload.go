package session

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/toold/toold/host/fault"
)

// The payloads of the six calls. ID is the session; if it is empty, the session
// of the request itself.
type (
	queryPayload struct {
		ID       string `json:"id"`
		Selector string `json:"selector"`
	}
	mutatePayload struct {
		ID     string `json:"id"`
		Op     string `json:"op"`
		Params params `json:"params"`
	}
	promptPayload struct {
		ID       string          `json:"id"`
		Text     string          `json:"text"`
		Envelope json.RawMessage `json:"envelope"`
		Queue    bool            `json:"queue"`
	}
	abortPayload struct {
		ID        string `json:"id"`
		Execution string `json:"execution"`
	}
	steerPayload struct {
		ID        string `json:"id"`
		Text      string `json:"text"`
		Execution string `json:"execution"`
		EOF       bool   `json:"eof"`
	}
)

// watchPayload is the payload of session.watch. ID, or Session, names one session.
// Without a name there, in the request or by its focus, all sessions of the caller
// are watched, or by an operator all sessions. A bound caller watches its session.
type watchPayload struct {
	ID      string `json:"id"`
	Session string `json:"session"`
	After   string `json:"after"`
}

// params are the parameters of all operations of mutate; each uses some.
type params struct {
	Cwd    string            `json:"cwd,omitempty"`
	Parent string            `json:"parent,omitempty"`
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Tools  *[]string         `json:"tools,omitempty"`
	Job    string            `json:"job,omitempty"`
	// Persist false keeps a created session in memory only.
	Persist *bool `json:"persist,omitempty"`
}

func (p *params) validate() error {
	long := func(where, s string) error {
		if len(s) > maxText {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/%s: has %d bytes, and %d are the limit", where, len(s), maxText)
		}
		return nil
	}
	if err := long("name", p.Name); err != nil {
		return err
	}
	if len(p.Cwd) > 4096 || strings.IndexByte(p.Cwd, 0) >= 0 {
		return fault.Errorf(fault.InvalidPayload, "/payload/params/cwd: not a path")
	}
	if len(p.Labels) > maxLabels {
		return fault.Errorf(fault.InvalidPayload, "/payload/params/labels: has %d entries, and %d are the limit", len(p.Labels), maxLabels)
	}
	for k, v := range p.Labels {
		if k == "" {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/labels: a label has no name")
		}
		if err := cmp.Or(long("labels", k), long("labels/"+k, v)); err != nil {
			return err
		}
	}
	if p.Tools != nil {
		if len(*p.Tools) > maxTools {
			return fault.Errorf(fault.InvalidPayload, "/payload/params/tools: has %d entries, and %d are the limit", len(*p.Tools), maxTools)
		}
		for _, name := range *p.Tools {
			if err := long("tools", name); err != nil {
				return err
			}
		}
	}
	return nil
}

// Limits on what a caller may store.
const (
	maxText   = 256 // bytes of a name, a label or a key
	maxLabels = 64
	maxTools  = 256
)

// object returns {name: value}.
func object(name string, value any) json.RawMessage { return marshal(map[string]any{name: value}) }

func marshal(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot fail: raw JSON, strings and numbers only
	}
	return data
}

// Value returns the value in the answer of a query.
func Value(data json.RawMessage) []byte {
	var answer struct {
		Value json.RawMessage `json:"value"`
	}
	json.Unmarshal(data, &answer) // it was made by object
	return append(answer.Value, '\n')
}
