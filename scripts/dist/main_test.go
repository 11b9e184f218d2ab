package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// command runs a program and fails the test where it fails.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestTwoFoldersGiveTheSame builds a commit in two checkouts, with another umask
// and another time, and compares all that comes out: an archive with one program, or
// for the platforms that TOOLD_DIST names, as make dist-check does, the whole release.
func TestTwoFoldersGiveTheSame(t *testing.T) {
	whole := os.Getenv("TOOLD_DIST")
	program := filepath.Join(t.TempDir(), "dist")
	command(t, ".", "go", "build", "-o", program, ".")
	made := map[string]string{}
	commit := strings.TrimSpace(command(t, ".", "git", "rev-parse", "HEAD"))
	for i, folder := range []string{"a", "a-longer-name/b"} {
		dir := filepath.Join(t.TempDir(), folder)
		command(t, "../..", "git", "clone", "-q", "--shared", ".", dir)
		command(t, dir, "git", "checkout", "-q", "--detach", commit) // others commit meanwhile
		umask := []string{"022", "077"}[i]
		old := time.Unix(int64(i)*1e8, 0)
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && !strings.Contains(path, "/.git/") {
				os.Chtimes(path, old, old)
			}
			return err
		})
		// One is a worktree, which the go command takes for no checkout.
		if i == 1 {
			command(t, dir, "git", "worktree", "add", "-q", "--detach", dir+"-tree")
			dir += "-tree"
		}
		if whole == "" {
			command(t, dir, "sh", "-c", "umask "+umask+`; exec "$0" -platforms linux/amd64 -programs tool-client out`, program)
		} else {
			// The second with a cache of its own: it takes nothing that the first compiled.
			cache := []string{"", "export GOCACHE=$PWD/.cache/go; "}[i]
			command(t, dir, "sh", "-c", "umask "+umask+"; "+cache+`make -s build && exec "$0" -platforms "$1" out`, program, whole)
		}
		entries, err := os.ReadDir(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		if whole == "" && len(entries) != 3 {
			t.Errorf("%d files, want an archive, a bill of materials and sums: %v", len(entries), entries)
		}
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(dir, "out", e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 && made[e.Name()] != string(data) {
				t.Errorf("%s differs", e.Name())
			}
			made[e.Name()] = string(data)
		}
		command(t, filepath.Join(dir, "out"), "sha256sum", "--check", "SHA256SUMS")
	}
}

// TestDebian makes a package twice and looks at it with dpkg-deb.
func TestDebian(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed")
	}
	r := &release{out: t.TempDir(), compression: "xz", version: "1.2.3-4-gabc", when: time.Unix(1e9, 0)}
	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")
	content := map[string][]byte{"bin/toold": []byte("#!/bin/sh\n"), "man/man1/toolctl.1": nil, "completions/bash/toolctl": nil,
		"tools.d/git/tool.json": nil, "LICENSE": nil, "docs/install.md": nil}
	for _, name := range []string{"toold.service", "toold.socket", "toold-admin.socket", "toold.sysusers.conf", "toold.tmpfiles.conf"} {
		data, err := os.ReadFile("../../deploy/systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		content["deploy/systemd/"+name] = data
	}
	var packages []string
	for range 2 {
		if err := r.debian(t.TempDir(), "all", content); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(r.out, "toold_1.2.3~4~gabc_all.deb"))
		if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, string(data))
	}
	if packages[0] != packages[1] {
		t.Error("the second package differs from the first")
	}
	deb := filepath.Join(r.out, "toold_1.2.3~4~gabc_all.deb")
	list := command(t, ".", "dpkg-deb", "--contents", deb)
	for _, want := range []string{"-rwxr-xr-x root/root", "./usr/bin/toold\n", "./lib/systemd/system/toold.service\n", "./lib/systemd/system/toold.socket\n", "./lib/systemd/system/toold-admin.socket\n", "./usr/lib/sysusers.d/toold.conf\n",
		"./usr/lib/tmpfiles.d/toold.conf\n", "./etc/toold/toold.json\n", "./usr/share/man/man1/toolctl.1\n", "./usr/share/bash-completion/completions/toolctl\n"} {
		if !strings.Contains(list, want) {
			t.Errorf("%q is missing in\n%s", want, list)
		}
	}
	if info := command(t, ".", "dpkg-deb", "--info", deb); !strings.Contains(info, "conffiles") || !strings.Contains(info, "Version: 1.2.3~4~gabc") {
		t.Errorf("info:\n%s", info)
	}
	root := t.TempDir()
	// Scripts look at the machine that they run on: they are tested as scripts.
	for _, script := range []string{postinst, prerm, postrm} {
		cmd := exec.Command("sh", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s\n%s", err, out, script)
		}
	}
	command(t, ".", "dpkg-deb", "--extract", deb, root)
	config, err := os.ReadFile(filepath.Join(root, "etc/toold/toold.json"))
	if err != nil || !json.Valid(config) {
		t.Errorf("toold.json: %v, %s", err, config)
	}
	if info, err := os.Stat(filepath.Join(root, "etc/toold/tools.d")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("tools.d: %v, %v", info, err)
	}
}

// TestForeignFolderIsKept refuses to empty a folder that dist did not make.
func TestForeignFolderIsKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	if err := (&release{out: dir}).make(nil); err == nil || !strings.Contains(err.Error(), "choose another folder") {
		t.Errorf("got %v", err)
	}
	entries, _ := os.ReadDir(dir)
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "thesis" }) {
		t.Error("a file that was there is gone")
	}
}

// TestBill compares the bill of materials with what an archive has.
func TestBill(t *testing.T) {
	info, err := buildinfo.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	// Of the test program, whose libraries go.sum has.
	content := map[string][]byte{"bin/toold": []byte("a program"), "tools.d/git/restricted.wasm": []byte("a module"), "README.md": nil}
	r := &release{version: "1.2.3", when: time.Unix(1e9, 0)}
	text, err := r.bill("toold-1.2.3-linux-amd64", map[string]*debug.BuildInfo{"toold": info}, content)
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		BOMFormat, SpecVersion string
		Components             []struct {
			Type, Name, Version, PURL string
			Hashes                    []struct{ Alg, Content string }
		}
	}
	if err := json.Unmarshal(text, &bom); err != nil || bom.BOMFormat != "CycloneDX" || bom.SpecVersion != "1.5" {
		t.Fatalf("%v in\n%s", err, text)
	}
	files, libraries := map[string]string{}, []string{}
	for _, c := range bom.Components {
		switch c.Type {
		case "file":
			files[c.Name] = c.Hashes[0].Alg + " " + c.Hashes[0].Content
		case "library":
			libraries = append(libraries, c.PURL)
		}
	}
	for path, data := range content {
		want := ""
		if path != "README.md" {
			want = fmt.Sprintf("SHA-256 %x", sha256.Sum256(data))
		}
		if files[path] != want {
			t.Errorf("%s has %q, want %q", path, files[path], want)
		}
	}
	if !slices.Contains(libraries, "pkg:golang/std@"+strings.TrimPrefix(info.GoVersion, "go")) {
		t.Errorf("the compiler is not among %q", libraries)
	}
}

// TestVersionIsChecked: it becomes part of names, and of what the linker is told.
func TestVersionIsChecked(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	for _, v := range []string{"1 -X main.x=y", "../1", "v1"} {
		if err := (&release{version: v, out: t.TempDir()}).make(nil); err == nil || !strings.Contains(err.Error(), "cannot be a version") {
			t.Errorf("%q: %v", v, err)
		}
	}
}
