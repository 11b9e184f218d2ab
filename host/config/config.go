// Package config holds an operator's settings for a daemon: toold.json, variables and flags, the .env file next to it,
// and the paths where a daemon and its clients meet. Programs that only dial, or print the schema, need no other
// package of the host.
package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config holds all settings of a daemon. It is flat, each field documents its default, and it does not change after
// New: a reload creates a new one. Its JSON form is toold.json; Schema publishes it.
type Config struct {
	// Instance distinguishes daemons on one host. Default "0".
	Instance string `json:"instance,omitempty"`
	// Tools is the folder of tool definitions. Default "tools.d".
	Tools string `json:"tools,omitempty"`
	// Restricted is a folder of policies for tools that have none of their own, and of _all.wasm, which is applied to
	// every tool first. Default none.
	Restricted string `json:"restricted,omitempty"`
	// Socket is the socket for wrappers. Default $XDG_RUNTIME_DIR/toold/tool-INSTANCE.sock; see package places for the
	// default without that variable.
	Socket string `json:"socket,omitempty"`
	// SocketMode is the mode of the sockets for wrappers: "0600", "0660" or
	// "0666", which lets every user of the machine call. Default "0660".
	SocketMode string `json:"socket_mode,omitempty"`
	// SocketGroup is the group of these sockets, by name or number; the
	// daemon's user must be in it. Default the daemon's own.
	SocketGroup string `json:"socket_group,omitempty"`
	// Admin is the operator's socket. Default STATE/admin.sock.
	Admin string `json:"admin,omitempty"`
	// State is the folder that this daemon owns. Default
	// $XDG_STATE_HOME/toold/INSTANCE.
	State string `json:"state,omitempty"`
	// Roots are the folders under which calls may work. Default ["/workspace"].
	Roots []string `json:"roots,omitempty"`
	// Sockets are additional sockets, each with its own roots and tool categories. Default none.
	Sockets []Socket `json:"sockets,omitempty"`
	// Metrics is a TCP address for /metrics in addition to the admin socket, such as "127.0.0.1:9464". Default none.
	Metrics string `json:"metrics,omitempty"`
	// MCP is a TCP address on which MCP clients are served over HTTP, such as "127.0.0.1:8417". A port alone is on the
	// loopback address; another address needs identity.audience, the URL by which clients reach it. Every request
	// needs a token, so identity.jwks is required. Default none.
	MCP string `json:"mcp,omitempty"`
	// Dashboard is where a page shows the daemon's activity: a loopback TCP address, such as "127.0.0.1:8418", where
	// it needs the token that toolctl dashboard prints, or "admin", the operator's socket. A port alone is on the
	// loopback address. Default none.
	Dashboard string `json:"dashboard,omitempty"`
	// Traces is where spans are sent: the URL of an OTLP collector over HTTP, such as
	// "http://127.0.0.1:4318/v1/traces". Default OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or OTEL_EXPORTER_OTLP_ENDPOINT
	// with /v1/traces, else none.
	Traces string `json:"traces,omitempty"`
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `json:"log_level,omitempty"`
	// Store keeps the records by which calls with a key run only once: "memory", "file" (in the state folder) or
	// "redis://HOST:PORT/DB" with the options of go-redis. Default "file".
	Store string `json:"store,omitempty"`
	// Reliability is how much of the reliability layer is in force: "off", "shadow", "read-only" or "all"; a tool's
	// own mode takes precedence, except over "off". Default: off for tools without a mode of their own.
	Reliability string `json:"reliability,omitempty"`
	// Confine is the confinement required for binaries: "best" uses what the system supports, and the name of a level
	// ("landlock", "seccomp", "namespaces", "uid") refuses to run a binary with less. "required" is "seccomp" with
	// nothing missing, and refuses to start otherwise. Default "best".
	Confine string `json:"confine,omitempty"`
	// ConfineMost is the highest level that is used, for a system on which a higher one interferes with a tool.
	// Default: no limit.
	ConfineMost string `json:"confine_most,omitempty"`
	// MaxConnections is how many connections one socket serves at a time. A further connection replaces an idle one,
	// or gets OVERLOADED; one slot in 64 is denied to the uid that holds the most. Default 1024.
	MaxConnections int `json:"max_connections,omitempty"`
	// ShutdownGrace is how many seconds calls get to finish after SIGTERM before they are aborted. Default 30.
	ShutdownGrace int `json:"shutdown_grace,omitempty"`
	// GuestMemory bounds the memory of all Wasm instances together, in
	// bytes. Default 1 GiB.
	GuestMemory int64 `json:"guest_memory,omitempty"`
	// AllowWritableTools accepts a tools folder that others than its owner may write to. Default false: such a folder
	// is refused at start.
	AllowWritableTools bool `json:"allow_writable_tools,omitempty"`
	// ExplicitSessions refuses calls, on every socket, that name no session, so that none runs in the default session
	// of an identity. A reload changes it. Default false.
	ExplicitSessions bool `json:"explicit_sessions,omitempty"`
	// Sessions limits sessions. Default: see SessionsConfig.
	Sessions SessionsConfig `json:"sessions,omitzero"`
	// Audit configures the audit log. Default: see AuditConfig. A reload changes it.
	Audit AuditConfig `json:"audit,omitzero"`
	// Identity configures who may call. Default: the peer's uid.
	Identity IdentityConfig `json:"identity,omitzero"`
	// Discovery configures how the tools that modules provide are cached. Default: see DiscoveryConfig.
	Discovery DiscoveryConfig `json:"discovery,omitzero"`

	// File is the toold.json that this was loaded from, or empty.
	File string `json:"-"`

	// values holds the .env file next to File, env the daemon's own environment: see Value.
	values map[string]string
	env    Env
}

