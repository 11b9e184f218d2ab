package catalog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/tools"
)

// setupTimeout is how long setup.sh may run; then its process tree is killed.
const setupTimeout = 30 * time.Second

// maxSetupOutput is how many bytes of setup.sh's output are kept, from the end.
const maxSetupOutput = 4 << 10

// setupEach is the minimum time between runs of setup.sh that restore a binary.
const setupEach = time.Minute

// setupRun is the last run of a setup.sh by this process; zero if there was none.
type setupRun struct {
	at time.Time
	// again reports whether another run may restore a missing binary: the last one
	// installed it, or failed.
	again bool
}

// due reports whether setup.sh may run now to restore a missing binary.
func (r setupRun) due(now time.Time) bool {
	return r.at.IsZero() || r.again && now.Sub(r.at) >= setupEach
}

// setups runs the setup.sh of tools.
type setups struct {
	runner *process.Runner // nil: this host starts no processes
	memory *memory
	// homes is where each setup.sh has a HOME.
	homes string
	log   *slog.Logger

	mu   sync.Mutex
	runs map[string]setupRun // by the tool's name; guarded by mu
}

// due reports whether setup.sh of the tool has to run again, because the binary that
// it installed is missing from programs.
func (s *setups) due(name string, programs []*disk.Program) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(programs) > 0 && programs[0].Missing && s.runs[name].due(time.Now())
}

// note records a run of setup.sh.
func (s *setups) note(name string, run setupRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[name] = run
}

// run runs the tool's setup.sh, once for each content of the file: successful
// runs are recorded in the state folder, so that neither a restart of the daemon nor
// another change of the tool runs it again. It also runs when the binary is missing.
//
// Like tool.json, the script belongs to the operator and is not confined. It runs in
// the tool's folder, by the interpreter of its first line or else /bin/sh, without
// input, with a fixed PATH, a HOME of its own and the variables of environment.
func (s *setups) run(ctx context.Context, v *candidate) error {
	if v.setup.data == nil {
		return nil
	}
	sum := sha256.Sum256(v.setup.data)
	digest := hex.EncodeToString(sum[:])
	past, _ := s.memory.past(v.name)
	again := past.Setup == digest
	if again {
		if !v.installs() || !s.due(v.name, v.programs) {
			return nil
		}
		s.log.Warn("binary of a tool is gone; setting it up again", "tool", v.name, "binary", v.binary, "script", v.setup.file)
	}
	if s.runner == nil {
		return broken("set up tool %s: this host starts no processes, so %s cannot run; remove it", v.name, v.setup.file)
	}
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	interpreter, args := scriptCommand(v.setup.data, filepath.Join(v.dir, tools.SetupFile))
	out := &tail{limit: maxSetupOutput}
	home := filepath.Join(s.homes, v.name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return broken("set up tool %s: make a HOME for %s: %w; make the state folder writable", v.name, v.setup.file, err)
	}
	vars := map[string]string{"PATH": tools.BinaryPath, "LANG": "C.UTF-8", "HOME": home, gitConfigVariable: filepath.Join(v.dir, gitConfig)}
	maps.Copy(vars, v.def.Environment)
	var env []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	start := time.Now()
	s.note(v.name, setupRun{start, again})
	exit, err := s.runner.Run(ctx, process.Command{
		Path: interpreter, Args: args, Dir: v.dir, Roots: []string{v.dir}, Env: env,
		Stdout: out, Stderr: out, Confine: process.Confine{Off: true},
	})
	what := ""
	var we *fault.Error
	switch {
	case errors.As(err, &we) && we.Code == fault.Timeout:
		what = fmt.Sprintf("did not end within %v and was killed", setupTimeout)
	case err != nil:
		what = "could not be run: " + tools.Explain(err).Error()
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
		return broken("set up tool %s: %s %s; fix it, or touch it to run it again", v.name, v.setup.file, what)
	}
	if v.kind == tools.Binary {
		v.findPrograms()
		s.note(v.name, setupRun{start, !v.programs[0].Missing})
	}
	s.log.Info("tool set up", "tool", v.name, "script", v.setup.file, "took", time.Since(start))
	err = s.memory.update(v.name, func(p *toolPast, _ *bool) { p.Setup = digest })
	if err != nil {
		return broken("set up tool %s: %w", v.name, err)
	}
	return nil
}

// scriptCommand returns the command that the kernel would execute for a script. The
// script does not need to be executable, since files of a ConfigMap are not.
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
