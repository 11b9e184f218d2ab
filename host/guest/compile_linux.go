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
	cpu := uint64(most.cpu.Seconds())
	for _, l := range []struct {
		what  int
		limit unix.Rlimit
	}{
		{unix.RLIMIT_DATA, unix.Rlimit{Cur: uint64(most.memory), Max: uint64(most.memory)}},
		{unix.RLIMIT_CPU, unix.Rlimit{Cur: cpu, Max: cpu + killedAfter}},
		{unix.RLIMIT_CORE, unix.Rlimit{}},
	} {
		if err := unix.Setrlimit(l.what, &l.limit); err != nil {
			return err
		}
	}
	return nil
}

// endWithParent makes the kernel kill cmd when this process ends.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