// Value returns one of the operator's values, which secrets may refer to: a variable of the daemon's own environment,
// else of the .env file next to File.
func (c *Config) Value(name string) (string, bool) {
	if c.env != nil {
		if v, ok := c.env(name); ok {
			return v, true
		}
	}
	v, ok := c.values[name]
	return v, ok
}

// ProtocolMCP is the Protocol of a Socket for MCP clients.
const ProtocolMCP = "mcp"

// Socket is one additional socket of a daemon.
type Socket struct {
	Path string `json:"path"`
	// Protocol is the protocol of the socket: "toold", which wrappers use, or "mcp", the Model Context Protocol.
	// Default "toold".
	Protocol string `json:"protocol,omitempty"`
	// Roots replace the daemon's for this socket. Default: the daemon's.
	Roots []string `json:"roots,omitempty"`
	// Categories limit the socket to tools of these categories. Default all.
	Categories []string `json:"categories,omitempty"`
	// Session binds the socket to one session: its callers, who must have the identity that created the session, can
	// use only that one. A reload changes it. Default none.
	Session string `json:"session,omitempty"`
	// ExplicitSessions refuses calls on this socket that name no session. Default: the daemon's setting.
	ExplicitSessions bool `json:"explicit_sessions,omitempty"`
	// Mode and Group are those of the socket. Default the daemon's socket_mode
	// and socket_group.
	Mode  string `json:"mode,omitempty"`
	Group string `json:"group,omitempty"`
}

// SessionsConfig limits sessions. Only a restart changes it.
type SessionsConfig struct {
	// Limit is the maximum number of explicit sessions of one identity. Default 256.
	Limit int `json:"limit,omitempty"`
	// Idle is the time in seconds without a call after which a session is suspended. Default 1800.
	Idle int `json:"idle,omitempty"`
	// Keep is the time in seconds after which a suspended session is closed. Default 86400.
	Keep int `json:"keep,omitempty"`
	// Persist keeps journals; without them a restart loses all sessions. Default true.
	Persist *bool `json:"persist,omitempty"`
	// Watchers limits the watchers (session.watch) of one identity, and of the operators, at a time; WatchersAll
	// limits those of all identities. Default 256 and 1024.
	Watchers    int `json:"watchers,omitempty"`
	WatchersAll int `json:"watchers_all,omitempty"`
	// WatchEvents and WatchOutput are how many events and bytes of output are buffered for each thing that is watched.
	// A watcher that falls further behind loses output, or is disconnected. Default 512 and 262144.
	WatchEvents int `json:"watch_events,omitempty"`
	WatchOutput int `json:"watch_output,omitempty"`
	// WatchKeep is how many seconds the buffer is kept after the last watcher left. Default 300.
	WatchKeep int `json:"watch_keep,omitempty"`
	// JobOutput is how many bytes of the outputs of finished jobs are kept across a restart, for each identity; 0
	// keeps none. Default 4 MiB.
	JobOutput *int64 `json:"job_output,omitempty"`
}

// JobOutputBytes returns JobOutput in the form of package session: negative for none.
func (c *SessionsConfig) JobOutputBytes() int64 {
	switch {
	case c.JobOutput == nil:
		return 0
	case *c.JobOutput == 0:
		return -1
	}
	return *c.JobOutput
}

// Persists reports whether journals of sessions are kept.
func (c *SessionsConfig) Persists() bool { return c.Persist == nil || *c.Persist }

func (c *SessionsConfig) text() string {
	return fmt.Sprint(c.Limit, c.Idle, c.Keep, c.Persists(), c.Watchers, c.WatchersAll, c.WatchEvents, c.WatchOutput, c.WatchKeep, c.JobOutputBytes())
}

