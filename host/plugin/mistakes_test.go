package plugin

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/toolchain"
)

var update = flag.Bool("update", false, "write the table of mistakes into docs/plugins.md anew")

// mistake is something that authors do. What they are told is in the manual,
// and the manual is compared with what they are told.
type mistake struct {
	name string
	// source is what follows #include "toold.h" in handler.c. module is what is
	// in handler.wasm instead.
	source string
	module []byte
	// tool and cases are the folder's tool.json and cases.json.
	tool, cases string
	flags       []string
	// next is what the message must hold: what to do.
	next string
}

const (
	answers  = `static toold_result run(const toold_call *c) { (void)c; return toold_says(TOOLD_STR("x")); } TOOLD_HANDLE(run)`
	oneCase  = `[{"name": "a", "call": {}, "result": {"exit_code": 0, "stdout": "x"}}]`
	says     = `TOOLD_EXPORT(handle) int handle(void) { toold_output(toold_text(%q)); return 0; }`
	wasmHead = "\x00asm\x01\x00\x00\x00"
)

var mistakes = []mistake{
	{name: "a misspelt export", source: `TOOLD_EXPORT(handel) int handel(void) { return 0; }`, next: "export one of them"},
	{name: "no export at all", source: `int handle(void) { return 0; }`, next: "export handle or restrict"},
	{name: "an export with parameters", source: `TOOLD_EXPORT(handle) int handle(int a) { return a; }`, next: "comes through the SDK"},
	{name: "a function of a C library", source: `int puts(const char *); TOOLD_EXPORT(handle) int handle(void) { return puts("x"); }`, next: "toold.h"},
	{name: "an error of the compiler", source: `TOOLD_EXPORT(handle) int handle(void) { return x; }`, next: "handler.c:2:"},
	{name: "an import that no host has", source: `__attribute__((import_module("env"), import_name("abort"))) void stop(void); TOOLD_EXPORT(handle) int handle(void) { stop(); return 0; }`, next: "declared and nowhere defined"},
	{name: "a WASI command where a handler is wanted", source: `TOOLD_EXPORT(_start) void start(void) {}`, next: `name it under "wasi" in tool.json`},
	{name: "http without the capability", source: `static toold_result run(const toold_call *c) { return toold_says(toold_http("GET", c->cwd, (toold_map){0}, c->cwd).body); } TOOLD_HANDLE(run)`,
		next: `add "capabilities": {"http": {"hosts": ["api.example.com"]}} to tool.json`},
	{name: "state without the capability", source: `static toold_result run(const toold_call *c) { toold_var_set(c->tool, c->tool); return toold_says(c->tool); } TOOLD_HANDLE(run)`,
		next: `add "capabilities": {"state": 65536} to tool.json`},
	{name: "a program without the capability", source: `static toold_result run(const toold_call *c) { toold_exec_request q = {.path = c->cwd}; return toold_says(toold_exec(&q).out); } TOOLD_HANDLE(run)`,
		next: `add "capabilities": {"exec": ["/usr/bin/example"]} to tool.json`},
	{name: "more state than granted", source: `static toold_result run(const toold_call *c) { toold_var_set(TOOLD_STR("key"), TOOLD_STR("a value of some length")); return toold_says(c->tool); } TOOLD_HANDLE(run)`,
		tool: `{"capabilities": {"state": 8}}`, next: "keep less, or raise it"},
	{name: "a request that the case has no answer for", source: `static toold_result run(const toold_call *c) { (void)c; toold_http("GET", TOOLD_STR("https://api.example.com/x"), (toold_map){0}, TOOLD_STR("")); return toold_says(TOOLD_STR("x")); } TOOLD_HANDLE(run)`,
		tool: `{"capabilities": {"http": {"hosts": ["api.example.com"]}}}`, next: "add {"},
	{name: "an answer that is not JSON", source: fmt.Sprintf(says, "hello"), next: "toolctl schema abi"},
	{name: "no answer", source: `TOOLD_EXPORT(handle) int handle(void) { return 0; }`, next: "toolctl schema abi"},
	{name: "a field that there is not", source: fmt.Sprintf(says, `{"exit_code":0,"stdoot":"x"}`), next: `"stdout"`},
	{name: "a field of another type", source: fmt.Sprintf(says, `{"exit_code":0,"error":{"message":7}}`), next: "/error/message"},
	{name: "an answer that is not UTF-8", source: `TOOLD_EXPORT(handle) int handle(void) { toold_output(TOOLD_STR("{\"exit_code\":0,\"stdout\":\"\xff\"}")); return 0; }`, next: "UTF-8"},
	{name: "another answer than the case says", source: `static toold_result run(const toold_call *c) { (void)c; return (toold_result){.exit_code = 1, .out = TOOLD_STR("y")}; } TOOLD_HANDLE(run)`, next: `/exit_code: got 1, must be 0`},
	{name: "a failure without a message", source: `TOOLD_EXPORT(handle) int handle(void) { return 7; }`, next: "return 0"},
	{name: "printing to standard output", source: `__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write"))) int print(int, const void *, int, int *);
static const struct { const char *p; int n; } text = {"hello", 5};
static toold_result run(const toold_call *c) { int n; (void)c; print(1, &text, 1, &n); return toold_says(TOOLD_STR("x")); } TOOLD_HANDLE(run)`, next: "send it with tool_emit"},
	{name: "a loop without an end", source: `TOOLD_EXPORT(handle) int handle(void) { for (volatile int i = 0;; i++); }`, tool: `{"limits": {"fuel": 1000000}}`, next: "limits.fuel"},
	{name: "waiting for input that does not come in time", source: `__attribute__((import_module("wasi_snapshot_preview1"), import_name("poll_oneoff"))) int poll(const void *, void *, int, int *);
static const struct { uint64_t user; uint8_t tag; uint64_t clock; uint64_t after, precision; uint16_t flags; } nap = {.tag = 0, .clock = 1, .after = 3600000000000};
TOOLD_EXPORT(handle) int handle(void) { char event[32]; int n; return poll(&nap, event, 1, &n); }`, tool: `{"timeout": 0.05}`, next: "raise timeout"},
	{name: "more memory than allowed", source: `TOOLD_EXPORT(handle) int handle(void) { for (;;) toold_alloc(1 << 20); }`, tool: `{"limits": {"memory": "2MiB"}}`, next: "raise limits.memory in tool.json"},
	{name: "a recursion without an end", source: `__attribute__((noinline)) static int deep(volatile int *p) { volatile char a[64]; a[0] = 1; return deep(p) + a[0]; } TOOLD_EXPORT(handle) int handle(void) { volatile int x; return deep(&x); }`, next: "give it an end"},
	{name: "an address that is not there", source: `__attribute__((noinline)) static int look(volatile int *p) { return *p; } TOOLD_EXPORT(handle) int handle(void) { return look((int *)0x7ffffff0); }`, next: "check it before"},
	{name: "an assertion that fails", source: `__attribute__((noinline)) static void check(size_t n) { TOOLD_CHECK(n == 1, "the view must be open"); } TOOLD_EXPORT(handle) int handle(void) { check(toold_input().n); return 0; }`, next: "in check < handle: the view must be open at handler.c:2; check for it before"},
	{name: "an empty file", module: []byte{}, next: "build the module again"},
	{name: "a file that is no module", module: []byte("#!/bin/sh\n"), next: "build it for wasip1 or wasm32"},
	{name: "a component", module: []byte("\x00asm\x0d\x00\x01\x00"), next: "build a core module"},
	{name: "a debug build over the size limit", module: append([]byte(wasmHead), make([]byte, 64<<20)...), next: "strip it"},
	{name: "shared memory", module: []byte(wasmHead + "\x05\x04\x01\x03\x01\x02"), next: "without threads"},
	{name: "a module that was cut short", module: []byte(wasmHead + "\x01\x7f\x01"), next: "build it again"},
	{name: "a tool.json with a wrong word", source: answers, tool: `{"capabilitys": {}}`, next: `"capabilities"`},
	{name: "cases.json with a wrong word", source: answers, cases: `[{"name": "a", "kall": {}, "result": {"exit_code": 0}}]`, next: `"call"`},
	{name: "a case that says nothing of what must come", source: answers, cases: `[{"name": "a", "call": {}}]`, next: "one of decision, result and fails"},
}

