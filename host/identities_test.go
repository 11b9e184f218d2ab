package host_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// reliable has every call of a daemon go through the reliability layer.
func reliable(hc *config.Config) { hc.Reliability = "all" }

// TestRefusedRequestIsNotRetried: a request that tool.json does not grant is
// refused in every attempt alike, so that there is one, whatever the module says.
func TestRefusedRequestIsNotRetried(t *testing.T) {
	var away string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, away, http.StatusFound)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer service.Close()
	away = "http://elsewhere.test/"
	c := newCounter(t, service, nil, reliable)
	token := c.token(t, nil)
	for _, tt := range []struct {
		name, urls string
		again      bool
	}{
		{"a host that is not granted", away, false},
		{"a redirect to one", service.URL + "/away", false},
		{"a scheme that is not granted", "ftp://127.0.0.1/", false},
		{"refused, and then another that asks to come back", away + " " + service.URL + "/busy", false},
		{"one that asks to come back", service.URL + "/busy", true},
	} {
		for _, method := range []string{"", "silent"} {
			before := strings.Count(c.Logs(), `"message":"attempt `)
			r := c.call(t, token, "look", M{"do": "insist " + tt.urls, "method": method})
			attempts := strings.Count(c.Logs(), `"message":"attempt `) - before
			if resultCode(r) != fault.ToolFailed || r.Err.Retriable() != tt.again || (attempts > 1) != tt.again {
				t.Errorf("%s (%s): %d attempts, retriable %v: %v", tt.name, method, attempts, r.Err.Retriable(), r.Err)
			}
		}
	}
}

// TestRefusedDiscoveryIsNotRetriable: who lists or calls the tools of a module that
// may not go where its configuration leads is not told to try again.
func TestRefusedDiscoveryIsNotRetriable(t *testing.T) {
	c := newCounter(t, nil, M{"url": "http://elsewhere.test"})
	token := c.token(t, nil)
	l := c.list(t, token, M{})
	if len(l.Missing) != 1 || l.Missing[0].Retriable || !strings.Contains(l.Missing[0].Message, "not granted") {
		t.Errorf("%+v", l)
	}
	if r := c.call(t, token, "look", M{}); resultCode(r) != fault.ToolFailed || r.Err.Retriable() {
		t.Errorf("a call: %v", r.Err)
	}
}

// asked is a service that counts the discoveries of each user, by password.
type asked struct {
	*httptest.Server
	mu   sync.Mutex
	n    map[string]int
	down bool
}

