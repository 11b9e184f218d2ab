package host_test

import (
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// issueSchema is of a tool that takes a payload, and no command line.
var issueSchema = M{
	"type": "object", "required": []string{"title"},
	"properties": M{
		"title": M{"type": "string", "description": "what it is about"}, "labels": M{"type": "array", "items": M{"type": "string"}},
		"draft": M{"type": "boolean"}, "count": M{"type": "integer"}, "body": M{"type": "string"},
	},
}

// A tool with a schema is called by its wrapper with flags, and gets the payload
// that a program would send.
func TestTextBySchema(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	def := maps.Clone(granted)
	def["schema"] = issueSchema
	d.Tool(t, "issue", def, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	payload := func(a *answer) map[string]any {
		var seen struct {
			Payload map[string]any `json:"payload"`
		}
		if a.Data != nil {
			json.Unmarshal(a.Data, &seen)
		} else { // of the plain form
			json.Unmarshal([]byte(a.Stdout), &seen.Payload)
		}
		return seen.Payload
	}
	call := func(stdin string, args ...string) *answer {
		return ask(t, d.Socket, M{"tool": "issue", "args": args, "cwd": d.Root, "stdin": []byte(stdin)})
	}
	sent := ask(t, d.Socket, M{"toolId": "issue", "executionId": newExecution(), "payload": M{"title": "it breaks", "labels": []string{"a", "b"}, "draft": true, "count": 3}})
	for _, args := range [][]string{
		{"--title", "it breaks", "--labels", "a", "--labels=b", "--draft", "--count", "3"},
		{"title=it breaks", "labels=a", "labels=b", "draft=true", "count=3"},
		{"--json", `{"title": "it breaks", "labels": ["a", "b"], "draft": true, "count": 3}`},
	} {
		if a := call("", args...); a.ExitCode != 0 || !reflect.DeepEqual(payload(a), payload(sent)) || len(payload(a)) == 0 {
			t.Errorf("%q: %s, a program gets %s", args, a.raw, sent.raw)
		}
	}
	if a := call("long text\n", "--title", "x", "--body", "-"); payload(a)["body"] != "long text\n" {
		t.Errorf("a value from standard input: %s", a.raw)
	}
	if a := call("", "--tilte", "x"); a.Code != "INVALID_PAYLOAD" || a.ExitCode != 64 || !strings.Contains(a.message(), "--tilte") || !strings.Contains(a.message(), "did you mean --title") {
		t.Errorf("a misspelled flag: %s", a.raw)
	}
	if a := call("", "--title", "x", "--count", "many"); a.Code != "INVALID_PAYLOAD" || !strings.Contains(a.message(), "--count") {
		t.Errorf("a value of another type: %s", a.raw)
	}
	if a := call("", "--help"); a.ExitCode != 0 || !strings.Contains(a.Stdout, "--title") || !strings.Contains(a.Stdout, "what it is about") {
		t.Errorf("the usage: %s", a.raw)
	}
	// A turn by text is the same.
	prompt := ask(t, d.Socket, M{"toolId": "session.prompt", "executionId": newExecution(), "payload": M{"text": `issue --title "it breaks" --labels a --labels b --draft --count 3`}})
	if !reflect.DeepEqual(payload(prompt), payload(sent)) {
		t.Errorf("a prompt: %s", prompt.raw)
	}
	// By a stream, the value is read as it comes, and the usage is its output.
	conn, err := client.Dial(t.Context(), d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var out strings.Builder
	r, err := conn.Stream(t.Context(), &wire.Call{Tool: "issue", Args: []string{"title=-"}, Cwd: d.Root}, wire.Local{Stdin: strings.NewReader("of a stream"), Stdout: &out, Stderr: io.Discard})
	if err != nil || r.Err != nil || !strings.Contains(out.String(), `"title":"of a stream"`) {
		t.Errorf("a value by a stream: %+v, %v", r, err)
	}
	if r, err = conn.Stream(t.Context(), &wire.Call{Tool: "issue", Args: []string{"--help"}, Cwd: d.Root}, wire.Local{Stdin: strings.NewReader("unread"), Stdout: &out, Stderr: io.Discard}); err != nil || r.ExitCode != 0 || !strings.Contains(out.String(), "--title") {
		t.Errorf("the usage by a stream: %q, %+v, %v", out.String(), r, err)
	}
}

// The same call has the same record, by text and as a payload.
func TestTextHasTheSameRecord(t *testing.T) {
	d := reliableDaemon(t, config.Config{})
	def := maps.Clone(granted)
	def["schema"], def["mutating"] = issueSchema, true
	d.Tool(t, "issue", def, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	first := ask(t, d.Socket, M{"tool": "issue", "args": []string{"--title", "once"}, "cwd": d.Root})
	again := ask(t, d.Socket, M{"toolId": "issue", "executionId": newExecution(), "payload": M{"title": "once"}})
	if first.ExitCode != 0 || !strings.Contains(string(again.raw), `"fromCache":true`) {
		t.Errorf("%s, then %s", first.raw, again.raw)
	}
}
