package plugin

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// Case is one call and its expected outcome: a Decision of the policy, a Result of the handler, the Output of another
// export, or a failure. The whole response is compared; an absent field equals one with its zero value.
type Case struct {
	Name string `json:"name"`
	// Call is the module's input. Its tool defaults to that of the folder.
	Call json.RawMessage `json:"call"`

	// The state of the host. Config overlays that of tool.json.
	Config map[string]string `json:"config,omitempty"`
	Vars   map[string]string `json:"vars,omitempty"`
	Recv   []string          `json:"recv,omitempty"`
	// HTTP are recorded responses, in the order of the requests.
	HTTP []Exchange `json:"http,omitempty"`
	// Exec are recorded runs, in order.
	Exec []Run `json:"exec,omitempty"`

	Decision *abi.Decision `json:"decision,omitempty"`
	Result   *abi.Result   `json:"result,omitempty"`
	// Fails is the code that the call must fail with, and Message a substring
	// of its message.
	Fails   fault.Code `json:"fails,omitempty"`
	Message string     `json:"message,omitempty"`
	// Export is the function to call if it is another than handle, or than restrict
	// with a Decision. One that is not called with a Call has its Input in the place
	// of one, and its Output.
	Export string          `json:"export,omitempty"`
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`

	// Emitted is the expected output during the call, by stream.
	Emitted map[string]string `json:"emitted,omitempty"`
	// VarsAfter are the expected variables after the call; nil is not compared.
	VarsAfter map[string]string `json:"vars_after,omitempty"`
}

// Exchange is an expected request, whose given fields are compared, and its response.
type Exchange struct {
	Method  string            `json:"method,omitempty"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`

	Answer struct {
		Status  int               `json:"status,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
		Body    string            `json:"body,omitempty"`
		// Error fails the request with this message.
		Error string `json:"error,omitempty"`
	} `json:"answer"`
}

// Run is an expected execution of a program, and its result.
type Run struct {
	Path   string         `json:"path"`
	Args   []string       `json:"args,omitempty"`
	Answer abi.ExecResult `json:"answer"`
}

// special are the exports that are called with something else than a Call, with the
// types of their input and output; it is never written to.
var special = map[string]struct{ input, output any }{
	"classify":  {abi.Classify{}, abi.Classification{}},
	"describe":  {nil, abi.Describe{}},
	"discover":  {abi.Discovery{}, abi.Surface{}},
	"reconcile": {abi.Reconcile{}, abi.Reconciliation{}},
	"wire":      {abi.Wire{}, abi.Decision{}},
}

// read decodes JSON strictly into a new value of the type of like.
func read(data []byte, like any) (any, error) {
	v := reflect.New(reflect.TypeOf(like)).Interface()
	return v, strictjson.Unmarshal(data, v)
}

// check returns what is wrong with a case, as a clause.
func (c *Case) check() error {
	n := 0
	for _, is := range []bool{c.Decision != nil, c.Result != nil, c.Output != nil, c.Fails != ""} {
		if is {
			n++
		}
	}
	t, is := special[c.Export]
	switch {
	case !is && (c.Input != nil || c.Output != nil):
		return fmt.Errorf(`has input or output, which are of another export; name it: "export": %s`, strings.Join(slices.Sorted(maps.Keys(special)), ", "))
	case is && c.Call != nil:
		return fmt.Errorf("has a call, but %s is not called with one; put what it is called with into input", c.Export)
	case is && n == 1 && c.Output == nil && c.Fails == "":
		return fmt.Errorf("has a decision or result, but %s has an output", c.Export)
	case n != 1:
		return errors.New(`must have one of decision, result, output and fails: the expected outcome, such as "result": {"exit_code": 0, "stdout": "Hello\n"}`)
	}
	for _, part := range []struct {
		name string
		data json.RawMessage
		like any
	}{{"input", c.Input, t.input}, {"output", c.Output, t.output}} {
		if part.data == nil || part.like == nil {
			continue
		}
		if _, err := read(part.data, part.like); err != nil {
			return fmt.Errorf("has an %s that is not a valid %s: %w", part.name, reflect.TypeOf(part.like).Name(), err)
		}
	}
	return nil
}

// Outcome is the outcome of a case.
type Outcome struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Differences lists the differences from the expected outcome, with paths.
	Differences []string `json:"differences,omitempty"`
	// Next is what to do about them, if they do not say so themselves.
	Next string `json:"next,omitempty"`
	// Log has the module's log lines.
	Log  []string `json:"log,omitempty"`
	Cost *Cost    `json:"cost,omitempty"`
}

