package host

import (
	"cmp"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/server"
	"github.com/toold/toold/host/tools"
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
	case h.runner.Runs(p.PID):
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
	if h.runner.Runs(p.PID) || p.Ended() {
		return fault.Errorf(fault.Denied, "denied by rule caller: this process is, or may be, one that a tool runs, and tools do not call tools; call from the container itself, and stay until the answer")
	}
	return nil
}

// adminHandler serves the operator's socket.
func (h *Host) adminHandler(servers []*server.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !h.ready.Load() {
			fail(w, http.StatusServiceUnavailable, errors.New("this toold takes no calls now: it starts or stops"))
			return
		}
		w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", h.metrics.Handler())
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, h.status(servers)) })
	mux.HandleFunc("GET /tools", func(w http.ResponseWriter, r *http.Request) {
		list := []adminapi.ToolStatus{}
		for _, s := range h.tools.List() {
			list = append(list, h.toolStatus(s, false))
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /tools/{name}", func(w http.ResponseWriter, r *http.Request) {
		for _, s := range h.tools.List() {
			if s.Name == r.PathValue("name") {
				answer(w, http.StatusOK, h.toolStatus(s, true))
				return
			}
		}
		fail(w, http.StatusNotFound, errors.New("there is no such tool; toolctl tools lists those that there are"))
	})
	mux.HandleFunc("GET /results/{id}", func(w http.ResponseWriter, r *http.Request) {
		res, err := h.results.get(r.PathValue("id"))
		if err != nil {
			fail(w, http.StatusNotFound, err)
			return
		}
		out := adminapi.StoredResult{
			ExecutionID: res.ExecutionID, Tool: res.tool, Started: res.started, Status: res.Status(), ExitCode: res.ExitCode,
			Stdout: res.Stdout, Stderr: res.Stderr, Data: res.Data, Truncated: res.Truncated,
			DurationMS: res.Duration.Milliseconds(), Usage: res.Usage,
		}
		if res.Err != nil {
			out.Code, out.Error = string(res.Err.Code), res.Err.Message
		}
		answer(w, http.StatusOK, out)
	})
	h.adminReliability(mux)
	h.identityHandlers(mux)
	mux.HandleFunc("POST /session/{call}", h.serveOperator)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, errors.New("no such operation; this toold may be older than the toolctl that asks"))
	})
	return mux
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, err error) {
	answer(w, status, adminapi.Error{Message: err.Error()})
}

func (h *Host) status(servers []*server.Server) adminapi.HostStatus {
	c := h.config()
	s := adminapi.HostStatus{
		Version: Version(), PID: os.Getpid(), Instance: c.Instance, Started: h.started,
		Socket: c.Socket, Tools: c.Tools, Restricted: c.Restricted, State: c.State, Roots: c.Roots,
		Reliability: cmp.Or(c.Reliability, config.ReliabilityOff), Store: storeKind(c.Store),
		Config: c.File, Running: int(h.running.Load()), Calls: h.calls.Load(),
	}
	for _, srv := range servers {
		s.Connections += srv.Conns()
	}
	if msg := h.refused.Load(); msg != nil {
		s.ConfigError = *msg
	}
	for file, refused := range h.severallyNamed() {
		s.Linked = append(s.Linked, adminapi.LinkedFile{Path: file, Refused: refused})
	}
	slices.SortFunc(s.Linked, func(a, b adminapi.LinkedFile) int { return strings.Compare(a.Path, b.Path) })
	confinement := h.runner.Confinement()
	s.Landlock, s.Lost, s.Confinement = confinement.ABI, confinement.Lost, confinement.Level().String()
	for _, reason := range []string{confinement.Reason, confinement.FilterReason, confinement.NamespacesReason} {
		if reason != "" {
			s.Raise = append(s.Raise, reason)
		}
	}
	return s
}

func (h *Host) toolStatus(s tools.Status, whole bool) adminapi.ToolStatus {
	t := adminapi.ToolStatus{
		Name: s.Name, State: s.State, Description: s.Description, Kind: s.Kind, Path: s.Path,
		Policies: s.Policies, Category: s.Category, Version: s.Version, Loaded: s.Loaded,
		Reason: s.Reason, Mutating: s.Mutating,
	}
	switch {
	case s.User:
		t.Confinement = process.User.String()
	case s.Executes:
		t.Confinement = h.runner.Confinement().Level().String()
	}
	if whole {
		t.Schema = s.Schema
	}
	return t
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
