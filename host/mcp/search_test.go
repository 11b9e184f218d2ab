package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// listing is a pipeline that lists these tools, and says what was called of them.
func listing(tools ...translate.Tool) func(context.Context, call.Request) call.Outcome {
	data, err := json.Marshal(map[string]any{"tools": tools})
	if err != nil {
		panic(err)
	}
	return func(_ context.Context, q call.Request) call.Outcome {
		if q.Call.Tool == "tools.list" {
			return call.Outcome{Result: &wire.Result{Ran: true, Data: data}}
		}
		return call.Outcome{Result: &wire.Result{Ran: true, Stdout: []byte("called " + q.Call.Tool)}}
	}
}

// The search is offered on the first page of a list that has more, and there alone.
func TestSearchIsOffered(t *testing.T) {
	many := []translate.Tool{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}
	long := translate.Tool{Name: "e", Description: strings.Repeat("x", maxPage)}
	for _, tt := range []struct {
		name, cursor string
		tools        []translate.Tool
		meta         sdk.Meta
		want         string
	}{
		{name: "one page", tools: many, want: "a b c d"},
		{name: "a page of as many", tools: many, meta: sdk.Meta{metaLimit: 4}, want: "a b c d"},
		{name: "pages", tools: many, meta: sdk.Meta{metaLimit: 3}, want: searchTool + " a b, then b"},
		{name: "the next page", tools: many, cursor: "b", meta: sdk.Meta{metaLimit: 1}, want: "c, then c"},
		{name: "a page of one", tools: many, meta: sdk.Meta{metaLimit: 1}, want: "a, then a"},
		{name: "who searches already", tools: many, meta: sdk.Meta{metaLimit: 2, metaQuery: ""}, want: "a b, then b"},
		{name: "long ones", tools: append(many, long, translate.Tool{Name: "f"}), want: searchTool + " a b c d e, then e"},
		{name: "one of that name", tools: append(many, translate.Tool{Name: searchTool}), meta: sdk.Meta{metaLimit: 2}, want: "a b, then b"},
	} {
		nc, _, _, _ := serve(t, listing(tt.tools...))
		res, err := connect(t, nc).ListTools(t.Context(), &sdk.ListToolsParams{Cursor: tt.cursor, Meta: tt.meta})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, shown := range res.Tools {
			got = append(got, shown.Name)
		}
		said := strings.Join(got, " ")
		if res.NextCursor != "" {
			said += ", then " + res.NextCursor
		}
		if said != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, said, tt.want)
		}
	}
}

func TestSearch(t *testing.T) {
	tools := []translate.Tool{
		{Name: "aa", Description: "Sends mail.", Icons: nil, Output: json.RawMessage(`{"type":"object"}`)},
		{Name: "mail.send", Title: "Send", Schema: json.RawMessage(`{"type":"object","properties":{"to":{"type":"string"}}}`)},
		{Name: "other"},
	}
	for i := range 60 {
		tools = append(tools, translate.Tool{Name: fmt.Sprintf("z%02d", i), Description: "one of many"})
	}
	nc, _, _, _ := serve(t, listing(tools...))
	s := connect(t, nc)
	find := func(args string) (translate.Found, *sdk.CallToolResult) {
		t.Helper()
		r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: searchTool, Arguments: json.RawMessage(args)})
		if err != nil {
			t.Fatal(err)
		}
		var found translate.Found
		b, err := json.Marshal(r.StructuredContent)
		if err == nil && !r.IsError {
			err = json.Unmarshal(b, &found)
		}
		if err != nil {
			t.Fatal(err)
		}
		return found, r
	}
	found, _ := find(`{"query":"SEND mail"}`)
	if len(found.Tools) != 2 || found.Tools[0].Name != translate.Names(tools)["mail.send"] || found.Tools[1].Name != "aa" || found.More != 0 {
		t.Errorf("%+v", found)
	} else if in, _ := json.Marshal(found.Tools[0].InputSchema); !strings.Contains(string(in), `"to"`) || found.Tools[1].OutputSchema == nil {
		t.Errorf("their schemas: %s, %v", in, found.Tools[1].OutputSchema)
	}
	if found, r := find(`{"query":"nowhere"}`); r.IsError || len(found.Tools) != 0 || found.More != 0 {
		t.Errorf("nothing: %+v", found)
	}
	if found, _ := find(`{"query":"many"}`); len(found.Tools) != defaultFound || found.More != 50 {
		t.Errorf("many: %d, and %d more", len(found.Tools), found.More)
	}
	if found, _ := find(`{"query":"many","limit":50}`); len(found.Tools) != 50 || found.More != 10 {
		t.Errorf("many: %d, and %d more", len(found.Tools), found.More)
	}
	for _, args := range []string{`{}`, `{"query":""}`, `{"query":" "}`, `{"query":7}`, `{"query":"a","limit":0}`, `{"query":"a","limit":51}`, `{"query":"a","token":"x"}`, `{"query":"` + strings.Repeat("x", maxQuery+1) + `"}`} {
		if _, r := find(args); !r.IsError || r.Meta[translate.MetaError].(map[string]any)["code"] != "INVALID_PAYLOAD" {
			t.Errorf("%.40s: %v", args, r.Meta)
		}
	}
	// An identity's own tool of that name is what is called.
	nc, _, _, _ = serve(t, listing(translate.Tool{Name: searchTool}))
	r, err := connect(t, nc).CallTool(t.Context(), &sdk.CallToolParams{Name: searchTool, Arguments: map[string]any{}})
	if said, _ := json.Marshal(r); err != nil || !strings.Contains(string(said), "called "+searchTool) {
		t.Errorf("a tool of that name: %s, %v", said, err)
	}
}

// What one search finds is bounded, however long the tools are.
func TestSearchIsBounded(t *testing.T) {
	var tools []translate.Tool
	for i := range 10 {
		tools = append(tools, translate.Tool{Name: fmt.Sprint("a", i), Description: strings.Repeat("x", translate.MaxFound/2)})
	}
	if found := translate.Find(tools, []string{"a"}, mostFound); len(found.Tools) != 1 || found.More != 9 {
		t.Errorf("%d, and %d more", len(found.Tools), found.More)
	}
}
