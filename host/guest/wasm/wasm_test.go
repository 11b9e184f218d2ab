package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero/api"
)

var (
	i32Void  = functype([]ValueType{I32}, nil)
	voidI32  = functype(nil, []ValueType{I32})
	i32Three = functype([]ValueType{I32, I32, I32}, nil)
)

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		module []byte
		kind   Kind
		want   string
	}{
		{"empty", nil, Malformed, "read header: not a WebAssembly module at byte 0x0"},
		{"text", []byte("(module)"), Malformed, "not a WebAssembly module"},
		{"component", b("\x00asm", 13, 0, 1, 0), Malformed, "version is not 1"},
		{"order", module(section(secFunction, 0), section(secType, 0)), Malformed, "section 1: it is out of order at byte 0xb"},
		{"twice", module(section(secType, 0), section(secType, 0)), Malformed, "out of order"},
		{"data count late", module(section(secCode, 0), section(secDataCount, 0)), Malformed, "out of order"},
		{"unknown section", module(section(14, 0)), Unsupported, "unknown section 14 at byte 0x8"},
		{"tag with results", module(types(functype(nil, []ValueType{I32})), section(secTag, 1, 0, 0)), Malformed, "tag with results"},
		{"tag of an unknown type", module(section(secTag, 1, 0, 0)), Malformed, "unknown type 0"},
		{"too many tags", module(types(void), section(secTag, 65, bytes.Repeat(b(0, 0), 65))), TooLarge, "65 tags"},
		{"large exception", module(types(functype(slices.Repeat([]ValueType{I32}, 65), nil)), section(secTag, 1, 0, 0)), TooLarge, "an exception of 65 values"},
		{"unknown tag", one(opThrow, 0), Malformed, "unknown tag 0"},
		{"catch at an unknown label", one(opTryTable, 0x40, 1, 2, 9, opEnd), Malformed, "unknown label 9"},
		{"unknown clause", one(opTryTable, 0x40, 1, 4, 0, opEnd), Malformed, "unknown kind of clause"},
		{"catch too much", one(opTryTable, 0x40, 1, 3, 0, opEnd), Malformed, "catch 1 values where 0 are expected"},
		{"references in an exnref", exceptional(functype([]ValueType{FuncRef}, nil), opBlock, exnRef, opTryTable, 0x40, 1, 3, 0, opRefNull, FuncRef, opThrow, 0, opEnd, opRefNull, exnRef, opEnd, 0x1a), Unsupported, "references in an exnref"},
		{"left over", module(section(secType, 0, 0)), Malformed, "bytes are left over at byte 0xb"},
		{"cut off", module(b(secType, 5, 1)), Short, "longer than the module"},
		{"cut off in the head of a section", module(b(secType)), Short, "cut off"},
		{"count over bytes", module(section(secType, u(1<<31))), Malformed, "are announced in 0 bytes"},
		{"long number", module(b(secCustom, 0x80, 0x80, 0x80, 0x80, 0x80, 0)), Malformed, "more than 32 bits"},
		{"name not UTF-8", module(section(secCustom, 1, 0xff)), Malformed, "not UTF-8"},
		{"unknown type", module(types(functype([]ValueType{0x7a}, nil))), Malformed, "unknown type 0x7a"},
		{"imported exception", module(imports(b(name("a"), name("b"), 3, exnRef, 0))), Unsupported, "import the exceptions of another module"},
		{"struct", module(types(b(0x5f, 0))), Unsupported, "use GC (garbage collected types"},
		{"reference to an unknown type", module(types(functype([]ValueType{0x64, 2}, nil))), Malformed, "refer to unknown type 2"},
		{"reference to a later type", module(types(functype([]ValueType{0x64, 1}, nil), void)), Malformed, "refer to unknown type 1"},
		{"reference to a later type of another group", module(section(secType, 2, b(0x4e, 1, functype([]ValueType{0x64, 1}, nil)), void)), Malformed, "refer to unknown type 1"},
		{"group of many types", module(section(secType, 1, 0x4e, u(10_001), make([]byte, 10_001))), TooLarge, "10001 types"},
		{"group in a group", module(section(secType, 1, 0x4e, 1, 0x4e, 0)), Unsupported, "use GC"},
		{"imported global of a type", module(imports(b(name("a"), name("b"), 3, 0x64, FuncRef, 0))), Unsupported, "import the typed references of another module"},
		{"imported table of a type", module(types(void), imports(b(name("a"), name("b"), 1, 0x63, 0, 0, 1))), Unsupported, "import the typed references of another module"},
		{"typed reference to what is collected", module(types(functype([]ValueType{0x63, 0x6e}, nil))), Unsupported, "use GC (garbage collected types, 0x6e)"},
		{"bottom of exceptions", module(types(functype([]ValueType{0x74}, nil))), Unsupported, "use bottom types (0x74)"},
		{"own import", module(types(void), imports(b(name("toold"), name("refill"), 0, 0))), Unsupported, `import from "toold"`},
		{"own export", module(types(void), funcs(0), exports(exported("toold:fuel", Func, 0)), code(body())), Unsupported, `export "toold:fuel"`},
		{"import of a tag", module(types(void), imports(b(name("a"), name("b"), 4, 0, 0))), Unsupported, "import the tag of another module"},
		{"shared memory of others", module(imports(b(name("a"), name("b"), 2, 3, 1, 1))), Unsupported, "use threads (a shared memory"},
		{"shared memory without a maximum", module(mem(2, 1)), Unsupported, "use threads (a shared memory"},
		{"64-bit memory", module(mem(4, 1)), Unsupported, "use memory64 (64-bit memory)"},
		{"two memories", module(section(secMemory, 2, 0, 1, 0, 1)), Unsupported, "use multi-memory (several memories)"},
		{"memory and import", module(imports(b(name("a"), name("b"), 2, 0, 1)), mem(0, 1)), Unsupported, "use multi-memory (several memories)"},
		{"memory too large", module(mem(0, u(65537))), Malformed, "over 65536 pages"},
		{"minimum over maximum", module(mem(1, 2, 1)), Malformed, "minimum 2 is over the maximum 1"},
		{"table minimum over maximum", module(tables(b(FuncRef, 1, 2, 1))), Malformed, "minimum 2 is over the maximum 1"},
		{"table of numbers", module(tables(b(I32, 0, 1))), Malformed, "unknown type 0x7f"},
		{"table of unknown kind", module(tables(b(0x40, 1, FuncRef, 0, 1, opRefNull, FuncRef, opEnd))), Malformed, "read table: unknown kind"},
		{"table with another value", module(tables(b(0x40, 0, FuncRef, 0, 1, opRefNull, ExternRef, opEnd))), Malformed, "fill a table of type funcref with externref"},
		{"table without a value", module(tables(b(0x64, FuncRef, 0, 1))), Malformed, "says not what is in it"},
		{"memory pages", module(mem(0, u(5000))), TooLarge, "need 5000 pages of memory, over the limit of 4096"},
		{"table entries", module(tables(b(FuncRef, 0, u(100_000)), b(FuncRef, 0, u(100_000)))), TooLarge, "need 200000 table entries"},
		{"export twice", module(mem(0, 1), exports(exported("m", Memory, 0), exported("m", Memory, 0))), Malformed, `export "m" twice`},
		{"no code", module(types(void), funcs(0)), Malformed, "1 functions are declared and 0 defined"},
		{"code alone", module(code(body())), Malformed, "0 functions are declared and 1 defined"},
		{"data count", module(mem(0, 1), section(secDataCount, 2), datas(b(1, 0))), Malformed, "2 data segments are announced and 1 defined"},
		{"data without memory", module(datas(b(0, i32c(0), opEnd, 0))), Malformed, "memory that is not there"},
		{"data at an i64", module(mem(0, 1), datas(b(0, i64c(0), opEnd, 0))), Malformed, "offset of type i64"},
		{"data at nothing", module(mem(0, 1), datas(b(0, opEnd, 0))), Malformed, "end a constant expression with 0 values"},
		{"data at two values", module(mem(0, 1), datas(b(0, i32c(0), i32c(0), opEnd, 0))), Malformed, "with 2 values"},
		{"adding too little", module(mem(0, 1), datas(b(0, i32c(0), 0x6a, opEnd, 0))), Malformed, "calculate with other values"},
		{"mutable global in a constant", module(globals(b(I32, 1, i32c(1), opEnd)), elems(b(5, FuncRef, 1, opGlobalGet, 0, opEnd))), Malformed, "mutable global 0"},
		{"deep constant", module(globals(b(I32, 0, bytes.Repeat(i32c(1), 1001), opEnd))), TooLarge, "more than 1000 values"},
		{"growing code", one(bytes.Repeat(b(opLoop, 0x40, bytes.Repeat(b(i32c(0), opBrIf, 0), 1000), opEnd), 200)), TooLarge, "too long when metered"},
		{"global of another type", module(globals(b(I32, 0, i64c(1), opEnd))), Malformed, "global of type i32 with i64"},
		{"names twice", module(section(secCustom, name("name")), section(secCustom, name("name"))), Malformed, "twice"},
		{"broken names", module(section(secCustom, name("name"), 1, sized(1, 0, 9))), Malformed, "cut off"},
		{"start with parameters", module(types(i32Void), funcs(0), section(secStart, 0), code(body())), Malformed, "has parameters or results"},

		{"unknown instruction", one(0x27), Unsupported, "unknown instruction 0x27 at byte 0x23"},
		{"cut try_table", one(opTryTable), Malformed, "type"},
		{"legacy exceptions", one(0x06, 0x40), Unsupported, "legacy exceptions: rebuild with -wasm-use-legacy-eh=false"},
		{"unknown atomic", one(opAtomic, 0x4f), Unsupported, "unknown instruction 0xfe 79"},
		{"fence", one(opAtomic, 3, 1), Malformed, "fence"},
		{"call_ref of an unknown type", one(opCallRef, 1), Malformed, "unknown type 1"},
		{"br_on_null to an unknown label", one(opRefNull, FuncRef, opBrOnNull, 3), Malformed, "unknown label 3"},
		{"null of an unknown type", one(opRefNull, 1), Malformed, "refer to unknown type 1"},
		{"local of an unknown type", module(types(void), funcs(0), code(bodyWith(b(1, 1, 0x63, 1)))), Malformed, "refer to unknown type 1"},
		{"block of an unknown type", one(opBlock, 0x63, 9, opUnreachable, opEnd), Malformed, "refer to unknown type 9"},
		{"garbage collection", one(0xfb, 0), Unsupported, "use GC (garbage collected types"},
		{"ref.eq", one(0xd3), Unsupported, "use GC (garbage collected types) (instruction 0xd3)"},
		{"unknown misc", one(opMisc, 18), Unsupported, "unknown instruction 0xfc 18"},
		{"relaxed vector", one(opVector, 0x80, 0x02), Unsupported, "use relaxed SIMD (instruction 0xfd 256)"},
		{"unknown vector", one(opVector, 0x9a, 0x01), Unsupported, "unknown instruction 0xfd 154"},
		{"long vector number", one(opVector, 0x80, 0x00), Malformed, "longer than it must be"},
		{"no end", module(types(void), funcs(0), code(sized(0))), Malformed, "its end is missing"},
		{"after the end", one(opEnd), Malformed, "code follows its end"},
		{"else alone", one(opBlock, 0x40, opElse, opEnd), Malformed, "else without an if"},
		{"two elses", one(i32c(0), opIf, 0x40, opElse, opElse, opEnd), Malformed, "else without an if"},
		{"memory index", one(opMemorySize, 1), Unsupported, "use multi-memory (several memories)"},
		{"alignment", one(i32c(0), 0x28, 7, 0), Malformed, "alignment"},
		{"memory argument with index", one(i32c(0), 0x28, 0x42, 0, 0), Unsupported, "use multi-memory (several memories)"},
		{"no memory", module(types(void), funcs(0), code(body(i32c(0), i32c(0), i32c(0), opMisc, 11, 0))), Malformed, "memory that is not there"},
		{"select of two", one(opSelectTyped, 2, I32, I32), Malformed, "select between 2 types"},
		{"long constant", one(opI32Const, 0xff, 0xff, 0xff, 0xff, 0x4f), Malformed, "more than 32 bits"},
		{"locals", module(types(void), funcs(0), code(bodyWith(b(1, u(1<<32-1), I32)))), TooLarge, "more than 50000 locals"},
		{"locals in groups", module(types(void), funcs(0), code(bodyWith(b(2, u(1<<31), I32, u(1<<31), I32)))), TooLarge, "more than 50000 locals"},
		{"padding", module(types(void), b(0, 0, 0)), Malformed, "cut off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Rewrite(c.module, Limits{Size: 1 << 20})
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("no *Error but %v", err)
			}
			if e.Kind != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused as kind %d: %v; want kind %d: %s", e.Kind, err, c.kind, c.want)
			}
			if e.Offset > len(c.module) {
				t.Errorf("offset %d of %d bytes", e.Offset, len(c.module))
			}
		})
	}
}

