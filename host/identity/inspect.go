package identity

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// Inspection is what `toolctl token inspect` shows of a token: everything except
// the values of private claims.
type Inspection struct {
	Alg string `json:"alg,omitempty"`
	Enc string `json:"enc,omitempty"`
	Kid string `json:"kid,omitempty"`
	Typ string `json:"typ,omitempty"`
	// Encrypted reports a JWE.
	Encrypted bool `json:"encrypted"`
	// Verified reports that a key of the JWKS file verified or decrypted it.
	// Otherwise the fields below are unauthenticated.
	Verified bool `json:"verified"`
	// Claims has the values of visibleClaims, and "(hidden)" for others.
	Claims map[string]string `json:"claims,omitempty"`
	// Caller is the Caller.ID of an accepted token.
	Caller   string `json:"caller,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Error is why a call with the token would be refused.
	Error string `json:"error,omitempty"`
}

// visibleClaims are the claims whose values are not secret and help debugging.
var visibleClaims = []string{"iss", "sub", "aud", "exp", "nbf", "iat", "jti", readOnly, sessionClaim}

// Inspect checks a token as Resolve does and describes it. It caches nothing.
func (r *Resolver) Inspect(token string) Inspection {
	var in Inspection
	h, encrypted, err := readHeader(token)
	in.Alg, in.Enc, in.Kid, in.Typ, in.Encrypted = clipUnquoted(h.Alg), clipUnquoted(h.Enc), clipUnquoted(h.Kid), clipUnquoted(h.Typ), encrypted
	var text []byte
	if err == nil && r.cfg.JWKS == "" {
		err = fault.Errorf(fault.Unauthenticated, "this toold takes no tokens: identity.jwks is not set in toold.json")
	} else if err == nil {
		text, err = openToken(r.keyring.current(r.cfg.Logger), token)
	}
	in.Verified = err == nil
	if parts := strings.Split(token, "."); text == nil && len(parts) == 3 && len(token) <= maxToken {
		text, _ = base64.RawURLEncoding.DecodeString(parts[1])
	}
	var members map[string]json.RawMessage
	if strictjson.Unmarshal(text, &members) == nil {
		in.Claims = map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			in.Claims[clipUnquoted(name)] = "(hidden)"
			if slices.Contains(visibleClaims, name) {
				in.Claims[name] = clipUnquoted(strings.Trim(string(members[name]), `"`))
			}
		}
		for _, name := range [...]string{"exp", "nbf", "iat"} {
			if t, err := parseDate(members, name); err == nil && !t.IsZero() {
				in.Claims[name] = t.UTC().Format(time.RFC3339)
			}
		}
	}
	if err == nil {
		var c *claims
		if c, err = r.readClaims(text); err == nil {
			err = r.checkUse(c)
		}
		if err == nil {
			in.Caller, in.ReadOnly = c.caller().ID, c.caller().ReadOnly
		}
	}
	if err != nil {
		in.Error = err.Error()
	}
	return in
}
