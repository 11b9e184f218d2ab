package host_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// ownMemory returns the anonymous memory of a daemon after a collection, in KiB.
func ownMemory(t *testing.T, p *hosttest.Process) (kib int) {
	t.Helper()
	st, err := client.NewAdmin(p.Admin).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	collect := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialUnix(p.Admin)}}
	for range 2 {
		resp, err := collect.Get("http://toold/debug/pprof/heap?gc=1")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "RssAnon:") {
			fmt.Sscanf(line, "RssAnon: %d kB", &kib)
		}
	}
	return kib
}

// TestCapacity prints what things cost a daemon: the tables of docs/capacity.md. It runs
// only where TOOLD_CAPACITY is set (make capacity), and judges nothing.
func TestCapacity(t *testing.T) {
	if os.Getenv("TOOLD_CAPACITY") == "" {
		t.Skip("set TOOLD_CAPACITY, or make capacity")
	}
	issuer, yes := hosttest.NewIssuer(t), true
	p := hosttest.StartProcess(t, config.Config{
		MaxConnections: 4096, Reliability: "all", Identity: config.IdentityConfig{JWKS: issuer.JWKS, AllowUID: &yes},
		Sessions: config.SessionsConfig{Limit: 4096},
	})
	memory := func() int { return ownMemory(t, p) }
	disk := func(name string) (bytes int64) {
		filepath.WalkDir(filepath.Join(p.State, name), func(_ string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				if info, err := e.Info(); err == nil {
					bytes += info.Size()
				}
			}
			return nil
		})
		return bytes
	}
	row := func(what string, n int, f func(), folders ...string) {
		t.Helper()
		before := memory()
		was := map[string]int64{}
		for _, name := range folders {
			was[name] = disk(name)
		}
		f()
		line := fmt.Sprintf("| %s | %.1f KiB |", what, float64(memory()-before)/float64(n))
		var on []string
		for _, name := range folders {
			on = append(on, fmt.Sprintf("%.1f KiB in `%s`", float64(disk(name)-was[name])/1024/float64(n), name))
		}
		fmt.Println(line, strings.Join(on, ", "), "|")
	}
	call := func(token, tool, key string) {
		t.Helper()
		q := M{"tool": tool, "args": []string{"x"}, "cwd": p.Root, "token": token}
		if key != "" {
			q["idempotency_key"] = key
		}
		if a := ask(t, p.Socket, q); a.Code != "" || a.ExitCode != 0 {
			t.Fatalf("%s", a.raw)
		}
	}
	fmt.Printf("| a daemon without tools | %.1f MiB | |\n", float64(memory())/1024)
	hosttest.WriteTool(t, p.Tools, "echo", M{"binary": "/bin/echo"}, nil)
	hosttest.WriteTool(t, p.Tools, "change", M{"binary": "/bin/echo", "mutating": true}, nil)
	call("", "echo", "")
	row("a connection, idle", 1000, func() {
		for range 1000 {
			nc, err := net.Dial("unix", p.Socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
		}
		call("", "echo", "") // after they were accepted
	})
	row("a session", 1000, func() {
		mine := client.Sessions{Socket: p.Socket}
		for range 1000 {
			data, err := mine.Do(t.Context(), client.SessionCall{Name: "mutate", Payload: M{"op": "create"}})
			if err != nil || !json.Valid(data) {
				t.Fatal(err)
			}
		}
	}, "sessions")
	row("an identity with one call (its default session)", 500, func() {
		for i := range 500 {
			call(issuer.Token(t, M{"sub": fmt.Sprint("user-", i)}), "echo", "")
		}
	}, "sessions", "audit")
	row("a call that only reads", 1000, func() {
		for range 1000 {
			call("", "echo", "")
		}
	}, "sessions", "audit")
	row("a call with a key, that changes something", 500, func() {
		for i := range 500 {
			call("", "change", fmt.Sprint("key-", i))
		}
	}, "sessions", "audit", "idempotency.db")
	module := hosttest.Guest(t, "plugins/echo")
	for i := range 48 {
		// Each another module, with another section at its end.
		text, err := os.ReadFile(module)
		if err != nil {
			t.Fatal(err)
		}
		own := filepath.Join(t.TempDir(), "handler.wasm")
		if err := os.WriteFile(own, append(text, 0, 4, 2, 'n', 'o', byte(i)), 0o644); err != nil {
			t.Fatal(err)
		}
		hosttest.WriteTool(t, p.Tools, fmt.Sprintf("module%d", i), M{}, map[string]string{"handler.wasm": own})
	}
	row("a module of Go's, ready to be called", 48, func() {
		for i := range 48 {
			call("", fmt.Sprintf("module%d", i), "")
		}
	}, "cache")
	for _, what := range []struct{ name, tool, key string }{{"a binary", "echo", ""}, {"a binary that changes something, with a key", "change", "t"}, {"a module", "module0", ""}} {
		var took []time.Duration
		for i := range 200 {
			key := what.key
			if key != "" {
				key += fmt.Sprint(i)
			}
			begun := time.Now()
			call("", what.tool, key)
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		fmt.Printf("| a call of %s | %v | %v |\n", what.name, took[100].Round(10*time.Microsecond), took[190].Round(10*time.Microsecond))
	}
}

// TestCapacityOfTools prints what 1,000 tools with a C module each cost a daemon, before
// and after each is called once: the other rows of docs/capacity.md.
func TestCapacityOfTools(t *testing.T) {
	if os.Getenv("TOOLD_CAPACITY") == "" {
		t.Skip("set TOOLD_CAPACITY, or make capacity")
	}
	if _, err := exec.LookPath("clang"); err != nil {
		t.Skip("clang is not installed: the module in C is not built")
	}
	built := filepath.Join(t.TempDir(), "handler.wasm")
	build := exec.Command("clang", "--target=wasm32", "-O2", "-nostdlib", "-Wl,--no-entry", "-Wl,-s", "-I../pdk/c", "-o", built, "../sdk-examples/c/handler.c")
	if msg, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	module, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	const tools = 1000
	var digests [1 + tools]string
	p := hosttest.StartProcess(t, config.Config{})
	admin := client.NewAdmin(p.Admin)
	// add writes tools, waits until each has been loaded, and returns what they take.
	add := func(first, n int) int {
		before := ownMemory(t, p)
		for i := first; i < first+n; i++ {
			code := binary.LittleEndian.AppendUint16(append(slices.Clone(module), 0, 5, 2, 'n', 'o'), uint16(i))
			digests[i] = fmt.Sprintf("%x", sha256.Sum256(code))
			own := filepath.Join(t.TempDir(), "handler.wasm")
			if err := os.WriteFile(own, code, 0o644); err != nil {
				t.Fatal(err)
			}
			hosttest.WriteTool(t, p.Tools, fmt.Sprintf("greet%d", i), M{}, map[string]string{"handler.wasm": own})
		}
		for i := first; i < first+n; i++ {
			if err := admin.Wait(t.Context(), fmt.Sprintf("greet%d", i), digests[i], time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		return ownMemory(t, p) - before
	}
	call := func(i int) {
		t.Helper()
		if a := ask(t, p.Socket, M{"tool": fmt.Sprintf("greet%d", i), "args": []string{"x"}, "cwd": p.Root}); a.Code != "" {
			t.Fatalf("%s", a.raw)
		}
	}
	add(0, 1)
	call(0) // the engine is there
	never := add(1, tools)
	fmt.Printf("| 1,000 tools with a C module (%d bytes), never called | %.1f MiB |\n", len(module), float64(never)/1024)
	before := ownMemory(t, p)
	for i := range tools {
		call(1 + i)
	}
	fmt.Printf("| the same, each was called once | %.1f MiB |\n", float64(never+ownMemory(t, p)-before)/1024)
}
