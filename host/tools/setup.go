package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

// runSetup runs the tool's setup.sh, once for each content of the file: that
// it ran is remembered in the state folder, so that a restart of the daemon or
// a new policy beside it does not run it again, and one that was changed does.
// A run that fails is not remembered.
//
// The script is the operator's, as tool.json is: it is not confined. It runs
// in the tool's folder, with the interpreter of its first line, else /bin/sh,
// with no input, a fixed PATH and the variables of environment.
func (c *Catalog) runSetup(ctx context.Context, v *candidate) error {
	if v.setup == nil {
		return nil
	}
	sum := sha256.Sum256(v.setup)
	digest := hex.EncodeToString(sum[:])
	if past, _ := c.memory.past(v.name); past.Setup == digest {
		return nil
	}
	if c.cfg.Runner == nil {
		return broken("set up tool %s: this host starts no processes, so %s cannot run; remove it", v.name, v.setupPath)
	}
	ctx, cancel := context.WithTimeout(ctx, c.setupTimeout)
	defer cancel()
	interpreter, args := scriptCommand(v.setup, filepath.Join(v.dir, setupFile))
	out := &tail{limit: maxSetupOutput}
	env := []string{"PATH=" + BinaryPath, "LANG=C.UTF-8"}
	for _, name := range sortedKeys(v.def.Environment) {
		env = append(env, name+"="+v.def.Environment[name])
	}
	start := time.Now()
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
	c.log.Info("tool set up", "tool", v.name, "script", v.setupPath, "took", time.Since(start))
	err = c.memory.update(v.name, func(p *toolPast, _ *bool) { p.Setup = digest })
	if err != nil {
		return broken("set up tool %s: %w", v.name, err)
	}
	return nil
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
