package catalog

import (
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

// What a definition asks for and its tool cannot use is an error, with its place
// and what to write instead.
func TestUnusable(t *testing.T) {
	t.Parallel()
	const from = `"from": "env:T"`
	http := func(hosts string) string { return `"capabilities": {"http": {"hosts": [` + hosts + `]}}, ` }
	secret := func(to string) string { return `"secrets": {"s": {` + from + `, ` + to + `}}` }
	header := func(host string) string { return secret(`"header": "Authorization", "host": "` + host + `"`) }
	binary, wasi, module := `"binary": "/bin/true", `, `"wasi": "main.wasm", `, ``
	for name, tt := range map[string]struct{ def, says string }{
		"binary-env":          {binary + secret(`"env": "T"`), ""},
		"binary-file":         {binary + secret(`"file": "T"`), ""},
		"binary-header":       {binary + header("a.example"), `:1:70: /secrets/s/header has no effect: capabilities.network does not grant the host a.example; add "a.example" to it`},
		"binary-http":         {binary + http(`"a.example"`) + `"timeout": 1`, "/capabilities/http has no effect on a binary: what it connects to is not confined"},
		"binary-files":        {binary + `"capabilities": {"files": {"/a": {"path": "/a"}}}`, "/capabilities/files has no effect on a binary"},
		"binary-tool-call":    {binary + `"capabilities": {"tool_call": true}`, "/capabilities/tool_call has no effect on a binary"},
		"binary-none":         {binary + `"capabilities": {"tool_call": false, "files": {}}`, ""},
		"handler-header":      {module + http(`"a.example"`) + header("a.example"), ""},
		"handler-port":        {module + http(`"a.example"`) + header("A.example.:8443"), ""},
		"handler-pattern":     {module + http(`"*.example"`) + header("a.b.example"), ""},
		"handler-any":         {module + http(`"*"`) + header("a.example"), ""},
		"handler-address":     {module + http(`"[::1]:80"`) + header("::1"), ""},
		"handler-env":         {module + secret(`"env": "T"`), `/secrets/s/env reaches nobody: a handler sees no secret, and what it executes is given none; have toold add it to requests: {"from": "env:T", "header": "Authorization", "host": "HOST"}`},
		"handler-file":        {module + secret(`"file": "T"`), "/secrets/s/file reaches nobody"},
		"handler-no-http":     {module + header("a.example"), `/secrets/s/header has no effect: the tool may make no requests; write "capabilities": {"http": {"hosts": ["a.example"]}}`},
		"handler-other-host":  {module + http(`"b.example", "example"`) + header("a.example"), `does not grant the host a.example; add "a.example" to its hosts`},
		"handler-pattern-top": {module + http(`"*.a.example"`) + header("a.example"), `add "a.example" to its hosts`},
		"handler-other-port":  {module + http(`"a.example:1"`) + header("a.example:2"), `add "a.example:2" to its hosts`},
		"handler-environment": {module + `"environment": {"A": "b"}`, "/environment has no effect on a handler that executes no programs"},
		"handler-executes":    {module + `"environment": {"A": "b"}, "capabilities": {"exec": ["/bin/true"]}`, ""},
		"wasi-environment":    {wasi + `"environment": {"A": "b"}`, ""},
		"wasi-env":            {wasi + secret(`"env": "T"`), "/secrets/s/env reaches nobody: a WASI command is given no secrets"},
		"wasi-header":         {wasi + http(`"a.example"`) + header("a.example"), "/secrets/s/header reaches nobody: a WASI command"},
		"wasi-exec":           {wasi + `"capabilities": {"exec": ["/bin/true"]}`, "/capabilities/exec has no effect on a WASI command"},
		"wasi-tool-call":      {wasi + `"capabilities": {"tool_call": true}`, "/capabilities/tool_call has no effect on a WASI command"},
		// A module that only turns out to be a command when it is compiled.
		"command-env":         {`"handler": "main.wasm", ` + secret(`"env": "T"`), "reaches nobody"},
		"command-http":        {`"handler": "main.wasm", ` + http(`"a.example"`) + `"timeout": 1`, "/capabilities/http has no effect on a WASI command"},
		"command-environment": {`"handler": "main.wasm", "capabilities": {"exec": ["/bin/true"]}, "environment": {"A": "b"}`, "/capabilities/exec has no effect on a WASI command"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			b.write(map[string]string{"t/tool.json": `{` + tt.def + `}`, "t/handler.wasm": string(handler("h")), "t/main.wasm": string(wasm{start: true}.bytes())})
			b.open()
			if tt.says == "" {
				if s := b.status("t"); s.State != StateOK {
					t.Errorf("%+v", s)
				}
				return
			}
			b.refused("t", fault.ToolBroken, b.path("t/tool.json")+":1:", tt.says)
			if s := b.status("t"); strings.Count(s.Reason, "\n") > 0 {
				t.Errorf("more than a line: %q", s.Reason)
			}
		})
	}
}
