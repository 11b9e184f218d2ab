package hosttest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var updateLines = flag.Bool("update-lines", false, "rewrite the tables of docs/wrappers.md from the tables of command lines")

// Lines runs the command lines of a table natively and through the wrapper, in
// two equal copies of a scene, and compares all that comes of them. A table is
//
//	scene NAME [from OTHER]    what follows indented is a script that prepares the scene, natively
//	COMMAND LINE               for sh; run in the folder "work" of the scene
//	COMMAND LINE  => VERDICT   what is known to differ
//
// A line without a verdict comes out the same: output, exit code, files, and
// what servers were asked. The verdicts are
//
//	refused RULE   the policy refuses by that rule, with exit code 126, and with what to do instead; nothing has changed
//	note TEXT      the same, but for lines with TEXT on standard error
//	differs TEXT   something else differs, as TEXT on standard error describes
//	written TEXT   the text of an output or a file differs, with the same meaning and exit code; TEXT is in the documentation only
//	silent TEXT    it differs, without a line about it in every call; TEXT is in the documentation
//
// The lines with a verdict are also a table in docs/wrappers.md.
type Lines struct {
	Tool string
	// Program is the real program, Daemon has the tool.
	Program string
	Daemon  *Daemon
	// Root is beneath a root of the daemon; the scenes are made in it.
	Root string
	// Words are replaced in lines and scripts.
	Words []string
	// Env are variables of both runs, Native and Through those of one alone.
	Env, Native, Through []string
	// Asked, if there are servers, returns the requests to them since its last
	// call.
	Asked func() string
	// Normal, unless it is nil, removes from an output what differs from run to
	// run of the tool itself.
	Normal func(string) string
	// Every is how many lines without a verdict there are to one that is run, for
	// programs that are slow to start. With TOOLD_TEST_LINES=all, as in make lines, and
	// for 0, all are.
	Every int
	// Ignore reports whether a file of a scene is not compared.
	Ignore func(name string) bool
}

type tableLine struct {
	number            int
	scene, line       string
	verdict, verdictS string
}

type lineScene struct{ name, from, script string }

// readLines reads a table.
func readLines(t testing.TB, file string) (scenes []lineScene, rows []tableLine) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known := func(name string) bool {
		return slices.ContainsFunc(scenes, func(s lineScene) bool { return s.name == name })
	}
	for i, line := range strings.Split(string(b), "\n") {
		switch {
		case line == "" || line[0] == '#':
		case strings.HasPrefix(line, "scene "):
			f := strings.Fields(line)
			s := lineScene{name: f[1]}
			if known(s.name) || len(f) == 4 && !known(f[3]) || len(f) != 2 && len(f) != 4 {
				t.Fatalf("%s:%d: %s", file, i+1, line)
			}
			if len(f) == 4 {
				s.from = f[3]
			}
			scenes = append(scenes, s)
		case len(scenes) == 0:
			t.Fatalf("%s:%d: a line before the first scene", file, i+1)
		case line[0] == '\t' || line[0] == ' ':
			scenes[len(scenes)-1].script += strings.TrimSpace(line) + "\n"
		default:
			r := tableLine{number: i + 1, scene: scenes[len(scenes)-1].name}
			var verdict string
			r.line, verdict, _ = strings.Cut(line, "=> ")
			r.line = strings.TrimSpace(r.line)
			r.verdict, r.verdictS, _ = strings.Cut(verdict, " ")
			if r.verdict != "" && (r.verdictS == "" || !slices.Contains([]string{"refused", "note", "differs", "written", "silent"}, r.verdict)) {
				t.Fatalf("%s:%d: no such verdict: %s", file, i+1, verdict)
			}
			rows = append(rows, r)
		}
	}
	return scenes, rows
}

// outcome is all that came of a command line.
type outcome struct {
	stdout, stderr, asked string
	code                  int
	files                 string
}

