//go:build !linux

package guest

import (
	"os/exec"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// limitCompiler limits this process; its memory as far as Go can.
func limitCompiler(most budget) error {
	// A larger heap would cost more than collecting garbage twice as often.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(most.memory * 3 / 4)
	cpu := uint64(most.cpu.Seconds())
	return unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: cpu, Max: cpu + killedAfter})
}

func endWithParent(*exec.Cmd) {}
