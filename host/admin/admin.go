// Package admin serves the operator's socket: health, metrics, tools, results,
// breakers, records, identities, sessions and profiles. Its JSON is that of
// package adminapi. It decides nothing: it shows what the parts of a daemon say,
// and passes on what an operator asks of them.
package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"strings"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/config"
)

// Handler serves the operator's socket.
func (d *Daemon) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", d.serveReady)
	mux.Handle("GET /metrics", d.Metrics.Handler())
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { answer(w, http.StatusOK, d.status(r.Context())) })
	mux.HandleFunc("GET /tools", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, d.toolList(r.Context()))
	})
	mux.HandleFunc("GET /tools/{name}", func(w http.ResponseWriter, r *http.Request) {
		for _, s := range append(d.Tools.List(), d.Tools.Misnamed()...) {
			if s.Name == r.PathValue("name") {
				t := d.toolStatus(s, true)
				t.Rights = d.rights(r.Context(), s.Name)
				d.refusing(r.Context(), &t, s.Mode, d.storeError(), func() error { return d.auditError(r.Context()) })
				answer(w, http.StatusOK, t)
				return
			}
		}
		fail(w, http.StatusNotFound, errors.New("there is no such tool; toolctl tools lists those that there are"))
	})
	mux.HandleFunc("GET /tools/{name}/wait", d.serveWait)
	mux.HandleFunc("GET /results/{id}", func(w http.ResponseWriter, r *http.Request) {
		res, err := d.Pipeline.Results.Get(r.PathValue("id"))
		if err != nil {
			fail(w, http.StatusNotFound, err)
			return
		}
		out := adminapi.StoredResult{
			ExecutionID: res.ExecutionID, Tool: res.Tool, Started: res.Started, Status: res.Status(), ExitCode: res.ExitCode,
			Stdout: res.Stdout, Stderr: res.Stderr, Data: res.Data, Truncated: res.Truncated,
			DurationMS: res.Duration.Milliseconds(), Usage: res.Usage,
		}
		if res.Err != nil {
			out.Code, out.ToolCode, out.Error = string(res.Err.Code), res.Err.ToolCode, res.Err.Message
		}
		answer(w, http.StatusOK, out)
	})
	d.adminReliability(mux)
	d.identityHandlers(mux)
	d.approvalHandlers(mux)
	mux.HandleFunc("GET /calls/{id}", d.serveCall)
	mux.HandleFunc("GET /dashboard", func(w http.ResponseWriter, r *http.Request) {
		page := d.Page()
		if page == nil {
			fail(w, http.StatusNotFound, errors.New("this toold has no dashboard; start it with --dashboard 127.0.0.1:8418"))
			return
		}
		answer(w, http.StatusOK, page)
	})
	mux.HandleFunc("POST /session/{call}", d.serveOperator)
	mux.HandleFunc("POST /upgrade", d.serveUpgrade)
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

func (d *Daemon) status(ctx context.Context) adminapi.HostStatus {
	c := d.Config()
	s := adminapi.HostStatus{
		Version: d.Version, PID: os.Getpid(), UID: os.Geteuid(), Instance: c.Instance, Started: d.Started,
		Socket: c.Socket, Tools: c.Tools, Restricted: c.Restricted, State: c.State, Roots: c.Roots,
		Reliability: cmp.Or(c.Reliability, config.ReliabilityOff), Store: c.StoreKind(),
		Config: c.File, Running: int(d.Pipeline.Running()), Calls: d.Pipeline.Calls(),
	}
	for _, k := range c.Sockets {
		s.Sockets = append(s.Sockets, adminapi.SocketStatus{Path: k.Path, Roots: k.Roots, Categories: k.Categories})
	}
	s.SharedSession = !c.ExplicitSessions
	for _, file := range slices.Compact(slices.Sorted(slices.Values(append(d.Tools.Serving().SecretFiles(), c.DotEnv())))) {
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o026 != 0 {
			s.Exposed = append(s.Exposed, file)
		}
	}
	s.Connections, s.ConfigError, s.UpgradeError = d.Conns(), d.Refused(), d.UpgradeRefused()
	if err := d.auditError(ctx); err != nil {
		s.AuditError = err.Error()
	}
	for file, refused := range d.Linked() {
		s.Linked = append(s.Linked, adminapi.LinkedFile{Path: file, Refused: refused})
	}
	slices.SortFunc(s.Linked, func(a, b adminapi.LinkedFile) int { return strings.Compare(a.Path, b.Path) })
	confinement := d.Runner.Confinement()
	s.Landlock, s.Lost, s.Confinement = confinement.ABI, confinement.Lost, confinement.Level().String()
	for _, reason := range []string{confinement.Reason, confinement.FilterReason, confinement.NamespacesReason} {
		if reason != "" {
			s.Raise = append(s.Raise, reason)
		}
	}
	return s
}