// TestAdded has modules that are invalid, and would not be if an index were checked against the counts of the
// rewritten module.
func TestAdded(t *testing.T) {
	g := globals(b(I64, 1, i64c(0), opEnd))
	for _, c := range []struct {
		name   string
		module []byte
		want   string
	}{
		{"refuel", module(types(void), funcs(0), g, code(body(i64c(1<<40), opGlobalSet, 1))), "unknown global 1"},
		{"read fuel", module(types(void), funcs(0), g, code(body(opGlobalGet, 1, 0x1a))), "unknown global 1"},
		{"clean", module(types(void), funcs(0), g, code(body(i32c(0), opGlobalSet, 2))), "unknown global 2"},
		{"export fuel", module(g, exports(exported("g", Global, 1))), "unknown global 1"},
		{"call a helper", module(types(void), funcs(0), code(body(opCall, 1))), "unknown function 1"},
		{"export a helper", module(types(void), funcs(0), exports(exported("f", Func, 1)), code(body())), "unknown function 1"},
		{"start a helper", module(types(void), funcs(0), section(secStart, 1), code(body())), "unknown function 1"},
		{"put a helper in a table", module(types(void), funcs(0), tables(b(FuncRef, 0, 1)), elems(b(0, i32c(0), opEnd, 1, 1)), code(body())), "unknown function 1"},
		{"helper in a global", module(types(void), funcs(0), globals(b(FuncRef, 0, opRefFunc, 1, opEnd)), code(body())), "unknown function 1"},
		{"refer to the start function", module(types(void), funcs(0), section(secStart, 0), code(body(opRefFunc, 0, 0x1a))), "which nothing outside of code names"},
		{"added type of a block", one(opBlock, 1, opEnd), "unknown type 1"},
		{"added type of a call", module(types(void), funcs(0), tables(b(FuncRef, 0, 1)), code(body(i32c(0), opCallIndirect, 1, 0))), "unknown type 1"},
		{"added type of a function", module(types(void), funcs(1), code(body())), "unknown type 1"},
		{"added type of an import", module(types(void), imports(b(name("a"), name("b"), 0, 1))), "unknown type 1"},
		{"data count", module(types(void), funcs(0), mem(0, 1), code(body(opMisc, 9, 0)), datas(b(1, 0))), "without a data count section"},
		{"empty segment", module(types(void), funcs(0), mem(0, 1), section(secDataCount, 1), code(body(opMisc, 9, 1)), datas(b(1, 0))), "unknown data segment 1"},
		{"element segment", module(types(void), funcs(0), code(body(opMisc, 13, 0))), "unknown element segment 0"},
		{"label of a check", one(opBr, 1), "unknown label 1"},
		{"label of a block", one(opBlock, 0x40, i32c(0), opBrTable, 1, 0, 2, opEnd), "unknown label 2"},
		{"local", one(opLocalGet, 0, 0x1a), "unknown local 0"},
		{"table", one(i32c(0), opTableGet, 0, 0x1a), "unknown table 0"},
		{"fuel in a constant", module(globals(b(I64, 0, opGlobalGet, 0, opEnd))), "unknown global 0"},
		{"dirty in an element offset", module(types(void), funcs(0), tables(b(FuncRef, 0, 1)), elems(b(0, opGlobalGet, 1, opEnd, 1, 0)), code(body())), "unknown global 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Rewrite(c.module, Limits{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want %s", err, c.want)
			}
			if _, err := newHost(t).CompileModule(context.Background(), c.module); err == nil {
				t.Error("wazero takes the module")
			}
		})
	}
}

