// Package vectors has the cases of the conformance suite, and the one host that
// answers a guest as a case says: to the engine, to another engine, and to a
// guest that runs as a native program. Whoever runs the guest hands on to Host
// what the guest asks of it, in its own terms, and lets Check say whether that
// was right. It knows no engine, so that the engine's own tests can use it.
package vectors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// Vector is one case: a call of an export, what the host answers meanwhile,
// and what must come of it.
type Vector struct {
	Name   string `json:"name"`
	Export string `json:"export"`

	// In is the input. Input is one that is not JSON, or not well-formed.
	In    json.RawMessage `json:"in,omitempty"`
	Input *string         `json:"input,omitempty"`

	// What the host has.
	Config   map[string]string `json:"config,omitempty"`
	Vars     map[string]string `json:"vars,omitempty"`
	Recv     []string          `json:"recv,omitempty"`
	HTTP     *HTTPAnswer       `json:"http,omitempty"`
	Exec     *abi.ExecResult   `json:"exec,omitempty"`
	ToolCall json.RawMessage   `json:"tool_call,omitempty"`

	// Out is the answer. Without one the call must fail, by one of the codes
	// of Fails, with a message that holds Message.
	Out     json.RawMessage `json:"out,omitempty"`
	Fails   []fault.Code    `json:"fails,omitempty"`
	Message string          `json:"message,omitempty"`

	// What the host must have been asked and told; absent is nothing.
	Log          []Line            `json:"log,omitempty"`
	Emitted      []Emitted         `json:"emitted,omitempty"`
	VarsAfter    map[string]string `json:"vars_after,omitempty"`
	AskedHTTP    *HTTPAsked        `json:"asked_http,omitempty"`
	AskedExec    *abi.ExecRequest  `json:"asked_exec,omitempty"`
	AskedForCall json.RawMessage   `json:"asked_tool_call,omitempty"`
}

// HTTPAnswer is what http_request returns; with Error there is no answer.
type HTTPAnswer struct {
	Status  int               `json:"status,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// HTTPAsked is what it was asked.
type HTTPAsked struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
}

// Line is one line of the log.
type Line struct {
	Level string `json:"level"`
	Text  string `json:"text"`
}

// Emitted is one piece that was sent while the call ran.
type Emitted struct {
	Stream string `json:"stream"`
	Text   string `json:"text"`
}

// Load reads all vectors of a folder, file by file in order of their names.
func Load(dir string) ([]Vector, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("load vectors: there are none in %s", dir)
	}
	slices.Sort(files)
	var all []Vector
	names := map[[2]string]bool{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var list []Vector
		if err := strictjson.Unmarshal(b, &list); err != nil {
			return nil, fmt.Errorf("load vectors: %s: %w", file, err)
		}
		for _, v := range list {
			switch {
			case v.Name == "" || names[[2]string{v.Export, v.Name}]:
				return nil, fmt.Errorf("load vectors: %s: the name %q is empty or taken", file, v.Name)
			case (v.In == nil) == (v.Input == nil):
				return nil, fmt.Errorf("load vectors: %s: %s needs one of in and input", file, v.Name)
			case (v.Out == nil) == (v.Fails == nil):
				return nil, fmt.Errorf("load vectors: %s: %s needs one of out and fails", file, v.Name)
			case v.answer() == nil:
				return nil, fmt.Errorf("load vectors: %s: %s names no export", file, v.Name)
			}
			names[[2]string{v.Export, v.Name}] = true
		}
		all = append(all, list...)
	}
	return all, nil
}

// answer is an empty value of the type that the export returns.
func (v *Vector) answer() any {
	switch v.Export {
	case "describe":
		return &abi.Describe{}
	case "restrict", "wire":
		return &abi.Decision{}
	case "handle":
		return &abi.Result{}
	case "discover":
		return &abi.Surface{}
	case "classify":
		return &abi.Classification{}
	case "reconcile":
		return &abi.Reconciliation{}
	}
	return nil
}

// CheckAnswer returns how the answer of a guest differs from Out.
func (v *Vector) CheckAnswer(answer []byte) error {
	got, err := canonical(answer, v.answer())
	if err != nil {
		return fmt.Errorf("answered what cannot be read strictly: %w: %s", err, answer)
	}
	want, err := canonical(v.Out, v.answer())
	if err != nil {
		return fmt.Errorf("the vector's own out: %w", err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("answered\n  %s, must be\n  %s", got, want)
	}
	return nil
}

// Bytes are the input of the call.
func (v *Vector) Bytes() []byte {
	if v.Input != nil {
		return []byte(*v.Input)
	}
	return v.In
}

// canonical reads data strictly as the type of into and writes it in the one
// form that equal answers share.
func canonical(data []byte, into any) ([]byte, error) {
	if err := strictjson.Unmarshal(data, into); err != nil {
		return nil, err
	}
	b, err := json.Marshal(into)
	if err != nil {
		return nil, err
	}
	return Canonical(b)
}

// Canonical writes JSON with the keys of its objects in order and without white
// space; numbers stay as they were written.
func Canonical(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
