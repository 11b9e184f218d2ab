package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	extism "github.com/extism/go-sdk"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/sys"
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

// wholeOracle reports whether all modules and guests are compared, as make oracle
// does. Otherwise those are left out which take long to compile twice and use
// nothing that the others do not.
func wholeOracle() bool { return os.Getenv("TOOLD_TEST_ORACLE") == "all" }

// oracleEngine has the checkout's cache of compiled modules, which other packages
// fill with some of the same.
func oracleEngine(t *testing.T) *Engine { return engineIn(t, "../../.cache/compiled") }

// sdkConfig is what go-sdk compiles with: into a cache of the checkout.
func sdkConfig(t *testing.T) wazero.RuntimeConfig {
	cache, err := wazero.NewCompilationCacheWithDir("../../.cache/go-sdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close(context.Background()) })
	return wazero.NewRuntimeConfig().WithCompilationCache(cache)
}

// TestOracle runs go-sdk's own modules on go-sdk and here: the same output,
// the same error, the same variables, requests and files.
func TestOracle(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling go-sdk's modules twice takes a minute")
	}
	dir := sdkFolder(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.wasm"))
	if err != nil || len(files) == 0 {
		t.Skipf("%s holds no modules", dir)
	}
	// What only go-sdk's own tests give, or another module of a manifest: no
	// host of ours has it, which the error must say.
	refused := map[string]string{
		"host.wasm": "mult", "host_memory.wasm": "to_upper", "host_multiple.wasm": "hostGreenMessage", "main.wasm": "capitalize", "nested.c.instr.wasm": "enter",
	}
	// What a module needs of its surroundings: a server that is here instead
	// of on the internet, and a folder.
	asks := map[string]bool{"http.wasm": true, "http_headers.wasm": true}
	reads := map[string]bool{"fs.wasm": true, "fs_std.wasm": true, "read_write.wasm": true}
	late := map[string]bool{"sleep.wasm": true}
	// What allocates the same for every input, for a second on go-sdk.
	once := map[string]bool{"alloc.wasm": true}
	// Those that are large, and of which another, made by another compiler, does the same.
	again := map[string]bool{"count_vowels_std.wasm": true, "fs_std.wasm": true, "hello_haskell.wasm": true, "std_command.wasm": true}

	r := rand.New(rand.NewSource(1))
	inputs := [][]byte{nil, []byte("a"), []byte("hello, world"), bytes.Repeat([]byte("aeiou "), 1000)}
	for range 6 {
		p := make([]byte, r.Intn(300))
		for i := range p {
			p[i] = byte(' ' + r.Intn(95))
		}
		inputs = append(inputs, p)
	}
	e := oracleEngine(t)
	extism.SetLogLevel(extism.LogLevelDebug)
	defer extism.SetLogLevel(extism.LogLevelOff)
	compared, ran := 0, 0
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			if again[name] && !wholeOracle() {
				t.Skip("make oracle compares it")
			}
			ran++
			code, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o := &oracle{
				spec: Spec{Name: name, Wasm: code, Grants: GrantHTTP | GrantState, Config: map[string]string{
					"thing": "hello", "vowels": "aeiouyAEIOUY", "path": "/mnt/test.txt", "duration": "5",
				}},
			}
			if missing, ok := refused[name]; ok {
				if _, err := e.Load(context.Background(), o.spec); err == nil || !strings.Contains(err.Error(), missing) {
					t.Errorf("loads: %v; must name the import %q", err, missing)
				}
				return
			}
			inputs := inputs
			if asks[name] {
				o.serve(t)
				inputs = [][]byte{nil, []byte(`{"url":"https://extism.org"}`), []byte(`{"url":"https://extism.org/a?b=c"}`), []byte(`{"url":"https://extism.org/404"}`)}
			}
			if reads[name] {
				o.ours, o.theirs = filepath.Join(t.TempDir(), "ours"), filepath.Join(t.TempDir(), "theirs")
				for _, dir := range []string{o.ours, o.theirs} {
					if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "test.txt"), []byte("hello world!"), 0o644)); err != nil {
						t.Fatal(err)
					}
				}
				inputs = inputs[:4]
			}
			if late[name] {
				o.timeout, inputs = 200*time.Millisecond, inputs[:1]
			}
			if once[name] {
				inputs = inputs[1:2]
			}
			o.load(t, e)
			for _, export := range o.m.Callables() {
				for _, in := range inputs {
					if o.compare(t, Invocation{Export: export, Input: in}) {
						compared++
					}
				}
			}
		})
	}
	t.Logf("%d answers compared", compared)
	if ran == len(files) && compared < 300 {
		t.Errorf("only %d answers could be compared", compared)
	}
}

