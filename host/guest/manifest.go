package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	extism "github.com/extism/go-sdk"

	"github.com/toold/toold/host/strictjson"
)

// Manifest is what an Extism manifest says, for a plugin of local modules.
type Manifest struct {
	// Source is the manifest as it was read.
	Source []byte
	// Modules are the modules that the last of them imports functions from, and the
	// last, which is called.
	Modules []ManifestModule
	// MemoryBytes bounds the guest's memory; 0 is not said. StateBytes bounds
	// its variables; Extism's own default is 1 MiB.
	MemoryBytes  int64
	StateBytes   int64
	Config       map[string]string
	AllowedHosts []string
	// AllowedPaths maps host paths, with a "ro:" before those that are not
	// written, to guest paths.
	AllowedPaths map[string]string
	Timeout      time.Duration // 0 is not said
}

// ManifestModule is a module of a manifest.
type ManifestModule struct {
	Name string // by which others import from it; empty for the one that is called
	// Path is the module's file, relative to the manifest; empty when Data
	// holds the module itself. Hash is its sha256 in hex, or empty.
	Path string
	Data []byte
	Hash string
}

// mostModules is how many modules a manifest may have.
const mostModules = 16

// ReadManifest reads an Extism manifest with go-sdk's own types. A manifest
// that names a remote module is refused by name: a tool is on this host.
func ReadManifest(data []byte) (*Manifest, error) {
	// go-sdk takes what it understands; a doubled key or bytes that are not
	// UTF-8 must not mean one thing to a reviewer and another to the host.
	var document map[string]any
	if err := strictjson.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("is no Extism manifest: %w", err)
	}
	var m extism.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("is no Extism manifest: %w", err)
	}
	switch n := len(m.Wasm); {
	case n == 0:
		return nil, errors.New("is no Extism manifest: it names no module in wasm")
	case n > mostModules:
		return nil, fmt.Errorf("names %d modules, more than %d; link some of them into one", n, mostModules)
	}
	out := &Manifest{
		Source: data, Config: m.Config, AllowedHosts: m.AllowedHosts, AllowedPaths: m.AllowedPaths,
		Timeout: time.Duration(min(m.Timeout, 1<<40)) * time.Millisecond,
	}
	var called *ManifestModule
	for i, w := range m.Wasm {
		var mod ManifestModule
		switch w := w.(type) {
		case extism.WasmFile:
			mod = ManifestModule{Name: w.Name, Path: w.Path, Hash: w.Hash}
		case extism.WasmData:
			mod = ManifestModule{Name: w.Name, Data: w.Data, Hash: w.Hash}
		case extism.WasmUrl:
			return nil, fmt.Errorf("names the remote module %q, and nothing is fetched at load; put the module beside the manifest and name it in path", w.Url)
		default:
			return nil, fmt.Errorf("names a module of an unknown kind, %T", w)
		}
		// As in Extism: the one called main, or else the first without a name, or
		// else the last.
		if mod.Name == "main" || called == nil && (mod.Name == "" || i == len(m.Wasm)-1) {
			if called != nil {
				return nil, errors.New("names more than one main module; give all but one another name")
			}
			mod.Name = ""
			called = &mod
			continue
		}
		if mod.Name == "" || slices.ContainsFunc(out.Modules, func(o ManifestModule) bool { return o.Name == mod.Name }) {
			return nil, fmt.Errorf("names two modules %q; give each a name of its own", mod.Name)
		}
		out.Modules = append(out.Modules, mod)
	}
	out.Modules = append(out.Modules, *called)
	out.StateBytes = 1 << 20
	if mem := m.Memory; mem != nil {
		out.MemoryBytes = int64(mem.MaxPages) << 16
		if mem.MaxVarBytes >= 0 {
			out.StateBytes = mem.MaxVarBytes
		}
	}
	return out, nil
}
