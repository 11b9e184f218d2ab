package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/toold/toold/host/guest/component"
	"github.com/toold/toold/host/guest/wasm"
)

// Module is a loaded module. Its methods are safe for concurrent use.
type Module struct {
	e       *Engine
	spec    Spec       // without the modules' bytes, which are in the programs
	program            // the one that is called
	linked  []*program // those from which it imports functions
	home    *home
	imports map[string]api.Module // the modules it imports from, except linked
	hosts   []*hostModule         // those of imports that it does not share
	comp    *composed             // nil unless it is a component
	command bool                  // it has "_start" and does not talk to the kernel
	stock   bool                  // it was built for another host: see Spec.Stock
	missing []wasm.Import         // imports that a stock module does not get
	lines   string                // file with the line table; empty if there is none
	seed    [32]byte              // of the randomness during initialization

	snap     *snapshot // nil: every call initializes its own instance
	unshared string    // why snap is nil
	pool     pool

	sleeper sleeper

	mu     sync.Mutex
	calls  int  // running calls, plus changes of sleeper; guarded by mu
	closed bool // guarded by mu
}

// Remedies that are used more than once.
const (
	reactor = "build it as a reactor (Go: -buildmode=c-shared, clang: -mexec-model=reactor)"
)

var wasmMagic = []byte("\x00asm\x01\x00\x00\x00")

// features are the WebAssembly features that the rewriter accepts.
const features = api.CoreFeaturesV2 | experimental.CoreFeaturesTailCall | experimental.CoreFeaturesExtendedConst | experimental.CoreFeaturesThreads |
	experimental.CoreFeaturesTypedFunctionReferences

// Load reads, compiles (or loads from the cache) and initializes a module, and checks
// that it can be called. The error is an *Error. DeadlineMet, Aborted, Overloaded and
// Internal are not the module's fault.
func (e *Engine) Load(ctx context.Context, spec Spec) (*Module, error) {
	spec.defaults()
	if err := checkBytes(spec.Name, spec.Wasm); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, ended(err)
	}
	if spec.Memory < wasmPage || spec.Memory > maxMemory {
		return nil, errorf(BadLimit, spec.Name, "", "a memory limit of %d bytes is not between %d and %d", spec.Memory, wasmPage, int64(maxMemory))
	}
	m := &Module{e: e, spec: spec, program: program{wasm: spec.Wasm}}
	for _, l := range spec.Linked {
		p := &program{name: l.Name, wasm: l.Wasm}
		if err := checkBytes(m.file(p), l.Wasm); err != nil {
			return nil, err
		}
		if component.Is(l.Wasm) || component.Is(spec.Wasm) {
			return nil, m.errorf(BadModule, "use modules", "a component is linked with other modules")
		}
		m.linked = append(m.linked, p)
	}
	m.spec.Wasm, m.spec.Linked = nil, nil
	if component.Is(m.wasm) {
		if err := m.takeApart(); err != nil {
			return nil, err
		}
	}
	if err := m.load(ctx); err != nil {
		m.destroy()
		return nil, err
	}
	if m.sleeper.never = m.comp != nil || len(m.linked) > 0; !m.sleeper.never {
		m.sleeper.digest = sha256.Sum256(m.wasm)
		if err := e.keepCopy(m.sleeper.digest, m.wasm); err != nil {
			m.destroy()
			return nil, m.errorf(Internal, "", "keep a copy of it: %w", err)
		}
	}
	m.sleeper.used.Store(time.Now().UnixNano())
	m.forgetCode()
	e.mu.Lock()
	e.modules[m] = struct{}{}
	e.mu.Unlock()
	m.prewarm()
	e.rest()
	return m, nil
}

// forgetCode releases the bytes of a module whose calls start from an image.
func (m *Module) forgetCode() {
	if m.snap != nil {
		for _, p := range m.programs() {
			p.forget()
		}
		if m.comp != nil {
			m.comp.program.Module = nil
		}
	}
}