// TestInvalidStaysInvalid has modules with faults that only an engine's validation finds, in code next to what is put
// in or written otherwise.
func TestInvalidStaysInvalid(t *testing.T) {
	h := newHost(t)
	for i, m := range [][]byte{
		one(opLoop, 0x40, i32c(1), i32c(0), opBrIf, 0, opEnd),                           // a value is left
		one(opLoop, 0x40, opBr, 0, 0x6a, 0x45, opEnd),                                   // fine until here: dead code
		one(i32c(0), i64c(0), i32c(0), opMisc, 11, 0),                                   // memory.fill with an i64
		one(i64c(0), opMemoryGrow, 0, 0x1a),                                             // memory.grow by an i64
		one(opUnreachable, i64c(0), opMemoryGrow, 0, 0x1a),                              // the same where nothing gets
		one(opUnreachable, i64c(0), opMisc, 10, 0, 0),                                   // memory.copy
		one(opLoop, I32, opBr, 0, opEnd),                                                // nothing is left in the end
		one(opBlock, 0x40, i64c(0), opBrIf, 0, opEnd),                                   // an i64 as condition
		one(opLoop, 0x40, i64c(0), opBrIf, 0, opEnd),                                    // the same, and backward
		one(opLoop, 0x40, opBrIf, 0, opEnd),                                             // no condition
		one(i32c(0), opIf, I32, opElse, i32c(0), opEnd, 0x1a),                           // nothing on one side
		module(types(voidI32), funcs(0), code(body(opReturn))),                          // nothing to return
		module(types(voidI32), funcs(0), code(body(opLoop, 0x40, opEnd))),               // the same
		module(types(void, voidI32), funcs(0, 1), code(body(opCall, 1), body(i32c(0)))), // a result is left over
	} {
		_, plain := h.CompileModule(context.Background(), m)
		r, err := Rewrite(m, Limits{})
		if err == nil {
			_, err = h.CompileModule(context.Background(), r.Bytes)
		}
		if (plain == nil) != (err == nil) {
			t.Errorf("module %d: plain: %v; rewritten: %v", i, plain, err)
		}
	}
}

// TestMoved has every place that names a function, in a module with an imported one.
func TestMoved(t *testing.T) {
	fn := func(n int64) []byte { return body(i32c(n)) }
	set := functype([]ValueType{I32}, []ValueType{I32})
	var call0 = b(opCallIndirect, 0)
	m := module(
		types(voidI32, set, void),
		imports(b(name("env"), name("zero"), Func, 0), b(name("env"), name("other"), Func, 0)),
		funcs(0, 0, 0, 1, 0, 0, 2, 0), // 2 to 9
		tables(b(FuncRef, 0, 20), b(FuncRef, 0, 20)),
		globals(b(FuncRef, 0, opRefFunc, 3, opEnd), b(FuncRef, 1, opRefNull, FuncRef, opEnd), b(I32, 1, i32c(0), opEnd)),
		exports(exported("two", Func, 2), exported("import", Func, 1), exported("at", Func, 5), exported("direct", Func, 6),
			exported("tail", Func, 7), exported("ref", Func, 9)),
		section(secStart, 8),
		elems(
			b(0, i32c(0), opEnd, 2, 2, 0),                // at 0: two, env.zero
			b(1, 0, 1, 3),                                // passive
			b(2, 1, i32c(0), opEnd, 0, 2, 3, 4),          // second table: three, four
			b(3, 0, 1, 4),                                // declared
			b(4, i32c(2), opEnd, 1, opRefFunc, 4, opEnd), // at 2: four
			b(5, FuncRef, 2, opRefFunc, 3, opEnd, opRefNull, FuncRef, opEnd), // passive
			b(6, 0, i32c(3), opEnd, FuncRef, 1, opRefFunc, 3, opEnd),         // at 3: three
			b(7, FuncRef, 1, opRefFunc, 2, opEnd),                            // declared
		),
		code(fn(2), fn(3), fn(4),
			body(opLocalGet, 0, call0, 0), // at
			body(opCall, 2, opCall, 0, 0x6a, opCall, 1, 0x6a),
			body(opReturnCall, 3),
			body(i32c(8), opGlobalSet, 2, i32c(4), i32c(0), i32c(1), opMisc, 12, 1, 0, i32c(5), i32c(0), i32c(1), opMisc, 12, 5, 0), // start
			body(i32c(6), opRefFunc, 4, opTableSet, 0, i32c(6), call0, 0, opGlobalGet, 2, 0x6a, i32c(7), opGlobalGet, 0, opTableSet, 0, i32c(7), call0, 0, 0x6a),
		),
		section(secCustom, name("name"), 1, sized(vec(b(0, name("zero")), b(5, name("at"))))),
	)
	h := newHost(t)
	env := h.NewHostModuleBuilder("env")
	for n, name := range []string{"zero", "other"} {
		env.NewFunctionBuilder().WithFunc(func() uint32 { return uint32(100 * (n + 1)) }).Export(name)
	}
	if _, err := env.Instantiate(context.Background()); err != nil {
		t.Fatal(err)
	}
	r := mustRewrite(t, m)
	plain, err := h.plain(m, "")
	if err != nil {
		t.Fatal(err)
	}
	rewritten, err := h.rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	calls := []struct {
		f    string
		args []uint64
		want uint64
	}{{"two", nil, 2}, {"direct", nil, 302}, {"tail", nil, 3}, {"ref", nil, 4 + 8 + 3}}
	for i, want := range []uint64{2, 100, 4, 3, 3, 3} {
		calls = append(calls, struct {
			f    string
			args []uint64
			want uint64
		}{"at", []uint64{uint64(i)}, want})
	}
	for _, c := range calls {
		if p, r := call(t, plain, c.f, c.args...)[0], call(t, rewritten, c.f, c.args...)[0]; p != c.want || r != c.want {
			t.Errorf("%s%v gives %d plain and %d rewritten; want %d", c.f, c.args, p, r, c.want)
		}
	}
	_, err = rewritten.ExportedFunction("at").Call(context.Background(), 19)
	if err == nil || !strings.Contains(err.Error(), ".at(") {
		t.Errorf("a trap does not show the function's name: %v", err)
	}
	if r.StartExport != ExportStart || len(r.Imports) != 2 || len(r.Exports) != 6 || r.Exports[2].Name != "at" ||
		!slices.Equal(r.Exports[2].Type.Params, []ValueType{I32}) {
		t.Errorf("described wrongly: %+v", r)
	}
}

