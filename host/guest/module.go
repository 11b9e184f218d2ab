package guest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/toold/toold/host/wire"
)

// Module is a loaded module. Its methods may be called at the same time.
type Module struct {
	e        *Engine
	spec     Spec
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	exports  map[string]api.FunctionDefinition

	mu     sync.Mutex
	calls  int  // running; guarded by mu
	closed bool // guarded by mu
}

var wasmMagic = []byte("\x00asm\x01\x00\x00\x00")

// Load compiles a module, or takes it from the cache, and checks that it can
// be called. The error is TOOL_BROKEN and says what to change, or TIMEOUT or
// ABORTED when ctx ended first.
func (e *Engine) Load(ctx context.Context, spec Spec) (*Module, error) {
	spec.defaults()
	if err := checkBytes(spec.Name, spec.Wasm); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, ended(err)
	}
	pages := spec.Memory / wasmPage
	if pages < 1 || pages > 65536 {
		return nil, broken(spec.Name, "a memory limit of %d bytes is not between 64 KiB and 4 GiB; change limits.memory in tool.json", spec.Memory)
	}
	m := &Module{e: e, spec: spec}
	m.runtime = wazero.NewRuntimeWithConfig(context.Background(), wazero.NewRuntimeConfigCompiler().
		WithCompilationCache(e.cache).
		WithCloseOnContextDone(true).
		WithMemoryLimitPages(uint32(pages)).
		WithDebugInfoEnabled(false))
	if err := m.load(ctx); err != nil {
		m.destroy()
		return nil, err
	}
	m.spec.Wasm = nil
	return m, nil
}

func (m *Module) load(ctx context.Context) error {
	m.e.compile.Lock()
	defer m.e.compile.Unlock()
	var err error
	m.compiled, err = m.runtime.CompileModule(context.Background(), m.spec.Wasm)
	if err != nil {
		return m.broken("%v; build it again for wasip1 or wasm32, without threads", firstLine(err))
	}
	needs, err := m.checkImports()
	if err != nil {
		return err
	}
	m.exports = m.compiled.ExportedFunctions()
	for _, mod := range needs {
		if mod == wasiModule {
			_, err = wasi_snapshot_preview1.Instantiate(context.Background(), m.runtime)
		} else {
			err = hostModule(context.Background(), m.runtime, mod, m.e.funcs, m.spec.Grants)
		}
		if err != nil {
			return m.broken("prepare %s: %v", mod, err)
		}
	}
	return nil
}

// checkBytes refuses what is no module before anything reads it.
func checkBytes(name string, b []byte) error {
	switch {
	case len(b) == 0:
		return broken(name, "the file is empty; build the module again")
	case len(b) > maxModule:
		return broken(name, "the file has %d bytes, more than %d; strip it (-ldflags=-s, wasm-strip)", len(b), maxModule)
	case !bytes.HasPrefix(b, wasmMagic[:4]):
		return broken(name, "this is not a WebAssembly module; build it for wasip1 or wasm32")
	case !bytes.HasPrefix(b, wasmMagic):
		return broken(name, "this is a WebAssembly component, or of another version; build a core module (wasip1)")
	}
	return nil
}

// checkImports refuses imports that are unknown, not granted or of the wrong
// type, and answers the modules that are imported from.
func (m *Module) checkImports() ([]string, error) {
	var needs []string
	for _, def := range m.compiled.ImportedFunctions() {
		mod, name, _ := def.Import()
		if mod == wasiModule {
			if !slices.Contains(needs, mod) {
				needs = append(needs, mod)
			}
			continue
		}
		i := slices.IndexFunc(m.e.funcs, func(f hostFunc) bool { return f.module == mod && f.name == name })
		if i < 0 {
			return nil, m.broken("imports %q from %q, which this host does not have; rebuild the module without it", name, mod)
		}
		f := m.e.funcs[i]
		if !m.spec.Grants.has(f.needs) {
			return nil, m.broken("imports %q from %q, which it may not have; to grant it, add %s to tool.json", name, mod, f.needs.line())
		}
		if !bytes.Equal(def.ParamTypes(), f.params) || !bytes.Equal(def.ResultTypes(), f.results) {
			return nil, m.broken("imports %q from %q as %s, but it is %s; update the module's SDK", name, mod,
				signature(def.ParamTypes(), def.ResultTypes()), signature(f.params, f.results))
		}
		if !slices.Contains(needs, mod) {
			needs = append(needs, mod)
		}
	}
	for _, def := range m.compiled.ImportedMemories() {
		mod, name, _ := def.Import()
		return nil, m.broken("imports memory %q from %q; build it with a memory of its own", name, mod)
	}
	return needs, nil
}

