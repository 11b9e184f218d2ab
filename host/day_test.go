package host_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// dayScript is the working day of plugins/git/testdata/day.txt, in root, as a
// shell would be told it. Each call prints its line, its output and its exit
// code.
func dayScript(t *testing.T, root string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(hosttest.ModuleRoot(), "plugins", "git", "testdata", "day.txt"))
	if err != nil {
		t.Fatal(err)
	}
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	lines := func(s string) string { return quote(strings.ReplaceAll(s, `\n`, "\n")) }
	var s strings.Builder
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		name, text, _ := strings.Cut(rest, " ")
		switch verb {
		case "cd":
			fmt.Fprintf(&s, "cd %s\n", quote(filepath.Join(root, rest)))
		case "env":
			name, value, _ := strings.Cut(rest, "=")
			fmt.Fprintf(&s, "export %s=%s\n", name, quote(value))
		case "write":
			fmt.Fprintf(&s, "printf %%s %s >%s\n", lines(text), quote(filepath.Join(root, name)))
		case "append":
			fmt.Fprintf(&s, "printf %%s %s >>%s\n", lines(text), quote(filepath.Join(root, name)))
		case "git", "fails":
			args, stdin, _ := strings.Cut(strings.TrimPrefix(line, "fails "), " <<< ")
			fmt.Fprintf(&s, "echo '--- day.txt:%d'\nprintf %%s %s |", i+1, lines(stdin))
			// Single quotes hold words together; nothing else is special.
			for j, part := range strings.Split(strings.ReplaceAll(args, "ROOT", root), "'") {
				if j%2 == 1 {
					s.WriteString(quote(part))
					continue
				}
				for _, c := range part {
					if c != ' ' && !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
						s.WriteByte('\\')
					}
					s.WriteRune(c)
				}
			}
			// Two pipes keep no order between them.
			s.WriteString(" 2>\"$HOME/err\"\necho \"exit code $?\"\nsed 's/^/err: /' \"$HOME/err\"\n")
		default:
			t.Fatalf("day.txt:%d: unknown verb %q", i+1, verb)
		}
	}
	return s.String()
}

// TestWorkingDay runs the day in a shell, with git alone and then through
// wrapper, socket, policy and confinement: what is said, the exit codes, the
// references and the files come out the same.
func TestWorkingDay(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	run := func(bin string, env ...string) string {
		for _, dir := range []string{"hub.git", "ada", "bob"} {
			if err := os.RemoveAll(filepath.Join(d.Root, dir)); err != nil {
				t.Fatal(err)
			}
		}
		sh := exec.Command("/bin/sh", "-c", dayScript(t, d.Root)+`
cd `+d.Root+`
for r in hub.git ada bob; do /usr/bin/git -c safe.directory='*' -C $r for-each-ref; done
find ada bob -path '*/.git' -prune -o -type f -print | sort | xargs sha256sum`)
		sh.Dir = d.Root
		home := t.TempDir()
		sh.Env = append([]string{"PATH=" + bin + ":/usr/bin:/bin", "HOME=" + home, "LANG=C.UTF-8", "GIT_EDITOR=:", "GIT_SEQUENCE_EDITOR=:"}, env...)
		out, err := sh.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	want := run("/usr/bin")
	got := run(filepath.Dir(wrapper(t, "git")), "TOOL_SOCKET="+d.Socket,
		"TOOL_ENV=GIT_AUTHOR_NAME,GIT_AUTHOR_EMAIL,GIT_AUTHOR_DATE,GIT_COMMITTER_NAME,GIT_COMMITTER_EMAIL,GIT_COMMITTER_DATE")
	// What the policy says beside git, of an editor that would have done nothing.
	got = regexp.MustCompile(`(?m)^err: git: note: .*\n`).ReplaceAllString(got, "")
	if calls := strings.Count(want, "--- day.txt"); calls < 50 || !strings.Contains(want, "exit code 0") {
		t.Fatalf("the day has %d calls:\n%s", calls, want)
	} else {
		t.Logf("%d calls", calls)
	}
	if got == want {
		return
	}
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			from := max(0, i-4)
			t.Fatalf("the day differs. git alone:\n%s\nthrough toold:\n%s", strings.Join(a[from:min(len(a), i+6)], "\n"), strings.Join(b[from:min(len(b), i+6)], "\n"))
		}
	}
	t.Fatalf("%d lines with git alone, %d through toold", len(a), len(b))
}
