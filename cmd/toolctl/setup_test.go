package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
)

// setup runs the verb as a person does, without a daemon.
func setup(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	client := filepath.Join(t.TempDir(), "tool-client")
	write(t, client, "#!/bin/sh\n")
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"setup", "--client", client, "--only", "git,curl"}, args...), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// tree is every file beneath dir, with its mode, time and content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text, _ := os.ReadFile(path)
		link, _ := os.Readlink(path)
		b.WriteString(strings.Join([]string{path, info.Mode().String(), info.ModTime().String(), link, string(text)}, " ") + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSetup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "toold")
	code, out, errs := setup(t, dir)
	if code != 0 || !strings.Contains(out, "created  "+filepath.Join(dir, "config/toold.json")) {
		t.Fatalf("code %d, %s%s", code, out, errs)
	}
	for path, perm := range map[string]fs.FileMode{"config/.env": 0o600, "state": 0o700, "sockets": 0o755, "tools/tools.d": 0o755} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || info.Mode().Perm() != perm {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if link, _ := os.Readlink(filepath.Join(dir, "tools/bin/git")); link != "tool-client" {
		t.Errorf("git links to %q", link)
	}
	none := func(string) (string, bool) { return "", false }
	c, err := config.Load(filepath.Join(dir, "config/toold.json"), none)
	if err == nil {
		err = c.Complete(none)
	}
	if err != nil || c.Socket != filepath.Join(dir, "sockets/tool-0.sock") || c.Roots[0] != filepath.Join(dir, "workspace") {
		t.Errorf("the configuration: %v, socket %s, roots %v", err, c.Socket, c.Roots)
	}

	before := tree(t, dir)
	code, out, errs = setup(t, dir)
	if code != 0 || strings.Contains(out, "created") || strings.Contains(out, "changed since") || tree(t, dir) != before {
		t.Errorf("a second time: code %d, %s%s", code, out, errs)
	}

	write(t, filepath.Join(dir, "config/toold.json"), `{"log_level": "debug"}`)
	before = tree(t, dir)
	code, out, errs = setup(t, dir)
	if code != 0 || !strings.Contains(out, "toold.json: changed since, and left as it is") || tree(t, dir) != before {
		t.Errorf("after a change: code %d, %s%s", code, out, errs)
	}
}

func TestSetupRefusesPermissions(t *testing.T) {
	for path, mode := range map[string]fs.FileMode{"config/.env": 0o640, "state": 0o711, "tools/tools.d": 0o775, "sockets": 0o777, "config/toold.json": 0o666} {
		t.Run(path, func(t *testing.T) {
			dir := t.TempDir()
			if code, out, errs := setup(t, dir); code != 0 {
				t.Fatalf("code %d, %s%s", code, out, errs)
			}
			path := filepath.Join(dir, path)
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(dir, "workspace")); err != nil {
				t.Fatal(err)
			}
			before := tree(t, dir)
			code, out, errs := setup(t, dir)
			if code != 1 || out != "" || !strings.Contains(errs, "nothing was made") || !strings.Contains(errs, "chmod ") || !strings.Contains(errs, path) {
				t.Errorf("code %d, %s%s", code, out, errs)
			}
			if tree(t, dir) != before {
				t.Error("something was changed")
			}
		})
	}
}

// TestSetupFollowsNoLinks refuses a link where a file of its own is to be: it would
// write, or have the daemon read, somewhere else.
func TestSetupFollowsNoLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "config/.env")); err != nil {
		t.Fatal(err)
	}
	code, out, errs := setup(t, dir)
	if code != 1 || out != "" || !strings.Contains(errs, "is not a regular file") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	if _, err := os.Lstat(elsewhere); err == nil {
		t.Error("it was written through the link")
	}
}

// TestSetupLeavesForeignPrograms: where a tool's own program is in the place of its
// wrapper, nothing is made.
func TestSetupLeavesForeignPrograms(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tools/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tools/bin/git"), "a program")
	before := tree(t, dir)
	code, out, errs := setup(t, dir)
	if code != 1 || out != "" || !strings.Contains(errs, "nothing was made") || !strings.Contains(errs, "tools/bin/git is in the way") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	if tree(t, dir) != before {
		t.Error("something was made all the same")
	}
}

