//lint:file-ignore SA1019 sampling, roots and logging go on until clients have gone over

package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// FuzzTell: whatever a module tells of its progress, its client is asked only what it
// may be, in the name of the tool, and nothing panics.
func FuzzTell(f *testing.F) {
	for _, s := range []string{
		`{"progress":1,"total":2,"message":"m"}`, `"text"`, `{"io.toold/input":{"a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object"}}}}}`,
		`{"io.toold/input":{"a":{"method":"elicitation/create"}}}`, `{"io.toold/input":{"a":null}}`, `{"io.toold/input":{"a":{"method":"roots/list"}}}`,
		`{"io.toold/input":{"a":{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"t"}}],"maxTokens":1}}}}`,
		`{"io.toold/needs":{"sampling":{},"extensions":{"x":{}}}}`, `{"io.toold/log":{"level":"info","data":1}}`, `{"io.toold/reconnect":{"after_ms":1}}`,
	} {
		f.Add([]byte(s), []byte(`{"a":{"action":"accept","content":{"input":"x"}}}`))
	}
	f.Fuzz(func(t *testing.T, told, answer []byte) {
		if !json.Valid(told) {
			return // pdk/abi: what is emitted as progress is JSON
		}
		d := &dialog{tool: "t", can: &sdk.ClientCapabilities{Sampling: &sdk.SamplingCapabilities{}, Elicitation: &sdk.ElicitationCapabilities{}, RootsV2: &sdk.RootCapabilities{}}}
		if d.progress(told) == nil {
			for key, q := range d.asked {
				if strings.HasPrefix(key, "io.toold/") {
					t.Errorf("the daemon's key %q is asked", key)
				}
				switch q := q.(type) {
				case *sdk.ElicitParams:
					if !strings.HasPrefix(q.Message, `The tool "t" asks:`) || q.URL != "" {
						t.Errorf("asked as %q, %q", q.Message, q.URL)
					}
				case *sdk.CreateMessageWithToolsParams:
					if q == nil {
						t.Error("asked for nothing")
					}
				case *sdk.ListRootsParams:
					if q == nil {
						t.Error("asked for nothing")
					}
				default:
					t.Errorf("asked for %T", q)
				}
			}
			if len(d.asked) > maxQuestions {
				t.Errorf("%d questions", len(d.asked))
			}
			if _, err := json.Marshal(d.asked); err != nil {
				t.Errorf("what is asked cannot be sent: %v", err)
			}
			var raw map[string]json.RawMessage
			if json.Unmarshal(answer, &raw) == nil {
				given := responsesOf(raw)
				for key, q := range d.asked {
					answerTo(q, given[key])
				}
			}
		}
		translate.Progress(told)
	})
}

// FuzzResult: whatever a tool answers, its client gets a result that is one.
func FuzzResult(f *testing.F) {
	for _, s := range []string{
		`{"a":1}`, `[1]`, `null`, `{"io.toold/content":[{"type":"text","text":"t"},{"type":"image","data":"aaaa","mimeType":"image/png"}]}`, `{"io.toold/content":[null]}`, `{"io.toold/content":null}`,
		`{"io.toold/content":[{"type":"resource","resource":{"uri":"a:b","text":"t"}}]}`, `{"io.toold/content":[{"type":"resource"}]}`, `{"io.toold/content":[{"type":"resource_link","uri":"a:b","name":"n"}]}`,
	} {
		f.Add("out\xff", []byte(s), 0)
	}
	f.Fuzz(func(t *testing.T, out string, data []byte, exit int) {
		if len(data) > 0 && !json.Valid(data) {
			return // the pipeline passes on what is JSON
		}
		b, err := json.Marshal(translate.Result(&wire.Result{Ran: true, Stdout: []byte(out), Data: data, ExitCode: exit}))
		var back sdk.CallToolResult
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		if err != nil || back.IsError != (exit != 0) {
			t.Errorf("%q is sent as %s: %v", data, b, err)
		}
	})
}

// panics is a log that keeps that there was one.
type panics struct {
	slog.Handler
	said *atomic.Pointer[string]
}

func (p panics) Enabled(context.Context, slog.Level) bool { return true }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		said := r.Message
		r.Attrs(func(a slog.Attr) bool { said += " " + a.String(); return true })
		p.said.Store(&said)
	}
	return nil
}

// FuzzMessage: whatever a client sends, and the pipeline answers of what modules made,
// no request panics, and the next one is answered or the connection closed.
func FuzzMessage(f *testing.F) {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	list := `{"tools":[{"name":"a","schema":{"type":"object"}}]}`
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":"x",` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tasks/update","params":{"taskId":"x","inputResponses":{"a":{"action":"accept"}},` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tasks/cancel","params":{"taskId":"x",` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tasks/cancel"}`, `{"jsonrpc":"2.0","id":2,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"cursor":"a",` + meta + `,"io.toold/query":"a","io.toold/limit":1}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tools_search","arguments":{"query":"a","limit":1},` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a","arguments":{"args":[]},` + meta + `,"io.toold/turn":"t","io.toold/retry":true,"io.toold/session":"s","io.toold/token":"t"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a","requestState":"x","inputResponses":{"io.toold/approval":{"action":"accept","content":{}}},` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + meta + `}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`,
	} {
		f.Add([]byte(s), []byte(list))
		f.Add([]byte(s), []byte(`{"value":[{"id":"x","state":"done","data":{"io.toold/content":[null]},"progress":{"io.toold/input":1}}]}`))
	}
	f.Fuzz(func(t *testing.T, line, answer []byte) {
		if bytes.ContainsAny(line, "\r\n") || bytes.Contains(line, []byte("last")) {
			return
		}
		var said atomic.Pointer[string]
		ours, theirs := net.Pipe()
		front := New(Config{Version: "1", Logger: slog.New(panics{slog.DiscardHandler, &said}), Call: func(_ context.Context, q call.Request) call.Outcome {
			res := &wire.Result{Ran: true, Data: answer}
			if q.Call.Tool == "a" {
				res.Err = fault.Errorf(fault.ApprovalRequired, "as the test wants it")
			}
			return call.Outcome{Result: res}
		}})
		served := make(chan struct{})
		go func() {
			defer close(served)
			front.Serve(t.Context(), make(chan struct{}), ours, Peer{})
		}()
		theirs.SetDeadline(time.Now().Add(20 * time.Second))
		go theirs.Write([]byte(initialize + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + string(line) + "\n" + `{"jsonrpc":"2.0","id":"last","method":"ping"}` + "\n"))
		in := bufio.NewReader(theirs)
		for {
			got, err := in.ReadString('\n')
			if err, ok := err.(net.Error); ok && err.Timeout() {
				t.Errorf("%q is not answered", line)
			}
			if err != nil || strings.Contains(got, `"last"`) {
				break
			}
		}
		theirs.Close()
		<-served
		if why := said.Load(); why != nil {
			t.Errorf("%q: %s", line, *why)
		}
	})
}