// Run runs the table, which has at least a number of lines.
func (l *Lines) Run(t *testing.T, file string, least int) {
	scenes, rows := readLines(t, file)
	if len(rows) < least {
		t.Errorf("%s has %d lines, fewer than %d", file, len(rows), least)
	}
	native, wrapped := filepath.Join(t.TempDir(), "bin"), filepath.Join(t.TempDir(), "bin")
	for _, dir := range []string{native, wrapped} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(wrapped, l.Tool), "github.com/toold/toold/cmd/tool-client").CombinedOutput(); err != nil {
		t.Fatalf("build the wrapper: %v\n%s", err, out)
	}
	if err := os.Symlink(l.Program, filepath.Join(native, l.Tool)); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	env := append([]string{"HOME=" + home, "LANG=C.UTF-8"}, l.Env...)
	natively := slices.Concat(env, []string{"PATH=" + native + ":/usr/local/bin:/usr/bin:/bin"}, l.Native)
	through := slices.Concat(env, []string{"PATH=" + wrapped + ":/usr/local/bin:/usr/bin:/bin", "TOOL_SOCKET=" + l.Daemon.Socket}, l.Through)

	// Each copy is made at the same place, one after the other, so that paths
	// are the same too.
	place := filepath.Join(l.Root, "place")
	words := strings.NewReplacer(append(slices.Clone(l.Words), "PLACE", place)...)
	store := filepath.Join(t.TempDir(), "scenes")
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(scene string) {
		if err := os.RemoveAll(place); err != nil {
			t.Fatal(err)
		}
		l.copy(t, filepath.Join(store, scene), place)
	}
	for _, s := range scenes {
		if s.from != "" {
			put(s.from)
		} else if err := os.RemoveAll(place); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(place, "work"), 0o755); err != nil {
			t.Fatal(err)
		}
		if o := l.sh(t, place, natively, "set -e\n"+words.Replace(s.script)); o.code != 0 {
			t.Fatalf("scene %s: exit code %d\n%s%s", s.name, o.code, o.stdout, o.stderr)
		}
		l.copy(t, place, filepath.Join(store, s.name))
	}
	var table strings.Builder
	for i, r := range rows {
		if l.Every > 1 && r.verdict == "" && i%l.Every != 0 && os.Getenv("TOOLD_TEST_LINES") != "all" {
			continue
		}
		t.Run(fmt.Sprintf("%d %s", r.number, r.line), func(t *testing.T) {
			line := words.Replace(r.line)
			put(r.scene)
			before := l.files(t, place)
			var want outcome
			if r.verdict != "refused" {
				want = l.sh(t, place, natively, line)
				put(r.scene)
			}
			got := l.sh(t, place, through, line)
			if why := l.judge(r, before, want, got); why != "" {
				t.Errorf("%s\nnatively, exit code %d:\n%s%s%s\nthrough the wrapper, exit code %d:\n%s%s%s", why, want.code, want.stdout, want.stderr, want.asked, got.code, got.stdout, got.stderr, got.asked)
			}
			if r.verdict != "" {
				fmt.Fprintf(&table, "| `%s` | %s |\n", strings.ReplaceAll(r.line, "|", `\|`), l.said(r, got.stderr))
			}
		})
	}
	if !t.Failed() {
		l.document(t, table.String())
	}
}

// sh runs a line in the folder "work" of the place.
func (l *Lines) sh(t *testing.T, place string, env []string, line string) outcome {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.WaitDelay = time.Second
	cmd.Dir, cmd.Env = filepath.Join(place, "work"), env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	o := outcome{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode(), files: l.files(t, place)}
	if l.Normal != nil {
		o.stdout, o.stderr = l.Normal(o.stdout), l.Normal(o.stderr)
	}
	if l.Asked != nil {
		o.asked = l.Asked()
	}
	return o
}

