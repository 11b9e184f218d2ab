package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// specCommand is a command of a script of the core specification's test suite, as wast2json writes it.
type specCommand struct {
	Type       string
	Line       int
	Name, As   string
	Filename   string
	ModuleType string `json:"module_type"`
	Text       string
	Action     struct {
		Type, Field, Module string
		Args                []specValue
	}
}

type specValue struct {
	Type     string
	LaneType string `json:"lane_type"`
	Value    any
}

// bits are the value as wazero takes it.
func (v specValue) bits(t *testing.T) []uint64 {
	number := func(s string, size int) uint64 {
		if strings.HasPrefix(s, "-") {
			n, err := strconv.ParseInt(s, 10, size)
			if err != nil {
				t.Fatal(err)
			}
			return uint64(n) & (1<<size - 1)
		}
		n, err := strconv.ParseUint(s, 10, size)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch v.Type {
	case "v128":
		width := map[string]int{"i8": 8, "i16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}[v.LaneType]
		var out [2]uint64
		for i, lane := range v.Value.([]any) {
			at := i * width
			out[at/64] |= number(lane.(string), width) << (at % 64)
		}
		return out[:]
	case "externref":
		if v.Value == "null" {
			return []uint64{0}
		}
		return []uint64{number(v.Value.(string), 64) + 1}
	case "funcref":
		return []uint64{0}
	}
	return []uint64{number(v.Value.(string), 64)}
}

// specSide runs a script on modules as they are, or rewritten.
type specSide struct {
	h       *host
	rewrite bool
	named   map[string]api.Module
	last    api.Module
}

func newSpecSide(t *testing.T, spectest []byte, rewrite bool) *specSide {
	features := features
	if !rewrite {
		features |= experimental.CoreFeaturesExceptionHandling
	}
	s := &specSide{h: newHostWith(t, features), rewrite: rewrite, named: make(map[string]api.Module)}
	s.h.slice = 40 // the slow path has to leave everything as it was, too
	if _, err := s.h.InstantiateWithConfig(context.Background(), spectest, wazero.NewModuleConfig()); err != nil {
		t.Fatal(err)
	}
	return s
}

var specLimits = Limits{MemoryPages: maxPages, TableEntries: 11_000_000}

func (s *specSide) instantiate(module []byte, as string) (api.Module, error) {
	if !s.rewrite {
		return s.h.plain(module, as)
	}
	m, err := Rewrite(module, specLimits)
	if err != nil {
		return nil, err
	}
	return s.h.rewritten(m, as)
}

// do returns what an action gives, in words.
func (s *specSide) do(t *testing.T, c *specCommand) string {
	m := s.last
	if c.Action.Module != "" {
		m = s.named[c.Action.Module]
	}
	if m == nil {
		return "no module"
	}
	if c.Action.Type == "get" {
		return fmt.Sprint(m.ExportedGlobal(c.Action.Field).Get())
	}
	var args []uint64
	for _, a := range c.Action.Args {
		args = append(args, a.bits(t)...)
	}
	f := m.ExportedFunction(c.Action.Field)
	res, err := f.Call(context.Background(), args...)
	if err != nil {
		what, _, _ := strings.Cut(err.Error(), "\n")
		return strings.TrimSuffix(what, " (recovered by wazero)")
	}
	// References are addresses: only whether they are null is the same on both sides.
	for i, typ := range f.Definition().ResultTypes() {
		if typ == api.ValueTypeExternref || typ == 0x70 {
			if i < len(res) && typ == 0x70 && res[i] != 0 {
				res[i] = 1
			}
		}
	}
	return fmt.Sprint(res)
}

// TestSpecification runs the core specification's test suite on modules as they are and rewritten: both must give the
// same results, traps and refusals. TOOLD_SPECTEST is a folder that has scripts as wast2json writes them, at any depth,
// and one spectest.wasm; without it, the one in wazero's own sources.
func TestSpecification(t *testing.T) {
	dir := os.Getenv("TOOLD_SPECTEST")
	if dir == "" {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tetratelabs/wazero").Output()
		if err != nil {
			t.Skipf("wazero's sources are not there, and TOOLD_SPECTEST names no folder with the test suite: %v", err)
		}
		dir = filepath.Join(strings.TrimSpace(string(out)), "internal/integration_test/spectest")
	}
	var scripts []string
	var spectest []byte
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case filepath.Base(path) == "spectest.wasm":
			spectest, err = os.ReadFile(path)
		case strings.HasSuffix(path, ".json"):
			scripts = append(scripts, path)
		}
		return err
	})
	if err != nil || spectest == nil || len(scripts) == 0 {
		t.Fatalf("read the test suite in %s: %d scripts, %v", dir, len(scripts), err)
	}
	counts := make(map[string]int)
	for _, path := range scripts {
		name, _ := filepath.Rel(dir, path)
		t.Run(name, func(t *testing.T) { runScript(t, path, spectest, typesAlone[name], counts) })
	}
	t.Logf("%v in %d scripts", counts, len(scripts))
}

// oneMorePage are commands of linking.json, of all versions, on a memory that one module exports and others import: it
// may grow by the page that is for the engine. Guests share no memory.
var oneMorePage = []string{
	"assert_return 320", "assert_return 321", "assert_uninstantiable 335", "assert_trap 335",
	"assert_return 381", "assert_return 382", "assert_uninstantiable 398", "assert_return 407",
	"assert_return 555", "assert_return 556", "assert_uninstantiable 572", "assert_return 581",
}

