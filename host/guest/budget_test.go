package guest

import (
	"errors"
	"strings"
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
		if b := budgetOf(m.mb << 20); b.cpu < time.Duration(m.cpu)*time.Second || b.memory < m.mib<<20 || b.time < 20*b.cpu {
			t.Errorf("%s gets %+v", name, b)
		}
	}
}

// What a compilation was ended for is told apart: it is the module's fault that it needs
// much CPU time or memory, and not that the machine had none to give.
func TestCompilingIsEndedFor(t *testing.T) {
	e := newEngine(t)
	code := bomb()
	for name, tt := range map[string]struct {
		most budget
		kind Kind
		want string
	}{
		"cpu":        {budget{cpu: time.Second, time: time.Hour, memory: 1 << 30}, TooMuchToCompile, "compiling it takes more than 1s of CPU time"},
		"memory":     {budget{cpu: time.Hour, time: time.Hour, memory: 40 << 20}, TooMuchToCompile, "compiling it takes more than 40 MiB of memory"},
		"other work": {budget{cpu: time.Hour, time: 10 * time.Millisecond, memory: 1 << 30}, Starved, "this machine is busy: compiling it got "},
	} {
		t.Run(name, func(t *testing.T) {
			u, ok := errors.AsType[*tooMuch](e.compileApart(t.TempDir(), code, tt.most))
			if !ok || u.kind != tt.kind || !strings.HasPrefix(u.text, tt.want) || u.remedy == "" {
				t.Errorf("got %+v", u)
			}
		})
	}
}
