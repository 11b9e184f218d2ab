package folder

import (
	"errors"
	"syscall"
	"testing"
)

// No path leads out of the folder that it is opened in, though the folder above
// may be one that the guest sees.
func TestPathsStay(t *testing.T) {
	f := &File{path: "sub", Dir: true}
	for name, want := range map[string]string{
		"a": "sub/a", "./a": "sub/./a", "a/../b": "sub/a/../b", ".": "sub/.", "a/..": "sub/a/..",
		"..": "", "../sub": "", "a/../../b": "", "/a": "",
	} {
		got, err := f.name(name)
		if got != want || (want == "") != errors.Is(err, syscall.EPERM) {
			t.Errorf("%q is %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]error{"": syscall.ENOENT, "a\x00": syscall.EINVAL} {
		if _, err := f.name(name); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", name, err, want)
		}
	}
}
