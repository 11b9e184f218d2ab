package client

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/toold/toold/host/adminapi"
)

// Identities returns all cached identities.
func (a *Admin) Identities(ctx context.Context) ([]adminapi.Identity, error) {
	var out []adminapi.Identity
	return out, a.get(ctx, "/identities", &out)
}

// Identity returns one cached identity. The error is adminapi.ErrNotFound if there
// is none.
func (a *Admin) Identity(ctx context.Context, fingerprint string) (*adminapi.Identity, error) {
	out := new(adminapi.Identity)
	return out, a.get(ctx, "/identities/"+url.PathEscape(fingerprint), out)
}

// Refresh invalidates the discovered tools of one fingerprint, of one tool, or,
// with both empty, all.
func (a *Admin) Refresh(ctx context.Context, fingerprint, tool string) (*adminapi.Refreshed, error) {
	out := new(adminapi.Refreshed)
	q := url.Values{"fingerprint": {fingerprint}, "tool": {tool}}
	return out, a.do(ctx, http.MethodPost, "/identities/refresh?"+q.Encode(), nil, out)
}

// InspectToken decodes the daemon's inspection of a token into into.
func (a *Admin) InspectToken(ctx context.Context, token string, into any) error {
	return a.do(ctx, http.MethodPost, "/token", strings.NewReader(token), into)
}
