package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/pdktest"
	"github.com/toold/toold/pdk/pdktest/vectors"
	"github.com/toold/toold/pdk/toolchain"
)

// The fuzz targets give the same bytes to the Go guest, natively, and to the
// guests of the SDKs that have a reader of their own, in the engine. What the
// one reads the others must read alike, and what the one refuses all must
// refuse: with a message, and without a trap. Where readings may differ,
// package pdktest says so, and mayDiffer here.

// subject is a guest under test.
type subject struct {
	language toolchain.Language
	module   *guest.Module
}

// built is the guest of a language, or says that its compiler is not here.
type built struct {
	language toolchain.Language
	wasm     []byte
	missing  error
}

// build makes the guests, once for all targets.
var build = sync.OnceValues(func() ([]built, error) {
	dir, err := os.MkdirTemp("", "pdktest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var all []built
	for _, o := range []toolchain.Options{
		{Language: toolchain.Rust, Dir: "../../rust", Source: "conformance"},
		{Language: toolchain.C, Dir: "../../c/conformance", Source: "guest.c"},
		{Language: toolchain.AssemblyScript, Dir: "../../assemblyscript", Source: "conformance/guest.ts"},
	} {
		o.Out = filepath.Join(dir, "guest.wasm")
		err := toolchain.Build(context.Background(), o)
		if missing, ok := errors.AsType[*toolchain.MissingError](err); ok {
			all = append(all, built{language: o.Language, missing: missing})
			continue
		}
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(o.Out)
		if err != nil {
			return nil, err
		}
		all = append(all, built{language: o.Language, wasm: b})
	}
	return all, nil
})

// guests loads the guests of the languages whose compilers are here, or that
// which TOOLD_GUEST names.
func guests(f *testing.F) []subject {
	f.Helper()
	e, err := guest.New(guest.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	var modules []subject
	f.Cleanup(func() {
		for _, m := range modules {
			m.module.Close()
		}
		if err := e.Close(); err != nil {
			f.Error(err)
		}
	})
	load := func(name toolchain.Language, b []byte) {
		m, err := e.Load(context.Background(), guest.Spec{Name: "guest.wasm", Wasm: b, Grants: guest.AllGrants})
		if err != nil {
			f.Fatal(err)
		}
		modules = append(modules, subject{name, m})
	}
	// Another SDK's, alone: ours are tried without it.
	if file := os.Getenv("TOOLD_GUEST"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		load(foreign, b)
		return modules
	}
	compiled, err := build()
	if err != nil {
		f.Fatal(err)
	}
	for _, g := range compiled {
		if g.missing != nil {
			f.Log(g.missing)
			continue
		}
		load(g.language, g.wasm)
	}
	if len(modules) == 0 {
		f.Skip("no compiler of another language than Go is here")
	}
	return modules
}

// call calls an export of a guest. An answer is "" where the guest failed and
// said why; anything else that goes wrong is an error of the test.
func (m subject) call(t *testing.T, v *vectors.Vector) string {
	t.Helper()
	reply, _, err := pdktest.Call(context.Background(), m.module, v)
	if err == nil {
		return string(reply.Output)
	}
	if e, ok := errors.AsType[*guest.Error](err); !ok || e.Kind != guest.Failed || e.Detail == "" || strings.Contains(e.Detail, "answered") {
		t.Errorf("%s: %s of %q: %v", m.language, v.Export, v.Bytes(), err)
	}
	return ""
}

// same reports whether two answers say the same.
func same(t *testing.T, a, b string) bool {
	if a == "" || b == "" {
		return a == b
	}
	var got [2]any
	for i, s := range []string{a, b} {
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&got[i]); err != nil {
			t.Errorf("the answer %q is not JSON: %v", s, err)
			return true
		}
	}
	x, err1 := json.Marshal(got[0])
	y, err2 := json.Marshal(got[1])
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}

// mayDiffer reports whether in is one of the inputs of which pdktest says that
// readings may differ. A host sends none of them; our SDKs but Go's refuse them.
func (m subject) mayDiffer(t *testing.T, in []byte, got string) bool {
	if utf8.Valid(in) && depth(in) <= 200 {
		return false
	}
	if got != "" && m.language != foreign {
		t.Errorf("%s answers %s for %q", m.language, got, in)
	}
	return true
}

// foreign stands for the module that TOOLD_GUEST names.
const foreign = toolchain.Language("TOOLD_GUEST")

// depth is how deep in nests, at the most.
func depth(in []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(in); i++ {
		switch c := in[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}', c == ']':
			now--
		}
	}
	return deepest
}