func signature(params, results []api.ValueType) string {
	list := func(ts []api.ValueType) string {
		var s []string
		for _, t := range ts {
			s = append(s, api.ValueTypeName(t))
		}
		return "(" + strings.Join(s, ", ") + ")"
	}
	return list(params) + " -> " + list(results)
}

// Has reports whether the module has a function of that name that can be
// called: without parameters, with no result or an i32.
func (m *Module) Has(export string) bool {
	def, ok := m.exports[export]
	return ok && callable(def)
}

func callable(def api.FunctionDefinition) bool {
	r := def.ResultTypes()
	return len(def.ParamTypes()) == 0 && (len(r) == 0 || len(r) == 1 && r[0] == i32)
}

// checkExport says why an export cannot be called.
func (m *Module) checkExport(name string) error {
	def, ok := m.exports[name]
	if !ok {
		if _, command := m.exports["_start"]; command {
			return m.broken(`has no export %q: it is a WASI command; name it under "wasi" in tool.json, or build it as a reactor (Go: -buildmode=c-shared, clang: -mexec-model=reactor)`, name)
		}
		var have []string
		for n, d := range m.exports {
			if callable(d) && !internalExport(n) {
				have = append(have, n)
			}
		}
		if len(have) == 0 {
			return m.broken("has no export %q, nor any other; export it (Go: //go:wasmexport %s, C: export_name)", name, name)
		}
		slices.Sort(have)
		return m.broken(`has no export %q; it has %s; set "entry" in tool.json, or export it`, name, strings.Join(have, ", "))
	}
	if !callable(def) {
		return m.broken("export %q is %s, but must be () -> (i32) or () -> (); change its signature", name,
			signature(def.ParamTypes(), def.ResultTypes()))
	}
	return nil
}

// internalExport reports whether a name belongs to a language's runtime.
func internalExport(name string) bool {
	switch name {
	case "_initialize", "_start", "__wasm_call_ctors", "hs_init", "hs_exit", "resumed":
		return true
	}
	return false
}

// enter counts a call in, unless the module is closed.
func (m *Module) enter() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return wire.Errorf(wire.Internal, "%s: called after it was closed", m.spec.Name)
	}
	m.calls++
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

// Close marks the module as no longer used. Calls that run go on; when the
// last has ended, everything that the module holds is given back. A later
// Call is an error.
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
	ctx := context.Background()
	if err := m.runtime.Close(ctx); err != nil {
		m.e.cfg.Logger.Error("close wasm runtime", "module", m.spec.Name, "error", err)
	}
	if m.compiled != nil {
		// The runtime leaves code in the shared cache.
		if err := m.compiled.Close(ctx); err != nil {
			m.e.cfg.Logger.Error("close wasm code", "module", m.spec.Name, "error", err)
		}
	}
}

func (m *Module) broken(format string, args ...any) *wire.Error {
	return broken(m.spec.Name, format, args...)
}

func (m *Module) tooMuchOutput() *wire.Error {
	return wire.Errorf(wire.LimitExceeded, "%s: the output is over %d bytes; raise limits.output in tool.json, or answer less", m.spec.Name, m.spec.Output)
}

func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	return s
}

// ended turns the error of a context into one of ours.
func ended(err error) *wire.Error {
	if errors.Is(err, context.DeadlineExceeded) {
		return wire.Errorf(wire.Timeout, "the call reached its deadline")
	}
	return wire.Errorf(wire.Aborted, "the call was aborted")
}
