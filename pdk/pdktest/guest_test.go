package pdktest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/toolchain"
)

// TestGuest runs the suite on the module that TOOLD_GUEST names: of an SDK that
// is not one of ours.
func TestGuest(t *testing.T) {
	file := os.Getenv("TOOLD_GUEST")
	if file == "" {
		t.Skip("TOOLD_GUEST names no module")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, b)
}

// TestSDKPage tries what docs/writing-an-sdk.md says: its tool answers, and its
// commands are green for a guest that follows the rules and red for one that
// does not.
func TestSDKPage(t *testing.T) {
	page := read(t, "../../docs/writing-an-sdk.md")
	block := func(language string) string {
		_, text, ok := strings.Cut(page, "\n```"+language+"\n")
		if !ok {
			t.Fatalf("the page has no block of %s", language)
		}
		text, page, _ = strings.Cut(text, "\n```\n")
		return text
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "handler.c"), []byte(block("c")), 0o600); err != nil {
		t.Fatal(err)
	}
	hello := buildGuest(t, toolchain.Options{Language: toolchain.C, Dir: dir, Source: "handler.c"})
	e, err := guest.New(guest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	m, err := e.Load(t.Context(), guest.Spec{Name: "handler.wasm", Wasm: hello})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	reply, err := m.Call(context.Background(), guest.Invocation{Export: "handle", Input: []byte(`{"tool":"hello"}`)})
	if want := `{"exit_code":0,"stdout":"Hello!\n"}`; err != nil || string(reply.Output) != want {
		t.Errorf("answered %s, %v, must be %s", reply.Output, err, want)
	}

	suite, fuzz := block("sh"), strings.Replace(block("sh"), "5m", "5x", 1)
	right := buildGuest(t, toolchain.Options{Language: toolchain.C, Dir: "../c/conformance", Source: "guest.c"})
	for _, tt := range []struct {
		command string
		wasm    []byte
		green   bool
	}{{suite, right, true}, {suite, hello, false}, {fuzz, right, true}, {fuzz, hello, false}} {
		file := filepath.Join(dir, "conformance.wasm")
		if err := os.WriteFile(file, tt.wasm, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-euc", strings.Replace(tt.command, "$PWD", dir, 1))
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); (err == nil) != tt.green || strings.Contains(string(out), "no tests to run") {
			t.Errorf("%s: %v, green must be %v: %s", tt.command, err, tt.green, out)
		}
	}
}