// calls are inputs to begin with: of the vectors, and what readers get wrong.
func calls(f *testing.F, export string) [][]byte {
	all, err := vectors.Load("../../testdata")
	if err != nil {
		f.Fatal(err)
	}
	var inputs [][]byte
	for _, v := range all {
		if v.Export == export {
			inputs = append(inputs, v.Bytes())
		}
	}
	return inputs
}

// FuzzRestrict: a Call that cannot be read is never allowed, and one that can
// is decided alike.
func FuzzRestrict(f *testing.F) {
	modules := guests(f)
	for _, in := range calls(f, "restrict") {
		f.Add(in)
	}
	for _, s := range []string{
		`null`, ``, ` `, `[]`, `{}`, `{"args":["allow"]}x`, `{"args":["allow"],}`, `{"args":["allow",]}`, `{"args":["allow"]`, `{"args":["allow"],"args":["deny"]}`, `{"args":["deny"],"args":["allow"]}`,
		`{"args":["allow"],"args":null}`, `{"repo_config":{"error":"e"},"repo_config":null,"args":["repo"]}`, `{"args":["repo"],"repo_config":{"entries":[{"key":"a"},{}],"submodules":[null]}}`,
		`{"args":["rewrite","` + "\xff" + `"]}`, `{"args":["allow` + "\xc0" + `"]}`, `{"args":["rewrite","\ud800\udc00\ud800","\udc00"]}`, `{"args":["all\u006fw"]}`, `{"args":["allow"],"attempt":-0}`,
		`{"args":["allow"],"attempt":9223372036854775808}`, `{"args":["allow"],"read_only":"true"}`, `{"args":["allow"],"x":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, _, _, err := natively(&vectors.Vector{Export: "restrict", In: in})
		want, request := string(out), ""
		var c abi.Call
		if json.Unmarshal(in, &c) == nil && len(c.Args) > 0 {
			request = c.Args[0]
		}
		for _, m := range modules {
			if err != nil && !strings.HasPrefix(err.Error(), "read call:") {
				break // It could be read, and the request is to fail.
			}
			got := m.call(t, &vectors.Vector{Export: "restrict", In: in})
			if !json.Valid(in) && got != "" {
				t.Errorf("%s answers %s for %q, which is not JSON", m.language, got, in)
			}
			if m.mayDiffer(t, in, got) || request == "config" {
				continue
			}
			if !same(t, got, want) {
				t.Errorf("%s decides %q as %s, Go as %s, %v", m.language, in, got, want, err)
			}
		}
	})
}

// FuzzCall: what is read of a Call is the same in every language.
func FuzzCall(f *testing.F) {
	modules := guests(f)
	const prefix = `{"args":["call"`
	for _, in := range calls(f, "handle") {
		if rest, ok := strings.CutPrefix(strings.Join(strings.Fields(string(in)), ""), `{"tool":"pdktest","args":["call"`); ok {
			f.Add([]byte(rest))
		}
	}
	for _, s := range []string{
		`,"a","b"],"tool":"t","cwd":"/w","roots":["/w","/x"],"payload":{"a":[1,2.50e+3,-0,null,{"b":"\""}]},"stdin_base64":"AAEC","env":{"A":"b","C":""},"execution_id":"i","attempt":2,"session":"s","caller":"c","read_only":true,"binding":[1],"deadline_ms":-5,"repo_config":{"entries":[{"key":"k","value":"v"}],"submodules":[{"key":"k2","value":"v2"}],"error":"e"}}`,
		`],"tool":null,"cwd":null,"roots":null,"payload":null,"env":null,"attempt":null,"read_only":null,"binding":null,"repo_config":null}`,
		`],"env":{"A":"b"},"env":{"B":"c"},"roots":["a"],"roots":["b"],"repo_config":{"entries":[{"key":"a"}]},"repo_config":{"error":"x"}}`, `],"env":{"A":"b","A":"c"}}`, `],"env":{"A":null}}`,
		`,"\u0000\u001f\u007f\u0080\u07ff\u0800\uffff\ud83d\ude00","\ud800","\udc00x\ud800\ud800\udc00"]}`, `,"\u12"]}`, `,"\x"]}`, `,"` + "\x00" + `"]}`, `,"a` + "\xed\xa0\x80" + `"]}`, `,"` + "\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4" + `"]}`,
		`],"payload":01}`, `],"payload":1.}`, `],"payload":tru}`, `],"payload":nul}`, `],"payload":123456789012345678901234567890.5E-400}`, `],"payload":"\ud800"}`, `],"payload": {"a" : [ ] } }`, `],"x":{"y":[[[]]]}}`, `],"x":"a\"b\\"}`,
		`],"deadline_ms":9223372036854775807,"attempt":-9223372036854775808}`, `],"deadline_ms":1e3}`, `],"deadline_ms":1.0}`, `],"attempt":"1"}`, `],"attempt":-}`, `],"\u0074ool":"x"}`, `],"Tool":"x"}`, `],"binding":"` + "\t" + `"}`, `]}{}`, `] }` + "\n", `]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, rest []byte) {
		in := append([]byte(prefix), rest...)
		out, _, _, err := natively(&vectors.Vector{Export: "handle", In: in})
		var c abi.Call
		if json.Unmarshal(in, &c) == nil && (len(c.Args) == 0 || c.Args[0] != "call") {
			return // The args came again.
		}
		for _, m := range modules {
			got := m.call(t, &vectors.Vector{Export: "handle", In: in})
			if !json.Valid(in) && got != "" {
				t.Errorf("%s answers %s for %q, which is not JSON", m.language, got, in)
			}
			if !m.mayDiffer(t, in, got) && !same(t, got, string(out)) {
				t.Errorf("%s reads %q as %s, Go as %s, %v", m.language, in, got, out, err)
			}
		}
	})
}

