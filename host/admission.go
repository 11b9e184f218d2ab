package host

import (
	"errors"
	"os"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/server"
)

// admission says which processes may connect.
type admission struct{ runner *process.Runner }

// operator refuses what a tool runs: it may have the daemon's own user,
// and where there are no namespaces nothing confines what it connects to. Who
// cannot be told from a tool is refused as well.
func (a admission) operator(p server.Peer) error {
	switch {
	case p.PID == 0:
		return nil // of a namespace around this one; what tools run can be seen
	case a.runner.Runs(p.PID):
		return errors.New("the admin socket is the operator's, and this process is, or may be, one that a tool runs: it descends from toold, or it has a system call filter and no_new_privs like one; call from another shell")
	case p.Ended():
		return errors.New("the admin socket is the operator's, and the process that connected has ended: keep it until it is answered")
	}
	return nil
}

// caller refuses what a tool runs on the sockets that containers call: a
// tool would act with the rights of a socket that is not its caller's. Modules
// call through tool_call, as who called them.
func (a admission) caller(p server.Peer) error {
	if p.PID == 0 {
		return nil // of a container, whose processes cannot be seen from here
	}
	if uid := os.Geteuid(); uid != 0 && int(p.UID) != uid {
		return nil
	}
	if a.runner.Runs(p.PID) || p.Ended() {
		return fault.Errorf(fault.Denied, "denied by rule caller: this process is, or may be, one that a tool runs, and tools do not call tools; call from the container itself, and stay until the answer")
	}
	return nil
}
