package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/repoconfig"
	"github.com/toold/toold/pdk/abi"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

const gitPath = "/usr/bin/git"

func needGit(t testing.TB) {
	if _, err := os.Stat(gitPath); err != nil {
		t.Skip("there is no " + gitPath)
	}
}

// box is a root, what lies outside of it, and a HOME.
type box struct {
	t      testing.TB
	dir    string
	ws     string // the root
	out    string
	home   string
	runner *process.Runner
	exec   []string // executables beside git's own
	words  *strings.Replacer
}

func newRunner(t testing.TB) *process.Runner {
	// The level of confinement at which the tests run.
	level, _ := confine.ParseLevel(os.Getenv("TOOLD_TEST_CONFINE"))
	r, err := process.New(process.Config{Most: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// tempDir is a temporary folder, in memory where that can be had: hundreds of
// small repositories are made, which takes five times as long on a disk.
func tempDir(t testing.TB) string {
	const memory, noexec = "/dev/shm", 8 // ST_NOEXEC: a container may mount it so
	var fs syscall.Statfs_t
	if syscall.Statfs(memory, &fs) == nil && fs.Flags&noexec == 0 {
		if dir, err := os.MkdirTemp(memory, "toold-git-test-"); err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// model is the box that others are copied from: a repository with a few
// branches, its remote, and a repository outside.
func model(t testing.TB) string {
	dir := tempDir(t)
	for _, d := range []string{"ws", "out", "home/tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := `set -e
export HOME=` + dir + `/home GIT_CONFIG_NOSYSTEM=1
git config --global init.templateDir ''
git config --global user.name Tester; git config --global user.email t@example.com; git config --global init.defaultBranch main
cd ` + dir + `/out
printf 'TOPSECRET line\n' > secret.txt
git init -q victim; cd victim; printf 'TOPSECRET file\n' > s.txt; git add .; git commit -q -m 'TOPSECRET commit'; git rev-parse HEAD > ../victim.id; cd ..
cd ` + dir + `/ws
git init -q --bare remote.git
git init -q repo; cd repo
for i in one two three; do echo $i >> a.txt; echo $i > $i.txt; git add .; git commit -q -m $i; done
git checkout -q -b feature HEAD~1; echo f > f.txt; git add .; git commit -q -m feature
git checkout -q -b conflict main~1; echo other >> a.txt; git commit -q -a -m conflict
git checkout -q main
git push -q ../remote.git main feature
git fetch -q ../remote.git main:refs/remotes/origin/main feature:refs/remotes/origin/feature
for r in . ../remote.git ../../out/victim; do git -C $r gc -q; done
git config --global --unset init.templateDir
`
	cmd := exec.Command("/bin/sh", "-c", script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// looseSecret is the name of the blob "TOPSECRET loose\n".
const looseSecret = "9568fb899cc4fb7fd0eb4c04749448923af6ae2f"

// newBox copies model, which is not changed.
func newBox(t testing.TB, model string, runner *process.Runner) *box {
	dir := tempDir(t)
	if err := os.CopyFS(dir, os.DirFS(model)); err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, dir: dir, ws: dir + "/ws", out: dir + "/out", home: dir + "/home", runner: runner}
	sh := ": >" + b.ws + "/marker;: >" + b.out + "/marker"
	b.words = strings.NewReplacer("{WS}", b.ws, "{OUT}", b.out, "{IN}", b.ws+"/marker", "{EVIL}", b.ws+"/evil.sh", "{SH}", sh,
		"{VICTIM}", victim(t, b), "{LOOSE}", looseSecret, "{SECRET}", "8777a09f9fd3081ef7d1511fa75513f05dbe4e95")
	b.write("evil.sh", "#!/bin/sh\n"+sh+"\n")
	b.append("repo/.git/config", "[remote \"origin\"]\nurl={WS}/remote.git\nfetch=+refs/heads/*:refs/remotes/origin/*\n")
	return b
}

func (b *box) append(name, text string) {
	b.t.Helper()
	f, err := os.OpenFile(filepath.Join(b.ws, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprint(f, b.words.Replace(text))
}

func victim(t testing.TB, b *box) string {
	id, err := os.ReadFile(b.out + "/victim.id")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(id))
}

func (b *box) write(name, content string) {
	b.t.Helper()
	file := filepath.Join(b.ws, name)
	mode := fs.FileMode(0o644)
	if strings.HasPrefix(content, "#!") {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(b.words.Replace(content)), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) env(more map[string]string) []string {
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": b.home, "TMPDIR": b.home + "/tmp"}
	maps.Copy(env, more)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// plain runs git as a person would, without policy and confinement.
func (b *box) plain(cwd string, env map[string]string, stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	path := gitPath
	if len(args) > 0 && strings.HasPrefix(args[0], "!") {
		path, args = "/bin/sh", []string{"-c", args[0][1:]}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdin = filepath.Join(b.ws, cwd), strings.NewReader(stdin)
	cmd.Env = append(b.env(env), "FILTER_BRANCH_SQUELCH_WARNING=1") // It waits ten seconds beside it.
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// plainCode is plain with the exit code.
func (b *box) plainCode(cwd string, env map[string]string, stdin string, args ...string) (string, int) {
	out, err := b.plain(cwd, env, stdin, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, 0
	case errors.As(err, &exit):
		return out, exit.ExitCode()
	}
	b.t.Fatalf("git %q: %v", args, err)
	return "", 0
}

// ask asks the policy.
func (b *box) ask(p *policy, cwd string, env map[string]string, args ...string) *abi.Decision {
	dir := filepath.Join(b.ws, cwd)
	return p.decide(&abi.Call{Tool: "git", Args: args, Cwd: dir, Roots: []string{b.ws}, Env: env, RepoConfig: repoconfig.Read(dir, []string{b.ws}, repoconfig.Args(env, args))})
}

// call asks the policy and runs what it answers. A refused call answers its
// Decision and no output.
func (b *box) call(p *policy, confine bool, cwd string, env map[string]string, stdin string, args ...string) (string, int, *abi.Decision) {
	d := b.ask(p, cwd, env, args...)
	if d.Effect != abi.Allow {
		return "", 126, d
	}
	patience := 2 * time.Minute
	if len(p.guards) > 0 {
		patience = 5 * time.Second
	}
	out, code, err := b.run(d, confine, cwd, stdin, patience)
	if err != nil && len(p.guards) == 0 {
		// Git can wait for ever for a hook that could not be started; with
		// all checks in place it starts none.
		b.t.Errorf("git %q: %v\n%s", args, err, out)
	}
	return out, code, d
}

// run runs what was decided.
func (b *box) run(d *abi.Decision, confine bool, cwd, stdin string, patience time.Duration) (string, int, error) {
	var out bytes.Buffer
	cmd := process.Command{
		Path: gitPath, Args: d.Args, Dir: filepath.Join(b.ws, cwd), Roots: []string{b.ws}, Env: b.env(d.Env), Stdout: &out, Stderr: &out,
		Confine: process.Confine{Write: []string{b.home, b.ws}, Exec: append([]string{gitPath, "/usr/lib/git-core", "/usr/bin/ssh"}, b.exec...), Off: !confine},
	}
	if d.Shell {
		cmd.Confine.Exec = append(cmd.Confine.Exec, "/bin/sh")
		cmd.Confine.ShellLines = d.ShellLines
	}
	if *d.Stdin {
		cmd.Stdin = strings.NewReader(stdin)
	}
	// As tools.d/git/tool.json, and this host, where the tests' servers are.
	var gate egress.Gate
	session, network, err := gate.Start(egress.Rules{Hosts: []string{"*", "127.0.0.1", "localhost"}}, nil)
	if err != nil {
		return "", 0, err
	}
	defer session.Close()
	defer network.Close()
	cmd.Confine.Network = network
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	exit, err := b.runner.Run(ctx, cmd)
	return out.String(), exit.Code, err
}

// tree is a digest of all that lies beneath dir.
func tree(t testing.TB, dir string) map[string]string {
	m := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			m[path] = hex.EncodeToString(sum[:8])
		default:
			m[path] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func sorted(list []string) []string {
	slices.Sort(list)
	return list
}

func difference(a, b map[string]string) []string {
	var out []string
	for path, sum := range b {
		if a[path] != sum {
			out = append(out, path)
		}
	}
	for path := range a {
		if _, ok := b[path]; !ok {
			out = append(out, "removed: "+path)
		}
	}
	slices.Sort(out)
	return out
}

func (b *box) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// line answers the arguments of a line of a case.
func (b *box) line(line string) []string {
	args := strings.Split(line, " ")
	for i := range args {
		args[i] = b.words.Replace(strings.ReplaceAll(args[i], "\u00a0", " "))
	}
	return args
}

// prepare makes the box that of the case.
func (b *box) prepare(h *hostile) {
	b.t.Helper()
	for _, line := range h.prepare {
		out, err := b.plain("repo", nil, "", b.line(line)...)
		if err != nil && !strings.Contains(line, "exec=false") {
			b.t.Fatalf("prepare: %s: %v: %s", line, err, out)
		}
	}
	for name, content := range h.files {
		b.write(name, content)
	}
	for name, target := range h.links {
		if err := os.Symlink(b.words.Replace(target), filepath.Join(b.ws, name)); err != nil {
			b.t.Fatal(err)
		}
	}
	if h.config != "" {
		var text strings.Builder
		for line := range strings.SplitSeq(h.config, "\n") {
			// A ";" would begin a comment.
			if i := strings.LastIndexByte(line, '='); i >= 0 && strings.Contains(line[i:], "{SH}") {
				line = line[:i+1] + `"` + line[i+1:] + `"`
			}
			text.WriteString(line + "\n")
		}
		b.append("repo/.git/config", text.String())
	}
}

// harm says what a case brought about, or "". baseline is the tree outside
// before.
func (b *box) harm(baseline map[string]string, output string, secrets bool) string {
	switch {
	case b.exists(b.ws + "/marker"):
		return "it ran a program"
	case len(difference(baseline, tree(b.t, b.out))) > 0:
		return fmt.Sprintf("it wrote outside: %v", difference(baseline, tree(b.t, b.out)))
	case secrets && strings.Contains(output, "TOPSECRET"):
		return "it showed what lies outside"
	}
	return ""
}

func (h *hostile) dir() string {
	if h.cwd != "" {
		return h.cwd
	}
	return "repo"
}

func (h *hostile) environ(b *box) map[string]string {
	env := make(map[string]string)
	for k, v := range h.env {
		env[k] = b.words.Replace(v)
	}
	return env
}

// judges reports whether a run's executions are judged one by one, by what file
// they run and what line a shell is given. Then no case needs the guard byExec,
// and all are run with the policy's checks off.
func judges(r *process.Runner) bool { return r.Confinement().Filter }

// TestHostile runs every case in five ways: with git alone, which must do the
// harm (or the case is none); with the policy alone; with policy and
// confinement; with confinement and each check of the policy switched off in
// turn; and by race: the policy sees a repository as it should be, which
// becomes that of the case before git looks.
func TestHostile(t *testing.T) {
	needGit(t)
	if s := confine.Confinement(); s.ABI == 0 {
		t.Skipf("no confinement here: %s", s.Reason)
	}
	m := model(t)
	runner := newRunner(t)
	for i := range hostiles {
		h := &hostiles[i]
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			t.Run("git alone", func(t *testing.T) {
				b := newBox(t, m, runner)
				b.prepare(h)
				before, output := tree(t, b.out), ""
				for _, line := range h.args {
					out, _ := b.plain(h.dir(), h.environ(b), h.stdin, b.line(line)...)
					output += out
				}
				leaked := b.leaked()
				switch harm := b.harm(before, output+leaked, true); {
				case harm == "" && h.tame == "":
					t.Errorf("git alone does no harm:\n%s", output)
				case harm != "" && h.tame != "":
					t.Errorf("git alone does harm (%s), so it is not that %s", harm, h.tame)
				}
			})
			type way struct {
				name    string
				confine bool
				off     guards
			}
			ways := []way{{"policy and confinement", true, nil}}
			if !h.confined {
				ways = append(ways, way{"policy alone", false, nil})
			}
			if !testing.Short() {
				for _, c := range checks {
					if c == checkRepo && h.race == byExec && !judges(runner) {
						continue // As by race.
					}
					ways = append(ways, way{"without " + string(c), true, guards{c: true}})
				}
			}
			// What the policy says is known without running anything. Where it
			// refuses all, or says what it said before, there is nothing to run.
			look := newBox(t, m, runner)
			look.prepare(h)
			said := make(map[string]bool)
			for _, w := range ways {
				p := testPolicy(nil)
				p.guards = w.off
				rule, all := "", fmt.Sprint(w.confine)
				allowed := false
				for _, line := range h.args {
					d := look.ask(p, h.dir(), h.environ(look), look.line(line)...)
					if d.Effect == abi.Allow {
						allowed = true
					} else if rule == "" {
						rule = d.Rule
						if d.Reason == "" {
							t.Errorf("git %s is refused without a reason", line)
						}
					}
					all += fmt.Sprint(d.Effect, d.Args, d.Env, d.Shell)
				}
				if w.off == nil && rule != h.rule {
					t.Errorf("refused by %q, want %q", rule, h.rule)
				}
				if !allowed || said[all] {
					continue
				}
				said[all] = true
				t.Run(w.name, func(t *testing.T) {
					b := newBox(t, m, runner)
					b.prepare(h)
					before, output := tree(t, b.out), ""
					for _, line := range h.args {
						out, _, _ := b.call(p, w.confine, h.dir(), h.environ(b), h.stdin, b.line(line)...)
						output += out
					}
					if harm := b.harm(before, output+b.leaked(), w.off == nil); harm != "" {
						t.Errorf("%s:\n%s", harm, output)
					}
				})
			}
			t.Run("by race", func(t *testing.T) { h.byRace(t, newBox(t, m, runner)) })
			if judges(runner) {
				t.Run("unchecked", func(t *testing.T) {
					b := newBox(t, m, runner)
					b.prepare(h)
					before, p := tree(t, b.out), testPolicy(nil)
					p.guards = guards{}
					for _, c := range checks {
						p.guards[c] = true
					}
					for _, line := range h.args {
						b.call(p, true, h.dir(), h.environ(b), h.stdin, b.line(line)...)
					}
					if harm := b.harm(before, "", false); harm != "" {
						t.Error(harm)
					}
				})
			}
		})
	}
}

// byRace makes the repository that of the case between the policy's look and
// git's.
func (h *hostile) byRace(t *testing.T, b *box) {
	if len(h.prepare)+len(h.files)+len(h.links) == 0 && h.config == "" || !b.exists(filepath.Join(b.ws, h.dir())) {
		return // It is all in the arguments, or the folder is not there before.
	}
	var allowed []*abi.Decision
	for _, line := range h.args {
		if d := b.ask(testPolicy(nil), h.dir(), h.environ(b), b.line(line)...); d.Effect == abi.Allow {
			allowed = append(allowed, d)
		}
	}
	if len(allowed) == 0 {
		return
	}
	b.prepare(h)
	before, output := tree(t, b.out), ""
	for _, d := range allowed {
		out, _, _ := b.run(d, true, h.dir(), h.stdin, 10*time.Second)
		output += out
	}
	harm := b.harm(before, output+b.leaked(), h.race != byReading)
	switch {
	case harm == "" || h.race == byExec && !judges(b.runner):
		if harm == "" && h.race == byExec {
			t.Logf("holds without judging executions")
		}
	default:
		t.Errorf("%s:\n%s", harm, output)
	}
}

// leaked is what files of new repositories beneath the root hold of the
// secret.
func (b *box) leaked() string {
	for _, dir := range []string{"x", "repo/x", "repo/.git", "new"} {
		found := ""
		filepath.WalkDir(filepath.Join(b.ws, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && filepath.Ext(path) == ".txt" {
				if c, err := os.ReadFile(path); err == nil && bytes.Contains(c, []byte("TOPSECRET")) {
					found = path + ": TOPSECRET"
				}
			}
			return nil
		})
		if found != "" {
			return found
		}
	}
	return ""
}
