package admin

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/strictjson"
)

const (
	// defaultWithin is how long an upgrade waits for calls that take long where
	// nobody says; maxWithin is the most.
	defaultWithin = 10 * time.Minute
	maxWithin     = 24 * time.Hour
)

// serveUpgrade answers when no call runs and the new daemon is about to serve, or
// when there will be none. It is given up when the one who asked leaves.
func (d *Daemon) serveUpgrade(w http.ResponseWriter, r *http.Request) {
	var asked adminapi.Upgrade
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err == nil {
		err = strictjson.Unmarshal(text, &asked)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("upgrade: %w", err))
		return
	}
	within := defaultWithin
	if asked.Within != "" {
		if within, err = time.ParseDuration(asked.Within); err != nil || within <= 0 || within > maxWithin {
			fail(w, http.StatusBadRequest, fmt.Errorf("upgrade: %q is not a duration of at most %v", asked.Within, maxWithin))
			return
		}
	}
	pid, err := d.Upgrade(r.Context(), asked.Binary, within)
	if err != nil {
		fail(w, http.StatusConflict, err)
		return
	}
	answer(w, http.StatusAccepted, adminapi.Upgrading{PID: pid})
}
