package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

func writeProgram(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// What others can write is no script of a tool.
func TestWritableScript(t *testing.T) {
	b := newFixture(t)
	dir := t.TempDir()
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	writeProgram(t, dir+"/sh", string(sh))
	file := writeProgram(t, dir+"/tool", "#!"+dir+"/sh\n")
	b.write(map[string]string{"t/tool.json": `{"binary": "` + file + `"}`})
	b.open()
	if s := b.status("t"); s.State != StateOK {
		t.Fatalf("%+v", s)
	}
	for _, part := range []string{file, dir + "/sh"} {
		if err := os.Chmod(part, 0o775); err != nil {
			t.Fatal(err)
		}
		b.look("t")
		if s := b.status("t"); s.State != StateStale || !strings.Contains(s.Reason, part+" can be written by others") {
			t.Errorf("%s: %+v", part, s)
		}
		if err := os.Chmod(part, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, release, err := b.c.Acquire(t.Context(), "t"); err != nil {
			t.Error(err)
		} else {
			release()
		}
		if s := b.status("t"); s.State != StateOK {
			t.Errorf("%+v", s)
		}
	}
	b.restart()
	if err := os.Chmod(file, 0o775); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.refused("t", fault.ToolBroken, "chmod go-w")
}

// A root that is added may hold a script that served until then.
func TestRootOverScript(t *testing.T) {
	b := newFixture(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b.write(map[string]string{"t/tool.json": `{"binary": "` + writeProgram(t, dir+"/tool", "#!/bin/sh\n") + `"}`})
	b.open()
	b.c.SetRoots([]string{"/workspace", dir})
	<-b.c.reconcile("t")
	if s := b.status("t"); !strings.Contains(s.Reason, "move it out of the roots") {
		t.Errorf("%+v", s)
	}
	b.c.SetRoots([]string{"/workspace"})
	<-b.c.reconcile("t")
	if s := b.status("t"); s.State != StateOK {
		t.Errorf("%+v", s)
	}
}
