package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// install runs the verb as a person does, without a daemon.
func install(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"install"}, args...), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestInstall(t *testing.T) {
	client := filepath.Join(t.TempDir(), "tool-client")
	write(t, client, "#!/bin/sh\n")
	dir := filepath.Join(t.TempDir(), "bin")

	code, out, errs := install(t, "--client", client, "--only", "git,curl", dir)
	if code != 0 || strings.Count(out, "linked ") != 2 || !strings.Contains(out, "copied ") {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	if link, _ := os.Readlink(filepath.Join(dir, "git")); link != "tool-client" {
		t.Errorf("git links to %q", link)
	}
	if info, err := os.Stat(filepath.Join(dir, "git")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("git: %v, %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	code, out, _ = install(t, "--client", client, "--only", "git", "--prune", dir)
	if code != 0 || strings.Count(out, "kept ") != 2 || !strings.Contains(out, "removed  "+filepath.Join(dir, "curl")) {
		t.Errorf("a second time: code %d, %s", code, out)
	}
}

func TestInstallReplacesNothingForeign(t *testing.T) {
	client := filepath.Join(t.TempDir(), "tool-client")
	write(t, client, "#!/bin/sh\n")
	for _, tt := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"a program", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "git"), "real git") }},
		{"a link elsewhere", func(t *testing.T, dir string) {
			if err := os.Symlink("/usr/bin/git", filepath.Join(dir, "git")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a folder", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "git"), 0o755); err != nil {
				t.Fatal(err)
			}
		}},
		{"another tool-client", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "tool-client"), "somebody else's") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, dir)
			before, _ := os.ReadDir(dir)
			code, out, errs := install(t, "--client", client, "--only", "curl,git", dir)
			after, _ := os.ReadDir(dir)
			if code != 1 || out != "" || !strings.Contains(errs, "nothing was made") || !strings.Contains(errs, dir) {
				t.Errorf("code %d, %s%s", code, out, errs)
			}
			if len(before) != len(after) {
				t.Errorf("before %v, after %v", before, after)
			}
		})
	}
}

func TestInstallRefusesNames(t *testing.T) {
	client := filepath.Join(t.TempDir(), "tool-client")
	write(t, client, "x")
	for _, name := range []string{"../git", "a/b", ".", "..", "tool-client"} {
		dir := t.TempDir()
		if code, _, errs := install(t, "--client", client, "--only", name, dir); code != 64 {
			t.Errorf("%q: code %d, %s", name, code, errs)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
