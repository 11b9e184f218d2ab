//go:build !wasip1

package pdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/toold/toold/pdk/abi"
)

// Fake stands in for the host in native builds, for tests of guests:
//
//	f := &pdk.Fake{Config: map[string]string{"protected": "main"}}
//	d, err := f.Restrict(restrict, &abi.Call{Tool: "git", Args: []string{"status"}})
//
// Fields that are nil answer like a host that grants nothing.
type Fake struct {
	Config   map[string]string
	Vars     map[string][]byte
	HTTP     func(*HTTPRequest) (*HTTPResponse, error)
	Exec     func(*abi.ExecRequest) *abi.ExecResult
	Recv     func() abi.RecvResult
	ToolCall func(envelope []byte) []byte

	// Emitted holds what Emit sent, by stream; Logged what Log wrote.
	Emitted map[string][]byte
	Logged  []string

	input  []byte
	output []byte
	err    string
}

// A module has one host, so a native test has one at a time as well: turn
// serialises the Fakes, and current is the one whose turn it is.
var (
	turn    sync.Mutex
	current atomic.Pointer[Fake]
)

// Run calls an export with input and returns its output, or the error that
// it set. Runs of several Fakes wait for one another. A panic of the export
// passes through.
func (f *Fake) Run(export func() int32, input []byte) ([]byte, error) {
	turn.Lock()
	defer turn.Unlock()
	f.input, f.output, f.err = input, nil, ""
	current.Store(f)
	defer current.Store(nil)
	if code := export(); code != 0 {
		if f.err == "" {
			return nil, fmt.Errorf("export returned %d", code)
		}
		return nil, errors.New(f.err)
	}
	return f.output, nil
}

// Restrict runs a restrict export on c.
func (f *Fake) Restrict(export func() int32, c *abi.Call) (*abi.Decision, error) {
	var d abi.Decision
	return &d, f.runJSON(export, c, &d)
}

// Handle runs a handle export on c.
func (f *Fake) Handle(export func() int32, c *abi.Call) (*abi.Result, error) {
	var r abi.Result
	return &r, f.runJSON(export, c, &r)
}

// Discover runs a discover export on d.
func (f *Fake) Discover(export func() int32, d *abi.Discovery) (*abi.Surface, error) {
	var s abi.Surface
	return &s, f.runJSON(export, d, &s)
}

func (f *Fake) runJSON(export func() int32, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	b, err = f.Run(export, b)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// host is the Fake whose turn it is; outside of one, a host that has and
// grants nothing.
func host() *Fake {
	if f := current.Load(); f != nil {
		return f
	}
	return &Fake{}
}

func readInput() []byte       { return host().input }
func writeOutput(b []byte)    { host().output = b }
func setError(message string) { host().err = message }

func configGet(key string) (string, bool) {
	v, ok := host().Config[key]
	return v, ok
}

func varGet(key string) []byte { return host().Vars[key] }

func varSet(key string, value []byte) {
	f := host()
	if value == nil {
		delete(f.Vars, key)
		return
	}
	if f.Vars == nil {
		f.Vars = map[string][]byte{}
	}
	f.Vars[key] = append([]byte{}, value...)
}

func logLine(level Level, message string) {
	f := host()
	f.Logged = append(f.Logged, message)
}

func httpRequest(r *HTTPRequest) (*HTTPResponse, error) {
	if f := host(); f.HTTP != nil {
		return f.HTTP(r)
	}
	return nil, errors.New("http request: not granted")
}

func toolExec(in []byte) []byte {
	res := &abi.ExecResult{Error: &abi.Error{Message: "tool_exec: not granted"}}
	if f := host(); f.Exec != nil {
		var r abi.ExecRequest
		if err := json.Unmarshal(in, &r); err != nil {
			panic(err)
		}
		res = f.Exec(&r)
	}
	return mustMarshal(res)
}

func toolEmit(in []byte) []byte {
	var r struct {
		Stream string `json:"stream"`
		Data   []byte `json:"data_base64"`
	}
	if err := json.Unmarshal(in, &r); err != nil {
		panic(err)
	}
	f := host()
	if f.Emitted == nil {
		f.Emitted = map[string][]byte{}
	}
	f.Emitted[r.Stream] = append(f.Emitted[r.Stream], r.Data...)
	return mustMarshal(abi.EmitResult{})
}

func toolRecv([]byte) []byte {
	if f := host(); f.Recv != nil {
		return mustMarshal(f.Recv())
	}
	return mustMarshal(abi.RecvResult{EOF: true})
}

func toolCall(in []byte) []byte {
	if f := host(); f.ToolCall != nil {
		return f.ToolCall(in)
	}
	return nil
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
