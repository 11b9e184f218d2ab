package guest

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/tetratelabs/wazero/api"
)

// The machine code of a guest keeps its frames on a stack. wazero creates one of Go
// memory for each function called from outside, and doubles it by copying, up to 150
// MB: that is not accounted and cannot be refused. So a guest runs on a stack of this
// package. It is a reservation of address space whose end is usable; the usable part is
// charged to the account, and nothing is ever copied. Each function checks on entry
// whether there is room for its frame, and wazero ends the guest with a stack overflow
// if there is none: it does not grow a stack that is longer than its own maximum. This
// limit does not depend on any estimate of frame sizes.
//
// The usable end grows when the guest refills its fuel: see deepen.

const (
	// stackSpace is the address space of a stack. It must exceed the size up to which
	// wazero grows a stack (50,000,000 bytes).
	stackSpace = 64 << 20
	// stackBase is the stack that every instance has. It does not count toward
	// Spec.Memory, which a module's memory alone may reach.
	stackBase = 256 << 10
	// stackSlack is not available for frames: it is for what wazero's trampolines push
	// beyond what they check for, and for its entry.
	stackSlack = osPage
	// stackStep is the minimum growth of a stack.
	stackStep = 64 << 10
	// stackSpare is the maximum by which a stack exceeds what is used, as long as
	// guests hold less than half of the account's limit.
	stackSpare = 16 << 20
	// stackRate is the number of bytes of stack that a unit of fuel may use, if
	// wasm.Module.StackRate is not more: four times the observed maximum of code from
	// compilers. A function that uses more, in one descent through all of stackSpare,
	// may overflow before it reaches its limit; none gets past the limit.
	stackRate = 32
)

// stackOverflow is wazero's error for a guest that has no stack left.
const stackOverflow = "stack overflow"

// stack is the stack of one instance.
type stack struct {
	acct   *account
	buf    []byte // the address space; nil before the first call
	top    uintptr
	size   int64 // bytes at its end that a guest may use; charged to acct
	usable int64 // bytes at its end that are writable: at least size
	most   int64 // maximum of size since the part above stackBase was last dropped

	fields *stackFields
	fn     unsafe.Pointer // wazero's function that runs on it, or nil

	scarce bool // acct was exhausted when it should have grown
}

// stackFields are the offsets of the fields in wazero's functions that locate the
// stack.
type stackFields struct {
	of                     reflect.Type
	slice, top, bottom, sp uintptr
}

// findStack looks up the fields. It fails if wazero's functions are not laid out as
// expected.
func findStack(of reflect.Type) (*stackFields, error) {
	unknown := fmt.Errorf("wazero's functions (%v) keep their stack otherwise than this program knows; build it with the version of wazero in its go.mod", of)
	if of.Kind() != reflect.Pointer || of.Elem().Kind() != reflect.Struct {
		return nil, unknown
	}
	field := func(in reflect.Type, name string, as reflect.Type) (reflect.StructField, bool) {
		f, ok := in.FieldByName(name)
		return f, ok && len(f.Index) == 1 && (as == nil || f.Type == as)
	}
	slice, a := field(of.Elem(), "stack", reflect.TypeFor[[]byte]())
	top, b := field(of.Elem(), "stackTop", reflect.TypeFor[uintptr]())
	exec, c := field(of.Elem(), "execCtx", nil)
	if !a || !b || !c || exec.Type.Kind() != reflect.Struct {
		return nil, unknown
	}
	bottom, a := field(exec.Type, "stackBottomPtr", reflect.TypeFor[*byte]())
	sp, b := field(exec.Type, "stackPointerBeforeGoCall", reflect.TypeFor[*uint64]())
	if !a || !b {
		return nil, unknown
	}
	return &stackFields{of, slice.Offset, top.Offset, exec.Offset + bottom.Offset, exec.Offset + sp.Offset}, nil
}

// run calls a wazero function on the instance's stack. All code of a guest, including
// code added to it, is called through run.
func (in *instance) run(f api.Function, params []uint64) error {
	return in.runOn(&in.stack, f, params)
}

// runOn is run on a stack other than the instance's.
func (in *instance) runOn(s *stack, f api.Function, params []uint64) error {
	if err := s.enter(in.m.e, f); err != nil {
		return in.m.errorf(Internal, "", "%w", err)
	}
	defer in.c.pause()
	err := f.CallWithStack(&in.c, params)
	if !s.leave() {
		return in.m.errorf(Internal, "", "wazero left the stack that it was given")
	}
	return err
}

// enter makes f run on the stack, whose size is already charged to the account.
func (s *stack) enter(e *Engine, f api.Function) error {
	if s.fn != nil {
		panic("guest: an instance is called while it runs")
	}
	v := reflect.ValueOf(f)
	if s.fields == nil {
		e.stackOnce.Do(func() { e.stackFields, e.stackErr = findStack(v.Type()) })
		if e.stackErr != nil {
			return e.stackErr
		}
		s.fields = e.stackFields
	}
	if v.Type() != s.fields.of {
		return fmt.Errorf("call %v, which is none of wazero's functions", v.Type())
	}
	if s.buf == nil {
		buf, err := reserve(stackSpace)
		if err != nil {
			return err
		}
		smallPages(buf)
		if err := commit(buf, stackSpace-uint64(s.size), stackSpace); err != nil {
			release(buf)
			return err
		}
		s.buf, s.usable, s.most = buf, s.size, s.size
		s.top = uintptr(unsafe.Pointer(&buf[stackSpace-1])) &^ 15
	}
	s.fn = v.UnsafePointer()
	*(*[]byte)(unsafe.Add(s.fn, s.fields.slice)) = s.buf
	*(*uintptr)(unsafe.Add(s.fn, s.fields.top)) = s.top
	s.bound()
	return nil
}

