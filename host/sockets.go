package host

import (
	"errors"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/toold/toold/host/admin"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/server"
)

// Version is the version of this build: the module's, or what the version
// control says of a build from a checkout.
func Version() string {
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return bi.Main.Version
	}
	return "(devel)"
}

// admitsOperator refuses what a tool runs: it may have the daemon's own user,
// and where there are no namespaces nothing confines what it connects to. Who
// cannot be told from a tool is refused as well.
func (h *Host) admitsOperator(p server.Peer) error {
	switch {
	case p.PID == 0:
		return nil // of a namespace around this one; what tools run can be seen
	case h.parts.Runner.Runs(p.PID):
		return errors.New("the admin socket is the operator's, and this process is, or may be, one that a tool runs: it descends from toold, or it has a system call filter and no_new_privs like one; call from another shell")
	case p.Ended():
		return errors.New("the admin socket is the operator's, and the process that connected has ended: keep it until it is answered")
	}
	return nil
}

// admitsCaller refuses what a tool runs on the sockets that containers call: a
// tool would act with the rights of a socket that is not its caller's. Modules
// call through tool_call, as who called them.
func (h *Host) admitsCaller(p server.Peer) error {
	if p.PID == 0 {
		return nil // of a container, whose processes cannot be seen from here
	}
	if uid := os.Geteuid(); uid != 0 && int(p.UID) != uid {
		return nil
	}
	if h.parts.Runner.Runs(p.PID) || p.Ended() {
		return fault.Errorf(fault.Denied, "denied by rule caller: this process is, or may be, one that a tool runs, and tools do not call tools; call from the container itself, and stay until the answer")
	}
	return nil
}

// admin serves what the operator asks of h, whose sockets are servers.
func (h *Host) admin(servers []*server.Server) http.Handler {
	d := &admin.Daemon{
		Parts: h.parts, Pipeline: h.pipeline, Version: Version(), Started: h.started,
		Ready: h.ready.Load,
		Refused: func() string {
			if msg := h.refused.Load(); msg != nil {
				return *msg
			}
			return ""
		},
		Conns: func() (n int) {
			for _, s := range servers {
				n += s.Conns()
			}
			return n
		},
		Linked: h.linked,
	}
	return d.Handler()
}

// serveMetrics serves the metrics over TCP until l is closed.
func serveMetrics(l net.Listener, metrics http.Handler) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer srv.Close()
	if err := srv.Serve(l); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