// TestSetupInHostileFolders makes nothing where somebody else could replace it, and
// takes nothing for a wrapper that is somebody else's.
func TestSetupInHostileFolders(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gives files to another user, as root")
	}
	give := func(t *testing.T, path string) {
		t.Helper()
		if err := os.Lchown(path, 65532, 65532); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, above, dir string)
		want  string
	}{
		{"the folder above is another's", func(t *testing.T, above, dir string) { give(t, above) }, "belongs to user 65532"},
		{"everybody writes to the folder above", func(t *testing.T, above, dir string) { chmod(t, above, 0o777) }, "everybody could replace"},
		{"the folder is another's", func(t *testing.T, above, dir string) { give(t, dir) }, "belongs to user 65532"},
		{"the state is another's", func(t *testing.T, above, dir string) { give(t, filepath.Join(dir, "state")) }, "belongs to user 65532"},
		{"the secrets are another's", func(t *testing.T, above, dir string) { give(t, filepath.Join(dir, "config/.env")) }, "belongs to user 65532"},
		{"the folder is a link", func(t *testing.T, above, dir string) { elsewhere(t, dir) }, "is not a folder"},
		{"the sockets are a link", func(t *testing.T, above, dir string) { elsewhere(t, filepath.Join(dir, "sockets")) }, "is not a folder"},
		{"the wrappers are a link", func(t *testing.T, above, dir string) { elsewhere(t, filepath.Join(dir, "tools/bin")) }, "is not a folder"},
		{"a wrapper leads elsewhere", func(t *testing.T, above, dir string) {
			remove(t, filepath.Join(dir, "tools/bin/git"))
			link(t, "/tmp/tool-client", filepath.Join(dir, "tools/bin/git"))
		}, "tools/bin/git is in the way"},
		{"a wrapper leads up", func(t *testing.T, above, dir string) {
			remove(t, filepath.Join(dir, "tools/bin/git"))
			link(t, "../tool-client", filepath.Join(dir, "tools/bin/git"))
		}, "tools/bin/git is in the way"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			above := t.TempDir()
			dir := filepath.Join(above, "toold")
			if code, out, errs := setup(t, dir); code != 0 {
				t.Fatalf("code %d, %s%s", code, out, errs)
			}
			tt.spoil(t, above, dir)
			before := tree(t, above)
			code, out, errs := setup(t, dir)
			if code != 1 || out != "" || !strings.Contains(errs, "nothing was made") || !strings.Contains(errs, tt.want) {
				t.Errorf("code %d, %s%s", code, out, errs)
			}
			if tree(t, above) != before {
				t.Error("something was changed")
			}
		})
	}
	// The right bytes that another can change any time.
	for name, spoil := range map[string]func(t *testing.T, program string){
		"another's program":   give,
		"a writable program":  func(t *testing.T, program string) { chmod(t, program, 0o777) },
		"a link to another's": func(t *testing.T, program string) { elsewhere(t, program); give(t, program+"-elsewhere") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "toold")
			if code, out, errs := setup(t, dir); code != 0 {
				t.Fatalf("code %d, %s%s", code, out, errs)
			}
			program := filepath.Join(dir, "tools/bin/tool-client")
			spoil(t, program)
			code, out, errs := setup(t, dir)
			info, err := os.Lstat(program)
			if code != 0 || !strings.Contains(out, "updated  "+program) || err != nil || !info.Mode().IsRegular() || !onlyOurs(program) {
				t.Errorf("code %d, %s%s; %v, %v", code, out, errs, info, err)
			}
		})
	}
}

// elsewhere has a link in the place of what is at path.
func elsewhere(t *testing.T, path string) {
	t.Helper()
	if err := os.Rename(path, path+"-elsewhere"); err != nil {
		t.Fatal(err)
	}
	link(t, path+"-elsewhere", path)
}
