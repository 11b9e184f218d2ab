package guest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/host/guest/wasm"
)

// instance is a running copy of a module. It is used by one goroutine at a time.
type instance struct {
	m      *Module
	part           // of the program that is called
	linked []*part // of the other programs
	all    []*part // linked and part, in this order
	stack  stack
	c      call
	wasi   wasi
	mounts []Mount  // visible to the guest
	cmd    *Command // nil for a module that is called
	stdin  *input   // nil unless this is a command
	comp   *handles // nil unless this is a component
	said   head     // stderr output of this call

	identity string // last served; the instance is pristine while served is false
	served   bool
	idle     time.Time // idle since
}

// instantiate creates an instance without running any of its code. With an image,
// memory and globals start as in the image. cmd is nil for a module that is called.
func (m *Module) instantiate(img *snapshot, cmd *Command) (*instance, error) {
	in := &instance{m: m, cmd: cmd, mounts: m.spec.Files}
	if cmd != nil {
		in.mounts, in.stdin = slices.Concat(in.mounts, cmd.Dirs), &input{c: &in.c, r: cmd.Stdin}
	}
	in.c.inst = in
	in.c.k.name = m.spec.Name
	in.c.k.held.m = m
	if !m.e.makeRoom(stackBase, m) {
		return nil, m.overloaded()
	}
	in.stack.acct, in.stack.size = &m.e.memory, stackBase
	for range m.linked {
		in.linked = append(in.linked, &part{})
	}
	in.all = append(slices.Clip(in.linked), &in.part)
	programs := m.programs()
	for i, p := range in.parts() {
		var from *state
		if img != nil {
			from = &img.states[i]
		}
		if err := in.make(p, programs[i], from); err != nil {
			in.close()
			return nil, err
		}
	}
	in.c.meter.fuel = in.fuel
	if len(in.linked) > 0 {
		in.c.meter.idle = in.parts()
	}
	if m.comp != nil {
		in.attach(cmd)
		if img != nil {
			in.comp.initial = m.comp.image
		}
	}
	if img != nil {
		if err := in.adopt(img); err != nil {
			in.close()
			return nil, err
		}
	}
	return in, nil
}

// instantiateModule prevents a panic of wazero (if the allocator refused memory) from
// ending the process.
func (m *Module) instantiateModule(ctx context.Context, compiled wazero.CompiledModule, config wazero.ModuleConfig) (mod api.Module, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return m.home.InstantiateModule(ctx, compiled, config)
}

// adopt sets a new instance to the state of the image.
func (in *instance) adopt(img *snapshot) error {
	for i, p := range in.parts() {
		if p.mem == nil {
			continue
		}
		if more := (img.states[i].mem.size - p.mem.size) / wasmPage; more > 0 {
			if _, ok := p.mod.Memory().Grow(uint32(more)); !ok {
				return in.m.overloaded()
			}
		}
	}
	if err := in.begin(context.Background(), &Invocation{}, nil); err != nil {
		return err
	}
	for i, p := range in.parts() {
		if len(img.states[i].globals) == 0 {
			continue
		}
		set := p.mod.ExportedFunction(wasm.ExportGlobalSet)
		stack := make([]uint64, 3)
		for i, g := range img.states[i].globals {
			stack[0], stack[1], stack[2] = uint64(i), g[0], g[1]
			if err := in.run(set, stack); err != nil {
				return in.m.errorf(Internal, "", "set globals: %w", err)
			}
		}
		if err := in.run(p.mod.ExportedFunction(wasm.ExportSave), nil); err != nil {
			return in.m.errorf(Internal, "", "save globals: %w", err)
		}
	}
	return nil
}

// sleep waits for d. It ends with the call.
func (c *call) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	c.wait()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.Done():
	}
	c.checkCanceled()
	c.meter.last = time.Now()
}

// begin sets up the state of a call. It fails if there is no memory for the input.
func (in *instance) begin(ctx context.Context, inv *Invocation, config map[string]string) error {
	c := &in.c
	c.Context, c.inv, c.config = ctx, inv, config
	c.deadline, c.hasDeadline = ctx.Deadline()
	c.done = ctx.Done()
	c.out, c.wrote, c.logged, c.printed = discard(&c.k.held, c.out), false, 0, false
	c.httpStatus, c.httpHeader = 0, nil
	room := c.k.reset(inv.Input, uint64(in.m.spec.Memory))
	fuel := in.m.spec.Fuel
	if inv.Fuel > 0 {
		fuel = min(fuel, inv.Fuel)
	}
	c.meter.begin(fuel, in.affordable())
	c.place = place{}
	in.wasi.exited = false
	in.resetHandles()
	in.said.b = in.said.b[:0]
	in.stack.scarce = false
	for _, p := range in.parts() {
		if p.mem != nil {
			p.mem.refused, p.mem.overloaded = false, false
			p.mem.peak = p.mem.size
		}
	}
	if !room {
		return in.m.overloaded()
	}
	return nil
}

