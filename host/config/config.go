// Package config is what an operator says of a daemon: toold.json, variables and
// flags, the .env file beside it, and the places where a daemon and those who
// call it meet. Programs that only dial, or print the schema, need no more of
// the host than this.
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

// Config is everything an operator can say about a daemon. It is flat, each
// field says its default, and it does not change after New: a reload makes a
// new one. Its JSON form is toold.json; Schema publishes it.
type Config struct {
	// Instance tells daemons on one host apart. Default "0".
	Instance string `json:"instance,omitempty"`
	// Tools is the folder of tool definitions. Default "tools.d".
	Tools string `json:"tools,omitempty"`
	// Restricted is a folder of policies for tools that have none of their
	// own, and of _all.wasm, which applies to every tool first. Default none.
	Restricted string `json:"restricted,omitempty"`
	// Socket is where wrappers call. Default
	// $XDG_RUNTIME_DIR/toold/tool-INSTANCE.sock; package places has what
	// counts without that variable.
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
	// Roots are the folders beneath which calls may work. Default
	// ["/workspace"].
	Roots []string `json:"roots,omitempty"`
	// Sockets are further sockets, each with roots and tool categories of its
	// own. Default none.
	Sockets []Socket `json:"sockets,omitempty"`
	// Metrics is a TCP address for /metrics beside the admin socket, such as
	// "127.0.0.1:9464". Default none.
	Metrics string `json:"metrics,omitempty"`
	// MCP is a TCP address on which clients of the Model Context Protocol are
	// served over HTTP, such as "127.0.0.1:8417". A port alone is one of the
	// loopback address; another address needs identity.audience, the URL by which
	// clients reach it. Every request needs a token, so identity.jwks. Default
	// none.
	MCP string `json:"mcp,omitempty"`
	// Dashboard is where a page shows what the daemon does: a TCP address of this
	// machine alone, such as "127.0.0.1:8418", where it needs the token that
	// toolctl dashboard prints, or "admin", the operator's socket. A port alone is
	// one of the loopback address. Default none.
	Dashboard string `json:"dashboard,omitempty"`
	// Traces is where spans are sent: the URL of an OTLP collector over HTTP,
	// such as "http://127.0.0.1:4318/v1/traces". Default what
	// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says, or OTEL_EXPORTER_OTLP_ENDPOINT
	// with /v1/traces, else none.
	Traces string `json:"traces,omitempty"`
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `json:"log_level,omitempty"`
	// Store keeps the records by which calls with a key are run once:
	// "memory", "file" (in the state folder) or "redis://HOST:PORT/DB" and
	// what else go-redis understands. Default "file".
	Store string `json:"store,omitempty"`
	// Reliability is how much of the reliability layer is in force: "off",
	// "shadow", "read-only" or "all"; a tool's own mode goes before it, but
	// not before "off". Default: off for tools that say nothing.
	Reliability string `json:"reliability,omitempty"`
	// Confine is what binaries must be confined by: "best" is what the system
	// gives, and the name of a level ("landlock", "seccomp", "namespaces",
	// "uid") refuses to run a binary with less. "required" is "seccomp" with
	// nothing lost, and refuses to start otherwise. Default "best".
	Confine string `json:"confine,omitempty"`
	// ConfineMost is the highest level that is used, for a system on which a
	// higher one gets in a tool's way. Default: all that there is.
	ConfineMost string `json:"confine_most,omitempty"`
	// MaxConnections is how many connections one socket serves at a time. A
	// further one takes the place of one that is idle, or is answered
	// OVERLOADED; one place in 64 is kept from the uid that holds most. Default
	// 1024.
	MaxConnections int `json:"max_connections,omitempty"`
	// ShutdownGrace is how many seconds calls may finish in after SIGTERM
	// before they are ended. Default 30.
	ShutdownGrace int `json:"shutdown_grace,omitempty"`
	// GuestMemory bounds the memory of all Wasm instances together, in
	// bytes. Default 1 GiB.
	GuestMemory int64 `json:"guest_memory,omitempty"`
	// AllowWritableTools serves a tools folder that others than its owner
	// may write to. Default false: such a folder is refused at start.
	AllowWritableTools bool `json:"allow_writable_tools,omitempty"`
	// ExplicitSessions refuses calls, on every socket, that name no session, so
	// that nobody works in the default session of an identity. A reload changes
	// it. Default false.
	ExplicitSessions bool `json:"explicit_sessions,omitempty"`
	// Sessions bounds sessions. Default: see SessionsConfig.
	Sessions SessionsConfig `json:"sessions,omitzero"`
	// Audit says what is kept of who called what. Default: see AuditConfig. A
	// reload changes it.
	Audit AuditConfig `json:"audit,omitzero"`
	// Identity says who may call. Default: the peer's uid.
	Identity IdentityConfig `json:"identity,omitzero"`
	// Discovery says how the tools that modules bring are kept. Default: see
	// DiscoveryConfig.
	Discovery DiscoveryConfig `json:"discovery,omitzero"`

	// File is the toold.json that this came from, or empty.
	File string `json:"-"`

	// values has the .env file beside File, env the daemon's own environment:
	// see Value.
	values map[string]string
	env    Env
}

