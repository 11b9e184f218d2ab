package guest

import (
	"errors"

	"github.com/toold/toold/host/guest/wasm"
)

// exceptions holds what a guest has caught and may throw again. An exnref in the guest
// is one plus the exception's position in caught. They live as long as the state of the
// instance.
type exceptions struct {
	caught []uint64 // for each: its tag, its number of values, and the values
	values []uint64 // of the next exception
}

// exceptionFuncs returns the imports of a rewritten module with exceptions.
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

// exceptionCost is charged, in bytes moved, for each exception caught with its exnref.
// It matches the time of the host calls that this takes.
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

// exception returns the tag and values behind an exnref.
func (c *call) exception(ref uint64) []uint64 {
	if ref == 0 {
		panic(errors.New("null reference"))
	}
	kept := c.exceptions.caught[ref-1:]
	return kept[:2+kept[1]]
}
