package disk

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestReadOnlyMount: what is on a read-only mount is not written by others,
// whatever its mode says.
func TestReadOnlyMount(t *testing.T) {
	if !WritableByOthers(t.TempDir(), 0o777) || WritableByOthers(t.TempDir(), 0o755) {
		t.Error("the mode does not count")
	}
	data, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 3 && slices.Contains(strings.Split(f[3], ","), "ro") {
			if WritableByOthers(f[1], 0o777) {
				t.Errorf("%s is mounted read-only and counts as writable", f[1])
			}
			return
		}
	}
	t.Skip("nothing is mounted read-only here")
}
