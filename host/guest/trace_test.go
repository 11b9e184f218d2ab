package guest

import (
	"errors"
	"strings"
	"testing"
)

// TestTrace: a trap names the functions that the author wrote, and none of
// those by which a language panics.
func TestTrace(t *testing.T) {
	for _, tt := range []struct{ name, stack, want string }{
		{"Go", ".runtime.abort(i32) i32\n\t.runtime.gopanic(i32) i32\n\t.main.answer(i32) i32\n\t.handle() i32", "in main.answer < handle"},
		{"AssemblyScript", ".assembly/toold/host/abort(i32,i32,i32,i32)\n\t.assembly/index/policy(i32) i32", "in assembly/index/policy"},
		{"Rust", "._RNvCsfLfy6EI15iL_7___rustc10rust_panic()\n\t._RNvNtCsebHcaeoSrxy_3std9panicking15panic_with_hook(i32,i32)\n\t" +
			"._RINvNtNtCsebHcaeoSrxy_3std3sys9backtrace26___rust_end_short_backtraceNCNvNtB6_9panicking13panic_handler0zEB6_(i32)\n\t" +
			"._RNvNtCsgXGp5Oqx2Ny_4core9panicking9panic_fmt(i32)\n\t._RNvNtCs7kM_6policy5rules5check(i32) i32\n\t.restrict() i32", "in policy::rules::check < restrict"},
		{"Rust, older names", ".core::panicking::panic_fmt::h0123456789abcdef(i32)\n\t.policy::check::h0123456789abcdef()", "in policy::check"},
		{"C++, with commas and brackets in a name", ".check(std::string, int)(i32,i32) i32", "in check(std::string, int)"},
		{"with lines", ".check(i32)\n\t\t0x10: policy.c:3:4\n\t.restrict() i32\n\nGo runtime stack trace:\n\t.goroutine()", "in check < restrict"},
		{"deep", strings.Repeat(".f(i32)\n\t", 20) + ".main()", "in f < f < f < f < f < f < ..."},
		{"without names", ".$12(i32)\n\t.$3()", ""},
		{"Rust, cut short", "._R(i32)\n\t._RNvCs(i32)\n\t._RNvCs_99x()", ""},
		{"not UTF-8", ".a\xff()", "in a\uFFFD"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := trace(errors.New("wasm error: unreachable\nwasm stack trace:\n\t" + tt.stack)); got != tt.want {
				t.Errorf("%q, must be %q", got, tt.want)
			}
		})
	}
	if got := trace(errors.New("unreachable")); got != "" {
		t.Errorf("%q without a stack", got)
	}
}
