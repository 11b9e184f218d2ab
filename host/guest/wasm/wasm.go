// Package wasm reads WebAssembly modules strictly and rewrites them, so that whatever a guest does is metered,
// can be undone, and ends.
//
// Rewrite promises:
//
//   - No input makes it panic, or take more than linear time and memory. Counts are bounded by the bytes that are left
//     and by Limits, before anything is allocated for them.
//   - It refuses what is not supported: instructions, sections, types and encodings outside WebAssembly 2.0 with tail
//     calls, extended constant expressions, exceptions (try_table), typed function references and the atomic
//     instructions of threads. Legacy exceptions, several memories, memory64, relaxed SIMD and garbage collected types
//     are refused by name. Nothing passes through unread.
//   - The result needs no engine that knows exceptions or types of references: see exceptions.go and references.go. A
//     shared memory is written as one that is not.
//   - Every index is checked against the counts of the original module. What is added here (types, an import, globals,
//     functions, exports) is out of a guest's reach, and an invalid module does not become valid by it, but for
//     references: exnref becomes externref, and a reference to functions of a type one to any. Rewrite does not check
//     the types of operands; a WebAssembly engine has to validate the result, as all of them do.
//   - The result computes what the original computes, until the fuel is used up.
//
// The result has, in addition to the original:
//
//   - Metering: a global counts fuel down and an imported function is called when it is below zero; see Module.
//   - Save and restore functions for the mutable globals, and a flag that says when something changed that they do
//     not restore.
//   - Active data segments, when they can be taken out, are returned instead of kept, and the start function is an
//     export: the engine applies both once and takes an image, rather than at every instantiation.
//   - Memory and tables have maxima, and long bulk operations are done in pieces.
//
// Only the engine in the parent folder uses it.
package wasm

import "fmt"

// ImportModule is the module name of what a rewritten module imports. A guest that imports from it is refused.
const ImportModule = "toold"

// ImportRefill is the function of ImportModule that a rewritten module calls, without parameters and results, when its
// fuel is below zero. It must add to the global ExportFuel (setting it would forgive the overdraft) or end the call.
const ImportRefill = "refill"

// ExportPrefix is the prefix of all exports that Rewrite adds. A guest with such an export is refused.
const ExportPrefix = "toold:"

// What a rewritten module exports besides the guest's own exports.
const (
	// ExportFuel is a mutable i64 global: the units that are left before the next call of ImportRefill. It begins at 0.
	ExportFuel = ExportPrefix + "fuel"
	// ExportDirty is a mutable i32 global, set to 1 before anything that ExportRestore does not undo: table.set, init,
	// copy, grow and fill, data.drop and elem.drop, and setting a global of a reference type. It begins at 0.
	ExportDirty = ExportPrefix + "dirty"
	// ExportSave and ExportRestore are functions without parameters and results: one keeps the values of the globals
	// that Module.Globals lists, the other puts the kept values back.
	ExportSave    = ExportPrefix + "save"
	ExportRestore = ExportPrefix + "restore"
	// ExportGlobalGet is a function (i32) -> (i64, i64): the bits of the global at that position of Module.Globals, low
	// half first (the high one is 0 but for v128). ExportGlobalSet is (i32, i64, i64) -> (): it sets them. Together they
	// carry the globals of one instance over to another. A position that is not there is a trap.
	ExportGlobalGet = ExportPrefix + "global_get"
	ExportGlobalSet = ExportPrefix + "global_set"
	// ExportStart calls the module's start function. It exists if Module.StartExport is not empty.
	ExportStart = ExportPrefix + "start"
)

// PageSize is the size of a page of linear memory in bytes.
const PageSize = 65536

// Limits limit what Rewrite accepts. A field that is zero or negative has its default.
type Limits struct {
	Size         int // bytes of the module; default 64 MiB
	Types        int // function types; default 10,000
	Params       int // parameters of one type, and results; default 1,000
	Imports      int // default 4,096
	Functions    int // imported and defined; default 200,000
	Tables       int // imported and defined; default 64
	Globals      int // imported and defined; default 10,000
	Exports      int // default 65,536
	Elements     int // entries of all element segments; default 1,000,000
	DataSegments int // default 200,000
	RefFuncs     int // different functions that code takes references to; default 10,000
	BodySize     int // bytes of the code of one function; default 4 MiB
	Locals       int // locals of one function, parameters not counted; default 50,000
	AllLocals    int // locals of all functions; default 4,000,000
	Tags         int // default 64
	TagParams    int // values of one exception; default 64
	Nesting      int // blocks within each other; default 16,384
	NameSize     int // bytes of an imported or exported name; default 4,096; longer function names are cut off

	// MemoryPages bounds the memory in pages: a module that needs more at first is refused, one that may grow to more
	// may not. Default 4,096 (256 MiB), at most 65,536.
	MemoryPages int
	// TableEntries bounds the entries of all tables together in the same way. Default 131,072.
	TableEntries int
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		def   int
	}{
		{&l.Size, 64 << 20}, {&l.Types, 10_000}, {&l.Params, 1_000}, {&l.Imports, 4_096}, {&l.Functions, 200_000},
		{&l.Tables, 64}, {&l.Globals, 10_000}, {&l.Exports, 65_536}, {&l.Elements, 1_000_000},
		{&l.DataSegments, 200_000}, {&l.RefFuncs, 10_000}, {&l.BodySize, 4 << 20}, {&l.Locals, 50_000},
		{&l.AllLocals, 4_000_000}, {&l.Tags, 64}, {&l.TagParams, 64}, {&l.Nesting, 16_384}, {&l.NameSize, 4_096}, {&l.MemoryPages, 4_096},
		{&l.TableEntries, 131_072},
	} {
		if *d.field <= 0 {
			*d.field = d.def
		}
	}
	l.MemoryPages = min(l.MemoryPages, maxPages)
	// Offsets within the module are kept in 32 bits.
	l.Size = min(l.Size, 1<<30)
	return l
}