func newAsked(t testing.TB) *asked {
	s := &asked{n: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.n[r.Header.Get("X-Other")]++
		if s.down {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *asked) of(password string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n[password]
}

func (s *asked) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// TestReloadKeepsWhatItDidNotChange: a reload has those tools discovered again that
// it may have changed, and no others.
func TestReloadKeepsWhatItDidNotChange(t *testing.T) {
	service := newAsked(t)
	dir := t.TempDir()
	values := func(t *testing.T, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, ".env"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	values(t, "MINE=mine-canary-1\nOTHER=other-canary-1\n")
	c := newCounter(t, service.Server, nil, func(hc *config.Config) { hc.File = filepath.Join(dir, "toold.json") })
	install := func(name string, more M) {
		t.Helper()
		def := M{
			"config": c.config, "identity": M{"claims": []string{"user"}, "secret": []string{"password"}},
			"capabilities": M{"http": M{"hosts": append([]string{"mine.test"}, c.hosts...)}}, "limits": M{"fuel": 100_000_000_000},
		}
		maps.Copy(def, more)
		hosttest.WriteTool(t, c.tools, name, def, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
	}
	token := c.token(t, nil)
	discoveries := func() int {
		c.list(t, token, M{})
		return service.of(canary)
	}
	installed := func(more M) {
		t.Helper()
		before := discoveries()
		install("source", more)
		for discoveries() == before { // until the new version serves
			if err := t.Context().Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	installed(M{"secrets": M{"mine": M{"from": "env:MINE", "header": "X-Mine", "host": "mine.test"}}})
	current := c.Config
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		again  bool
	}{
		{"nothing", func(*config.Config) {}, false},
		{"the level of the log", func(n *config.Config) { n.LogLevel = "info" }, false},
		{"reliability", func(n *config.Config) { n.Reliability = "all" }, false},
		{"the grace", func(n *config.Config) { n.ShutdownGrace = 5 }, false},
		{"roots, of a module that runs nothing", func(n *config.Config) { n.Roots = []string{t.TempDir()} }, false},
		{"how many are kept", func(n *config.Config) { n.Discovery.MaxIdentities = 77 }, false},
		{"a value of nobody's", func(*config.Config) { values(t, "MINE=mine-canary-1\nOTHER=other-canary-2\n") }, false},
		{"a value of the tool", func(*config.Config) { values(t, "MINE=mine-canary-2\nOTHER=other-canary-2\n") }, true},
		{"who is admitted", func(n *config.Config) { n.Identity.Audience = ""; n.Identity.IgnoreClaims = []string{"x"} }, true},
		{"how long tools are fresh", func(n *config.Config) { n.Discovery.TTL = 800 }, true},
	} {
		before := discoveries()
		tt.change(&current)
		if err := current.Complete(func(string) (string, bool) { return "", false }); err != nil {
			t.Fatal(err)
		}
		if err := c.Reload(current, nil); err != nil {
			t.Fatal(err)
		}
		if n := discoveries() - before; n > 1 || (n == 1) != tt.again {
			t.Errorf("%s: %d discoveries after the reload, want one: %v", tt.name, n, tt.again)
		}
	}
	// One that was made of settings that do not count any more is not there to come
	// back with them.
	if list := c.identities(t); len(list) > 2 { // of MINE before and after
		t.Errorf("%d identities are kept: %+v", len(list), list)
	}
	// What runs binaries depends on where, too.
	installed(M{"capabilities": M{"http": M{"hosts": c.hosts}, "exec": []string{"/bin/true"}}})
	before := discoveries()
	current.Roots = []string{t.TempDir()}
	if err := c.Reload(current, nil); err != nil {
		t.Fatal(err)
	}
	if n := discoveries() - before; n != 1 {
		t.Errorf("other roots, of a module that runs binaries: %d discoveries, want 1", n)
	}
}

func (c *counter) identities(t testing.TB) []adminapi.Identity {
	t.Helper()
	list, err := client.NewAdmin(c.Admin).Identities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDiscoverySettings: how long tools are fresh and how many are kept is said in
// toold.json, and how long also by the tool and its module.
func TestDiscoverySettings(t *testing.T) {
	discovers := func(d config.DiscoveryConfig) func(*config.Config) {
		return func(hc *config.Config) { hc.Discovery = d }
	}
	for _, tt := range []struct {
		name     string
		settings config.DiscoveryConfig
		surface  string
		tool     M
		want     time.Duration
	}{
		{"nothing is said", config.DiscoveryConfig{}, `raw {"tools":[{"name":"a"}]}`, nil, 15 * time.Minute},
		{"by toold.json", config.DiscoveryConfig{TTL: 70}, `raw {"tools":[{"name":"a"}]}`, nil, 70 * time.Second},
		{"by the module", config.DiscoveryConfig{TTL: 70}, `raw {"tools":[{"name":"a"}],"ttl_ms":80000}`, nil, 80 * time.Second},
		{"by the tool", config.DiscoveryConfig{TTL: 70}, `raw {"tools":[{"name":"a"}],"ttl_ms":80000}`, M{"discovery": M{"ttl": 90.5}}, 90500 * time.Millisecond},
		{"more than a day by the module", config.DiscoveryConfig{}, `raw {"tools":[{"name":"a"}],"ttl_ms":800000000}`, nil, 24 * time.Hour},
	} {
		c := newCounter(t, nil, M{"surface": tt.surface}, discovers(tt.settings), func(hc *config.Config) {
			if tt.tool != nil {
				def := M{"config": M{"surface": tt.surface}, "identity": M{"claims": []string{"user"}, "secret": []string{"password"}}, "capabilities": M{"http": M{"hosts": []string{"nowhere.test"}}}, "limits": M{"fuel": 100_000_000_000}}
				maps.Copy(def, tt.tool)
				hosttest.WriteTool(t, hc.Tools, "source", def, map[string]string{"handler.wasm": hosttest.Guest(t, "host/testdata/guests/surface")})
			}
		})
		c.list(t, c.token(t, nil), M{})
		if list := c.identities(t); len(list) != 1 || list[0].Until.Sub(list[0].Made) != tt.want {
			t.Errorf("%s: %+v, want %v", tt.name, list, tt.want)
		}
		c.Stop(t)
	}

	c := newCounter(t, nil, M{"surface": `raw {"error":{"code":"UNAUTHENTICATED","message":"no"}}`}, discovers(config.DiscoveryConfig{RefusedFor: 3600, MaxIdentities: 3}))
	start := time.Now()
	for i := range 20 {
		c.list(t, c.token(t, M{"user": fmt.Sprint("user", i)}), M{})
	}
	list := c.identities(t)
	if len(list) > 3 || len(list) == 0 || list[0].State != "refused" || list[0].Until.Sub(start) < 59*time.Minute {
		t.Errorf("%d identities, the first is %+v", len(list), list)
	}
	next := c.Config
	next.Discovery.MaxIdentities = 1
	if err := c.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	if list := c.identities(t); len(list) > 1 {
		t.Errorf("%d identities are kept after a reload, want 1", len(list))
	}
}

// TestCallersRefresh: a caller has its own tools discovered anew, as often as the
// operator says, and nobody else's; where the server does not answer, those it had
// serve on.
func TestCallersRefresh(t *testing.T) {
	service := newAsked(t)
	c := newCounter(t, service.Server, nil, func(hc *config.Config) {
		hc.Discovery = config.DiscoveryConfig{RefreshEvery: 3600, RetryAfter: 1}
	})
	alice, bob := c.token(t, nil), c.token(t, M{"sub": "bob", "user": "bob", "password": "bob-canary-11"})
	c.list(t, alice, M{})
	c.list(t, bob, M{})
	list := func(token string, page M) (l toolList, wait int64) {
		t.Helper()
		r := c.call(t, token, "tools.list", page)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		var w struct {
			Wait int64 `json:"refresh_after_ms"`
		}
		if err := json.Unmarshal(r.Data, &l); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(r.Data, &w); err != nil {
			t.Fatal(err)
		}
		return l, w.Wait
	}
	if _, wait := list(alice, M{"refresh": true}); wait != 0 || service.of(canary) != 2 {
		t.Errorf("the first: %d discoveries, %d ms to wait", service.of(canary), wait)
	}
	for range 5 {
		if l, wait := list(alice, M{"refresh": true}); wait < 3500_000 || wait > 3600_000 || len(l.Tools) == 0 {
			t.Errorf("at once again: %+v, %d ms to wait", l, wait)
		}
	}
	if n := service.of(canary); n > 2 {
		t.Errorf("%d discoveries, want 2", n)
	}
	if n := service.of("bob-canary-11"); n != 1 {
		t.Errorf("%d discoveries of another's tools, want 1", n)
	}
	// In time, and over the plain form.
	plain := func(args ...string) *wire.Result {
		t.Helper()
		r, err := client.Call(t.Context(), c.Socket, &wire.Call{Form: wire.Plain, Tool: "tools.list", Args: args, Cwd: c.Root, ExecutionID: newExecution(), Token: alice})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := plain("refresh=true"); !strings.Contains(string(r.Stderr), "not discovered again") {
		t.Errorf("it is not said that nothing was done: %s", r.Stderr)
	}
	next := c.Config
	next.Discovery.RefreshEvery = 1
	if err := c.Reload(next, nil); err != nil {
		t.Fatal(err)
	}
	for service.of(canary) == 2 {
		if r := plain("refresh=true"); r.Err != nil || !strings.Contains(string(r.Stdout), "user_alice\n") {
			t.Fatalf("%s, %v", r.Stdout, r.Err)
		}
	}
	for _, args := range [][]string{{"refresh"}, {"refresh=often"}, {"limit=1"}} {
		if r := plain(args...); resultCode(r) != fault.InvalidPayload {
			t.Errorf("%v: %v", args, r.Err)
		}
	}

	service.setDown(true)
	var l toolList
	for wait := int64(1); wait != 0; { // until it may
		l, wait = list(alice, M{"refresh": true})
	}
	if len(l.Tools) != 3 || len(l.Missing) != 1 || !strings.Contains(l.Missing[0].Message, "out of date") {
		t.Errorf("the service is down: %+v", l)
	}
	service.setDown(false)
	for len(l.Missing) != 0 { // it is tried again without another wish
		l, _ = list(alice, M{})
	}
	if n := service.of("bob-canary-11"); n != 1 {
		t.Errorf("%d discoveries of another's tools, want 1", n)
	}
}
