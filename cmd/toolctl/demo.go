package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func demoVerb(s *state) *cobra.Command {
	var source string
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a push, two refusals and two hot swaps, for real, in a temporary folder",
		Long: `Start a daemon in a temporary folder and show what toold is for. Every command
is printed as in a shell, with its real output; the demo stops with an error if
one does not behave as expected. It needs git, Go and a
checkout of toold in which make build has run: make demo does both. Nothing is
left behind.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return demo(ctx, s.out, source, keep)
		},
	}
	cmd.Flags().StringVar(&source, "source", ".", "the checkout of toold")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the folder")
	return cmd
}

// freezeSource is a policy as an operator might write it.
const freezeSource = `package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

var until string // set by the linker

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(policy) }

func policy(c *abi.Call) *abi.Decision {
	if until != "" && c.Tool == "git" && len(c.Args) > 0 && c.Args[0] == "push" {
		return pdk.Deny("freeze", "nothing is released before "+until, "commit, and push then")
	}
	return pdk.Allow()
}

func main() {}
`

// A step is one command that is printed and run.
type step struct {
	// say is the introduction to the step; it is printed as comments.
	say string
	// dir is the folder that the command runs in, under the demo's folder.
	dir string
	// caged commands run as in a container: they have the wrappers and the socket, but neither the daemon's programs
	// nor its folders on PATH.
	caged bool
	cmd   string
	// exit and want are the expected exit code, and texts that the output must contain.
	exit int
	want []string
	// check verifies further effects of the command.
	check func() error
}

// A stage is the environment that the demo runs in.
type stage struct {
	out    io.Writer
	dir    string // the temporary folder
	source string
	tools  string // the folder of toold, toolctl and tool-client
	steps  int
}

func demo(ctx context.Context, out io.Writer, source string, keep bool) (err error) {
	source, err = filepath.Abs(source)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(source, "tools.d/git/restricted.wasm")); err != nil {
		return fmt.Errorf("look for the git policy: %w; run make demo in a checkout of toold", err)
	}
	toold, err := beside("toold")
	if err != nil {
		return err
	}
	// On macOS the temporary folder is behind a symlink.
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return fmt.Errorf("find the temporary folder: %w", err)
	}
	dir, err := os.MkdirTemp(tmp, "toold-demo-")
	if err != nil {
		return fmt.Errorf("make the demo's folder: %w", err)
	}
	if keep {
		defer fmt.Fprintf(out, "# left for you: %s\n", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	start := time.Now()
	d := &stage{out: out, dir: dir, source: source, tools: filepath.Dir(toold)}
	if err := d.play(ctx); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	fmt.Fprintf(out, "\n# %d commands in %.1f s; the daemon has stopped and %s is gone.\n", d.steps, time.Since(start).Seconds(), dir)
	return nil
}

func (d *stage) play(ctx context.Context) error {
	if err := d.set(); err != nil {
		return err
	}
	if err := d.run(ctx,
		step{
			say: "The operator's side: a remote, a tool with its policy, a daemon.",
			cmd: "git init -q --bare -b main work/remote.git",
		},
		step{cmd: "cp -r $TOOLD/tools.d/git tools.d/ && ls tools.d/git", want: []string{"restricted.wasm", "tool.json"}},
		step{cmd: "(cd freeze && go build -buildmode=c-shared -o ../policies/_all.wasm .)"},
	); err != nil {
		return err
	}
	daemon, err := d.background(ctx, false, "", "toold --tools tools.d --restricted policies --root work --socket tool.sock --state state")
	if err != nil {
		return err
	}
	defer daemon.kill()
	if err := daemon.waitFor(ctx, "ready"); err != nil {
		return err
	}
	if err := d.call(ctx); err != nil {
		return err
	}
	if err := d.swap(ctx); err != nil {
		return err
	}
	return daemon.stop(ctx)
}

// call shows what a container calls, what is refused, and how a tool is added.
func (d *stage) call(ctx context.Context) error {
	pwned := filepath.Join(d.dir, "work", "pwned")
	return d.run(ctx,
		step{cmd: "toolctl install --prune bin", want: []string{"bin/git -> tool-client"}},

		step{
			say: "The container's side: no git, no credentials, only the wrapper.",
			dir: "work", caged: true,
			cmd:  "command -v git && git clone -q remote.git app && ls -A app",
			want: []string{d.dir + "/bin/git", ".git"},
		},
		step{
			dir: "work/app", caged: true,
			cmd: "echo hello > README && git add README",
		},
		step{
			dir: "work/app", caged: true,
			cmd:  "git -c user.name=Ada -c user.email=ada@example.com commit -m 'Say hello'",
			want: []string{"Say hello", "1 file changed"},
		},
		step{
			dir: "work/app", caged: true,
			cmd:  "git push origin main",
			want: []string{"main -> main"},
			check: func() error {
				return d.quiet(ctx, "git --git-dir work/remote.git rev-parse --verify -q main")
			},
		},

		step{
			say: "What the policy refuses, it refuses with a reason and exit code 126.",
			dir: "work/app", caged: true,
			cmd:  "git push --force origin main",
			exit: 126, want: []string{"force"},
		},
		step{
			dir: "work/app", caged: true,
			cmd:  "git -c core.sshCommand='touch ../pwned' fetch ssh://anywhere/x",
			exit: 126, want: []string{"-c"},
			check: func() error {
				if _, err := os.Lstat(pwned); !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("%s should not be there: %w", pwned, err)
				}
				return nil
			},
		},

		step{
			say: "A new tool is a folder that is dropped in. Nothing is restarted.",
			cmd: "cp -r $TOOLD/tools.d/hash tools.d/ && echo hello | toolctl call hash --stdin -- -a sha256", want: []string{"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"},
		},
		step{cmd: "toolctl tools", want: []string{"git", "hash", "ok"}},
	)
}

// swap shows a policy that is replaced while calls run.
func (d *stage) swap(ctx context.Context) error {
	loop, err := d.background(ctx, true,
		"A policy is swapped while two shells call git without a pause.",
		"for i in 1 2; do (while [ ! -e ../../stop ]; do if git log -1 --format=%h; then echo answered; else echo FAILED; fi; done) & done >../../calls 2>&1; wait")
	if err != nil {
		return err
	}
	defer loop.kill()
	if err := d.until(ctx, "calls", "answered"); err != nil {
		return err
	}
	if err := d.run(ctx,
		step{cmd: "sed -n '/^func policy/,/^}/p' freeze/main.go", want: []string{"freeze"}},
		step{cmd: "(cd freeze && go build -buildmode=c-shared -ldflags='-X main.until=Monday' -o ../new.wasm .)"},
		step{cmd: "mv new.wasm policies/_all.wasm"},
		step{
			dir: "work/app", caged: true,
			cmd:  "while git push -q --dry-run origin main 2>/dev/null; do :; done; git push origin main",
			exit: 126, want: []string{"Monday"},
		},
		step{cmd: "touch stop"},
	); err != nil {
		return err
	}
	if err := loop.wait(ctx); err != nil {
		return err
	}
	return d.run(ctx,
		step{
			cmd:  "grep -c answered calls; grep -c FAILED calls",
			exit: 1, want: []string{"\n0\n"},
		},
	)
}

// set creates the environment of the demo.
func (d *stage) set() error {
	for _, dir := range []string{"work", "tools.d", "policies", "freeze", "home"} {
		if err := os.Mkdir(filepath.Join(d.dir, dir), 0o755); err != nil {
			return fmt.Errorf("make the demo's folder: %w", err)
		}
	}
	mod := "module freeze\n\ngo 1.26\n\nrequire github.com/toold/toold v0.0.0\n\nreplace github.com/toold/toold => " + d.source + "\n"
	return errors.Join(
		os.WriteFile(filepath.Join(d.dir, "freeze/go.mod"), []byte(mod), 0o644),
		os.WriteFile(filepath.Join(d.dir, "freeze/main.go"), []byte(freezeSource), 0o644),
	)
}

// run runs steps until one fails.
func (d *stage) run(ctx context.Context, steps ...step) error {
	for _, st := range steps {
		d.show(st.say, st.dir, st.cmd)
		var kept bytes.Buffer
		kept.WriteByte('\n')
		cmd := d.command(ctx, st.caged, st.dir, st.cmd)
		cmd.Stdout = io.MultiWriter(d.out, &kept)
		cmd.Stderr = cmd.Stdout
		err := cmd.Run()
		if err := ctx.Err(); err != nil {
			return err
		}
		if cmd.ProcessState == nil {
			return fmt.Errorf("run %q: %w", st.cmd, err)
		}
		if code := cmd.ProcessState.ExitCode(); code != st.exit {
			return fmt.Errorf("%q should have ended with exit code %d, not %d", st.cmd, st.exit, code)
		}
		if st.exit > 1 {
			fmt.Fprintf(d.out, "[exit code %d]\n", st.exit)
		}
		for _, w := range st.want {
			if !strings.Contains(kept.String(), w) {
				return fmt.Errorf("%q should have said %q", st.cmd, w)
			}
		}
		if st.check != nil {
			if err := st.check(); err != nil {
				return fmt.Errorf("after %q: %w", st.cmd, err)
			}
		}
	}
	return nil
}

func (d *stage) show(say, dir, cmd string) {
	if say != "" {
		fmt.Fprintf(d.out, "\n# %s\n", say)
	}
	if dir != "" {
		dir += " "
	}
	fmt.Fprintf(d.out, "%s$ %s\n", dir, cmd)
	d.steps++
}

// command returns a shell command that runs cmd. Its environment contains only what the demo's reader can know about.
func (d *stage) command(ctx context.Context, caged bool, dir, cmd string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", "-c", cmd)
	c.Dir = filepath.Join(d.dir, dir)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 5 * time.Second
	home := filepath.Join(d.dir, "home")
	if caged {
		c.Env = []string{
			"PATH=" + filepath.Join(d.dir, "bin") + ":/usr/local/bin:/usr/bin:/bin",
			"HOME=" + home,
			"TOOL_SOCKET=" + filepath.Join(d.dir, "tool.sock"),
		}
		return c
	}
	c.Env = []string{
		"PATH=" + d.tools + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"TOOLD=" + d.source,
		"TOOLD_STATE_DIR=" + filepath.Join(d.dir, "state"),
		"TOOL_SOCKET=" + filepath.Join(d.dir, "tool.sock"),
		"GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off",
	}
	for _, name := range []string{"GOROOT", "GOCACHE", "GOMODCACHE", "GOTOOLCHAIN", "TMPDIR"} {
		if v := goEnv(name); v != "" {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	return c
}

// quiet runs an operator's command without showing it.
func (d *stage) quiet(ctx context.Context, cmd string) error {
	out, err := d.command(ctx, false, "", cmd).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}

// until waits until a file of the demo contains text.
func (d *stage) until(ctx context.Context, file, text string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		data, err := os.ReadFile(filepath.Join(d.dir, file))
		if bytes.Contains(data, []byte(text)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s should hold %q, and has %q (%v)", file, text, data, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// background is a command that runs alongside the others.
type background struct {
	name string
	out  io.Writer
	cmd  *exec.Cmd
	done chan struct{} // closed when the command has exited
	err  error         // set before done is closed

	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
	news chan struct{}
}

func (d *stage) background(ctx context.Context, caged bool, say, cmd string) (*background, error) {
	dir := ""
	if caged {
		dir = "work/app"
	}
	d.show(say, dir, cmd+" &")
	b := &background{name: strings.Fields(cmd)[0], out: d.out, done: make(chan struct{}), news: make(chan struct{}, 1)}
	b.cmd = d.command(ctx, caged, dir, "exec "+cmd)
	if caged {
		b.cmd = d.command(ctx, caged, dir, cmd)
	}
	b.cmd.Stdout = b
	b.cmd.Stderr = b
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", b.name, err)
	}
	go func() {
		b.err = b.cmd.Wait()
		close(b.done)
	}()
	return b, nil
}

// Write records the command's output.
func (b *background) Write(p []byte) (int, error) {
	b.mu.Lock()
	b.said.Write(p)
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (b *background) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.said.String()
}

// waitFor waits until the command prints a line that begins with word, and shows it.
func (b *background) waitFor(ctx context.Context, word string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		for line := range strings.Lines(b.text()) {
			if strings.HasPrefix(line, word) && strings.HasSuffix(line, "\n") {
				fmt.Fprint(b.out, line)
				return nil
			}
		}
		select {
		case <-b.news:
		case <-b.done:
			return fmt.Errorf("%s ended instead of saying %q (%v):\n%s", b.name, word, b.err, b.text())
		case <-ctx.Done():
			return fmt.Errorf("%s does not say %q:\n%s", b.name, word, b.text())
		}
	}
}

// wait waits for a command that exits by itself.
func (b *background) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-b.done:
	case <-ctx.Done():
		return fmt.Errorf("%s does not end", b.name)
	}
	if b.err != nil {
		return fmt.Errorf("%s: %w\n%s", b.name, b.err, b.text())
	}
	return nil
}

// stop stops the daemon as an operator does, and expects it to exit cleanly.
func (b *background) stop(ctx context.Context) error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", b.name, err)
	}
	return b.wait(ctx)
}

// kill kills what is left of the command. It may be called at any time.
func (b *background) kill() {
	syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	<-b.done
}

// goEnv returns a variable that the go command needs and that HOME would change.
func goEnv(name string) string {
	if v := os.Getenv(name); v != "" || name == "TMPDIR" || name == "GOTOOLCHAIN" {
		return v
	}
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
