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

// Reloadable returns an error that names the first setting that differs between next and c and that only a restart can
// change.
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
	if c.Store != next.Store { // it may contain a password
		return errors.New("store changes: restart toold for that")
	}
	return nil
}

// listenedOn returns the part of s that only a restart can change.
func listenedOn(s []Socket) string {
	var p []string
	for _, s := range s {
		p = append(p, strings.TrimSpace(s.Path+" "+s.Mode+" "+s.Group+" "+s.Protocol))
	}
	return fmt.Sprintf("%q", p)
}

// DiscoverySettings returns a digest of the settings in c that can affect which tools a module discovers for an
// identity; executes means that it runs binaries. It does not cover the values of secrets, which belong to the
// identity.
//
// Every field counts unless it is excluded here, so that an overlooked new field causes a rediscovery.
func (c *Config) DiscoverySettings(executes bool) string {
	k := *c
	k.LogLevel, k.Reliability, k.ShutdownGrace = "", "", 0
	// How long a surface is fresh is decided when it is created; the other fields affect no surface.
	k.Discovery = DiscoveryConfig{TTL: c.Discovery.TTL}
	// Which tools a socket serves is checked in each call.
	k.Sockets = nil
	for _, s := range c.Sockets {
		k.Sockets = append(k.Sockets, Socket{Path: s.Path, Roots: s.Roots})
	}
	if !executes { // nothing that the module does happens in a folder, or is confined
		k.Roots, k.Sockets, k.Confine, k.ConfineMost = nil, nil, "", ""
	}
	b, err := json.Marshal(k)
	if err != nil { // it was decoded from JSON
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
