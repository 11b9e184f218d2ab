package plugin

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/toolchain"
)

var update = flag.Bool("update", false, "write the table of mistakes into docs/plugins.md anew")

// mistake is a common error of authors. The manual lists the resulting messages,
// and TestMistakes compares them.
type mistake struct {
	name string
	// in is the language, C where it does not matter; "" then.
	in toolchain.Language
	// source replaces the template's source: for C, what follows
	// #include "toold.h". module replaces handler.wasm.
	source string
	module []byte
	// files are further ones, by name.
	files map[string]string
	// tool and cases are the folder's tool.json and cases.json.
	tool, cases string
	flags       []string
	// noted: the message is a note of the build; the module is not called.
	noted bool
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
	{in: toolchain.C, name: "a misspelt export", source: `TOOLD_EXPORT(handel) int handel(void) { return 0; }`, next: "write TOOLD_HANDLE(f)"},
	{in: toolchain.C, name: "no export at all", source: `int handle(void) { return 0; }`, next: "write TOOLD_HANDLE(f)"},
	{in: toolchain.C, name: "an export with parameters", source: `TOOLD_EXPORT(handle) int handle(int a) { return a; }`, next: "comes through the SDK"},
	{in: toolchain.C, name: "a function of a C library", source: `int puts(const char *); TOOLD_EXPORT(handle) int handle(void) { return puts("x"); }`, next: "use what toold.h has"},
	{in: toolchain.C, name: "a name that is not declared", source: `TOOLD_EXPORT(handle) int handle(void) { return x; }`, next: "mend what it names"},
	{in: toolchain.C, name: "a header of a C library", source: "#include <stdio.h>\nTOOLD_EXPORT(handle) int handle(void) { return 0; }", next: "use what toold.h has"},
	{in: toolchain.C, name: "an import that no host has", source: `__attribute__((import_module("env"), import_name("abort"))) void stop(void); TOOLD_EXPORT(handle) int handle(void) { stop(); return 0; }`, next: "define it, or use"},
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
	{name: "a call that the schema does not admit", source: answers, tool: `{"schema": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}`,
		cases: `[{"name": "a", "call": {"args": ["--nam", "Ada"]}, "result": {"exit_code": 0}}]`, next: "did you mean --name?"},
	{name: "data that is not what the output schema says", source: fmt.Sprintf(says, `{"exit_code":0,"data":{"degrees":"7"}}`), tool: `{"output_schema": {"type": "object", "properties": {"degrees": {"type": "number"}}}}`,
		cases: `[{"name": "a", "call": {}, "result": {"exit_code": 0, "data": {"degrees": "7"}}}]`, next: "change the tool, or its output_schema"},
	{name: "a schema that no payload can match", source: answers, tool: `{"schema": {"type": "string"}}`, next: "put the value into a property"},
	{name: "an answer that is not JSON", source: fmt.Sprintf(says, "hello"), next: "toolctl schema abi"},
	{name: "no answer", source: `TOOLD_EXPORT(handle) int handle(void) { return 0; }`, next: "answer a Result"},
	{name: "a field that there is not", source: fmt.Sprintf(says, `{"exit_code":0,"stdoot":"x"}`), next: `did you mean "stdout"?`},
	{name: "a field of another type", source: fmt.Sprintf(says, `{"exit_code":0,"error":{"message":7}}`), next: "/error/message: must be a string"},
	{name: "an answer that is not UTF-8", source: `TOOLD_EXPORT(handle) int handle(void) { toold_output(TOOLD_STR("{\"exit_code\":0,\"stdout\":\"\xff\"}")); return 0; }`, next: "UTF-8"},
	{name: "another answer than the case says", source: `static toold_result run(const toold_call *c) { (void)c; return (toold_result){.exit_code = 1, .out = TOOLD_STR("y")}; } TOOLD_HANDLE(run)`, next: `change the tool, or the case`},
	{name: "a failure without a message", source: `TOOLD_EXPORT(handle) int handle(void) { return 7; }`, next: "return 0 and answer a Result"},
	{name: "printing to standard output", source: `__attribute__((import_module("wasi_snapshot_preview1"), import_name("fd_write"))) int print(int, const void *, int, int *);
static const struct { const char *p; int n; } text = {"hello", 5};
static toold_result run(const toold_call *c) { int n; (void)c; print(1, &text, 1, &n); return toold_says(TOOLD_STR("x")); } TOOLD_HANDLE(run)`, next: "send it with tool_emit"},
	{name: "a loop without an end", source: `TOOLD_EXPORT(handle) int handle(void) { for (volatile int i = 0;; i++); }`, tool: `{"limits": {"fuel": 1000000}}`, next: "raise limits.fuel"},
	{name: "waiting for input that does not come in time", source: `__attribute__((import_module("wasi_snapshot_preview1"), import_name("poll_oneoff"))) int poll(const void *, void *, int, int *);
static const struct { uint64_t user; uint8_t tag; uint64_t clock; uint64_t after, precision; uint16_t flags; } nap = {.tag = 0, .clock = 1, .after = 3600000000000};
TOOLD_EXPORT(handle) int handle(void) { char event[32]; int n; return poll(&nap, event, 1, &n); }`, tool: `{"timeout": 0.05}`, next: "raise timeout"},
	{name: "more memory than allowed", source: `TOOLD_EXPORT(handle) int handle(void) { for (;;) toold_alloc(1 << 20); }`, tool: `{"limits": {"memory": "2MiB"}}`, next: "raise limits.memory in tool.json"},
	{in: toolchain.C, name: "a recursion without an end", source: `__attribute__((noinline)) static int deep(volatile int *p) { volatile char a[64]; a[0] = 1; return deep(p) + a[0]; } TOOLD_EXPORT(handle) int handle(void) { volatile int x; return deep(&x); }`, next: "give it an end"},
	{in: toolchain.C, name: "an address that is not there", source: `__attribute__((noinline)) static int look(volatile int *p) { return *p; } TOOLD_EXPORT(handle) int handle(void) { return look((int *)0x7ffffff0); }`, next: "check it before it is used"},
	{in: toolchain.C, name: "an assertion that fails", source: `__attribute__((noinline)) static void check(size_t n) { TOOLD_CHECK(n == 1, "the view must be open"); } TOOLD_EXPORT(handle) int handle(void) { check(toold_input().n); return 0; }`, next: "the view must be open at handler.c:2; check for it before"},
	{name: "an empty file", module: []byte{}, next: "build the module again"},
	{name: "a file that is no module", module: []byte("#!/bin/sh\n"), next: "build it for wasip1 or wasm32"},
	{name: "a component that exports nothing", module: []byte("\x00asm\x0d\x00\x01\x00"), next: "build it with a world that exports something"},
	{name: "more code and data than a module may have", module: append([]byte(wasmHead+"\x0b\x80\x80\x80\x20"), make([]byte, 64<<20)...), next: "raise limits.compile.module in tool.json"},
	{name: "a memory of 64 bits", module: []byte(wasmHead + "\x05\x03\x01\x04\x01"), next: "without that"},
	{name: "a module that was cut short", module: []byte(wasmHead + "\x01\x7f\x01"), next: "build or copy it again"},
	{name: "a tool.json with a wrong word", source: answers, tool: `{"capabilitys": {}}`, next: `did you mean "capabilities"?`},
	{name: "cases.json with a wrong word", source: answers, cases: `[{"name": "a", "kall": {}, "result": {"exit_code": 0}}]`, next: `did you mean "call"?`},
	{name: "a case that says nothing of what must come", source: answers, cases: `[{"name": "a", "call": {}}]`, next: `such as "result": {`},
}

