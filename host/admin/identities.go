package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/wire"
)

// identityHandlers are the operations of `toolctl identity` and `toolctl token`.
func (d *Daemon) identityHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /identities", func(w http.ResponseWriter, r *http.Request) {
		list := []adminapi.Identity{}
		for _, e := range d.Discovered.List() {
			e.Names = nil
			list = append(list, adminapi.Identity(e))
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /identities/{fingerprint}", func(w http.ResponseWriter, r *http.Request) {
		for _, e := range d.Discovered.List() {
			if e.Fingerprint == r.PathValue("fingerprint") {
				answer(w, http.StatusOK, adminapi.Identity(e))
				return
			}
		}
		fail(w, http.StatusNotFound, errors.New("there is no such identity; toolctl identity list shows those that there are"))
	})
	mux.HandleFunc("POST /identities/refresh", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		n := 0
		switch fingerprint, tool := q.Get("fingerprint"), q.Get("tool"); {
		case fingerprint != "":
			if !d.Discovered.Invalidate(fingerprint, "the operator said so") {
				fail(w, http.StatusNotFound, errors.New("there is no such identity; toolctl identity list shows those that there are"))
				return
			}
			n = 1
		case tool != "":
			n = d.Discovered.InvalidateTool(tool, "the operator said so")
		default:
			n = d.Discovered.InvalidateAll("the operator said so")
		}
		answer(w, http.StatusOK, adminapi.Refreshed{Identities: n})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		token, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil {
			fail(w, http.StatusBadRequest, errors.New("the token is over 64 KiB"))
			return
		}
		b, err := json.Marshal(d.Identity().Inspect(string(token)))
		if err != nil {
			fail(w, http.StatusInternalServerError, err)
			return
		}
		answer(w, http.StatusOK, json.RawMessage(b))
	})
}

// serveOperator answers one of the six calls on the admin socket: every session
// is the operator's. The body is the call's payload.
func (d *Daemon) serveOperator(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.MaxFrame))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, err)
		return
	}
	q := &wire.Call{Form: wire.Envelope, Tool: "session." + r.PathValue("call"), Payload: body}
	ask := &session.Request{Call: q, Operator: true}
	reply := func(v any) { answer(w, http.StatusOK, v) }
	if q.Tool == session.Watch { // a line for each event, and one for the answer
		conn := http.NewResponseController(w)
		ask.TakeBy = func(t time.Time) { conn.SetWriteDeadline(t) }
		ask.Tell = func(list []json.RawMessage) error {
			reply = func(v any) { json.NewEncoder(w).Encode(v) }
			for _, event := range list {
				if _, err := w.Write(slices.Concat(event, []byte{'\n'})); err != nil {
					return err
				}
			}
			return conn.Flush()
		}
	}
	res, err := d.Sessions.Serve(r.Context(), ask)
	if err != nil {
		e := call.AsError(r.Context(), err)
		reply(map[string]any{"code": e.Code, "message": e.Message})
		return
	}
	reply(map[string]any{"data": res.Data})
}
