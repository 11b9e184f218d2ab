//go:build linux

package process_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

func TestOpenBeneath(t *testing.T) {
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
			f, path, err := process.OpenBeneath(roots, dir)
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
	if n := count(t).fds; n > 60 {
		t.Errorf("%d descriptors are open", n)
	}
}

// What is there outside cannot be told from what is not.
func TestOpenBeneathTellsNothing(t *testing.T) {
	base := t.TempDir()
	must(t, os.Mkdir(base+"/root", 0o755))
	must(t, os.Mkdir(base+"/out", 0o755))
	_, _, there := process.OpenBeneath([]string{base + "/root"}, base+"/out")
	_, _, gone := process.OpenBeneath([]string{base + "/root"}, base+"/tuo")
	if strings.Replace(there.Error(), "/out", "/tuo", 1) != gone.Error() {
		t.Errorf("%v, but %v", there, gone)
	}
}

// A folder that becomes a link and a folder again while runs begin in it is
// one of the two things that it is, and a link out is never followed.
func TestSwappedFolder(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	base := t.TempDir()
	for _, dir := range []string{"root/dir", "root/elsewhere", "out"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	must(t, os.Symlink(base+"/out", base+"/root/link"))
	root, dir := base+"/root", base+"/root/dir"

	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, root+"/link", unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("swap: %v", err)
				return
			}
		}
	})
	ran, refused := 0, 0
	for ran+refused < 200 || (ran == 0 || refused == 0) && ran+refused < 10_000 {
		c := shell(dir, "pwd -P; echo > marker")
		c.Roots = []string{root}
		c.Confine.Off = true // the working folder must hold without it
		var out bytes.Buffer
		c.Stdout = &out
		_, err := r.Run(patient(t), c)
		switch {
		case codeOf(err) == fault.InvalidPayload:
			refused++
		case err != nil:
			t.Fatal(err)
		default:
			ran++
			if got := strings.TrimSpace(out.String()); got != dir && got != root+"/link" {
				t.Fatalf("ran in %s", got)
			}
		}
	}
	close(stop)
	swapping.Wait()
	t.Logf("%d ran, %d refused", ran, refused)
	if ran == 0 || refused == 0 {
		t.Errorf("%d ran, %d refused: the swap was not seen both ways", ran, refused)
	}
	if entries, err := os.ReadDir(base + "/out"); err != nil || len(entries) > 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
}

// A root that was swapped for a link to anywhere is no root any more.
func TestSwappedRoot(t *testing.T) {
	r := newRunner(t, process.Config{Ready: 1})
	base := t.TempDir()
	must(t, os.Symlink("/", base+"/root"))
	c := shell("/etc", "pwd")
	c.Roots = []string{base + "/root"}
	_, err := r.Run(patient(t), c)
	if codeOf(err) != fault.InvalidPayload || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v", err)
	}

	roots, err := process.ResolveRoots([]string{base + "/root"})
	if err != nil || len(roots) != 1 || roots[0] != "/" {
		t.Errorf("%q, %v", roots, err)
	}
	if _, err := process.ResolveRoots([]string{base + "/nothing"}); err == nil {
		t.Error("a root that is missing was resolved")
	}
}
