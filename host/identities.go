package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/identity"
)

// identityConfig is what c says of who may call.
func (h *Host) identityConfig(c *config.Config) identity.Config {
	id := &c.Identity
	return identity.Config{
		JWKS: id.JWKS, Issuer: id.Issuer, Audience: id.Audience, Ignore: id.IgnoreClaims,
		// With tokens there is something better than a uid.
		AllowUID: id.AllowUID == nil && id.JWKS == "" || id.AllowUID != nil && *id.AllowUID,
		Declared: func(claim string) bool { return h.tools.DeclaresClaim(claim) },
		Logger:   h.log,
	}
}

// who says who calls.
func (h *Host) who(ctx context.Context, token string, uid uint32) (identity.Caller, error) {
	c, err := h.identity.Load().Resolve(token, uid)
	if err != nil && token != "" && h.tools.Ready(ctx) == nil {
		// A tool that is still being loaded may declare the claim that nobody
		// seemed to.
		c, err = h.identity.Load().Resolve(token, uid)
	}
	return c, err
}

// identityHandlers are the operations of `toolctl identity` and `toolctl token`.
func (h *Host) identityHandlers(mux *http.ServeMux) {
	mux.HandleFunc("GET /identities", func(w http.ResponseWriter, r *http.Request) {
		list := []adminapi.Identity{}
		for _, e := range h.surfaces.List() {
			e.Names = nil
			list = append(list, adminapi.Identity(e))
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /identities/{fingerprint}", func(w http.ResponseWriter, r *http.Request) {
		for _, e := range h.surfaces.List() {
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
			if !h.surfaces.Invalidate(fingerprint, "the operator said so") {
				fail(w, http.StatusNotFound, errors.New("there is no such identity; toolctl identity list shows those that there are"))
				return
			}
			n = 1
		case tool != "":
			n = h.surfaces.InvalidateTool(tool, "the operator said so")
		default:
			n = h.surfaces.InvalidateAll("the operator said so")
		}
		answer(w, http.StatusOK, adminapi.Refreshed{Identities: n})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		token, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err != nil {
			fail(w, http.StatusBadRequest, errors.New("the token is over 64 KiB"))
			return
		}
		b, err := json.Marshal(h.identity.Load().Inspect(string(token)))
		if err != nil {
			fail(w, http.StatusInternalServerError, err)
			return
		}
		answer(w, http.StatusOK, json.RawMessage(b))
	})
}