// FuzzDiscover is the same of a Discovery.
func FuzzDiscover(f *testing.F) {
	modules := guests(f)
	for _, in := range calls(f, "discover") {
		f.Add(in)
	}
	for _, s := range []string{`null`, `{}`, `{"tool":"a","tool":null}`, `{"read_only":1}`, `{"deadline_ms":1.5}`, `{"tool":"\u00e4"} x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, _, _, err := natively(&vectors.Vector{Export: "discover", In: in})
		for _, m := range modules {
			if got := m.call(t, &vectors.Vector{Export: "discover", In: in}); !m.mayDiffer(t, in, got) && !same(t, got, string(out)) {
				t.Errorf("%s answers %s for %q, Go %s, %v", m.language, got, in, out, err)
			}
		}
	})
}

// FuzzReconcile is the same of what a reconcile export is asked.
func FuzzReconcile(f *testing.F) {
	modules := guests(f)
	for _, in := range calls(f, "reconcile") {
		f.Add(in)
	}
	for _, s := range []string{
		`null`, `{"call":null}`, `{"before":true,"call":{"args":["x"]},"call":{}}`, `{"call":{"args":["run"]},"ran":null}`, `{"call":{"args":["run"]},"ran":[null,{"error":null},{"error":{}}]}`,
		`{"call":{"args":["run"]},"ran":[{"stdout":"a"}],"ran":[{"stderr":"b"}]}`, `{"call":{"args":["run"]},"ran":[{"args":["a"],"args":null,"error":{"code":"A"},"error":{"message":"B"}}]}`,
		`{"call":{"args":["run"]},"ran":[{"exit_code":-2147483649}]}`, `{"call":{"args":["run"]},"ran":[{"ARGS":["a"]}]}`, `{"call":{"args":["done"]},"facts":null}`, `{"call":{"args":["done"]},"facts":[ 1 , 01]}`,
		`{"call":{"args":["asked"]},"env":["a"],"env":[],"gone":true,"gone":null,"now_ms":-1}`, `{"call":{"args":["run","a"]}}x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, _, _, err := natively(&vectors.Vector{Export: "reconcile", In: in})
		for _, m := range modules {
			if got := m.call(t, &vectors.Vector{Export: "reconcile", In: in}); !m.mayDiffer(t, in, got) && !same(t, got, string(out)) {
				t.Errorf("%s answers %s for %q, Go %s, %v", m.language, got, in, out, err)
			}
		}
	})
}

