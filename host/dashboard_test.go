package host_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// scraped is every metric that a busy and an unlucky daemon have told, with
// its labels.
func scraped(t *testing.T) map[string][]string {
	d := reliableDaemon(t, config.Config{})
	policy := hosttest.Guest(t, policyPkg)
	d.Tool(t, "guarded", M{"binary": "/bin/true"}, map[string]string{"restricted.wasm": policy})
	for range 2 {
		ask(t, d.Socket, M{"tool": "ledger", "args": []string{"-c", "true"}, "cwd": d.Root, "idempotency_key": "k"})
	}
	ask(t, d.Socket, M{"tool": "guarded", "cwd": d.Root})
	again := M{"reliability": M{"retry": M{"initial_ms": 1}, "breaker": M{"failures": 1}}}
	for k, v := range granted {
		again[k] = v
	}
	d.Tool(t, "again", again, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	ask(t, d.Socket, M{"tool": "again", "args": []string{"fail"}, "cwd": d.Root})

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	away := reliableDaemon(t, config.Config{Store: "redis://" + l.Addr().String()})
	away.Tool(t, "shadowed", M{"binary": "/bin/true", "reliability": M{"mode": "shadow"}}, nil)
	for range 2 {
		ask(t, away.Socket, M{"tool": "shadowed", "cwd": away.Root, "idempotency_key": "k"})
	}
	ask(t, away.Socket, M{"tool": "ledger", "args": []string{"-c", "true"}, "cwd": away.Root, "idempotency_key": "k"})

	found := map[string][]string{}
	sample := regexp.MustCompile(`(?m)^([a-z_]+)(?:\{([^}]*)\})? `)
	label := regexp.MustCompile(`([a-z_]+)="`)
	for _, m := range sample.FindAllStringSubmatch(metrics(t, d)+metrics(t, away), -1) {
		labels := found[m[1]]
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				labels = append(labels, l[1])
			}
		}
		found[m[1]] = labels
	}
	return found
}

var (
	metricName = regexp.MustCompile(`\b(?:toold?|circuit_breaker|idempotency|process|go)_[a-z0-9_]+\b`)
	selector   = regexp.MustCompile(`([a-z_]+)\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
	grouping   = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// The dashboard and the alerts use metrics and labels that there are.
func TestDashboardAndAlerts(t *testing.T) {
	type query struct{ where, expr string }
	var queries []query
	deploy := filepath.Join(hosttest.ModuleRoot(), "deploy")
	b, err := os.ReadFile(filepath.Join(deploy, "grafana", "toold.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries = append(queries, query{p.Title, target.Expr})
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Query != "prometheus" {
			queries = append(queries, query{"a variable", v.Query})
		}
	}
	if b, err = os.ReadFile(filepath.Join(deploy, "prometheus", "toold.rules.yml")); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(b, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Annotations["summary"] == "" {
				t.Errorf("an alert without a name or a summary: %+v", r)
			}
			queries = append(queries, query{r.Alert, r.Expr})
		}
	}
	if len(queries) < 25 {
		t.Fatalf("only %d queries were read", len(queries))
	}
	found := scraped(t)
	used := map[string]bool{}
	for _, q := range queries {
		names := metricName.FindAllString(q.expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: no metric in %s", q.where, q.expr)
		}
		labels := []string{}
		for _, name := range names {
			used[name] = true
			of, ok := found[name]
			if !ok {
				t.Errorf("%s: there is no metric %s", q.where, name)
			}
			labels = append(labels, of...)
		}
		for _, s := range selector.FindAllStringSubmatch(q.expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(found[s[1]], m[1]) {
					t.Errorf("%s: %s has no label %s", q.where, s[1], m[1])
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for _, l := range strings.Split(g[1], ", ") {
				if !slices.Contains(labels, l) {
					t.Errorf("%s: nothing in %s has the label %s", q.where, q.expr, l)
				}
			}
		}
		if strings.Count(q.expr, "(") != strings.Count(q.expr, ")") {
			t.Errorf("%s: parentheses of %s", q.where, q.expr)
		}
	}
	// The four that others may rest on have these names and labels exactly.
	for name, want := range map[string]string{
		"tool_execution_total":         "status tool",
		"tool_duration_seconds_count":  "tool",
		"circuit_breaker_state":        "state tool",
		"idempotency_cache_hits_total": "tool",
	} {
		got := slices.Sorted(slices.Values(found[name]))
		if strings.Join(got, " ") != want {
			t.Errorf("%s has the labels %q, want %q", name, got, want)
		}
		if !used[name] && name != "tool_duration_seconds_count" {
			t.Errorf("%s is on no dashboard", name)
		}
	}
}
