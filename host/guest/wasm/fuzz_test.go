package wasm

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

// lax are the faults that wazero overlooks, where the specification does not, and encodings that it reads otherwise.
var lax = []string{
	"unknown type 0x", "unknown value 0x", "longer than it must be", "select between", "more than 32 bits",
	"more than 33 bits", "mutable global", "use unknown type -", "which nothing outside of code names", "has parameters or results",
	"with a value", "bytes are left over", "it is longer than", "a part is longer than it", "cut off", "unknown kind", "are announced in",
}

// tame says whether what follows the place where we gave up on a module can be read by wazero at all: it allocates for
// every count that it reads, and for every local.
func tame(rest []byte) bool {
	for i := 1; i < len(rest); i++ {
		if rest[i-1] >= 0x80 && rest[i] >= 0x80 {
			return false
		}
	}
	return true
}

// ofReferences are the faults of a module that is invalid for the types of references alone: see references.go.
var ofReferences = regexp.MustCompile(`\(ref |funcref|externref|uninitialized local|unknown\(0x|unknown type index`)

// FuzzRewrite reads anything. What is rewritten must compile if and only if the original does; then exported functions
// that end within some fuel must give the same as those of the original.
func FuzzRewrite(f *testing.F) {
	f.Add(one(opLoop, 0x40, i32c(1), opBrIf, 0, opEnd))
	f.Add(one(i32c(0), i32c(1), i32c(300_000), opMisc, 11, 0, opUnreachable))
	f.Add(module(types(void, functype([]ValueType{I32, F64}, []ValueType{I32})), funcs(1, 0), tables(b(FuncRef, 0, 2)), mem(1, 1, 2),
		globals(b(I64, 1, i64c(3), opEnd)), exports(exported("f", Func, 0), exported("g", Func, 1)),
		elems(b(0, i32c(0), opEnd, 2, 0, 1)), section(secDataCount, 2),
		code(bodyWith(b(1, 2, I64), opLocalGet, 0, opIf, I32, i32c(7), opElse, opLocalGet, 0, i32c(0), opCallIndirect, 0, 0, opEnd),
			body(i32c(0), i32c(0), i32c(2), opMisc, 8, 1, 0, i32c(1), opMemoryGrow, 0, opBrTable, 0, 0)),
		datas(b(0, i32c(1), opEnd, sized("active")), b(1, sized("passive")))))
	f.Add(module(types(void, functype([]ValueType{refNonNull, 0}, []ValueType{refNullable, 0})), funcs(0, 1), tables(b(0x40, 0, refOf(0), 0, 2, opRefFunc, 0, opEnd)),
		globals(b(refTo(0), 1, opRefNull, 0, opEnd)), exports(exported("f", Func, 0), exported("g", Func, 1)), elems(b(6, 0, i32c(0), opEnd, refOf(0), 1, opRefFunc, 0, opEnd)),
		code(bodyWith(b(1, 1, refTo(0)), opBlock, refTo(0), opLocalGet, 0, opBrOnNonNull, 0, opRefFunc, 0, opEnd, opRefAsNonNull, 0x1a),
			body(opLocalGet, 0, opRefFunc, 1, opReturnCallRef, 1))))
	f.Add(one(opVector, 0x0c, make([]byte, 16), opVector, 0x53, 0x1a, opVector, 0xd6, 1))
	if dir := os.Getenv("TOOLD_SPECTEST"); dir != "" {
		files, _ := filepath.Glob(filepath.Join(dir, "v2", "testdata", "*.0.wasm"))
		for _, file := range files {
			if m, err := os.ReadFile(file); err == nil && len(m) < 3000 {
				f.Add(m)
			}
		}
	}
	lim := Limits{Size: 1 << 16, Functions: 200, Locals: 300, AllLocals: 2000, Nesting: 100, MemoryPages: 20, TableEntries: 500,
		Elements: 500, Globals: 100, Params: 50}
	f.Fuzz(func(t *testing.T, original []byte) {
		m, err := Rewrite(original, lim)
		h := newHost(t)
		h.slice, h.budget = 300, 20_000
		ctx := context.Background()
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Offset > len(original) {
				t.Fatalf("refused with %#v", err)
			}
			if e.Kind != Malformed || !tame(original[min(e.Offset, len(original)):]) || len(original) > 1000 ||
				slices.ContainsFunc(lax, func(s string) bool { return strings.Contains(e.Reason, s) }) {
				return
			}
			if _, err := h.CompileModule(ctx, original); err == nil {
				t.Fatalf("wazero takes it: %v", e)
			}
			return
		}
		// What wazero makes of a reference of the wrong type must not be run as it is.
		_, plain := newHostWith(t, features&^experimental.CoreFeaturesTypedFunctionReferences).CompileModule(ctx, original)
		_, rewritten := h.CompileModule(ctx, m.Bytes)
		if plain != nil {
			if _, plain = h.CompileModule(ctx, original); plain == nil && rewritten == nil {
				return
			}
			if plain != nil && rewritten == nil && ofReferences.MatchString(plain.Error()) {
				return
			}
		}
		if plain != nil && strings.Contains(plain.Error(), "failed to read custom section") {
			return // an empty one at the very end, which is nothing wrong
		}
		if (plain == nil) != (rewritten == nil) {
			t.Fatalf("plain: %v; rewritten: %v", plain, rewritten)
		}
		if plain != nil || len(m.Imports) > 0 {
			return
		}
		// The start function of the original would run without fuel.
		if m.StartExport != "" || len(m.Exports) > 20 {
			return
		}
		compareRuns(t, h, original, m)
	})
}

