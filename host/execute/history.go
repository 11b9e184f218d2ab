package execute

import (
	"bufio"
	"bytes"
	"container/heap"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/pdk/abi"
)

// Bounds on reading the history of what is pushed.
const (
	maxHistory     = 50_000  // commits that are looked at, for all references together
	maxCommit      = 1 << 20 // bytes of one
	historyTimeout = 5 * time.Second
)

// judgeForce determines whether the updates of refs are forced, for those where that
// is not known yet. It has git read the repository of d's call, which is not trusted.
// So an object counts only if its digest is its name: if a chain of such commits
// leads from the new one to the old one, the old one is in the history of the new
// one, whoever wrote the repository. What cannot be determined stays null.
func (e *Executor) judgeForce(ctx context.Context, d *call.Decided, refs []abi.WireRef) {
	if !slices.ContainsFunc(refs, func(r abi.WireRef) bool { return r.Force == nil }) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	o, end := e.openObjects(ctx, d)
	if o == nil {
		return
	}
	defer end()
	left := maxHistory
	for i := range refs {
		if r := &refs[i]; r.Force == nil {
			r.Force = o.forced(r.Old, r.New, &left)
		}
	}
}

// objects reads the objects of a repository from a running git.
type objects struct {
	in  io.Writer
	out *bufio.Reader
	bad bool // its answer was malformed
}

// openObjects starts git in the repository of d's call, or returns nil if it cannot.
// That git can write nothing, reach no network and read no secret.
func (e *Executor) openObjects(ctx context.Context, d *call.Decided) (o *objects, end func()) {
	git := gitOf(d)
	if git == "" || d.Cwd == "" {
		return nil, nil
	}
	home, err := makeHome(e.Config.Config().State, &d.Pinned)
	if err != nil {
		return nil, nil
	}
	confine := e.confine(&d.Pinned, home, []string{git})
	confine.Show = append(slices.Clone(confine.Show), confine.Write...)
	confine.Write = nil
	args := []string{"-c", "safe.directory=*", "-c", "core.fsmonitor=false", "--no-replace-objects"}
	args = append(append(args, gitPlace(d.Args)...), "cat-file", "--batch")
	questions, in := io.Pipe()
	answers, out := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := e.Runner.Run(ctx, process.Command{
			Path: git, Args: args, Dir: d.Cwd, Roots: d.Roots,
			Env:   []string{"PATH=" + binaryPath, "HOME=" + home, "LANG=C.UTF-8", "GIT_NO_LAZY_FETCH=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0"},
			Stdin: questions, Stdout: out, Stderr: io.Discard,
			Confine: confine,
		})
		if err == nil {
			err = io.EOF
		}
		out.CloseWithError(err)
		questions.CloseWithError(err)
	}()
	return &objects{in: in, out: bufio.NewReader(answers)}, func() {
		cancel()
		in.Close()
		answers.Close()
		<-done
	}
}

// gitOf returns the git that the tool of d may execute, or an empty path.
func gitOf(d *call.Decided) string {
	for _, path := range append([]string{d.Tool.Binary}, d.Tool.Def.Capabilities.Exec...) {
		if filepath.Base(path) == "git" {
			return path
		}
	}
	if slices.Contains(d.Tool.Def.Capabilities.Exec, "/usr/bin") {
		return "/usr/bin/git"
	}
	return ""
}

// gitPlace returns those arguments of git before the subcommand that locate its
// repository.
func gitPlace(args []string) (place []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-C" || a == "--git-dir" || a == "--work-tree":
			if i+1 < len(args) {
				place = append(place, a, args[i+1])
			}
			i++
		case strings.HasPrefix(a, "--git-dir=") || strings.HasPrefix(a, "--work-tree="):
			place = append(place, a)
		case a == "-c" || a == "--namespace" || a == "--config-env" || a == "--exec-path" || a == "--super-prefix":
			i++
		case !strings.HasPrefix(a, "-"):
			return place
		}
	}
	return place
}

// commit has the parts of a commit that judgeForce needs.
type commit struct {
	id      string
	at      int64 // its committer date
	parents []string
}

// read reads the commit id and checks its digest. It returns nil if it cannot be read
// or is not a commit.
func (o *objects) read(id string) *commit {
	if o.bad {
		return nil
	}
	o.bad = true // until the answer is complete
	if _, err := io.WriteString(o.in, id+"\n"); err != nil {
		return nil
	}
	line, err := o.out.ReadSlice('\n')
	if err != nil {
		return nil
	}
	words := strings.Fields(string(line))
	if len(words) == 2 && words[0] == id && words[1] == "missing" {
		o.bad = false
		return nil
	}
	if len(words) != 3 || words[0] != id {
		return nil
	}
	size, err := strconv.ParseUint(words[2], 10, 32)
	if err != nil || size > maxCommit {
		return nil
	}
	data := make([]byte, size+1)
	if _, err := io.ReadFull(o.out, data); err != nil || data[size] != '\n' {
		return nil
	}
	o.bad = false
	data = data[:size]
	if words[1] != "commit" || objectName("commit", data, len(id)) != id {
		return nil
	}
	return parseCommit(id, data)
}

// objectName returns the name of an object with that number of digits.
func objectName(kind string, data []byte, digits int) string {
	var h hash.Hash
	switch digits {
	case 2 * sha1.Size:
		h = sha1.New()
	case 2 * sha256.Size:
		h = sha256.New()
	default:
		return ""
	}
	fmt.Fprintf(h, "%s %d\x00", kind, len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

func parseCommit(id string, data []byte) *commit {
	c := &commit{id: id}
	head, _, _ := bytes.Cut(data, []byte("\n\n"))
	for i, line := range strings.Split(string(head), "\n") {
		name, value, _ := strings.Cut(line, " ")
		switch {
		case i == 0 && name == "tree":
		case i == 0:
			return nil
		case name == "parent" && len(value) == len(id):
			// Git accepts parents directly after the tree only.
			if len(c.parents) != i-1 {
				return c
			}
			c.parents = append(c.parents, value)
		case name == "committer":
			if words := strings.Fields(value); len(words) > 1 {
				c.at, _ = strconv.ParseInt(words[len(words)-2], 10, 64)
			}
			return c
		}
	}
	return c
}

// forced reports whether an update from old to new drops commits; nil if that is not
// known.
func (o *objects) forced(old, new string, left *int) *bool {
	yes, no := true, false
	if old == new {
		return &no
	}
	whole := true
	seen, queue := map[string]bool{}, &byDate{}
	push := func(id string) {
		if seen[id] {
			return
		}
		seen[id] = true
		if c := o.read(id); c != nil {
			heap.Push(queue, c)
		} else {
			whole = false
		}
	}
	push(new)
	for queue.Len() > 0 {
		if *left--; *left < 0 || o.bad {
			return nil
		}
		c := heap.Pop(queue).(*commit)
		if slices.Contains(c.parents, old) {
			return &no
		}
		for _, parent := range c.parents {
			push(parent)
		}
	}
	if whole && !o.bad {
		return &yes
	}
	return nil
}

// byDate is a heap of commits, the newest first.
type byDate []*commit

func (q byDate) Len() int           { return len(q) }
func (q byDate) Less(i, j int) bool { return q[i].at > q[j].at }
func (q byDate) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byDate) Push(x any)        { *q = append(*q, x.(*commit)) }
func (q *byDate) Pop() any {
	last := len(*q) - 1
	c := (*q)[last]
	*q = (*q)[:last]
	return c
}
