package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest/canon"
	"github.com/toold/toold/host/guest/component"
	"github.com/toold/toold/host/guest/wasip2"
	"github.com/toold/toold/pdk/abi"
)

// A component runs as its single main module: its glue is removed when it is loaded
// (see component.Read), its functions are called through the canonical ABI (see canon),
// and it gets WASI 0.2 (see wasip2) with the same clocks, folders and streams as a
// module. Everything else works as for modules: the meter, the image that calls start
// from, the pool.

// composed is the additional state of a Module that is a component.
type composed struct {
	program *component.Program
	exports map[string]*component.Export // by FullName, without a version if that is unique
	// image holds the handles of an initialized instance.
	image wasip2.Image
}

// handles is the additional state of an instance of a component.
type handles struct {
	state wasip2.State
	// initial holds the handles that calls start with. If mixed is set, initialization
	// left handles that only this instance has, and the instance serves only one call.
	initial wasip2.Image
	mixed   bool
	// inner are the stacks for guest code that runs while the guest waits for a host
	// function: its realloc and its destructors, each nested deeper than the one
	// before. deep of them are in use. busy reports that the guest allocates memory or
	// frees its result.
	inner []*innerStack
	deep  int
	busy  bool
	// owned are the guest's own resources that its caller holds.
	owned []owned
	// held is the host memory taken from the account, in steps, for the call's values;
	// used is the part of it in use.
	held, used int64
}

// innerStack is a stack with the functions that were called on it. A function that runs
// on one is never called on another at the same time.
type innerStack struct {
	stack
	fns []namedFunction
}

// mostInner is the maximum depth of calls into the guest while it waits for the host.
const mostInner = 8

// owned is a resource of the guest, identified by its representation.
type owned struct {
	of  *component.Resource
	rep uint32
}

// takeApart reduces a component to its main module.
func (m *Module) takeApart() error {
	p, err := component.Read(m.wasm)
	if err != nil {
		return componentError(m.spec.Name, err)
	}
	m.comp = &composed{program: p, exports: map[string]*component.Export{}}
	m.wasm = p.Module
	for i := range p.Exports {
		x := &p.Exports[i]
		m.comp.exports[x.FullName()] = x
	}
	for i := range p.Exports {
		// Tools are named without the version, since it changes often.
		x := &p.Exports[i]
		iface, _, _ := strings.Cut(x.Interface, "@")
		name := iface + "#" + x.Name
		if other, ok := m.comp.exports[name]; iface != "" && !ok {
			m.comp.exports[name] = x
		} else if ok && other != x {
			delete(m.comp.exports, name)
		}
	}
	return nil
}

func componentError(name string, err error) *Error {
	remedy := "build it again"
	if e, ok := errors.AsType[*component.Error](err); ok && e.Unsupported {
		remedy = "build it as one module for WASI 0.2 (Rust: wasm32-wasip2)"
	}
	return errorf(BadModule, name, remedy, "this component %w", err)
}

// run returns the command's function, or nil.
func (p *composed) run() *component.Export {
	for i := range p.program.Exports {
		if x := &p.program.Exports[i]; x.IsRun() {
			return x
		}
	}
	return nil
}

// functions returns the exports other than the command, in the component's order.
func (p *composed) functions() []*component.Export {
	var xs []*component.Export
	for i := range p.program.Exports {
		if x := &p.program.Exports[i]; !x.IsRun() {
			xs = append(xs, x)
		}
	}
	return xs
}

// abiNames are the functions of the interface between hosts and guests. A component
// exports them as functions of strings or bytes.
var abiNames = []string{"handle", "restrict", "classify", "describe", "discover", "reconcile", "wire"}