// IdentityConfig configures who may call.
type IdentityConfig struct {
	// JWKS is the file with the keys of tokens. Default none: tokens are not accepted.
	JWKS string `json:"jwks,omitempty"`
	// Issuer and Audience are the required iss and aud of a token. Default: anything.
	Issuer   string `json:"issuer,omitempty"`
	Audience string `json:"audience,omitempty"`
	// AllowUID admits a caller without a token by the uid that the kernel reports. Default true if JWKS is empty, else
	// false. The overflow uid 65534 is never admitted.
	AllowUID *bool `json:"allow_uid,omitempty"`
	// IgnoreClaims are private claims that no tool declares and that are ignored. Default none: a token with such a
	// claim is refused.
	IgnoreClaims []string `json:"ignore_claims,omitempty"`
}

// Env looks up one variable, as os.LookupEnv does.
type Env func(name string) (string, bool)

// DashboardAdmin is the value of Dashboard for the operator's socket.
const DashboardAdmin = "admin"

// DotEnv returns the path of the file with the operator's values, or "".
func (c *Config) DotEnv() string {
	if c.File == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(c.File), ".env")
}

// KnownHosts returns the path of the file with the ssh host keys for the daemon: next to toold.json, or in the state
// folder if there is no toold.json.
func (c *Config) KnownHosts() string {
	if c.File == "" {
		return filepath.Join(c.State, "known_hosts")
	}
	return filepath.Join(filepath.Dir(c.File), "known_hosts")
}

// Level returns LogLevel as a slog.Level.
func (c *Config) Level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return l, fmt.Errorf("log_level %q: use debug, info, warn or error", c.LogLevel)
	}
	return l, nil
}

// confineLevels are the names of the levels of confinement; each includes those before it.
var confineLevels = []string{"landlock", "seccomp", "namespaces", "uid"}

// LeastConfinement returns the level that every run of a binary must have, or empty if none is required.
func (c *Config) LeastConfinement() string {
	switch c.Confine {
	case "required":
		return "seccomp"
	case "best":
		return ""
	}
	return c.Confine
}

// Grace returns how long calls get to finish when the daemon is stopped.
func (c *Config) Grace() time.Duration { return time.Duration(c.ShutdownGrace) * time.Second }

// AllRoots returns the roots of all sockets.
func (c *Config) AllRoots() []string {
	all := slices.Clone(c.Roots)
	for _, s := range c.Sockets {
		all = append(all, s.Roots...)
	}
	return all
}

// StoreKind returns the name of the record store without the password that its URL may contain.
func (c *Config) StoreKind() string {
	kind, _, _ := strings.Cut(c.Store, "://")
	return kind
}

// ModeOf returns the mode of a tool under c: its own if tool.json sets one, unless the operator has set "off", which
// applies to everything.
func (c *Config) ModeOf(own string) string {
	switch {
	case c.Reliability == ReliabilityOff:
		return ReliabilityOff
	case own != "":
		return own
	case c.Reliability == "":
		return ReliabilityOff
	}
	return c.Reliability
}

// Public returns c as JSON, without the passwords that addresses may contain. It includes none of the operator's
// values.
func (c *Config) Public() ([]byte, error) {
	shown := *c
	hide := func(address *string) {
		u, err := url.Parse(*address)
		if err != nil {
			*address = "[secret]"
			return
		}
		u.User, u.RawQuery = nil, ""
		*address = u.String()
	}
	hide(&shown.Traces)
	hide(&shown.Store)
	return json.Marshal(&shown)
}

// Entrance describes what one socket serves. The zero value serves nothing.
type Entrance struct {
	Roots []string
	// Session is the only session that can be used there; empty: any.
	Session string
	// ExplicitSessions means that a call there must name its session.
	ExplicitSessions bool

	categories []string
	all        bool
}

// Entrance returns that of the socket at path; empty is the first socket.
func (c *Config) Entrance(path string) Entrance {
	if path == "" || path == c.Socket {
		return Entrance{Roots: c.Roots, ExplicitSessions: c.ExplicitSessions, all: true}
	}
	for _, s := range c.Sockets {
		if s.Path == path {
			e := Entrance{
				Roots: s.Roots, Session: s.Session, ExplicitSessions: s.ExplicitSessions || c.ExplicitSessions,
				categories: s.Categories, all: len(s.Categories) == 0,
			}
			if len(e.Roots) == 0 {
				e.Roots = c.Roots
			}
			return e
		}
	}
	return Entrance{}
}

// Serves reports whether tools of that category can be called there.
func (e *Entrance) Serves(category string) bool {
	return e.all || slices.Contains(e.categories, category)
}
