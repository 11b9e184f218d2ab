package compat

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	extism "github.com/extism/go-sdk"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

const goSDK = "github.com/extism/go-sdk"

// plugin is one of Extism's own tests.
type plugin struct {
	name, file, origin string
}

// plugins are those of go-sdk, which come with it, and of other repositories of
// Extism, where the corpus has them.
func plugins(t *testing.T) (ofSDK, others []plugin) {
	t.Helper()
	dir, version := goModule(t, goSDK)
	files, err := filepath.Glob(filepath.Join(dir, "wasm/*.wasm"))
	if err != nil || len(files) == 0 {
		t.Skipf("%s has no plugins", dir)
	}
	for _, file := range files {
		ofSDK = append(ofSDK, plugin{strings.TrimSuffix(filepath.Base(file), ".wasm"), file, "pkg:golang/" + goSDK + "@" + version})
	}
	from := origins(t)
	for _, file := range slices.Sorted(maps.Keys(from)) {
		if strings.HasPrefix(from[file], "pkg:github/extism/") {
			origin, commit, _ := strings.Cut(from[file], "@")
			others = append(others, plugin{strings.TrimSuffix(file, ".wasm"), filepath.Join(corpus(t), file), origin + "@" + commit[:12]})
		}
	}
	return ofSDK, others
}

// TestExtism runs Extism's own plugins as tools and on go-sdk: the same output, or
// a failure on both. It compares the tables of docs/compatibility.md, too.
func TestExtism(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling go-sdk's plugins twice takes a minute")
	}
	ofSDK, others := plugins(t)
	settings := map[string]string{"thing": "hello", "vowels": "aeiouyAEIOUY", "path": "/mnt/test.txt", "duration": "0"}
	d := hosttest.Start(t, config.Config{})
	var rows []row
	for _, p := range slices.Concat(ofSDK, others) {
		name, file := p.name, p.file
		t.Run(name, func(t *testing.T) {
			code, err := os.ReadFile(file)
			if err != nil {
				t.Skipf("%s is not there; the head of scripts/corpus says how it comes", filepath.Base(file))
			}
			info, err := guest.Inspect(name, code)
			if err != nil {
				t.Fatal(err)
			}
			r := row{module: filepath.Base(file), origin: p.origin}
			handler, have := "x.wasm", map[string]string{"x.wasm": file}
			modules := []extism.Wasm{extism.WasmData{Data: code}}
			if name == "main" { // it calls a function of another module
				lib := filepath.Join(filepath.Dir(file), "lib.wasm")
				r.module += "` with `lib.wasm"
				handler, have = "plugin.json", map[string]string{"x.wasm": file, "lib.wasm": lib, "plugin.json": manifest(t, M{"wasm": []M{{"path": "lib.wasm", "name": "lib"}, {"path": "x.wasm", "name": "main"}}})}
				modules = []extism.Wasm{extism.WasmFile{Path: lib, Name: "lib"}, extism.WasmData{Data: code, Name: "main"}}
			}
			defer func() { rows = append(rows, r) }()
			ours, theirs := t.TempDir(), t.TempDir()
			text := map[string]string{"test.txt": "hello world!"}
			calls, failed := 0, 0
			for _, x := range info.Exports {
				if !x.Callable && !(x.Name == "_start" && alone(info)) || strings.HasPrefix(x.Name, "asyncify_") {
					continue
				}
				fill(t, ours, text)
				fill(t, theirs, text)
				endless := strings.Contains(name, "loop")
				limits := M{}
				if endless {
					limits["fuel"] = 100_000_000
				}
				want, wantErr := onGoSDK(t, modules, x.Name, settings, theirs, endless)
				tool := strings.ToLower(strings.ReplaceAll(name+"-"+x.Name, ".", "-"))
				d.Tool(t, tool, M{
					"handler": handler, "config": settings, "limits": limits,
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
				case res.Err != nil && res.Err.Code == fault.ToolBroken: // not for what go-sdk says
					t.Errorf("%s: %v; on go-sdk: %v", x.Name, res.Err, wantErr)
				case res.Err != nil:
					failed++
				}
			}
			switch {
			case r.outcome != "":
			case calls == 0:
				r.outcome = "has no export that a host could call"
			case failed > 0:
				r.outcome = fmt.Sprintf("runs: exports called as on go-sdk: %d; fail there and here: %d", calls, failed)
			default:
				r.outcome = fmt.Sprintf("runs: exports called as on go-sdk: %d", calls)
			}
		})
	}
	of := 0
	for of < len(rows) && strings.HasPrefix(rows[of].origin, "pkg:golang/") {
		of++
	}
	checkTable(t, "extism", rows[:of], of == len(ofSDK))
	checkTable(t, "others", rows[of:], len(rows)-of == len(others))
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
func onGoSDK(t *testing.T, modules []extism.Wasm, export string, settings map[string]string, data string, endless bool) (string, error) {
	t.Helper()
	m := extism.Manifest{Wasm: modules, Config: settings, AllowedHosts: []string{"*"}, AllowedPaths: map[string]string{data: "/mnt"}}
	if endless {
		m.Timeout = 1000
	}
	p, err := extism.NewPlugin(t.Context(), m, extism.PluginConfig{EnableWasi: true}, nil)
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
