package guest

import (
	"os/exec"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitCompiler sets this process's limits before it reads any of the module.
func limitCompiler(most budget) error {
	// A larger heap would cost more than collecting garbage twice as often.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(most.memory * 3 / 4)
	for _, l := range []struct {
		what  int
		value uint64
	}{
		{unix.RLIMIT_DATA, uint64(most.memory)},
		{unix.RLIMIT_CPU, uint64(most.cpu.Seconds())},
		{unix.RLIMIT_CORE, 0},
	} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return err
		}
	}
	return nil
}

// endWithParent makes the kernel kill cmd when this process ends.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
