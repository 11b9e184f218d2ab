package host_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// TestToolSettings shows what each key of tool.json does to calls that has a test
// elsewhere only of the package which it is handed to.
func TestToolSettings(t *testing.T) {
	d := hosttest.Start(t, config.Config{}) // reliability is off but where a tool has a mode
	shell := func(t *testing.T, name string, def M) {
		t.Helper()
		def["binary"] = "/bin/sh"
		d.Tool(t, name, def, nil)
	}
	call := func(name, key, script string) *answer {
		q := M{"tool": name, "args": []string{"-c", script}, "cwd": d.Root}
		if key != "" {
			q["idempotency_key"] = key
		}
		return ask(t, d.Socket, q)
	}
	// held makes a call that waits for its release.
	held := func(t *testing.T, name, key string) (release func() *answer) {
		t.Helper()
		gate := filepath.Join(d.Root, name)
		if err := unix.Mkfifo(gate, 0o600); err != nil {
			t.Fatal(err)
		}
		watched := watchAll(t, d)
		done := make(chan *answer, 1)
		go func() { done <- call(name, key, "read x <"+name) }()
		watched(events.Attempt)
		return func() *answer {
			if err := os.WriteFile(gate, []byte("x\n"), 0); err != nil {
				t.Error(err)
			}
			return <-done
		}
	}
	ran := func(name string) int {
		text, _ := os.ReadFile(filepath.Join(d.Root, name))
		return len(text)
	}
	const once, fails = "printf x >>$0; echo ok", "printf x >>$0; exit 9"
	as := func(script, name string) string { return strings.ReplaceAll(script, "$0", name) }
	all := func(more M) M {
		r := M{"mode": "all", "retriable_exits": []int{9}, "retry": M{"max": 0}}
		for k, v := range more {
			r[k] = v
		}
		return M{"mutating": true, "reliability": r}
	}

	t.Run("environment_seen", func(t *testing.T) {
		shell(t, "seen", M{"environment_seen": M{"SHOW_ME": "use --me"}})
		a := ask(t, d.Socket, M{"tool": "seen", "args": []string{"-c", "true"}, "cwd": d.Root, "env_seen": []string{"SHOW_ME", "OTHER"}})
		if !strings.Contains(a.Stderr, "SHOW_ME of your environment is not passed on; use --me") || strings.Contains(a.Stderr, "OTHER") {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("annotations: read_only, destructive, idempotent, open_world", func(t *testing.T) {
		said := M{"read_only": true, "destructive": false, "idempotent": true, "open_world": false}
		shell(t, "annotated", M{"annotations": said})
		shell(t, "changes", M{"annotations": said, "mutating": true})
		call("annotated", "", "true") // until they are loaded
		call("changes", "", "true")
		a := ask(t, d.Socket, M{"toolId": "tools.list", "executionId": newExecution(), "payload": M{}})
		var list struct {
			Data struct {
				Tools []struct {
					Name        string
					Annotations M
				}
			}
		}
		if err := json.Unmarshal(a.raw, &list); err != nil {
			t.Fatal(err)
		}
		shown := map[string]M{}
		for _, tool := range list.Data.Tools {
			shown[tool.Name] = tool.Annotations
		}
		if !maps.Equal(shown["annotated"], said) || shown["changes"]["read_only"] != false {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("user", func(t *testing.T) {
		shell(t, "other-user", M{"user": "12345:12346", "capabilities": M{"exec": []string{"/usr/bin/id"}}})
		a := call("other-user", "", "id -u; id -g")
		if os.Geteuid() == 0 && os.Getenv("TOOLD_TEST_CONFINE") == "" {
			if a.Stdout != "12345\n12346\n" {
				t.Errorf("%s", a.raw)
			}
		} else if a.Code != "TOOL_BROKEN" || !strings.Contains(string(a.Error), "a tool cannot have a user of its own") {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("limits.compile.module", func(t *testing.T) {
		d.Tool(t, "large", M{"limits": M{"compile": M{"module": "1KiB"}}}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
		if a := ask(t, d.Socket, M{"tool": "large"}); a.Code != "TOOL_BROKEN" || !strings.Contains(string(a.Error), "more than 1024; raise limits.compile.module") {
			t.Errorf("%s", a.raw)
		}
	})
	t.Run("limits.compile.time and memory", func(t *testing.T) {
		module := filepath.Join(t.TempDir(), "slow.wasm")
		if err := os.WriteFile(module, slowToCompile(), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			limit M
			want  string
		}{
			"compile-time":   {M{"time": 1}, "more than 1s"},
			"compile-memory": {M{"memory": "64MiB"}, "more than 64 MiB of memory"},
		} {
			d.Tool(t, name, M{"entry": M{"export": "run"}, "limits": M{"compile": tt.limit}}, map[string]string{"handler.wasm": module})
			if a := ask(t, d.Socket, M{"tool": name}); a.Code != "TOOL_BROKEN" || !strings.Contains(string(a.Error), tt.want) || !strings.Contains(string(a.Error), "raise limits.compile") {
				t.Errorf("%s: %s", name, a.raw)
			}
		}
	})
	t.Run("limits.fuel and memory", func(t *testing.T) {
		for name, tt := range map[string]struct {
			limits M
			args   []string
			want   string
		}{
			"fuel":   {M{"fuel": 100_000_000}, []string{"loop"}, "used its 100000000 units of fuel"},
			"memory": {M{"memory": "64KiB"}, []string{"calls"}, "may have 65536; raise limits.memory"},
		} {
			d.Tool(t, name, M{"capabilities": M{"state": 1024, "exec": []string{"/bin/echo"}, "http": M{"hosts": []string{"nowhere.test"}}}, "limits": tt.limits}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
			if a := ask(t, d.Socket, M{"tool": name, "args": tt.args, "cwd": d.Root}); !strings.Contains(string(a.Error), tt.want) {
				t.Errorf("%s: %s", name, a.raw)
			}
		}
	})
	t.Run("limits.output", func(t *testing.T) {
		shell(t, "output", M{"limits": M{"output": "1KiB"}})
		if a := call("output", "", "printf %0100000d 0"); len(a.Stdout) > 1024 || !strings.Contains(a.Stdout, "0") {
			t.Errorf("%d bytes: %.300s", len(a.Stdout), a.raw)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		shell(t, "timeout", M{"timeout": 0.2})
		began := time.Now()
		if err := unix.Mkfifo(filepath.Join(d.Root, "never"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := ask(t, d.Socket, M{"tool": "timeout", "args": []string{"-c", "read x <never"}, "cwd": d.Root, "timeout_ms": 20_000})
		if took := time.Since(began); a.Code != "TIMEOUT" || took > 15*time.Second {
			t.Errorf("after %v: %s", took, a.raw)
		}
	})
	t.Run("stdin", func(t *testing.T) {
		for name, want := range map[string]string{"taken": "got x\n", "untaken": "got\n"} {
			shell(t, name, M{"stdin": name == "taken"})
			res, out, errs := d.Stream(t, &wire.Call{Tool: name, Args: []string{"-c", "read x; echo got $x"}, Cwd: d.Root}, "x\n")
			if out != want {
				t.Errorf("%s: %v, %v, %+v", name, out, errs, res)
			}
		}
	})
	t.Run("reliability.retry.budget.share", func(t *testing.T) {
		def := all(M{"retry": M{"max": 1, "initial_ms": 1, "cap_ms": 1, "budget": M{"share": 1, "burst": 1}}, "breaker": M{"failures": 1000}})
		def["mutating"] = false
		shell(t, "share", def)
		for range 4 {
			call("share", "", as(fails, "share.ran"))
		}
		if n := ran("share.ran"); n != 8 { // a tenth of that by default
			t.Errorf("four calls ran %d times", n)
		}
	})
	t.Run("idempotent", func(t *testing.T) {
		for name, want := range map[string]int{"idempotent": 2, "not-idempotent": 1} {
			def := all(M{"retry": M{"max": 1, "initial_ms": 1}})
			def["idempotent"] = name == "idempotent"
			shell(t, name, def)
			call(name, "", as(fails, name+".ran"))
			if n := ran(name + ".ran"); n != want {
				t.Errorf("%s ran %d times, must %d", name, n, want)
			}
		}
	})
	t.Run("limits.queue", func(t *testing.T) {
		shell(t, "queue", M{"limits": M{"concurrency": 1, "queue": 1}})
		release := held(t, "queue", "")
		// Of two more one waits, and the other is refused.
		two := make(chan *answer, 2)
		for range 2 {
			go func() { two <- call("queue", "", "true") }()
		}
		select {
		case a := <-two:
			if a.Code != "OVERLOADED" {
				t.Errorf("the first answer: %s", a.raw)
			}
		case <-time.After(20 * time.Second):
			t.Error("neither is refused")
		}
		release()
		if a := <-two; a.Status != "success" {
			t.Errorf("one that waited: %s", a.raw)
		}
	})
	t.Run("reliability.mode", func(t *testing.T) {
		shell(t, "mode", all(nil))
		shell(t, "none", M{"mutating": true})
		for name, want := range map[string]int{"mode": 1, "none": 2} {
			for range 2 {
				call(name, "k", as(once, name+".ran"))
			}
			if n := ran(name + ".ran"); n != want {
				t.Errorf("%s ran %d times with one key, must %d", name, n, want)
			}
		}
	})
	t.Run("reliability.on_duplicate", func(t *testing.T) {
		shell(t, "duplicate", all(M{"on_duplicate": "fail"}))
		release := held(t, "duplicate", "k")
		again := make(chan *answer, 1)
		go func() { again <- call("duplicate", "k", "read x <duplicate") }()
		select {
		case a := <-again:
			if a.Code != "IDEMPOTENCY_PENDING" {
				t.Errorf("%s", a.raw)
			}
		case <-time.After(20 * time.Second):
			t.Error("it waits")
		}
		release()
	})
	t.Run("reliability.ttl", func(t *testing.T) {
		shell(t, "ttl", all(M{"ttl": 0.2}))
		until(t, "a second run", func() bool { call("ttl", "k", as(once, "ttl.ran")); return ran("ttl.ran") > 1 })
	})
	t.Run("reliability.failed_ttl", func(t *testing.T) {
		shell(t, "failed", all(M{"failed_ttl": 0}))
		shell(t, "kept", all(M{"failed_ttl": 3600}))
		for name, want := range map[string]int{"failed": 2, "kept": 1} {
			for range 2 {
				if a := call(name, "k", as(fails, name+".ran")); a.Code != "TOOL_FAILED" {
					t.Errorf("%s: %s", name, a.raw)
				}
			}
			if n := ran(name + ".ran"); n != want {
				t.Errorf("%s ran %d times, must %d", name, n, want)
			}
		}
	})
	t.Run("reliability.breaker.window and ratio", func(t *testing.T) {
		for name, tt := range map[string]struct {
			breaker M
			exits   []int
			want    string
		}{
			"window": {M{"failures": 1000, "window": 2}, []int{9, 9}, "CIRCUIT_OPEN"},
			"half":   {M{"failures": 1000, "window": 2}, []int{0, 9}, "CIRCUIT_OPEN"},
			"ratio":  {M{"failures": 1000, "window": 2, "ratio": 1}, []int{0, 9}, ""},
		} {
			shell(t, name, all(M{"breaker": tt.breaker}))
			for _, code := range tt.exits {
				call(name, "", fmt.Sprint("exit ", code))
			}
			if a := call(name, "", "true"); string(a.Code) != tt.want {
				t.Errorf("%s: %s", name, a.raw)
			}
		}
	})
	t.Run("reliability.retry.initial_ms and cap_ms", func(t *testing.T) {
		for name, tt := range map[string]struct {
			retry    M
			timeout  int
			attempts int
		}{
			"initial": {M{"max": 1, "initial_ms": 3_600_000, "cap_ms": 3_600_000}, 3000, 1},                              // half a second by default
			"cap":     {M{"max": 10, "initial_ms": 100, "cap_ms": 100, "budget": M{"share": 1, "burst": 100}}, 5000, 11}, // 13 s by default
		} {
			shell(t, name, M{"reliability": M{"mode": "all", "retriable_exits": []int{9}, "retry": tt.retry, "breaker": M{"failures": 1000}}})
			watched := watchAll(t, d)
			a := ask(t, d.Socket, M{"tool": name, "args": []string{"-c", "exit 9"}, "cwd": d.Root, "timeout_ms": tt.timeout})
			if e := watched(events.End); e.Attempts != tt.attempts {
				t.Errorf("%s: %d attempts, must be %d: %s", name, e.Attempts, tt.attempts, a.raw)
			}
		}
	})
}

// slowToCompile is a module of a few hundred KiB that takes a compiler seconds and some
// 100 MiB: one function with 2,000 locals, of which 60,000 blocks need two at once.
func slowToCompile() []byte {
	uleb := func(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }
	sized := func(b []byte) []byte { return append(uleb(len(b)), b...) }
	body := slices.Concat([]byte{1}, uleb(2000), []byte{0x7f}) // locals: i32
	local := func(op byte, i int) { body = append(append(body, op), uleb(i%2000)...) }
	for i := range 60_000 {
		local(0x20, i*7)
		local(0x20, i*13)
		body = append(body, 0x6a, 0x04, 0x40) // i32.add, if
		local(0x20, i*3)
		local(0x21, i*11)
		body = append(body, 0x0b)
	}
	body = append(body, 0x41, 0, 0x0b) // i32.const 0, end
	m := []byte("\x00asm\x01\x00\x00\x00")
	for _, section := range []struct {
		id   byte
		body []byte
	}{{1, []byte{1, 0x60, 0, 1, 0x7f}}, {3, []byte{1, 0}}, {7, []byte("\x01\x03run\x00\x00")}, {10, append([]byte{1}, sized(body)...)}} {
		m = append(append(m, section.id), sized(section.body)...)
	}
	return m
}
