package admin

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/audit"
)

// callSpan is how far from the time that is asked for a call may have ended.
const callSpan = 2 * time.Minute

// serveCall answers what the audit log has of the calls with an execution id that
// ended about a time: the log may be large, and is read from there on only.
func (d *Daemon) serveCall(w http.ResponseWriter, r *http.Request) {
	at, err := time.Parse(time.RFC3339Nano, r.FormValue("at"))
	if err != nil {
		fail(w, http.StatusBadRequest, errors.New("say at=TIME, as 2006-01-02T15:04:05Z, when the call ended; toolctl audit show ID needs none"))
		return
	}
	id := r.PathValue("id")
	list, err := audit.Calls(filepath.Join(d.Config().State, "audit"), audit.Query{
		Since: at.Add(-callSpan), Until: at.Add(callSpan), Whole: true, Limit: 8,
		Match: func(e *audit.CallEntry) bool { return e.Call.Execution == id },
	})
	switch {
	case err != nil:
		fail(w, http.StatusServiceUnavailable, err)
	case len(list) == 0:
		fail(w, http.StatusNotFound, errors.New("the audit log has no such call about that time; toolctl audit show ID looks in all of it"))
	default:
		answer(w, http.StatusOK, list)
	}
}

// rights are what the definition of a tool gives it, or nil where nothing serves.
func (d *Daemon) rights(ctx context.Context, name string) *adminapi.ToolRights {
	tool, release, err := d.Tools.Acquire(ctx, name)
	if err != nil {
		return nil
	}
	defer release()
	def := tool.Def
	capabilities, err := json.Marshal(def.Capabilities)
	if err != nil {
		return nil
	}
	return &adminapi.ToolRights{
		Capabilities: capabilities, Secrets: slices.Sorted(maps.Keys(def.Secrets)), Environment: slices.Sorted(maps.Keys(def.Environment)),
		Roots: def.Roots, User: def.User, Callbacks: def.Callbacks, Terminal: def.Terminal, On: def.On,
	}
}
