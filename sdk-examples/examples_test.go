package examples_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/toolchain"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// example is one call of greet and its answer.
type example struct {
	Name    string          `json:"name"`
	Args    []string        `json:"args"`
	Payload json.RawMessage `json:"payload"`
	Stdout  string          `json:"stdout"`
	Data    json.RawMessage `json:"data"`
	Code    wire.Code       `json:"code"`
	Says    string          `json:"says"`
}

// TestExamples builds the example of each language as its README says, and
// makes the same calls of each through a daemon.
func TestExamples(t *testing.T) {
	b, err := os.ReadFile("cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []example
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	readmes, err := filepath.Glob("*/README.md")
	if err != nil || len(readmes) == 0 || len(cases) < 10 {
		t.Fatalf("%d languages, %d cases, %v", len(readmes), len(cases), err)
	}
	for _, readme := range readmes {
		lang := filepath.Dir(readme)
		t.Run(lang, func(t *testing.T) {
			compiler, err := toolchain.Find(t.Context(), toolchain.Language(lang), lang)
			if err != nil {
				t.Skip(err)
			}
			// The one that was found may not be on PATH.
			t.Setenv("PATH", filepath.Dir(compiler)+string(filepath.ListSeparator)+os.Getenv("PATH"))
			tools := filepath.Join(t.TempDir(), "tools.d")
			if err := os.Mkdir(tools, 0o755); err != nil {
				t.Fatal(err)
			}
			install(t, lang, filepath.Join(tools, "greet"))
			d := hosttest.Start(t, host.Config{Tools: tools})
			for _, c := range cases {
				t.Run(c.Name, func(t *testing.T) { c.check(t, d.Socket) })
			}
		})
	}
}

// install runs the shell block of the language's README and takes away what it
// built.
func install(t *testing.T, lang, to string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(lang, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "```sh\n")
	script, _, ok2 := strings.Cut(rest, "```")
	if !ok || !ok2 {
		t.Fatalf("the README of %s has no shell block", lang)
	}
	build := filepath.Join(lang, "build")
	if _, err := os.Stat(build); os.IsNotExist(err) {
		t.Cleanup(func() { os.RemoveAll(build) })
	}
	cmd := exec.Command("sh", "-euc", script)
	cmd.Dir = lang
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build as the README says: %v\n%s", err, out)
	}
	if err := os.CopyFS(to, os.DirFS(build)); err != nil {
		t.Fatal(err)
	}
}

func (c *example) check(t *testing.T, socket string) {
	call := &wire.Call{Form: wire.Plain, Tool: "greet", Args: c.Args}
	if c.Payload != nil {
		call = &wire.Call{Form: wire.Envelope, Tool: "greet", ExecutionID: "5bd3ea0f-1f50-4d5c-9a4f-6f1f6a2f0c11", Payload: c.Payload}
	}
	res, err := client.Call(t.Context(), socket, call)
	if err != nil {
		t.Fatal(err)
	}
	if c.Code != "" {
		if res.Err == nil || res.Err.Code != c.Code || !strings.Contains(res.Err.Message, c.Says) {
			t.Errorf("answered %v, must be %s with %q", res.Err, c.Code, c.Says)
		}
		return
	}
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if c.Stdout != "" && string(res.Stdout) != c.Stdout {
		t.Errorf("stdout %q, must be %q", res.Stdout, c.Stdout)
	}
	if c.Data != nil {
		var got, want bytes.Buffer
		if json.Compact(&got, res.Data) != nil || json.Compact(&want, c.Data) != nil || got.String() != want.String() {
			t.Errorf("data %s, must be %s", res.Data, c.Data)
		}
	}
}
