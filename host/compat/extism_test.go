package compat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	extism "github.com/extism/go-sdk"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

const goSDK = "github.com/extism/go-sdk"

// TestExtism runs go-sdk's own plugins as tools and on go-sdk: the same output, or
// a failure on both. It compares the table of docs/compatibility.md, too.
func TestExtism(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling go-sdk's plugins twice takes a minute")
	}
	dir, version := goModule(t, goSDK)
	files, err := filepath.Glob(filepath.Join(dir, "wasm/*.wasm"))
	if err != nil || len(files) == 0 {
		t.Skipf("%s has no plugins", dir)
	}
	settings := map[string]string{"thing": "hello", "vowels": "aeiouyAEIOUY", "path": "/mnt/test.txt", "duration": "0"}
	d := hosttest.Start(t, config.Config{})
	var rows []row
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".wasm")
		t.Run(name, func(t *testing.T) {
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			info, err := guest.Inspect(name, code)
			if err != nil {
				t.Fatal(err)
			}
			r := row{module: filepath.Base(file), origin: "pkg:golang/" + goSDK + "@" + version}
			handler, have := "x.wasm", map[string]string{"x.wasm": file}
			modules := []extism.Wasm{extism.WasmData{Data: code}}
			if name == "main" { // it calls a function of another module
				lib := filepath.Join(dir, "wasm/lib.wasm")
				r.module += "` with `lib.wasm"
				handler, have = "plugin.json", map[string]string{"x.wasm": file, "lib.wasm": lib, "plugin.json": manifest(t, M{"wasm": []M{{"path": "lib.wasm", "name": "lib"}, {"path": "x.wasm", "name": "main"}}})}
				modules = []extism.Wasm{extism.WasmFile{Path: lib, Name: "lib"}, extism.WasmData{Data: code, Name: "main"}}
			}
			defer func() { rows = append(rows, r) }()
			ours, theirs := t.TempDir(), t.TempDir()
			text := map[string]string{"test.txt": "hello world!"}
			calls := 0
			for _, x := range info.Exports {
				if !x.Callable && !(x.Name == "_start" && alone(info)) || strings.HasPrefix(x.Name, "asyncify_") {
					continue
				}
				fill(t, ours, text)
				fill(t, theirs, text)
				want, wantErr := onGoSDK(t, modules, x.Name, settings, theirs)
				tool := strings.ToLower(strings.ReplaceAll(name+"-"+x.Name, ".", "-"))
				d.Tool(t, tool, M{
					"handler": handler, "config": settings,
					"entry":        M{"export": x.Name, "input": "stdin", "output": "stdout"},
					"capabilities": M{"state": "64KiB", "http": M{"hosts": []string{"*"}}, "files": M{"/mnt": M{"path": ours, "mode": "rw"}}},
				}, have)
				res, got, _ := d.Stream(t, &wire.Call{Tool: tool, Cwd: d.Root}, "hello, world")
				calls++
				switch {
				case (res.Err == nil) != (wantErr == nil):
					t.Errorf("%s: %v; on go-sdk: %v", x.Name, res.Err, wantErr)
				case wantErr == nil && (got != want || contents(t, ours) != contents(t, theirs)):
					t.Errorf("%s answers %.200q and leaves %s; on go-sdk %.200q and %s", x.Name, got, contents(t, ours), want, contents(t, theirs))
				case res.Err != nil && needsOthers(info):
					_, r.outcome, _ = strings.Cut(res.Err.Message, "x.wasm: ")
				}
			}
			if r.outcome == "" {
				r.outcome = fmt.Sprintf("runs: exports called as on go-sdk: %d", calls)
			}
		})
	}
	if len(rows) == len(files) {
		checkTable(t, "extism", rows)
	}
}

// manifest writes an Extism manifest to a file.
func manifest(t *testing.T, m M) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "plugin.json")
	b, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(name, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// alone reports whether a plugin has nothing but its _start.
func alone(info *guest.Info) bool {
	return !slices.ContainsFunc(info.Exports, func(x guest.Function) bool { return x.Callable && !strings.HasPrefix(x.Name, "asyncify_") })
}

// needsOthers reports whether a plugin imports what only another host, or another
// module of its manifest, has.
func needsOthers(info *guest.Info) bool {
	return slices.ContainsFunc(info.Imports, func(i guest.Imported) bool { return i.Fault != "" })
}

// onGoSDK calls one export of a plugin on go-sdk.
func onGoSDK(t *testing.T, modules []extism.Wasm, export string, settings map[string]string, data string) (string, error) {
	t.Helper()
	p, err := extism.NewPlugin(t.Context(), extism.Manifest{
		Wasm: modules, Config: settings, AllowedHosts: []string{"*"}, AllowedPaths: map[string]string{data: "/mnt"},
	}, extism.PluginConfig{EnableWasi: true}, nil)
	if err != nil {
		return "", err
	}
	defer p.Close(t.Context())
	rc, out, err := p.Call(export, []byte("hello, world"))
	if err == nil && rc != 0 {
		err = fmt.Errorf("it answers %d", rc)
	}
	return string(out), err
}
