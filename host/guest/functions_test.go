package guest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// extismOnly are functions that the PDKs of Extism import, and none of ours.
var extismOnly = []string{
	"length_unsafe", "input_set", "input_offset", "output_length", "output_offset", "error_get", "reset", "memory_bytes",
	"get_log_level", "log_trace",
}

// TestFunctionsEverywhere holds what is not made of the table of functions
// against it: each SDK imports each function, from the module that has it, and
// both pages of the interface list it, with the grant that it needs.
func TestFunctionsEverywhere(t *testing.T) {
	read := func(files ...string) string {
		var all strings.Builder
		for _, file := range files {
			b, err := os.ReadFile("../../" + file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		return all.String()
	}
	goFiles := []string{"pdk/host_wasip1.go", "pdk/io_bulk_wasip1.go"}
	rust, c, as := "pdk/rust/src/host.rs", "pdk/c/toold.h", "pdk/assemblyscript/assembly/host.ts"
	guide, sdk := "docs/plugins.md", "docs/writing-an-sdk.md"
	goSource, rustSource, cSource, asSource := read(goFiles...), read(rust), read(c), read(as)
	guideText, sdkText := read(guide), read(sdk)

	rustBlocks := regexp.MustCompile(`(?s)wasm_import_module = "([^"]+)".*?\n    \}`).FindAllStringSubmatch(rustSource, -1)
	inRust := func(f hostFunc) bool {
		name := regexp.QuoteMeta(f.name)
		return slices.ContainsFunc(rustBlocks, func(block []string) bool {
			return block[1] == f.module && regexp.MustCompile(`fn `+name+`\(|link_name = "`+name+`"`).MatchString(block[0])
		})
	}
	cMacro := map[string]string{envModule: "TOOLD_ENV", userModule: "TOOLD_USER"}
	// A row of the guide's table: functions, module, capability. "load_*" are
	// all that begin so.
	row := regexp.MustCompile("(?m)^\\| (`.*`.*) \\| `(extism:host/\\w+)` \\| (?:`(\\w+)`)? ?\\|$")
	inGuide := func(f hostFunc) bool {
		return slices.ContainsFunc(row.FindAllStringSubmatch(guideText, -1), func(r []string) bool {
			prefix, _, _ := strings.Cut(f.name, "_u")
			return r[2] == f.module && r[3] == f.needs.String() && (strings.Contains(r[1], "`"+f.name+"`") || strings.Contains(r[1], "`"+prefix+"_*`"))
		})
	}
	places := []struct {
		file string
		has  func(f hostFunc) bool
	}{
		{strings.Join(goFiles, " or "), func(f hostFunc) bool {
			return strings.Contains(goSource, "//go:wasmimport "+f.module+" "+f.name+"\n")
		}},
		{rust, inRust},
		{c, func(f hostFunc) bool { return strings.Contains(cSource, "\n"+cMacro[f.module]+"("+f.name+") ") }},
		{as, func(f hostFunc) bool {
			return strings.Contains(asSource, `@external("`+f.module+`", "`+f.name+`")`)
		}},
		{guide + " (the table of functions, with its module and capability)", inGuide},
		{sdk, func(f hostFunc) bool { return regexp.MustCompile("`" + f.name + "[(`]").MatchString(sdkText) }},
	}
	looked := 0
	for _, f := range hostFuncs() {
		if slices.Contains(extismOnly, f.name) {
			continue
		}
		looked++
		for _, p := range places {
			if !p.has(f) {
				t.Errorf("%s of %s is not in %s", f.name, f.module, p.file)
			}
		}
	}
	if looked < 25 {
		t.Errorf("only %d functions were looked at", looked)
	}
	for _, name := range extismOnly {
		if !slices.ContainsFunc(hostFuncs(), func(f hostFunc) bool { return f.name == name }) {
			t.Errorf("%s is in the list of the test, and in no table", name)
		}
	}
	for _, p := range places {
		if p.has(hostFunc{module: envModule, name: "no_such"}) {
			t.Errorf("%s has no_such", p.file)
		}
	}
}

// TestGrantsAreNeeded: each grant has a name, and a function that needs it.
func TestGrantsAreNeeded(t *testing.T) {
	if len(grantNames) == 0 || Grants(1)<<len(grantNames) != endOfGrants {
		t.Errorf("the grants end at %d, and %d have a name", endOfGrants, len(grantNames))
	}
	var needed Grants
	for _, f := range hostFuncs() {
		needed |= f.needs
	}
	if needed != AllGrants {
		t.Errorf("no function needs %s", AllGrants&^needed)
	}
	if got := (GrantState | GrantToolCall).String(); got != "state, tool_call" {
		t.Errorf("two grants are %q", got)
	}
}
