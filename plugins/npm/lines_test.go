package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

var (
	// tookTime is what npm says of the time that it took.
	tookTime = regexp.MustCompile(` in \d+(ms|s|m)`)
	// logFile is where npm says that its log is, or why there is none: it has none here.
	logFile = regexp.MustCompile(`(?m)^npm error (A complete log of this run can be found in: .*|Log files were not written .*)\n`)
	// ports are those of the registry, of which npm's messages have some.
	ports = regexp.MustCompile(`127\.0\.0\.[12]:\d+`)
)

// TestLines: command lines of npm's own documentation come out the same through the
// wrapper as natively, or it is said why not.
func TestLines(t *testing.T) {
	if testing.Short() {
		t.Skip("each line starts npm twice")
	}
	p := newPlace(t)
	packages := registryOf(map[string]string{})
	p.good.Answer(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, "/-/npm/v1/security/advisories") {
			io.WriteString(w, "{}") // there are none
			return
		}
		packages(w, q)
	})
	def := hosttest.ReadyJSON(t, "npm")
	def["binary"] = p.Program
	def["capabilities"].(map[string]any)["network"] = []string{"127.0.0.1"}
	def["config"] = map[string]any{"registry": p.good.URL}
	// The daemon's npm reads the .npmrc of the daemon's user, which may be of any kind here.
	def["environment"] = map[string]string{"npm_config_audit": "true"}
	d := p.Daemon(def)
	p.Call(d, "npm", "--version") // its policy is compiled now
	l := &hosttest.Lines{
		Every: 4, Tool: "npm", Program: p.Program, Daemon: d, Root: p.Root, Words: []string{"SITE", p.good.URL},
		Native:  []string{"npm_config_registry=" + p.good.URL, "npm_config_update_notifier=false"},
		Through: []string{"TOOL_ENV=NODE_ENV"},
		Normal: func(s string) string {
			return strings.ReplaceAll(ports.ReplaceAllString(tookTime.ReplaceAllString(logFile.ReplaceAllString(s, ""), " in TIME"), "SITE"), p.Home, "HOME")
		},
	}
	l.Run(t, "testdata/lines.txt", 60)
}