// oracle is one module on both engines.
type oracle struct {
	spec    Spec
	m       *Module
	sdk     *extism.CompiledPlugin
	fns     []extism.HostFunction
	timeout time.Duration
	asked   []string                  // what the server and the host functions of fns heard
	answer  func(http.ResponseWriter) // of the server
	vars    map[string]string         // what each call begins with
	before  func()                    // each of the two calls
	// Folders that the module sees as /mnt.
	ours, theirs string
}

// serve puts a server of this process in the place of the internet.
func (o *oracle) serve(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		o.asked = append(o.asked, fmt.Sprint(r.Method, " ", r.Host, r.URL, " ", r.Header, " ", string(body), " ", err))
		if o.answer != nil {
			o.answer(w)
			return
		}
		w.Header().Set("X-Test", "a, b")
		w.Header().Set("Date", "today")
		if r.URL.Path == "/404" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, `{"path":%q}`, r.URL)
	}))
	t.Cleanup(server.Close)
	// go-sdk asks through the default client, and takes none in its place.
	was := http.DefaultClient
	t.Cleanup(func() { http.DefaultClient = was })
	client := server.Client()
	transport := client.Transport.(*http.Transport)
	transport.DisableKeepAlives = true
	transport.TLSClientConfig.ServerName = "example.com"
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	http.DefaultClient = client
}

