package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func env(m map[string]string) Env {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func TestDefaults(t *testing.T) {
	c, err := Load("", env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(env(map[string]string{"HOME": "/home/op", "XDG_RUNTIME_DIR": "/run/user/7"})); err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		c.Instance: "0", c.Socket: "/run/user/7/toold/tool-0.sock", c.State: "/home/op/.local/state/toold/0",
		c.Admin: "/home/op/.local/state/toold/0/admin.sock", strings.Join(c.Roots, ","): "/workspace",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if filepath.Base(c.Tools) != "tools.d" || !filepath.IsAbs(c.Tools) {
		t.Errorf("tools is %q", c.Tools)
	}
}

// Flags go over variables, those over the file, that over the defaults.
func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "toold.json")
	write(t, file, `{"instance": "file", "tools": "/file", "state": "/file", "log_level": "warn"}`)
	write(t, filepath.Join(dir, ".env"), "# a comment\nexport A=1\nB='two words'\nC=\"x=y\"\n\n")
	vars := env(map[string]string{"TOOLD_TOOLS": "/var", "TOOLD_STATE_DIR": "/var", "TOOLD_ROOTS": "/a:/b", "TOOLD_CONFIG": file, "XDG_RUNTIME_DIR": "/run", "A": "of the daemon", "D": "4"})
	c, err := Load("", vars)
	if err != nil {
		t.Fatal(err)
	}
	c.Override(Config{State: "/flag"})
	if err := c.Complete(vars); err != nil {
		t.Fatal(err)
	}
	if c.LogLevel != "warn" || c.Tools != "/var" || c.State != "/flag" || c.Socket != "/run/toold/tool-file.sock" || len(c.Roots) != 2 {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]string{"A": "of the daemon", "B": "two words", "C": "x=y", "D": "4", "E": ""} {
		if v, ok := c.Value(name); v != want || ok != (want != "") {
			t.Errorf("the operator's value %s is %q, %v", name, v, ok)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for in, want := range map[string]string{
		`{"rots": []}`:                               `"roots"`,
		`{"roots": ["rel"]}`:                         "absolute",
		`{"roots": ["/"]}`:                           "confines nothing",
		`{"roots": ["/x/.."]}`:                       "confines nothing",
		`{"roots": []}`:                              "at least one",
		`{"roots": "/a"}`:                            "/roots",
		`{"instance": "a/b"}`:                        "instance",
		`{"instance": ".."}`:                         "instance",
		`{"log_level": "loud"}`:                      "debug, info",
		`{"confine": "maybe"}`:                       "required",
		`{"max_connections": -1}`:                    "negative",
		`{"audit": {"mode": "maybe"}}`:               "use on or off",
		`{"audit": {"max_bytes": 5}}`:                "at least 1048576",
		`{"audit": {"max_age_days": -1}}`:            "1 to 36500",
		`{"admin": "/s", "socket": "/s"}`:            "tool socket",
		`{"sockets": [{}]}`:                          "sockets/0",
		`{"socket":"/s","sockets":[{"path":"/s"}]}`:  "twice",
		`{"socket": "/a", "socket": "/b"}`:           "socket",
		`{`:                                          "toold.json",
		`{"discovery": {"ttl": 86401}}`:              "discovery/ttl",
		`{"discovery": {"retry_after": -1}}`:         "discovery/retry_after",
		`{"discovery": {"refused_for": 86401}}`:      "discovery/refused_for",
		`{"discovery": {"refresh_every": 86401}}`:    "discovery/refresh_every",
		`{"discovery": {"max_identities": 1000001}}`: "discovery/max_identities",
	} {
		file := filepath.Join(t.TempDir(), "toold.json")
		write(t, file, in)
		c, err := Load(file, env(nil))
		if err == nil {
			err = c.Complete(env(nil))
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", in, err, want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none"), env(nil)); err == nil {
		t.Error("a file that is not there was read")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "toold.json"), "{}")
	write(t, filepath.Join(dir, ".env"), "A=1\nthe-secret-itself\n")
	c, err := Load(filepath.Join(dir, "toold.json"), env(nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Complete(env(nil)); err == nil || !strings.Contains(err.Error(), "line 2") || strings.Contains(err.Error(), "the-secret") {
		t.Errorf("a malformed .env: %v", err)
	}
}

// The published schema knows what the struct knows, no more and no less.
func TestSchema(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema, &schema); err != nil {
		t.Fatal(err)
	}
	compare(t, "", reflect.TypeFor[Config](), schema)
}

func compare(t *testing.T, at string, typ reflect.Type, schema map[string]any) {
	props, _ := schema["properties"].(map[string]any)
	if schema["additionalProperties"] != false {
		t.Errorf("%s: the schema admits unknown keys", at)
	}
	var names []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		names = append(names, name)
		p, ok := props[name].(map[string]any)
		if !ok {
			t.Errorf("%s/%s is not in the schema", at, name)
			continue
		}
		ft := f.Type
		if ft.Kind() == reflect.Slice {
			ft = ft.Elem()
			if items, ok := p["items"].(map[string]any); ok {
				p = items
			}
		}
		if ft.Kind() == reflect.Struct {
			compare(t, at+"/"+name, ft, p)
		}
	}
	for name := range props {
		if !slices.Contains(names, name) {
			t.Errorf("%s/%s is in the schema only", at, name)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What the audit log says of a configuration is what it is, without passwords.
func TestPublic(t *testing.T) {
	c := Config{Store: "redis://op:hunter2@127.0.0.1:6379/0?password=hunter2", Traces: "https://op:hunter2@collector.test/v1/traces?key=hunter2", Roots: []string{"/work"}}
	text, err := c.Public()
	if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "127.0.0.1:6379/0") || !strings.Contains(string(text), "collector.test") || !strings.Contains(string(text), "/work") {
		t.Errorf("%s, %v", text, err)
	}
	c.Store = "redis://op:hunter2@[bad"
	if text, err = c.Public(); err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("%s, %v", text, err)
	}
}

// MCP over HTTP needs tokens, and tokens for this server where others reach it.
func TestMCPAddress(t *testing.T) {
	const jwks, url = "/jwks.json", "https://tools.example/mcp"
	for _, tt := range []struct {
		addr, jwks, audience, want, fault string
	}{
		{"127.0.0.1:8417", jwks, "", "127.0.0.1:8417", ""},
		{"8417", jwks, "", "127.0.0.1:8417", ""},
		{":8417", jwks, "", "127.0.0.1:8417", ""},
		{"localhost:8417", jwks, "", "localhost:8417", ""},
		{"[::1]:8417", jwks, "", "[::1]:8417", ""},
		{"127.0.0.1:8417", "", "", "", "identity.jwks"},
		{"0.0.0.0:8417", jwks, "", "", "identity.audience"},
		{"0.0.0.0:8417", jwks, "toold", "", "identity.audience"},
		{"[::]:8417", jwks, "", "", "identity.audience"},
		{"10.0.0.5:8417", jwks, "", "", "identity.audience"},
		{"tools.example:8417", jwks, "", "", "identity.audience"},
		{"10.0.0.5:8417", jwks, url, "10.0.0.5:8417", ""},
		{"10.0.0.5", jwks, url, "", "HOST:PORT"},
	} {
		c := Config{MCP: tt.addr, Identity: IdentityConfig{JWKS: tt.jwks, Audience: tt.audience}}
		err := c.Complete(func(string) (string, bool) { return "", false })
		switch {
		case tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)):
			t.Errorf("%+v: %v", tt, err)
		case tt.fault == "" && (err != nil || c.MCP != tt.want):
			t.Errorf("%+v: %q, %v", tt, c.MCP, err)
		}
	}
	old := &Config{MCP: "10.0.0.5:8417", Identity: IdentityConfig{Audience: url}}
	if err := old.Reloadable(&Config{MCP: old.MCP, Identity: IdentityConfig{Audience: "https://other.example"}}); err == nil {
		t.Error("a reload changes the audience of MCP over HTTP")
	}
}
