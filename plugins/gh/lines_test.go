package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// multipart is what gh makes up for what it sends.
var multipart = regexp.MustCompile(`-{20,}[0-9A-Za-z]+`)

// TestLines: command lines of gh's own documentation come out the same through the
// wrapper as natively, or it is said why not. The other side is asked the same, too.
func TestLines(t *testing.T) {
	p := newPlace(t)
	def := hosttest.ReadyJSON(t, "gh")
	p.Write("token", "gho_"+hosttest.Sesame, 0o600)
	real := program(t, p.Program)
	def["binary"] = real
	def["secrets"] = map[string]any{"gh-token": map[string]string{"from": "file:" + filepath.Join(p.Dir, "token"), "env": "GH_TOKEN"}}
	env := def["environment"].(map[string]any)
	env["HTTPS_PROXY"], env["SSL_CERT_FILE"] = p.hub.proxy.URL, p.hub.ca
	def["capabilities"].(map[string]any)["network"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	def["capabilities"].(map[string]any)["unread"] = []string{strings.TrimPrefix(p.hub.proxy.URL, "http://")}
	def["config"] = map[string]any{"host": "github.com", "files": "roots"}
	d := p.Daemon(def)
	p.Call(d, "gh", "--version") // its policy is compiled now
	seen := 0
	l := &hosttest.Lines{
		Tool: "gh", Program: real, Daemon: d, Root: p.Root,
		Native: []string{"GH_TOKEN=gho_" + hosttest.Sesame, "HTTPS_PROXY=" + p.hub.proxy.URL, "SSL_CERT_FILE=" + p.hub.ca, "GH_NO_UPDATE_NOTIFIER=1", "GH_PROMPT_DISABLED=1"},
		Asked: func() string {
			all := p.hub.requests()
			news := slices.Sorted(slices.Values(all[seen:])) // some are made at once
			seen = len(all)
			return multipart.ReplaceAllString(strings.Join(news, "\n"), "BOUNDARY")
		},
	}
	l.Run(t, "testdata/lines.txt", 60)
}
