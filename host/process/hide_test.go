//go:build linux

package process_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// What is hidden is not read by whatever name, and all else is.
func TestHide(t *testing.T) {
	needLandlock(t, 6)
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	for _, tt := range []struct {
		name string
		// probe is tried in a root. Beside it are a folder state with key and
		// home/own, own being writable, a folder conf with file, other and a
		// link secret to ../vault/a, and a folder vault with a and b.
		probe string
		want  string
	}{
		{"a hidden file", "read ../conf/file", "EACCES"},
		{"in a hidden folder", "read ../state/key", "EACCES"},
		{"a hidden folder itself", "read ../state", "EACCES"},
		{"another's home", "read ../state/home/other/file", "EACCES"},
		{"its own home", "read ../state/home/own/file", "ok"},
		{"write there", "write ../state/home/own/file", "ok"},
		{"beside a hidden file", "read ../conf/other", "ok"},
		{"through a link", "read leads-to-key", "EACCES"},
		{"through the process's own root", "read /proc/self/root/BASE/state/key", "EACCES"},
		{"where a hidden link leads", "read ../vault/a", "EACCES"},
		{"by the hidden link", "read ../conf/secret", "EACCES"},
		{"beside where it leads", "read ../vault/b", "ok"},
		{"what is hidden and not there", "read ../later/file", "ENOENT"},
		{"link it in, to read it here", "link ../state/key new", "EXDEV"},
		{"move it in", "rename ../state/key new", "EACCES"},
		{"the way there", "read ..", "EACCES"},
		{"the system", "read /etc/passwd", "ok"},
		{"a folder of the system", "read /usr/bin", "EISDIR"},
		{"what is written in a hidden folder", "watch ../state", "EACCES"},
		{"what is written in another's home", "watch ../state/home/other", "EACCES"},
		{"who writes a hidden file", "watch ../conf/file", "EACCES"},
		{"what is written on the way there", "watch ..", "EACCES"},
		{"what is written there, through a link", "watch leads-to-key", "EACCES"},
		{"what is written in its own home", "watch ../state/home/own", "ok"},
		{"what is written here", "watch .", "ok"},
		{"what is written elsewhere", "watch /etc", "ok"},
		{"its own program", "exec SELF " + probeArg + " read in", "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			in := filepath.Join(base, "in")
			for _, dir := range []string{"in", "state", "state/home", "state/home/own", "state/home/other", "conf", "vault"} {
				must(t, os.Mkdir(filepath.Join(base, dir), 0o755))
			}
			for _, file := range []string{"in/in", "state/key", "state/home/own/file", "state/home/other/file", "conf/file", "conf/other", "vault/a", "vault/b"} {
				must(t, os.WriteFile(filepath.Join(base, file), []byte("x"), 0o644))
			}
			must(t, os.Symlink("../state/key", in+"/leads-to-key"))
			must(t, os.Symlink("../vault/a", base+"/conf/secret"))
			exe, err := os.Executable()
			must(t, err)
			c := probing(t, in, strings.Fields(strings.NewReplacer("SELF", exe, "/BASE/", base+"/").Replace(tt.probe))...)
			c.Confine.Write = []string{in, base + "/state/home/own"}
			c.Confine.Hide = []string{base + "/state", base + "/conf/file", base + "/conf/secret", base + "/later/file"}
			if got := say(t, r, c); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.probe, got, tt.want)
			}
			if strings.HasPrefix(tt.want, "E") && tt.want != "ENOENT" && tt.want != "EISDIR" {
				c.Confine.Hide = nil
				if got := say(t, r, c); got == tt.want && !strings.HasPrefix(tt.probe, "link") && !strings.HasPrefix(tt.probe, "rename") {
					t.Errorf("%s: %s as well where nothing is hidden: this shows nothing", tt.probe, got)
				}
			}
		})
	}
}

