package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	extism "github.com/extism/go-sdk"
	"github.com/tetratelabs/wazero"

	"github.com/toold/toold/host/wire"
)

// sdkFolder is go-sdk's own folder of modules, in the module cache.
func sdkFolder(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/extism/go-sdk").Output()
	if err != nil {
		t.Skipf("go-sdk's sources are not there: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "wasm")
}

// TestOracle runs go-sdk's own modules on go-sdk and here: the same output,
// the same error, the same variables.
func TestOracle(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling go-sdk's modules twice takes a minute")
	}
	dir := sdkFolder(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.wasm"))
	if err != nil || len(files) == 0 {
		t.Skipf("%s holds no modules", dir)
	}
	// What a module needs that neither gives to every one of them.
	skip := map[string]string{
		"host.wasm": "imports a function of go-sdk's tests", "host_memory.wasm": "imports a function of go-sdk's tests",
		"host_multiple.wasm": "imports functions of go-sdk's tests",
		"main.wasm":          "is one of several modules of a manifest", "lib.wasm": "is one of several modules of a manifest",
		"http.wasm": "asks a server on the internet", "http_headers.wasm": "asks a server on the internet",
		"fs.wasm": "needs a folder", "fs_std.wasm": "needs a folder", "read_write.wasm": "needs a folder",
		"sleep.wasm": "sleeps until its deadline", "nested.c.instr.wasm": "imports functions of an observer",
	}
	r := rand.New(rand.NewSource(1))
	inputs := [][]byte{nil, []byte("a"), []byte("hello, world"), bytes.Repeat([]byte("aeiou "), 1000)}
	for range 6 {
		p := make([]byte, r.Intn(300))
		for i := range p {
			p[i] = byte(' ' + r.Intn(95))
		}
		inputs = append(inputs, p)
	}
	e := newEngine(t)
	compared := 0
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			if why, ok := skip[name]; ok {
				t.Skip(why)
			}
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			config := map[string]string{"thing": "hello", "vowels": "aeiouyAEIOUY"}
			m, err := e.Load(context.Background(), Spec{Name: name, Wasm: code, Grants: Grants{HTTP: true, State: true}, Config: config})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			sdk, err := extism.NewCompiledPlugin(context.Background(), extism.Manifest{Wasm: []extism.Wasm{extism.WasmData{Data: code}}, Config: config},
				extism.PluginConfig{EnableWasi: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer sdk.Close(context.Background())
			for _, export := range m.callables() {
				for _, in := range inputs {
					vars := map[string][]byte{}
					reply, ourErr := m.Call(context.Background(), Invocation{Export: export, Input: in, Services: Services{
						VarGet: func(k string) []byte { return vars[k] },
						VarSet: func(k string, v []byte) error {
							if v == nil {
								delete(vars, k)
							} else {
								vars[k] = v
							}
							return nil
						},
					}})
					p, err := sdk.Instance(context.Background(), extism.PluginInstanceConfig{ModuleConfig: wazero.NewModuleConfig().WithSysWalltime().WithSysNanotime()})
					if err != nil {
						t.Fatal(err)
					}
					rc, out, theirErr := p.CallWithContext(context.Background(), export, in)
					theirVars := p.Var
					p.Close(context.Background())
					if theirErr == nil && rc != 0 {
						theirErr = fmt.Errorf("answered %d", rc)
					}
					if (ourErr == nil) != (theirErr == nil) {
						t.Errorf("%s(%.40q): our error is %v, go-sdk's is %v", export, in, ourErr, theirErr)
						continue
					}
					if ourErr != nil {
						if e, _ := errors.AsType[*wire.Error](ourErr); e.Code == wire.ToolFailed && !strings.Contains(e.Message, "answered") && e.Message != theirErr.Error() {
							t.Errorf("%s(%.40q): our message is %q, go-sdk's %q", export, in, e.Message, theirErr)
						}
						continue
					}
					compared++
					if !bytes.Equal(reply.Output, out) {
						t.Errorf("%s(%.40q) answered %.80q here and %.80q on go-sdk", export, in, reply.Output, out)
					}
					if fmt.Sprint(vars) != fmt.Sprint(theirVars) {
						t.Errorf("%s(%.40q) left variables %v here and %v on go-sdk", export, in, vars, theirVars)
					}
				}
			}
		})
	}
	t.Logf("%d answers compared", compared)
}

// kernelModule hands each of the kernel's functions out under its own name, as
// exports that take what they need from the input: op, a, b.
func kernelModule() []byte {
	var a asm
	d, dd, w := op(0x7e), op(0x7e, 0x7e), op(0x7f)
	type fn struct {
		name string
		p, r []byte
	}
	fns := []fn{
		{"alloc", d, d}, {"free", d, nil}, {"length", d, d}, {"length_unsafe", d, d}, {"load_u8", d, w},
		{"store_u8", op(0x7e, 0x7f), nil}, {"store_u64", dd, nil}, {"load_u64", d, d}, {"input_load_u8", d, w},
		{"output_set", dd, nil}, {"error_set", d, nil}, {"error_get", nil, d}, {"input_length", nil, d}, {"input_offset", nil, d},
		{"output_length", nil, d}, {"output_offset", nil, d}, {"memory_bytes", nil, d}, {"reset", nil, nil}, {"input_set", dd, nil},
	}
	ids := map[string]uint32{}
	for _, f := range fns {
		ids[f.name] = a.env(f.name, f.p, f.r)
	}
	a.memory(2)
	// The program comes as 17-byte records: op, a, b. It is copied first, so
	// that reset and input_set do not change it under way.
	const at, results = 1024, 40000
	n, i, res := uint32(0), uint32(1), uint32(2)
	arg := func(k int) []byte { return cat(get(i), op(0x29, 0), u(at+uint32(1+8*k))) }
	code := cat(callf(ids["input_length"]), op(0xa7), set(n),
		loop(get(i), get(i), op(0xad), callf(ids["input_load_u8"]), store8(at), get(i), i32c(1), add32, op(0x22), u(i), get(n), lt32u, brif(0)),
		i32c(0), set(i), i32c(results), set(res))
	body := []byte{}
	for k, f := range fns {
		do := []byte{}
		if len(f.p) > 0 {
			do = cat(do, arg(0))
		}
		if len(f.p) > 1 {
			do = cat(do, arg(1))
			if f.p[1] == 0x7f {
				do = cat(do, op(0xa7))
			}
		}
		do = cat(do, callf(ids[f.name]))
		if len(f.r) == 0 {
			do = cat(do, i64c(-1))
		} else if f.r[0] == 0x7f {
			do = cat(do, extend)
		}
		body = cat(body, get(i), load8(at), i32c(int32(k)), op(0x46, 0x04, 0x40), get(res), do, op(0x37, 0), u(0), op(0x0b))
	}
	code = cat(code, loop(body, get(res), i32c(8), add32, set(res), get(i), i32c(17), add32, op(0x22), u(i), get(n), lt32u, brif(0)))
	// The results are the output, copied through the kernel.
	code = cat(code, callf(ids["reset"]), get(res), i32c(results), sub32, op(0xad), callf(ids["alloc"]), op(0x21), u(3),
		i32c(0), set(i),
		loop(get(3), get(i), op(0xad), add64, get(i), load8(results), callf(ids["store_u8"]), get(i), i32c(1), add32, op(0x22), u(i), get(res), i32c(results), sub32, lt32u, brif(0)),
		get(3), get(res), i32c(results), sub32, op(0xad), callf(ids["output_set"]), i32c(0))
	a.exported("run", op(0x7f, 0x7f, 0x7f, 0x7e), code)
	return a.bytes()
}

// kernelProgram makes a program of the kernel's functions with plausible and
// wild operands out of any bytes.
func kernelProgram(raw []byte) []byte {
	const functions = 19
	var out []byte
	blocks := []uint64{77}
	for len(raw) >= 4 && len(out) < 200*17 {
		f := raw[0] % functions
		pick := func(b byte) uint64 {
			switch b % 8 {
			case 0:
				return uint64(b) * 3
			case 1:
				return 1<<63 + uint64(b)
			case 2:
				return uint64(b) << 12
			default:
				return blocks[int(b)%len(blocks)]
			}
		}
		a, b := pick(raw[1]), pick(raw[2])
		switch f {
		case 0: // alloc: sizes, some that grow the memory
			a = uint64(raw[1]) * uint64(raw[2]%40)
			if raw[3] > 250 {
				a <<= 6
			}
			blocks = append(blocks, 77+uint64(len(blocks))*(12+a))
		case 1, 3:
			// go-sdk takes whatever lies before a wild offset for the header of a
			// block, and reads or frees that, within its own bookkeeping too. The
			// input's is the block whose place is known here.
			a = uint64(raw[1]%2) * 77
		case 5, 6:
			// Stores go into the first block alone: go-sdk keeps the headers of
			// blocks in the same memory, where stores change them.
			a = 80 + uint64(raw[1]%32)
		case 4, 7:
			a = 77 + uint64(raw[1]%40)
		case 9, 18:
			b = uint64(raw[2])
		case 8:
			a = uint64(raw[1])
		}
		out = append(out, f)
		out = binary.LittleEndian.AppendUint64(out, a)
		out = binary.LittleEndian.AppendUint64(out, b)
		raw = raw[4:]
	}
	return out
}

// FuzzKernel compares our kernel with Extism's, which is a module of its own.
func FuzzKernel(f *testing.F) {
	code := kernelModule()
	m := load(f, newEngine(f), Spec{Wasm: code})
	sdk := sdkPlugin(f, 0, code)
	r := rand.New(rand.NewSource(3))
	for range 30 {
		p := make([]byte, 4*(1+r.Intn(60)))
		r.Read(p)
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := kernelProgram(raw)
		if len(in) == 0 {
			return
		}
		reply, err := m.Call(context.Background(), Invocation{Export: "run", Input: in})
		p := sdkInstance(t, sdk) // its kernel keeps what it grew by
		defer p.Close(context.Background())
		_, out, sdkErr := p.Call("run", in)
		if (err == nil) != (sdkErr == nil) {
			t.Fatalf("program %x: our error is %v, go-sdk's %v", in, err, sdkErr)
		}
		if err == nil && !bytes.Equal(reply.Output, out) {
			for i := 0; i+8 <= len(out) && i+8 <= len(reply.Output); i += 8 {
				if x, y := binary.LittleEndian.Uint64(reply.Output[i:]), binary.LittleEndian.Uint64(out[i:]); x != y {
					t.Errorf("step %d, function %d of (%#x, %#x): %#x here, %#x on go-sdk", i/8, in[i/8*17],
						binary.LittleEndian.Uint64(in[i/8*17+1:]), binary.LittleEndian.Uint64(in[i/8*17+9:]), x, y)
				}
			}
			t.Fatalf("program %x differs", in)
		}
	})
}
