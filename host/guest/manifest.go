package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	extism "github.com/extism/go-sdk"

	"github.com/toold/toold/host/strictjson"
)

// Manifest is what an Extism manifest says, for a plugin of one local module.
type Manifest struct {
	// Source is the manifest as it was read.
	Source []byte
	// Path is the module's file, relative to the manifest; empty when Data
	// holds the module itself. Hash is its sha256 in hex, or empty.
	Path string
	Data []byte
	Hash string
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

// ReadManifest reads an Extism manifest with go-sdk's own types. A manifest
// that names a remote module or several of them is refused by name: a tool is
// one module that is on this host.
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
	switch len(m.Wasm) {
	case 0:
		return nil, errors.New("is no Extism manifest: it names no module in wasm")
	case 1:
	default:
		return nil, fmt.Errorf("names %d modules, and a tool is one; link them into one module", len(m.Wasm))
	}
	out := &Manifest{
		Source: data, Config: m.Config, AllowedHosts: m.AllowedHosts, AllowedPaths: m.AllowedPaths,
		Timeout: time.Duration(min(m.Timeout, 1<<40)) * time.Millisecond,
	}
	switch w := m.Wasm[0].(type) {
	case extism.WasmFile:
		out.Path, out.Hash = w.Path, w.Hash
	case extism.WasmData:
		out.Data, out.Hash = w.Data, w.Hash
	case extism.WasmUrl:
		return nil, fmt.Errorf("names the remote module %q, and nothing is fetched at load; put the module beside the manifest and name it in path", w.Url)
	default:
		return nil, fmt.Errorf("names a module of an unknown kind, %T", w)
	}
	out.StateBytes = 1 << 20
	if mem := m.Memory; mem != nil {
		out.MemoryBytes = int64(mem.MaxPages) << 16
		if mem.MaxVarBytes >= 0 {
			out.StateBytes = mem.MaxVarBytes
		}
	}
	return out, nil
}