// inBytes reports whether a function takes and returns bytes, as a module's would:
// strings or lists of bytes. Its result may also be an error.
func inBytes(x *component.Export) bool {
	text := func(t *component.Type) bool {
		return t != nil && (t.Kind == component.String || t.Kind == component.List && t.Elem.Kind == component.U8)
	}
	ft := x.Type
	if x.Interface != "" || !slices.Contains(abiNames, x.Name) || len(ft.Params) > 1 || len(ft.Params) == 1 && !text(ft.Params[0].Type) {
		return false
	}
	if r := ft.Result; r != nil && r.Kind == component.Result {
		return text(r.Fields[0].Type) && text(r.Fields[1].Type)
	}
	return text(ft.Result)
}

// brings reports whether the component's functions are separate tools: it has several,
// and none of those that hosts call. It then has handle and discover, like a module
// that provides several tools (see abi.Surface).
func (p *composed) brings() bool {
	return len(p.functions()) > 1 && !slices.ContainsFunc(p.functions(), inBytes)
}

// toolName returns the tool name of an exported function: wassette's, cut to its end if
// it is too long for a tool name here.
func toolName(x *component.Export) string {
	name := canon.ToolName(x)
	if len(name) > 64 {
		name = name[len(name)-64:]
	}
	return strings.TrimLeft(name, "_-")
}

// surface returns the component's reply to discover.
func (m *Module) surface() ([]byte, error) {
	var s abi.Surface
	writes := slices.ContainsFunc(m.spec.Files, func(f Mount) bool { return !f.ReadOnly })
	for _, x := range m.comp.functions() {
		binding, err := json.Marshal(x.FullName())
		if err != nil {
			return nil, err
		}
		f := describeFunction(x)
		s.Tools = append(s.Tools, abi.SurfaceTool{Name: f.Tool, Description: x.FullName() + ": " + f.Type, Schema: f.Input, Binding: binding, Mutating: writes})
	}
	return json.Marshal(s)
}

// has reports whether a function of that name can be called. A name in abiNames counts
// only if the function has the matching form.
func (p *composed) has(name string) bool {
	x := p.exports[name]
	if x == nil && (name == "handle" || name == "discover") {
		return p.brings()
	}
	return x != nil && !x.IsRun() && (inBytes(x) || !slices.Contains(abiNames, name))
}

// ComponentFunction is a function exported by a component.
type ComponentFunction struct {
	// Name is the value for Invocation.Export: "now", or "local:time/time#now".
	Name string
	// Tool is the function's tool name, as wassette names it.
	Tool string
	// Type is the function's type in WIT.
	Type string
	// Input and Output are JSON schemas; Output is nil if there is no result.
	Input, Output json.RawMessage
	// Plain means that the function takes and returns bytes, like a function of a
	// module, rather than JSON of its types.
	Plain bool
}

func describeFunction(x *component.Export) ComponentFunction {
	f := ComponentFunction{Name: x.FullName(), Tool: toolName(x), Type: x.Type.String(), Plain: inBytes(x)}
	f.Input, _ = json.Marshal(canon.Input(x.Type))
	if out := canon.Output(x.Type); out != nil {
		f.Output, _ = json.Marshal(out)
	}
	return f
}

// IsComponent reports whether the module is a component.
func (m *Module) IsComponent() bool { return m.comp != nil }

// Functions returns the functions that a component exports, except the command.
func (m *Module) Functions() []ComponentFunction {
	if m.comp == nil {
		return nil
	}
	var fs []ComponentFunction
	for _, x := range m.comp.functions() {
		fs = append(fs, describeFunction(x))
	}
	return fs
}

// Function returns the exported function with the given name.
func (m *Module) Function(name string) (ComponentFunction, bool) {
	if m.comp == nil || m.comp.exports[name] == nil || !m.comp.has(name) {
		return ComponentFunction{}, false
	}
	return describeFunction(m.comp.exports[name]), true
}

