package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/toold/toold/host/adminapi"
)

// Identities lists what tools bring for whom.
func (a *Admin) Identities(ctx context.Context) ([]adminapi.Identity, error) {
	var out []adminapi.Identity
	return out, a.get(ctx, "/identities", &out)
}

// Identity is one of them. Its error is adminapi.ErrNotFound when there is none.
func (a *Admin) Identity(ctx context.Context, fingerprint string) (*adminapi.Identity, error) {
	out := new(adminapi.Identity)
	return out, a.get(ctx, "/identities/"+url.PathEscape(fingerprint), out)
}

// Refresh makes the next use discover anew: for one fingerprint, for all of
// one tool, or, with both empty, for all.
func (a *Admin) Refresh(ctx context.Context, fingerprint, tool string) (*adminapi.Refreshed, error) {
	out := new(adminapi.Refreshed)
	q := url.Values{"fingerprint": {fingerprint}, "tool": {tool}}
	return out, a.do(ctx, http.MethodPost, "/identities/refresh?"+q.Encode(), nil, out)
}

// InspectToken asks what the daemon makes of a token.
func (a *Admin) InspectToken(ctx context.Context, token string, into any) error {
	return a.do(ctx, http.MethodPost, "/token", strings.NewReader(token), into)
}