// Value is one of the operator's values, which secrets may name: a variable of
// the daemon's own environment, else of the .env file beside File.
func (c *Config) Value(name string) (string, bool) {
	if c.env != nil {
		if v, ok := c.env(name); ok {
			return v, true
		}
	}
	v, ok := c.values[name]
	return v, ok
}

// ProtocolMCP is the Protocol of a Socket for clients of MCP.
const ProtocolMCP = "mcp"

// Socket is one further socket of a daemon.
type Socket struct {
	Path string `json:"path"`
	// Protocol is what is spoken there: "toold", which wrappers speak, or "mcp",
	// the Model Context Protocol. Default "toold".
	Protocol string `json:"protocol,omitempty"`
	// Roots replace the daemon's for this socket. Default the daemon's.
	Roots []string `json:"roots,omitempty"`
	// Categories limit the socket to tools of these categories. Default all.
	Categories []string `json:"categories,omitempty"`
	// Session binds the socket to one session: its callers, who must be the
	// identity that made the session, can use that one only. A reload changes
	// it. Default none.
	Session string `json:"session,omitempty"`
	// ExplicitSessions refuses calls on this socket that name no session.
	// Default what the daemon's says.
	ExplicitSessions bool `json:"explicit_sessions,omitempty"`
	// Mode and Group are those of the socket. Default the daemon's socket_mode
	// and socket_group.
	Mode  string `json:"mode,omitempty"`
	Group string `json:"group,omitempty"`
}

// SessionsConfig bounds sessions. Only a restart changes it.
type SessionsConfig struct {
	// Limit is how many explicit sessions one identity has at most. Default
	// 256.
	Limit int `json:"limit,omitempty"`
	// Idle is after how many seconds without a call a session is suspended.
	// Default 1800.
	Idle int `json:"idle,omitempty"`
	// Keep is how many seconds a session stays suspended before it is closed.
	// Default 86400.
	Keep int `json:"keep,omitempty"`
	// Persist says whether journals are kept; without them a restart forgets
	// every session. Default true.
	Persist *bool `json:"persist,omitempty"`
	// Watchers is how many watchers (session.watch) one identity has at a time,
	// and operators have; WatchersAll how many all identities have. Default 256
	// and 1024.
	Watchers    int `json:"watchers,omitempty"`
	WatchersAll int `json:"watchers_all,omitempty"`
	// WatchEvents and WatchOutput are what is kept of each thing that is watched:
	// events, and bytes of output. A watcher that is further behind loses output,
	// or is cut. Default 512 and 262144.
	WatchEvents int `json:"watch_events,omitempty"`
	WatchOutput int `json:"watch_output,omitempty"`
	// WatchKeep is how many seconds that is kept after the last watcher left.
	// Default 300.
	WatchKeep int `json:"watch_keep,omitempty"`
	// JobOutput is how many bytes of the outputs of finished jobs are kept over a
	// restart, for each identity; 0 keeps none. Default 4 MiB.
	JobOutput *int64 `json:"job_output,omitempty"`
}

