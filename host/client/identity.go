package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Identity is what one tool brings for one identity, as GET /identities (an
// array, by tool) and GET /identities/{fingerprint} answer it.
type Identity struct {
	Fingerprint string `json:"fingerprint"`
	Tool        string `json:"tool"`
	// Version is that of the tool.
	Version string `json:"version"`
	// Claims are those that overlay the tool's configuration, without the
	// secret ones.
	Claims map[string]string `json:"claims,omitempty"`
	// State is "fresh", "stale" (a refresh failed, the old tools serve), "old"
	// (the next use refreshes), "refused" or "empty".
	State string `json:"state"`
	// Reason says why it is stale or refused.
	Reason   string `json:"reason,omitempty"`
	ReadOnly bool   `json:"read_only"`
	// Tools is how many the identity sees; Names, which only
	// /identities/{fingerprint} fills in, are theirs.
	Tools int       `json:"tools"`
	Names []string  `json:"names,omitempty"`
	Made  time.Time `json:"made,omitzero"`
	Until time.Time `json:"until,omitzero"` // fresh, or refused
	Used  time.Time `json:"used"`
}

// Refreshed is what POST /identities/refresh answers.
type Refreshed struct {
	// Identities is for how many the next use discovers anew.
	Identities int `json:"identities"`
}

// Identities lists what tools bring for whom.
func (a *Admin) Identities(ctx context.Context) ([]Identity, error) {
	var out []Identity
	return out, a.get(ctx, "/identities", &out)
}

// Identity is one of them. Its error is ErrNotFound when there is none.
func (a *Admin) Identity(ctx context.Context, fingerprint string) (*Identity, error) {
	out := new(Identity)
	return out, a.get(ctx, "/identities/"+url.PathEscape(fingerprint), out)
}

// Refresh makes the next use discover anew: for one fingerprint, for all of
// one tool, or, with both empty, for all.
func (a *Admin) Refresh(ctx context.Context, fingerprint, tool string) (*Refreshed, error) {
	out := new(Refreshed)
	q := url.Values{"fingerprint": {fingerprint}, "tool": {tool}}
	return out, a.do(ctx, http.MethodPost, "/identities/refresh?"+q.Encode(), nil, out)
}

// InspectToken asks what the daemon makes of a token.
func (a *Admin) InspectToken(ctx context.Context, token string, into any) error {
	return a.do(ctx, http.MethodPost, "/token", strings.NewReader(token), into)
}
