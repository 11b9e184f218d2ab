package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// home is a wazero runtime shared by modules, so that their imports are compiled and
// linked there once rather than whenever one of them is loaded.
//
// A runtime keeps the types of all functions that it ever had. So once a home has many,
// later modules get a new home, and the old one is closed with the last of its modules.
type home struct {
	wazero.Runtime
	modules int // currently loaded; guarded by Engine.mu
	types   int // bytes of types of all modules ever loaded here; guarded by Engine.mu

	mu    sync.Mutex
	hosts map[hostKey]*hostModule // guarded by mu
}

// mostTypes is the number of bytes of types, as encoded in modules, after which a home
// gets no more modules. wazero's representation of each is about four times as large.
const mostTypes = 256 << 10

// hostModule is a module that guests import from: compiled and instantiated.
type hostModule struct {
	api.Module
	code wazero.CompiledModule
}

func (h *hostModule) close() error {
	ctx := context.Background()
	return errors.Join(h.Module.Close(ctx), h.code.Close(ctx))
}

// hostKey distinguishes modules that are imported under the same name.
type hostKey struct {
	module string
	grants Grants // its functions
}

// enter returns a home for a module with the given number of bytes of types. The module
// leaves it when it is closed.
func (e *Engine) enter(types int) *home {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.home != nil && e.home.types+types > mostTypes && e.home.modules > 0 {
		e.home = nil
	}
	if e.home == nil {
		e.home = &home{Runtime: wazero.NewRuntimeWithConfig(context.Background(), runtimeConfig(e.cache)), hosts: map[hostKey]*hostModule{}}
	}
	e.home.modules++
	e.home.types += types
	return e.home
}

// leave is called when a module is no longer in h.
func (e *Engine) leave(h *home) error {
	e.mu.Lock()
	h.modules--
	current := e.home == h
	over := h.modules == 0 && (!current || h.types > mostTypes)
	if over && current {
		e.home = nil
	}
	e.mu.Unlock()
	if !over {
		return nil
	}
	return h.close()
}

// close releases everything. No module may be loaded in h any more.
func (h *home) close() error {
	var errs []error
	for _, m := range h.hosts {
		errs = append(errs, m.close())
	}
	return errors.Join(append(errs, h.Close(context.Background()))...)
}

// link creates a module with the functions that export adds to it.
func (h *home) link(name string, export func(wazero.HostModuleBuilder)) (*hostModule, error) {
	ctx := context.Background()
	b := h.NewHostModuleBuilder(name)
	export(b)
	code, err := b.Compile(ctx)
	if err != nil {
		return nil, err
	}
	mod, err := h.InstantiateModule(ctx, code, wazero.NewModuleConfig().WithName(""))
	if err != nil {
		return nil, errors.Join(err, code.Close(ctx))
	}
	return &hostModule{mod, code}, nil
}

// shared returns the module for a key, creating it at the first request.
func (h *home) shared(key hostKey, export func(wazero.HostModuleBuilder)) (*hostModule, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.hosts[key]; m != nil {
		return m, nil
	}
	m, err := h.link(key.module, export)
	if err == nil {
		h.hosts[key] = m
	}
	return m, err
}

// typeBytes returns the size of a module's types in bytes.
func typeBytes(b []byte) int {
	for p := min(len(b), len(wasmMagic)); p < len(b); {
		size, w := binary.Uvarint(b[p+1:])
		if w <= 0 || b[p] == 1 {
			return int(size)
		}
		p += 1 + w + int(size)
	}
	return 0
}
