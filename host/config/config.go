// Package config is what an operator says of a daemon: toold.json, variables and
// flags, the .env file beside it, and the places where a daemon and those who
// call it meet. Programs that only dial, or print the schema, need no more of
// the host than this.
package config

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/places"
	"github.com/toold/toold/host/strictjson"
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

// Schema is the JSON Schema of toold.json.
//
//go:embed schema.json
var Schema []byte

// Env looks up one variable, as os.LookupEnv does.
type Env func(name string) (string, bool)

// Load reads toold.json, when there is one, and lets variables override it.
// file may be empty: then TOOLD_CONFIG names it, and without that the
// defaults stand. Flags are set on the result by the caller, before Complete.
func Load(file string, env Env) (Config, error) {
	var c Config
	if file == "" {
		file, _ = env("TOOLD_CONFIG")
	}
	if file != "" {
		abs, err := filepath.Abs(file)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		data, err := os.ReadFile(abs)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w; check --config", err)
		}
		if err := strictjson.Unmarshal(data, &c); err != nil {
			return c, fmt.Errorf("read configuration %s: %w; `toolctl schema config` prints what may be there", file, err)
		}
		if err := checkValues(data); err != nil {
			return c, fmt.Errorf("read configuration %s: %w; `toolctl schema config` prints what may be there", file, err)
		}
		c.File = abs
	}
	for _, v := range []struct {
		name string
		to   *string
	}{
		{"INSTANCE_ID", &c.Instance},
		{"TOOLD_TOOLS", &c.Tools},
		{"TOOLD_RESTRICTED", &c.Restricted},
		{"TOOL_SOCKET", &c.Socket},
		{"TOOLD_ADMIN", &c.Admin},
		{"TOOLD_STATE_DIR", &c.State},
		{"TOOLD_METRICS", &c.Metrics},
		{"TOOLD_MCP", &c.MCP},
		{"TOOLD_DASHBOARD", &c.Dashboard},
		{"TOOLD_LOG_LEVEL", &c.LogLevel},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &c.Traces},
		{"TOOLD_STORE", &c.Store},
		{"TOOL_RELIABILITY_ENABLED", &c.Reliability},
	} {
		if s, ok := env(v.name); ok && s != "" {
			*v.to = s
		}
	}
	if s, ok := env("OTEL_EXPORTER_OTLP_ENDPOINT"); ok && s != "" && c.Traces == "" {
		c.Traces = strings.TrimSuffix(s, "/") + "/v1/traces"
	}
	if s, ok := env("TOOLD_ROOTS"); ok && s != "" {
		c.Roots = filepath.SplitList(s)
	}
	return c, nil
}

// Override puts every text that o sets over c's; flags are such.
func (c *Config) Override(o Config) {
	for _, f := range []struct{ to, from *string }{
		{&c.Tools, &o.Tools}, {&c.Restricted, &o.Restricted}, {&c.Socket, &o.Socket},
		{&c.Admin, &o.Admin}, {&c.Instance, &o.Instance}, {&c.State, &o.State},
		{&c.Metrics, &o.Metrics}, {&c.MCP, &o.MCP}, {&c.Dashboard, &o.Dashboard}, {&c.LogLevel, &o.LogLevel},
		{&c.Store, &o.Store}, {&c.Reliability, &o.Reliability},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
}

// Complete fills in the defaults, makes paths absolute, reads the .env file
// beside File and checks the whole. It makes nothing on disk.
func (c *Config) Complete(env Env) error {
	var bad faults
	c.setDefaults(env, &bad)
	c.checkConfinement(&bad)
	c.completePaths(&bad)
	c.completeMCP(&bad)
	c.completeDashboard(&bad)
	c.env, c.values = env, map[string]string{}
	if file := c.DotEnv(); file != "" {
		if err := readDotEnv(file, c.values); err != nil {
			bad.add("%w", err)
		}
	}
	return errors.Join(bad...)
}

// faults are what is wrong with a configuration, all of it.
type faults []error

func (f *faults) add(format string, a ...any) { *f = append(*f, fmt.Errorf(format, a...)) }

// setDefaults fills in what is missing, and checks what is no path.
func (c *Config) setDefaults(env Env, bad *faults) {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	// The daemon is where its clients look for it.
	at := places.Find(c.places(), func(name string) string { v, _ := env(name); return v })
	c.Instance, c.Socket, c.State, c.Admin = at.Instance, at.Socket, at.State, at.Admin
	if !validInstance(c.Instance) {
		bad.add("instance %q: use letters, digits, dots, dashes and underscores", c.Instance)
	}
	def(&c.Tools, "tools.d")
	def(&c.LogLevel, "info")
	def(&c.Confine, "best")
	def(&c.Store, "file")
	if mode, err := readReliability(c.Reliability); err != nil {
		bad.add("%w", err)
	} else {
		c.Reliability = mode
	}
	if c.Roots == nil {
		c.Roots = []string{"/workspace"}
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = 1024
	}
	if c.ShutdownGrace == 0 {
		c.ShutdownGrace = 30
	}
	if c.GuestMemory == 0 {
		c.GuestMemory = 1 << 30
	}
	if c.MaxConnections < 0 || c.ShutdownGrace < 0 || c.GuestMemory < 0 {
		bad.add("max_connections, shutdown_grace and guest_memory are not negative")
	}
	if s := &c.Sessions; min(s.Limit, s.Idle, s.Keep, s.Watchers, s.WatchersAll, s.WatchEvents, s.WatchOutput, s.WatchKeep) < 0 || s.JobOutput != nil && *s.JobOutput < 0 {
		bad.add("sessions: limit, idle, keep, watchers, watchers_all, watch_events, watch_output, watch_keep and job_output are not negative")
	}
	if err := c.Audit.complete(); err != nil {
		bad.add("%w", err)
	}
	if err := c.Discovery.complete(); err != nil {
		bad.add("%w", err)
	}
	if _, err := c.Level(); err != nil {
		bad.add("%w", err)
	}
	if u, err := url.Parse(c.Traces); c.Traces != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad.add("traces %q: use the URL of an OTLP collector, such as http://127.0.0.1:4318/v1/traces", c.Traces)
	}
}

