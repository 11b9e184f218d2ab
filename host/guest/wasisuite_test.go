package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// suiteCase is what a program of the WASI test suite is to be given, and is to do.
type suiteCase struct {
	Args   []string
	Env    map[string]string
	Root   string
	Stdout string
	Exit   int `json:"exit_code"`
}

// TestWASISuite runs the programs of WASI's own test suite, as far as they are of
// preview 1: each checks what it is answered, and exits with another code than its
// own where that is wrong.
func TestWASISuite(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling the suite takes a minute")
	}
	dir, err := filepath.Abs("../../.cache/corpus/wasi-testsuite")
	if err != nil {
		t.Fatal(err)
	}
	programs, _ := filepath.Glob(filepath.Join(dir, "*/*.wasm"))
	if len(programs) == 0 {
		t.Skip("the suite is not there; REPOSITORIES=... scripts/corpus .cache/corpus copies it")
	}
	e := oracleEngine(t)
	for _, program := range programs {
		name := strings.TrimSuffix(filepath.Base(program), ".wasm")
		t.Run(name, func(t *testing.T) {
			var c suiteCase
			if b, err := os.ReadFile(strings.TrimSuffix(program, "wasm") + "json"); err == nil {
				err = json.Unmarshal(b, &c)
				if err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			code, err := os.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
			cmd := Command{Args: append([]string{name}, c.Args...)}
			for k, v := range c.Env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			if c.Root != "" {
				root := t.TempDir()
				if err := os.CopyFS(root, os.DirFS(filepath.Join(filepath.Dir(program), c.Root))); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				cmd.Dirs = []Mount{{Guest: "/", Host: root}}
			}
			silent, end := io.Pipe() // a terminal that nobody types at
			defer end.Close()
			cmd.Stdin = silent
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			m := load(t, e, Spec{Name: name, Wasm: code})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			exit, _, err := m.Run(ctx, cmd)
			if err != nil || exit != c.Exit || out.String() != c.Stdout && c.Stdout != "" {
				t.Errorf("exit code %d, %v\n%s%s", exit, err, &out, &errs)
			}
		})
	}
}