// bound sets the end of the stack in the running function.
func (s *stack) bound() {
	*(**byte)(unsafe.Add(s.fn, s.fields.bottom)) = &s.buf[stackSpace-s.size+stackSlack]
}

// leave detaches the stack from the function, which then keeps no pointer to memory
// that may be unmapped. It reports false if the function ran on another stack.
func (s *stack) leave() bool {
	slice := (*[]byte)(unsafe.Add(s.fn, s.fields.slice))
	ok := len(*slice) == len(s.buf) && &(*slice)[0] == &s.buf[0]
	*slice = nil
	*(*uintptr)(unsafe.Add(s.fn, s.fields.top)) = 0
	*(**byte)(unsafe.Add(s.fn, s.fields.bottom)) = nil
	*(**uint64)(unsafe.Add(s.fn, s.fields.sp)) = nil
	s.fn = nil
	return ok
}

// used returns the bytes of stack in use. It must be called by a function that the
// guest called.
func (s *stack) used() int64 {
	if s.fn == nil {
		return 0
	}
	sp := *(**uint64)(unsafe.Add(s.fn, s.fields.sp))
	if sp == nil {
		return 0
	}
	return int64(s.top - uintptr(unsafe.Pointer(sp)))
}

// counted returns how much of the stack counts toward Spec.Memory.
func (s *stack) counted() int64 { return max(0, s.used()-stackBase) }

// lengthen makes the stack size bytes long, charged through take. It reports false if
// take refuses.
func (s *stack) lengthen(size int64, take func(int64) bool) bool {
	more := size - s.size
	if more <= 0 {
		return true
	}
	if !take(more) {
		return false
	}
	if size > s.usable {
		if err := commit(s.buf, uint64(stackSpace-size), uint64(stackSpace-s.usable)); err != nil {
			s.acct.give(more)
			return false
		}
		s.usable = size
	}
	s.size, s.most = size, max(s.most, size)
	s.bound()
	return true
}

// shrink releases what exceeds size bytes, except what is in use. touched reports that
// some of that may have been used since the last time.
func (s *stack) shrink(size int64, touched bool) error {
	size = max(size, (s.used()+stackSlack+stackStep-1)/stackStep*stackStep)
	if s.buf == nil || s.most <= size {
		return nil
	}
	if touched {
		if err := discardPages(s.buf[stackSpace-s.most : stackSpace-size]); err != nil {
			return err
		}
	}
	s.most = size
	if s.size > size {
		s.acct.give(s.size - size)
		s.size = size
	}
	if s.fn != nil {
		s.bound()
	}
	return nil
}

// free releases the stack. The caller must release its charge: see instance.close.
func (s *stack) free() {
	if s.buf != nil {
		release(s.buf)
		s.buf = nil
	}
	s.acct.give(s.size)
	s.size = 0
}

// stackMost returns the maximum size of the stack if memory leaves that much of
// Spec.Memory.
func stackMost(left uint64) int64 {
	return min(stackBase+int64(left/stackStep*stackStep), stackSpace-stackStep)
}

// deepen makes room on the stack for n units of fuel and returns the number of units
// there is room for. A guest that already has all of the stack it may have gets all n:
// it cannot go deeper anyway.
func (c *call) deepen(n int64) int64 {
	in := c.inst
	s := &in.stack
	left := uint64(in.m.spec.Memory)
	if in.mem != nil {
		left = in.mem.limit
	}
	left -= min(left, in.memorySize())
	most := stackMost(left)
	s.scarce = false
	if s.fn == nil || s.size >= most {
		return n
	}
	used := s.used()
	want := min(n*in.m.stackRate(), stackSpare)
	if s.size-used >= want {
		return n
	}
	long := func(spare int64) int64 { return min((used+spare+stackStep-1)/stackStep*stackStep, most) }
	if s.scarce = !s.lengthen(long(want), s.acct.takeSpare); s.scarce && s.size-used < stackBase/2 {
		// The stack is needed now: close idle instances of others for it.
		s.lengthen(long(stackBase), func(n int64) bool { return in.m.e.makeRoom(n, in.m) })
	}
	return min(n, in.affordable())
}

// affordable returns how many units of fuel there is room for on the stack.
func (in *instance) affordable() int64 {
	return max((in.stack.size-in.stack.used())/in.m.stackRate(), leastSlice)
}

func (m *Module) stackRate() int64 {
	rate := max(stackRate, m.rewritten.StackRate)
	for _, p := range m.linked {
		rate = max(rate, p.rewritten.StackRate)
	}
	return rate
}

// wait prepares a call for waiting: it releases the stack that is only there for
// computing without interruption, so that others can use it.
func (c *call) wait() {
	c.unpin()
	c.pause()
	s := &c.inst.stack
	keep := (s.used() + 2*stackBase) / stackStep * stackStep
	if s.fn == nil || s.size <= keep || s.shrink(keep, true) != nil {
		return
	}
	// The call has fuel for a longer stack than this.
	m := &c.meter
	if more := int64(m.fuel.Get()) - c.inst.affordable(); more > 0 {
		m.granted -= more
		m.fuel.Set(m.fuel.Get() - uint64(more))
	}
}
