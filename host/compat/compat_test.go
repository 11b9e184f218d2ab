package compat

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

var update = flag.Bool("update", false, "ask wasmtime anew and write the tables of docs/compatibility.md")

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

type M = map[string]any

// corpus is where scripts/corpus puts what it fetches.
func corpus(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/corpus")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// origins are the packages of the modules that are fetched, by file.
func origins(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	from := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 4 && f[0] != "#" {
			from[f[0]] = f[2]
		}
	}
	return from
}

// goModule is the folder of a Go module that this one requires.
func goModule(t *testing.T, module string) (dir, version string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}} {{.Version}}", module).Output()
	f := strings.Fields(string(out))
	if err != nil || len(f) != 2 {
		t.Skipf("the sources of %s are not there: %v", module, err)
	}
	return f[0], f[1]
}

// command is a WASI command, and how it is called.
type command struct {
	file  string // in the corpus; or
	path  string // in wazero's sources
	calls []call
}

type call struct {
	args  []string
	stdin string
	files map[string]string // in /data, at first
}

const wazero = "github.com/tetratelabs/wazero"

var commands = []command{
	{file: "python.wasm", calls: []call{
		{args: []string{"-c", "import sys, json; print(json.dumps(sys.argv[1:])); print(sum(i * i for i in range(1000)))", "a", "ü"}},
		{args: []string{"-c", "import sys; d = sys.stdin.read(); open('/data/out', 'w').write(d.upper()); sys.exit(len(d))"}, stdin: "hello"},
		{args: []string{"-c", "import os; print(sorted(os.listdir('/data'))); os.rename('/data/a', '/data/b'); os.mkdir('/data/d'); print(open('/data/b').read())"}, files: map[string]string{"a": "text\n"}},
		{args: []string{"-c", "import time; a = time.monotonic(); time.sleep(0.02); print(time.monotonic() - a > 0.019)"}},
		{args: []string{"-c", "import select, sys; print(select.select([sys.stdin], [], [], 5)); print(sys.stdin.readline())"}, stdin: "a line\n"},
		{args: []string{"-c", "1/0"}},
	}},
	{file: "quickjs.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"-e", "print([1, 2, 3].map(x => x * x)); print(JSON.stringify({a: /b+/.exec('abbb')}))"}},
		{args: []string{"-e", "throw new Error('no')"}},
	}},
	{file: "micropython.wasm", calls: []call{{args: []string{"-c", "print(1)"}}}},
	{file: "ecppll.wasm", calls: []call{
		{args: []string{"--clkin", "25", "--clkout0", "100", "--file", "/data/pll.v"}},
		{args: []string{"--clkin", "none"}},
		{args: []string{"--help"}},
	}},
	{file: "ecppack.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"/data/missing.config", "/data/out.bit"}},
	}},
	{file: "boolector.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"/data/x.smt2"}, files: map[string]string{"x.smt2": "(set-logic QF_BV)(declare-const a (_ BitVec 8))(assert (= (bvmul a a) #x31))(check-sat)(exit)\n"}},
	}},
	{file: "esbuild.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"--minify", "--loader=ts"}, stdin: "const add = (first: number, second: number): number => first + second; console.log(add(1, 2))"},
		{args: []string{"/data/a.js", "--bundle"}, files: map[string]string{"a.js": "import {x} from './b.js'; console.log(x)", "b.js": "export const x = 1"}},
	}},
	{file: "ecpbram.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"--generate", "/data/out.hex", "--width", "16", "--depth", "8", "--seed", "7"}},
	}},
	{file: "ecpmulti.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"--input", "/data/missing.bit", "--address", "0x0", "--flashsize", "32", "/data/out.bit"}},
	}},
	{file: "ecpunpack.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"/data/x.bit", "/data/out.config"}, files: map[string]string{"x.bit": "no bitstream"}},
	}},
	{file: "icebram.wasm", calls: []call{
		{args: []string{"-g", "-s", "7", "16", "64"}},
		{args: []string{"/data/missing.hex", "/data/to.hex"}},
	}},
	{file: "icemulti.wasm", calls: []call{
		{args: []string{"--help"}},
		{args: []string{"-o", "/data/out", "/data/missing"}},
	}},
	{file: "icepack.wasm", calls: []call{
		{args: []string{"/data/x.asc", "/data/out.bin"}, files: map[string]string{"x.asc": ".comment nothing\n.device 1k\n"}},
		{args: []string{"-u", "/data/x.bin"}, files: map[string]string{"x.bin": "no bitstream"}},
	}},
	{file: "icepll.wasm", calls: []call{
		{args: []string{"-i", "12", "-o", "60"}},
		{args: []string{"-i", "12", "-o", "60", "-m", "-f", "/data/pll.v"}},
		{args: []string{"-o", "1"}},
	}},
	{file: "nextpnr-ice40.wasm", calls: nextpnr},
	{file: "nextpnr-machxo2.wasm", calls: nextpnr},
	{file: "avr-as.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"-mmcu=atmega328p", "-o", "/data/a.o", "/data/a.s"}, files: map[string]string{"a.s": avr}},
		{args: []string{"-o", "/data/a.o", "/data/a.s"}, files: map[string]string{"a.s": " nonsense\n"}},
	}},
	{file: "avr-ld.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"-r", "-b", "binary", "-o", "/data/out.o", "/data/a"}, files: map[string]string{"a": "bytes"}},
		{args: []string{"-o", "/data/out", "/data/missing.o"}},
	}},
	{file: "avr-objcopy.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"-I", "binary", "-O", "ihex", "/data/a", "/data/a.hex"}, files: map[string]string{"a": "some bytes"}},
		{args: []string{"-I", "ihex", "-O", "binary", "/data/missing", "/data/a"}},
	}},
	{file: "flite.wasm", calls: []call{
		{args: []string{"--version"}},
		{args: []string{"-t", "a", "-o", "/data/a.wav"}},
		{args: []string{"-lv"}},
	}},
	{path: "examples/cli/testdata/cli.wasm", calls: []call{{args: []string{"3", "4"}}, {args: []string{"x"}}, {}}},
	{path: "imports/wasi_snapshot_preview1/testdata/print_args.wasm", calls: twice},
	{path: "imports/wasi_snapshot_preview1/testdata/print_prestat_dirname.wasm", calls: twice},
	{path: "cmd/wazero/testdata/wasi_fd.wasm", calls: twice},
	{path: "cmd/wazero/testdata/wasi_env.wasm", calls: twice},
	{path: "cmd/wazero/testdata/cat/cat-tinygo.wasm", calls: cats},
	{path: "internal/testing/dwarftestdata/testdata/tinygo/main.wasm", calls: twice},
	{path: "internal/testing/dwarftestdata/testdata/zig-cc/main.wasm", calls: twice},
	{path: "internal/testing/dwarftestdata/testdata/zig/main.wasm", calls: twice},
	{path: "imports/wasi_snapshot_preview1/example/testdata/cargo-wasi/cat.wasm", calls: cats},
	{path: "imports/wasi_snapshot_preview1/example/testdata/tinygo/cat.wasm", calls: cats},
	{path: "imports/wasi_snapshot_preview1/example/testdata/zig-cc/cat.wasm", calls: cats},
	{path: "imports/wasi_snapshot_preview1/example/testdata/zig/cat.wasm", calls: cats},
	{path: "imports/wasi_snapshot_preview1/testdata/cargo-wasi/wasi.wasm", calls: wasis},
	{path: "imports/wasi_snapshot_preview1/testdata/tinygo/wasi.wasm", calls: wasis},
	{path: "imports/wasi_snapshot_preview1/testdata/zig-cc/wasi.wasm", calls: wasis},
	{path: "imports/wasi_snapshot_preview1/testdata/zig/wasi.wasm", calls: wasis},
}