// beginRun is begin for calls that run the guest's own code, which needs descriptors.
func (in *instance) beginRun(ctx context.Context, inv *Invocation, config map[string]string) error {
	if err := in.begin(ctx, inv, config); err != nil {
		return err
	}
	return in.beginWASI()
}

// end releases everything that belonged to the caller.
func (in *instance) end() {
	c := &in.c
	c.out = discard(&c.k.held, c.out) // now owned by the Reply, if there is one
	c.exceptions.caught = discard(&c.k.held, c.exceptions.caught)
	in.releaseHeld()
	in.resetHandles()
	in.endWASI()
	c.Context, c.inv, c.config, c.httpHeader = context.Background(), nil, nil, nil
	c.done, c.hasDeadline = nil, false
}

// invoke runs an export of a part. The error is classified.
func (in *instance) invoke(p *part, name string) (uint32, error) {
	var stack [2]uint64
	err := in.run(p.function(name), stack[:])
	rc := uint32(stack[0])
	if len(p.program.exports.funcs[name].Results) == 0 {
		rc = 0
	}
	if exit, ok := err.(*sys.ExitError); ok && exit.ExitCode() == 0 {
		in.wasi.exited = true
		err, rc = nil, 0
	}
	if err == nil && in.c.meter.used() > in.c.meter.limit {
		err = in.c.outOfFuel()
	}
	if err != nil {
		return 0, in.c.classify(name, err)
	}
	return rc, nil
}

// initialize runs what the modules require before their first export.
func (in *instance) initialize() error {
	for _, p := range in.parts() {
		if err := in.initializePart(p); err != nil {
			return err
		}
	}
	return nil
}

// initializePart runs what a part requires before its first export: its data, its start
// function, and its language's initialization.
func (in *instance) initializePart(p *part) error {
	m := in.m
	for _, d := range p.program.rewritten.Data {
		if !p.mod.Memory().Write(d.Offset, d.Bytes) {
			return m.errorf(BadModule, "rebuild the module", "a data segment lies outside of its memory")
		}
	}
	if start := p.program.rewritten.StartExport; start != "" {
		if _, err := in.invoke(p, start); err != nil {
			return in.initFailed(err)
		}
	}
	if m.comp != nil {
		if first := m.comp.program.Initialize; first != "" {
			if _, err := in.invoke(p, first); err != nil {
				return in.initFailed(err)
			}
		}
		return nil
	}
	first := "_initialize"
	if _, ok := p.program.exports.funcs[first]; !ok {
		first = "__wasm_call_ctors"
	}
	for _, name := range []string{first, "hs_init"} {
		t, ok := p.program.exports.funcs[name]
		if !ok {
			continue
		}
		switch n := len(t.Params); {
		case n == 0:
		case name == "hs_init" && n == 2: // argc and argv, both 0
		default:
			return m.errorf(BadModule, "rebuild the module", "export %q takes %d parameters, which no language does", name, n)
		}
		if _, err := in.invoke(p, name); err != nil {
			return in.initFailed(err)
		}
		if in.wasi.exited {
			return m.errorf(BadModule, reactor, "left during %s", name)
		}
	}
	return nil
}

// initFailed returns the error of a module that cannot be initialized. A limit, a
// timeout or an abort is returned as it is.
func (in *instance) initFailed(err error) error {
	if e, ok := err.(*Error); ok && e.Kind == Trapped {
		e.Kind = BadModule
	}
	return err
}

// close releases everything.
func (in *instance) close() {
	parts := in.parts()
	for _, p := range parts {
		if p.mod != nil {
			p.mod.Close(context.Background())
		}
	}
	in.c.out = discard(&in.c.k.held, in.c.out)
	in.c.exceptions.caught = discard(&in.c.k.held, in.c.exceptions.caught)
	in.c.k.drop()
	in.closeHandles()
	in.endWASI()
	in.stack.free()
	for _, p := range parts {
		p.close(&in.m.e.memory)
	}
}

// reason returns the first line that the guest wrote to stderr, where languages put the
// reason of a panic. For Go it adds the source line from the stack trace that follows.
func (in *instance) reason() string {
	text := strings.ToValidUTF8(strings.TrimSpace(string(in.said.b)), "\uFFFD")
	s, stack, _ := strings.Cut(text, "\n")
	if _, stack, ok := strings.Cut(stack, "goroutine "); ok && s != "" {
		for line := range strings.Lines(stack) {
			// "\tname/main.go:12 +0x3", after the function's name.
			place, offset, ok := strings.Cut(strings.TrimSpace(line), " +0x")
			if ok && offset != "" && line[0] == '\t' && !strings.Contains(place, "runtime/") && len(place) < 200 {
				return s + " at " + place
			}
		}
	}
	return s
}

// head keeps the first kilobyte written to it.
type head struct{ b []byte }

func (h *head) Write(p []byte) (int, error) {
	if room := 1024 - len(h.b); room > 0 {
		h.b = append(h.b, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
