package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/toold/toold/pdk/toolchain"
)

// TestNotes: code that does not work in a guest is noted once, with its position,
// and similar working code is not.
func TestNotes(t *testing.T) {
	for _, tt := range []struct {
		name     string
		language toolchain.Language
		files    map[string]string
		want     []string
	}{
		{"nothing", toolchain.Go, map[string]string{"main.go": "package main\n\nfunc main() {}\n"}, nil},
		{"in a comment, a test, the SDK, and aside", toolchain.Go, map[string]string{
			"main.go":           "package main\n\n// os.Getenv(\"HOME\") would be empty.\nfunc main() {\n\t// nothing\n}\n",
			"main_test.go":      "package main\n\nvar _ = os.Getenv(\"HOME\")\n",
			"toold/pdk/host.go": "package pdk\n\nvar _ = os.Getenv(\"HOME\")\n",
			".aside/main.go":    "package main\n\nfunc main() { work() }\n",
		}, nil},
		{"twice", toolchain.Go, map[string]string{"main.go": "package main\n\nvar a, b = os.Getenv(\"A\"), 1\nvar c = os.Getenv(\"C\")\n"},
			[]string{"main.go:3: a guest's environment is empty; what a caller passes on is in Call.Env, settings are in pdk.Config"}},
		{"a file", toolchain.Go, map[string]string{"main.go": "package main\n\nvar b, _ = os.ReadFile(\"/data/x\")\n"}, []string{"main.go:3: " + noFiles}},
		{"a file that is granted", toolchain.Go, map[string]string{
			"main.go":   "package main\n\nvar b, _ = os.ReadFile(\"/data/x\")\n",
			"tool.json": `{"capabilities": {"files": {"/data": {"path": "/srv/data"}}}}`,
		}, nil},
		{"other packages of such names", toolchain.Go, map[string]string{"main.go": "package main\n\nimport (\n\t\"net/url\"\n\t\"net/netip\"\n)\n"}, nil},
		{"two imports", toolchain.Go, map[string]string{"a/a.go": "package a\n\nimport \"net/http\"\n", "main.go": "package main\n\nimport (\n\trun \"os/exec\"\n)\n"},
			[]string{"a/a.go:3: a guest has no sockets; ask the host with pdk.HTTP", "main.go:4: a guest starts no programs; ask the host with pdk.Exec"}},
		{"no Go", toolchain.Go, map[string]string{"main.go": "nonsense"}, nil},
		{"Rust, in its tests", toolchain.Rust, map[string]string{"src/lib.rs": "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() { println!(\"x\"); }\n}\n"}, nil},
		{"Rust", toolchain.Rust, map[string]string{"src/lib.rs": "use std::time::Instant;\nfn a() {\n    dbg!(1);\n    let _ = Instant::now();\n}\n"}, []string{
			"src/lib.rs:3: what is printed goes nowhere; log it with toold::log, or answer it as stdout",
			"src/lib.rs:4: this target has no clock, and std's panics; import clock_time_get of wasi_snapshot_preview1",
		}},
		{"C has none", toolchain.C, map[string]string{"handler.c": "int x;\n"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				file := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			p := &Project{Dir: dir, Language: tt.language}
			if got := p.notes("."); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nmust be %q", got, tt.want)
			}
		})
	}
}

// TestEntry: a module with a custom export is the handler only if tool.json names
// that export.
func TestEntry(t *testing.T) {
	p := project(t, toolchain.C, false)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(p.Dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("handler.c", "#include \"toold.h\"\nTOOLD_EXPORT(count) int count(void) { toold_output(TOOLD_STR(\"3\")); return 0; }\n")
	write("tool.json", "{}")
	if _, err := p.Build(t.Context(), false, nil); err == nil {
		t.Error("a module that exports neither was put somewhere")
	}
	write("tool.json", `{"entry": {"export": "count", "output": "stdout"}}`)
	write(CasesFile, `[{"name": "a", "call": {}, "result": {"exit_code": 0, "stdout": "3"}}]`)
	for _, o := range outcomes(t, p) {
		if !o.OK {
			t.Errorf("%q", o.Differences)
		}
	}
}