// Kind is the reason for refusing a module.
type Kind int

const (
	Malformed   Kind = iota // it is not a valid module, or uses an encoding that engines disagree on
	Unsupported             // it uses a feature or a name that guests may not use
	TooLarge                // it exceeds one of the Limits
	Short                   // it ends before its announced end: a truncated module
)

// Error is why a module was refused, and where.
type Error struct {
	Offset int // in bytes from the module's start
	Kind   Kind
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("%s at byte 0x%x", e.Reason, e.Offset) }

// ValueType is a value type as the binary format encodes it.
type ValueType byte

// The value types of WebAssembly 2.0.
const (
	I32       ValueType = 0x7f
	I64       ValueType = 0x7e
	F32       ValueType = 0x7d
	F64       ValueType = 0x7c
	V128      ValueType = 0x7b
	FuncRef   ValueType = 0x70
	ExternRef ValueType = 0x6f
)

// Prefixes of reference types. Once read, the type is FuncRef or ExternRef; see references.go.
const (
	refNullable ValueType = 0x63
	refNonNull  ValueType = 0x64
)

func (t ValueType) isRef() bool { return t == FuncRef || t == ExternRef }

func (t ValueType) valid() bool { return t >= V128 && t <= I32 || t.isRef() }

func (t ValueType) String() string {
	switch t {
	case I32:
		return "i32"
	case I64:
		return "i64"
	case F32:
		return "f32"
	case F64:
		return "f64"
	case V128:
		return "v128"
	case FuncRef:
		return "funcref"
	case ExternRef:
		return "externref"
	}
	return fmt.Sprintf("type 0x%x", byte(t))
}

// External is the kind of an import or export, in its binary encoding.
type External byte

// The kinds of imports and exports.
const (
	Func   External = 0
	Table  External = 1
	Memory External = 2
	Global External = 3
)

func (k External) String() string {
	switch k {
	case Func:
		return "function"
	case Table:
		return "table"
	case Memory:
		return "memory"
	case Global:
		return "global"
	}
	return "unknown"
}

// FuncType is the signature of a function.
type FuncType struct {
	Params, Results []ValueType
}

// Import is an import of the original module.
type Import struct {
	Module, Name string
	Kind         External
	Type         FuncType // of a function
}

// Export is an export of the original module.
type Export struct {
	Name string
	Kind External
	Type FuncType // of a function
}

// MemoryLimits are those of the memory that a module defines, in pages.
type MemoryLimits struct {
	Min uint32
	// Max is the most that the guest can grow the memory to: what it declared, or Limits.MemoryPages. The rewritten
	// module declares one page more where there is room (65,535 at most), so that the engine can undo growth by growing
	// once; the guest's own memory.grow fails above Max.
	Max uint32
}

// Segment is an active data segment that was removed from the module. Bytes aliases the input of Rewrite.
type Segment struct {
	Offset uint32
	Bytes  []byte
}

// GlobalType is a mutable global that ExportSave and ExportRestore keep.
type GlobalType struct {
	Type     ValueType
	Imported bool
}

// Module is a rewritten module with the information that its engine needs.
type Module struct {
	Bytes []byte // the rewritten module

	Imports []Import // without those from ImportModule
	Exports []Export // without those that begin with ExportPrefix

	Memory *MemoryLimits // nil when the module defines none

	// Data must be written to memory, in this order, before anything of the module runs; a segment that is out of
	// bounds makes the module fail. It is empty when the module imports its memory, or places data by an imported
	// global: the segments stay in the module then.
	Data []Segment

	// StartExport is ExportStart when the module has a start function, which must be called once after Data was
	// written, and empty otherwise.
	StartExport string

	// Globals are the mutable globals of number types, in the order of ExportGlobalGet. Mutable globals of reference
	// types are not restored; setting one sets ExportDirty.
	Globals []GlobalType

	Functions int // defined by the original module

	// StackRate is how many bytes of an engine's stack a unit of fuel may take at most in a function that calls: its
	// parameters and results, which cost less fuel than they take room. What else is on a stack was computed first,
	// and is left out.
	StackRate int64

	// InstanceBytes is the maximum that an engine keeps for one instance's tables, element segments and globals.
	InstanceBytes int64

	// Debug holds the module's source line information, or nil. It aliases the input of Rewrite.
	Debug *Debug
}
