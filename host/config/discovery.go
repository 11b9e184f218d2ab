package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// DiscoveryConfig says how the tools are kept that modules bring for identities.
// Times are in seconds, from 1 to 86400.
type DiscoveryConfig struct {
	// TTL is how long the tools of an identity are fresh where neither tool.json
	// nor the module says so. Default 900.
	TTL int `json:"ttl,omitempty"`
	// RetryAfter is how long old tools serve after their refresh failed before
	// the next use tries again. Default 10.
	RetryAfter int `json:"retry_after,omitempty"`
	// RefusedFor is how long it is remembered that a server refused an identity.
	// Default 60.
	RefusedFor int `json:"refused_for,omitempty"`
	// RefreshEvery is how long a caller that asked for a refresh of its tools
	// waits before it may ask again. Default 10.
	RefreshEvery int `json:"refresh_every,omitempty"`
	// MaxIdentities is for how many identities tools are kept, at most 1000000.
	// Default 10000.
	MaxIdentities int `json:"max_identities,omitempty"`
}

// complete fills in the defaults and checks the bounds.
func (d *DiscoveryConfig) complete() error {
	var bad []error
	for _, f := range []struct {
		name      string
		value     *int
		def, most int
	}{
		{"ttl", &d.TTL, 15 * 60, 24 * 3600},
		{"retry_after", &d.RetryAfter, 10, 24 * 3600},
		{"refused_for", &d.RefusedFor, 60, 24 * 3600},
		{"refresh_every", &d.RefreshEvery, 10, 24 * 3600},
		{"max_identities", &d.MaxIdentities, 10_000, 1_000_000},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 1 || *f.value > f.most {
			bad = append(bad, fmt.Errorf("discovery/%s is %d: use a number from 1 to %d", f.name, *f.value, f.most))
		}
	}
	return errors.Join(bad...)
}

// DiscoverySettings is a digest of what of c can change what a module finds when
// it is asked for the tools of an identity; executes says that it runs binaries. The
// values of secrets, which it does not have, belong to the identity.
//
// Every field counts that is not named here, so that one that is new has tools
// discovered again where nobody thought of them.
func (c *Config) DiscoverySettings(executes bool) string {
	k := *c
	k.LogLevel, k.Reliability, k.ShutdownGrace = "", "", 0
	// How long a surface is fresh is decided when it is made; the rest of it is
	// of no surface.
	k.Discovery = DiscoveryConfig{TTL: c.Discovery.TTL}
	// Which tools a socket serves is asked in each call.
	k.Sockets = nil
	for _, s := range c.Sockets {
		k.Sockets = append(k.Sockets, Socket{Path: s.Path, Roots: s.Roots})
	}
	if !executes { // nothing that the module does is in a folder, or confined
		k.Roots, k.Sockets, k.Confine, k.ConfineMost = nil, nil, "", ""
	}
	b, err := json.Marshal(k)
	if err != nil { // it was made of JSON
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
