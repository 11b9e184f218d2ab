//go:build linux

package beneath_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/fault"
)

func TestOpen(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for _, dir := range []string{"root/a/b", "root2", "root-not", "outside/in"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	must(t, os.WriteFile(base+"/root/file", nil, 0o644))
	must(t, unix.Mkfifo(base+"/root/fifo", 0o600))
	for link, to := range map[string]string{
		"root/inside":       "a/b",
		"root/inside-abs":   base + "/root/a",
		"root/out":          "../outside",
		"root/out-abs":      base + "/outside",
		"root/out-and-in":   "../outside/back",
		"root/up":           "..",
		"root/loop":         "loop",
		"outside/back":      base + "/root/a",
		"link-to-root":      "root",
		"root/to-fifo":      "fifo",
		"root/own-root":     "/proc/self/root",
		"outside/in/deeper": ".",
	} {
		must(t, os.Symlink(to, filepath.Join(base, link)))
	}
	for _, tt := range []struct {
		name  string
		roots string // separated by spaces, beneath base
		dir   string // beneath base, but as it stands after a !
		want  string // "": refused
	}{
		{"the root", "root", "root", "root"},
		{"beneath", "root", "root/a/b", "root/a/b"},
		{"a slash at the end", "root", "root/a/", "root/a"},
		{"dots that stay inside", "root", "root/a/../a/./b", "root/a/b"},
		{"a second root", "root root2", "root2", "root2"},
		{"a root in a root", "root/a root", "root/a/b", "root/a/b"},
		{"a link that stays inside", "root", "root/inside", "root/a/b"},
		{"an absolute link that stays inside", "root", "root/inside-abs", "root/a"},
		{"a link from outside to the inside", "root", "outside/back/b", "root/a/b"},
		{"links out and in again", "root", "root/out-and-in", "root/a"},
		{"a link to the root", "root", "link-to-root/a", "root/a"},

		{"missing", "root", "!", ""},
		{"relative", "root", "!a", ""},
		{"NUL", "root", "!" + base + "/root\x00", ""},
		{"not there", "root", "root/nothing", ""},
		{"a file", "root", "root/file", ""},
		{"a fifo, which must not hang", "root", "root/fifo", ""},
		{"a link to a fifo", "root", "root/to-fifo", ""},
		{"outside", "root", "outside", ""},
		{"above", "root", "", ""},
		{"the top", "root", "!/", ""},
		{"a name that begins like the root's", "root", "root-not", ""},
		{"dots that lead out", "root", "root/../outside", ""},
		{"a link out", "root", "root/out", ""},
		{"a link out and further", "root", "root/out/in", ""},
		{"an absolute link out", "root", "root/out-abs", ""},
		{"a link up", "root", "root/up", ""},
		{"a loop", "root", "root/loop", ""},
		{"a magic link", "root", "root/own-root", ""},
		{"another root than the tool's", "root2", "root/a", ""},
		{"no roots", "", "root", ""},
		{"a root that is missing", "nothing", "root", ""},
		{"a root that is a link", "link-to-root", "root/a", ""},
		{"a root through a link", "root/inside-abs/b", "root/a/b", ""},
		{"a root that is a file", "root/file", "root/a", ""},
		{"a broken root beside a good one", "nothing root", "root/a", "root/a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var roots []string
			for root := range strings.FieldsSeq(tt.roots) {
				roots = append(roots, filepath.Join(base, root))
			}
			dir, ok := strings.CutPrefix(tt.dir, "!")
			if !ok {
				dir = base + "/" + tt.dir
			}
			f, path, err := beneath.Open(roots, dir)
			if err == nil {
				defer f.Close()
			}
			if tt.want == "" {
				if codeOf(err) != fault.InvalidPayload {
					t.Errorf("opened %q, error %v, want INVALID_PAYLOAD", path, err)
				}
				return
			}
			if err != nil || path != filepath.Join(base, tt.want) {
				t.Fatalf("path %q, error %v", path, err)
			}
			got, err := f.Stat()
			must(t, err)
			want, err := os.Stat(path)
			must(t, err)
			if !os.SameFile(got, want) {
				t.Error("the open folder is another one than its path says")
			}
		})
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err != nil || len(fds) > 60 {
		t.Errorf("%d descriptors are open: %v", len(fds), err)
	}
}

// What is there outside cannot be told from what is not.
func TestOpenTellsNothing(t *testing.T) {
	base := t.TempDir()
	must(t, os.Mkdir(base+"/root", 0o755))
	must(t, os.Mkdir(base+"/out", 0o755))
	_, _, there := beneath.Open([]string{base + "/root"}, base+"/out")
	_, _, gone := beneath.Open([]string{base + "/root"}, base+"/tuo")
	if strings.Replace(there.Error(), "/out", "/tuo", 1) != gone.Error() {
		t.Errorf("%v, but %v", there, gone)
	}
}

func TestResolve(t *testing.T) {
	base := t.TempDir()
	must(t, os.Symlink("/", base+"/root"))
	roots, err := beneath.Resolve([]string{base + "/root"})
	if err != nil || len(roots) != 1 || roots[0] != "/" {
		t.Errorf("%q, %v", roots, err)
	}
	if _, err := beneath.Resolve([]string{base + "/nothing"}); err == nil {
		t.Error("a root that is missing was resolved")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// codeOf is the code of err.
func codeOf(err error) fault.Code {
	var e *fault.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}
