package guest

import (
	"errors"
	"strings"
	"testing"

	"github.com/toold/toold/host/guest/wasm"
)

// TestTrace: a trap names the functions that the author wrote, and none of
// those by which a language panics.
func TestTrace(t *testing.T) {
	nowhere := func(uint32) []wasm.Place { return nil }
	for _, tt := range []struct{ name, stack, want string }{
		{"Go", ".runtime.abort(i32) i32\n\t.runtime.gopanic(i32) i32\n\t.main.answer(i32) i32\n\t.handle() i32", "in main.answer < handle"},
		{"AssemblyScript", ".assembly/toold/host/abort(i32,i32,i32,i32)\n\t.assembly/index/policy(i32) i32", "in assembly/index/policy"},
		{"Rust", "._RNvCsfLfy6EI15iL_7___rustc10rust_panic()\n\t._RNvNtCsebHcaeoSrxy_3std9panicking15panic_with_hook(i32,i32)\n\t" +
			"._RINvNtNtCsebHcaeoSrxy_3std3sys9backtrace26___rust_end_short_backtraceNCNvNtB6_9panicking13panic_handler0zEB6_(i32)\n\t" +
			"._RNvNtCsgXGp5Oqx2Ny_4core9panicking9panic_fmt(i32)\n\t._RNvNtCs7kM_6policy5rules5check(i32) i32\n\t.restrict() i32", "in policy::rules::check < restrict"},
		{"Rust 1.63", "._ZN3std10sys_common9backtrace26__rust_end_short_backtrace17h0123456789abcdefE()\n\t._ZN6policy5check17h0123456789abcdefE()", "in policy::check"},
		{"Rust, older names", ".core::panicking::panic_fmt::h0123456789abcdef(i32)\n\t.policy::check::h0123456789abcdef()", "in policy::check"},
		{"C++, with commas and brackets in a name", ".check(std::string, int)(i32,i32) i32", "in check(std::string, int)"},
		{"with lines", ".check(i32)\n\t\t0x10: policy.c:3:4\n\t.restrict() i32\n\nGo runtime stack trace:\n\t.goroutine()", "in check < restrict"},
		{"Rust, names that are coded the older way", "._ZN5greet4deep17h65eec7ab2c615eb8E(i32)\n\t._ZN5greet4main17h65eec7ab2c615eb8E()", "in greet::deep < greet::main"},
		{"deep", strings.Repeat(".f(i32)\n\t", 20) + ".main()", "in f (again and again) < main"},
		{"deeper than is told", strings.Repeat(".f(i32)\n\t", 30) + "... maybe followed by omitted frames", "in f (again and again)"},
		{"deep, in turns", strings.Repeat(".f(i32)\n\t.g()\n\t", 20) + ".main()", "in f < g < f < g < f < g < ..."},
		{"twice", ".f(i32)\n\t.f(i32)\n\t.main()", "in f < f < main"},
		{"without names", ".$12(i32)\n\t.$3()", ""},
		{"Rust, cut short", "._R(i32)\n\t._RNvCs(i32)\n\t._RNvCs_99x()", ""},
		{"not UTF-8", ".a\xff()", "in a\uFFFD"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := trace(errors.New("wasm error: unreachable\nwasm stack trace:\n\t"+tt.stack), nowhere); got != tt.want {
				t.Errorf("%q, must be %q", got, tt.want)
			}
		})
	}
	if got := trace(errors.New("unreachable"), nowhere); got != "" {
		t.Errorf("%q without a stack", got)
	}
}

// TestAdvice: what is said to do about a trap, by all that is known of it.
func TestAdvice(t *testing.T) {
	for _, tt := range []struct{ what, where, said, want string }{
		{"unreachable", "in handle", "runtime: wasmexport function called before runtime initialization", "-buildmode=c-shared"},
		{"unreachable", "in main.f", "fatal error: all goroutines are asleep - deadlock!", "pdk.Recv"},
		{"unreachable", "in std::time", "panicked at time.rs:35:9: time not implemented on this platform", "ask the host"},
		{"it left with exit code 3", "", "", "exit_code"},
		{"unreachable", "in std::process::exit < handle", "", "exit_code"},
		{"stack overflow", "in f", "", "make it a loop"},
		{"out of bounds memory access", "in f" + again + " < main", "", "make it a loop"},
		{"unreachable", "in f", "panic: boom", "answer an error instead"},
		{"out of bounds memory access", "in f", "", "check it before it is used"},
		{"integer divide by zero", "in f", "", "check the divisor"},
		{"integer overflow", "in f", "", "check its range"},
		{"invalid table access", "in f", "", "function pointer"},
		{"unreachable", "in f", "", "function named first"},
	} {
		if got := advice(tt.what, tt.where, tt.said); !strings.Contains(got, tt.want) {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}
