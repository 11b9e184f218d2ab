package guest

import "testing"

// TestReason: the first line of what a guest says before it traps, and where
// Go says it was.
func TestReason(t *testing.T) {
	for _, tt := range []struct{ name, said, want string }{
		{"nothing", "", ""},
		{"one line", "assertion failed\nmore\n", "assertion failed"},
		{"Go", "panic: boom\n\ngoroutine 1 [running]:\nmain.greet(0x1)\n\tgreet/main.go:12 +0x3\nmain.handle()\n\tgreet/main.go:7 +0x1\n", "panic: boom at greet/main.go:12"},
		{"Go, in the runtime first", "panic: runtime error: index out of range [1] with length 0\n\ngoroutine 1 [running]:\nruntime.f()\n\truntime/panic.go:1 +0x1\nmain.g()\n\ta/main.go:3 +0x2\n",
			"panic: runtime error: index out of range [1] with length 0 at a/main.go:3"},
		{"Go, cut short", "panic: boom\n\ngoroutine 1 [running]:\nmain.greet(0x1)\n\tgreet/ma", "panic: boom"},
		{"not UTF-8", "a\xff\n", "a\uFFFD"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := &instance{said: head{b: []byte(tt.said)}}
			if got := in.reason(); got != tt.want {
				t.Errorf("%q, must be %q", got, tt.want)
			}
		})
	}
}