// compareRuns calls every exported function of a module without imports, rewritten and then as it is.
func compareRuns(t *testing.T, h *host, original []byte, m *Module) {
	ctx := context.Background()
	r, err := h.rewritten(m, "")
	p, perr := h.plain(original, "")
	if (err == nil) != (perr == nil) {
		t.Fatalf("instantiate plain: %v; rewritten: %v", perr, err)
	}
	if err != nil {
		return
	}
	for _, e := range m.Exports {
		if e.Kind != Func {
			continue
		}
		args := make([]uint64, 0, 8)
		for i, typ := range e.Type.Params {
			switch typ {
			case I32, I64:
				args = append(args, uint64(i+1))
			case F32:
				args = append(args, uint64(math.Float32bits(1.5)))
			case F64:
				args = append(args, math.Float64bits(2.5))
			case V128:
				args = append(args, 1, 2)
			default:
				args = append(args, 0)
			}
		}
		h.given = 0
		got, err := r.ExportedFunction(e.Name).Call(ctx, args...)
		if err != nil && (strings.Contains(err.Error(), errFuel.Error()) || strings.Contains(err.Error(), "stack overflow")) {
			return // the original may not end, and the state of the two is not the same now
		}
		want, perr := p.ExportedFunction(e.Name).Call(ctx, args...)
		if first(err) != first(perr) {
			t.Fatalf("%s%v: plain: %v; rewritten: %v", e.Name, args, perr, err)
		}
		if err == nil && !sameResults(e.Type.Results, want, got) {
			t.Fatalf("%s%v: plain %x; rewritten %x", e.Name, args, want, got)
		}
		if pm, rm := p.Memory(), r.Memory(); m.Memory != nil {
			a, _ := pm.Read(0, pm.Size())
			b, _ := rm.Read(0, rm.Size())
			if !bytes.Equal(a, b) {
				t.Fatalf("%s%v: memory differs", e.Name, args)
			}
		}
	}
}

