package main_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/pdk/toolchain"
)

var update = flag.Bool("update", false, "write what happens into the documents")

// documents are those whose console blocks are run, in order, as one session.
var documents = []string{"README.md", "docs/getting-started.md", "docs/plugins.md"}

// TestDocuments types the console blocks of each document into one shell, in a
// copy of the checkout, and compares what they print.
func TestDocuments(t *testing.T) {
	t.Parallel()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	scripts := t.TempDir()
	for _, doc := range documents {
		start := sessionStart
		if doc == "docs/plugins.md" {
			if _, err := toolchain.Find(t.Context(), toolchain.C, "."); err != nil {
				t.Logf("%s is not run: %v", doc, err)
				continue
			}
			// Its reader has the programs, and no checkout.
			start += "PATH=$PWD/bin:$PATH; mkdir ../elsewhere; cd ../elsewhere\n"
		}
		text, err := os.ReadFile(filepath.Join(top, doc))
		if err != nil {
			t.Fatal(err)
		}
		commands := consoleBlocks(string(text))
		if len(commands) == 0 {
			t.Fatalf("%s has no console block", doc)
		}
		session := new(strings.Builder)
		for _, c := range commands {
			fmt.Fprintf(session, "printf '%s'\n%s\n", `\036`, c.script())
		}
		script := "checkout\ncd toold\nexec sh ../session.sh\nsame stdout " + filepath.Join(top, doc) +
			"\n\n-- session.sh --\n" + start + session.String() + "exit 0\n"
		name := strings.TrimSuffix(filepath.Base(doc), ".md") + ".txtar"
		if err := os.WriteFile(filepath.Join(scripts, name), []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hosttest.Params(t, testscript.Params{
		Dir: scripts,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"checkout": copyCheckout,
			"same":     same,
		},
	})
}

// sessionStart makes a shell like that of a reader who leaves at the end.
const sessionStart = `exec 2>&1 </dev/null
trap '[ -z "$daemon" ] || { kill $daemon; wait $daemon; }' EXIT
`

// A command is one that a document shows, and what it shows it printing.
type command struct{ cmd, out string }

// consoleBlocks reads the blocks fenced as ```console: lines that begin with
// "$ " are commands, lines that follow a here-document's << go with it, all
// others are output. A block fenced as ```console transcript is one command
// and its output, whatever that looks like.
func consoleBlocks(text string) []command {
	var all []command
	walk(text, func(c command) string {
		all = append(all, c)
		return c.out
	})
	return all
}

// walk calls f with each command and returns text with the outputs that f
// returns.
func walk(text string, f func(command) string) string {
	var out strings.Builder
	var c *command
	flush := func() {
		if c != nil {
			out.WriteString(f(*c))
			c = nil
		}
	}
	in, transcript, here := false, false, ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSuffix(line, "\n")
		switch {
		case !in:
			transcript = trimmed == "```console transcript"
			in = transcript || trimmed == "```console"
			out.WriteString(line)
		case here != "":
			c.cmd += "\n" + trimmed
			if trimmed == here {
				here = ""
			}
			out.WriteString(line)
		case trimmed == "```":
			flush()
			in = false
			out.WriteString(line)
		case strings.HasPrefix(trimmed, "$ ") && !(transcript && c != nil):
			flush()
			c = &command{cmd: trimmed[2:]}
			if m := hereDocument.FindStringSubmatch(trimmed); m != nil {
				here = m[1]
			}
			out.WriteString(line)
		case c != nil:
			c.out += line
		}
	}
	return out.String()
}

var hereDocument = regexp.MustCompile(`<<'?(\w+)'?$`)

// script is the command for a shell that nobody watches: who starts a daemon
// in the background looks when it is ready before going on.
func (c command) script() string {
	if cmd, ok := strings.CutSuffix(c.cmd, " &"); ok {
		return "> daemon.log\n" + cmd + " >> daemon.log 2>errors.log &\ndaemon=$!\nuntil grep -q ^ready daemon.log; do kill -0 $daemon || break; sleep 0.05; done; cat daemon.log"
	}
	return c.cmd
}

