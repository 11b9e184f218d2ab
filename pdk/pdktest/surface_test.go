package pdktest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/toolchain"
)

// TestTableOfNames: each name in the documentation's table of what the SDKs have
// is public in its SDK.
func TestTableOfNames(t *testing.T) {
	doc := read(t, "../../docs/plugins.md")
	_, table, ok := strings.Cut(doc, "| | Go | Rust | C | AssemblyScript |\n")
	if !ok {
		t.Fatal("docs/plugins.md has no such table")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	has := []func(name string) bool{goNames(t), rustNames(t), cNames(t), assemblyScriptNames(t)}
	rows, names := 0, 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || strings.HasPrefix(cells[0], " ---") {
			continue
		}
		rows++
		for i, cell := range cells[1:] {
			prefix := "" // of the names that follow: pdk., toold::, Decision.
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
				name := strings.TrimSuffix(m[1], "(f)")
				if at := strings.LastIndexAny(name, ".:"); at >= 0 {
					prefix = name[:at+1]
				} else if name[0] != 'T' && name != "Err" {
					name = prefix + name
				}
				if names++; !has[i](name) {
					t.Errorf("%s: there is no %s", strings.TrimSpace(cells[0]), name)
				}
			}
		}
	}
	if rows < 14 || names < 60 {
		t.Errorf("the table has only %d rows with %d names", rows, names)
	}
	for i, no := range []string{"pdk.Nothing", "toold::nothing", "toold_nothing", "nothing"} {
		if has[i](no) {
			t.Errorf("%s is there", no)
		}
	}
}

func read(t *testing.T, files ...string) string {
	t.Helper()
	var all strings.Builder
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

func goNames(t *testing.T) func(string) bool {
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				names["pdk."+d.Name.Name] = d.Recv == nil
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						names["pdk."+s.Name.Name] = true
					}
				}
			}
		}
	}
	return func(name string) bool { return names[name] }
}

func rustNames(t *testing.T) func(string) bool {
	lib, types := read(t, "../rust/src/lib.rs"), read(t, "../rust/src/types.rs")
	return func(name string) bool {
		of, name, _ := cutLast(name, "::")
		switch {
		case name == "Err":
			return strings.Contains(lib, "pub type Failure")
		case strings.HasSuffix(name, "!"):
			return strings.Contains(lib, "#[macro_export]\nmacro_rules! "+strings.TrimSuffix(name, "!")+" {")
		case of == "toold":
			return strings.Contains(lib, "\npub fn "+name+"(") || strings.Contains(lib, "\npub mod "+name+";")
		}
		_, methods, _ := strings.Cut(types, "\nimpl "+of+" {")
		methods, _, _ = strings.Cut(methods, "\n}")
		return strings.Contains(methods, "    pub fn "+name+"(")
	}
}

func cNames(t *testing.T) func(string) bool {
	header := read(t, "../c/toold.h")
	return func(name string) bool {
		if field, ok := strings.CutPrefix(name, "."); ok {
			return strings.Contains(header, "\ttoold_str "+field+"; // not empty: the call fails")
		}
		return regexp.MustCompile(`(?m)^(?:TOOLD_FN|TOOLD_FAR|static|#define)\b.*\b` + regexp.QuoteMeta(name) + `[(;]`).MatchString(header)
	}
}

func assemblyScriptNames(t *testing.T) func(string) bool {
	files, err := filepath.Glob("../assemblyscript/assembly/*.ts")
	if err != nil {
		t.Fatal(err)
	}
	sdk := read(t, files...)
	return func(name string) bool {
		of, name, ok := cutLast(name, ".")
		if !ok {
			return strings.Contains(sdk, "\nexport function "+name+"(")
		}
		_, methods, _ := strings.Cut(sdk, "\nexport class "+of+" {")
		methods, _, _ = strings.Cut(methods, "\n}")
		return strings.Contains(methods, "  static "+name+"(")
	}
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// TestAssemblyScript: asc has nothing to say of the SDK, and something is said
// of each of its public names. (rustc sees to that of the Rust SDK, a test of
// package c to that of toold.h.)
func TestAssemblyScript(t *testing.T) {
	files, err := filepath.Glob("../assemblyscript/assembly/*.ts")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`^export (?:class|enum|function|const) (\w+)|^  (?:static )?(\w+)(?:: .* = .*;|: [\w<>, |]+;|\(.*\).*\{.*)$`)
	found := 0
	for _, file := range files {
		if filepath.Base(file) == "index.ts" {
			continue // Only its functions, which all have one.
		}
		class, before := "", ""
		for line := range strings.Lines(read(t, file)) {
			line = strings.TrimRight(line, "\n")
			switch {
			case strings.HasPrefix(line, "export class "), strings.HasPrefix(line, "export enum "):
				class = line
			case line == "}":
				class = ""
			}
			m := declared.FindStringSubmatch(line)
			if m == nil || m[2] != "" && class == "" || slices.Contains([]string{"if", "while", "for", "switch"}, m[2]) {
				before = line
				continue
			}
			if found++; !strings.HasSuffix(strings.TrimSpace(before), "*/") {
				t.Errorf("%s: nothing is said of %s", filepath.Base(file), strings.TrimSpace(line))
			}
			before = line
		}
	}
	if found < 150 {
		t.Errorf("only %d names found", found)
	}
	asc, err := toolchain.Find(t.Context(), toolchain.AssemblyScript, "../assemblyscript")
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(asc, "conformance/guest.ts", "-o", filepath.Join(t.TempDir(), "guest.wasm"))
	cmd.Dir = "../assemblyscript"
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("asc says %s, %v", out, err)
	}
}
