package compat

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

const guests = "host/compat/testdata/guests/"

// execution is a fresh execution id: a UUID of version 4.
func execution() string {
	b := make([]byte, 16)
	rand.Read(b)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// do makes a call with a payload.
func do(t *testing.T, d *hosttest.Daemon, tool string, payload M) *wire.Result {
	t.Helper()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Call(t.Context(), d.Socket, &wire.Call{Tool: tool, Form: wire.Envelope, ExecutionID: execution(), Payload: raw})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// A plugin of a host of MCP tools is a tool, with its description and schema, by
// the name of its folder; what it imports and does not get fails the call that
// calls it, and is listed; a request that fails or is denied fails its call.
func TestPluginOfOneTool(t *testing.T) {
	site := hosttest.NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, r *http.Request) { w.Write([]byte("a page")) })
	url := "http://127.0.0.1:" + site.Port()
	module := map[string]string{"handler.wasm": hosttest.Guest(t, guests+"one")}
	d := hosttest.Start(t, config.Config{})
	http := M{"http": M{"hosts": []string{"127.0.0.1:" + site.Port(), "127.0.0.1:1"}}}
	d.Tool(t, "fetch", M{"capabilities": http}, module)
	d.Tool(t, "bare", nil, module)
	d.Tool(t, "raw", M{"capabilities": http, "entry": M{"export": "call", "input": "payload", "output": "stdout"}}, module)

	if res := do(t, d, "fetch", M{"url": url}); res.Err != nil || string(res.Data) != `{"status":200}` {
		t.Errorf("fetch: %s %s %v", res.Stdout, res.Data, res.Err)
	}
	if res, stdout, _ := d.Stream(t, &wire.Call{Tool: "fetch", Args: []string{"--url", url}, Cwd: d.Root}, ""); res.Err != nil || stdout != "a page\n" {
		t.Errorf("fetch --url: %q %v", stdout, res.Err)
	}
	for _, tt := range []struct {
		tool    string
		payload M
		code    fault.Code
		want    string
	}{
		{"fetch", M{"uri": url}, fault.InvalidPayload, "uri"},
		{"fetch", M{"url": "none"}, fault.ToolFailed, "Fetch_It has no such page"},
		{"fetch", M{"url": "http://127.0.0.1:1/"}, fault.ToolFailed, "http_request: "},
		{"fetch", M{"url": "http://example.com/"}, fault.ToolFailed, "http_request: "},
		{"fetch", M{"url": url, "elicit": true}, fault.ToolBroken, `calls "elicit" from "extism:host/user", which this host does not have`},
		{"bare", M{"url": url}, fault.ToolBroken, `calls "http_request" from "extism:host/env", which it may not have; to grant it, add`},
	} {
		if res := do(t, d, tt.tool, tt.payload); res.Err == nil || res.Err.Code != tt.code || !strings.Contains(res.Err.Message, tt.want) {
			t.Errorf("%s %v: %v, want %s: %s", tt.tool, tt.payload, res.Err, tt.code, tt.want)
		}
	}
	// Where an entry names the export, describe is the plugin's own matter.
	if res := do(t, d, "raw", M{"params": M{"name": "x", "arguments": M{"url": url}}}); res.Err != nil || !strings.Contains(string(res.Stdout), `"text":"a page"`) {
		t.Errorf("raw: %s %v", res.Stdout, res.Err)
	}
	missing := map[string]int{}
	for _, name := range []string{"fetch", "bare"} {
		s, err := client.NewAdmin(d.Config.Admin).Tool(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		missing[s.Name] = len(s.Missing)
		if s.Name == "fetch" && (s.Description != "Fetches a page." || !strings.Contains(string(s.Schema), `"url"`)) {
			t.Errorf("fetch is %q with %s", s.Description, s.Schema)
		}
	}
	if missing["fetch"] != 1 || missing["bare"] != 3 {
		t.Errorf("missing: %v", missing)
	}
}

// A plugin of several tools brings each by its own name, as names are here.
func TestPluginOfSeveralTools(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "text", nil, map[string]string{"handler.wasm": hosttest.Guest(t, guests+"several")})
	// Under the name of its folder it is none, which is known when it is loaded.
	if res := do(t, d, "text", M{"text": "hello"}); res.Err == nil || res.Err.Code != fault.UnknownTool {
		t.Errorf("text: %s %v", res.Stdout, res.Err)
	}
	if res := do(t, d, "text-upper", M{"text": "hello"}); res.Err != nil || string(res.Stdout) != "HELLO\n" {
		t.Errorf("text-upper: %s %v", res.Stdout, res.Err)
	}
	if res := do(t, d, "text-length", M{"text": "hello"}); res.Err != nil || string(res.Stdout) != "IIIII\n" {
		t.Errorf("text-length: %s %v", res.Stdout, res.Err)
	}
}
