package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/pipeline"
)

// Daemon is what the operator's socket shows and controls.
type Daemon struct {
	pipeline.Parts
	Pipeline *pipeline.Pipeline
	Version  string
	Started  time.Time
	// Ready reports whether calls are taken.
	Ready func() bool
	// Refused is why the last reload was refused, or empty.
	Refused func() string
	// Upgrade has another program take the place of the daemon, and returns its
	// process id when it is about to; UpgradeRefused is why the last one did not
	// after all, or empty.
	Upgrade        func(ctx context.Context, binary string, within time.Duration) (pid int, err error)
	UpgradeRefused func() string
	// Conns counts the connections of all sockets.
	Conns func() int
	// Linked are the daemon's own files that have a further name, by whether
	// that keeps binaries from being run.
	Linked func() map[string]bool
	// Page is where the dashboard is, or nil without one.
	Page func() *adminapi.Dashboard
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, err error) {
	answer(w, status, adminapi.Error{Message: err.Error()})
}
