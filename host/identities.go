package host

import (
	"context"

	"github.com/toold/toold/host/identity"
)

// identityConfig is what c says of who may call.
func (h *Host) identityConfig(c *Config) identity.Config {
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
