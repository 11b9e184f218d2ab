package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Reloadable reports, by name, the first setting in which next differs from c
// and that only a restart can change.
func (c *Config) Reloadable(next *Config) error {
	for _, f := range []struct{ name, old, new string }{
		{"instance", c.Instance, next.Instance},
		{"tools", c.Tools, next.Tools},
		{"restricted", c.Restricted, next.Restricted},
		{"socket", c.Socket, next.Socket},
		{"socket_mode", c.SocketMode, next.SocketMode},
		{"socket_group", c.SocketGroup, next.SocketGroup},
		{"admin", c.Admin, next.Admin},
		{"state", c.State, next.State},
		{"metrics", c.Metrics, next.Metrics},
		{"mcp", c.MCP, next.MCP},
		{"dashboard", c.Dashboard, next.Dashboard},
		{"traces", c.Traces, next.Traces},
		{"max_connections", strconv.Itoa(c.MaxConnections), strconv.Itoa(next.MaxConnections)},
		{"allow_writable_tools", strconv.FormatBool(c.AllowWritableTools), strconv.FormatBool(next.AllowWritableTools)},
		{"guest_memory", strconv.FormatInt(c.GuestMemory, 10), strconv.FormatInt(next.GuestMemory, 10)},
		{"sockets", listenedOn(c.Sockets), listenedOn(next.Sockets)},
		{"sessions", c.Sessions.text(), next.Sessions.text()},
	} {
		if f.old != f.new {
			return fmt.Errorf("%s changes from %q to %q: restart toold for that", f.name, f.old, f.new)
		}
	}
	if c.MCP != "" && c.Identity.Audience != next.Identity.Audience {
		return fmt.Errorf("identity.audience changes from %q to %q, and with mcp it is what clients reach: restart toold for that", c.Identity.Audience, next.Identity.Audience)
	}
	if c.Store != next.Store { // which may hold a password
		return errors.New("store changes: restart toold for that")
	}
	return nil
}

// listenedOn is what only a restart can change of s.
func listenedOn(s []Socket) string {
	var p []string
	for _, s := range s {
		p = append(p, strings.TrimSpace(s.Path+" "+s.Mode+" "+s.Group+" "+s.Protocol))
	}
	return fmt.Sprintf("%q", p)
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