// request is what a host does for http_request, less all that makes it safe.
func request(ctx context.Context, r *HTTPRequest) (*HTTPResponse, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for k, v := range r.Headers {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	headers := map[string]string{}
	for k, v := range res.Header {
		headers[k] = strings.Join(v, ",")
	}
	body, err := io.ReadAll(res.Body)
	return &HTTPResponse{Status: res.StatusCode, Headers: headers, Body: body}, err
}

func (o *oracle) load(t *testing.T, e *Engine) {
	t.Helper()
	if o.ours != "" {
		o.spec.Files = []Mount{{Guest: "/mnt", Host: o.ours}}
	}
	m, err := e.Load(context.Background(), o.spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	o.m = m
	manifest := extism.Manifest{
		Wasm: []extism.Wasm{extism.WasmData{Data: o.spec.Wasm}}, Config: o.spec.Config, AllowedHosts: []string{"*"}, Timeout: uint64(o.timeout.Milliseconds()),
	}
	if o.theirs != "" {
		manifest.AllowedPaths = map[string]string{o.theirs: "/mnt"}
	}
	o.sdk, err = extism.NewCompiledPlugin(context.Background(), manifest, extism.PluginConfig{EnableWasi: true, EnableHttpResponseHeaders: true, RuntimeConfig: sdkConfig(t)}, o.fns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.sdk.Close(context.Background()) })
}

// compare makes one call on both, and reports whether both answered.
func (o *oracle) compare(t *testing.T, inv Invocation) bool {
	t.Helper()
	what := fmt.Sprintf("%s(%.40q)", inv.Export, inv.Input)
	ctx := context.Background()
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	vars, log := map[string][]byte{}, []string{}
	for k, v := range o.vars {
		vars[k] = []byte(v)
	}
	inv.Services.HTTP = request
	inv.Services.VarGet = func(k string) []byte { return vars[k] }
	inv.Services.VarSet = func(k string, v []byte) error {
		if v == nil {
			delete(vars, k)
		} else {
			vars[k] = v
		}
		return nil
	}
	inv.Services.Log = func(_ context.Context, level slog.Level, text string) {
		// go-sdk keeps no trace, and says nothing of what is printed.
		if level >= slog.LevelDebug && !strings.HasPrefix(text, "the module prints to its standard output") {
			log = append(log, level.String()+" "+text)
		}
	}
	if o.before != nil {
		o.before()
	}
	reply, ourErr := o.m.Call(ctx, inv)
	ourRequests, theirLog := o.asked, []string{}
	o.asked = nil

	p, err := o.sdk.Instance(context.Background(), extism.PluginInstanceConfig{ModuleConfig: wazero.NewModuleConfig().WithSysWalltime().WithSysNanotime()})
	if err != nil {
		t.Fatal(err)
	}
	if inv.Config != nil {
		p.Config = inv.Config
	}
	for k, v := range o.vars {
		p.Var[k] = []byte(v)
	}
	p.SetLogger(func(level extism.LogLevel, text string) {
		// go-sdk says there what it does itself.
		if level != extism.LogLevelDebug || !strings.HasPrefix(text, "Calling ") && !strings.HasPrefix(text, "Initializ") {
			theirLog = append(theirLog, level.String()+" "+text)
		}
	})
	if o.before != nil {
		o.before()
	}
	rc, out, theirErr := p.CallWithContext(context.Background(), inv.Export, inv.Input)
	theirVars := p.Var
	p.Close(context.Background())
	theirRequests := o.asked
	o.asked = nil
	if theirErr == nil && rc != 0 {
		theirErr = fmt.Errorf("answered %d", rc)
	}
	if (ourErr == nil) != (theirErr == nil) {
		t.Errorf("%s: our error is %v, go-sdk's is %v", what, ourErr, theirErr)
		return false
	}
	if ours, theirs := fmt.Sprint(ourRequests), fmt.Sprint(theirRequests); ours != theirs {
		t.Errorf("%s asked %s here and %s on go-sdk", what, ours, theirs)
	}
	if o.ours != "" {
		ours, err1 := os.ReadFile(filepath.Join(o.ours, "test.txt"))
		theirs, err2 := os.ReadFile(filepath.Join(o.theirs, "test.txt"))
		if err1 != nil || err2 != nil || !bytes.Equal(ours, theirs) {
			t.Errorf("%s left the file %q, %v here and %q, %v on go-sdk", what, ours, err1, theirs, err2)
		}
	}
	if ourErr != nil {
		e, _ := errors.AsType[*Error](ourErr)
		if o.timeout > 0 && (e.Kind != DeadlineMet || rc != sys.ExitCodeDeadlineExceeded) {
			t.Errorf("%s: our error is %v, go-sdk's is %v; both must be late", what, ourErr, theirErr)
		}
		if e.Kind == Failed && !strings.Contains(e.Detail, "answered") && e.Error() != theirErr.Error() {
			t.Errorf("%s: our message is %q, go-sdk's %q", what, e, theirErr)
		}
		return false
	}
	if !bytes.Equal(reply.Output, out) {
		t.Errorf("%s answered %.80q here and %.80q on go-sdk", what, reply.Output, out)
	}
	if fmt.Sprint(vars) != fmt.Sprint(theirVars) {
		t.Errorf("%s left variables %v here and %v on go-sdk", what, vars, theirVars)
	}
	if ours, theirs := strings.ToLower(fmt.Sprint(log)), strings.ToLower(fmt.Sprint(theirLog)); ours != theirs {
		t.Errorf("%s logged %s here and %s on go-sdk", what, ours, theirs)
	}
	return true
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
