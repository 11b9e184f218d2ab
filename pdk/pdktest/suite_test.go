package pdktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/pdktest/vectors"
	"github.com/toold/toold/pdk/toolchain"
)

// build compiles the Go guest; tags are its build tags.
func build(t *testing.T, tags string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "guest.wasm")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s", "-tags", tags, "-o", out, "./guest")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the guest: %v\n%s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGo(t *testing.T) { Run(t, build(t, "")) }

func TestGoWithBulkCopies(t *testing.T) { Run(t, build(t, "toold_bulk")) }

// TestOtherLanguages runs the guest of every SDK whose toolchain is here.
func TestOtherLanguages(t *testing.T) {
	for _, tt := range []struct {
		language    toolchain.Language
		dir, source string
		flags       [][]string
	}{
		{toolchain.AssemblyScript, "../assemblyscript", "conformance/guest.ts", [][]string{nil, {"--use", "TOOLD_PORTABLE=ASC_TARGET"}}},
		{toolchain.Rust, "../rust", "conformance", [][]string{nil, {"--features", "toold/portable"}}},
		{toolchain.C, "../c/conformance", "guest.c", [][]string{nil, {"-DTOOLD_PORTABLE"}, {"-Oz", "-mbulk-memory"}}},
	} {
		for _, flags := range tt.flags {
			t.Run(strings.Join(append([]string{string(tt.language)}, flags...), " "), func(t *testing.T) {
				Run(t, buildGuest(t, toolchain.Options{Language: tt.language, Dir: tt.dir, Source: tt.source, Flags: flags}))
			})
		}
	}
}

// buildGuest compiles a guest in any language, or skips the test and says what
// to install.
func buildGuest(t *testing.T, o toolchain.Options) []byte {
	t.Helper()
	o.Out = filepath.Join(t.TempDir(), "guest.wasm")
	err := toolchain.Build(t.Context(), o)
	if missing, ok := errors.AsType[*toolchain.MissingError](err); ok {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectorsUseEveryService: the suite serves all that a guest can be served, and
// has a vector in which the Go guest asks for it.
func TestVectorsUseEveryService(t *testing.T) {
	all, err := vectors.Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	m := NewSubject(t, build(t, "")).m
	used := map[string]bool{}
	for _, v := range all {
		served := services(v.Host())
		fields := reflect.ValueOf(&served).Elem()
		for i := range fields.NumField() {
			name, serve := fields.Type().Field(i).Name, fields.Field(i)
			if serve.IsNil() {
				t.Fatalf("the host of a vector does not serve %s: add it to services", name)
			}
			real := reflect.ValueOf(serve.Interface())
			serve.Set(reflect.MakeFunc(serve.Type(), func(args []reflect.Value) []reflect.Value {
				used[name] = true
				return real.Call(args)
			}))
		}
		// What comes of it, TestGo looks at.
		_, _ = m.Call(t.Context(), guest.Invocation{Export: v.Export, Input: v.Bytes(), Config: v.Config, Services: served})
	}
	for field := range reflect.TypeFor[guest.Services]().Fields() {
		if !used[field.Name] {
			t.Errorf("no vector in pdk/testdata makes a guest ask for %s: add a request to doc.go, the conformance guests and handle.json", field.Name)
		}
	}
}

// breaks are the rules that the Go guest can break.
var breaks = []string{
	"describe", "describe-abi",
	"unread-call", "unknown-field", "extra-field", "no-request", "allow-args", "deny", "deny-instead", "ask-self",
	"rewrite-args", "rewrite-env", "rewrite-false", "rewrite-stdin", "rewrite-shell", "rewrite-shell-lines", "rewrite-timeout", "rewrite-key",
	"empty-args", "empty-env", "empty-stdin", "config", "config-absent", "repo", "repo-error", "repo-order", "restrict-fail", "restrict-trap", "unknown",
	"handle-no-request", "handle-unknown", "call-payload", "call-unicode", "call-deadline", "stdout", "stderr", "exit", "bytes-text", "bytes-url",
	"data", "error", "error-retriable", "gone", "fail", "trap", "handle-config", "var-get", "var-set", "var-delete", "log", "emit", "recv",
	"http-header", "http-body", "http-status", "http-error", "exec-cwd", "exec-code", "exec-refused", "tool-call", "length", "large", "count", "safety",
	"discover-refused", "discover-all", "discover-binding", "discover-output", "discover-icons", "discover-theme", "discover-safety", "discover-ttl", "classify-failure", "classify-retriable",
	"reconcile-facts", "reconcile-run", "reconcile-ran", "reconcile-asked", "reconcile-done", "reconcile-gone", "reconcile-fail",
	"wire-force", "wire-options", "wire-fail",
}

// TestBrokenGuestsAreRed: a guest that breaks a single rule does not pass.
func TestBrokenGuestsAreRed(t *testing.T) {
	s := NewSubject(t, build(t, ""))
	all, err := vectors.Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("guest/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), `broken("`); n != len(breaks) {
		t.Errorf("the guest can break %d rules, %d are tried", n, len(breaks))
	}
	red := func(t *testing.T, rule string) string {
		s.config = map[string]string{"break": rule}
		clear(s.vars)
		for _, c := range s.Cases(all) {
			if err := c.Check(t.Context()); err != nil {
				return c.Name + ": " + err.Error()
			}
		}
		return ""
	}
	if why := red(t, "none"); why != "" {
		t.Fatalf("the guest that breaks nothing is red: %s", why)
	}
	for _, rule := range breaks {
		t.Run(rule, func(t *testing.T) {
			if red(t, rule) == "" {
				t.Error("no case noticed")
			}
		})
	}
}

// TestVectorsAreFound: the suite is not empty by accident, and each table of
// doc.go has a vector for each of its requests.
func TestVectorsAreFound(t *testing.T) {
	all, err := vectors.Load(folder(t))
	if err != nil {
		t.Fatal(err)
	}
	asked := map[string][]string{}
	for _, v := range all {
		for _, w := range strings.Fields(string(v.In)) {
			asked[v.Export] = append(asked[v.Export], strings.Trim(w, `[]{}",:`))
		}
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	// In code: what cannot be a vector.
	except := []string{"(none)", "anything", "length", "large", "count", "request"}
	export := ""
	found := 0
	for line := range strings.Lines(string(doc)) {
		if h, ok := strings.CutPrefix(line, "// # "); ok {
			export = strings.TrimSpace(h)
		}
		row, ok := strings.CutPrefix(line, "//\t")
		if !ok || export != "restrict" && export != "handle" || strings.HasPrefix(row, " ") {
			continue
		}
		request := strings.Fields(row)[0]
		if slices.Contains(except, request) {
			continue
		}
		found++
		if !slices.Contains(asked[export], request) {
			t.Errorf("no vector asks %s for %s", export, request)
		}
	}
	if found < 25 {
		t.Errorf("only %d requests found in doc.go", found)
	}
}
