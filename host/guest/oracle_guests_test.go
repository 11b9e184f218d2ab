package guest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	extism "github.com/extism/go-sdk"

	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/pdktest/vectors"
	"github.com/toold/toold/pdk/toolchain"
)

// portable are the flags with which an SDK uses only what every Extism host has.
var portable = map[toolchain.Language][]string{
	toolchain.Rust: {"--features", "toold/portable"}, toolchain.C: {"-DTOOLD_PORTABLE", "-I../../pdk/c"}, toolchain.AssemblyScript: {"--use", "TOOLD_PORTABLE=ASC_TARGET"},
}

// buildPortable compiles a guest for any Extism host, or skips the test.
func buildPortable(t *testing.T, o toolchain.Options) []byte {
	t.Helper()
	o.Out, o.Flags = filepath.Join(t.TempDir(), "guest.wasm"), portable[o.Language]
	err := toolchain.Build(t.Context(), o)
	if missing, ok := errors.AsType[*toolchain.MissingError](err); ok {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hosted gives both engines the host of each vector, a fresh one: those of
// go-sdk as functions of its user's, as it has them. What must come of a vector,
// package pdktest says; here both engines must say and ask the same. Variables,
// requests and the log are those that the oracle compares.
type hosted struct {
	oracle
	host *vectors.Host
}

func (h *hosted) exec(q *abi.ExecRequest) *abi.ExecResult {
	h.asked = append(h.asked, fmt.Sprintf("exec %+v", *q))
	return h.host.Exec(q)
}

func (h *hosted) emit(stream string, p []byte) {
	h.asked = append(h.asked, fmt.Sprintf("emit %s %q", stream, p))
}

func (h *hosted) toolCall(envelope []byte) json.RawMessage {
	h.asked = append(h.asked, "call "+string(envelope))
	return h.host.ToolCall(envelope)
}

// services are what our engine calls.
func (h *hosted) services() Services {
	return Services{
		Exec: func(_ context.Context, q *abi.ExecRequest) *abi.ExecResult { return h.exec(q) },
		Emit: func(stream string, p []byte) error { h.emit(stream, p); return nil },
		Recv: func(context.Context) ([]byte, error) { return h.host.Recv() },
		ToolCall: func(_ context.Context, _ int64, envelope []byte) ([]byte, int64, error) {
			return h.toolCall(envelope), 0, nil
		},
	}
}

// functions are what go-sdk calls.
func (h *hosted) functions(t *testing.T) []extism.HostFunction {
	function := func(name string, answer func(in []byte) any) extism.HostFunction {
		return extism.NewHostFunctionWithStack(name, func(_ context.Context, p *extism.CurrentPlugin, s []uint64) {
			var in []byte
			if s[0] != 0 {
				b, err := p.ReadBytes(s[0])
				if err != nil {
					t.Error(err)
				}
				in = slices.Clone(b)
			}
			a := answer(in)
			out, raw := a.(json.RawMessage)
			if !raw {
				var err error
				if out, err = json.Marshal(a); err != nil {
					t.Error(err)
				}
			}
			var err error
			if s[0], err = p.WriteBytes(out); err != nil {
				t.Error(err)
			}
		}, []extism.ValueType{extism.ValueTypeI64}, []extism.ValueType{extism.ValueTypeI64})
	}
	read := func(in []byte, into any) {
		if err := json.Unmarshal(in, into); err != nil {
			t.Errorf("asked with %q: %v", in, err)
		}
	}
	return []extism.HostFunction{
		function("tool_exec", func(in []byte) any {
			var q abi.ExecRequest
			read(in, &q)
			return h.exec(&q)
		}),
		function("tool_emit", func(in []byte) any {
			var q abi.EmitRequest
			read(in, &q)
			p, err := base64.StdEncoding.DecodeString(q.DataBase64)
			if err != nil {
				t.Error(err)
			}
			h.emit(q.Stream, p)
			return abi.EmitResult{}
		}),
		function("tool_recv", func([]byte) any {
			p, err := h.host.Recv()
			return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString(p), EOF: err != nil}
		}),
		function("tool_call", func(in []byte) any { return h.toolCall(in) }),
	}
}

// run makes the call of a vector on both engines, and reports whether both
// answered.
func (h *hosted) run(t *testing.T, v *vectors.Vector) bool {
	t.Helper()
	h.vars = v.Vars
	h.answer = func(w http.ResponseWriter) {
		if v.HTTP == nil {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Date", "today")
		for k, value := range v.HTTP.Headers {
			w.Header().Set(k, value)
		}
		w.WriteHeader(v.HTTP.Status)
		io.WriteString(w, v.HTTP.Body)
	}
	config := v.Config
	if config == nil {
		config = map[string]string{}
	}
	h.before = func() { h.host = v.Host() }
	return h.compare(t, Invocation{Export: v.Export, Input: v.Bytes(), Config: config, Services: h.services()})
}

// TestOracleGuests runs the conformance guest of each SDK and the examples in
// each language on go-sdk and here.
func TestOracleGuests(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling the guests twice takes a minute")
	}
	e := oracleEngine(t)
	extism.SetLogLevel(extism.LogLevelDebug)
	defer extism.SetLogLevel(extism.LogLevelOff)
	all, err := vectors.Load("../../pdk/testdata")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../sdk-examples/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var greetings []abi.Call
	if err := json.Unmarshal(b, &greetings); err != nil {
		t.Fatal(err)
	}
	greet := func(export string) []vectors.Vector {
		var list []vectors.Vector
		for i, c := range greetings {
			c.Tool, c.Cwd = "greet", "/workspace"
			in, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, vectors.Vector{Name: fmt.Sprint(export, i), Export: export, In: in, Config: map[string]string{"greeting": "Hello"}})
		}
		return list
	}
	ask := func(list ...vectors.Vector) []vectors.Vector {
		for i := range list {
			list[i].Export, list[i].Name = "handle", fmt.Sprint(i)
		}
		return list
	}
	weather := map[string]string{"api": "https://api.example.com"}
	answer := func(body string) (v vectors.Vector) {
		v.In, v.Config = json.RawMessage(`{"tool":"weather","args":["Oslo"]}`), weather
		if err := json.Unmarshal([]byte(body), &v.HTTP); err != nil {
			t.Fatal(err)
		}
		return v
	}
	examples := "../../sdk-examples/"
	for _, tt := range []struct {
		name string
		o    toolchain.Options
		v    []vectors.Vector
	}{
		{"conformance in Go", toolchain.Options{Language: toolchain.Go, Dir: "../../pdk/pdktest", Source: "guest"}, all},
		{"conformance in Rust", toolchain.Options{Language: toolchain.Rust, Dir: "../../pdk/rust", Source: "conformance"}, all},
		{"conformance in C", toolchain.Options{Language: toolchain.C, Dir: "../../pdk/c/conformance", Source: "guest.c"}, all},
		{"conformance in AssemblyScript", toolchain.Options{Language: toolchain.AssemblyScript, Dir: "../../pdk/assemblyscript", Source: "conformance/guest.ts"}, all},
		{"handler in Go", toolchain.Options{Language: toolchain.Go, Dir: examples + "go", Source: "handler"}, greet("handle")},
		{"policy in Go", toolchain.Options{Language: toolchain.Go, Dir: examples + "go", Source: "policy"}, greet("restrict")},
		{"handler in Rust", toolchain.Options{Language: toolchain.Rust, Dir: examples + "rust", Source: "handler"}, greet("handle")},
		{"policy in Rust", toolchain.Options{Language: toolchain.Rust, Dir: examples + "rust", Source: "policy"}, greet("restrict")},
		{"handler in C", toolchain.Options{Language: toolchain.C, Dir: examples + "c", Source: "handler.c"}, greet("handle")},
		{"policy in C", toolchain.Options{Language: toolchain.C, Dir: examples + "c", Source: "policy.c"}, greet("restrict")},
		{"handler in AssemblyScript", toolchain.Options{Language: toolchain.AssemblyScript, Dir: examples + "assemblyscript", Source: "handler.ts"}, greet("handle")},
		{"policy in AssemblyScript", toolchain.Options{Language: toolchain.AssemblyScript, Dir: examples + "assemblyscript", Source: "policy.ts"}, greet("restrict")},
		{"stream", toolchain.Options{Language: toolchain.C, Dir: examples + "stream", Source: "handler.c"}, ask(
			vectors.Vector{In: json.RawMessage(`{"tool":"countdown","args":["3"]}`)}, vectors.Vector{In: json.RawMessage(`{"tool":"countdown","args":["x"]}`)}, vectors.Vector{In: json.RawMessage(`{"tool":"countdown"}`)})},
		{"interview", toolchain.Options{Language: toolchain.AssemblyScript, Dir: examples + "interview", Source: "handler.ts"}, ask(
			vectors.Vector{In: json.RawMessage(`{"tool":"interview"}`), Recv: []string{"Arthur\n", "the ", "grail\n"}}, vectors.Vector{In: json.RawMessage(`{"tool":"interview"}`), Recv: []string{"Arthur"}}, vectors.Vector{In: json.RawMessage(`{"tool":"interview"}`)})},
		{"http", toolchain.Options{Language: toolchain.Rust, Dir: examples + "http"}, ask(
			answer(`{"status":200,"body":"{\"sky\":\"clear\"}"}`), answer(`{"status":404}`), answer(`{"status":500}`), answer(`{"status":200,"body":"[}"}`), vectors.Vector{In: json.RawMessage(`{"tool":"weather","args":["Oslo"]}`)})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if (tt.name == "handler in Go" || tt.name == "policy in Go") && !wholeOracle() {
				t.Skip("make oracle compares it")
			}
			h := &hosted{}
			h.spec = Spec{Name: "guest.wasm", Wasm: buildPortable(t, tt.o), Grants: AllGrants}
			h.fns = h.functions(t)
			h.serve(t)
			h.load(t, e)
			compared := 0
			for _, v := range tt.v {
				// go-sdk ends a call whose request is not answered; here a guest hears of it.
				if v.HTTP != nil && v.HTTP.Error != "" {
					continue
				}
				t.Run(v.Name, func(t *testing.T) {
					if h.run(t, &v) {
						compared++
					}
				})
			}
			if compared < len(tt.v)/2 {
				t.Errorf("both answered %d of %d calls", compared, len(tt.v))
			}
		})
	}
}
