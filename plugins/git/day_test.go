package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// step is one line of testdata/day.txt.
type step struct {
	line  int
	verb  string // cd, env, write, append, git or fails
	args  []string
	stdin string
}

func day(t testing.TB, root string) []step {
	b, err := os.ReadFile("testdata/day.txt")
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	for i, line := range strings.Split(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		s := step{line: i + 1}
		s.verb, line, _ = strings.Cut(line, " ")
		switch s.verb {
		case "cd", "env":
			s.args = []string{line}
		case "write", "append":
			name, text, _ := strings.Cut(line, " ")
			s.args = []string{name, strings.ReplaceAll(text, `\n`, "\n")}
		case "fails", "git":
			if s.verb == "fails" {
				line = strings.TrimPrefix(line, "git ")
			}
			line, stdin, _ := strings.Cut(line, " <<< ")
			s.stdin = strings.ReplaceAll(stdin, `\n`, "\n")
			s.args = fields(strings.ReplaceAll(line, "ROOT", root))
		default:
			t.Fatalf("day.txt:%d: unknown verb %q", i+1, s.verb)
		}
		steps = append(steps, s)
	}
	return steps
}

// fields splits at spaces outside of single quotes.
func fields(line string) []string {
	var out []string
	var word strings.Builder
	quoted, any := false, false
	for _, c := range line {
		switch {
		case c == '\'':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if any {
				out = append(out, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(c)
			any = true
		}
	}
	if any {
		out = append(out, word.String())
	}
	return out
}

// runDay runs the day in b with call, and answers its transcript.
func runDay(t *testing.T, b *box, call func(cwd string, env map[string]string, s step) (string, int)) string {
	var transcript strings.Builder
	cwd, env := ".", make(map[string]string)
	for _, s := range day(t, b.ws) {
		switch s.verb {
		case "cd":
			cwd = s.args[0]
		case "env":
			name, value, _ := strings.Cut(s.args[0], "=")
			env[name] = value
		case "write":
			if err := os.WriteFile(filepath.Join(b.ws, s.args[0]), []byte(s.args[1]), 0o644); err != nil {
				t.Fatal(err)
			}
		case "append":
			f, err := os.OpenFile(filepath.Join(b.ws, s.args[0]), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(f, s.args[1])
			f.Close()
		default:
			out, code := call(cwd, env, s)
			fmt.Fprintf(&transcript, "%d: git %q: %d\n%s\n", s.line, s.args, code, out)
			if (code != 0) != (s.verb == "fails") {
				t.Errorf("day.txt:%d: git %q: exit code %d\n%s", s.line, s.args, code, out)
			}
		}
	}
	return strings.ReplaceAll(transcript.String(), b.dir, "DIR")
}

// state is all references and files of the repositories of the day.
func (b *box) state() string {
	var s strings.Builder
	for _, repo := range []string{"hub.git", "ada", "bob"} {
		out, err := b.plain(repo, nil, "", "for-each-ref")
		if err != nil {
			b.t.Fatalf("%v: %s", err, out)
		}
		s.WriteString(repo + "\n" + out)
		for path, sum := range tree(b.t, filepath.Join(b.ws, repo)) {
			if rel, _ := filepath.Rel(b.ws, path); !strings.Contains(rel, ".git/") && repo != "hub.git" {
				s.WriteString(rel + " " + sum + "\n")
			}
		}
	}
	lines := strings.Split(s.String(), "\n")
	// Order within a repository does not matter.
	return strings.Join(sorted(lines), "\n")
}

// TestDay shows that a working day comes out the same with the policy, under
// confinement, as with git alone.
func TestDay(t *testing.T) {
	needGit(t)
	m := model(t)
	runner := newRunner(t)
	direct := newBox(t, m, runner)
	want := runDay(t, direct, func(cwd string, env map[string]string, s step) (string, int) {
		more := map[string]string{"GIT_EDITOR": ":", "GIT_SEQUENCE_EDITOR": ":"} // There is no terminal to edit on.
		for k, v := range env {
			more[k] = v
		}
		return direct.plainCode(cwd, more, s.stdin, s.args...)
	})
	through := newBox(t, m, runner)
	p := testPolicy(nil)
	calls := 0
	got := runDay(t, through, func(cwd string, env map[string]string, s step) (string, int) {
		calls++
		out, code, d := through.call(p, true, cwd, env, s.stdin, s.args...)
		if d.Effect != abi.Allow {
			t.Errorf("day.txt:%d: git %q is refused by %s: %s; %s", s.line, s.args, d.Rule, d.Reason, d.Instead)
		} else if *d.Stdin != (s.stdin != "") {
			t.Errorf("day.txt:%d: git %q: wants input: %v", s.line, s.args, *d.Stdin)
		}
		return out, code
	})
	if got != want {
		t.Errorf("the day differs:\n%s", firstDifference(want, got))
	}
	if a, b := direct.state(), through.state(); a != b {
		t.Errorf("repositories differ:\n%s", firstDifference(a, b))
	}
	t.Logf("%d calls", calls)
}

func firstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			from := max(0, i-3)
			return "git alone:\n" + strings.Join(la[from:min(len(la), i+5)], "\n") + "\nthrough the policy:\n" + strings.Join(lb[from:min(len(lb), i+5)], "\n")
		}
	}
	return fmt.Sprintf("%d and %d lines", len(la), len(lb))
}