// places are those that c names so far.
func (c *Config) places() places.Places {
	return places.Places{Instance: c.Instance, Socket: c.Socket, State: c.State, Admin: c.Admin}
}

// LookPlaces is where a client finds its daemon: flags go before variables, these
// before the toold.json that TOOLD_CONFIG names, and that before the defaults.
func LookPlaces(flags places.Places, env Env) (places.Places, error) {
	c, err := Load("", env)
	if err != nil {
		return places.Places{}, err
	}
	c.Override(Config{Instance: flags.Instance, Socket: flags.Socket, State: flags.State, Admin: flags.Admin})
	return places.Look(c.places(), func(name string) string { v, _ := env(name); return v }), nil
}

func (c *Config) checkConfinement(bad *faults) {
	least, most := slices.Index(confineLevels, c.LeastConfinement()), slices.Index(confineLevels, c.ConfineMost)
	if least < 0 && c.Confine != "best" {
		bad.add(`confine %q: use "best", "required", or the least level: "landlock", "seccomp", "namespaces", "uid"`, c.Confine)
	}
	switch {
	case c.ConfineMost == "":
	case most < 0 || c.ConfineMost == "uid":
		bad.add(`confine_most %q: use "landlock", "seccomp" or "namespaces"`, c.ConfineMost)
	case least > most && c.Confine != "uid": // which is beside the others
		bad.add(`confine_most %q is less than confine %q demands`, c.ConfineMost, c.Confine)
	}
}