func TestGlobals(t *testing.T) {
	f64 := b(0x44, "\x00\x00\x00\x00\x00\x00\xf8\x3f") // 1.5
	v128 := func(lo, hi byte) []byte {
		return b(opVector, 0x0c, bytes.Repeat([]byte{lo}, 8), bytes.Repeat([]byte{hi}, 8))
	}
	m := module(
		types(void),
		funcs(0),
		globals(b(I32, 1, i32c(-1), opEnd), b(I64, 0, i64c(7), opEnd), b(I64, 1, i64c(-2), opEnd),
			b(F32, 1, 0x43, "\x00\x00\xc0\x3f", opEnd), b(F64, 1, f64, opEnd), b(V128, 1, v128(1, 2), opEnd),
			b(ExternRef, 1, opRefNull, ExternRef, opEnd)),
		exports(exported("i32", Global, 0), exported("i64", Global, 2), exported("f32", Global, 3), exported("f64", Global, 4), exported("change", Func, 0)),
		code(body(i32c(5), opGlobalSet, 0, i64c(5), opGlobalSet, 2, 0x43, "\x00\x00\x00\x00", opGlobalSet, 3, 0x44, "\x00\x00\x00\x00\x00\x00\x00\x00",
			opGlobalSet, 4, v128(3, 4), opGlobalSet, 5)),
	)
	r := mustRewrite(t, m)
	want := []GlobalType{{I32, false}, {I64, false}, {F32, false}, {F64, false}, {V128, false}}
	if !slices.Equal(r.Globals, want) {
		t.Fatalf("globals %v; want %v", r.Globals, want)
	}
	h := newHost(t)
	i, err := h.rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	all := func(i api.Module) (bits [][]uint64) {
		for n := range want {
			bits = append(bits, call(t, i, ExportGlobalGet, uint64(n)))
		}
		return bits
	}
	first := [][]uint64{{0xffffffff, 0}, {1<<64 - 2, 0}, {0x3fc00000, 0}, {0x3ff8000000000000, 0}, {0x0101010101010101, 0x0202020202020202}}
	if got := all(i); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Fatalf("globals %x; want %x", got, first)
	}
	call(t, i, ExportSave)
	call(t, i, "change")
	changed := all(i)
	if changed[4][0] != 0x0303030303030303 || changed[0][0] != 5 {
		t.Fatalf("changed to %x", changed)
	}
	if i.ExportedGlobal(ExportDirty).Get() != 0 {
		t.Error("setting a number made it dirty")
	}
	call(t, i, ExportRestore)
	if got := all(i); fmt.Sprint(got) != fmt.Sprint(first) {
		t.Errorf("restored %x; want %x", got, first)
	}
	// Another instance gets the values of the first one.
	other, err := h.rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	for n, v := range changed {
		call(t, other, ExportGlobalSet, uint64(n), v[0], v[1])
	}
	if got := all(other); fmt.Sprint(got) != fmt.Sprint(changed) {
		t.Errorf("carried over %x; want %x", got, changed)
	}
	for _, f := range []string{ExportGlobalGet, ExportGlobalSet} {
		if _, err := i.ExportedFunction(f).Call(context.Background(), 5, 0, 0); f == ExportGlobalSet && err == nil {
			t.Error("there is a sixth global")
		}
	}
}

func TestDirty(t *testing.T) {
	null := b(opRefNull, FuncRef)
	for _, c := range []struct {
		name  string
		code  []byte
		dirty uint64
	}{
		{"nothing", nil, 0},
		{"reading", b(i32c(0), opTableGet, 0, 0x1a, opMisc, 16, 0, 0x1a), 0},
		{"memory", b(i32c(0), i32c(0), i32c(4), opMisc, 11, 0), 0},
		{"table.set", b(i32c(0), null, opTableSet, 0), 1},
		{"table.init", b(i32c(0), i32c(0), i32c(1), opMisc, 12, 0, 0), 1},
		{"table.copy", b(i32c(0), i32c(0), i32c(1), opMisc, 14, 0, 0), 1},
		{"table.grow", b(null, i32c(1), opMisc, 15, 0, 0x1a), 1},
		{"table.fill", b(i32c(0), null, i32c(1), opMisc, 17, 0), 1},
		{"elem.drop", b(opMisc, 13, 0), 1},
		{"data.drop", b(opMisc, 9, 0), 1},
		{"global.set", b(null, opGlobalSet, 0), 1},
		{"before a trap", b(i32c(99), null, opTableSet, 0), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := module(types(void), funcs(0), tables(b(FuncRef, 0, 2)), mem(0, 1), globals(b(FuncRef, 1, null, opEnd)),
				exports(exported("f", Func, 0)), elems(b(1, 0, 1, 0)), section(secDataCount, 1), code(body(c.code)), datas(b(1, sized("data"))))
			i, err := newHost(t).rewritten(mustRewrite(t, m), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := i.ExportedFunction("f").Call(context.Background()); (err != nil) != (c.name == "before a trap") {
				t.Error(err)
			}
			if got := i.ExportedGlobal(ExportDirty).Get(); got != c.dirty {
				t.Errorf("dirty is %d; want %d", got, c.dirty)
			}
		})
	}
}