// Cost is the resource usage of one call.
type Cost struct {
	Microseconds float64 `json:"microseconds"`
	Fuel         int64   `json:"fuel"`
	PeakMemory   int64   `json:"peak_memory"`
	Pages        int     `json:"pages"`
	// NotRestored is why the next call needs a new instance.
	NotRestored string `json:"not_restored,omitempty"`
}

// LoadCases parses a file of cases strictly.
func LoadCases(file string) ([]Case, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w; it holds calls and their expected outcomes, see docs/plugins.md", err)
	}
	var cases []Case
	if err := strictjson.Unmarshal(b, &cases); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for i := range cases {
		c := &cases[i]
		if c.Name == "" {
			c.Name = "case " + strconv.Itoa(i+1)
		}
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("read %s: %q %w", file, c.Name, err)
		}
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf(`read %s: it has no case; add one: {"name": "a call", "call": {"args": ["Ada"]}, "result": {"exit_code": 0, "stdout": "Hello\n"}}`, file)
	}
	return cases, nil
}

// Runner loads modules like a daemon and calls them without one.
type Runner struct {
	engine *guest.Engine
	dir    string
	def    *tools.Definition
	loaded map[string]*guest.Module
	// Compiled is the time to read, compile and initialise each file.
	Compiled map[string]time.Duration
}

