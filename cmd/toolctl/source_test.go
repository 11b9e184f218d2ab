package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toold/toold/host/strictjson"
)

// shop makes a catalogue with the tool t, of files, and says the same of it.
func shop(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	c := catalogue{Tools: map[string]map[string]string{"t": {}}}
	for name, text := range files {
		path := filepath.Join(dir, "t", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
		c.Tools["t"][name] = digestOf([]byte(text))
	}
	list(t, dir, c)
	return dir
}

func list(t *testing.T, dir string, c catalogue) {
	t.Helper()
	text, err := c.text()
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, catalogueFile), string(text))
}

// TestHostileCatalogue adds nothing, and writes nothing anywhere, whatever the catalogue
// is made of.
func TestHostileCatalogue(t *testing.T) {
	const def = `{"binary": "/bin/true"}`
	sum := digestOf([]byte(def))
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  string
	}{
		{"a path out of it", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "evil"), def)
			list(t, dir, catalogue{map[string]map[string]string{"t": {"../evil": sum}}})
		}, "cannot be the name of a file"},
		{"an absolute path", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {"/etc/passwd": sum}}})
		}, "cannot be the name of a file"},
		{"a path with a backslash", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {`..\evil`: sum}}})
		}, "cannot be the name of a file"},
		{"its own record", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {addedFile: sum}}})
		}, "cannot be the name of a file"},
		{"what an update makes", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json" + keptSuffix: sum}}})
		}, "cannot be the name of a file"},
		{"a tool with a path for a name", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json": sum}, "../t": {"tool.json": sum}}})
		}, "cannot be the name of a tool"},
		{"a link out of it", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "t/tool.json"))
			other := filepath.Join(t.TempDir(), "secret")
			write(t, other, def)
			link(t, other, filepath.Join(dir, "t/tool.json"))
		}, "is not a regular file"},
		{"a link within it", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "t/tool.json"))
			write(t, filepath.Join(dir, "t/other"), def)
			link(t, "other", filepath.Join(dir, "t/tool.json"))
		}, "is not a regular file"},
		{"a folder that is a link", func(t *testing.T, dir string) {
			if err := os.Rename(filepath.Join(dir, "t"), filepath.Join(dir, "u")); err != nil {
				t.Fatal(err)
			}
			link(t, "u", filepath.Join(dir, "t"))
		}, "is not a folder"},
		{"a pipe", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "t/tool.json"))
			if err := syscall.Mkfifo(filepath.Join(dir, "t/tool.json"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "is not a regular file"},
		{"a device", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "t/tool.json"))
			if err := syscall.Mknod(filepath.Join(dir, "t/tool.json"), syscall.S_IFCHR|0o644, 1<<8|5); err != nil {
				t.Skipf("make a device: %v", err)
			}
		}, "is not a regular file"},
		{"a huge file", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "t/tool.json"), maxToolFile+1); err != nil {
				t.Fatal(err)
			}
		}, "it is larger than 64MiB"},
		{"a huge list", func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, catalogueFile), 1<<40); err != nil {
				t.Fatal(err)
			}
		}, "it is larger than 1MiB"},
		{"too many files", func(t *testing.T, dir string) {
			files := map[string]string{}
			for i := range maxToolFiles + 1 {
				files["f"+strings.Repeat("x", i)] = sum
			}
			list(t, dir, catalogue{map[string]map[string]string{"t": files}})
		}, "has 65 files"},
		{"a sum that lies", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "t/tool.json"), def+" ") }, "is not what the catalogue says"},
		{"no sum", func(t *testing.T, dir string) {
			list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json": ""}}})
		}, "write 64 digits"},
		{"a name twice", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, catalogueFile), `{"tools": {"t": {"tool.json": "`+sum+`"}, "t": {"x": "`+sum+`"}}}`)
		}, "catalogue.json"},
		{"a definition that is none", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "t/tool.json"), `{"binray": 1}`)
			list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json": digestOf([]byte(`{"binray": 1}`))}}})
		}, "read the definition of tool t"},
		{"a list that is a link", func(t *testing.T, dir string) {
			file := filepath.Join(dir, catalogueFile)
			if err := os.Rename(file, file+"2"); err != nil {
				t.Fatal(err)
			}
			link(t, file+"2", file)
		}, "is not a regular file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := shop(t, map[string]string{"tool.json": def})
			tt.spoil(t, dir)
			into := t.TempDir()
			code, out, errs := ctl(t, "tools", "add", "t", "--yes", "--from", dir, "--tools", into)
			if code != 1 || !strings.Contains(errs, tt.want) {
				t.Errorf("code %d, want %q in\n%s%s", code, tt.want, out, errs)
			}
			if left, _ := os.ReadDir(into); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

// TestHostileRepository reads a commit whose files are links and paths that a checkout
// would be led astray by.
func TestHostileRepository(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	dir := shop(t, map[string]string{"tool.json": `{"binary": "/bin/true"}`})
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	remove(t, filepath.Join(dir, "t/tool.json"))
	link(t, "/etc/passwd", filepath.Join(dir, "t/tool.json"))
	// Read as text, it would have the sum that is said.
	list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json": digestOf([]byte("/etc/passwd"))}}})
	write(t, filepath.Join(dir, ".gitattributes"), "* filter=evil\n")
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "one")
	into := t.TempDir()
	code, out, errs := ctl(t, "tools", "add", "t", "--yes", "--from", "file://"+dir, "--tools", into)
	if code != 1 || !strings.Contains(errs, "is not a regular file") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	if left, _ := os.ReadDir(into); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// TestHostileAddress reads nothing of an address that would run a program, that is not
// sealed, or that gives something else than was asked for.
func TestHostileAddress(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	t.Chdir(t.TempDir())
	dir := shop(t, map[string]string{"tool.json": `{"binary": "/bin/true"}`})
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "one")
	list(t, dir, catalogue{map[string]map[string]string{"t": {"tool.json": strings.Repeat("0", 64)}}})
	git("commit", "-qam", "a sum that lies")
	// A file of 65 MiB that is small on the way.
	if err := os.Truncate(filepath.Join(dir, "t/tool.json"), maxToolFile+1); err != nil {
		t.Fatal(err)
	}
	git("commit", "-qam", "a file that grows")
	head := git("rev-parse", "HEAD")
	for _, tt := range []struct{ address, commit, want string }{
		{"ext::sh -c touch% PWNED", "", "not allowed"},
		{"ext::git-upload-pack " + dir, "", "not allowed"},
		{"--upload-pack=touch PWNED;://x", "", "open the catalogue"},
		{"-oProxyCommand=touch PWNED:x", "", "open the catalogue"},
		{"ssh://-oProxyCommand=touch%20PWNED/x", "", "open the catalogue"},
		{"git://127.0.0.1/x", "", "not allowed"},
		{"http://127.0.0.1:1/x", "", "not allowed"},
		{"file://" + dir, head[:12], "all of its 40 digits"},
		{"file://" + dir, "HEAD", "all of its 40 digits"},
		{"file://" + dir, strings.Repeat("0", 40), "git fetch"},
		{"file://" + dir, git("rev-parse", "HEAD^{tree}"), "git "},
		{"file://" + dir, git("rev-parse", "HEAD^"), "is not what the catalogue says"},
		{"file://" + dir, head, "it is larger than 64MiB"},
	} {
		into := t.TempDir()
		args := []string{"tools", "add", "t", "--yes", "--from=" + tt.address, "--tools", into}
		if tt.commit != "" {
			args = append(args, "--commit", tt.commit)
		}
		code, out, errs := ctl(t, args...)
		if code == 0 || !strings.Contains(errs, tt.want) {
			t.Errorf("%s %s: code %d, want %q in\n%s%s", tt.address, tt.commit, code, tt.want, out, errs)
		}
		if left, _ := os.ReadDir(into); len(left) > 0 {
			t.Errorf("%s: it left %v", tt.address, left)
		}
	}
	if _, err := os.Lstat("PWNED"); err == nil {
		t.Error("an address ran a program")
	}
}