// avr is a program that avr-as assembles.
const avr = ".global main\nmain:\n\tldi r24, 42\n\tret\n"

var nextpnr = []call{{args: []string{"--help"}}, {args: []string{"--json", "/data/missing.json"}}}

var twice = []call{{}, {args: []string{"a", "ü"}}}

var cats = []call{
	{args: []string{"/data/a"}, files: map[string]string{"a": "one\ntwo\n"}},
	{args: []string{"/data/missing"}},
}

// wasis are calls of wazero's own programs, each in four languages; what one of
// them does not know it does not know in wasmtime either.
var wasis = []call{
	{args: []string{"ls", "/data"}, files: map[string]string{"-": "", "a-": "", "ab-": ""}},
	{args: []string{"stat"}, stdin: "x"},
	{args: []string{"poll"}, stdin: "x"},
	{args: []string{"preopen"}},
	{args: []string{"write", "/data/new"}},
	{args: []string{"open-rdonly"}},
	{args: []string{"nosuch"}},
}

// answer is what came of a call of a command: on wasmtime, when it was recorded.
type answer struct {
	Exit   int    `json:"exit"`
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	Files  string `json:"files,omitempty"` // that it left in /data
	Error  string `json:"error,omitempty"`
}

const recordFile = "testdata/wasmtime.json"