// asks is a case that calls the tool with one argument.
func asks(arg string) string {
	return fmt.Sprintf(`[{"name": "a", "call": {"args": [%q]}, "result": {"exit_code": 0, "stdout": "x"}}]`, arg)
}

const (
	goHead = "package main\n\nimport (\n\t\"github.com/toold/toold/pdk\"\n\t\"github.com/toold/toold/pdk/abi\"\n"
	goTail = ")\n\n//go:wasmexport handle\nfunc handle() int32 { return pdk.Handle(greet) }\n\nfunc main() {}\n\n"
	// Compiling Go takes longest: what goes wrong in a call does so in one tool.
	goWrong = goHead + "\t\"fmt\"\n\t\"os\"\n" + goTail + `func deeper(n int) int { return deeper(n+1) + 1 }

func greet(c *abi.Call) (*abi.Result, error) {
	switch c.Args[0] {
	case "panic":
		panic("no such city")
	case "index":
		return &abi.Result{Stdout: c.Args[3]}, nil
	case "nil":
		var none *abi.Result
		none.Stdout = "x"
	case "print":
		fmt.Println("hello")
	case "exit":
		os.Exit(3)
	case "wait":
		<-make(chan int)
	case "deep":
		deeper(0)
	}
	return &abi.Result{Stdout: "x"}, nil
}
`
	goGreet   = "func greet(c *abi.Call) (*abi.Result, error) {\n"
	rustHead  = "use toold::{Call, Outcome};\n\nfn greet(c: &Call) -> Outcome {\n    let _ = c;\n"
	rustTail  = "    Outcome::text(\"x\")\n}\n\ntoold::handle!(greet);\n"
	cargoHead = "[package]\nname = \"greet\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[workspace]\nexclude = [\"toold\"]\n\n[dependencies]\ntoold = { path = \"toold\" }\n"
	ascHead   = "import { Call, Outcome, onHandle } from \"./toold\";\n\nexport function handle(): i32 { return onHandle(greet); }\n\nfunction greet(c: Call): Outcome {\n"
	ascTail   = "  return Outcome.text(\"x\");\n}\n"
)

