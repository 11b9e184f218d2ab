package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMan writes the pages twice and has man read them, where there is one.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	pages := func() map[string]string {
		dir := filepath.Join(t.TempDir(), "man1")
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"man", dir}, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("code %d, %s", code, errs.String())
		}
		found := map[string]string{}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found[filepath.Base(f)] = string(text)
			if man, err := exec.LookPath("man"); err == nil && filepath.Base(f) == "toolctl-install.1" {
				out, err := exec.Command(man, "--warnings", "-l", f).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "toolctl install --only git,curl ./bin") || strings.Contains(string(out), "warning") {
					t.Errorf("man: %v\n%s", err, out)
				}
			}
		}
		return found
	}
	// A daemon, for what pages are made of; no wrapper is beside this program.
	bin := t.TempDir()
	write(t, filepath.Join(bin, "toold"), "#!/bin/sh\nprintf 'usage: toold [flags]\\n\\nServes -- tools.\\n' >&2\n")
	write(t, filepath.Join(bin, "tool-client"), "#!/bin/sh\nprintf 'usage: tool-client TOOL\\n\\nCalls.\\n'; exit 64\n")
	for _, name := range []string{"toold", "tool-client"} {
		if err := os.Chmod(filepath.Join(bin, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	first, second := pages(), pages()
	if got := first["toold.8"]; !strings.Contains(got, ".SH SYNOPSIS\n.nf\ntoold [flags]\n.fi") || !strings.Contains(got, `Serves \-\- tools.`) {
		t.Errorf("toold.8:\n%s", got)
	}
	if got := first["tool-client.1"]; !strings.Contains(got, "tool\\-client TOOL") {
		t.Errorf("tool-client.1:\n%s", got)
	}
	for _, name := range []string{"toolctl.1", "toolctl-install.1", "toolctl-plugin-inspect.1"} {
		if first[name] == "" || first[name] != second[name] {
			t.Errorf("%s: %d bytes, then %d", name, len(first[name]), len(second[name]))
		}
	}
	if !strings.Contains(first["toolctl.1"], `"1970-01-02"`) {
		t.Error("the date is not that of SOURCE_DATE_EPOCH")
	}
}

func TestManEscapes(t *testing.T) {
	if got := roff(".SH x\n'y\n--a \\b"); got != "\\&.SH x\n\\&'y\n\\-\\-a \\eb" {
		t.Errorf("%q", got)
	}
}

func TestManDateIsChecked(t *testing.T) {
	if _, err := manDate("1x"); err == nil || exitCode(err) != 64 {
		t.Error(err)
	}
}