// linkComponent adds a component's imports to its runtime, except preview 1.
func (m *Module) linkComponent() error {
	exports := map[string][]func(wazero.HostModuleBuilder){}
	for _, im := range m.comp.program.Imports {
		if im.Preview1 {
			continue
		}
		if im.Module == wasiModule {
			return m.errorf(BadModule, "build it again", "imports %q of WASI preview 1 as something else", im.Name)
		}
		fn, params, results, err := m.componentImport(im)
		if err != nil {
			return m.errorf(BadModule, "leave out what needs it", "%w", err)
		}
		served := api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
			c := ctx.(*call)
			c.guest = mod
			if c.inst.comp.busy {
				panic(&component.Trap{Reason: "calls " + im.Name + " while it makes room for a value, which the component model forbids"})
			}
			c.charge(1600)
			fn(c, s)
		})
		exports[im.Module] = append(exports[im.Module], func(b wazero.HostModuleBuilder) {
			b.NewFunctionBuilder().WithGoModuleFunction(served, params, results).Export(im.Name)
		})
	}
	for name, add := range exports {
		host, err := m.own(name, func(b wazero.HostModuleBuilder) {
			for _, f := range add {
				f(b)
			}
		})
		if err != nil {
			return m.errorf(BadModule, "", "prepare %s: %w", name, err)
		}
		m.imports[name] = host.Module
	}
	return nil
}

func coreTypes(ts []component.Core) types {
	out := make(types, len(ts))
	for i, t := range ts {
		out[i] = api.ValueType(t)
	}
	return out
}

func (m *Module) componentImport(im component.Import) (fn func(c *call, s []uint64), params, results types, err error) {
	switch {
	case im.Drop != nil && im.Drop.Local:
		return func(c *call, s []uint64) {
			rep := c.inst.comp.state.Take(im.Drop, uint32(s[0]))
			if err := c.inst.destroy(im.Drop, rep); err != nil {
				panic(err)
			}
		}, types{i32}, types{}, nil
	case im.Drop != nil:
		return func(c *call, s []uint64) { c.inst.comp.state.Drop(im.Drop, uint32(s[0])) }, types{i32}, types{}, nil
	case im.New != nil:
		return func(c *call, s []uint64) { s[0] = uint64(c.inst.comp.state.New(im.New, uint32(s[0]))) }, types{i32}, types{i32}, nil
	case im.Rep != nil:
		return func(c *call, s []uint64) { s[0] = uint64(c.inst.comp.state.Rep(im.Rep, uint32(s[0]))) }, types{i32}, types{i32}, nil
	}
	link, err := wasip2.Link(m.e.wasip2, im.Func)
	if err != nil {
		return nil, nil, nil, err
	}
	ft := im.Func.Type
	p, r := ft.Lowered()
	return func(c *call, s []uint64) {
		g := c.canonical(im.Encoding, im.Realloc)
		args, err := g.LiftParams(ft, s)
		if err == nil {
			result := link.Do(&c.inst.comp.state, args)
			err = g.LowerResult(ft, result, s)
		}
		if err != nil {
			panic(err)
		}
	}, coreTypes(p), coreTypes(r), nil
}

// heldStep is the number of bytes taken from the account at a time.
const heldStep = 64 << 10

// hold reserves n bytes of host memory, until the call ends, for values that a
// component exchanges with the host. The limit is the same as for the guest's memory.
func (c *call) hold(n uint64) {
	h, m := c.inst.comp, c.inst.m
	if n > uint64(m.spec.Memory-h.used) {
		panic(m.errorf(BlocksUsed, "", "it exchanges more than %d bytes with the host", m.spec.Memory))
	}
	h.used += int64(n)
	if more := h.used - h.held; more > 0 {
		more = (more + heldStep - 1) / heldStep * heldStep
		if !m.e.makeRoom(more, m) {
			panic(m.overloaded())
		}
		h.held += more
	}
}

// releaseHeld returns the host memory that the call reserved.
func (in *instance) releaseHeld() {
	if in.comp != nil {
		in.m.e.memory.give(in.comp.held)
		in.comp.held, in.comp.used = 0, 0
	}
}

