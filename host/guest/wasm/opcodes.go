package wasm

// Kinds of immediates of an instruction.
const (
	immUnknown = iota // unknown instruction
	immNone
	immBlock  // block type
	immLabel  // label
	immTable  // table
	immLocal  // local
	immGlobal // global
	immFunc   // function
	immMemArg // alignment and offset
	immMemory // memory, which must be 0
	immI32
	immI64
	immF32
	immF64
	immOther // read where the instruction is handled
)

// Instructions that are handled individually.
const (
	opUnreachable        = 0x00
	opNop                = 0x01
	opBlock              = 0x02
	opLoop               = 0x03
	opIf                 = 0x04
	opElse               = 0x05
	opThrow              = 0x08
	opThrowRef           = 0x0a
	opEnd                = 0x0b
	opBr                 = 0x0c
	opBrIf               = 0x0d
	opBrTable            = 0x0e
	opReturn             = 0x0f
	opCall               = 0x10
	opCallIndirect       = 0x11
	opReturnCall         = 0x12
	opReturnCallIndirect = 0x13
	opCallRef            = 0x14
	opReturnCallRef      = 0x15
	opSelectTyped        = 0x1c
	opTryTable           = 0x1f
	opLocalGet           = 0x20
	opLocalSet           = 0x21
	opLocalTee           = 0x22
	opGlobalGet          = 0x23
	opGlobalSet          = 0x24
	opTableGet           = 0x25
	opTableSet           = 0x26
	opMemorySize         = 0x3f
	opMemoryGrow         = 0x40
	opI32Const           = 0x41
	opI64Const           = 0x42
	opRefNull            = 0xd0
	opRefFunc            = 0xd2
	opRefAsNonNull       = 0xd4
	opBrOnNull           = 0xd5
	opBrOnNonNull        = 0xd6
	opMisc               = 0xfc
	opVector             = 0xfd
	opAtomic             = 0xfe

	miscMemoryInit = 8
	miscDataDrop   = 9
	miscMemoryCopy = 10
	miscMemoryFill = 11
	miscTableInit  = 12
	miscElemDrop   = 13
	miscTableCopy  = 14
	miscTableGrow  = 15
	miscTableSize  = 16
	miscTableFill  = 17
)

// instruction gives the encoding of an instruction and its cost, measured in the time of simple instructions.
type instruction struct {
	imm  uint8
	cost uint8
}

