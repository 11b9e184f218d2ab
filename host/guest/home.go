package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// home is a runtime of wazero's that modules share, so that what they import is
// compiled and linked there once, and not again whenever one of them is loaded.
//
// A runtime keeps the types of all functions that it ever had. So when those of
// a home have become many, later modules get another, and it goes with the last of
// its own.
type home struct {
	wazero.Runtime
	modules int // that are loaded; guarded by Engine.mu
	types   int // bytes of types that they had, and those before them; guarded by Engine.mu

	mu    sync.Mutex
	hosts map[hostKey]*hostModule // guarded by mu
}

// mostTypes is how many bytes of types a home takes before it is left, as they are
// in modules. What wazero makes of each is some four times as large.
const mostTypes = 256 << 10

// hostModule is what guests import from: compiled, and made.
type hostModule struct {
	api.Module
	code wazero.CompiledModule
}

func (h *hostModule) close() error {
	ctx := context.Background()
	return errors.Join(h.Module.Close(ctx), h.code.Close(ctx))
}

// hostKey tells apart what modules import under one name.
type hostKey struct {
	module string
	grants Grants // which functions it has
}

// enter returns a home for a module that has so many bytes of types. It is left when
// the module is closed.
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

// leave is for a module that is in h no longer.
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

// close gives everything back. Nothing is loaded in it any more.
func (h *home) close() error {
	var errs []error
	for _, m := range h.hosts {
		errs = append(errs, m.close())
	}
	return errors.Join(append(errs, h.Close(context.Background()))...)
}

// link makes a module with the functions that export adds to it.
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

// shared returns the module of a key, which it makes for the first that asks.
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

// typeBytes is how many bytes of types a module has.
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
