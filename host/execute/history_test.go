package execute

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/tools"
)

// fakeRepository answers as "git cat-file --batch" does.
type fakeRepository map[string]string // by name, "TYPE CONTENT"

// add adds a commit and returns its name.
func (f fakeRepository) add(at int, parents ...string) string {
	text := "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n"
	for _, p := range parents {
		text += "parent " + p + "\n"
	}
	text += fmt.Sprintf("author a <a@b> %d +0000\ncommitter a <a@b> %d +0000\n\nx\n", at, at)
	id := objectName("commit", []byte(text), 40)
	f[id] = "commit " + text
	return id
}

func (f fakeRepository) open(t *testing.T) *objects {
	questions, in := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(questions); s.Scan(); {
			kind, text, ok := strings.Cut(f[s.Text()], " ")
			if !ok {
				fmt.Fprintf(out, "%s missing\n", s.Text())
				continue
			}
			fmt.Fprintf(out, "%s %s %d\n%s\n", s.Text(), kind, len(text), text)
		}
		out.Close()
	}()
	t.Cleanup(func() { in.Close(); answers.Close(); <-done })
	return &objects{in: in, out: bufio.NewReader(answers)}
}

// Only a chain of commits whose names are their digests shows that an update is a
// fast-forward, and only a whole history that it is none.
func TestForced(t *testing.T) {
	f := fakeRepository{}
	one := f.add(1)
	two := f.add(2, one)
	side := f.add(3, one)
	merged := f.add(4, side, two)
	tip := f.add(5, merged)
	gone := f.add(1, strings.Repeat("a", 40)) // with a parent that is not here
	young := f.add(9, gone)
	lie := f.add(6, side)
	f[lie] = strings.Replace(f[lie], "parent "+side, "parent "+two, 1) // its name is another's
	late := f.add(7, two)
	text := strings.Replace(strings.TrimPrefix(f[late], "commit "), "parent "+two+"\n", "", 1)
	text = strings.Replace(text, "committer", "parent "+two+"\ncommitter", 1) // where git reads none
	late = objectName("commit", []byte(text), 40)
	f[late] = "commit " + text
	tag := objectName("tag", []byte("object "+two), 40)
	f[tag] = "tag object " + two
	yes, no, unknown := "true", "false", "unknown"
	for _, tt := range []struct{ name, old, new, want string }{
		{"nothing", two, two, no},
		{"a child", one, two, no},
		{"beyond a merge", two, tip, no},
		{"the root", one, tip, no},
		{"backwards", two, one, yes},
		{"beside it", two, side, yes},
		{"history that is cut off", two, young, unknown},
		{"in what is left of it", gone, young, no},
		{"a commit that is not here", one, strings.Repeat("b", 40), unknown},
		{"a commit that lies about its parents", two, lie, unknown},
		{"a parent where there is none", two, late, yes},
		{"a tag", two, tag, unknown},
	} {
		left := 100
		got := unknown
		if b := f.open(t).forced(tt.old, tt.new, &left); b != nil {
			got = fmt.Sprint(*b)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	left := 2
	if b := f.open(t).forced(one, tip, &left); b != nil {
		t.Errorf("beyond its bound: %v", *b)
	}
	for _, answer := range []string{"", "x", tip + " commit 5\n", tip + " commit 99999999999\n", tip + " blob 1\nx\n", two + " commit 1\nx\n", tip + " commit 1\nxx", strings.Repeat("x", 1<<17)} {
		o := &objects{in: io.Discard, out: bufio.NewReader(strings.NewReader(answer))}
		left := 100
		if b := o.forced(one, tip, &left); b != nil {
			t.Errorf("%.50q: %v", answer, *b)
		}
	}
}

func TestGitPlace(t *testing.T) {
	for args, want := range map[string]string{
		"push": "", "-c a=b -C x --no-pager -C y push -C z": "-C x -C y", "--git-dir=a --work-tree b push": "--git-dir=a --work-tree b", "-C": "", "-c push": "", "-c --git-dir=x push --git-dir=y": "",
	} {
		if got := gitPlace(strings.Fields(args)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q", args, got)
		}
	}
	of := func(binary string, exec ...string) string {
		return gitOf(&call.Decided{Pinned: call.Pinned{Tool: &tools.Tool{Binary: binary, Def: &tools.Definition{Capabilities: tools.Capabilities{Exec: exec}}}}})
	}
	if of("/usr/bin/git") != "/usr/bin/git" || of("/usr/bin/gh", "/bin/x", "/opt/git") != "/opt/git" || of("/bin/sh") != "" || of("/bin/sh", "/usr/bin") != "/usr/bin/git" {
		t.Error("it is another git")
	}
}
