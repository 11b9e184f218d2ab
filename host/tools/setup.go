package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
)

// setupTimeout is how long setup.sh may run; then its process tree is killed.
const setupTimeout = 30 * time.Second

// maxSetupOutput is how much of what setup.sh prints is kept, from its end.
const maxSetupOutput = 4 << 10

// setupEach is how often setup.sh runs at most because a binary has gone.
const setupEach = time.Minute

// gitConfig is the file in a tool's folder that git config --global writes in
// setup.sh, and that the tool's calls read.
const gitConfig = "gitconfig"

// setupRun is what is known of the last run of a setup.sh by this process.
type setupRun struct {
	at time.Time
	// again says that another run may help when the binary is missing: it was
	// there after the last one, or that failed.
	again bool
}

// due reports whether setup.sh is to bring a missing binary back.
func (r setupRun) due(now time.Time) bool {
	return r.at.IsZero() || r.again && now.Sub(r.at) >= setupEach
}

// setupDue reports whether the setup.sh of a tool has to run once more, since the
// binary that it had brought is gone.
func (c *Catalog) setupDue(name string, programs []*program) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.tools[name]
	return e != nil && e.setup && len(programs) > 0 && programs[0].missing && c.setups[name].due(time.Now())
}

// noteSetup keeps a run of setup.sh.
func (c *Catalog) noteSetup(name string, run setupRun) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setups[name] = run
}

// runSetup runs the tool's setup.sh, once for each content of the file: that
// it ran is remembered in the state folder, so that a restart of the daemon or
// a new policy beside it does not run it again, and one that was changed does.
// It also runs when the binary is not there any more. A run that fails is not
// remembered.
//
// The script is the operator's, as tool.json is: it is not confined. It runs
// in the tool's folder, with the interpreter of its first line, else /bin/sh,
// with no input, a fixed PATH, a HOME of its own and the variables of
// environment.
func (c *Catalog) runSetup(ctx context.Context, v *candidate) error {
	if v.setup == nil {
		return nil
	}
	sum := sha256.Sum256(v.setup)
	digest := hex.EncodeToString(sum[:])
	past, _ := c.memory.past(v.name)
	again := past.Setup == digest
	if again {
		if v.kind != Binary || !c.setupDue(v.name, v.programs) {
			return nil
		}
		c.log.Warn("binary of a tool is gone; setting it up again", "tool", v.name, "binary", v.binary, "script", v.setupPath)
	}
	if c.cfg.Runner == nil {
		return broken("set up tool %s: this host starts no processes, so %s cannot run; remove it", v.name, v.setupPath)
	}
	ctx, cancel := context.WithTimeout(ctx, c.setupTimeout)
	defer cancel()
	interpreter, args := scriptCommand(v.setup, filepath.Join(v.dir, setupFile))
	out := &tail{limit: maxSetupOutput}
	home := filepath.Join(c.cfg.StateDir, "setup", v.name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return broken("set up tool %s: make a HOME for %s: %w; make the state folder writable", v.name, v.setupPath, err)
	}
	vars := map[string]string{"PATH": BinaryPath, "LANG": "C.UTF-8", "HOME": home, gitConfigVariable: filepath.Join(v.dir, gitConfig)}
	maps.Copy(vars, v.def.Environment)
	var env []string
	for _, name := range sortedKeys(vars) {
		env = append(env, name+"="+vars[name])
	}
	start := time.Now()
	c.noteSetup(v.name, setupRun{start, again})
	exit, err := c.cfg.Runner.Run(ctx, process.Command{
		Path: interpreter, Args: args, Dir: v.dir, Roots: []string{v.dir}, Env: env,
		Stdout: out, Stderr: out, Confine: process.Confine{Off: true},
	})
	what := ""
	var we *fault.Error
	switch {
	case errors.As(err, &we) && we.Code == fault.Timeout:
		what = fmt.Sprintf("did not end within %v and was killed", c.setupTimeout)
	case err != nil:
		what = "could not be run: " + err.Error()
	case exit.Signal != 0:
		what = fmt.Sprintf("was ended by signal %d", int(exit.Signal))
	case exit.Code != 0:
		what = fmt.Sprintf("ended with exit code %d", exit.Code)
	}
	if what != "" {
		said := strings.Join(strings.Fields(out.String()), " ")
		if said != "" {
			what += ", after it said: " + said
		}
		return broken("set up tool %s: %s %s; mend it, or touch it to run it again", v.name, v.setupPath, what)
	}
	if v.kind == Binary {
		c.findPrograms(v)
		c.noteSetup(v.name, setupRun{start, !v.programs[0].missing})
	}
	c.log.Info("tool set up", "tool", v.name, "script", v.setupPath, "took", time.Since(start))
	err = c.memory.update(v.name, func(p *toolPast, _ *bool) { p.Setup = digest })
	if err != nil {
		return broken("set up tool %s: %w", v.name, err)
	}
	return nil
}

// gitConfigVariable names the file that git reads in the place of ~/.gitconfig.
const gitConfigVariable = "GIT_CONFIG_GLOBAL"

// shareGitConfig has the tool's calls read what its setup.sh wrote with git config
// --global. Calls have a HOME for each caller, where it would not be found; what is
// in the tool's folder they can read and not write.
func (v *candidate) shareGitConfig() {
	file := filepath.Join(v.dir, gitConfig)
	if v.def == nil || v.setup == nil {
		return
	}
	if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() {
		return
	}
	if _, own := v.def.Environment[gitConfigVariable]; own {
		return
	}
	for _, s := range v.def.Secrets {
		if s.Env == gitConfigVariable || s.File == gitConfigVariable {
			return
		}
	}
	v.def.Environment = maps.Clone(v.def.Environment)
	if v.def.Environment == nil {
		v.def.Environment = map[string]string{}
	}
	v.def.Environment[gitConfigVariable], v.gitConfig = file, file
}

// scriptCommand is how the kernel would execute a script of that content:
// without need of its x bit, which a ConfigMap does not have.
func scriptCommand(script []byte, file string) (interpreter string, args []string) {
	line, _, _ := bytes.Cut(script, []byte("\n"))
	if rest, ok := bytes.CutPrefix(line, []byte("#!")); ok {
		name, arg, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
		if filepath.IsAbs(name) {
			if arg = strings.TrimSpace(arg); arg != "" {
				args = append(args, arg)
			}
			return name, append(args, file)
		}
	}
	return "/bin/sh", []string{file}
}

// tail keeps the last bytes of what is written to it.
type tail struct {
	limit int
	buf   []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = t.buf[over:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.ToValidUTF8(string(t.buf), "�")
}
