package guest

import (
	"testing"
	"time"
)

// What has little code gets little to be compiled with; what compilers make of large
// programs has enough: seconds of CPU and MiB as measured, by MB of code.
func TestBudgetsOfModules(t *testing.T) {
	if b := budgetOf(27 << 10); b.cpu > 20*time.Second || b.memory > 1<<30 {
		t.Errorf("27 KB get %+v", b)
	}
	if b := budgetOf(27 << 10); b.within(CompileLimits{}) != b {
		t.Errorf("without limits of its own a module gets %+v", b.within(CompileLimits{}))
	}
	for name, m := range map[string]struct {
		mb, cpu int
		mib     int64
	}{"yq": {9, 12, 1100}, "cc1": {20, 28, 1700}} {
		if b := budgetOf(m.mb << 20); b.cpu < time.Duration(m.cpu)*time.Second || b.memory < m.mib<<20 || b.time < 3*b.cpu {
			t.Errorf("%s gets %+v", name, b)
		}
	}
}
