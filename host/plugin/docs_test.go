package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/toolchain"
)

// manual is docs/plugins.md.
func manual(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/plugins.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCookbook compiles every policy of the manual into one guest and calls it.
func TestCookbook(t *testing.T) {
	approvals, err := os.ReadFile("../../docs/approvals.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- policy: ([a-z]+) -->\n\n```go\n(.*?)```").FindAllStringSubmatch(manual(t)+string(approvals), -1)
	if len(found) != 5 {
		t.Fatalf("%d policies in the manuals, must be 5", len(found))
	}
	dir := filepath.Join(t.TempDir(), "cookbook")
	if err := New(dir, toolchain.Go, true); err != nil {
		t.Fatal(err)
	}
	source := "package main\n\nimport (\n\"slices\"\n\"strconv\"\n\"strings\"\n\"time\"\n\n\"github.com/toold/toold/pdk\"\n\"github.com/toold/toold/pdk/abi\"\n)\n\nvar _, _, _ = slices.Contains[[]string], strconv.Itoa, time.Now\nvar _ = strings.Cut\n\n" +
		"//go:wasmexport restrict\nfunc restrict() int32 {\n\treturn pdk.Restrict(map[string]func(*abi.Call) *abi.Decision{"
	bodies := ""
	for _, f := range found {
		source += fmt.Sprintf("%q: %s, ", f[1], f[1])
		bodies += strings.Replace(f[2], "func policy(", "func "+f[1]+"(", 1) + "\n"
	}
	source += "}[pdk.Config(\"policy\")])\n}\n\nfunc main() {}\n\n" + bodies
	build(t, dir, map[string]string{"main.go": source, "tool.json": `{"capabilities": {"state": "1KiB"}}`})
	w, err := OpenRunner(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	yes, no := true, false
	ask := func(policy, call string, want *abi.Decision) {
		t.Helper()
		c := &Case{Name: policy, Call: []byte(call), Config: map[string]string{"policy": policy}, Decision: want}
		if o := w.Run(t.Context(), c); !o.OK {
			t.Errorf("%s of %s: %s", policy, call, strings.Join(o.Differences, "; "))
		}
	}
	ask("grammar", `{"args":["list","--all"]}`, &abi.Decision{Effect: "allow"})
	ask("grammar", `{"args":["list","--exec"]}`, &abi.Decision{Effect: "deny", Rule: "flag", Reason: "list has no flag --exec", Instead: "leave it out"})
	ask("grammar", `{"args":["erase"]}`, &abi.Decision{Effect: "deny", Rule: "verb", Reason: "erase is not understood", Instead: "list or show"})
	ask("grammar", `{}`, &abi.Decision{Effect: "deny", Rule: "verb", Reason: "a verb is missing", Instead: "list or show"})
	ask("rewrite", `{"args":["-x"]}`, &abi.Decision{Effect: "allow", Args: []string{"--no-color", "--", "-x"}, Env: map[string]string{"LANG": "C"}})
	ask("class", `{"args":["list"]}`, &abi.Decision{Effect: "allow", Mutating: &no, Idempotent: &yes})
	ask("class", `{"args":["put"]}`, &abi.Decision{Effect: "allow", Mutating: &yes, Idempotent: &no})
	ask("class", `{"args":["put"],"read_only":true}`, &abi.Decision{Effect: "deny", Rule: "read_only", Reason: "put changes something, and this caller only reads", Instead: "list or show"})
	commit := strings.Repeat("0123456789", 4)
	refused := func(rule, reason, instead string) *abi.Decision {
		return &abi.Decision{Effect: "deny", Rule: rule, Reason: reason, Instead: instead}
	}
	const form = "git push REMOTE COMMIT:refs/heads/BRANCH"
	ask("approve", `{"tool":"git","args":["push","origin","`+commit+`:refs/heads/main"]}`, &abi.Decision{
		Effect: "ask", Rule: "push.main", Ask: &abi.Approval{By: []string{"sub:alice"}, Text: "pushes to main: origin " + commit + ":refs/heads/main"}, Stdin: &no,
	})
	ask("approve", `{"tool":"git","args":["push","origin","x:refs/heads/topic"]}`, &abi.Decision{Effect: "allow"})
	ask("approve", `{"tool":"git","args":["push","origin","HEAD:refs/heads/main"]}`, refused("push.commit", "what HEAD is may change until it is approved", "write the whole id of the commit: git rev-parse HEAD"))
	ask("approve", `{"tool":"git","args":["push","origin","main"]}`, refused("push.form", "push main leaves open what goes where", form))
	ask("approve", `{"tool":"git","args":["push"]}`, refused("push.form", "push leaves open what goes where", form))
	ask("approve", `{"tool":"git","args":["push","--all","origin"]}`, refused("push.form", "push --all leaves open what goes where", form))
	ask("approve", `{"tool":"git","args":["stash","push"]}`, &abi.Decision{Effect: "allow"})
	ask("rate", `{}`, &abi.Decision{Effect: "allow"})

	// The rate counts what it stored, minute by minute.
	c := &Case{Call: []byte(`{}`), Config: map[string]string{"policy": "rate"}, Decision: &abi.Decision{Effect: "allow"}}
	allowed := 0
	for range 30 {
		reply, said, _, err := w.call(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(reply.Output), `"allow"`) {
			allowed++
		}
		c.Vars = said.vars
	}
	if allowed < 10 || allowed > 20 { // a minute may have ended meanwhile
		t.Errorf("%d of 30 calls were allowed, must be 10", allowed)
	}
}

// TestCasesInTheManual: the manual's cases.json can be read.
func TestCasesInTheManual(t *testing.T) {
	_, rest, _ := strings.Cut(manual(t), "```json\n[")
	text, _, ok := strings.Cut(rest, "```")
	file := filepath.Join(t.TempDir(), CasesFile)
	if err := os.WriteFile(file, []byte("["+text), 0o644); err != nil || !ok {
		t.Fatal(err, ok)
	}
	cases, err := LoadCases(file)
	if err != nil || len(cases) != 4 {
		t.Errorf("%d cases, %v", len(cases), err)
	}
}

// block returns the first block of text that has start behind its three backquotes and
// contains every part.
func block(t *testing.T, text, start string, parts ...string) string {
	t.Helper()
next:
	for {
		var ok bool
		if _, text, ok = strings.Cut(text, "\n```"+start+"\n"); !ok {
			t.Fatalf("the manual has no block %q with %q there", start, parts)
		}
		b, _, _ := strings.Cut(text, "\n```")
		for _, part := range parts {
			if !strings.Contains(b, part) {
				continue next
			}
		}
		return b + "\n"
	}
}

// build makes a project of Go out of files, and builds it.
func build(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Build(t.Context(), true, nil); err != nil {
		t.Fatal(err)
	}
}

// TestExportsInTheManual: the manual's wire and reconcile pass its cases of them.
func TestExportsInTheManual(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "put")
	if err := New(dir, toolchain.Go, true); err != nil {
		t.Fatal(err)
	}
	all := manual(t)
	build(t, dir, map[string]string{
		CasesFile: block(t, all, "json cases.json", `"export": "wire"`),
		"main.go": "package main\n\nimport (\n\"github.com/toold/toold/pdk\"\n\"github.com/toold/toold/pdk/abi\"\n)\n\n" +
			"//go:wasmexport restrict\nfunc restrict() int32 { return pdk.Restrict(func(*abi.Call) *abi.Decision { return pdk.Allow() }) }\n\n" +
			"//go:wasmexport wire\nfunc onWire() int32 { return pdk.Wire(wire) }\n\n" +
			"//go:wasmexport reconcile\nfunc onReconcile() int32 { return pdk.Reconcile(reconcile) }\n\nfunc main() {}\n\n" +
			block(t, all, "go", "func wire(") + block(t, all, "go", "func reconcile("),
	})
	cases, err := LoadCases(filepath.Join(dir, CasesFile))
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenRunner(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range cases {
		if o := w.Run(t.Context(), &cases[i]); !o.OK {
			t.Errorf("%s: %s", o.Name, strings.Join(o.Differences, "; "))
		}
	}
	cases[0].Output = []byte(`{"effect": "allow"}`)
	if o := w.Run(t.Context(), &cases[0]); o.OK || !strings.Contains(strings.Join(o.Differences, "; "), `/effect: got "deny", must be "allow"`) {
		t.Errorf("another output: %v", o.Differences)
	}
}

// TestCasesOfExports: a case of an export has what it is called with, and answers.
func TestCasesOfExports(t *testing.T) {
	file := filepath.Join(t.TempDir(), CasesFile)
	for text, want := range map[string]string{
		`{"output": {}}`: "name it: \"export\": classify, describe, discover, reconcile, wire",
		`{"export": "handle", "input": {}, "result": {"exit_code": 0}}`:              "of another export",
		`{"export": "wire", "call": {}, "output": {"effect": "allow"}}`:              "put what it is called with into input",
		`{"export": "wire", "input": {}, "decision": {"effect": "allow"}}`:           "but wire has an output",
		`{"export": "wire", "input": {}}`:                                            "must have one of",
		`{"export": "wire", "input": {"hosst": "a"}, "output": {}}`:                  `has an input that is not a valid Wire: line 1, column 2: /hosst: is not a known name; did you mean "host"?`,
		`{"export": "classify", "input": {}, "output": {"exit_code": 0}}`:            "has an output that is not a valid Classification",
		`{"export": "wire", "input": {}, "fails": "TOOL_FAILED"}`:                    "",
		`{"export": "describe", "output": {"abi": 1}}`:                               "",
		`{"export": "count_vowels", "call": {"args": ["a"]}, "fails": "GUEST_TRAP"}`: "",
	} {
		if err := os.WriteFile(file, []byte("["+text+"]"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCases(file); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// TestSchemaInTheManual: the manual's tool with a schema passes its cases, and those are
// read by the schema as a daemon does, whether tool.json or describe has it.
func TestSchemaInTheManual(t *testing.T) {
	_, rest, _ := strings.Cut(manual(t), "## Flags and payloads\n")
	block := func(start string) string { return block(t, rest, start) }
	dir := filepath.Join(t.TempDir(), "greet")
	if err := New(dir, toolchain.Go, false); err != nil {
		t.Fatal(err)
	}
	def, err := tools.ParseDefinition("tool.json", []byte(block("json tool.json")))
	if err != nil {
		t.Fatal(err)
	}
	build(t, dir, map[string]string{
		"tool.json": block("json tool.json"), CasesFile: block("json cases.json"),
		"main.go": "package main\n\nimport (\n\"encoding/json\"\n\"strings\"\n\n\"github.com/toold/toold/pdk\"\n\"github.com/toold/toold/pdk/abi\"\n)\n\n" +
			"//go:wasmexport handle\nfunc handle() int32 { return pdk.Handle(greet) }\n\n" +
			fmt.Sprintf("//go:wasmexport describe\nfunc describe() int32 { return pdk.Describe(abi.Describe{ABI: abi.Version, Schema: json.RawMessage(%q)}) }\n\n", def.Schema) +
			block("go") + "\nfunc main() {}\n",
	})
	cases, err := LoadCases(filepath.Join(dir, CasesFile))
	if err != nil {
		t.Fatal(err)
	}
	cases = append(cases,
		Case{Name: "a payload that does not fit", Call: []byte(`{"payload": {"name": ""}}`), Fails: "INVALID_PAYLOAD", Message: "/name"},
		Case{Name: "usage", Call: []byte(`{"args": ["--help"]}`), Fails: "INVALID_PAYLOAD", Message: "leave --help out"},
		Case{Name: "from standard input", Call: []byte(`{"args": ["--name", "-"], "stdin_base64": "QWRh"}`), Result: &abi.Result{Stdout: "Hello, Ada!\n"}})
	for _, tool := range []string{"", "{}"} {
		if tool != "" {
			if err := os.WriteFile(filepath.Join(dir, "tool.json"), []byte(tool), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		w, err := OpenRunner(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range cases {
			if o := w.Run(t.Context(), &cases[i]); !o.OK {
				t.Errorf("%s: %s", o.Name, strings.Join(o.Differences, "; "))
			}
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFunctionsInTheManual: the SDKs have all functions in the manual.
func TestFunctionsInTheManual(t *testing.T) {
	read := func(patterns ...string) string {
		var all strings.Builder
		for _, p := range patterns {
			files, err := filepath.Glob(filepath.Join("../../pdk", p))
			if err != nil || len(files) == 0 {
				t.Fatal(p, err)
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(b)
			}
		}
		return all.String()
	}
	sdks := []struct{ cut, source string }{
		{"pdk.", read("*.go")}, {"toold::", read("rust/src/*.rs")}, {"", read("c/toold.h")}, {"", read("assemblyscript/assembly/*.ts")},
	}
	_, table, _ := strings.Cut(manual(t), "| | Go | Rust | C | AssemblyScript |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	name := regexp.MustCompile("`([A-Za-z_:.]+)")
	checked := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || strings.Contains(line, "---") {
			continue
		}
		for i, sdk := range sdks {
			for _, m := range name.FindAllStringSubmatch(cells[i+1], -1) {
				n := strings.TrimPrefix(m[1], sdk.cut)
				n = n[strings.LastIndexAny(n, ".:")+1:]
				if n == "Err" { // the language's own
					continue
				}
				checked++
				if !regexp.MustCompile(`(func|fn|mod|macro_rules!|define|TOOLD_F[A-Z]+ [\w ]+|static|function|export enum|class|type|toold_str|toold_fake_host) \*?` + n + `\b|` + n + `\(|\b` + n + `;`).MatchString(sdk.source) {
					t.Errorf("the SDK of column %d has no %s", i+1, n)
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d names were found in the table", checked)
	}
}
