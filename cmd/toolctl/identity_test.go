package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.MainWaiting(m)) }

// TestIdentityVerbs lists, shows and refreshes what a module brings for the
// bearer of a token, and inspects the token.
func TestIdentityVerbs(t *testing.T) {
	t.Parallel()
	const canary = "canary-cli-8812"
	asked := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.Header.Get("Authorization") != "Bearer "+canary {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		paths := map[string]any{}
		for i := range 300 { // more than one page of a listing
			paths[fmt.Sprintf("/thing/%d", i)] = map[string]any{"get": map[string]any{
				"operationId": fmt.Sprintf("thing%03d", i), "summary": "A thing", "description": strings.Repeat("long ", 60),
			}}
		}
		json.NewEncoder(w).Encode(map[string]any{"openapi": "3.1.0", "paths": paths})
	}))
	defer service.Close()
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	hosttest.WriteTool(t, tools, "things", map[string]any{
		"config":       map[string]any{"document": service.URL + "/openapi.json"},
		"identity":     map[string]any{"claims": []string{"prefix"}, "secret": []string{"api_token"}},
		"capabilities": map[string]any{"http": map[string]any{"hosts": []string{strings.TrimPrefix(service.URL, "http://")}}},
		"limits":       map[string]any{"fuel": 100_000_000_000},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, "plugins/openapi")})
	issuer := hosttest.NewIssuer(t)
	d := hosttest.Start(t, config.Config{Tools: tools, Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	file := func(name string, claims map[string]any) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(issuer.Token(t, claims)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file("good", map[string]any{"sub": "anna", "prefix": "my ", "api_token": canary})
	wrong := file("wrong", map[string]any{"sub": "anna", "api_token": "wrong-" + canary})
	expired := file("expired", map[string]any{"sub": "anna", "exp": 1})
	toolctl := func(want int, words ...string) (string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"--socket", d.Socket, "--admin", d.Admin}, words...), strings.NewReader(""), &out, &errs); code != want {
			t.Errorf("toolctl %v: exit code %d, want %d\n%s%s", words, code, want, out.String(), errs.String())
		}
		if s := out.String() + errs.String(); strings.Contains(s, canary) {
			t.Errorf("toolctl %v shows the secret: %s", words, s)
		}
		return out.String(), errs.String()
	}
	match := func(what, got, want string) {
		t.Helper()
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: %q does not match %q", what, got, want)
		}
	}

	out, _ := toolctl(0, "identity", "list")
	match("no identity", out, "no identities")
	out, _ = toolctl(0, "tools", "--as", good)
	if n := strings.Count(out, "\nmy_thing"); n != 300 {
		t.Errorf("%d tools are listed, want 300", n)
	}
	match("a tool", out, `(?m)^my_thing007 +things +reads +A thing$`)
	out, _ = toolctl(0, "tools", "--as", good, "my_thing007")
	match("one tool", out, `"source": "things"`)
	toolctl(1, "tools", "--as", good, "my_thing300")
	fresh := asked
	toolctl(0, "tools", "--as", good)
	if asked != fresh {
		t.Errorf("listing again asked the server %d times", asked-fresh)
	}
	_, errs := toolctl(0, "tools", "--as", good, "--refresh")
	if asked != fresh+1 || errs != "" {
		t.Errorf("a refresh asked the server %d times: %s", asked-fresh, errs)
	}
	_, errs = toolctl(0, "tools", "--as", good, "--refresh")
	match("a refresh too soon", errs, `not listed again; try again in \d`)
	toolctl(64, "tools", "--refresh")
	_, errs = toolctl(0, "tools", "--as", wrong)
	match("refused", errs, "things refuses this identity")
	_, errs = toolctl(77, "tools", "--as", expired)
	match("expired", errs, "expired at 1970")

	out, _ = toolctl(0, "identity", "list")
	match("the list", out, `(?m)^[0-9a-f]{32} +things +fresh +300 +\S+ ago +prefix=my`)
	match("the list", out, `(?m)^[0-9a-f]{32} +things +refused +0 `)
	id := regexp.MustCompile(`(?m)^([0-9a-f]{32}) +things +fresh`).FindStringSubmatch(out)[1]
	out, _ = toolctl(0, "identity", "show", id)
	match("one", out, `(?m)^state +fresh$`)
	match("one", out, `my_thing000, my_thing001`)
	toolctl(1, "identity", "show", "nobody")
	before := asked
	toolctl(0, "tools", "--as", good)
	out, _ = toolctl(0, "identity", "refresh", id)
	match("refresh", out, `^refreshed  1\n$`)
	toolctl(0, "tools", "--as", good)
	if asked != before+1 {
		t.Errorf("the service was asked %d times, want once", asked-before)
	}
	out, _ = toolctl(0, "identity", "refresh", "--tool", "things", "--json")
	match("refresh a tool", out, `"identities": 2`)
	toolctl(0, "identity", "refresh", "--all")
	toolctl(1, "identity", "refresh", "nobody")
	toolctl(64, "identity", "refresh")

	out, _ = toolctl(0, "token", "inspect", good)
	match("a good token", out, `(?m)^form +encrypted \(JWE\)$`)
	match("a good token", out, `(?m)^verified +yes$`)
	match("a good token", out, `(?m)^claim api_token +\(hidden\)$`)
	out, _ = toolctl(77, "token", "inspect", expired)
	match("an expired token", out, `(?m)^refused .*expired at 1970`)
	toolctl(64, "token", "inspect")
	if strings.Contains(d.Logs(), canary) {
		t.Error("the secret is in the log")
	}
}
