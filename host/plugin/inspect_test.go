package plugin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

// TestInspectSaysWhatGrants: each import says which line of tool.json grants it,
// in the fields that programs read; what is no module has a code.
func TestInspectSaysWhatGrants(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "handler.wasm")
	write := func(b string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\x00asm\x01\x00\x00\x00" + "\x01\x06\x01\x60\x01\x7e\x01\x7e" + // (i64) -> i64
		"\x02\x36\x02" + "\x10extism:host/user\x09tool_exec\x00\x00" + "\x0fextism:host/env\x05alloc\x00\x00")
	got, err := Inspect(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	line := `"\"capabilities\": {\"exec\": [\"/usr/bin/example\"]}"`
	if want := `"imports":[{"module":"extism:host/user","name":"tool_exec","type":"(i64) -\u003e (i64)","needs":` + line + `},` +
		`{"module":"extism:host/env","name":"alloc","type":"(i64) -\u003e (i64)"}],"needs":[` + line + `]`; !strings.Contains(string(b), want) || strings.Count(string(b), `"imports"`) != 1 {
		t.Errorf("it says %s, want %s", b, want)
	}
	write("#!/bin/sh")
	if _, err := Inspect(t.Context(), file, ""); err == nil || !strings.HasPrefix(err.Error(), string(fault.ToolBroken)+": handler.wasm: ") {
		t.Errorf("a script: %v", err)
	}
}
