package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/host/places"
)

// Complete sets defaults, makes paths absolute, reads the .env file next to File, and validates the whole. It creates
// nothing on disk.
func (c *Config) Complete(env Env) error {
	var bad faults
	c.setDefaults(env, &bad)
	checkConfinement(c, &bad)
	c.completePaths(&bad)
	c.completeMCP(&bad)
	completeDashboard(c, &bad)
	c.env, c.values = env, map[string]string{}
	if file := c.DotEnv(); file != "" {
		if err := readDotEnv(file, c.values); err != nil {
			bad.add("%w", err)
		}
	}
	return errors.Join(bad...)
}

// faults are all errors in a configuration.
type faults []error

func (f *faults) add(format string, a ...any) { *f = append(*f, fmt.Errorf(format, a...)) }

// setDefaults sets missing values, and validates those that are not paths.
func (c *Config) setDefaults(env Env, bad *faults) {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	// The daemon is placed where its clients look for it.
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

func checkConfinement(c *Config, bad *faults) {
	least, most := slices.Index(confineLevels, c.LeastConfinement()), slices.Index(confineLevels, c.ConfineMost)
	if least < 0 && c.Confine != "best" {
		bad.add(`confine %q: use "best", "required", or the least level: "landlock", "seccomp", "namespaces", "uid"`, c.Confine)
	}
	switch {
	case c.ConfineMost == "":
	case most < 0 || c.ConfineMost == "uid":
		bad.add(`confine_most %q: use "landlock", "seccomp" or "namespaces"`, c.ConfineMost)
	case least > most && c.Confine != "uid": // uid is not one of the ordered levels
		bad.add(`confine_most %q is less than confine %q demands`, c.ConfineMost, c.Confine)
	}
}

// completePaths makes paths absolute, and checks that each is suitable.
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
	checkAccess("socket_mode", "socket_group", &c.SocketMode, &c.SocketGroup, "0660", "", bad)
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
			bad.add("%s/session: a default session is made again, without its limits, after it was closed; name one that toolctl session new made", what)
		}
		checkAccess(what+"/mode", what+"/group", &s.Mode, &s.Group, c.SocketMode, c.SocketGroup, bad)
	}
}

// completeMCP completes the address for MCP over HTTP. The kernel does not identify who connects there, so a token
// must; and a token made for another server is not accepted where others than this machine's users may send it.
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

// completeDashboard completes the address of the page. It must be a loopback address: the page crosses no network
// without a program that protects it.
func completeDashboard(c *Config, bad *faults) {
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

func validInstance(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != "" && s != "." && s != ".." && len(s) <= 64
}

// checkAccess sets defaults for the mode and the group of a socket and validates them; the names are for messages.
func checkAccess(modeName, groupName string, mode, group *string, defMode, defGroup string, bad *faults) {
	if *mode == "" {
		*mode = defMode
	}
	if *group == "" {
		*group = defGroup
	}
	switch *mode {
	case "0600", "0660", "0666":
	default:
		bad.add(`%s %q: use "0600" (the daemon's user), "0660" (its group too) or "0666" (every user of this machine); who cannot write to a socket cannot call`, modeName, *mode)
		*mode = defMode
	}
	if _, err := groupID(*group); err != nil {
		bad.add("%s: %w", groupName, err)
	}
}
