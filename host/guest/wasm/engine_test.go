package wasm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
)

// features are those that the engine turns on.
const features = api.CoreFeaturesV2 | experimental.CoreFeaturesTailCall | experimental.CoreFeaturesExtendedConst | experimental.CoreFeaturesThreads |
	experimental.CoreFeaturesTypedFunctionReferences

var errFuel = errors.New("the fuel is used up")

// host is a wazero runtime with what guests import.
type host struct {
	wazero.Runtime
	slice   int64 // what a refill adds
	budget  int64 // what all refills may add together
	refills int
	given   int64
}

func newHost(t testing.TB) *host { return newHostWith(t, features) }

// newHostWith is for modules as they are, which may use more than what rewritten ones do.
func newHostWith(t testing.TB, features api.CoreFeatures) *host {
	t.Helper()
	ctx := context.Background()
	h := &host{
		Runtime: wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().WithCoreFeatures(features)),
		slice:   100_000, budget: math.MaxInt64,
	}
	t.Cleanup(func() { h.Close(ctx) })
	var fuel api.MutableGlobal
	var of api.Module
	var caught [][]uint64 // the tag, then the values
	values := []uint64{0}
	builder := h.NewHostModuleBuilder(ImportModule)
	for _, f := range []struct {
		name            string
		params, results []api.ValueType
		do              func(s []uint64)
	}{
		{ImportCaught, []api.ValueType{api.ValueTypeI32}, []api.ValueType{api.ValueTypeExternref}, func(s []uint64) {
			values[0] = s[0]
			caught, values = append(caught, values), []uint64{0}
			s[0] = uint64(len(caught))
		}},
		{ImportValue, []api.ValueType{api.ValueTypeI64}, nil, func(s []uint64) { values = append(values, s[0]) }},
		{ImportTag, []api.ValueType{api.ValueTypeExternref}, []api.ValueType{api.ValueTypeI32}, func(s []uint64) {
			if s[0] == 0 {
				panic(errors.New("wasm error: null reference"))
			}
			s[0] = caught[s[0]-1][0]
		}},
		{ImportValueOf, []api.ValueType{api.ValueTypeExternref, api.ValueTypeI32}, []api.ValueType{api.ValueTypeI64}, func(s []uint64) {
			s[0] = caught[s[0]-1][1+uint32(s[1])]
		}},
		{ImportUncaught, nil, nil, func([]uint64) { panic(errors.New("wasm error: uncaught exception")) }},
	} {
		builder.NewFunctionBuilder().WithGoFunction(api.GoFunc(func(_ context.Context, s []uint64) { f.do(s) }), f.params, f.results).Export(f.name)
	}
	_, err := builder.NewFunctionBuilder().WithGoModuleFunction(
		api.GoModuleFunc(func(_ context.Context, m api.Module, _ []uint64) {
			if of != m {
				of, fuel = m, m.ExportedGlobal(ExportFuel).(api.MutableGlobal)
			}
			h.refills++
			if h.given += h.slice; h.given > h.budget {
				panic(errFuel)
			}
			fuel.Set(uint64(int64(fuel.Get()) + h.slice))
		}), nil, nil).Export(ImportRefill).Instantiate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// withWASI lets Go guests in.
func (h *host) withWASI() *host {
	wasi_snapshot_preview1.MustInstantiate(context.Background(), h)
	return h
}

// plain instantiates a module as it is.
func (h *host) plain(module []byte, name string) (api.Module, error) {
	return h.InstantiateWithConfig(context.Background(), module,
		wazero.NewModuleConfig().WithName(name).WithStartFunctions())
}

// rewritten instantiates a rewritten module as an engine has to.
func (h *host) rewritten(m *Module, name string) (api.Module, error) {
	i, err := h.plain(m.Bytes, name)
	if err != nil {
		return nil, err
	}
	for _, d := range m.Data {
		if uint64(d.Offset)+uint64(len(d.Bytes)) > uint64(i.Memory().Size()) {
			i.Close(context.Background())
			return nil, fmt.Errorf("data segment out of bounds")
		}
		i.Memory().Write(d.Offset, d.Bytes)
	}
	if m.StartExport != "" {
		if _, err := i.ExportedFunction(m.StartExport).Call(context.Background()); err != nil {
			i.Close(context.Background())
			return nil, err
		}
	}
	return i, nil
}

func mustRewrite(t testing.TB, module []byte) *Module {
	t.Helper()
	m, err := Rewrite(module, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}
