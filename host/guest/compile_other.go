//go:build !linux

package guest

import (
	"os/exec"
	"runtime/debug"
)

// limitCompiler bounds this process, as far as Go can.
func limitCompiler(most budget) error {
	// Room for what is garbage costs more than collecting it twice as often.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(most.memory * 3 / 4)
	return nil
}

func endWithParent(*exec.Cmd) {}