func (m *Module) load(ctx context.Context) error {
	var first int64
	for _, p := range m.programs() {
		if n := codeAndData(p.wasm); n > m.spec.Compile.Module {
			return errorf(TooLarge, m.file(p), "make it smaller (wasm-opt -Oz)", "it has %d bytes of code and data, more than %d", n, m.spec.Compile.Module)
		}
		if err := m.e.read(p, m.file(p)); err != nil {
			return err
		}
		if mem := p.rewritten.Memory; mem != nil {
			first += int64(mem.Min) * wasmPage
		}
	}
	if first > m.spec.Memory {
		return m.errorf(NoRoom, "", "it needs %d bytes of memory to begin with and may have %d", first, m.spec.Memory)
	}
	if err := m.order(); err != nil {
		return err
	}
	m.stock = m.spec.Stock && m.comp == nil && m.isForeign()
	needs, err := m.checkImports()
	if err != nil {
		return err
	}
	if t, ok := m.exports.funcs["resumed"]; ok && m.comp == nil && !callable(t) {
		return m.errorf(BadModule, "change its signature", `export "resumed" is %s, but must be () -> ()`, signature(t.Params, t.Results))
	}
	// A plugin may have a "_start" that is never called; such a module uses the kernel.
	_, m.command = m.exports.funcs["_start"]
	m.command = m.command && !slices.Contains(needs, envModule) && !slices.Contains(needs, userModule)
	if m.comp != nil {
		m.command = m.comp.run() != nil && len(m.comp.functions()) == 0
	}

	types := 0
	for _, p := range m.programs() {
		types += typeBytes(p.rewritten.Bytes)
	}
	m.home = m.e.enter(types)
	for _, p := range m.programs() { // the last determines the Module's seed and lines
		if p.compiled, err = m.e.compiled(ctx, m, p); err != nil {
			return err
		}
		p.rewritten.Debug = nil // it references the original module
	}
	if len(m.linked) > 0 {
		m.lines = "" // an offset does not identify its module
	}
	if err := m.link(append(needs, wasm.ImportModule)); err != nil {
		return err
	}
	if m.comp != nil {
		if err := m.linkComponent(); err != nil {
			return err
		}
	}
	return m.prepare(ctx)
}

// link makes the host modules with those names importable.
func (m *Module) link(names []string) error {
	m.imports = map[string]api.Module{}
	for _, name := range names {
		var host *hostModule
		var err error
		export := func(b wazero.HostModuleBuilder) { exportFuncs(b, name, m.e.funcs, m.spec.Grants) }
		switch stubs := m.stubs(name); {
		case name == wasm.ImportModule:
			host, err = m.home.shared(hostKey{module: name}, exportMeter)
		case len(stubs) > 0:
			host, err = m.own(name, func(b wazero.HostModuleBuilder) {
				export(b)
				exportFuncs(b, name, stubs, m.spec.Grants)
			})
		default:
			host, err = m.home.shared(hostKey{module: name, grants: m.spec.Grants}, export)
		}
		if err != nil {
			return m.errorf(BadModule, "", "prepare %s: %w", name, err)
		}
		m.imports[name] = host.Module
	}
	return nil
}

// own creates a host module that is not shared with other Modules.
func (m *Module) own(name string, export func(wazero.HostModuleBuilder)) (*hostModule, error) {
	host, err := m.home.link(name, export)
	if err == nil {
		m.hosts = append(m.hosts, host)
	}
	return host, err
}

// refused returns the error for a module that cannot be read.
func refused(name string, err error) *Error {
	remedy := "build it again for wasip1 or wasm32"
	if e, ok := errors.AsType[*wasm.Error](err); ok {
		switch e.Kind {
		case wasm.Unsupported:
			remedy = "build it again without that"
		case wasm.TooLarge:
			remedy = "make it smaller"
		case wasm.Short:
			remedy = "the file is cut off: build or copy it again; one that is still being written is loaded once it is whole"
		}
	}
	return errorf(BadModule, name, remedy, "%w", err)
}

// codeAndData returns the number of bytes of a module outside of custom sections, which
// are compiled and kept. It counts all bytes of a module that cannot be read.
func codeAndData(b []byte) int64 {
	n := int64(len(b))
	for p := min(len(b), len(wasmMagic)); p < len(b); {
		size, w := binary.Uvarint(b[p+1:])
		if w <= 0 || size > uint64(len(b)-p-1-w) {
			return int64(len(b))
		}
		all := 1 + w + int(size)
		if b[p] == 0 {
			n -= int64(all)
		}
		p += all
	}
	return n
}

// checkBytes rejects input that is not a module before anything else reads it.
func checkBytes(name string, b []byte) error {
	switch {
	case len(b) == 0:
		return errorf(BadModule, name, "build the module again", "the file is empty")
	case len(b) > maxFile:
		return errorf(BadModule, name, "strip it (-ldflags=-s, wasm-strip)", "the file has %d bytes, more than %d", len(b), maxFile)
	case !bytes.HasPrefix(b, wasmMagic[:4]):
		return errorf(BadModule, name, "build it for wasip1 or wasm32", "this is not a WebAssembly module")
	case !bytes.HasPrefix(b, wasmMagic) && !component.Is(b):
		return errorf(BadModule, name, "build it for wasip1, wasm32 or wasip2", "this is WebAssembly of another version")
	}
	return nil
}