// canonical returns the guest's side of a call.
func (c *call) canonical(encoding component.Encoding, realloc string) *canon.Guest {
	in := c.inst
	h := in.comp
	return &canon.Guest{
		Give: func(r *component.Resource, rep uint32) uint32 {
			i := slices.Index(h.owned, owned{r, rep})
			h.owned = slices.Delete(h.owned, i, i+1)
			return h.state.New(r, rep)
		},
		Take: func(r *component.Resource, handle uint32) uint32 {
			rep := h.state.Take(r, handle)
			h.owned = append(h.owned, owned{r, rep})
			return rep
		},
		Encoding: encoding, Charge: c.charge, Hold: c.hold,
		Memory: func() []byte {
			mem := memory(in.mod)
			if mem == nil {
				return nil
			}
			p, _ := mem.Read(0, mem.Size())
			return p
		},
		Realloc: func(old, oldSize, align, size uint32) (uint32, error) {
			s := []uint64{uint64(old), uint64(oldSize), uint64(align), uint64(size)}
			if in.comp.busy {
				return 0, &component.Trap{Reason: "asks for room while it makes room"}
			}
			in.comp.busy = true
			defer func() { in.comp.busy = false }()
			err := in.callCore(realloc, s)
			return uint32(s[0]), err
		},
	}
}

// callCore calls an export of a component's module, either from outside or from a host
// function that the guest called. The error is classified.
func (in *instance) callCore(name string, s []uint64) error {
	var err error
	if in.stack.fn == nil {
		err = in.run(in.function(name), s)
	} else {
		h := in.comp
		if h.deep == mostInner {
			return &component.Trap{Reason: fmt.Sprintf("is called %d deep while it waits for the host", mostInner)}
		}
		if h.deep == len(h.inner) {
			if !in.m.e.makeRoom(stackBase, in.m) {
				return in.m.overloaded()
			}
			h.inner = append(h.inner, &innerStack{stack: stack{acct: &in.m.e.memory, size: stackBase}})
		}
		inner := h.inner[h.deep]
		h.deep++
		defer func() { h.deep-- }()
		err = in.runOn(&inner.stack, functionOf(in.mod, &inner.fns, name), s)
	}
	if err == nil && in.c.meter.used() > in.c.meter.limit {
		err = in.c.outOfFuel()
	}
	if err != nil {
		return in.c.classify(name, err)
	}
	return nil
}

// callComponent calls an exported function with JSON of its types, or with bytes if it
// is plain.
func (in *instance) callComponent(inv *Invocation) (Reply, error) {
	m, c := in.m, &in.c
	export, input := inv.Export, inv.Input
	if m.comp.exports[export] == nil { // see brings
		if export == "discover" {
			out, err := m.surface()
			return Reply{Output: out, Stats: c.stats()}, err
		}
		var in abi.Call
		if err := json.Unmarshal(input, &in); err != nil {
			return Reply{}, m.errorf(Internal, "", "read the call: %w", err)
		}
		if err := json.Unmarshal(in.Binding, &export); err != nil || m.comp.exports[export] == nil {
			return Reply{}, m.errorf(NoExport, "", "has no export %q", in.Binding)
		}
		input = in.Payload
	}
	x := m.comp.exports[export]
	asBytes := inBytes(x)
	var args []any
	if asBytes {
		if len(x.Type.Params) > 0 {
			args = []any{fromBytes(x.Type.Params[0].Type, input)}
		}
	} else {
		var err error
		if args, err = canon.Arguments(x.Type, input); err != nil {
			return Reply{}, fault.Errorf(fault.InvalidPayload, "%s: %w", x.Name, err)
		}
	}
	value, err := in.callWith(x, args)
	reply := Reply{Stats: c.stats()}
	if err != nil {
		if t, ok := errors.AsType[*component.Trap](err); ok {
			err = m.errorf(Trapped, "build it again with a current toolchain", "%s: %s", x.Name, t.Reason)
		}
		return reply, err
	}
	if asBytes {
		reply.Output, err = toBytes(x.Type.Result, value)
	} else {
		reply.Output, err = m.resultOf(x.Type.Result, value)
	}
	if err == nil && int64(len(reply.Output)) > m.spec.Output {
		reply.Output, err = nil, m.tooMuchOutput()
	}
	return reply, err
}

