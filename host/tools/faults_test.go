package tools

import (
	"errors"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
)

func TestMain(m *testing.M) {
	if process.IsSupervisor() {
		os.Exit(process.Supervise())
	}
	os.Exit(m.Run())
}

// TestEveryKindHasACode: what the engine can say, a caller can be told.
func TestEveryKindHasACode(t *testing.T) {
	n := 0
	for k := guest.Kind(0); !strings.HasPrefix(k.String(), "Kind("); k++ {
		if f, ok := moduleFaults[k]; !ok || f.code == "" {
			t.Errorf("%s has no code: add it to moduleFaults in faults.go", k)
		}
		n++
	}
	if n != len(moduleFaults) || n < 18 {
		t.Errorf("%d kinds and %d codes", n, len(moduleFaults))
	}
}

// TestExplainProcess: what is wrong with a binary that tool.json names has its code
// and place there too, and so has a refusal that capabilities.exec decides.
func TestExplainProcess(t *testing.T) {
	n := 0
	for k := process.Kind(0); !strings.HasPrefix(k.String(), "Kind("); k++ {
		if _, ok := processFaults[k]; !ok {
			t.Errorf("%s has no code: add it to processFaults in faults.go", k)
		}
		n++
	}
	if n != len(processFaults) || n < 4 {
		t.Errorf("%d kinds and %d codes", n, len(processFaults))
	}
	r, err := process.New(process.Config{Ready: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	if err := os.WriteFile(none, []byte("\x00\x01"), 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(path string) error {
		_, err := r.Run(t.Context(), process.Command{Path: path, Dir: "/", Roots: []string{"/"}, Confine: process.Confine{Off: true}})
		return err
	}
	for _, tt := range []struct {
		err  error
		kind process.Kind
		want string
	}{
		{run("bin/true"), process.NotAbsolute, `TOOL_BROKEN: the binary "bin/true" is not an absolute path; name it in full in tool.json`},
		{run(dir + "/nothing"), process.NotThere, "TOOL_NOT_INSTALLED: run " + dir + "/nothing: it is not on this host; install it, or name another binary in tool.json"},
		{run(dir), process.NotExecutable, "TOOL_BROKEN: run " + dir + ": permission denied; make it executable for toold's user; when it is a script, name its interpreter in capabilities.exec"},
		{run(none), process.NotProgram, "TOOL_BROKEN: run " + none + ": exec format error: it is not a program that this host can run; name another binary in tool.json"},
		{&process.Error{Kind: process.NoUser, Detail: "run x as user 5: toold is not root"}, process.NoUser, "TOOL_BROKEN: run x as user 5: toold is not root; or take user out of tool.json"},
	} {
		t.Run(tt.kind.String(), func(t *testing.T) {
			e, ok := errors.AsType[*process.Error](tt.err)
			if !ok || e.Kind != tt.kind || strings.Contains(e.Error(), "tool.json") {
				t.Fatalf("%v, want %s", tt.err, tt.kind)
			}
			if got := Explain(tt.err); got.Error() != tt.want {
				t.Errorf("got\n  %s, must be\n  %s", got, tt.want)
			}
		})
	}
	for reason, want := range map[string]string{confine.RefusedProgram: "capabilities.exec", confine.RefusedShell: "capabilities.exec", "": "", "its path leads elsewhere": "its path leads elsewhere"} {
		if got := ExplainRefusal(reason); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q is told as %q", reason, got)
		}
	}
}

// TestGrants: each grant of the engine has its capability, and the line that a
// module's author is told gives exactly that one, by the parser and by the
// published schema.
func TestGrants(t *testing.T) {
	schema := compiledToolSchema(t)
	if n := bits.OnesCount8(uint8(guest.AllGrants)); n != len(grants) {
		t.Errorf("%d grants and %d capabilities: add what is missing to grants in faults.go", n, len(grants))
	}
	for i := range bits.Len8(uint8(guest.AllGrants)) {
		g := guest.Grants(1) << i
		line := Granting(g)
		if line == "" {
			t.Errorf("no line of tool.json grants %s: add it to grants in faults.go", g)
			continue
		}
		file := []byte("{" + line + "}")
		d, err := ParseDefinition("tool.json", file)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if got := d.Capabilities.Grants(); got != g {
			t.Errorf("%s grants %q, not %q", line, got, g)
		}
		if err := bySchema(schema, file); err != nil {
			t.Errorf("%s: the schema of tool.json refuses it: %v", line, err)
		}
		if want := `"capabilities": {"` + g.String() + `":`; !strings.HasPrefix(line, want) {
			t.Errorf("%s does not begin with %s: a grant and its capability share a name", line, want)
		}
	}
	if got := (&Capabilities{}).Grants(); got != 0 {
		t.Errorf("nothing grants %s", got)
	}
	if Granting(0) != "" || Granting(guest.GrantExec|guest.GrantHTTP) != "" {
		t.Error("there is a line for what is no grant")
	}
}