func TestData(t *testing.T) {
	active := func(at []byte, data string) []byte { return b(0, at, opEnd, sized(data)) }
	init := func(dst, src, n int64, seg int) []byte { return b(i32c(dst), i32c(src), i32c(n), opMisc, 8, seg, 0) }
	m := module(types(void, void), funcs(0, 0, 0), mem(0, 1),
		exports(exported("memory", Memory, 0), exported("passive", Func, 0), exported("active", Func, 1), exported("none", Func, 2)), section(secDataCount, 5),
		code(body(init(100, 1, 2, 2), opMisc, 9, 2), body(init(0, 0, 1, 0)), body(init(0, 0, 0, 0), opMisc, 9, 0)),
		datas(active(i32c(10), "one"), active(b(i32c(4), i32c(3), 0x6c), "two"), b(1, sized("passive")), b(2, 0, i32c(11), opEnd, sized("ver")), b(1, sized("unused"))))
	r := mustRewrite(t, m)
	want := []Segment{{10, []byte("one")}, {12, []byte("two")}, {11, []byte("ver")}}
	if fmt.Sprint(r.Data) != fmt.Sprint(want) {
		t.Fatalf("data %v; want %v", r.Data, want)
	}
	if bytes.Contains(r.Bytes, []byte("unused")) || bytes.Contains(r.Bytes, []byte("two")) {
		t.Error("segments stayed that nothing needs")
	}
	i, err := newHost(t).rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := i.Memory().Read(10, 6); string(got) != "overo\x00" {
		t.Errorf("memory is %q", got)
	}
	call(t, i, "passive")
	if got, _ := i.Memory().Read(100, 3); string(got) != "as\x00" {
		t.Errorf("memory is %q", got)
	}
	if _, err := i.ExportedFunction("passive").Call(context.Background()); err == nil {
		t.Error("a dropped segment is still there")
	}
	if _, err := i.ExportedFunction("active").Call(context.Background()); err == nil {
		t.Error("an active segment is still there")
	}
	call(t, i, "none")

	// What cannot be placed without an engine stays.
	g := module(imports(b(name("env"), name("at"), Global, I32, 0)), mem(0, 1), datas(active(b(opGlobalGet, 0), "there")))
	if r := mustRewrite(t, g); len(r.Data) != 0 || !bytes.Contains(r.Bytes, []byte("there")) {
		t.Errorf("data at an imported global was taken out: %v", r.Data)
	}
	g = module(imports(b(name("env"), name("memory"), Memory, 0, 1)), datas(active(i32c(0), "there")))
	if r := mustRewrite(t, g); len(r.Data) != 0 || !bytes.Contains(r.Bytes, []byte("there")) {
		t.Errorf("data of an imported memory was taken out: %v", r.Data)
	}
}

func TestMemoryBounds(t *testing.T) {
	grow := module(types(functype([]ValueType{I32}, []ValueType{I32})), funcs(0), mem(0, 1),
		exports(exported("grow", Func, 0), exported("memory", Memory, 0)), code(body(opLocalGet, 0, opMemoryGrow, 0)))
	r, err := Rewrite(grow, Limits{MemoryPages: 5})
	if err != nil {
		t.Fatal(err)
	}
	if *r.Memory != (MemoryLimits{1, 5}) {
		t.Errorf("memory %+v", *r.Memory)
	}
	i, err := newHost(t).rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	const failed = 1<<32 - 1
	for _, c := range [][2]uint64{{0, 1}, {5, failed}, {1 << 31, failed}, {failed, failed}, {3, 1}, {1, 4}, {1, failed}, {0, 5}} {
		if got := call(t, i, "grow", c[0])[0]; got != c[1] {
			t.Errorf("memory.grow(%d) gives %d; want %d", c[0], got, c[1])
		}
	}
	if _, ok := i.Memory().Grow(1); !ok {
		t.Error("there is no page more for the engine")
	}
	if _, ok := i.Memory().Grow(1); ok {
		t.Error("there are two pages more")
	}
	// What the module declares itself is less.
	if r := mustRewrite(t, module(mem(1, 1, 3))); r.Memory.Max != 3 {
		t.Errorf("memory %+v", *r.Memory)
	}
	if r, err := Rewrite(module(mem(0, 1)), Limits{MemoryPages: maxPages}); err != nil || r.Memory.Max != maxPages {
		t.Errorf("memory %+v, %v", r, err)
	}
}

func TestTableBounds(t *testing.T) {
	grow := module(types(functype([]ValueType{I32}, []ValueType{I32})), funcs(0), tables(b(FuncRef, 0, 2), b(ExternRef, 1, 3, 4)),
		exports(exported("grow", Func, 0)), code(body(opRefNull, FuncRef, opLocalGet, 0, opMisc, 15, 0)))
	r, err := Rewrite(grow, Limits{TableEntries: 9})
	if err != nil {
		t.Fatal(err)
	}
	i, err := newHost(t).rewritten(r, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]uint64{{3, 1<<32 - 1}, {2, 2}, {1, 1<<32 - 1}} {
		if got := call(t, i, "grow", c[0])[0]; got != c[1] {
			t.Errorf("table.grow(%d) gives %d; want %d", c[0], got, c[1])
		}
	}
}