// callWith calls an exported function. It first creates those arguments that are the
// guest's own resources, and at the end destroys those that the caller holds.
func (in *instance) callWith(x *component.Export, args []any) (any, error) {
	h := in.comp
	h.owned = h.owned[:0]
	if x.Type.TakesLocal() {
		var made []*canon.Made
		canon.EachMade(args, func(m *canon.Made) { made = append(made, m) })
		for _, m := range made {
			rep, err := in.callLifted(m.Resource.Constructor, m.Args)
			if err != nil {
				return nil, err
			}
			m.Rep = rep.(uint32)
		}
	}
	value, err := in.callLifted(x, args)
	for _, o := range h.owned {
		if err == nil {
			err = in.destroy(o.of, o.rep)
		}
	}
	return value, err
}

// destroy calls the guest's destructor for a resource that is no longer referenced.
func (in *instance) destroy(r *component.Resource, rep uint32) error {
	if r.Destructor == "" {
		return nil
	}
	return in.callCore(r.Destructor, []uint64{uint64(rep)})
}

// callLifted lowers the arguments, calls the function, lifts the result, and lets the
// guest free it. In a module's call, wazero recovers panics that end the call; here
// they may occur outside of wazero.
func (in *instance) callLifted(x *component.Export, args []any) (_ any, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if !ok {
				panic(r)
			}
			err = in.c.classify(x.Name, e)
		}
	}()
	g := in.c.canonical(x.Encoding, x.Realloc)
	flat, err := g.LowerParams(x.Type, args)
	if err != nil {
		return nil, err
	}
	s := make([]uint64, max(len(flat), 1))
	copy(s, flat)
	if err := in.callCore(x.Core, s); err != nil {
		return nil, err
	}
	results := slices.Clone(s[:1])
	value, err := g.LiftResult(x.Type, results)
	if err != nil || x.PostReturn == "" {
		return value, err
	}
	in.comp.busy = true
	defer func() { in.comp.busy = false }()
	return value, in.callCore(x.PostReturn, results)
}

func fromBytes(t *component.Type, p []byte) any {
	if t.Kind == component.String {
		return string(p)
	}
	return p
}

// toBytes returns the result of a plain function.
func toBytes(t *component.Type, v any) ([]byte, error) {
	if t.Kind == component.Result {
		c := v.(component.Case)
		p, _ := toBytes(t.Fields[c.Index].Type, c.Value)
		if c.Index == 1 {
			return nil, errorf(Failed, "", "", "%s", p)
		}
		return p, nil
	}
	if s, ok := v.(string); ok {
		return []byte(s), nil
	}
	return v.([]byte), nil
}

// resultOf converts a function's result to an abi.Result. The error case of a result is
// a failure of the call, with the error also as its data.
func (m *Module) resultOf(t *component.Type, v any) ([]byte, error) {
	data, ok := canon.JSON(t, v, int(m.spec.Output))
	if !ok {
		return nil, m.tooMuchOutput()
	}
	r := abi.Result{Data: data}
	if t != nil && t.Kind == component.Result {
		if c := v.(component.Case); c.Index == 1 {
			text := "it failed"
			if of := t.Fields[1].Type; of != nil {
				p, _ := canon.JSON(of, c.Value, 4<<10)
				text = string(p)
				if s, ok := c.Value.(string); ok {
					text = s
				}
			}
			r.ExitCode, r.Error = 1, &abi.Error{Message: text}
		}
	}
	return json.Marshal(r)
}