// typesAlone are the lines with modules that are invalid, or cannot be linked, for nothing but the types of references
// or whether they may be null, which is not looked at (references.go), and the one whose type refers to itself, which
// later versions allow.
var typesAlone = map[string][]int{
	"exception-handling/testdata/try_table.json":               {471},
	"typed-function-references/testdata/elem.json":             {508, 516},
	"typed-function-references/testdata/func.json":             {660},
	"typed-function-references/testdata/linking.json":          {199, 203, 207, 459},
	"typed-function-references/testdata/local_init.json":       {26, 30, 53},
	"typed-function-references/testdata/ref_as_non_null.json":  {32},
	"typed-function-references/testdata/return_call_ref.json":  {232, 243, 254, 265, 276, 287},
	"typed-function-references/testdata/table.json":            {57, 61},
	"typed-function-references/testdata/type-equivalence.json": {31},
}

// waits are the lines of atomic.json that wait on a shared memory. A guest's is its own, where nobody would wake it:
// waiting is a trap, as on any memory that is not shared.
var waits = []int{457, 458}

// oneTag are the lines of try_table.json on one tag under two names; see withoutImports.
var oneTag = []int{331, 364}

func runScript(t *testing.T, path string, spectest []byte, typesAlone []int, counts map[string]int) {
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var script struct{ Commands []specCommand }
	if err := json.Unmarshal(raw, &script); err != nil {
		t.Fatal(err)
	}
	sides := []*specSide{newSpecSide(t, spectest, false), newSpecSide(t, spectest, true)}
	alone := strings.HasSuffix(path, "try_table.json")
	read := func(c *specCommand) []byte {
		module, err := os.ReadFile(filepath.Join(filepath.Dir(path), c.Filename))
		if err != nil {
			t.Fatal(err)
		}
		if alone && c.Line == 10 {
			module = withoutImports(t, module)
		}
		return module
	}
	// Not valid in WebAssembly 2.0, or not sensible in guests, and yet run by wazero.
	tolerated := []string{"import from a module without a name", "import the tag of another module", "import the typed references",
		"keep references in an exnref", "use GC"}
	refusal := false // of the last module
	for i := 0; i < len(script.Commands); i++ {
		c := &script.Commands[i]
		if strings.HasSuffix(path, "atomic.json") && slices.Contains(waits, c.Line) {
			continue
		}
		if alone && slices.Contains(oneTag, c.Line) {
			continue
		}
		if slices.Contains(oneMorePage, fmt.Sprintf("%s %d", c.Type, c.Line)) && strings.HasSuffix(path, "linking.json") {
			continue
		}
		counts[c.Type]++
		switch c.Type {
		case "module":
			as := ""
			if i+1 < len(script.Commands) && script.Commands[i+1].Type == "register" {
				as = script.Commands[i+1].As
				i++
			}
			module := read(c)
			var errs [2]error
			refusal = false
			for n, s := range sides {
				s.last, errs[n] = s.instantiate(module, as)
				if c.Name != "" {
					s.named[c.Name] = s.last
				}
			}
			if errs[0] == nil && errs[1] != nil {
				var refused *Error
				if errors.As(errs[1], &refused) && slices.ContainsFunc(tolerated, func(s string) bool {
					return strings.HasPrefix(refused.Reason, s)
				}) {
					t.Logf("line %d: %v", c.Line, refused)
					refusal = true
					counts["refused"]++
					continue
				}
			}
			if (errs[0] == nil) != (errs[1] == nil) {
				t.Errorf("line %d: %s: plain: %v; rewritten: %v", c.Line, c.Filename, errs[0], errs[1])
			}
		case "assert_return", "action", "assert_trap", "assert_exhaustion", "assert_exception":
			if refusal && c.Action.Module == "" {
				continue
			}
			if plain, rewritten := sides[0].do(t, c), sides[1].do(t, c); plain != rewritten {
				t.Errorf("line %d: %s: plain: %s; rewritten: %s", c.Line, c.Action.Field, plain, rewritten)
			}
		case "assert_invalid", "assert_malformed", "assert_unlinkable", "assert_uninstantiable":
			if c.ModuleType == "text" {
				continue
			}
			module := read(c)
			_, plain := sides[0].instantiate(module, "")
			_, rewritten := sides[1].instantiate(module, "")
			if (plain != nil && rewritten == nil) != slices.Contains(typesAlone, c.Line) {
				t.Errorf("line %d: %s: plain: %v; rewritten: %v", c.Line, c.Filename, plain, rewritten)
			}
		}
	}
}

// withoutImports makes the module of try_table.json one that throws and catches by itself: it imports a tag, and a
// function that throws it, of the module before; the tag under two names.
func withoutImports(t *testing.T, in []byte) []byte {
	const nothing = 0 // the type () -> ()
	prepend := map[byte]struct {
		n       uint32
		entries []byte
	}{secTag: {2, []byte{0, nothing, 0, nothing}}, secFunction: {1, []byte{nothing}}, secCode: {1, []byte{4, 0, opThrow, 0, opEnd}}}
	out := slices.Clone(in[:8])
	r := &reader{b: in, p: 8, end: len(in)}
	for r.more() {
		id, size := r.u8(""), r.u32("")
		sub := r.part(int(size))
		if id == secImport {
			continue
		}
		content := in[sub.p:sub.end]
		if first, ok := prepend[id]; ok {
			n := sub.u32("")
			content = b(u(n+first.n), first.entries, in[sub.p:sub.end])
		}
		out = append(out, section(int(id), content)...)
	}
	return out
}