// A supervisor keeps the rules of its last run: they follow what changes.
func TestHideFollowsChanges(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1, Max: 1})
	base := t.TempDir()
	in := base + "/in"
	for _, dir := range []string{"in", "way", "way/state", "one", "two"} {
		must(t, os.Mkdir(filepath.Join(base, dir), 0o755))
	}
	for _, file := range []string{"way/state/key", "one/secret", "two/secret"} {
		must(t, os.WriteFile(filepath.Join(base, file), []byte("x"), 0o644))
	}
	must(t, os.Symlink("one", base+"/current"))
	hide := []string{base + "/way/state", base + "/current/secret", base + "/way/later"}
	read := func(file, want string) {
		t.Helper()
		c := probing(t, in, "read", file)
		c.Confine.Hide = hide
		if got := say(t, r, c); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
	read("../way/state/key", "EACCES")
	read("../way/new", "ENOENT")
	must(t, os.WriteFile(base+"/way/new", []byte("x"), 0o644))
	read("../way/new", "ok")
	must(t, os.WriteFile(base+"/way/later", []byte("x"), 0o644))
	read("../way/later", "EACCES")
	must(t, os.Rename(base+"/way/new", base+"/way/moved"))
	must(t, os.Rename(base+"/way/state", base+"/way/aside")) // is not what is hidden
	read("../way/moved", "ok")
	must(t, os.Mkdir(base+"/way/state", 0o755))
	must(t, os.WriteFile(base+"/way/state/key", []byte("y"), 0o644))
	read("../way/state/key", "EACCES")

	read("../one/secret", "EACCES")
	read("../two/secret", "ok")
	must(t, os.Symlink("two", base+"/next"))
	must(t, os.Rename(base+"/next", base+"/current"))
	read("../two/secret", "EACCES")
	read("../one/secret", "ok")

	hide = hide[:1]
	read("../two/secret", "ok")
	hide = nil
	read("../way/state/key", "ok")
}

// Where too much lies beside the way, nothing of it is read, and not all.
func TestHideInAFullFolder(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	base := t.TempDir()
	in := base + "/in"
	for _, dir := range []string{in, base + "/way", base + "/way/state"} {
		must(t, os.Mkdir(dir, 0o755))
	}
	for i := range 1100 {
		must(t, os.WriteFile(fmt.Sprintf("%s/way/%d", base, i), nil, 0o644))
	}
	must(t, os.WriteFile(base+"/way/state/key", nil, 0o644))
	for file, want := range map[string]string{"../way/7": "EACCES", "../way/state/key": "EACCES", "in": "ENOENT", "/etc/passwd": "ok"} {
		c := probing(t, in, "read", file)
		c.Confine.Hide = []string{base + "/way/state"}
		if got := say(t, r, c); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

func TestHideMustBeAbsolute(t *testing.T) {
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1})
	c := probing(t, t.TempDir(), "read", ".")
	c.Confine.Hide = []string{"state"}
	if _, err := r.Run(patient(t), c); codeOf(err) != fault.ToolBroken {
		t.Errorf("error %v", err)
	}
}

// What a supervisor keeps of its last runs is about files that were there then:
// it follows when they are replaced.
func TestConfinementFollowsReplacedFiles(t *testing.T) {
	needLandlock(t, 2)
	r := newRunner(t, process.Config{Most: confine.Seccomp, Ready: 1, Max: 1})
	base := t.TempDir()
	exe, err := os.Executable()
	must(t, err)
	program, err := os.ReadFile(exe)
	must(t, err)
	replace := func() {
		must(t, os.WriteFile(base+"/new", program, 0o755))
		must(t, os.Rename(base+"/new", base+"/tool"))
	}
	for range 2 {
		must(t, os.Mkdir(base+"/in", 0o755))
		replace()
		for range 2 {
			c := probing(t, base+"/in", "exec", base+"/tool", probeArg, "create", fmt.Sprint("file", newMark()))
			c.Confine.Exec = []string{base + "/tool"}
			if got := say(t, r, c); got != "ok" {
				t.Errorf("got %s", got)
			}
		}
		must(t, os.RemoveAll(base+"/in"))
	}

	// A folder that may be written, and is another now.
	for _, dir := range []string{"/in", "/home", "/out"} {
		must(t, os.Mkdir(base+dir, 0o755))
	}
	write := func() (string, error) {
		var out strings.Builder
		c := probing(t, base+"/in", "create", base+"/home/"+newMark())
		c.Confine.Write = append(c.Confine.Write, base+"/home")
		c.Stdout = &out
		_, err := r.Run(patient(t), c)
		return strings.TrimSpace(out.String()), err
	}
	if got, err := write(); got != "ok" {
		t.Errorf("%s, %v", got, err)
	}
	must(t, os.Rename(base+"/home", base+"/was"))
	must(t, os.Symlink(base+"/out", base+"/home"))
	if got, err := write(); codeOf(err) != fault.ToolBroken {
		t.Errorf("through a link: %s, %v", got, err)
	}

	// What is kept is bounded: so are descriptors.
	pid := childrenOf(t, os.Getpid())[0]
	fds := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Skip("the supervisor's descriptors cannot be counted by this user: ", err)
		}
		return len(list)
	}
	var before int
	for i := range 40 {
		c := probing(t, base+"/in", "read", "/etc/passwd")
		c.Confine.Exec = []string{fmt.Sprintf("/bin/none-%d", i)}
		if got := say(t, r, c); got != "ok" {
			t.Fatal(got)
		}
		if i == 20 {
			before = fds()
		}
	}
	// Two may be there or not: those of the filters of the last run and of the
	// next one.
	if after := fds(); after > before+2 {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}