// attach gives an instance access to what a component may reach.
func (in *instance) attach(cmd *Command) {
	c := &in.c
	in.comp = &handles{}
	h := &in.comp.state.Host
	*h = wasip2.Host{
		Charge: c.charge, Hold: c.hold, Sleep: c.sleep,
		Monotonic: func() uint64 { t, _ := c.now(1); return t },
		Random:    func(p []byte) { c.randomness().Read(p) },
		Stderr: func(p []byte) error {
			in.said.Write(p)
			return nil
		},
		Stdout: func(p []byte) error {
			if !c.printed && len(bytes.TrimSpace(p)) > 0 {
				c.printed = true
				c.logLine(slog.LevelWarn, []byte("the component prints to its standard output, which nobody reads; answer it as its result"))
			}
			return nil
		},
		Exit: func(code uint8) {
			in.wasi.exited = true
			panic(sys.NewExitError(uint32(code)))
		},
	}
	h.HTTP = c.fetch
	if cmd == nil {
		return
	}
	stdin := in.stdin
	h.Args, h.Env = cmd.Args, cmd.Env
	h.Stdin = func(p []byte) (int, error) {
		c.wait()
		n, err := stdin.Read(p)
		c.meter.last = time.Now()
		return n, err
	}
	stdout, stderr := output{&in.c, cmd.Stdout}, output{&in.c, cmd.Stderr}
	h.Stdout = func(p []byte) error {
		_, err := stdout.Write(p)
		return err
	}
	h.Stderr = func(p []byte) error {
		in.said.Write(p)
		_, err := stderr.Write(p)
		return err
	}
}

// httpCodes maps kinds of errors to wasi:http error codes, for those that have one.
var httpCodes = map[HTTPKind]string{
	HTTPDenied: "HTTP-request-denied", HTTPRefused: "connection-refused", HTTPTimeout: "connection-timeout", HTTPUnknownHost: "destination-not-found",
}

// fetch sends a wasi:http request through the same service as http_request.
func (c *call) fetch(r *wasip2.Request) (*wasip2.Response, error) {
	if c.inv.HTTP == nil {
		return nil, &wasip2.HTTPError{Code: httpCodes[HTTPDenied], Text: "this call has no network"}
	}
	c.wait()
	res, err := c.inv.HTTP(c, &HTTPRequest{Method: r.Method, URL: r.URL, Headers: r.Headers, Body: r.Body})
	c.meter.last = time.Now()
	c.checkCanceled()
	if err != nil {
		if e, ok := errors.AsType[*HTTPError](err); ok {
			if httpCodes[e.Kind] != "" { // then the guest gets only the code, not the text
				c.logLine(slog.LevelWarn, []byte("wasi:http: "+e.Text))
			}
			return nil, &wasip2.HTTPError{Code: httpCodes[e.Kind], Text: e.Text}
		}
		return nil, err
	}
	return &wasip2.Response{Status: res.Status, Headers: res.Headers, Body: res.Body}, nil
}

// resetHandles restores the handles that calls start with.
func (in *instance) resetHandles() {
	if in.comp != nil && !in.comp.mixed {
		in.comp.state.Reset(in.comp.initial)
	}
}

// keepHandles records the handles left by initialization.
func (in *instance) keepHandles() {
	if in.comp == nil {
		return
	}
	image, ok := in.comp.state.Image()
	in.comp.initial, in.comp.mixed = image, !ok
}

// closeHandles closes all open files and releases the inner stacks.
func (in *instance) closeHandles() {
	if in.comp == nil {
		return
	}
	in.releaseHeld()
	in.comp.state.Reset(wasip2.Image{})
	for _, s := range in.comp.inner {
		s.free()
	}
	in.comp.inner = nil
}
