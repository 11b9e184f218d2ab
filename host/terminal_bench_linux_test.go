package host_test

import (
	"io"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// BenchmarkTerminal is what a terminal adds to git --version through a wrapper: both
// ways in turn, as medians in milliseconds, and the median of what each pair differs by.
func BenchmarkTerminal(b *testing.B) {
	if _, err := exec.LookPath("git"); err != nil {
		b.Skip("there is no git here")
	}
	d := hosttest.Start(b, config.Config{})
	d.Ready(b, "git")
	program := wrapperProgram(b)
	s := openScreen(b)
	run := func(terminal bool) time.Duration {
		cmd := exec.Command(program)
		cmd.Args, cmd.Dir = []string{"git", "--version"}, d.Root
		cmd.Env = []string{"TOOL_SOCKET=" + d.Socket, "TERM=xterm", "PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stdout = io.Discard
		if terminal {
			cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
			cmd.SysProcAttr.Setctty = true
		}
		start := time.Now()
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	var took [3][]float64
	for i := range 20 { // until all that is made once is made
		run(i%2 == 0)
	}
	for b.Loop() {
		pipes, terminal := run(false).Seconds()*1000, run(true).Seconds()*1000
		took[0], took[1], took[2] = append(took[0], pipes), append(took[1], terminal), append(took[2], terminal-pipes)
	}
	for i, name := range []string{"pipes-ms", "terminal-ms", "added-ms"} {
		slices.Sort(took[i])
		b.ReportMetric(took[i][len(took[i])/2], name)
	}
}