// checkImports rejects imports that are unknown, not granted or of the wrong type. It
// returns the names of the modules imported from.
func (m *Module) checkImports() ([]string, error) {
	var needs []string
	for _, im := range m.allImports() {
		if _, linked, err := m.ofLinked(im); err != nil {
			return nil, err
		} else if linked {
			continue
		}
		if m.comp != nil && im.Kind == wasm.Func && im.Module != wasiModule {
			continue // see linkComponent
		}
		if im.Kind != wasm.Func {
			return nil, m.errorf(BadModule, "build it with its own", "imports %s %q from %q", im.Kind, im.Name, im.Module)
		}
		if !slices.Contains(needs, im.Module) {
			needs = append(needs, im.Module)
		}
		i := slices.IndexFunc(m.e.funcs, func(f hostFunc) bool { return f.module == im.Module && f.name == im.Name })
		if m.stock && (i < 0 && im.Module != wasiModule || i >= 0 && !m.spec.Grants.has(m.e.funcs[i].needs)) {
			m.missing = append(m.missing, im)
			continue
		}
		if i < 0 {
			return nil, m.errorf(BadModule, "rebuild the module without it", "imports %q from %q, which this host does not have", im.Name, im.Module)
		}
		f := m.e.funcs[i]
		if !m.spec.Grants.has(f.needs) {
			e := m.errorf(NotGranted, "grant it "+f.needs.String(), "imports %q from %q, which it may not have", im.Name, im.Module)
			e.Lacks = f.needs
			return nil, e
		}
		if !same(im.Type.Params, f.params) || !same(im.Type.Results, f.results) {
			return nil, m.errorf(BadModule, "update the module's SDK", "imports %q from %q as %s, but it is %s", im.Name, im.Module,
				signature(im.Type.Params, im.Type.Results), signature(ours(f.params), ours(f.results)))
		}
	}
	return needs, nil
}

// allImports returns the imports of all programs.
func (m *Module) allImports() []wasm.Import {
	var all []wasm.Import
	for _, p := range m.programs() {
		all = append(all, p.rewritten.Imports...)
	}
	return all
}

// isForeign reports whether the module was built for another host.
func (m *Module) isForeign() bool {
	for _, own := range []string{"handle", "restrict"} {
		if _, ok := m.exports.funcs[own]; ok {
			return false
		}
	}
	return !slices.ContainsFunc(m.allImports(), func(im wasm.Import) bool {
		return im.Module == userModule && slices.ContainsFunc(m.e.funcs, func(f hostFunc) bool { return f.module == userModule && f.name == im.Name })
	})
}

// lacks returns the error of a stock module that calls an import it does not get.
func (m *Module) lacks(im wasm.Import) *Error {
	i := slices.IndexFunc(m.e.funcs, func(f hostFunc) bool { return f.module == im.Module && f.name == im.Name })
	if i < 0 {
		return m.errorf(BadModule, "leave out what needs it", "calls %q from %q, which this host does not have", im.Name, im.Module)
	}
	e := m.errorf(NotGranted, "grant it "+m.e.funcs[i].needs.String(), "calls %q from %q, which it may not have", im.Name, im.Module)
	e.Lacks = m.e.funcs[i].needs
	return e
}

// stubs returns stand-ins for the functions of a host module that a stock module does
// not get. wazero does not link a module with missing imports.
func (m *Module) stubs(module string) []hostFunc {
	var fns []hostFunc
	for _, im := range m.missing {
		known := func(f hostFunc) bool { return f.name == im.Name }
		if im.Module != module || slices.ContainsFunc(fns, known) {
			continue
		}
		fns = append(fns, hostFunc{module: module, name: im.Name, params: theirs(im.Type.Params), results: theirs(im.Type.Results), fn: func(c *call, _ []uint64) {
			panic(c.inst.m.lacks(im))
		}})
	}
	return fns
}

// Missing returns an error, with its remedy, for each import that a stock module does
// not get. It is empty for any other module.
func (m *Module) Missing() []*Error {
	var list []*Error
	for _, im := range m.missing {
		list = append(list, m.lacks(im))
	}
	return list
}

