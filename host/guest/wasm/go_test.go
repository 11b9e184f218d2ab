package wasm

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

// goGuest is a Go program that exports work of several kinds.
const goGuest = `package main

import (
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"sort"
	"strings"
)

var re = regexp.MustCompile("(?i)^(push|fetch)\\s+([a-z0-9/_-]+)\\s+--(force|tags)$")

//go:wasmexport sha
func sha(n uint32) uint32 {
	b := make([]byte, 65536)
	var s [32]byte
	for range n {
		s = sha256.Sum256(b)
		b[0] = s[0]
	}
	return uint32(s[0]) | uint32(s[1])<<8
}

//go:wasmexport rx
func rx(n uint32) uint32 {
	c := uint32(0)
	for range n {
		if re.MatchString("push origin/feature-branch_01/abc/def --force") {
			c++
		}
		if re.MatchString("push origin/feature branch_01/abc/def --nope") {
			c++
		}
	}
	return c
}

//go:wasmexport js
func js(n uint32) uint32 {
	in := []byte("{\"a\":[1,2,3,{\"b\":\"" + strings.Repeat("x", 200) + "\"}],\"c\":{\"d\":1.5,\"e\":true,\"f\":null,\"g\":[\"x\",\"y\",\"z\"]}}")
	c := 0
	for range n {
		var v map[string]any
		json.Unmarshal(in, &v)
		o, _ := json.Marshal(v)
		c += len(o)
	}
	return uint32(c)
}

//go:wasmexport srt
func srt(n uint32) uint32 {
	x := make([]int, 10000)
	for range n {
		s := uint32(12345)
		for j := range x {
			s = s*1664525 + 1013904223
			x[j] = int(s >> 8)
		}
		sort.Ints(x)
	}
	return uint32(x[0])
}

func main() {}
`

// buildGo compiles a Go program for WASI, as a library.
func buildGo(t testing.TB, source string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"main.go": source, "go.mod": "module guest\n\ngo 1.26\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", "guest.wasm", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build a Go guest: %v\n%s", err, out)
	}
	module, err := os.ReadFile(filepath.Join(dir, "guest.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return module
}

var goModule = struct {
	sync.Once
	bytes []byte
}{}

func goGuestModule(t testing.TB) []byte {
	goModule.Do(func() { goModule.bytes = buildGo(t, goGuest) })
	if goModule.bytes == nil {
		t.Skip("the Go guest was not built")
	}
	return goModule.bytes
}

func call(t testing.TB, m api.Module, f string, args ...uint64) []uint64 {
	t.Helper()
	res, err := m.ExportedFunction(f).Call(context.Background(), args...)
	if err != nil {
		t.Fatalf("call %s: %v", f, err)
	}
	return res
}

func TestGoGuest(t *testing.T) {
	module := goGuestModule(t)
	m := mustRewrite(t, module)
	h := newHost(t).withWASI()
	plain, err := h.plain(module, "plain")
	if err != nil {
		t.Fatal(err)
	}
	metered, err := h.rewritten(m, "metered")
	if err != nil {
		t.Fatal(err)
	}
	call(t, plain, "_initialize")
	call(t, metered, "_initialize")
	for _, f := range []string{"sha", "rx", "js", "srt"} {
		before := h.refills
		if p, m := call(t, plain, f, 2)[0], call(t, metered, f, 2)[0]; p != m {
			t.Errorf("%s gives %d plain and %d metered", f, p, m)
		}
		if h.refills == before {
			t.Errorf("%s used no fuel", f)
		}
	}
	t.Logf("%d bytes became %d; %d segments of data, globals %v", len(module), len(m.Bytes), len(m.Data), m.Globals)
}
