package guest

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateWASI = flag.Bool("update-wasi", false, "ask wasmtime anew for testdata/wasi.json")

// asked is the module of TestWASIAnswers: every function of preview 1, on the standard
// descriptors, on that of a folder and on one that there is not, with no
// bytes, no path and zeros for all else. Each call is an export of its own; "_start" writes
// all answers to the standard output, in the order of calls.
func asked(command bool) (code []byte, calls []string) {
	a := &asm{}
	imports := map[string]uint32{}
	// Those end the call or wait, answer nothing, are not preview 1's, or leave other
	// descriptors; or what they answer depends on what is given.
	left := []string{"proc_exit", "proc_raise", "poll_oneoff", "sched_yield", "random_get", "sock_accept", "adapter_close_badfd", "adapter_open_badfd", "fd_close", "fd_renumber", "args_get", "environ_get"}
	fns := slices.DeleteFunc(wasiFuncs(), func(f hostFunc) bool { return slices.Contains(left, f.name) })
	slices.SortFunc(fns, func(a, b hostFunc) int { return strings.Compare(a.name, b.name) })
	for _, f := range fns {
		imports[f.name] = a.imp(wasiModule, f.name, []byte(f.params), []byte(f.results))
	}
	var answer func(value []byte) []byte
	if !command {
		answer = a.answerer()
	}
	a.memory(1)
	var all []byte
	for _, f := range fns {
		for _, fd := range []int32{0, 1, 2, 3, 9} {
			var args []byte
			for i, p := range f.params {
				switch {
				case i == 0 && (f.name[:3] == "fd_" || f.name[:5] == "path_" || f.name[:5] == "sock_"), i == 2 && f.name == "path_symlink":
					args = cat(args, i32c(fd))
				case p == i64:
					args = cat(args, i64c(0))
				case i == 2:
					args = cat(args, i32c(0))
				case f.name == "fd_read", f.name == "fd_pread", f.name == "fd_write", f.name == "fd_pwrite", f.name == "fd_readdir":
					args = cat(args, i32c(int32(1024+64*i))) // buffers of no length, and room for the answer
				default:
					args = cat(args, i32c(0))
				}
			}
			call := fmt.Sprintf("%s %d", f.name, fd)
			if command {
				all = cat(all, i32c(int32(32000+len(calls))), args, callf(imports[f.name]), op(0x3a, 0, 0)) // i32.store8
			} else {
				a.exported(call, nil, answer(cat(args, callf(imports[f.name]))), i32c(0))
			}
			calls = append(calls, call)
		}
	}
	if command {
		a.data(512, binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 32000), uint32(len(calls))))
		a.export("_start", 0, a.fn(nil, nil, nil, all, i32c(1), i32c(512), i32c(1), i32c(600), callf(imports["fd_write"]), drop))
	}
	return a.bytes(), calls
}

// wasiDifferences are the answers that are not wasmtime's: flags of the standard
// streams may be set, and have no effect.
var wasiDifferences = map[string]string{"fd_fdstat_set_flags 0": "0 8", "fd_fdstat_set_flags 1": "0 8", "fd_fdstat_set_flags 2": "0 8"}