func TestTableDeclaredMaximum(t *testing.T) {
	grow := module(types(voidI32), funcs(0), tables(b(FuncRef, 1, 3, 4)),
		exports(exported("grow", Func, 0)), code(body(opRefNull, FuncRef, i32c(2), opMisc, 15, 0)))
	i, err := newHost(t).rewritten(mustRewrite(t, grow), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := call(t, i, "grow")[0]; got != 1<<32-1 {
		t.Errorf("a table of at most 4 entries grew from %d to 5", got)
	}
}

func TestTableCost(t *testing.T) {
	fill := module(types(void), funcs(0), tables(b(FuncRef, 0, u(100_000))),
		exports(exported("fill", Func, 0)), code(body(i32c(0), opRefNull, FuncRef, i32c(100_000), opMisc, 17, 0)))
	h := newHost(t)
	i, err := h.rewritten(mustRewrite(t, fill), "")
	if err != nil {
		t.Fatal(err)
	}
	if call(t, i, "fill"); h.given < 100_000 {
		t.Errorf("filling 100,000 entries cost at most %d", h.given)
	}
}

// TestBulk fills, copies and initializes memory in pieces and at once.
func TestBulk(t *testing.T) {
	op := func(parts ...any) []byte { return body(opLocalGet, 0, opLocalGet, 1, opLocalGet, 2, b(parts...)) }
	const size = 20 * PageSize
	segment := make([]byte, 3*piece+1000)
	for i := range segment {
		segment[i] = byte(i * 7 >> 3)
	}
	m := module(types(i32Three), funcs(0, 0, 0, 0), mem(0, 20),
		exports(exported("memory", Memory, 0), exported("fill", Func, 0), exported("copy", Func, 1), exported("init", Func, 2), exported("short", Func, 3)),
		section(secDataCount, 2),
		code(op(opMisc, 11, 0), op(opMisc, 10, 0, 0), op(opMisc, 8, 0, 0), op(opMisc, 8, 1, 0)), datas(b(1, sized(segment)), b(1, sized("short"))))
	h := newHost(t)
	plain, rewritten := sides(t, h, m)
	fresh := make([]byte, size)
	for i := range fresh {
		fresh[i] = byte(i*i>>5 + i)
	}
	far := uint64(1<<32 - 1)
	for _, c := range []struct {
		f    string
		args [3]uint64
	}{
		{"fill", [3]uint64{5, 1, 3}}, {"fill", [3]uint64{0, 0, 0}}, {"fill", [3]uint64{size, 0, 0}}, {"fill", [3]uint64{size + 1, 0, 0}},
		{"fill", [3]uint64{7, 0x1ff, piece}}, {"fill", [3]uint64{7, 9, piece + 1}}, {"fill", [3]uint64{7, 9, 3*piece + 11}},
		{"fill", [3]uint64{0, 8, size}}, {"fill", [3]uint64{1, 8, size}}, {"fill", [3]uint64{0, 8, far}}, {"fill", [3]uint64{far, 8, far}},
		{"copy", [3]uint64{5, 100, 30}}, {"copy", [3]uint64{0, 3, 4*piece + 5}}, {"copy", [3]uint64{3, 0, 4*piece + 5}},
		{"copy", [3]uint64{piece, 0, 3 * piece}}, {"copy", [3]uint64{0, piece, 3 * piece}}, {"copy", [3]uint64{0, 0, size}},
		{"copy", [3]uint64{1, 0, size}}, {"copy", [3]uint64{0, 1, size}}, {"copy", [3]uint64{0, far, far}}, {"copy", [3]uint64{9, 9, 2 * piece}},
		{"init", [3]uint64{5, 7, 100}}, {"init", [3]uint64{5, 7, 3 * piece}}, {"init", [3]uint64{5, 0, 3*piece + 1000}},
		{"init", [3]uint64{5, 1, 3*piece + 1000}}, {"init", [3]uint64{size - 5, 0, piece + 1}}, {"init", [3]uint64{0, far, piece + 1}},
		{"init", [3]uint64{0, far - piece, piece + 1}}, {"init", [3]uint64{0, 0, far}},
		{"short", [3]uint64{0, 1, 3}}, {"short", [3]uint64{0, 1, 5}}, {"short", [3]uint64{0, 0, far}},
	} {
		var errs [2]string
		var after [2][]byte
		before, given := h.refills, h.given
		for n, side := range []api.Module{plain, rewritten} {
			side.Memory().Write(0, fresh)
			if _, err := side.ExportedFunction(c.f).Call(context.Background(), c.args[:]...); err != nil {
				errs[n], _, _ = strings.Cut(err.Error(), "\n")
			}
			after[n], _ = side.Memory().Read(0, size)
		}
		if errs[0] != errs[1] {
			t.Errorf("%s%v: plain %q, rewritten %q", c.f, c.args, errs[0], errs[1])
		}
		if !bytes.Equal(after[0], after[1]) {
			t.Errorf("%s%v: memory differs", c.f, c.args)
		}
		if errs[1] != "" && !bytes.Equal(after[1], fresh) {
			t.Errorf("%s%v: a trap left something behind", c.f, c.args)
		}
		if n := c.args[2]; errs[1] == "" && n > 2*piece && (h.refills == before || h.given-given < int64(n)/4) {
			t.Errorf("%s%v: cost %d", c.f, c.args, h.given-given)
		}
	}
}

// dispatch is a function's code as Go's compiler makes it: a loop whose blocks are chosen by local 0.
func dispatch(blocks ...[]byte) []byte {
	out := b(opLoop, 0x40)
	for range blocks {
		out = append(out, opBlock, 0x40)
	}
	out = append(out, opLocalGet, 0, opBrTable)
	out = append(out, u(uint32(len(blocks)-1))...)
	for i := range blocks {
		out = append(out, byte(i))
	}
	for _, c := range blocks {
		out = b(out, opEnd, c)
	}
	return b(out, opEnd)
}

// jump goes to a block of a dispatch.
func jump(to int64, label int) []byte { return b(i32c(to), opLocalSet, 0, opBr, label) }

// TestChecks pins where checks are, in the order of the code, and what each takes.
func TestChecks(t *testing.T) {
	cost := func(n int) []byte { return bytes.Repeat([]byte{opLocalGet, 0, opLocalSet, 0}, n) } // one each
	cond := b(opLocalGet, 0)
	far := b(opCall, 0) // 4, and no leaf
	const here, br, branch = checkHere, checkBr, checkBranch
	for _, c := range []struct {
		name string
		code []byte
		want [][2]uint32 // kind and cost
	}{
		{"straight", b(far, cost(30)), [][2]uint32{{here, 34}}},
		{"a leaf", b(opCall, 1, far), [][2]uint32{{here, 4 + 7 + 4}}},
		{"long", b(far, cost(400)), [][2]uint32{{here, 64}, {here, 3 * 64}, {here, 404 - 4*64}}},
		{"if", b(far, cond, opIf, 0x40, cost(20), opElse, cost(5), opEnd), [][2]uint32{{here, 4 + 1 + 20}}},
		{"else", b(far, cond, opIf, 0x40, cost(5), opElse, cost(20), opEnd), [][2]uint32{{here, 4 + 1 + 20}}},
		{"if alone", b(far, opBlock, 0x40, cond, opIf, 0x40, opReturn, opEnd, cost(20), opEnd), [][2]uint32{{here, 4 + 1 + 20}}},
		{"table", b(far, opBlock, 0x40, opBlock, 0x40, opBlock, 0x40, cond, opBrTable, 2, 0, 1, 2, opEnd, cost(20), opReturn, opEnd, cost(50), opReturn, opEnd, cost(30)),
			[][2]uint32{{here, 4 + 2 + 51}}},
		{"table default", b(far, opBlock, 0x40, opBlock, 0x40, cond, opBrTable, 1, 0, 1, opEnd, cost(20), opReturn, opEnd, cost(50)), [][2]uint32{{here, 4 + 2 + 50}}},
		{"loop", b(cost(3), opLoop, 0x40, cost(10), cond, opBrIf, 0, opEnd, cost(7)), [][2]uint32{{here, 3 + 10 + 1 + 7}, {branch, 1 + 10 + 1 + 7}}},
		{"loop before much", b(cost(3), opLoop, 0x40, cost(10), cond, opBrIf, 0, opEnd, cost(110)), [][2]uint32{{here, 3 + 10 + 1}, {branch, 1 + 10 + 1}, {here, 110}}},
		{"out of a loop", b(opBlock, 0x40, opLoop, 0x40, cond, opBrIf, 1, cost(10), opBr, 0, opEnd, opEnd, cost(110)),
			[][2]uint32{{here, 1 + 10}, {branch, 110}, {br, 1 + 1 + 10}}},
		{"dispatch", dispatch(b(cost(10), jump(1, 2)), b(cost(20), cond, opIf, 0x40, jump(0, 2), opEnd), cost(5)), // block 1 goes on to block 2
			[][2]uint32{{here, 2 + 10 + 1 + 4 + 20 + 1 + 5}, {br, 4 + 10 + 1 + 4 + 20 + 1 + 5}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := module(types(i32Void), imports(b(name("env"), name("f"), Func, 0)), funcs(0, 0), code(body(c.code), body(cost(7))))
			src, err := decode(m, Limits{}.withDefaults())
			if err != nil {
				t.Fatal(err)
			}
			s := &scan{src: src, leaf: []uint8{0, 0, 8}}
			if c.name == "a leaf" {
				s.leaf = []uint8{0, 8, 0}
			}
			if err := s.read(0); err != nil {
				t.Fatal(err)
			}
			s.meter()
			var got [][2]uint32
			for _, c := range s.checks {
				got = append(got, [2]uint32{uint32(c.kind), c.cost})
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("checks %v; want %v", got, c.want)
			}
		})
	}
}

// TestEnds runs what never ends by itself until its fuel is used up.
func TestEnds(t *testing.T) {
	loc := b(1, 1, I32)
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"br", body(opLoop, 0x40, opBr, 0, opEnd)},
		{"br_if", body(opLoop, 0x40, i32c(1), opBrIf, 0, opEnd)},
		{"br_table", body(opLoop, 0x40, i32c(1), opBrTable, 2, 1, 0, 0, opEnd)},
		{"br_table default", body(opLoop, 0x40, i32c(9), opBrTable, 1, 1, 0, opEnd)},
		{"if", body(opLoop, 0x40, i32c(1), opIf, 0x40, opBr, 1, opEnd, opEnd)},
		{"else", body(opLoop, 0x40, i32c(0), opIf, 0x40, opElse, opBr, 1, opEnd, opEnd)},
		{"with a value", body(i32c(1), opLoop, 1, opBr, 0, opEnd, 0x1a)},
		{"br_if with a value", body(i32c(1), opLoop, 1, i32c(1), opBrIf, 0, opEnd, 0x1a)},
		{"outer", body(opLoop, 0x40, opLoop, 0x40, opBlock, 0x40, opBr, 2, opEnd, opEnd, opEnd)},
		{"two", body(opLoop, 0x40, opLoop, 0x40, opLocalGet, 0, 0x45, 0x22, 0, opBrIf, 1, opBr, 0, opEnd, opEnd)},
		{"recursion", body(opCall, 1, opCall, 1, opLoop, 0x40, opEnd, opCall, 0)},
		{"tail call", body(opReturnCall, 0)},
		{"tail calls", body(opReturnCall, 1)},
		{"indirect", body(i32c(0), opReturnCallIndirect, 0, 0)},
		{"return_call_ref", body(opRefFunc, 0, opReturnCallRef, 0)},
		{"br_on_null", body(opLoop, 0x40, opRefNull, FuncRef, opBrOnNull, 0, 0x1a, opEnd)},
		{"br_on_non_null", body(opRefFunc, 0, opLoop, 2, opBrOnNonNull, 0, opEnd)},
		{"fill", body(opLoop, 0x40, i32c(0), i32c(0), i32c(65536), opMisc, 11, 0, opBr, 0, opEnd)},
		{"dispatch to itself", body(dispatch(jump(0, 0)))},
		{"dispatch in turns", body(dispatch(jump(1, 1), jump(2, 1), jump(0, 0)))},
		{"dispatch back by one", body(dispatch(nil, b(i32c(1), opIf, 0x40, jump(0, 2), opEnd), nil))},
		{"dispatch by default", body(dispatch(jump(7, 1), jump(-1, 0)))},
		{"dispatch by a value", body(dispatch(nil, b(opLocalGet, 0, opLocalSet, 0, opBr, 0)))},
		{"another local", bodyWith(loc, dispatch(nil, b(i32c(1), opLocalSet, 1, opBr, 0)))},
		{"another local, forward", bodyWith(loc, dispatch(b(i32c(1), opLocalSet, 1, opBr, 1), nil))},
		{"a block of the same height", body(dispatch(nil, b(opBlock, 0x40, jump(1, 2), opEnd), nil))},
		{"after a block of the same height", body(dispatch(nil, b(opBlock, 0x40, opEnd, opBlock, 0x40, jump(0, 2), opEnd), nil))},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.slice, h.budget = 1000, 200_000
			m := module(types(functype([]ValueType{I32}, nil), functype([]ValueType{I32}, []ValueType{I32}), functype([]ValueType{FuncRef}, nil)), funcs(0, 0), tables(b(FuncRef, 0, 1)), mem(0, 2),
				exports(exported("f", Func, 0)), elems(b(0, i32c(0), opEnd, 1, 0)), code(c.code, body(opLocalGet, 0, opReturnCall, 0)))
			if strings.Contains(c.name, "call") || c.name == "indirect" || c.name == "recursion" {
				m = module(types(void), funcs(0, 0), tables(b(FuncRef, 0, 1)), exports(exported("f", Func, 0)),
					elems(b(0, i32c(0), opEnd, 1, 0)), code(c.code, body(opReturnCall, 0)))
				if c.name == "recursion" {
					// 2^30 calls without a loop that goes back
					fns := make([][]byte, 30)
					for i := range fns {
						fns[i] = body(opCall, i+1, opCall, i+1)
					}
					fns[29] = body()
					m = module(types(void), funcs(slices.Repeat([]int{0}, 30)...), exports(exported("f", Func, 0)), code(fns...))
				}
			}
			i, err := h.rewritten(mustRewrite(t, m), "")
			if err != nil {
				t.Fatal(err)
			}
			f := i.ExportedFunction("f")
			_, err = f.Call(context.Background(), make([]uint64, len(f.Definition().ParamTypes()))...)
			if err == nil || !strings.Contains(err.Error(), errFuel.Error()) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// TestFuel pins what some code costs, and that it does not depend on how fuel is given.
func TestFuel(t *testing.T) {
	leaf := body(opLocalGet, 0, i32c(1), 0x6a)
	count := bodyWith(b(1, 1, I32), opLoop, 0x40, opLocalGet, 1, opCall, 0, opLocalSet, 1, opLocalGet, 0, i32c(1), 0x6b, 0x22, 0, opBrIf, 0, opEnd, opLocalGet, 1)
	m := module(types(functype([]ValueType{I32}, []ValueType{I32})), funcs(0, 0), exports(exported("count", Func, 1)), code(leaf, count))
	var used []int64
	for _, slice := range []int64{1, 7, 1000, 1 << 40} {
		h := newHost(t)
		h.slice = slice
		i, err := h.rewritten(mustRewrite(t, m), "")
		if err != nil {
			t.Fatal(err)
		}
		if got := call(t, i, "count", 1000)[0]; got != 1000 {
			t.Fatalf("count gives %d", got)
		}
		used = append(used, h.given-int64(i.ExportedGlobal(ExportFuel).Get()))
	}
	for _, n := range used {
		if n != used[0] {
			t.Fatalf("used %v", used)
		}
	}
	// An iteration is call 4, i32.add in the leaf 1, local.set 1, i32.sub 1, local.tee 1, br_if 1, and with the branch
	// itself once more.
	if per := used[0] / 1000; per < 8 || per > 12 {
		t.Errorf("an iteration costs %d", per)
	}
}

// TestCosts looks at every check of a large module.
func TestCosts(t *testing.T) {
	module := goGuestModule(t)
	src, err := decode(module, Limits{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	s := &scan{src: src, leaf: make([]uint8, len(src.funcs))}
	checks, leaves := 0, 0
	for n := range src.code {
		if err := s.read(n); err != nil {
			t.Fatal(err)
		}
		if s.meter() >= 0 {
			leaves++
			continue
		}
		checks += len(s.checks)
		for i, c := range s.checks {
			if c.cost == 0 || c.cost > 256+uint32(s.locals/localsUnit) {
				t.Fatalf("function %d: check %d costs %d", n, i, c.cost)
			}
			if i > 0 && c.pos < s.checks[i-1].pos {
				t.Fatalf("function %d: checks are not sorted", n)
			}
		}
	}
	t.Logf("%d checks and %d leaves in %d functions", checks, leaves, len(src.code))
	if leaves == 0 {
		t.Error("there is no leaf")
	}
}

func TestLimits(t *testing.T) {
	fn := func(n int) []byte {
		return module(types(void), funcs(slices.Repeat([]int{0}, n)...), code(slices.Repeat([][]byte{body()}, n)...))
	}
	nested := func(n int) []byte { return one(bytes.Repeat([]byte{opBlock, 0x40}, n), bytes.Repeat([]byte{opEnd}, n)) }
	refs := module(types(void), funcs(0, 0), exports(exported("a", Func, 0), exported("b", Func, 1)),
		code(body(opRefFunc, 0, 0x1a, opRefFunc, 0, 0x1a, opRefFunc, 1, 0x1a), body()))
	for _, c := range []struct {
		name   string
		module []byte
		lim    Limits
		less   Limits
	}{
		{"size", fn(1), Limits{Size: len(fn(1))}, Limits{Size: len(fn(1)) - 1}},
		{"functions", fn(3), Limits{Functions: 3}, Limits{Functions: 2}},
		{"nesting", nested(5), Limits{Nesting: 5}, Limits{Nesting: 4}},
		{"body", one(opNop, opNop), Limits{BodySize: 4}, Limits{BodySize: 3}},
		{"references", refs, Limits{RefFuncs: 2}, Limits{RefFuncs: 1}},
		{"parameters", module(types(i32Three)), Limits{Params: 3}, Limits{Params: 2}},
		{"types", module(types(void, void)), Limits{Types: 2}, Limits{Types: 1}},
		{"locals", module(types(void), funcs(0), code(bodyWith(b(2, 3, I32, 2, I64)))), Limits{Locals: 5}, Limits{Locals: 4}},
		{"all locals", module(types(void), funcs(0, 0), code(bodyWith(b(1, 3, I32)), bodyWith(b(1, 2, I64)))), Limits{AllLocals: 5}, Limits{AllLocals: 4}},
		{"globals", module(globals(b(I32, 0, i32c(0), opEnd), b(I32, 0, i32c(0), opEnd))), Limits{Globals: 2}, Limits{Globals: 1}},
		{"tables", module(tables(b(FuncRef, 0, 0), b(FuncRef, 0, 0))), Limits{Tables: 2}, Limits{Tables: 1}},
		{"imports", module(imports(b(name("a"), name("b"), Global, I32, 0), b(name("a"), name("c"), Global, I32, 0))), Limits{Imports: 2}, Limits{Imports: 1}},
		{"exports", module(mem(0, 1), exports(exported("a", Memory, 0), exported("b", Memory, 0))), Limits{Exports: 2}, Limits{Exports: 1}},
		{"elements", module(elems(b(5, FuncRef, 2, opRefNull, FuncRef, opEnd, opRefNull, FuncRef, opEnd))), Limits{Elements: 2}, Limits{Elements: 1}},
		{"segments", module(datas(b(1, 0), b(1, 0))), Limits{DataSegments: 2}, Limits{DataSegments: 1}},
		{"names", module(mem(0, 1), exports(exported("abc", Memory, 0))), Limits{NameSize: 3}, Limits{NameSize: 2}},
		{"pages", module(mem(0, 3)), Limits{MemoryPages: 3}, Limits{MemoryPages: 2}},
		{"table entries", module(tables(b(FuncRef, 0, 3))), Limits{TableEntries: 3}, Limits{TableEntries: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Rewrite(c.module, c.lim); err != nil {
				t.Errorf("at the limit: %v", err)
			}
			_, err := Rewrite(c.module, c.less)
			var e *Error
			if !errors.As(err, &e) || e.Kind != TooLarge {
				t.Errorf("over the limit: %v", err)
			}
		})
	}
}

// TestCutOff reads every beginning of a module, and the module with every byte changed.
func TestCutOff(t *testing.T) {
	m := module(types(void, i32Three), imports(b(name("env"), name("f"), Func, 0)), funcs(0), tables(b(FuncRef, 0, 1)), mem(1, 1, 2),
		globals(b(V128, 1, opVector, 0x0c, make([]byte, 16), opEnd)), exports(exported("f", Func, 1)), section(secStart, 1),
		elems(b(4, i32c(0), opEnd, 1, opRefFunc, 1, opEnd)), section(secDataCount, 1),
		code(bodyWith(b(1, 2, F64), opLoop, 0x40, i32c(1), opIf, 0x40, opBr, 1, opElse, opCall, 0, opEnd, opRefFunc, 1, 0x1a, i32c(0), opBrTable, 1, 0, 1, opEnd)),
		datas(b(0, i32c(5), opEnd, sized("data"))), section(secCustom, name("name"), 1, sized(vec(b(1, name("g"))))), section(secCustom, name(".debug_line"), 0))
	r := mustRewrite(t, m)
	if r.Debug == nil {
		t.Error("debugging information went unseen")
	}
	if again := mustRewrite(t, m); !bytes.Equal(r.Bytes, again.Bytes) {
		t.Error("the second result is another one")
	}
	if _, err := newHost(t).CompileModule(context.Background(), r.Bytes); err != nil {
		t.Error(err)
	}
	for n := range m {
		Rewrite(m[:n], Limits{})
		for _, x := range []byte{0x00, 0x01, 0x40, 0x7f, 0x80, 0xff} {
			other := bytes.Clone(m)
			other[n] ^= x
			Rewrite(other, Limits{})
		}
	}
}

// TestRefFunc takes references in a loop: wazero would keep each of them.
func TestRefFunc(t *testing.T) {
	m := module(types(functype([]ValueType{I32}, nil)), funcs(0), exports(exported("f", Func, 0)),
		code(body(opLoop, 0x40, opRefFunc, 0, 0x1a, opLocalGet, 0, i32c(1), 0x6b, 0x22, 0, opBrIf, 0, opEnd)))
	r := mustRewrite(t, m)
	src, err := decode(r.Bytes[:len(r.Bytes):len(r.Bytes)], Limits{}.withDefaults())
	if err == nil {
		t.Fatal("a rewritten module was taken as a guest", src)
	}
	i, ierr := newHost(t).rewritten(r, "")
	if ierr != nil {
		t.Fatal(ierr)
	}
	call(t, i, "f", 10)
	if bytes.Contains(r.Bytes, b(opRefFunc, 0, 0x1a)) || bytes.Contains(r.Bytes, b(opRefFunc, 1, 0x1a)) {
		t.Error("code still takes references")
	}
}

// TestInstanceCosts: Rewrite says what an instance of a module takes beside its
// memory, and how much stack its calls.
func TestInstanceCosts(t *testing.T) {
	costs := func(in []byte) (bytes, rate int64) {
		t.Helper()
		m, err := Rewrite(in, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return m.InstanceBytes, m.StackRate
	}
	plain, rate := costs(module(types(void), funcs(0), code(body())))
	if rate != 0 {
		t.Errorf("a module that calls nothing has a rate of %d", rate)
	}
	if _, rate := costs(module(types(void), funcs(0), code(body(opCall, 0)))); rate < 8 || rate > 16 {
		t.Errorf("a call without parameters takes %d bytes a unit", rate)
	}
	var gets []byte
	for i := range 100 {
		gets = b(gets, opLocalGet, i)
	}
	vectors := functype(slices.Repeat([]ValueType{V128}, 100), nil)
	if _, rate := costs(module(types(vectors), funcs(0), code(body(gets, opCall, 0)))); rate < 290 {
		t.Errorf("100 vectors, handed over and kept, take %d bytes a unit", rate) // 11 units
	}
	table := tables(b(FuncRef, 0, 16))
	if fixed, _ := costs(module(types(void), funcs(0), table, code(body()))); fixed != plain+8*16 {
		t.Errorf("a table of 16 takes %d bytes, not %d", fixed-plain, 8*16)
	}
	// A table that grows is copied: the old one and the new one are there.
	grow := body(opRefNull, FuncRef, i32c(1), opMisc, miscTableGrow, 0, 0x1a)
	if grows, _ := costs(module(types(void), funcs(0), table, code(grow))); grows < plain+2*8*131_072 {
		t.Errorf("a table that grows takes %d bytes, less than two of 131,072 entries", grows-plain)
	}
	few := tables(b(FuncRef, 1, 16, 32))
	if grows, _ := costs(module(types(void), funcs(0), few, code(grow))); grows < plain+2*8*32 || grows > plain+4*8*32 {
		t.Errorf("a table that grows to 32 takes %d bytes", grows-plain)
	}
}