// JobOutputBytes is JobOutput as package session takes it: negative for none.
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

// IdentityConfig says who may call.
type IdentityConfig struct {
	// JWKS is the file with the keys of tokens. Default none: no token is
	// taken.
	JWKS string `json:"jwks,omitempty"`
	// Issuer and Audience are what a token must say in iss and aud. Default:
	// anything.
	Issuer   string `json:"issuer,omitempty"`
	Audience string `json:"audience,omitempty"`
	// AllowUID admits a caller without a token by the uid that the kernel
	// reports. Default true where JWKS is empty, else false. The overflow uid
	// 65534 is never admitted.
	AllowUID *bool `json:"allow_uid,omitempty"`
	// IgnoreClaims are private claims that no tool declares and that are
	// passed over. Default none: a token with such a claim is refused.
	IgnoreClaims []string `json:"ignore_claims,omitempty"`
}

// Env looks up one variable, as os.LookupEnv does.
type Env func(name string) (string, bool)

// DashboardAdmin is the Dashboard that is on the operator's socket.
const DashboardAdmin = "admin"

// DotEnv is the file with the operator's values, or "".
func (c *Config) DotEnv() string {
	if c.File == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(c.File), ".env")
}

// KnownHosts is the file with the keys of the hosts that the daemon speaks ssh with: beside
// toold.json, or in the state folder where there is none.
func (c *Config) KnownHosts() string {
	if c.File == "" {
		return filepath.Join(c.State, "known_hosts")
	}
	return filepath.Join(filepath.Dir(c.File), "known_hosts")
}

// Level is LogLevel as slog knows it.
func (c *Config) Level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return l, fmt.Errorf("log_level %q: use debug, info, warn or error", c.LogLevel)
	}
	return l, nil
}

// confineLevels are the names of what binaries can be confined by, each with
// what stands before it.
var confineLevels = []string{"landlock", "seccomp", "namespaces", "uid"}

// LeastConfinement is the level that every run of a binary must have, empty where
// any will do.
func (c *Config) LeastConfinement() string {
	switch c.Confine {
	case "required":
		return "seccomp"
	case "best":
		return ""
	}
	return c.Confine
}

// Grace is how long calls may finish in when the daemon is stopped.
func (c *Config) Grace() time.Duration { return time.Duration(c.ShutdownGrace) * time.Second }

// AllRoots are the roots of all sockets.
func (c *Config) AllRoots() []string {
	all := slices.Clone(c.Roots)
	for _, s := range c.Sockets {
		all = append(all, s.Roots...)
	}
	return all
}

// StoreKind names the store of records without the password that its URL may
// hold.
func (c *Config) StoreKind() string {
	kind, _, _ := strings.Cut(c.Store, "://")
	return kind
}

// ModeOf is the mode of a tool under c: its own where tool.json gives
// one, unless the operator has said "off", which is for everything.
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

// Public is c as JSON, without the passwords that the addresses of others may
// hold. None of the operator's values is in it.
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

// Entrance is what one socket serves. The zero value serves nothing.
type Entrance struct {
	Roots []string
	// Session is the only one that can be used there; empty: any.
	Session string
	// ExplicitSessions says that a call there names its session.
	ExplicitSessions bool

	categories []string
	all        bool
}

// Entrance is that of the socket at path; empty is the first one.
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

// Serves reports whether tools of that category are called there.
func (e *Entrance) Serves(category string) bool {
	return e.all || slices.Contains(e.categories, category)
}
