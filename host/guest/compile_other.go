//go:build !linux

package guest

import (
	"os/exec"
	"runtime/debug"
)

// limitCompiler limits this process, as far as Go can.
func limitCompiler(most budget) error {
	// A larger heap would cost more than collecting garbage twice as often.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(most.memory * 3 / 4)
	return nil
}

func endWithParent(*exec.Cmd) {}