// copyCheckout makes toold, a copy of what git knows of the checkout and of
// what make build made there, so that a session can add to it.
func copyCheckout(ts *testscript.TestScript, _ bool, _ []string) {
	top := ts.Getenv("TOOLD")
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = top
	files, err := list.Output()
	ts.Check(err)
	for _, pattern := range []string{"bin/*", "tools.d/*/*.wasm"} {
		made, err := filepath.Glob(filepath.Join(top, pattern))
		ts.Check(err)
		for _, m := range made {
			rel, err := filepath.Rel(top, m)
			ts.Check(err)
			files = append(files, rel+"\x00"...)
		}
	}
	to := ts.MkAbs("toold")
	ts.Check(os.Mkdir(to, 0o755))
	tar := exec.Command("sh", "-c", `tar -C "$0" --null --files-from=- --ignore-failed-read -cf - | tar -C "$1" -xf -`, top, to)
	tar.Stdin = bytes.NewReader(files)
	out, err := tar.CombinedOutput()
	ts.Logf("%s", out)
	ts.Check(err)
	// Whoever reads the document has the go command's own folders.
	for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
		v, err := exec.Command("go", "env", name).Output()
		ts.Check(err)
		ts.Setenv(name, strings.TrimSpace(string(v)))
	}
	ts.Check(hosttest.ShareCompiled(top, filepath.Join(ts.Getenv("HOME"), ".local/state/toold/0")))
	// They call the programs that they built, and know no other daemon.
	for _, name := range []string{"TOOL_SOCKET", "TOOLD_STATE_DIR", "BIN", "TOOLD"} {
		ts.Setenv(name, "")
	}
	ts.Setenv("PATH", os.Getenv("PATH"))
	ts.Setenv("TMPDIR", "/tmp")
	ts.Setenv("XDG_RUNTIME_DIR", ts.MkAbs("run"))
	ts.Check(os.Mkdir(ts.MkAbs("run"), 0o700))
}

// varying is what differs from run to run, and what documents have for it.
var varying = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`/tmp/toold-[0-9]+/script-[A-Za-z-]+`), "/home/you"},
	{regexp.MustCompile(`toold-demo-[0-9]+`), "toold-demo-1"},
	{regexp.MustCompile(`\b[0-9a-f]{7}(\.\.|\b)`), "1f7e9b2$1"},
	{regexp.MustCompile(`\bin [0-9]+\.[0-9] s\b`), "in 9.5 s"},
	{regexp.MustCompile(`(?m)^[1-9][0-9]*$`), "412"},
}

func steady(text string) string {
	for _, v := range varying {
		text = v.re.ReplaceAllString(text, v.with)
	}
	return text
}

// same compares what the commands of a document printed with the document.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: same SESSION DOCUMENT")
	}
	got := strings.Split(ts.ReadFile(args[0]), "\x1e")[1:]
	text, err := os.ReadFile(args[1])
	ts.Check(err)
	n := 0
	should := walk(string(text), func(c command) string {
		n++
		if n > len(got) {
			return c.out
		}
		return steady(got[n-1])
	})
	if n != len(got) {
		ts.Fatalf("the document has %d commands, and %d began", n, len(got))
	}
	if should == string(text) {
		return
	}
	if *update {
		ts.Check(os.WriteFile(args[1], []byte(should), 0o644))
		return
	}
	is := ts.MkAbs("is.md")
	ts.Check(os.WriteFile(is, []byte(should), 0o644))
	diff, _ := exec.Command("diff", "-u", args[1], is).Output()
	ts.Fatalf("the document and what happens differ (mend one, or run go test ./cmd/toolctl -run TestDocuments -update):\n%s", diff)
}

func TestConsoleBlocks(t *testing.T) {
	text := "text\n```console\n$ a\nout\nmore\n$ cat > f <<'EOF'\n$ not a command\nEOF\n```\n$ b\n```sh\n$ c\n```\n```console transcript\n$ d\n$ e\n```\n"
	want := []command{{"a", "out\nmore\n"}, {"cat > f <<'EOF'\n$ not a command\nEOF", ""}, {"d", "$ e\n"}}
	if got := consoleBlocks(text); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := walk(text, func(c command) string { return c.out }); got != text {
		t.Errorf("walking changes the text to %q", got)
	}
}
