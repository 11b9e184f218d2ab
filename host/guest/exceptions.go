package guest

import (
	"errors"

	"github.com/toold/toold/host/guest/wasm"
)

// exceptions are what a guest has caught and may throw again: an exnref of
// its is the position, plus one, of what is kept for it. They last as long as
// the state of the instance that holds them.
type exceptions struct {
	caught []uint64 // of each: its tag, how many values it has, and these
	values []uint64 // of the next
}

// exceptionFuncs are what a rewritten module with exceptions imports.
func exceptionFuncs() []hostFunc {
	f := func(name string, p, r types, fn func(c *call, s []uint64)) hostFunc {
		return hostFunc{module: wasm.ImportModule, name: name, params: p, results: r, fn: fn}
	}
	const ref = 0x6f // externref
	return []hostFunc{
		f(wasm.ImportCaught, types{i32}, types{ref}, (*call).caught),
		f(wasm.ImportValue, types{i64}, types{}, func(c *call, s []uint64) { c.exceptions.values = append(c.exceptions.values, s[0]) }),
		f(wasm.ImportTag, types{ref}, types{i32}, func(c *call, s []uint64) { s[0] = c.exception(s[0])[0] }),
		f(wasm.ImportValueOf, types{ref, i32}, types{i64}, func(c *call, s []uint64) {
			s[0] = c.exception(s[0])[2:][uint32(s[1])]
		}),
		f(wasm.ImportUncaught, types{}, types{}, func(*call, []uint64) { panic(errors.New("uncaught exception")) }),
	}
}

// exceptionCost is charged for each that is caught with its exnref, in bytes
// moved: about the time that the calls of the host for it take.
const exceptionCost = 1000

func (c *call) caught(s []uint64) {
	e := &c.exceptions
	c.charge(exceptionCost)
	n := len(e.values)
	if int64(len(e.caught)+2+n)*8 > c.inst.m.spec.Memory {
		panic(c.inst.m.errorf(MemoryUsed, "throw less often", "the exceptions that it caught take more than %d bytes", c.inst.m.spec.Memory))
	}
	var ok bool
	if e.caught, ok = enlarge(&c.k.held, e.caught, 2+n, 64); !ok {
		panic(c.inst.m.overloaded())
	}
	at := len(e.caught)
	e.caught = append(append(e.caught, s[0], uint64(n)), e.values...)
	e.values = e.values[:0]
	s[0] = uint64(at) + 1
}

// exception is what is kept for an exnref.
func (c *call) exception(ref uint64) []uint64 {
	if ref == 0 {
		panic(errors.New("null reference"))
	}
	kept := c.exceptions.caught[ref-1:]
	return kept[:2+kept[1]]
}