// OpenRunner opens a Runner for a folder with modules. cache, a folder that only
// its owner can write to, stores compiled code; empty stores none.
func OpenRunner(dir, cache string) (*Runner, error) {
	def, err := definition(dir)
	if err != nil {
		return nil, err
	}
	e, err := guest.New(guest.Config{CacheDir: cache, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &Runner{engine: e, dir: dir, def: def, loaded: map[string]*guest.Module{}, Compiled: map[string]time.Duration{}}, nil
}

// Close closes the loaded modules and the engine.
func (w *Runner) Close() error {
	for _, m := range w.loaded {
		m.Close()
	}
	return w.engine.Close()
}

// module loads a file of the folder, once.
func (w *Runner) module(ctx context.Context, file string) (*guest.Module, error) {
	if m := w.loaded[file]; m != nil {
		return m, nil
	}
	b, err := os.ReadFile(filepath.Join(w.dir, file))
	if err != nil {
		return nil, fmt.Errorf("%w; toolctl plugin build makes it", err)
	}
	start := time.Now()
	m, err := w.engine.Load(ctx, spec(file, b, w.def))
	if err != nil {
		return nil, tools.Explain(err)
	}
	w.loaded[file], w.Compiled[file] = m, time.Since(start)
	return m, nil
}

// handler returns the module that is the tool, if the folder has one.
func (w *Runner) handler() string {
	file := firstNonEmpty(w.def.Handler, w.def.WASI, handlerFile)
	if _, err := os.Stat(filepath.Join(w.dir, file)); err != nil || w.def.Binary != "" {
		return ""
	}
	return file
}

// target returns the module and the export that a case calls.
func (w *Runner) target(c *Case) (file, export string) {
	_, is := special[c.Export]
	switch {
	case c.Export == "restrict" || c.Decision != nil:
		return policyFile, "restrict"
	case is && (w.handler() == "" || c.Export == "wire" || c.Export == "classify"):
		return policyFile, c.Export
	case is:
		return w.handler(), c.Export
	case w.def.Entry != nil:
		export = w.def.Entry.Export
	case c.Export != "":
		export = c.Export
	default:
		export = "handle"
	}
	return firstNonEmpty(w.def.Handler, handlerFile), export
}

// Run makes the call of a case and compares its outcome.
func (w *Runner) Run(ctx context.Context, c *Case) Outcome {
	o := Outcome{Name: c.Name}
	reply, rec, took, err := w.call(ctx, c)
	o.Log = rec.log
	o.Cost = &Cost{float64(took.Nanoseconds()) / 1000, reply.Stats.Fuel, reply.Stats.PeakMemory, reply.Stats.PagesRestored, reply.Stats.NotRestored}
	if err == nil {
		err = w.checkOutput(c, reply.Output)
	}
	o.Differences = w.compare(c, reply.Output, rec, err)
	o.OK = len(o.Differences) == 0
	if slices.ContainsFunc(o.Differences, func(d string) bool { return strings.HasPrefix(d, "/") && strings.Contains(d, ", must be ") }) {
		o.Next = "change the tool, or the case if the new answer is right"
	}
	return o
}

// recorder records a call's requests to the host.
type recorder struct {
	log     []string
	emitted map[string]string
	vars    map[string]string
	// unexpected lists the requests that the case does not expect.
	unexpected []string
	unused     int // recorded responses that nothing requested
}

// schema returns the schema of the folder's tool, from tool.json or else from its describe export. It is nil if the
// tool has none, or does not take its input by a schema.
func (w *Runner) schema(ctx context.Context) (json.RawMessage, error) {
	file := w.handler()
	switch e := w.def.Entry; {
	case file == "" || w.def.WASI != "" || filepath.Ext(file) != ".wasm" || e != nil && e.Input == tools.EntryStdin:
		return nil, nil
	case w.def.Schema != nil || e != nil:
		return w.def.Schema, nil
	}
	m, err := w.module(ctx, file)
	if err != nil || !m.Has("describe") {
		return nil, err
	}
	reply, err := m.Call(ctx, guest.Invocation{Export: "describe"})
	if err != nil {
		return nil, tools.Explain(err)
	}
	var d abi.Describe
	if err := strictjson.Unmarshal(reply.Output, &d); err != nil {
		return nil, fault.Errorf(fault.ToolBroken, "describe returned an invalid description: %w; build the module with a current SDK", err)
	}
	return d.Schema, nil
}

// maxTextInput bounds, in bytes, a value that a command line reads from standard input, as in the daemon.
const maxTextInput = 4 << 20

// fit sets the payload of call from its arguments and the tool's schema, and validates it, as a daemon does before it
// calls a module. Errors are INVALID_PAYLOAD.
func (w *Runner) fit(ctx context.Context, call *abi.Call) error {
	schema, err := w.schema(ctx)
	if err != nil || schema == nil || call.Binding != nil {
		return err
	}
	t := &tools.Tool{Name: call.Tool}
	if t.Schema, err = tools.CompilePayload(schema); err != nil {
		return fault.Errorf(fault.ToolBroken, "the schema of tool %s %w", call.Tool, err)
	}
	if call.Payload == nil {
		if t.Schema.Properties["args"] != nil {
			return nil // it describes a command, whose arguments are passed unchanged
		}
		in, err := base64.StdEncoding.DecodeString(call.StdinBase64)
		if err != nil {
			return fmt.Errorf("read stdin_base64 of the case: %w", err)
		}
		about := arguments.Tool{Name: call.Tool, Schema: schema, Description: w.def.Description}
		text, err := arguments.Parse(about, call.Args, bytes.NewReader(in), maxTextInput)
		if err != nil {
			return err
		}
		if text.Help != "" {
			return fault.Errorf(fault.InvalidPayload, "the arguments ask for the usage, which the host answers without the module; leave --help out of the case")
		}
		call.Payload = text.Payload
	}
	return t.Validate(call.Payload)
}

// checkOutput checks the data of a result that succeeded against the tool's output_schema, as a daemon does. The
// error is TOOL_FAILED. An answer that is no result is nothing to it.
func (w *Runner) checkOutput(c *Case, answer []byte) error {
	_, export := w.target(c)
	if _, handles := w.target(&Case{}); w.def.OutputSchema == nil || export != handles {
		return nil
	}
	var r abi.Result
	if strictjson.Unmarshal(answer, &r) != nil || r.ExitCode != 0 || r.Error != nil {
		return nil
	}
	schema, err := tools.CompileSchema(w.def.OutputSchema)
	if err != nil {
		return fault.Errorf(fault.ToolBroken, "the output schema of the tool %w", err)
	}
	name, err := w.name()
	if err != nil {
		return err
	}
	return tools.CheckOutput(name, schema, r.Data)
}

// name returns the tool's name, which is the folder's.
func (w *Runner) name() (string, error) {
	abs, err := filepath.Abs(w.dir)
	return filepath.Base(abs), err
}

// input returns the input of the export.
func (w *Runner) input(ctx context.Context, c *Case, export string) ([]byte, error) {
	if _, is := special[export]; is {
		return c.Input, nil
	}
	var call abi.Call
	if c.Call != nil {
		if err := strictjson.Unmarshal(c.Call, &call); err != nil {
			return nil, fmt.Errorf("read call of the case: %w", err)
		}
	}
	if call.Tool == "" {
		var err error
		if call.Tool, err = w.name(); err != nil {
			return nil, err
		}
	}
	if call.Attempt == 0 {
		call.Attempt = 1
	}
	if _, handles := w.target(&Case{}); export == handles || export == "restrict" {
		if err := w.fit(ctx, &call); err != nil {
			return nil, err
		}
	}
	if e := w.def.Entry; e != nil && c.Decision == nil && c.Export == "" {
		switch e.Input {
		case tools.EntryStdin:
			return base64.StdEncoding.DecodeString(call.StdinBase64)
		case tools.EntryPayload:
			return call.Payload, nil
		}
	}
	return json.Marshal(&call)
}

func (w *Runner) call(ctx context.Context, c *Case) (guest.Reply, *recorder, time.Duration, error) {
	rec := &recorder{emitted: map[string]string{}, vars: maps.Clone(c.Vars)}
	if rec.vars == nil {
		rec.vars = map[string]string{}
	}
	file, export := w.target(c)
	m, err := w.module(ctx, file)
	if err != nil {
		return guest.Reply{}, rec, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, w.def.Timeout.Duration())
	defer cancel()
	in, err := w.input(ctx, c, export)
	if err != nil {
		return guest.Reply{}, rec, 0, err
	}
	inv := guest.Invocation{Export: export, Input: in, Config: maps.Clone(w.def.Config), Services: w.services(c, rec)}
	if inv.Config == nil {
		inv.Config = map[string]string{}
	}
	maps.Copy(inv.Config, c.Config)
	start := time.Now()
	reply, err := m.Call(ctx, inv)
	return reply, rec, time.Since(start), tools.Explain(err)
}

// services returns host services that respond from the case and record requests.
func (w *Runner) services(c *Case, rec *recorder) guest.Services {
	recv, http, exec := c.Recv, c.HTTP, c.Exec
	rec.unused = len(http) + len(exec)
	wrong := func(format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		rec.unexpected = append(rec.unexpected, text)
		return errors.New(text)
	}
	return guest.Services{
		Log: func(_ context.Context, level slog.Level, text string) {
			rec.log = append(rec.log, strings.ToLower(level.String())+" "+text)
		},
		VarGet: func(key string) []byte {
			if v, ok := rec.vars[key]; ok {
				return []byte(v)
			}
			return nil
		},
		VarSet: func(key string, value []byte) error {
			if value == nil {
				delete(rec.vars, key)
				return nil
			}
			if n := len(key) + len(value); int64(n) > int64(w.def.Capabilities.State) {
				return fault.Errorf(fault.LimitExceeded, "the variable %q has %d bytes, more than capabilities.state in tool.json; keep less, or raise it", key, n)
			}
			rec.vars[key] = string(value)
			return nil
		},
		Emit: func(stream string, p []byte) error {
			rec.emitted[stream] += string(p)
			return nil
		},
		Recv: func(context.Context) ([]byte, error) {
			if len(recv) == 0 {
				return nil, io.EOF
			}
			p := recv[0]
			recv = recv[1:]
			return []byte(p), nil
		},
		HTTP: func(_ context.Context, r *guest.HTTPRequest) (*guest.HTTPResponse, error) {
			if len(http) == 0 {
				return nil, wrong(`/http: asked for %s %s, but the case has no answer; add {"method": %q, "url": %q, "answer": {"status": 200, "body": ".."}}`, r.Method, r.URL, r.Method, r.URL)
			}
			x := http[0]
			http = http[1:]
			rec.unused--
			if differs := x.differs(r); differs != "" {
				return nil, wrong("/http: %s", differs)
			}
			if x.Answer.Error != "" {
				return nil, errors.New(x.Answer.Error)
			}
			return &guest.HTTPResponse{Status: x.Answer.Status, Headers: x.Answer.Headers, Body: []byte(x.Answer.Body)}, nil
		},
		Exec: func(_ context.Context, r *abi.ExecRequest) *abi.ExecResult {
			if len(exec) == 0 {
				return &abi.ExecResult{Error: &abi.Error{Message: wrong("/exec: ran %s %q, but the case has no answer", r.Path, r.Args).Error()}}
			}
			x := exec[0]
			exec = exec[1:]
			rec.unused--
			if r.Path != x.Path || !slices.Equal(r.Args, x.Args) {
				return &abi.ExecResult{Error: &abi.Error{Message: wrong("/exec: ran %s %q, must be %s %q", r.Path, r.Args, x.Path, x.Args).Error()}}
			}
			return &x.Answer
		},
		ToolCall: func(context.Context, int64, []byte) ([]byte, int64, error) {
			return nil, 0, wrong("/call: tool_call is not recorded; try it in a daemon, with toolctl plugin dev")
		},
	}
}

// differs describes how r differs from the request that x expects, or returns "".
func (x *Exchange) differs(r *guest.HTTPRequest) string {
	if want := firstNonEmpty(x.Method, "GET"); r.Method != want || r.URL != x.URL {
		return fmt.Sprintf("asked for %s %s, must be %s %s", r.Method, r.URL, want, x.URL)
	}
	if x.Body != "" && x.Body != string(r.Body) {
		return fmt.Sprintf("%s %s has the body %q, must be %q", r.Method, r.URL, r.Body, x.Body)
	}
	for k, v := range x.Headers {
		if got := header(r.Headers, k); got != v {
			return fmt.Sprintf("%s %s has the header %s: %q, must be %q", r.Method, r.URL, k, got, v)
		}
	}
	return ""
}

func header(h map[string]string, name string) string {
	for k, v := range h {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// compare lists the differences between the actual and the expected outcome.
func (w *Runner) compare(c *Case, output []byte, rec *recorder, err error) []string {
	diff := slices.Clone(rec.unexpected)
	switch {
	case c.Fails != "":
		var e *fault.Error
		switch {
		case err == nil:
			diff = append(diff, fmt.Sprintf("answered %s, must fail with %s", output, c.Fails))
		case !errors.As(err, &e) || e.Code != c.Fails || !strings.Contains(e.Message, c.Message):
			diff = append(diff, fmt.Sprintf("failed with %v, must fail with %s: %s", err, c.Fails, c.Message))
		}
	case err != nil:
		return append(diff, "failed: "+err.Error())
	case c.Output != nil:
		like := special[c.Export].output
		want, err := read(c.Output, like)
		if err != nil {
			return append(diff, "/output: "+err.Error())
		}
		diff = append(diff, differences(output, want, reflect.New(reflect.TypeOf(like)).Interface(), reflect.TypeOf(like).Name())...)
	case c.Decision != nil:
		diff = append(diff, differences(output, c.Decision, &abi.Decision{}, "Decision")...)
	default:
		if e := w.def.Entry; e != nil && e.Output == tools.EntryStdout {
			output, _ = json.Marshal(&abi.Result{Stdout: string(output)})
		}
		diff = append(diff, differences(output, c.Result, &abi.Result{}, "Result")...)
	}
	if c.Emitted != nil || len(rec.emitted) > 0 {
		diff = append(diff, diffValues("/emitted", toAnyMap(c.Emitted), toAnyMap(rec.emitted))...)
	}
	if c.VarsAfter != nil {
		diff = append(diff, diffValues("/vars_after", toAnyMap(c.VarsAfter), toAnyMap(rec.vars))...)
	}
	if rec.unused > 0 {
		diff = append(diff, fmt.Sprintf("%d of the recorded answers were not used", rec.unused))
	}
	return diff
}

func toAnyMap(m map[string]string) any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// differences parses a response strictly, like a daemon, and compares it.
func differences(answer []byte, want, got any, name string) []string {
	if len(answer) == 0 {
		return []string{fmt.Sprintf("the answer is empty; answer a %s, as the SDK's export does (`toolctl schema abi` has its schema)", name)}
	}
	if err := strictjson.Unmarshal(answer, got); err != nil {
		return []string{fmt.Sprintf("the answer is not a %s: %v; `toolctl schema abi` has its schema; the answer was %s", name, err, truncate(string(answer)))}
	}
	return diffValues("", viaJSON(want), viaJSON(got))
}

// viaJSON encodes and decodes v.
func viaJSON(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out any
	if err := d.Decode(&out); err != nil {
		return err.Error()
	}
	return out
}

// diffValues lists the differences of two values, by path.
func diffValues(path string, want, got any) []string {
	if reflect.DeepEqual(want, got) {
		return nil
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		var out []string
		keys := map[string]bool{}
		for k := range w {
			keys[k] = true
		}
		for k := range g {
			keys[k] = true
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			at := path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k)
			x, inWant := w[k]
			y, inGot := g[k]
			switch {
			case !inWant:
				out = append(out, fmt.Sprintf("%s: got %s, must be absent", at, formatValue(y)))
			case !inGot:
				out = append(out, fmt.Sprintf("%s: is absent, must be %s", at, formatValue(x)))
			default:
				out = append(out, diffValues(at, x, y)...)
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		var out []string
		for i := range w {
			out = append(out, diffValues(path+"/"+strconv.Itoa(i), w[i], g[i])...)
		}
		return out
	}
	return []string{fmt.Sprintf("%s: got %s, must be %s", path, formatValue(got), formatValue(want))}
}

func formatValue(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return truncate(string(b))
}

func truncate(s string) string {
	if len(s) > 300 {
		s = s[:300] + ".."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
