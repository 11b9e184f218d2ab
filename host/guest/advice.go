package guest

import "strings"

// advice returns what the author can do about a trap, based on how it ended, where (see
// trace), and what the guest printed before.
func advice(what, where, said string) string {
	has := func(s string, words ...string) bool {
		for _, w := range words {
			if strings.Contains(s, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has(said, "wasmexport function called before runtime initialization"):
		return "build it with -buildmode=c-shared, as toolctl plugin build does"
	case has(said, "all goroutines are asleep"):
		return "it waits for what no other goroutine of it will do; input from outside comes through pdk.Recv"
	case has(said, "not implemented on this platform", "not supported on this platform"):
		return "this target has no clock, files, threads or sockets: ask the host through the SDK, or leave it out"
	case has(what, "exit code"), has(where, "process::exit", "process::abort"):
		return "do not leave: answer a Result with that exit_code"
	case has(what, "stack overflow"), has(where, again):
		return "a function calls itself too often: give it an end, or make it a loop"
	case said != "":
		return "check for it before, and answer an error instead"
	case has(what, "out of bounds memory access"):
		return "a pointer or an index is wrong there: check it before it is used"
	case has(what, "divide by zero"):
		return "check the divisor first"
	case has(what, "integer overflow", "invalid conversion to integer"):
		return "a number does not fit its type: check its range first"
	case has(what, "indirect call type mismatch", "invalid table access"):
		return "a function pointer is null, or of another type than the function: check what it is set to"
	}
	return "look at the function named first; what the module logged may say more"
}
