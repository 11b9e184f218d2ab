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

// Manifest is the content of an Extism manifest for a plugin made of local modules.
type Manifest struct {
	// Source is the unparsed manifest.
	Source []byte
	// Modules are the modules from which the last one imports functions, followed by
	// the last one, which is called.
	Modules []ManifestModule
	// MemoryBytes limits the guest's memory; 0 if not specified. StateBytes limits its
	// variables; Extism's own default is 1 MiB.
	MemoryBytes  int64
	StateBytes   int64
	Config       map[string]string
	AllowedHosts []string
	// AllowedPaths maps host paths to guest paths. A host path that is read-only starts
	// with "ro:".
	AllowedPaths map[string]string
	Timeout      time.Duration // 0 if not specified
}

// ManifestModule is a module of a manifest.
type ManifestModule struct {
	Name string // under which others import from it; empty for the one that is called
	// Path is the module's file, relative to the manifest; empty if Data holds the
	// module itself. Hash is its SHA-256 in hex, or empty.
	Path string
	Data []byte
	Hash string
}

// mostModules is the maximum number of modules in a manifest.
const mostModules = 16

// ReadManifest reads an Extism manifest with go-sdk's own types. It refuses a manifest
// that names a remote module: a tool must be on this host.
func ReadManifest(data []byte) (*Manifest, error) {
	// go-sdk ignores what it does not understand; duplicate keys or invalid UTF-8 must
	// not mean one thing to a reviewer and another to the host.
	var document map[string]any
	if err := strictjson.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("is not an Extism manifest: %w", err)
	}
	var m extism.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("is not an Extism manifest: %w", err)
	}
	switch n := len(m.Wasm); {
	case n == 0:
		return nil, errors.New("is not an Extism manifest: it names no module in wasm")
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
		// As in Extism: the module named main, or else the first without a name, or
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
