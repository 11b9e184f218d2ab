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

// A component is run as the one module that it is made of: its glue is taken
// apart when it is loaded (see component.Read), its functions are called by the
// canonical ABI (see canon), and it gets WASI 0.2 (see wasip2) over the same
// clocks, folders and streams as a module. Everything else is as for modules:
// the meter, the image that calls begin from, the pool.

// composed is what a Module has that is a component.
type composed struct {
	program *component.Program
	exports map[string]*component.Export // by FullName, without a version where that is unique
	// image is the handles that an initialised instance has.
	image wasip2.Image
}

// handles is what an instance of a component has.
type handles struct {
	state wasip2.State
	// initial are the handles that calls begin with, unless mixed: then
	// initialisation left some that only this instance has, which serves one
	// call.
	initial wasip2.Image
	mixed   bool
	// inner are the stacks of what the guest runs while it waits for a function
	// of the host, its realloc and its destructors, each deeper than the one
	// before; deep of them are in use. busy says that it makes room, or frees
	// its result.
	inner []*innerStack
	deep  int
	busy  bool
	// owned are the guest's own resources that its caller has.
	owned []owned
	// held is what the call's values hold of the host's memory: taken from the
	// account in steps, of which used is what they use.
	held, used int64
}

// innerStack is a stack with the functions that were called on it: one that runs
// on another is never called again meanwhile.
type innerStack struct {
	stack
	fns []namedFunction
}

// mostInner is how deep the guest may be called while it waits for the host.
const mostInner = 8

// owned is a resource of the guest, by its representation.
type owned struct {
	of  *component.Resource
	rep uint32
}

// takeApart makes a module of a component.
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
		// Tools are named without the version, which changes often.
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

// run returns the function of a command, or nil.
func (p *composed) run() *component.Export {
	for i := range p.program.Exports {
		if x := &p.program.Exports[i]; x.IsRun() {
			return x
		}
	}
	return nil
}

// functions are the exports that are no command, in the component's order.
func (p *composed) functions() []*component.Export {
	var xs []*component.Export
	for i := range p.program.Exports {
		if x := &p.program.Exports[i]; !x.IsRun() {
			xs = append(xs, x)
		}
	}
	return xs
}

// abiNames are the functions of the interface between hosts and guests. A
// component has them as functions of strings or of bytes.
var abiNames = []string{"handle", "restrict", "classify", "describe", "discover", "reconcile", "wire"}

// inBytes reports whether a function takes and answers the bytes that one of a
// module would: strings, or lists of bytes. Its result may be an error too.
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

// brings reports whether the component's functions are tools of their own: it has
// several, and none of those that hosts call. It then has handle and discover, as
// a module does that brings tools (see abi.Surface).
func (p *composed) brings() bool {
	return len(p.functions()) > 1 && !slices.ContainsFunc(p.functions(), inBytes)
}

// toolName is the name of an exported function as a tool: wassette's, of which
// the end where it is too long for a tool here.
func toolName(x *component.Export) string {
	name := canon.ToolName(x)
	if len(name) > 64 {
		name = name[len(name)-64:]
	}
	return strings.TrimLeft(name, "_-")
}

// surface is what discover answers for the component.
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

// has reports whether a function of that name can be called. A name of the
// interface of guests is only the function that has its form.
func (p *composed) has(name string) bool {
	x := p.exports[name]
	if x == nil && (name == "handle" || name == "discover") {
		return p.brings()
	}
	return x != nil && !x.IsRun() && (inBytes(x) || !slices.Contains(abiNames, name))
}

// ComponentFunction is a function that a component exports.
type ComponentFunction struct {
	// Name is for Invocation.Export: "now", or "local:time/time#now".
	Name string
	// Tool is the name of the tool that it is, as wassette names it.
	Tool string
	// Type is its type as WIT has it.
	Type string
	// Input and Output are JSON schemas; Output is nil where there is no result.
	Input, Output json.RawMessage
	// Plain says that it takes and answers bytes, as a function of a module does,
	// and no JSON of its types.
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

// Functions are those that a component exports, without that of a command.
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

// Function returns one of them by its name.
func (m *Module) Function(name string) (ComponentFunction, bool) {
	if m.comp == nil || m.comp.exports[name] == nil || !m.comp.has(name) {
		return ComponentFunction{}, false
	}
	return describeFunction(m.comp.exports[name]), true
}

// linkComponent makes what a component imports known to its runtime, but for
// preview 1.
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

// heldStep is how much is taken from the account at a time.
const heldStep = 64 << 10

// hold takes n bytes of the host's memory for what a component exchanges with
// it, until the call ends. That may be as much as the guest's memory.
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

// release gives back what the call held.
func (in *instance) releaseHeld() {
	if in.comp != nil {
		in.m.e.memory.give(in.comp.held)
		in.comp.held, in.comp.used = 0, 0
	}
}

// canonical is the guest's side of a call.
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

// callCore calls an export of a component's module, from outside or from a
// function of the host that the guest called. The error is classified.
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

// callComponent calls an exported function: with JSON of its types, or with
// bytes where it is plain.
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

// callWith calls an exported function with arguments of which the guest's own
// resources are made first. Those that its caller then has end here.
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

// destroy lets the guest end a resource that nobody has any more.
func (in *instance) destroy(r *component.Resource, rep uint32) error {
	if r.Destructor == "" {
		return nil
	}
	return in.callCore(r.Destructor, []uint64{uint64(rep)})
}

// callLifted lowers, calls, lifts, and lets the guest free its result. What ends
// the call of a module by a panic within wazero, which recovers it, may do so here
// outside of it.
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

// toBytes returns what a plain function answered.
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

// resultOf makes an abi.Result of what a function answered. The error of a
// result is a failure of the call, which has the error as its data too.
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

// attach gives an instance what a component may reach.
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

// httpCodes are what wasi:http calls a failure; it has no better word for others.
var httpCodes = map[HTTPKind]string{
	HTTPDenied: "HTTP-request-denied", HTTPRefused: "connection-refused", HTTPTimeout: "connection-timeout", HTTPUnknownHost: "destination-not-found",
}

// fetch makes a request of wasi:http by the same service as http_request.
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
			if httpCodes[e.Kind] != "" { // which says no more than that
				c.logLine(slog.LevelWarn, []byte("wasi:http: "+e.Text))
			}
			return nil, &wasip2.HTTPError{Code: httpCodes[e.Kind], Text: e.Text}
		}
		return nil, err
	}
	return &wasip2.Response{Status: res.Status, Headers: res.Headers, Body: res.Body}, nil
}

// resetHandles brings the handles to where calls begin.
func (in *instance) resetHandles() {
	if in.comp != nil && !in.comp.mixed {
		in.comp.state.Reset(in.comp.initial)
	}
}

// keepHandles notes the handles that initialisation left.
func (in *instance) keepHandles() {
	if in.comp == nil {
		return
	}
	image, ok := in.comp.state.Image()
	in.comp.initial, in.comp.mixed = image, !ok
}

// closeHandles closes what is open, and gives the inner stacks back.
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
