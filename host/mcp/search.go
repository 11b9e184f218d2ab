package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// A client whose list of tools is longer than a page is offered a tool that finds
// some of them, so that its model need not be given all. It searches the list that
// the caller would get, made for that call, and no other.

// searchTool is its name. An identity that has a tool of that name has its own.
const searchTool = "tools_search"

// maxQuery is the longest query for tools, in bytes.
const maxQuery = 1024

const (
	// defaultFound and mostFound are how many tools one search finds.
	defaultFound = 10
	mostFound    = 50
)

// search describes the tool to clients.
func search() *sdk.Tool {
	yes, no := true, false
	return &sdk.Tool{
		Name: searchTool, Title: "Search tools",
		Description: "Finds tools of this server by words of their names, titles and descriptions. Not all tools are on the first page of the list: search before you say that there is none for a task.",
		InputSchema: json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{`+
			`"query":{"type":"string","minLength":1,"maxLength":%d,"description":"Words of which a tool has all."},`+
			`"limit":{"type":"integer","minimum":1,"maximum":%d,"default":%d,"description":"How many tools to find."}},`+
			`"required":["query"],"additionalProperties":false}`, maxQuery, mostFound, defaultFound)),
		OutputSchema: json.RawMessage(`{"type":"object","properties":{` +
			`"tools":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"title":{"type":"string"},"description":{"type":"string"},"inputSchema":{"type":"object"},"outputSchema":{"type":"object"}},"required":["name","inputSchema"]}},` +
			`"more":{"type":"integer","description":"How many further tools have these words."}},"required":["tools","more"]}`),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, DestructiveHint: &no, IdempotentHint: yes, OpenWorldHint: &no},
	}
}

func hasTool(list []translate.Tool, name string) bool {
	return slices.ContainsFunc(list, func(t translate.Tool) bool { return t.Name == name })
}

// wordsOf splits a query into words; false if it is too long.
func wordsOf(query string) ([]string, bool) {
	return strings.Fields(strings.ToLower(query)), len(query) <= maxQuery
}

// searchTools answers a call of the tool; nil where it is the identity's own.
func (r *requester) searchTools(ctx context.Context, q *sdk.CallToolRequest, token string) *sdk.CallToolResult {
	failed := func(e *fault.Error) *sdk.CallToolResult { return translate.Result(&wire.Result{Err: e}) }
	run, done, refused := r.begin(ctx, q.Session)
	if refused != nil {
		return failed(refused)
	}
	defer done()
	as, refused := r.as(q.Params.Meta, token)
	if refused != nil {
		return failed(refused)
	}
	list, _, refused := r.list(run, as)
	if refused != nil {
		return failed(refused)
	}
	if hasTool(list, searchTool) {
		return nil
	}
	asked := struct {
		Query string `json:"query"`
		Limit *int   `json:"limit"`
	}{}
	if err := strictjson.Unmarshal(q.Params.Arguments, &asked); err != nil {
		return failed(fault.Errorf(fault.InvalidPayload, "/payload%w", err))
	}
	words, ok := wordsOf(asked.Query)
	limit := defaultFound
	if asked.Limit != nil {
		limit = *asked.Limit
	}
	switch {
	case !ok || len(words) == 0:
		return failed(fault.Errorf(fault.InvalidPayload, "/payload/query: is not 1 to %d bytes with a word; give words of the tool's name or description", maxQuery))
	case limit < 1 || limit > mostFound:
		return failed(fault.Errorf(fault.InvalidPayload, "/payload/limit: is not from 1 to %d", mostFound))
	}
	data, err := json.Marshal(translate.Find(list, words, limit))
	if err != nil {
		return failed(fault.Errorf(fault.Internal, "%w", err))
	}
	return translate.Result(&wire.Result{Ran: true, Data: data})
}
