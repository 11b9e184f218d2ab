package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// loopingCommand is a WASI command whose _start loops.
const loopingCommand = "\x00asm\x01\x00\x00\x00" +
	"\x01\x04\x01\x60\x00\x00" + // a type, () -> ()
	"\x03\x02\x01\x00" +
	"\x07\x0a\x01\x06_start\x00\x00" +
	"\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b" // loop: br 0

// keepingHandler keeps 100 bytes under a name of one.
const keepingHandler = "\x00asm\x01\x00\x00\x00" +
	"\x01\x0f\x03\x60\x01\x7e\x01\x7e\x60\x02\x7e\x7e\x00\x60\x00\x01\x7f" + // (i64) -> i64, (i64, i64) -> (), () -> i32
	"\x02\x33\x02" +
	"\x0fextism:host/env\x05alloc\x00\x00" +
	"\x0fextism:host/env\x07var_set\x00\x01" +
	"\x03\x02\x01\x02" +
	"\x07\x0a\x01\x06handle\x00\x02" +
	"\x0a\x11\x01\x0f\x00\x42\x01\x10\x00\x42\xe4\x00\x10\x00\x10\x01\x41\x00\x0b" // var_set(alloc(1), alloc(100))

// TestBinaryIsNamed: a caller of a tool whose binary cannot be run is told so with
// its place in tool.json, and so is a module that runs one.
func TestBinaryIsNamed(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	none := filepath.Join(t.TempDir(), "none")
	if err := os.WriteFile(none, []byte("\x7fELF"+strings.Repeat("\x00", 60)), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Tool(t, "none", M{"binary": none}, nil)
	a := ask(t, d.Socket, M{"tool": "none", "cwd": d.Root})
	if a.Code != "TOOL_BROKEN" || !strings.Contains(a.message(), none+": exec format error") || !strings.HasSuffix(a.message(), "; name another binary in tool.json") {
		t.Errorf("answered %s", a.raw)
	}
	d.Tool(t, "asks", M{"capabilities": M{"exec": []string{none}, "state": 1, "http": M{"hosts": []string{"nowhere.example"}}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	a = ask(t, d.Socket, M{"tool": "asks", "args": []string{"exec", none}, "cwd": d.Root})
	if a.Code != "TOOL_FAILED" || !strings.Contains(a.message(), "; name another binary in tool.json") {
		t.Errorf("a module is answered %s", a.raw)
	}
}

// TestLimitsAreNamed: a caller of a module that reaches a limit is told which
// line of tool.json sets it, whatever kind of module it is.
func TestLimitsAreNamed(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	for _, tt := range []struct {
		name, file, wasm, code string
		def                    M
		says                   []string
	}{
		{"command", "tool.wasm", loopingCommand, "LIMIT_EXCEEDED", M{"wasi": "tool.wasm", "limits": M{"fuel": 1000}}, []string{"command/tool.wasm", "limits.fuel in tool.json"}},
		{"keeper", "handler.wasm", keepingHandler, "LIMIT_EXCEEDED", M{"capabilities": M{"state": 100}}, []string{"101 bytes", "capabilities.state"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), tt.file)
			if err := os.WriteFile(file, []byte(tt.wasm), 0o600); err != nil {
				t.Fatal(err)
			}
			d.Tool(t, tt.name, tt.def, map[string]string{tt.file: file})
			a := ask(t, d.Socket, M{"tool": tt.name, "cwd": d.Root})
			if a.Code != tt.code {
				t.Errorf("answered %s, want %s", a.raw, tt.code)
			}
			for _, word := range tt.says {
				if !strings.Contains(a.message(), word) {
					t.Errorf("%q does not say %q", a.message(), word)
				}
			}
		})
	}
}