// recorded is what wasmtime answered, by command and arguments. With -update it is
// asked anew.
func recorded(t *testing.T) map[string]answer {
	t.Helper()
	answers := map[string]answer{}
	b, err := os.ReadFile(recordFile)
	if err == nil {
		err = json.Unmarshal(b, &answers)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	return answers
}

// wasmtime runs commands on wasmtime.
type wasmtime struct {
	in  io.Writer
	out *bufio.Reader
	dir string
}

func startWasmtime(t *testing.T) *wasmtime {
	t.Helper()
	dir := corpus(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "wasmtime/bin/python"), "testdata/commands.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start wasmtime: %v; WASMTIME=1 scripts/corpus .cache/corpus fetches it", err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &wasmtime{in, bufio.NewReader(out), dir}
}

func (w *wasmtime) run(t *testing.T, module, name string, c *call, data string) answer {
	t.Helper()
	req, err := json.Marshal(M{
		"module": module, "code": filepath.Join(w.dir, "wasmtime", name+".cwasm"), "args": append([]string{name}, c.args...),
		"env": M{}, "stdin": []byte(c.stdin), "dirs": M{"/data": data},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.in.Write(append(req, '\n')); err != nil {
		t.Fatal(err)
	}
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var a struct {
		Exit           int
		Stdout, Stderr []byte
		Error          string
	}
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatal(err)
	}
	return answer{Exit: a.Exit, Stdout: string(a.Stdout), Stderr: string(a.Stderr), Error: a.Error, Files: contents(t, data)}
}

// fill makes files the only ones of a folder.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	old, err := os.ReadDir(dir)
	for _, e := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// contents tells what is in a folder.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprint(&b, rel, " ", e.Type())
		if e.Type().IsRegular() {
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, " %q %v", text, err)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// row is one of the table.
type row struct{ module, origin, outcome string }

// TestCommands runs each command as it was run on wasmtime: the same output, exit
// code and files. It compares the table of docs/compatibility.md, too.
func TestCommands(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("compiling the corpus takes a minute")
	}
	from := origins(t)
	src, version := goModule(t, wazero)
	answers := recorded(t)
	var w *wasmtime
	if *update {
		w = startWasmtime(t)
	}
	d := hosttest.Start(t, config.Config{})
	var rows []row
	for _, c := range commands {
		r := row{module: c.file, origin: from[c.file]}
		path, name := filepath.Join(corpus(t), c.file), strings.TrimSuffix(c.file, ".wasm")
		if c.path != "" {
			path = filepath.Join(src, c.path)
			parts := strings.Split(strings.TrimSuffix(c.path, ".wasm"), "/")
			name = parts[len(parts)-1] + "-" + parts[len(parts)-2]
			r.module, r.origin = parts[len(parts)-2]+"/"+filepath.Base(c.path), "pkg:golang/"+wazero+"@"+version
		}
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(path); err != nil {
				t.Skipf("%s is not there; scripts/corpus .cache/corpus fetches it", c.file)
			}
			ours, theirs := t.TempDir(), t.TempDir()
			d.Tool(t, name, M{
				"wasi": "x.wasm", "limits": M{"memory": "512MiB", "fuel": 200_000_000_000},
				"capabilities": M{"files": M{"/data": M{"path": ours, "mode": "rw"}}},
			}, map[string]string{"x.wasm": path})
			for i := range c.calls {
				k := &c.calls[i]
				key := fmt.Sprintf("%s %q", name, k.args)
				if *update {
					fill(t, theirs, k.files)
					answers[key] = w.run(t, path, name, k, theirs)
				}
				fill(t, ours, k.files)
				res, stdout, stderr := d.Stream(t, &wire.Call{Tool: name, Args: k.args, Cwd: d.Root}, k.stdin)
				want := answers[key]
				if want.Error != "" { // a trap, or an import that only its own host has
					if res.Err == nil {
						t.Errorf("%s runs, and not on wasmtime: %s", key, want.Error)
					} else if len(c.calls) == 1 {
						_, r.outcome, _ = strings.Cut(res.Err.Message, "x.wasm: ")
					}
					continue
				}
				got := answer{Exit: int(res.ExitCode), Stdout: stdout, Stderr: stderr, Files: contents(t, ours)}
				if res.Err != nil {
					got.Error = res.Err.Message
				}
				if got != want {
					t.Errorf("%s:\nhere:     %s\nwasmtime: %s", key, cut(fmt.Sprintf("%+v", got)), cut(fmt.Sprintf("%+v", want)))
				}
			}
			if r.outcome == "" {
				r.outcome = fmt.Sprintf("runs: %d of %d calls as on wasmtime", len(c.calls), len(c.calls))
			}
			rows = append(rows, r)
		})
	}
	if *update {
		b, err := json.MarshalIndent(answers, "", "\t")
		if err == nil {
			err = os.WriteFile(recordFile, append(b, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	checkTable(t, "commands", rows, len(rows) == len(commands))
}

// checkTable compares a table of docs/compatibility.md, or writes it. Of modules
// that are not here it has rows, too, unless those here are all.
func checkTable(t *testing.T, name string, rows []row, all bool) {
	t.Helper()
	const doc = "../../docs/compatibility.md"
	var b strings.Builder
	b.WriteString("| module | from | |\n| --- | --- | --- |\n")
	var lines []string
	for _, r := range rows {
		lines = append(lines, fmt.Sprintf("| `%s` | `%s` | %s |\n", r.module, r.origin, r.outcome))
	}
	b.WriteString(strings.Join(lines, ""))
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), "<!-- "+name+" -->\n")
	_, after, ok2 := strings.Cut(rest, "<!-- end -->\n")
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table of %s", doc, name)
	}
	if !all {
		table, _, _ := strings.Cut(rest, "<!-- end -->\n")
		for _, line := range lines {
			if !strings.Contains(table, line) {
				t.Errorf("the table of %s in %s lacks\n%s", name, doc, line)
			}
		}
		return
	}
	want := before + "<!-- " + name + " -->\n" + b.String() + "<!-- end -->\n" + after
	if want == string(text) {
		return
	}
	if !*update {
		t.Errorf("the table of %s in %s is outdated; run: go test ./host/compat -update; now it is\n%s", name, doc, b.String())
		return
	}
	if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func cut(s string) string { return s[:min(len(s), 900)] }