// judge returns what is wrong with an outcome, or "".
func (l *Lines) judge(r tableLine, before string, want, got outcome) string {
	says := func() string {
		if !strings.Contains(got.stderr, r.verdictS) {
			return "it does not say " + r.verdictS
		}
		return ""
	}
	switch r.verdict {
	case "refused":
		switch {
		case got.code != 126:
			return "it is not refused"
		case !strings.Contains(got.stderr, "denied by rule "+r.verdictS+": "):
			return "it is refused by another rule"
		case !strings.Contains(got.stderr, "; instead: "):
			return "the refusal does not say what to do instead"
		case got.files != before:
			return "it is refused, and files changed:\n" + differing(before, got.files)
		}
		return ""
	case "note":
		var kept []string
		for _, line := range strings.SplitAfter(got.stderr, "\n") {
			if !strings.HasPrefix(line, l.Tool+": ") || !strings.Contains(line, r.verdictS) {
				kept = append(kept, line)
			}
		}
		if why := says(); why != "" {
			return why
		}
		if len(kept) == len(strings.SplitAfter(got.stderr, "\n")) {
			return "there is no note"
		}
		got.stderr = strings.Join(kept, "")
	case "silent":
		if got == want {
			return "nothing differs"
		}
		return ""
	case "written":
		if got == want {
			return "nothing differs"
		}
		got.stdout, got.stderr, got.files = want.stdout, want.stderr, want.files
	case "differs":
		if why := says(); why != "" {
			return why
		}
		if got == want {
			return "nothing differs"
		}
		return ""
	}
	switch {
	case got.code != want.code:
		return "the exit codes differ"
	case got.stdout != want.stdout:
		return "the outputs differ:\n" + differing(want.stdout, got.stdout)
	case got.stderr != want.stderr:
		return "the standard errors differ:\n" + differing(want.stderr, got.stderr)
	case got.asked != want.asked:
		return "servers were asked differently:\n" + differing(want.asked, got.asked)
	case got.files != want.files:
		return "the files differ:\n" + differing(want.files, got.files)
	}
	return ""
}

// said returns the text of a line for docs/wrappers.md.
func (l *Lines) said(r tableLine, stderr string) string {
	text := r.verdictS
	for _, line := range strings.Split(stderr, "\n") {
		if _, after, ok := strings.Cut(line, "denied by rule "+r.verdictS+": "); ok && r.verdict == "refused" {
			text = "refused: " + after
			break
		}
		if r.verdict != "refused" && strings.Contains(line, r.verdictS) {
			text = strings.TrimPrefix(line, l.Tool+": ")
			break
		}
	}
	if before, _, ok := strings.Cut(text, "use one of: "); ok {
		text = before + "use one of those that it lists"
	}
	return strings.NewReplacer("|", `\|`, "<", "&lt;", filepath.Join(l.Root, "place"), "PLACE", l.Root, "ROOT").Replace(text)
}

// document compares the table with the one in docs/wrappers.md.
func (l *Lines) document(t *testing.T, table string) {
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(strings.TrimSpace(string(gomod))), "docs", "wrappers.md")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- lines of "+l.Tool+" -->\n", "<!-- end of "+l.Tool+" -->\n"
	head, rest, ok := strings.Cut(string(b), begin)
	old, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no %q and %q", file, begin, end)
	}
	table = "| line | what the wrapper says |\n| --- | --- |\n" + table
	if old == table {
		return
	}
	if !*updateLines {
		t.Errorf("the table of %s in docs/wrappers.md is not that of the test; run it with -update-lines:\n%s", l.Tool, differing(old, table))
		return
	}
	if err := os.WriteFile(file, []byte(head+begin+table+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (l *Lines) copy(t *testing.T, from, to string) {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}

// files is a line for each file and link of the place, with its text.
func (l *Lines) files(t *testing.T, place string) string {
	var all strings.Builder
	err := filepath.WalkDir(place, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(place, path)
		if l.Ignore != nil && l.Ignore(name) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case e.IsDir():
		case e.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(path)
			fmt.Fprintf(&all, "%s -> %s\n", name, to)
		case e.Type().IsRegular():
			st, err := e.Info()
			if err != nil {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text := string(b)
			if filepath.Base(name) == "index" {
				cmd := exec.Command("git", "ls-files", "-s", "-v")
				cmd.Env = []string{"GIT_INDEX_FILE=" + path, "GIT_DIR=" + filepath.Dir(path), "PATH=/usr/bin:/bin"}
				out, _ := cmd.CombinedOutput()
				text = string(out)
			}
			fmt.Fprintf(&all, "%s %v %q\n", name, st.Mode()&0o111, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// differing are the lines that only one of two texts has.
func differing(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			out.WriteString("- " + line + "\n")
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			out.WriteString("+ " + line + "\n")
		}
	}
	return out.String()
}