// FuzzWire is the same of what a wire export is asked.
func FuzzWire(f *testing.F) {
	modules := guests(f)
	for _, in := range calls(f, "wire") {
		f.Add(in)
	}
	for _, s := range []string{
		`null`, `{"call":null}`, `{"call":{"args":["asked"]},"refs":null}`, `{"call":{"args":["asked"]},"refs":[null]}`, `{"call":{"args":["asked"]},"refs":[{}],"refs":[]}`,
		`{"call":{"args":["asked"]},"refs":[],"refs":[{"name":"a"}]}`, `{"call":{"args":["asked"]},"refs":[{"name":"a","name":null,"force":true,"force":null}]}`,
		`{"call":{"args":["asked"]},"refs":[{"force":1}]}`, `{"call":{"args":["asked"]},"refs":{}}`, `{"call":{"args":["asked"]},"port":1e3}`, `{"call":{"args":["asked"]},"port":-9223372036854775808}`,
		`{"call":{"args":["asked"]},"push_options":["a"],"push_options":null}`, `{"call":{"args":["allow"]},"call":{}}`, `{"call":{"args":["allow"]}}x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, _, _, err := natively(&vectors.Vector{Export: "wire", In: in})
		for _, m := range modules {
			if got := m.call(t, &vectors.Vector{Export: "wire", In: in}); !m.mayDiffer(t, in, got) && !same(t, got, string(out)) {
				t.Errorf("%s answers %s for %q, Go %s, %v", m.language, got, in, out, err)
			}
		}
	})
}

// FuzzClassify is the same of what has ended, less the fields of a Result that
// the other SDKs have no place for.
func FuzzClassify(f *testing.F) {
	modules := guests(f)
	for _, in := range calls(f, "classify") {
		f.Add(in)
	}
	for _, s := range []string{
		`{"call":{"args":["a"]},"result":{"exit_code":4294967296}}`, `{"call":{"args":["a"]},"result":{"exit_code":-2147483649}}`, `{"call":null,"result":{}}`, `{"call":{"args":["a"]},"result":null}`, `{"result":{"exit_code":2},"call":{"args":["a"]}}`,
		`{"call":{"args":["a"]},"result":{"stderr_base64":"dHJ5"}}`, `{"call":{"args":["a"]},"result":{"stderr_base64":"dHJ5IGFnYWlu/w==","exit_code":3}}`, `{"call":{"args":["a"]},"result":{"stderr_base64":"="}}`, `{"call":{"args":["a"]},"call":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := run1(&pdk.Fake{}, classifyBySDK, in)
		for _, m := range modules {
			if got := m.call(t, &vectors.Vector{Export: "classify", In: in}); !m.mayDiffer(t, in, got) && !otherFields(in) && !same(t, got, string(out)) {
				t.Errorf("%s answers %s for %q, Go %s, %v", m.language, got, in, out, err)
			}
		}
	})
}