func first(err error) string {
	if err == nil {
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// sameResults compares bits, but for references, which are addresses, and for what kind of NaN it is.
func sameResults(types []ValueType, want, got []uint64) bool {
	for _, typ := range types {
		n := 1
		if typ == V128 {
			n = 2
		}
		w, g := want[:n], got[:n]
		want, got = want[n:], got[n:]
		switch {
		case typ == FuncRef:
			if (w[0] == 0) != (g[0] == 0) {
				return false
			}
		case typ == F32 && math.IsNaN(float64(api.DecodeF32(w[0]))) && math.IsNaN(float64(api.DecodeF32(g[0]))),
			typ == F64 && math.IsNaN(api.DecodeF64(w[0])) && math.IsNaN(api.DecodeF64(g[0])):
		case !slices.Equal(w, g):
			return false
		}
	}
	return true
}

// program makes valid code from any bytes: blocks, loops that end, branches, dispatches as Go's compiler makes them, and
// calls. The code counts in global 0 what it costs itself, so that what it paid can be compared.
type program struct {
	in     []byte
	out    []byte
	labels []int // kind of each open block: 0 a block, 1 a loop, innermost last
	loops  int
	depth  int
	fns    int // functions with a higher number, which may be called
	fn     int
	cost   int64 // not counted yet
}

const (
	progLocals = 6 // i32; local 0 is the parameter, and 3 to 5 count loops down
)

func (p *program) next() int {
	if len(p.in) == 0 {
		return 0
	}
	c := p.in[0]
	p.in = p.in[1:]
	return int(c)
}

func (p *program) emit(cost int64, parts ...any) {
	p.out = append(p.out, b(parts...)...)
	p.cost += cost
}

// count adds the cost until here to the counter.
func (p *program) count() {
	p.emit(3, opGlobalGet, 0)
	p.out = append(p.out, b(i64c(p.cost), 0x7c, opGlobalSet, 0)...)
	p.cost = 0
}

func (p *program) statements() {
	for n := p.next() % 5; n >= 0 && len(p.in) > 0; n-- {
		p.statement()
	}
}

func (p *program) statement() {
	if p.depth > 12 {
		return
	}
	p.depth++
	defer func() { p.depth-- }()
	switch k := p.next() % 12; k {
	case 0, 1: // arithmetic, sometimes much of it
		for range 1 + p.next()*(p.next()%4) {
			p.emit(2, opLocalGet, p.next()%3, i32c(int64(p.next())), 0x6a, opLocalSet, p.next()%3)
		}
	case 2:
		p.emit(3, i32c(int64(p.next()*4)), opLocalGet, 1, 0x36, 2, 0, i32c(int64(p.next()*4)), 0x28, 2, 0, opLocalSet, 2)
	case 3:
		p.emit(0, opBlock, 0x40)
		p.labels = append(p.labels, 0)
		p.statements()
		p.count()
		p.emit(0, opEnd)
		p.labels = p.labels[:len(p.labels)-1]
	case 4:
		p.emit(1, opLocalGet, p.next()%3, i32c(1), 0x71)
		p.emit(1)
		p.count()
		p.emit(0, opIf, 0x40)
		p.labels = append(p.labels, 0)
		p.statements()
		p.count()
		if p.next()%2 == 0 {
			p.emit(0, opElse)
			p.statements()
			p.count()
		}
		p.emit(0, opEnd)
		p.labels = p.labels[:len(p.labels)-1]
	case 5: // a loop that counts down
		if p.loops == 3 {
			return
		}
		l := 3 + p.loops
		p.loops++
		p.emit(1, i32c(int64(p.next()%7)), opLocalSet, l)
		p.count()
		p.emit(0, opLoop, 0x40)
		p.labels = append(p.labels, 1)
		p.statements()
		if p.next()%2 == 0 {
			p.emit(3, opLocalGet, l, i32c(1), 0x6b, 0x22, l)
			p.count2(func() { p.emit(0, opBrIf, 0) })
		} else {
			p.emit(3, opLocalGet, l, i32c(1), 0x6b, 0x22, l)
			p.count2(func() { p.emit(0, opIf, 0x40, opBr, 1, opEnd) })
		}
		p.emit(0, opEnd)
		p.labels = p.labels[:len(p.labels)-1]
		p.loops--
	case 6, 7: // leave some block, never back into a loop
		l := p.block(p.next())
		if l < 0 {
			return
		}
		p.emit(1, opLocalGet, p.next()%3, i32c(int64(p.next()%8)), 0x4b)
		if k == 6 {
			p.count2(func() { p.emit(0, opBrIf, l) })
		} else {
			p.count2(func() { p.emit(0, opIf, 0x40, opBr, l+1, opEnd) })
		}
	case 8:
		l, m := p.block(p.next()), p.block(p.next())
		if l < 0 {
			return
		}
		p.emit(0, opBlock, 0x40)
		p.emit(2)
		p.count()
		p.emit(0, opLocalGet, p.next()%3, opBrTable, 3, 0, l+1, m+1, 0, opEnd)
	case 9:
		if p.fn+1 < p.fns && p.loops < 2 {
			p.emit(5, opLocalGet, p.next()%3)
			p.count()
			p.emit(0, opCall, p.fn+1+p.next()%(p.fns-p.fn-1), opLocalSet, 1)
		}
	case 10:
		p.emit(1, opLocalGet, 0, i32c(7), 0x71)
		p.emit(1)
		p.count2(func() { p.emit(0, opIf, 0x40, opLocalGet, 1, opReturn, opEnd) })
	case 11:
		p.dispatch()
	}
}

// count2 counts with an i32 on the stack, which what follows takes.
func (p *program) count2(then func()) {
	p.count()
	then()
}

// block is the label of some open block that is no loop, or -1.
func (p *program) block(n int) int {
	for range p.labels {
		n++
		if i := n % len(p.labels); p.labels[i] == 0 {
			return len(p.labels) - 1 - i
		}
	}
	return -1
}

// dispatch is a loop as Go's compiler makes one of each function, over local 2, that goes back at most as often as
// local 3 to 5 says.
func (p *program) dispatch() {
	if p.loops == 3 || p.depth > 3 {
		return
	}
	l := 3 + p.loops
	p.loops++
	n := 2 + p.next()%5
	p.emit(2, i32c(int64(2+p.next()%9)), opLocalSet, l, i32c(0), opLocalSet, 2)
	p.count()
	p.emit(0, opLoop, 0x40)
	p.labels = append(p.labels, 1)
	for range n {
		p.emit(0, opBlock, 0x40)
		p.labels = append(p.labels, 0)
	}
	p.emit(0, opLocalGet, 2, opBrTable)
	p.out = append(p.out, byte(n-1))
	for i := range n {
		p.out = append(p.out, byte(i))
	}
	for i := range n {
		p.emit(0, opEnd)
		p.labels = p.labels[:len(p.labels)-1]
		p.statements()
		to := p.next() % n
		label := n - 1 - i
		if to > i {
			if p.next()%2 == 0 {
				p.emit(1, opLocalGet, 0, i32c(2), 0x71)
				p.count2(func() { p.emit(0, opIf, 0x40, i32c(int64(to)), opLocalSet, 2, opBr, label+1, opEnd) })
			} else {
				p.count()
				p.emit(0, i32c(int64(to)), opLocalSet, 2, opBr, label)
			}
		} else {
			p.emit(3, opLocalGet, l, i32c(1), 0x6b, 0x22, l)
			p.count2(func() { p.emit(0, opIf, 0x40, i32c(int64(to)), opLocalSet, 2, opBr, label+1, opEnd) })
		}
	}
	p.count()
	p.emit(0, opEnd)
	p.labels = p.labels[:len(p.labels)-1]
	p.loops--
}

// FuzzProgram runs programs made of the input. They must give the same rewritten, pay at least what they cost, and pay
// the same however fuel comes.
func FuzzProgram(f *testing.F) {
	f.Add(bytes.Repeat([]byte{3, 5, 1, 11, 7, 2, 9, 4, 6, 8, 10, 0}, 20))
	f.Add(bytes.Repeat([]byte{4, 11, 3, 1, 2, 5, 3, 200, 3, 7, 6, 9}, 30))
	f.Add([]byte("a dispatch in a loop in a dispatch, and some more of it; the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 2000 {
			return
		}
		const fns = 3
		var bodies [][]byte
		for fn := range fns {
			p := &program{in: in[len(in)*fn/fns : len(in)*(fn+1)/fns], fns: fns, fn: fn}
			for len(p.in) > 0 && len(p.out) < 20_000 {
				p.statement()
			}
			p.count()
			bodies = append(bodies, bodyWith(b(1, progLocals-1, I32), p.out, opLocalGet, 1))
		}
		original := module(types(functype([]ValueType{I32}, []ValueType{I32})), funcs(0, 0, 0), mem(0, 1),
			globals(b(I64, 1, i64c(0), opEnd)), exports(exported("f", Func, 0), exported("paid", Global, 0), exported("memory", Memory, 0)), code(bodies...))
		m, err := Rewrite(original, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		h := newHost(t)
		type outcome struct {
			result, counted uint64
			err             string
			used            int64
		}
		var runs []outcome
		for _, slice := range []int64{1 << 40, 700, 1} {
			h.slice, h.budget, h.given = slice, 300_000, 0
			if slice > h.budget {
				h.slice = h.budget
			}
			if slice == 1 && runs[0].used > 3000 {
				break // each unit is a call of the host
			}
			i, err := h.rewritten(m, "")
			if err != nil {
				t.Fatal(err)
			}
			res, err := i.ExportedFunction("f").Call(context.Background(), 5)
			o := outcome{err: first(err), counted: i.ExportedGlobal("paid").Get(), used: h.given - int64(i.ExportedGlobal(ExportFuel).Get())}
			if err == nil {
				o.result = res[0]
			}
			i.Close(context.Background())
			if strings.Contains(o.err, errFuel.Error()) {
				return
			}
			runs = append(runs, o)
		}
		for _, o := range runs[1:] {
			if o != runs[0] {
				t.Fatalf("ran as %+v", runs)
			}
		}
		i, err := h.InstantiateWithConfig(context.Background(), original, wazero.NewModuleConfig().WithName(""))
		if err != nil {
			t.Fatal(err)
		}
		res, err := i.ExportedFunction("f").Call(context.Background(), 5)
		if first(err) != runs[0].err || err == nil && res[0] != runs[0].result || i.ExportedGlobal("paid").Get() != runs[0].counted {
			t.Fatalf("plain: %v, %v, counted %d; rewritten: %+v", res, err, i.ExportedGlobal("paid").Get(), runs[0])
		}
		// A leaf that the host calls is the one that nobody pays for.
		if runs[0].used+leafMost < int64(runs[0].counted) {
			t.Fatalf("paid %d for what costs %d", runs[0].used, runs[0].counted)
		}
	})
}