// instructions lists the one-byte instructions by opcode.
var instructions = func() (t [256]instruction) {
	set := func(from, to int, imm, cost uint8) {
		for op := from; op <= to; op++ {
			t[op] = instruction{imm, cost}
		}
	}
	set(opUnreachable, opUnreachable, immNone, 1)
	set(opNop, opNop, immNone, 0)
	set(opBlock, opLoop, immBlock, 0)
	set(opIf, opIf, immBlock, 1)
	set(opElse, opElse, immNone, 0)
	set(opThrow, opThrow, immOther, 4)
	set(opThrowRef, opThrowRef, immOther, 4)
	set(opTryTable, opTryTable, immOther, 0)
	set(opEnd, opEnd, immNone, 0)
	set(opBr, opBrIf, immLabel, 1)
	set(opBrTable, opBrTable, immOther, 2)
	set(opReturn, opReturn, immNone, 1)
	set(opCall, opCall, immFunc, 4)
	set(opCallIndirect, opCallIndirect, immOther, 6)
	set(opReturnCall, opReturnCall, immFunc, 4)
	set(opReturnCallIndirect, opReturnCallIndirect, immOther, 6)
	set(opCallRef, opReturnCallRef, immOther, 12)
	set(0x1a, 0x1a, immNone, 0)
	set(0x1b, 0x1b, immNone, 1)
	set(opSelectTyped, opSelectTyped, immOther, 1)
	set(opLocalGet, opLocalGet, immLocal, 0)
	set(opLocalSet, opLocalTee, immLocal, 1)
	set(opGlobalGet, opGlobalSet, immGlobal, 1)
	set(opTableGet, opTableSet, immTable, 2)
	set(0x28, 0x3e, immMemArg, 1)
	set(opMemorySize, opMemorySize, immMemory, 1)
	set(opMemoryGrow, opMemoryGrow, immMemory, 6)
	set(opI32Const, opI32Const, immI32, 0)
	set(opI64Const, opI64Const, immI64, 0)
	set(0x43, 0x43, immF32, 0)
	set(0x44, 0x44, immF64, 0)
	set(0x45, 0xc4, immNone, 1)
	for _, op := range []int{0x6d, 0x6e, 0x6f, 0x70, 0x7f, 0x80, 0x81, 0x82, 0x91, 0x95, 0x9f, 0xa3} {
		t[op].cost = 8 // division, remainder and square root
	}
	for _, op := range []int{0x8d, 0x8e, 0x8f, 0x90, 0x96, 0x97, 0x98, 0x9b, 0x9c, 0x9d, 0x9e, 0xa4, 0xa5, 0xa6,
		0xa8, 0xa9, 0xaa, 0xab, 0xae, 0xaf, 0xb0, 0xb1} {
		t[op].cost = 3 // rounding, minimum, maximum, sign and truncation of floating point numbers
	}
	set(opRefNull, opRefNull, immOther, 1)
	set(0xd1, 0xd1, immNone, 1)
	set(opRefFunc, opRefFunc, immFunc, 1)
	set(opRefAsNonNull, opRefAsNonNull, immNone, 1)
	set(opBrOnNull, opBrOnNonNull, immLabel, 1)
	set(opMisc, opAtomic, immOther, 1)
	return t
}()

// legacyExceptions names the predecessor of try_table, with how to build without it.
const legacyExceptions = "legacy exceptions: rebuild with -wasm-use-legacy-eh=false,"

// unsupported returns the feature to which a refused instruction belongs.
func unsupported(op byte) string {
	switch {
	case op == 0x06 || op == 0x07 || op == 0x09 || op == 0x18 || op == 0x19:
		return legacyExceptions
	case op == 0xd3 || op == 0xfb: // ref.eq is GC's
		return "GC (garbage collected types)"
	}
	return ""
}

// Kinds of immediates of a vector instruction.
const (
	vecUnknown = iota
	vecNone
	vecMemArg
	vecMemArgLane
	vecLane
	vec16 // 16 bytes
)

// vectors gives the immediates of each vector instruction.
var vectors = func() (t [256]uint8) {
	for op := range t {
		t[op] = vecNone
	}
	for _, op := range []int{0x9a, 0xa2, 0xa5, 0xa6, 0xaf, 0xb0, 0xb2, 0xb3, 0xb4, 0xbb, 0xc2, 0xc5, 0xc6, 0xcf, 0xd0,
		0xd2, 0xd3, 0xd4, 0xe2, 0xee} {
		t[op] = vecUnknown
	}
	for op := 0x00; op <= 0x0b; op++ {
		t[op] = vecMemArg
	}
	t[0x5c], t[0x5d] = vecMemArg, vecMemArg
	t[0x0c], t[0x0d] = vec16, vec16
	for op := 0x15; op <= 0x22; op++ {
		t[op] = vecLane
	}
	for op := 0x54; op <= 0x5b; op++ {
		t[op] = vecMemArgLane
	}
	return t
}()

// Instructions of threads, after opAtomic.
const (
	atomicNotify = 0x00
	atomicWait64 = 0x02
	atomicFence  = 0x03
	atomicFirst  = 0x10 // of those that read and write
	atomicLast   = 0x4e
)

// atomicCost is the cost of an atomic instruction, which locks the bus.
const atomicCost = 6

// vectorCost is the cost of a vector instruction. Most take longer than a simple instruction on some machine.
const vectorCost = 2