func theirs(ts []wasm.ValueType) types {
	out := make(types, len(ts))
	for i, t := range ts {
		out[i] = api.ValueType(t)
	}
	return out
}

func ours(ts types) []wasm.ValueType {
	out := make([]wasm.ValueType, len(ts))
	for i, t := range ts {
		out[i] = wasm.ValueType(t)
	}
	return out
}

func same(a []wasm.ValueType, b types) bool { return slices.Equal(a, ours(b)) }

func signature(params, results []wasm.ValueType) string {
	list := func(ts []wasm.ValueType) string {
		var s []string
		for _, t := range ts {
			s = append(s, t.String())
		}
		return "(" + strings.Join(s, ", ") + ")"
	}
	return list(params) + " -> " + list(results)
}

// Has reports whether the module has a callable function of that name: without
// parameters, and with no result or an i32.
func (m *Module) Has(export string) bool {
	if m.comp != nil {
		return m.comp.has(export) || export == "_start" && m.command
	}
	t, ok := m.exports.funcs[export]
	return ok && callable(t)
}

// IsCommand reports whether the module is a WASI command, for Run rather than Call.
func (m *Module) IsCommand() bool { return m.command }

func callable(t wasm.FuncType) bool {
	return len(t.Params) == 0 && (len(t.Results) == 0 || len(t.Results) == 1 && t.Results[0] == wasm.I32)
}

// Callables returns the exports that Call accepts, sorted.
func (m *Module) Callables() []string {
	var have []string
	if m.comp != nil {
		for _, x := range m.comp.functions() {
			have = append(have, x.FullName())
		}
		return have
	}
	for name, t := range m.exports.funcs {
		if callable(t) && !internalExport(name) {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	return have
}

// checkExport returns the reason why an export cannot be called.
func (m *Module) checkExport(name string) error {
	t, ok := m.exports.funcs[name]
	if m.comp != nil {
		t, ok = wasm.FuncType{}, m.comp.has(name)
	}
	switch {
	case ok && callable(t):
		return nil
	case ok:
		return m.errorf(BadModule, "change its signature", "export %q is %s, but must be () -> (i32) or () -> ()", name, signature(t.Params, t.Results))
	case m.command:
		return m.errorf(IsCommand, reactor, "has no export %q: it is a WASI command", name)
	}
	have := m.Callables()
	if len(have) == 0 {
		return m.errorf(BadModule, "export it (Go: //go:wasmexport "+name+", C: export_name)", "has no export %q, nor any other", name)
	}
	return m.errorf(NoExport, "export it", "has no export %q; it has %s", name, strings.Join(have, ", "))
}

// internalExport reports whether a name belongs to a language runtime.
func internalExport(name string) bool {
	switch name {
	case "_initialize", "_start", "__wasm_call_ctors", "hs_init", "hs_exit", "resumed":
		return true
	}
	return false
}

// enter registers a call, unless the module is closed, and wakes the module if it
// sleeps.
func (m *Module) enter(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.awake(ctx); err != nil {
		return err
	}
	if m.closed {
		return m.errorf(Internal, "", "called after it was closed")
	}
	m.calls++
	m.sleeper.used.Store(time.Now().UnixNano())
	return nil
}

func (m *Module) leave() {
	m.mu.Lock()
	m.calls--
	last := m.closed && m.calls == 0
	m.mu.Unlock()
	if last {
		m.destroy()
	}
}

// Close marks the module as no longer used. Running calls continue; when the last has
// ended, everything that the module holds is released. Later Calls fail.
func (m *Module) Close() {
	m.mu.Lock()
	last := !m.closed && m.calls == 0
	m.closed = true
	m.mu.Unlock()
	if last {
		m.destroy()
	}
}

func (m *Module) destroy() {
	m.e.mu.Lock()
	delete(m.e.modules, m)
	m.e.mu.Unlock()
	m.release()
}

// release releases the module's code and everything created from it.
func (m *Module) release() {
	ctx := context.Background()
	m.pool.shut()
	if m.snap != nil {
		m.snap.close()
	}
	var errs []error
	for _, h := range m.hosts {
		errs = append(errs, h.close())
	}
	for _, p := range m.programs() {
		if p.compiled != nil {
			errs = append(errs, p.compiled.Close(ctx)) // otherwise it stays in the shared cache
		}
	}
	if m.home != nil {
		errs = append(errs, m.e.leave(m.home))
	}
	if err := errors.Join(errs...); err != nil {
		m.e.cfg.Logger.Error("close wasm module", "module", m.spec.Name, "error", err)
	}
}