// completePaths makes paths absolute, and checks that they are what they are for.
func (c *Config) completePaths(bad *faults) {
	abs := func(what string, p *string) {
		if *p == "" {
			return
		}
		a, err := filepath.Abs(*p)
		if err != nil {
			bad.add("%s %q: %w", what, *p, err)
			return
		}
		*p = a
	}
	roots := func(what string, list []string) {
		for i := range list {
			if !filepath.IsAbs(list[i]) {
				bad.add("%s %q: a root is an absolute path", what, list[i])
			}
			if filepath.Clean(list[i]) == "/" {
				bad.add(`%s "/": a root of everything confines nothing; name the folders that calls work in`, what)
			}
			list[i] = filepath.Clean(list[i])
		}
	}
	abs("tools", &c.Tools)
	abs("restricted", &c.Restricted)
	abs("state", &c.State)
	abs("socket", &c.Socket)
	abs("admin", &c.Admin)
	abs("identity/jwks", &c.Identity.JWKS)
	if c.Identity.JWKS == "" && (c.Identity.Issuer != "" || c.Identity.Audience != "") {
		bad.add("identity: issuer and audience are of tokens, and there is no jwks with their keys")
	}
	if len(c.Roots) == 0 {
		bad.add("roots: name at least one folder")
	}
	roots("root", c.Roots)
	c.checkAccess("socket_mode", "socket_group", &c.SocketMode, &c.SocketGroup, "0660", "", bad)
	seen := map[string]bool{c.Socket: true}
	if seen[c.Admin] {
		bad.add("admin: %s is the tool socket too; give it a path of its own", c.Admin)
	}
	seen[c.Admin] = true
	for i := range c.Sockets {
		s := &c.Sockets[i]
		what := fmt.Sprintf("sockets/%d", i)
		if s.Path == "" {
			bad.add("%s: path is missing", what)
			continue
		}
		abs(what, &s.Path)
		if seen[s.Path] {
			bad.add("%s: %s is used twice", what, s.Path)
		}
		seen[s.Path] = true
		if s.Protocol != "" && s.Protocol != "toold" && s.Protocol != ProtocolMCP {
			bad.add(`%s/protocol %q: use "toold", which wrappers speak, or "mcp"`, what, s.Protocol)
		}
		roots(what+"/roots", s.Roots)
		if s.Session == "default" {
			bad.add("%s/session: a default session is made anew, without its limits, after it was closed; name one that toolctl session new made", what)
		}
		c.checkAccess(what+"/mode", what+"/group", &s.Mode, &s.Group, c.SocketMode, c.SocketGroup, bad)
	}
}

// completeMCP completes the address for MCP over HTTP. The kernel does not say who
// connects there, so a token has to; and one that was made for another server is
// not taken where others than this machine's users may send it.
func (c *Config) completeMCP(bad *faults) {
	if c.MCP == "" {
		return
	}
	if _, err := strconv.ParseUint(c.MCP, 10, 16); err == nil {
		c.MCP = ":" + c.MCP
	}
	host, port, err := net.SplitHostPort(c.MCP)
	if err != nil {
		bad.add("mcp %q: %w; use HOST:PORT, such as 127.0.0.1:8417", c.MCP, err)
		return
	}
	if host == "" {
		host = "127.0.0.1"
	}
	c.MCP = net.JoinHostPort(host, port)
	if c.Identity.JWKS == "" {
		bad.add("mcp: over HTTP only a token says who calls; name the keys of tokens in identity.jwks, or use a socket with \"protocol\": \"mcp\" instead")
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	if u, err := url.Parse(c.Identity.Audience); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		bad.add("mcp: %s is not an address of this machine alone; set identity.audience to the URL by which clients reach it, which their tokens must name, or listen on 127.0.0.1", host)
	}
}

// DashboardAdmin is the Dashboard that is on the operator's socket.
const DashboardAdmin = "admin"

// completeDashboard completes the address of the page. It is one of this machine
// alone: what it shows goes over no network without a program that protects it.
func (c *Config) completeDashboard(bad *faults) {
	if c.Dashboard == "" || c.Dashboard == DashboardAdmin {
		return
	}
	if _, err := strconv.ParseUint(c.Dashboard, 10, 16); err == nil {
		c.Dashboard = ":" + c.Dashboard
	}
	host, port, err := net.SplitHostPort(c.Dashboard)
	if err != nil {
		bad.add("dashboard %q: %w; use a port of the loopback address, such as 127.0.0.1:8418, or \"admin\"", c.Dashboard, err)
		return
	}
	if host == "" {
		host = "127.0.0.1"
	}
	c.Dashboard = net.JoinHostPort(host, port)
	if ip := net.ParseIP(host); host != "localhost" && !ip.IsLoopback() {
		bad.add("dashboard: %s is not an address of this machine alone; use 127.0.0.1:%s, and from elsewhere ssh -L %s:127.0.0.1:%s", host, port, port, port)
	}
}

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

func validInstance(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && s != "." && s != ".." && len(s) <= 64
}

// readDotEnv reads NAME=value lines into values. Empty lines and lines that
// begin with # are passed over; a value may stand in single or double quotes,
// which are taken off; nothing is expanded.
func readDotEnv(path string, values map[string]string) error {
	f, err := OpenSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			// The line may hold a secret: it is not quoted.
			return fmt.Errorf("read %s: line %d is not NAME=value", path, n)
		}
		value = strings.TrimSpace(value)
		if l := len(value); l >= 2 && (value[0] == '"' || value[0] == '\'') && value[l-1] == value[0] {
			value = value[1 : l-1]
		}
		values[name] = value
	}
	return sc.Err()
}

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