var mistakesElsewhere = []mistake{
	{in: toolchain.Go, name: "no //go:wasmexport", source: "package main\n\nfunc handle() int32 { return 0 }\n\nfunc main() { handle() }\n", next: "write //go:wasmexport handle above"},
	{in: toolchain.Go, name: "a space after //", source: "package main\n\n// go:wasmexport handle\nfunc handle() int32 { return 0 }\n\nfunc main() {}\n", next: "main.go:3: with a space it is a comment; write //go:wasmexport"},
	{in: toolchain.Go, name: "another -buildmode", source: goHead + goTail + goGreet + "return nil, nil }\n", flags: []string{"-buildmode=exe"}, next: "build it with -buildmode=c-shared"},
	{in: toolchain.Go, name: "work in main", source: "package main\n\nvar cities map[string]int\n\nfunc main() { cities = map[string]int{} }\n", noted: true, next: "move what it does into init"},
	{in: toolchain.Go, name: "a panic", source: goWrong, cases: asks("panic"), next: "answer an error instead"},
	{in: toolchain.Go, name: "an index out of range", source: goWrong, cases: asks("index"), next: "check for it before"},
	{in: toolchain.Go, name: "a nil pointer", source: goWrong, cases: asks("nil"), next: "check for it before"},
	{in: toolchain.Go, name: "fmt.Println", source: goWrong, cases: asks("print"), next: "answer it as stdout"},
	{in: toolchain.Go, name: "os.Exit", source: goWrong, cases: asks("exit"), next: "answer a Result with that exit_code"},
	{in: toolchain.Go, name: "waiting for a channel that nobody serves", source: goWrong, cases: asks("wait"), next: "pdk.Recv"},
	{in: toolchain.Go, name: "a recursion without an end", source: goWrong, cases: asks("deep"), tool: `{"limits": {"fuel": 10000000}}`, next: "end the loop or recursion"},
	{in: toolchain.Go, name: "a socket", source: "package main\n\nimport \"net/http\"\n\nvar _ = http.Get\n", noted: true, next: "ask the host with pdk.HTTP"},
	{in: toolchain.Go, name: "a program", source: "package main\n\nimport \"os/exec\"\n\nvar _ = exec.Command\n", noted: true, next: "ask the host with pdk.Exec"},
	{in: toolchain.Go, name: "a file that is not granted", source: "package main\n\nimport \"os\"\n\nvar hosts, _ = os.ReadFile(\"/etc/hosts\")\n", noted: true, next: `add "capabilities": {"files"`},
	{in: toolchain.Go, name: "the environment", source: "package main\n\nimport \"os\"\n\nvar home = os.Getenv(\"HOME\")\n", noted: true, next: "settings are in pdk.Config"},
	{in: toolchain.Go, name: "a package that is not there", source: "package main\n\nimport _ \"github.com/such/package\"\n\nfunc main() {}\n", next: "run go get with its name"},
	{in: toolchain.Go, name: "cgo", source: "package main\n\nimport \"C\"\n\nfunc main() {}\n", next: "cannot be built for wasm"},
	{in: toolchain.Go, name: "a type that does not fit", source: goHead + goTail + goGreet + "return \"x\", nil }\n", next: "mend what it names"},

	{in: toolchain.Rust, name: "no toold::handle!", source: "use toold::{Call, Outcome};\n\npub fn greet(_: &Call) -> Outcome { Outcome::text(\"x\") }\n", next: "write toold::handle!(f)"},
	{in: toolchain.Rust, name: "a macro that there is not", source: "use toold::{Call, Outcome};\n\npub fn greet(_: &Call) -> Outcome { Outcome::text(\"x\") }\n\ntoold::handler!(greet);\n", next: "toold has handle!"},
	{in: toolchain.Rust, name: "a program instead of a library", files: map[string]string{"src/lib.rs": "-", "src/main.rs": "fn main() {}\n", "Cargo.toml": cargoHead}, next: "put it into src/lib.rs"},
	{in: toolchain.Rust, name: "a crate that is not there", files: map[string]string{"Cargo.toml": cargoHead + "no-such-crate-of-anybody = \"1\"\n"}, next: "run cargo fetch"},
	{in: toolchain.Rust, name: "a function of a C library", source: "extern \"C\" { fn puts(s: *const u8) -> i32; }\n" + rustHead + "    unsafe { puts(b\"x\\0\".as_ptr()); }\n" + rustTail, next: "use Rust's own"},
	{in: toolchain.Rust, name: "a panic", source: rustHead + "    if c.args.is_empty() { panic!(\"no such city\") }\n" + rustTail, next: "answer an error instead"},
	{in: toolchain.Rust, name: "unwrap of None", source: rustHead + "    if c.args.first().unwrap() == \"\" { return Outcome::text(\"y\") }\n" + rustTail, next: "check for it before"},
	{in: toolchain.Rust, name: "std::process::exit", source: rustHead + "    if c.args.is_empty() { std::process::exit(3) }\n" + rustTail, next: "answer a Result with that exit_code"},
	{in: toolchain.Rust, name: "println!", source: rustHead + "    println!(\"hello\");\n" + rustTail, noted: true, next: "log it with toold::log"},
	{in: toolchain.Rust, name: "the environment", source: rustHead + "    let _ = std::env::var(\"HOME\");\n" + rustTail, noted: true, next: "settings are in toold::config"},
	{in: toolchain.Rust, name: "a file", source: rustHead + "    let _ = std::fs::read(\"/etc/hosts\");\n" + rustTail, noted: true, next: "ask the host"},
	{in: toolchain.Rust, name: "the clock", source: rustHead + "    let _ = std::time::SystemTime::now();\n" + rustTail, next: "ask the host through the SDK"},
	{in: toolchain.Rust, name: "a thread", source: rustHead + "    std::thread::spawn(|| {}).join().unwrap();\n" + rustTail, next: "ask the host through the SDK"},
	{in: toolchain.Rust, name: "a recursion without an end", source: "#[inline(never)]\nfn deep(n: &mut [u64; 32]) -> u64 { let mut m = *n; m[0] += 1; deep(&mut m) + m[0] + n[1] }\n\n" + rustHead + "    if deep(&mut [0; 32]) == 1 { return Outcome::text(\"y\") }\n" + rustTail, next: "give it an end"},
	{in: toolchain.Rust, name: "a type that does not fit", source: rustHead + "    return \"x\";\n" + rustTail, next: "mend what it names"},

	{in: toolchain.AssemblyScript, name: "handle without export", source: strings.Replace(ascHead, "export function handle", "function handle", 1) + ascTail, next: "write export function handle()"},
	{in: toolchain.AssemblyScript, name: "nothing of the SDK", source: "export function handle(): i32 { assert(false); return 0; }\n", next: "import it from ./toold"},
	{in: toolchain.AssemblyScript, name: "abort as asc has it", source: ascHead + ascTail, files: map[string]string{"asconfig.json": `{"options": {"runtime": "stub"}}`}, next: `"use": ["abort=`},
	{in: toolchain.AssemblyScript, name: "console.log", source: ascHead + "  console.log(\"hello\");\n" + ascTail, next: "log with log("},
	{in: toolchain.AssemblyScript, name: "Date.now", source: ascHead + "  if (Date.now() == 0) return Outcome.text(\"y\");\n" + ascTail, next: "declare clock_time_get"},
	{in: toolchain.AssemblyScript, name: "Math.random", source: ascHead + "  if (Math.random() == 2) return Outcome.text(\"y\");\n" + ascTail, next: "declare random_get"},
	{in: toolchain.AssemblyScript, name: "a module of node", source: "import { readFileSync } from \"fs\";\n" + ascHead + "  readFileSync(\"x\");\n" + ascTail, next: "use AssemblyScript's own library"},
	{in: toolchain.AssemblyScript, name: "process of node", source: ascHead + "  process.stdout.write(\"x\");\n" + ascTail, next: "answer stdout and exit_code as an Outcome"},
	{in: toolchain.AssemblyScript, name: "JSON.parse", source: ascHead + "  JSON.parse(\"{}\");\n" + ascTail, next: "read JSON with Reader"},
	{in: toolchain.AssemblyScript, name: "a closure", source: ascHead + "  let n = c.args.length; let f = (): i32 => n; f();\n" + ascTail, next: "pass it what it needs"},
	{in: toolchain.AssemblyScript, name: "try and catch", source: ascHead + "  try { greet(c); } catch (e) {}\n" + ascTail, next: "answer Outcome.fails"},
	{in: toolchain.AssemblyScript, name: "a type that does not fit", source: ascHead + "  return \"x\";\n}\n", next: "mend what it names"},
	{in: toolchain.AssemblyScript, name: "a throw", source: ascHead + "  if (c.args.length == 0) throw new Error(\"no such city\");\n" + ascTail, next: "answer an error instead"},
	{in: toolchain.AssemblyScript, name: "a null", source: ascHead + "  let s: string | null = c.args.length ? \"x\" : null; return Outcome.text(s!);\n}\n", next: "check for it before"},
	{in: toolchain.AssemblyScript, name: "an index out of range", source: ascHead + "  return Outcome.text(c.args[3]);\n}\n", next: "check for it before"},
	{in: toolchain.AssemblyScript, name: "a recursion without an end", source: "function deep(n: i32): i32 { return deep(n + 1) + n; }\n" + ascHead + "  return Outcome.text(deep(0).toString());\n}\n", next: "give it an end"},
}