// told answers what an author is told who does it, or "" who is told nothing.
func (m *mistake) told(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "greet")
	if err := New(dir, toolchain.C, false); err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("tool.json", []byte("{}"))
	if m.tool != "" {
		write("tool.json", []byte(m.tool))
	}
	write(CasesFile, []byte(oneCase))
	if m.cases != "" {
		write(CasesFile, []byte(m.cases))
	}
	if m.module != nil {
		write(handlerFile, m.module)
	} else {
		write("handler.c", []byte("#include \"toold.h\"\n"+m.source+"\n"))
		p, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Build(t.Context(), false, m.flags); err != nil {
			return err.Error()
		}
	}
	cases, err := LoadCases(filepath.Join(dir, CasesFile))
	if err != nil {
		return err.Error()
	}
	w, err := OpenWorkbench(dir, "")
	if err != nil {
		return err.Error()
	}
	defer w.Close()
	o := w.Run(t.Context(), &cases[0])
	return strings.Join(append(o.Differences, o.Log...), "; ")
}

// TestMistakes: each says what to do next, and the manual has each message.
func TestMistakes(t *testing.T) {
	if _, err := toolchain.Find(t.Context(), toolchain.C, "."); err != nil {
		t.Skip(err)
	}
	rows := make([]string, len(mistakes))
	t.Run("each", func(t *testing.T) {
		for i := range mistakes {
			m := &mistakes[i]
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				said := m.told(t)
				if !strings.Contains(said, m.next) {
					t.Errorf("told %q, must hold %q", said, m.next)
				}
				rows[i] = "| " + m.name + " | " + cell(said) + " |"
			})
		}
	})
	const file = "../../docs/plugins.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(b, []byte("<!-- mistakes -->\n"))
	_, after, ok2 := bytes.Cut(rest, []byte("<!-- end -->\n"))
	if !ok || !ok2 {
		t.Fatal("docs/plugins.md has no place for the table")
	}
	table := "| who does this | is told |\n| --- | --- |\n" + strings.Join(rows, "\n") + "\n"
	want := string(before) + "<!-- mistakes -->\n" + table + "<!-- end -->\n" + string(after)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(b) != want && !t.Failed() {
		t.Error("the table of docs/plugins.md is not what authors are told; run: go test ./host/plugin -run Mistakes -update")
	}
}

var (
	temporary = regexp.MustCompile(`/[^ :]*/greet/`)
	programs  = regexp.MustCompile(`^(build: (?:clang|wasm-ld))\S* failed:`)
	scratch   = regexp.MustCompile(`[^ :]*module\.wasm[^ :]*\.o`)
)

// cell is a message as a table shows it, the same wherever it is made.
func cell(s string) string {
	s = scratch.ReplaceAllString(temporary.ReplaceAllString(s, ""), "handler.o")
	// The compiler's own words differ from version to version.
	if m := programs.FindStringSubmatch(s); m != nil {
		said, hint := m[1]+" failed:"+s[len(m[0]):], ""
		if i := strings.LastIndexByte(s, '\n'); strings.Contains(s[i:], "toold.h") {
			hint = s[i:]
		}
		s, _, _ = strings.Cut(said, "\n")
		s += " what it says, with file and line." + hint
	}
	s = strings.NewReplacer("\n", " ", "|", `\|`, "<", "&lt;").Replace(s)
	return strings.ToValidUTF8(s, "\uFFFD")
}