// TestWASIAnswers: a command, a handler with a folder and one without are told the
// same, which is what wasmtime tells.
func TestWASIAnswers(t *testing.T) {
	const recorded = "testdata/wasi.json"
	code, calls := asked(true)
	if *updateWASI {
		path := filepath.Join(t.TempDir(), "asked.wasm")
		if err := os.WriteFile(path, code, 0o644); err != nil {
			t.Fatal(err)
		}
		request, err := json.Marshal(map[string]any{"module": path, "code": path + ".c", "args": []string{"asked"}, "env": map[string]string{}, "dirs": map[string]string{"/data": t.TempDir()}, "stdin": ""})
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "../../.cache/corpus/wasmtime/bin/python", "../compat/testdata/commands.py")
		cmd.Stdin, cmd.Stderr = strings.NewReader(string(request)+"\n"), os.Stderr
		out, err := cmd.Output()
		var a struct{ Stdout, Error string }
		if err == nil {
			err = json.Unmarshal(out, &a)
		}
		said, err2 := base64.StdEncoding.DecodeString(a.Stdout)
		if err != nil || err2 != nil || len(said) != len(calls) {
			t.Fatalf("%v, %v: %s\n%s", err, err2, a.Error, out)
		}
		answers := map[string]int{}
		for i, call := range calls {
			answers[call] = int(said[i])
		}
		b, err := json.MarshalIndent(answers, "", "\t")
		if err == nil {
			err = os.WriteFile(recorded, append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]int
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if have := slices.Sorted(maps.Keys(want)); !slices.Equal(have, slices.Sorted(slices.Values(calls))) {
		t.Fatalf("%s is of other calls: %v", recorded, have)
	}
	e := newEngine(t)
	data := []Mount{{Guest: "/data", Host: t.TempDir()}}
	var out strings.Builder
	m := load(t, e, Spec{Name: "command", Wasm: code})
	if _, _, err := m.Run(t.Context(), Command{Args: []string{"asked"}, Stdout: &out, Dirs: data}); err != nil {
		t.Fatal(err)
	}
	code, _ = asked(false)
	with := load(t, e, Spec{Name: "with a folder", Wasm: code, Files: data})
	without := load(t, e, Spec{Name: "without one", Wasm: code})
	for i, call := range calls {
		theirs := fmt.Sprint(want[call])
		ours := fmt.Sprint(out.String()[i])
		if ours != theirs && wasiDifferences[call] != ours+" "+theirs {
			t.Errorf("%q: %q,", call, ours+" "+theirs)
		}
		if got := fmt.Sprint(answered(t, with, call)); got != ours {
			t.Errorf("%s: a command is told %s, a handler %s", call, ours, got)
		}
		if strings.HasSuffix(call, " 3") {
			ours = fmt.Sprint(out.String()[i+1]) // as of one that there is not
		}
		if got := fmt.Sprint(answered(t, without, call)); got != ours {
			t.Errorf("%s: a command is told %s, a handler without a folder %s", call, ours, got)
		}
	}
	for call, differs := range wasiDifferences {
		if ours, theirs, _ := strings.Cut(differs, " "); ours == theirs || theirs != fmt.Sprint(want[call]) {
			t.Errorf("%s is the same now", call)
		}
	}
}

// TestFilesAreBroughtBack: an instance with a folder serves one call after another. Each
// begins with the descriptors that the first began with, and sees what the folder is then.
func TestFilesAreBroughtBack(t *testing.T) {
	a := &asm{}
	open := a.imp(wasiModule, "path_open", op(0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7e, 0x7e, 0x7f, 0x7f), op(0x7f))
	closes := a.imp(wasiModule, "fd_close", op(0x7f), op(0x7f))
	answer := a.answerer()
	a.memory(1)
	a.data(0, []byte("f"))
	opens := cat(i32c(3), i32c(0), i32c(0), i32c(1), i32c(0), i64c(rightRead), i64c(0), i32c(0), i32c(64), callf(open))
	a.exported("open", nil, opens, drop, answer(cat(i32c(64), load32(0))), i32c(0)) // and leaves it open
	a.exported("close", nil, i32c(3), callf(closes), drop, i32c(1), callf(closes), drop, answer(opens), i32c(0))
	m := load(t, newEngine(t), Spec{Name: "files", Wasm: a.bytes(), Files: []Mount{{Guest: "/data", Host: t.TempDir()}}})
	dir := m.spec.Files[0].Host
	write := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write()
	before, _ := os.ReadDir("/proc/self/fd")
	var made *instance
	for i := range 20 {
		reply, err := m.Call(context.Background(), Invocation{Export: "open"})
		if err != nil || binary.LittleEndian.Uint32(reply.Output) != 4 {
			t.Fatalf("call %d opens %v, %v", i, reply.Output, err)
		}
		if m.e.strategy < strategyPagemap {
			continue
		}
		if reply.Stats.NotRestored != "" {
			t.Fatalf("call %d: the instance is not used again: %s", i, reply.Stats.NotRestored)
		}
		m.pool.mu.Lock()
		again := m.pool.idle[len(m.pool.idle)-1]
		m.pool.mu.Unlock()
		if made != nil && made != again {
			t.Errorf("call %d had another instance", i)
		}
		if made = again; again.wasi.files != 0 || len(again.wasi.fds) != 0 || len(again.wasi.folders) != 0 {
			t.Errorf("an instance that waits has %d files, %d descriptors and %d folders open", again.wasi.files, len(again.wasi.fds), len(again.wasi.folders))
		}
	}
	if got := answered(t, m, "close"); got != eBADF {
		t.Errorf("a folder that was closed answers %d", got)
	}
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before)+4 {
		t.Errorf("%d descriptors became %d", len(before), len(after))
	}
	// The folder is another now.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write()
	if got := answered(t, m, "open"); got != 4 {
		t.Errorf("in a folder that was made anew, a file opens as %d", got)
	}
}