// fixture is a project of one language in which the mistakes are made in turn.
type fixture struct {
	dir, fresh, cache string
	// built identifies the last build: mistakes with the same sources share it.
	built string
	notes []string
}

// output returns the message that the mistake gives, "" for none.
func (b *fixture) output(t *testing.T, l toolchain.Language, m *mistake) string {
	t.Helper()
	files := map[string]string{"tool.json": firstNonEmpty(m.tool, "{}"), CasesFile: firstNonEmpty(m.cases, oneCase)}
	if m.source != "" {
		text := m.source
		if l == toolchain.C {
			text = "#include \"toold.h\"\n" + text + "\n"
		}
		files[sources[l]] = text
	}
	maps.Copy(files, m.files)
	if of := fmt.Sprint(m.source, m.files, m.flags); m.module == nil && of == b.built {
		for _, name := range []string{"tool.json", CasesFile} {
			if err := os.WriteFile(filepath.Join(b.dir, name), []byte(files[name]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	} else {
		b.built, b.notes = "", nil
		restore(t, b.dir, b.fresh, files)
		p, err := Open(b.dir)
		switch {
		case err != nil:
			return err.Error()
		case m.noted:
			return strings.Join(p.notes(p.Sources[0]), "; ")
		case m.module != nil:
			if err := os.WriteFile(filepath.Join(b.dir, handlerFile), m.module, 0o644); err != nil {
				t.Fatal(err)
			}
		default:
			modules, err := p.Build(t.Context(), false, m.flags)
			if err != nil {
				return err.Error()
			}
			b.built, b.notes = of, modules[0].Notes
		}
	}
	cases, err := LoadCases(filepath.Join(b.dir, CasesFile))
	if err != nil {
		return err.Error()
	}
	w, err := OpenRunner(b.dir, b.cache)
	if err != nil {
		return err.Error()
	}
	defer w.Close()
	o := w.Run(t.Context(), &cases[0])
	said := append(slices.Clone(b.notes), o.Differences...)
	if o.Next != "" {
		said = append(said, o.Next)
	}
	return strings.Join(append(said, o.Log...), "; ")
}

// sources is the author's source file in each template.
var sources = map[toolchain.Language]string{
	toolchain.Go: "main.go", toolchain.Rust: "src/lib.rs", toolchain.C: "handler.c", toolchain.AssemblyScript: "assembly/handler.ts",
}

// restore resets dir to fresh, with some files replaced ("-": removed). It keeps
// the compiler's caches and unchanged files, which would be compiled again.
func restore(t *testing.T, dir, fresh string, files map[string]string) {
	t.Helper()
	want := map[string]string{}
	err := fs.WalkDir(os.DirFS(fresh), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			b, err = os.ReadFile(filepath.Join(fresh, p))
			want[p] = string(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(want, files)
	maps.DeleteFunc(want, func(_, text string) bool { return text == "-" })
	err = fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && p == "target" {
				return fs.SkipDir
			}
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, p))
		if text, ok := want[p]; ok && text == string(b) {
			delete(want, p)
			return err
		}
		return os.Remove(filepath.Join(dir, p))
	})
	for p, text := range want {
		file := filepath.Join(dir, p)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestMistakes: each message says what to do next and is in the manual.
func TestMistakes(t *testing.T) {
	const file = "../../docs/plugins.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(b, []byte("<!-- mistakes -->\n"))
	was, after, ok2 := bytes.Cut(rest, []byte("<!-- end -->\n"))
	if !ok || !ok2 {
		t.Fatal("docs/plugins.md has no place for the table")
	}
	all := append(slices.Clone(mistakes), mistakesElsewhere...)
	rows := make([]string, len(all))
	// Rows of languages whose compiler is missing stay unchanged.
	for line := range strings.Lines(string(was)) {
		for i := range all {
			if strings.HasPrefix(line, all[i].row()) {
				rows[i] = strings.TrimSuffix(line, "\n")
			}
		}
	}
	cache := t.TempDir()
	t.Run("in", func(t *testing.T) {
		for _, l := range toolchain.Languages() {
			t.Run(string(l), func(t *testing.T) {
				t.Parallel()
				if _, err := toolchain.Find(t.Context(), l, "."); err != nil {
					t.Skip(err)
				}
				dir, fresh := filepath.Join(t.TempDir(), "greet"), filepath.Join(t.TempDir(), "greet")
				if err := errors.Join(New(dir, l, false), New(fresh, l, false)); err != nil {
					t.Fatal(err)
				}
				b := &fixture{dir: dir, fresh: fresh, cache: cache}
				for i := range all {
					m := &all[i]
					if m.in != l && !(m.in == "" && l == toolchain.C) {
						continue
					}
					t.Run(m.name, func(t *testing.T) {
						said := b.output(t, l, m)
						if !strings.Contains(said, m.next) {
							t.Errorf("told %q, must hold %q", said, m.next)
						}
						if row := m.row() + cell(said) + " |"; *update || !alike(rows[i], row) {
							rows[i] = row
						}
					})
				}
			})
		}
	})
	table := "| mistake | in | message |\n| --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"
	want := string(before) + "<!-- mistakes -->\n" + table + "<!-- end -->\n" + string(after)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(b) != want && !t.Failed() {
		t.Error("the table of docs/plugins.md is outdated; run: go test ./host/plugin -run Mistakes -update")
	}
}

// alike reports whether two rows describe the same trap and next step. Function
// names and panic messages differ between compiler versions.
func alike(a, b string) bool {
	ends := func(s string) (how, next string) {
		how, rest, ok := strings.Cut(s, " trapped: ")
		if !ok {
			return s, ""
		}
		return how, rest[strings.LastIndex(rest, "; ")+1:]
	}
	how, next := ends(a)
	how2, next2 := ends(b)
	return how == how2 && next == next2
}

// row returns the beginning of the mistake's row in the table.
func (m *mistake) row() string {
	in := map[toolchain.Language]string{"": "all", toolchain.Go: "Go", toolchain.Rust: "Rust", toolchain.C: "C", toolchain.AssemblyScript: "AssemblyScript"}[m.in]
	return "| " + m.name + " | " + in + " | "
}

var (
	temporary = regexp.MustCompile(`/[^ :]*/greet/`)
	library   = regexp.MustCompile(`/rustc/[^ ]*/library/([^ :]*):\d+:\d+`)
	programs  = regexp.MustCompile(`(?s)^(build: (?:clang|wasm-ld|go|cargo|asc))\S* failed:\n.*\n(.*)`)
)

// cell normalises a message for the table, independent of the machine.
func cell(s string) string {
	// Compiler messages differ between versions.
	s = programs.ReplaceAllString(s, "$1 failed: what it says, with file and line. $2")
	s = library.ReplaceAllString(temporary.ReplaceAllString(s, ""), "$1")
	s = strings.NewReplacer("\n", " ", "|", `\|`, "<", "&lt;").Replace(s)
	return strings.ToValidUTF8(s, "\uFFFD")
}
