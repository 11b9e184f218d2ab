//go:build linux

package process_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/process"
)

// levels are runners of each level of confinement that this system has.
func levels(t *testing.T) map[confine.Level]*process.Runner {
	runners := map[confine.Level]*process.Runner{}
	for level := confine.Landlock; level <= min(confine.Namespaces, confine.Confinement().Level()); level++ {
		if r := newRunner(t, process.Config{Most: level, Ready: 1}); r.Confinement().Level() == level {
			runners[level] = r
		}
	}
	return runners
}

// script writes an executable file.
func script(t *testing.T, path, content string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o755))
	return path
}

// A script is run by the interpreters that come with it, and these run nothing
// else.
func TestScript(t *testing.T) {
	sh, env := confine.Interpreter{Path: "/bin/sh"}, confine.Interpreter{Path: "/usr/bin/env"}
	for level, r := range levels(t) {
		dir, bin := t.TempDir(), t.TempDir()
		script(t, dir+"/other", "echo other $0")
		for _, tt := range []struct {
			name, content, want string
			interpreters        []confine.Interpreter
			// refused is what the run is refused at each level that judges.
			refused string
		}{
			{name: "plain", content: "#!/bin/sh\necho ran $0 $1", want: "ran BIN/plain arg", interpreters: []confine.Interpreter{sh}},
			{name: "again", content: "#!/bin/sh\n[ \"$1\" = again ] && echo $0 again && exit\nexec BIN/again again", want: "BIN/again again", interpreters: []confine.Interpreter{sh}},
			{name: "line", content: "#!/bin/sh\n/bin/sh -c 'echo line'", interpreters: []confine.Interpreter{sh}, refused: "it is a shell"},
			{name: "other", content: "#!/bin/sh\n/bin/sh other", interpreters: []confine.Interpreter{sh}, refused: "it is a shell"},
			{name: "link", content: "#!/bin/sh\nln -s BIN/link ./-c; PATH=; -c 'echo smuggled'", interpreters: []confine.Interpreter{sh}, refused: "leads through a folder that the tool can write"},
			{name: "env", content: "#!/usr/bin/env bash\necho $0 $1", want: "BIN/env arg", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env"}}}},
			{name: "env-line", content: "#!/usr/bin/env bash\nexec bash -c 'echo line'", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-line"}}}, refused: "it is a shell"},
			{name: "env-other", content: "#!/usr/bin/env bash\nexec bash other", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-other"}}}, refused: "it is a shell"},
			{name: "env-longer", content: "#!/usr/bin/env bash\nexec bash BIN/env-longer.more", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-longer"}}}, refused: "it is a shell"},
			{name: "env-none", content: "#!/usr/bin/env bash\nexec bash", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-none"}}}, refused: "it is a shell"},
			{name: "env-env", content: "#!/usr/bin/env bash\nexec /usr/bin/env bash BIN/env-env", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-env"}}}, refused: confine.RefusedProgram},
			{name: "env-link", content: "#!/usr/bin/env bash\nln -s /usr/bin/bash bash; exec ./bash BIN/env-link", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"BIN/env-link"}}}, refused: "it is a shell"},
			{name: "words", content: "#!/usr/bin/env -S bash -e\nfalse\necho ran", interpreters: []confine.Interpreter{env, {Path: "/usr/bin/bash", Args: []string{"-e", "BIN/words"}}}, want: ""},
		} {
			if tt.refused != "" && level < confine.Seccomp {
				continue // where nobody judges
			}
			t.Run(level.String()+"/"+tt.name, func(t *testing.T) {
				c := process.Command{
					Path: script(t, bin+"/"+tt.name, strings.ReplaceAll(tt.content, "BIN", bin)), Args: []string{"arg"},
					Dir: dir, Roots: []string{dir}, Env: []string{"PATH=/usr/bin:/bin"},
					Confine: process.Confine{Write: []string{dir}, Exec: []string{"/usr/bin/ln"}, ShellLines: []string{}},
				}
				defer os.Remove(dir + "/-c")
				for _, i := range tt.interpreters {
					args := i.Args
					if args != nil {
						args = strings.Split(strings.ReplaceAll(strings.Join(args, "\n"), "BIN", bin), "\n")
					}
					c.Confine.Interpreters = append(c.Confine.Interpreters, confine.Interpreter{Path: i.Path, Args: args})
				}
				var out bytes.Buffer
				c.Stdout = &out
				exit, err := r.Run(patient(t), c)
				must(t, err)
				refused := ""
				for _, p := range exit.Programs {
					refused += p.Refused
				}
				got := strings.TrimSpace(out.String())
				switch {
				case tt.refused == "":
					if want := strings.ReplaceAll(tt.want, "BIN", bin); got != want || refused != "" {
						t.Errorf("%q, refused %q, want %q", got, refused, want)
					}
				case got != "" || !strings.Contains(refused, tt.refused):
					t.Errorf("%q, refused %q, want %q", got, refused, tt.refused)
				}
			})
		}
	}
}

// Where the run can replace a script or what runs it, no interpreter is granted.
func TestScriptThatCanBeReplaced(t *testing.T) {
	for level, r := range levels(t) {
		dir, bin := t.TempDir(), t.TempDir()
		shell, err := os.ReadFile("/bin/sh")
		must(t, err)
		must(t, os.WriteFile(dir+"/sh", shell, 0o755))
		must(t, os.Symlink("/bin/sh", dir+"/link-to-sh"))
		must(t, os.Symlink(dir+"/link-to-sh", bin+"/link-to-link"))
		must(t, os.Symlink(script(t, bin+"/safe", "#!/bin/sh\necho ran"), dir+"/link-to-safe"))
		for _, tt := range []struct{ path, interpreter, want string }{
			{bin + "/safe", "/bin/sh", "ran\n"},
			{script(t, dir+"/script", "#!/bin/sh\necho ran"), "/bin/sh", ""},
			{dir + "/link-to-safe", "/bin/sh", ""},
			{script(t, bin+"/a", "#!"+dir+"/sh\necho ran"), dir + "/sh", ""},
			{script(t, bin+"/b", "#!"+dir+"/link-to-sh\necho ran"), dir + "/link-to-sh", ""},
			{script(t, bin+"/c", "#!"+bin+"/link-to-link\necho ran"), bin + "/link-to-link", ""},
			{script(t, bin+"/d", "#!/bin/sh\necho ran"), "/usr/bin", ""},
			{script(t, bin+"/e", "#!/lib64/ld-linux-x86-64.so.2 /bin/echo\n"), "/lib64/ld-linux-x86-64.so.2", ""},
		} {
			c := process.Command{Path: tt.path, Dir: dir, Roots: []string{dir}, Confine: process.Confine{
				Write: []string{dir}, ShellLines: []string{}, Interpreters: []confine.Interpreter{{Path: tt.interpreter}},
			}}
			var out bytes.Buffer
			c.Stdout = &out
			if _, err := r.Run(patient(t), c); out.String() != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("%v: %s by %s: %q, %v", level, tt.path, tt.interpreter, out.String(), err)
			}
		}
		// What it was granted for one script it is not for the next one.
		c := process.Command{Path: bin + "/a", Dir: dir, Roots: []string{dir}, Confine: process.Confine{Write: []string{dir}}}
		if _, err := r.Run(patient(t), c); err == nil || !strings.Contains(err.Error(), unix.EACCES.Error()) {
			t.Errorf("%v: without interpreters: %v", level, err)
		}
	}
}
