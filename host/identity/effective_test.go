package identity

import (
	"fmt"
	"strings"
	"testing"
)

// TestFingerprint: fingerprints are equal exactly if everything that they cover is.
func TestFingerprint(t *testing.T) {
	r, _, _ := newResolver(t, "ec-1")
	base := Overlay{
		Tool: "db", Version: "v1", Config: map[string]string{"host": "h", "port": "1"},
		Claims: []string{"host", "port", "database", "user", "protocol"}, Secret: []string{"password"},
	}
	who := func(change map[string]any) Caller {
		t.Helper()
		c := Caller{claims: &claims{text: map[string]string{"user": "alice", "password": canary, "sub": "a"}}}
		for k, v := range change {
			c.claims.text[k] = fmt.Sprint(v)
		}
		return c
	}
	print := func(c Caller, o Overlay) string { return r.Effective(c, o).Fingerprint() }
	same := print(who(nil), base)
	if got := print(who(map[string]any{"sub": "b", "jti": "2", "scope": "admin"}), base); got != same {
		t.Error("claims that the tool does not declare count")
	}
	if got := print(who(map[string]any{"host": "h"}), base); got != same {
		t.Error("a claim that says what the configuration says counts")
	}
	seen := map[string]string{same: "base"}
	differs := func(what, got string) {
		t.Helper()
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the fingerprint of %s", what, other)
		}
		seen[got] = what
	}
	for _, claim := range []string{"host", "port", "database", "user", "protocol", "password"} {
		differs(claim, print(who(map[string]any{claim: "other"}), base))
	}
	narrowed := who(nil)
	narrowed.ReadOnly = true
	differs("read-only", print(narrowed, base))
	for what, change := range map[string]func(*Overlay){
		"tool": func(o *Overlay) { o.Tool = "db2" }, "version": func(o *Overlay) { o.Version = "v2" },
		"settings": func(o *Overlay) { o.Settings = "1" }, "value": func(o *Overlay) { o.Values = map[string]string{"k": "v"} },
		"config": func(o *Overlay) { o.Config = map[string]string{"host": "h", "port": "1", "x": ""} },
		"shift":  func(o *Overlay) { o.Config = map[string]string{"host": "h4:port", "port": "1"} },
	} {
		o := base
		change(&o)
		differs(what, print(who(nil), o))
	}
	other, _, _ := newResolver(t, "ec-1")
	differs("host", other.Effective(who(nil), base).Fingerprint())
}

// TestEffective: the guest sees handles, and a claim cannot lift a restriction.
func TestEffective(t *testing.T) {
	r, _, _ := newResolver(t, "ec-1")
	o := Overlay{
		Config: map[string]string{"host": "h", "read_only": "true", "password": "operators-canary"},
		Claims: []string{"host", "user", "read_only", "password"}, Secret: []string{"password"},
	}
	c := Caller{claims: &claims{text: map[string]string{"host": "evil", "user": "alice", "read_only": "false", "password": canary, "other": "x"}}}
	e := r.Effective(c, o)
	if !e.ReadOnly || e.Config["read_only"] != "true" {
		t.Errorf("a claim took back what the configuration says: %+v", e.Config)
	}
	if e.Config["host"] != "evil" || e.Config["user"] != "alice" || e.Config["other"] != "" {
		t.Errorf("%v", e.Config)
	}
	if len(e.Secrets) != 1 || !e.Secrets[0].Own || e.Secrets[0].Value != canary || e.Config["password"] != e.Secrets[0].Handle {
		t.Errorf("%+v", e.Secrets)
	}
	if s := fmt.Sprint(e.Config, e.Shown); strings.Contains(s, "canary") {
		t.Errorf("a secret is shown: %s", s)
	}
	again := r.Effective(c, o)
	if again.Secrets[0].Handle == e.Secrets[0].Handle {
		t.Error("two calls have one handle")
	}
	if again.Fingerprint() != e.Fingerprint() {
		t.Error("two calls have two fingerprints")
	}
	if o.Config["host"] != "h" {
		t.Error("the tool's own configuration was changed")
	}
	// Without the claim it is the operator's secret, hidden too.
	nobody := r.Effective(Caller{}, o)
	if len(nobody.Secrets) != 1 || nobody.Secrets[0].Own || strings.Contains(fmt.Sprint(nobody.Config), "canary") {
		t.Errorf("%+v, %v", nobody.Secrets, nobody.Config)
	}
}
