package config

import (
	"errors"
	"fmt"
)

// DiscoveryConfig configures how the tools that modules provide for identities are cached. Times are in seconds, from
// 1 to 86400.
type DiscoveryConfig struct {
	// TTL is how long the tools of an identity are fresh if neither tool.json nor the module sets it. Default 900.
	TTL int `json:"ttl,omitempty"`
	// RetryAfter is how long stale tools are served after a failed refresh before the next use retries it. Default 10.
	RetryAfter int `json:"retry_after,omitempty"`
	// RefusedFor is how long a server's refusal of an identity is remembered. Default 60.
	RefusedFor int `json:"refused_for,omitempty"`
	// RefreshEvery is the minimum time between two refreshes that a caller requests for its tools. Default 10.
	RefreshEvery int `json:"refresh_every,omitempty"`
	// MaxIdentities is the number of identities for which tools are cached, at most 1000000. Default 10000.
	MaxIdentities int `json:"max_identities,omitempty"`
}

// complete sets defaults and checks the limits.
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