// TestRightsHideNothing prints what a definition says so that it cannot be passed over:
// no line breaks, no moves of the cursor, no look-alikes, and members not known to be
// harmless as they are.
func TestRightsHideNothing(t *testing.T) {
	text, err := json.Marshal(map[string]any{
		"binary":      "/bin/true",
		"environment": map[string]string{"A": "x\x1b[2K\r\n\u202ey"},
		"callbacks":   []string{"hooks"}, "terminal": true, "roots": []string{"/"},
		"config": map[string]string{"protected": ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := rightsOf("t", map[string][]byte{"tool.json": text, "setup.sh": nil})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(lines, "\n")
	if strings.ContainsAny(all, "\x1b\r\u202e") {
		t.Errorf("%q", all)
	}
	for _, want := range []string{"environment ", "callbacks ", "terminal ", `roots                  ["/"]`, "config ", "setup.sh ", "policy                 none"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
}

// FuzzCatalogue reads a list that others wrote: what it admits stays in the tool's folder.
func FuzzCatalogue(f *testing.F) {
	f.Add([]byte(`{"tools": {"t": {"tool.json": "` + strings.Repeat("0", 64) + `"}}}`))
	f.Add([]byte(`{"tools": {"..": {"../x": ""}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c catalogue
		if c.parse(text) != nil {
			return
		}
		if err := strictjson.Check(text); err != nil {
			t.Fatal(err)
		}
		for name, files := range c.Tools {
			for file := range files {
				if !filepath.IsLocal(name) || !filepath.IsLocal(file) || strings.HasPrefix(file, ".") || filepath.Clean(file) != file {
					t.Fatalf("%q of %q is admitted", file, name)
				}
			}
		}
	})
}

func ctl(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}
