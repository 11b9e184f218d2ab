package c

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// warnings are all that the header must be free of, for those who build with them.
var warnings = []string{"-Wall", "-Wextra", "-Wpedantic", "-Wcast-qual", "-Wcast-align", "-Wwrite-strings", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-Werror"}

// source uses each of the exports, in what C and C++ have in common.
const source = `#include "toold.h"

static toold_decision policy(const toold_call *c) {
	toold_decision d = toold_allow();
	if (c->args.n) return toold_deny("rule", "reason", "instead");
	toold_push(&d.args, TOOLD_STR("a"));
	toold_put(&d.env, TOOLD_STR("A"), TOOLD_STR("b"));
	return d;
}
static toold_result handler(const toold_call *c) {
	toold_exec_request q = TOOLD_ZERO;
	q.args = c->args;
	toold_exec_result ran = toold_exec(&q);
	toold_response res = toold_http("GET", ran.out, c->env, TOOLD_STR(""));
	toold_str why;
	TOOLD_CHECK(toold_emit("stdout", toold_recv(&why)), "a caller is there");
	toold_var_set(TOOLD_STR("k"), toold_var_get(TOOLD_STR("k")));
	toold_log(TOOLD_INFO, toold_tool_call(toold_config("k")));
	return res.status == 200 ? toold_says(res.body) : toold_fails("CODE", "message");
}
static toold_describe describe(void) {
	toold_describe d = TOOLD_ZERO;
	d.name = TOOLD_STR("name");
	return d;
}
static toold_surface discover(const toold_discovery *d) {
	static toold_surface_tool tool;
	tool.name = d->tool;
	toold_surface s = TOOLD_ZERO;
	s.tools = &tool, s.n = 1;
	return s;
}
static toold_classification classify(const toold_ended *e) {
	toold_classification c = TOOLD_ZERO;
	c.failure = e->exit_code > 1;
	return c;
}
static toold_reconciliation reconcile(const toold_reconcile *q) {
	toold_reconciliation a = TOOLD_ZERO;
	if (!q->n) a.run = &q->call.args, a.n = 1;
	else if (q->ran[0].exit_code) return toold_unresolved(q->ran[0].err);
	else a.verdict = TOOLD_DONE, a.result = toold_says(q->ran[0].out);
	return a;
}
static toold_decision wire(const toold_wire *w) {
	if (!toold_is(w->on, TOOLD_WIRE_PUSH)) return toold_deny("on", "it is nothing that is known", "");
	for (size_t i = 0; i < w->n; i++)
		if (w->refs[i].force != TOOLD_NO) return toold_deny("force", "commits would be lost", "");
	return toold_allow();
}

TOOLD_RESTRICT(policy)
TOOLD_HANDLE(handler)
TOOLD_DESCRIBE(describe)
TOOLD_DISCOVER(discover)
TOOLD_CLASSIFY(classify)
TOOLD_RECONCILE(reconcile)
TOOLD_WIRE(wire)
`

// TestHeader: the header compiles without a warning as C11 and as C++17, for
// wasm and natively.
func TestHeader(t *testing.T) {
	for _, command := range []string{
		"clang -std=c11", "clang --target=wasm32 -std=c11", "clang --target=wasm32 -std=c11 -DTOOLD_PORTABLE", "clang --target=wasm32 -std=c11 -mbulk-memory",
		"clang++ -std=c++17", "clang++ --target=wasm32 -std=c++17", "gcc -std=c11", "g++ -std=c++17",
	} {
		t.Run(command, func(t *testing.T) {
			args := strings.Fields(command)
			program, err := exec.LookPath(args[0])
			if err != nil {
				t.Skip(err)
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "guest.c")
			if strings.Contains(args[0], "++") {
				file = filepath.Join(dir, "guest.cc")
			}
			if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(append(args[1:], warnings...), "-I.", "-c", "-o", filepath.Join(dir, "guest.o"), file)
			if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestNames: what the header declares begins with toold_ or TOOLD_, and has a
// comment.
func TestNames(t *testing.T) {
	b, err := os.ReadFile("toold.h")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	found := 0
	// What compilers call by themselves, and what the linker gives.
	except := map[string]bool{"memcpy": true, "memmove": true, "memset": true, "memcmp": true, "strlen": true, "__heap_base": true}
	for _, pattern := range []string{
		`(?m)^#\s*define (\w+)`, `(?m)^} (\w+);`, `(?m)^typedef enum .* (\w+);`, `(?m)^(?:TOOLD_FN|TOOLD_FAR|static|extern|__attribute__\(\([\w, ]+\)\))[\w ]* \**(\w+)(?:\(|;)`,
	} {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			found++
			if !except[m[1]] && !strings.HasPrefix(m[1], "toold_") && !strings.HasPrefix(m[1], "TOOLD_") {
				t.Errorf("%s is declared", m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile(`typedef enum \{ ([^}]*) \}`).FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			if found++; !strings.HasPrefix(name, "TOOLD_") {
				t.Errorf("%s is declared", name)
			}
		}
	}
	if found < 150 {
		t.Errorf("only %d names found", found)
	}
	said := map[string]bool{}
	before := ""
	for line := range strings.Lines(text) {
		m := regexp.MustCompile(`^(?:TOOLD_FN|TOOLD_FAR) [\w ]*?\**(\w+)\(|^typedef struct \{`).FindStringSubmatch(line)
		if m != nil && !said[m[1]] && !strings.HasPrefix(before, "//") {
			t.Errorf("nothing is said of %s", strings.TrimSpace(line))
		}
		if m != nil && m[1] != "" {
			said[m[1]] = true // Natively it is defined once more.
		}
		before = line
	}
}