// classifyBySDK is classify with the SDK's own reader, and refuses outputs that
// are not base64, which the Go SDK leaves to who looks at them.
func classifyBySDK() int32 {
	var failed error
	code := pdk.Classify(func(c *abi.Call, r *abi.Result) abi.Classification {
		if len(c.Args) == 0 {
			failed = errors.New("there is no request")
		}
		for _, s := range []string{r.StdoutBase64, r.StderrBase64} {
			if _, err := base64.StdEncoding.DecodeString(s); err != nil || strings.ContainsAny(s, "\r\n") {
				failed = errors.New("not base64")
			}
		}
		stderr, _ := base64.StdEncoding.DecodeString(r.StderrBase64)
		return abi.Classification{Failure: r.ExitCode >= 2, Retriable: string(stderr) == "try again\xff"}
	})
	if code == 0 && failed != nil {
		return pdk.Export(func([]byte) ([]byte, error) { return nil, failed })
	}
	return code
}

// otherFields reports whether the result has fields that only the Go SDK reads,
// exit codes that only Go's int holds, names in another case or twice, or null
// for one that was there before: which encoding/json has rules of its own for.
func otherFields(in []byte) bool {
	text := string(in)
	if strings.Contains(text, `\u`) {
		return true
	}
	var q struct {
		Result map[string]json.RawMessage `json:"result"`
	}
	if json.Unmarshal(in, &q) != nil {
		return false
	}
	for name, v := range q.Result {
		switch name {
		case "exit_code":
			var code int32
			if json.Unmarshal(v, &code) != nil {
				return true
			}
		case "stdout_base64", "stderr_base64", "stdout":
		default:
			return true
		}
		if strings.Count(text, `"`+name+`"`) > 1 {
			return true
		}
	}
	return strings.Count(text, `"result"`) > 1
}

// FuzzAnswers gives the guests all that a host function may answer.
func FuzzAnswers(f *testing.F) {
	modules := guests(f)
	for _, s := range []string{"", "text", "AAEC", "YQ==", "YQ==\n", "YR==", "=", "ä€😀", "\xff", `{"a":1}`, "null", "\"\\\n\u0000\u2028"} {
		for kind := range byte(5) {
			f.Add(kind, 200, s, "other")
			f.Add(kind, -1, "more", s)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, number int, a, b string) {
		c := abi.Call{Tool: "pdktest", Cwd: "/"}
		v := vectors.Vector{Export: "handle"}
		strict := true // Go must read it as the others do.
		switch kind % 5 {
		case 0:
			c.Args = []string{"http", "GET", "https://example.com/", ""}
			number = int(uint(number) % 1000)
			if number == 0 {
				number = 200
			}
			v.HTTP = &vectors.HTTPAnswer{Status: number, Headers: map[string]string{"x-reply": a, "other": b}, Body: b}
			strict = utf8.ValidString(b) // A body may be any bytes; the guests make text of it.
		case 1:
			c.Args = []string{"exec", "/bin/x"}
			v.Exec = &abi.ExecResult{ExitCode: number, StdoutBase64: a, StderrBase64: b}
			for _, s := range []string{a, b} {
				out, err := base64.StdEncoding.Strict().DecodeString(s)
				// What is no base64 no host sends; a guest refuses it, or fails.
				strict = strict && err == nil && utf8.Valid(out) && !strings.ContainsAny(s, "\r\n")
			}
			strict = strict && number == int(int32(number))
		case 2:
			c.Args = []string{"exec", "/bin/x"}
			v.Exec = &abi.ExecResult{Error: &abi.Error{Code: b, Message: a, Retriable: number > 0}}
			strict = a != "" // Without a message C and AssemblyScript know no error.
		case 3:
			c.Args = []string{"recv"}
			v.Recv = []string{a, b}
			strict = utf8.ValidString(a) && utf8.ValidString(b)
		case 4:
			c.Args = []string{"var-get", b}
			v.Vars = map[string]string{b: a}
			strict = a != "" && utf8.ValidString(a) && utf8.ValidString(b)
		}
		var err error
		if v.In, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		out, _, _, err := natively(&v)
		for _, m := range modules {
			got := m.call(t, &v)
			if strict && !same(t, got, string(out)) {
				t.Errorf("%s answers %s for %s with %d, %q, %q, Go %s, %v", m.language, got, v.In, number, a, b, out, err)
			}
		}
	})
}
