package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// formBoundary is what curl makes up for each form.
var formBoundary = regexp.MustCompile(`-{20,}[0-9A-Za-z]+`)

// TestLines: command lines of curl's own documentation come out the same through
// the wrapper as natively, or it is said why not.
func TestLines(t *testing.T) {
	p := newPlace(t)
	def := hosttest.ReadyJSON(t, "curl")
	def["config"] = map[string]any{"hosts": "127.0.0.1:" + p.allowed.Port(), "files": "roots"}
	def["capabilities"] = map[string]any{"network": []string{"*", "127.0.0.1"}}
	def["binary"] = p.Program
	d := p.Daemon(def)
	seen := 0
	l := &hosttest.Lines{
		Tool: "curl", Program: p.Program, Daemon: d, Root: p.Root, Words: []string{"SITE", p.allowed.URL},
		Asked: func() string {
			var all strings.Builder
			asked := p.allowed.Asked()
			for _, a := range asked[seen:] {
				all.WriteString(formBoundary.ReplaceAllString(a.String()+" "+a.Authorization, "BOUNDARY") + "\n")
			}
			seen = len(asked)
			return all.String()
		},
	}
	l.Run(t, "testdata/lines.txt", 15)
}
