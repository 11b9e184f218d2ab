package execute

import (
	"log/slog"
	"os"
	"syscall"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/tools"
)

// exitCode returns the exit code of a binary as a shell reports it: 128 plus the
// signal that ended it.
func exitCode(e process.Exit) int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// exitByte returns the exit code of a module as a wrapper can exit with it. A code
// outside of 0 to 255 becomes 255: truncated, 256 would be a success.
func exitByte(code int) int {
	if code < 0 || code > 255 {
		return 255
	}
	return code
}

// executed journals the programs that a binary executed, and logs refused ones.
func executed(p *call.Pinned, exit process.Exit, log *slog.Logger) {
	for _, prog := range exit.Programs {
		prog.Refused = tools.ExplainRefusal(prog.Refused)
		if p.Execution != nil { // a discovery has no journal
			p.Execution.AddProgram(prog.Path, prog.Refused)
		}
		if prog.Refused != "" {
			log.Warn("program refused", "tool", p.Tool.Name, "execution_id", p.ExecutionID, "path", prog.Path, "reason", prog.Refused)
		}
	}
}

// signalled is the cause of the end of a guest to which the caller sent a signal.
type signalled struct{ sig os.Signal }

func (s signalled) Error() string { return "ended by " + s.sig.String() }

func (s signalled) number() int {
	if n, ok := s.sig.(syscall.Signal); ok {
		return int(n)
	}
	return int(syscall.SIGTERM)
}
