package finder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/record"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// listDiscovered lists by name what the modules provide for the caller of a, and why part of it is missing. If two
// modules provide the same name, the first one wins; a tool of tools.d always keeps its own.
func (f *Finder) listDiscovered(ctx context.Context, a call.Admitted, taken map[string]bool, refresh func(discovery.Key)) (list []listedTool, missing []unlisted) {
	for _, source := range f.Tools.Serving().Discovering() {
		p, _, s, release, err := f.discovered(ctx, a, source, refresh)
		if errors.Is(err, errNotServed) {
			continue
		}
		if err != nil {
			if !mayName(&a, source) {
				continue
			}
			e := call.AsError(ctx, err)
			missing = append(missing, unlisted{source, string(e.Code), record.Brief(e.Message, maxReason), e.Retriable()})
			continue
		}
		for _, t := range s.Visible(p.ReadOnly()) {
			if taken[t.Name] {
				f.Log.Warn("tool is left out: another has its name", "tool", source, "name", t.Name)
				continue
			}
			taken[t.Name] = true
			list = append(list, listedTool{
				Name: t.Name, Title: t.Title, Description: t.Description, Category: p.Tool.Def.Category,
				Schema: raw(t.Schema), Annotations: raw(t.Annotations), Output: raw(t.Output), Icons: raw(t.Icons), Mutating: t.Mutating, Source: source,
			})
		}
		if s.Stale != "" && mayName(&a, source) {
			missing = append(missing, unlisted{source, "", "its tools may be out of date: " + record.Brief(s.Stale, maxReason), true})
		}
		release()
	}
	return list, missing
}

// mayName reports whether the caller of a may learn that the tool source exists, and how it fails. A caller restricted
// to a list of tools learns of no others.
func mayName(a *call.Admitted, source string) bool {
	return mayList(a, source) && (a.Caller.Session() == "" || a.Execution.Admits(source))
}

// mayList reports whether the module that makes the call, if any, may call that tool.
func mayList(a *call.Admitted, tool string) bool {
	return a.By == nil || a.By.Allowed.Sessions() || a.By.Allowed.Tool(tool)
}

// listedTool is one tool as returned by tools.list.
type listedTool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Category    string          `json:"category,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	// Output is the schema of its data, and Icons are for people.
	Output   json.RawMessage `json:"output_schema,omitempty"`
	Icons    json.RawMessage `json:"icons,omitempty"`
	Mutating bool            `json:"mutating,omitempty"`
	// Source is the tool of tools.d that provides this one for the caller.
	Source string `json:"source,omitempty"`
	// Unshown means that there is a schema, but it is too long for a response.
	Unshown bool `json:"schema_unshown,omitempty"`
}

// unlisted is a tool of tools.d whose own tools are missing or out of date.
type unlisted struct {
	Source    string `json:"source"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message"`
	Retriable bool   `json:"retriable"`
}

// maxListPage is roughly how many bytes of tools one response of tools.list holds: what a frame has left for them.
const maxListPage = 48 << 10

// maxReason bounds, in bytes, the reason in a list why a module's tools are missing.
const maxReason = 512

// ListID is the reserved tool id whose call lists the tools of a socket.
const ListID = "tools.list"

// listPage holds the arguments of a call of tools.list.
type listPage struct {
	After   string `json:"after"`
	Limit   int    `json:"limit"`
	Refresh bool   `json:"refresh"`
}

// readPage parses the arguments of a. help is set if a asks for the help text instead.
func readPage(a *call.Admitted) (page listPage, help string, err error) {
	payload, takes, into := a.Call.Payload, "after, limit and refresh", any(&page)
	if a.Form == wire.Plain { // which has no pages
		parsed, err := arguments.Parse(arguments.Tool{Name: ListID, Schema: json.RawMessage(`{"type":"object","properties":{"refresh":{"type":"boolean"}},"additionalProperties":false}`)}, a.Args, nil, 0)
		if err != nil {
			return page, "", err
		}
		if parsed.Help != "" {
			return page, parsed.Help, nil
		}
		payload = parsed.Payload
		takes, into = "refresh=true", &struct {
			Refresh *bool `json:"refresh"`
		}{&page.Refresh}
	}
	if err := strictjson.Unmarshal(payload, into); err != nil {
		return page, "", fault.Errorf(fault.InvalidPayload, "tools.list takes %s: %w", takes, err)
	}
	return page, "", nil
}

// of returns the tools of list, which is sorted by name, that are on the page, and the name to continue after; it is
// empty if there are no more.
func (p listPage) of(list []listedTool) (tools []json.RawMessage, next string, err error) {
	from, _ := slices.BinarySearchFunc(list, p.After, func(t listedTool, after string) int {
		if t.Name <= after {
			return -1
		}
		return 1
	})
	tools = []json.RawMessage{}
	size := 0
	for i, t := range list[from:] {
		if len(t.Schema) > maxListPage/2 {
			t.Schema, t.Unshown = nil, true
		}
		if len(t.Output)+len(t.Icons) > maxListPage/4 { // calls are validated nevertheless
			t.Output, t.Icons = nil, nil
		}
		t.Description = record.Brief(t.Description, discovery.MaxText)
		b, err := json.Marshal(t)
		if err != nil {
			return nil, "", err
		}
		if size += len(b); i > 0 && size > maxListPage || p.Limit > 0 && i >= p.Limit {
			return tools, list[from+i-1].Name, nil
		}
		tools = append(tools, b)
	}
	return tools, "", nil
}

// List returns the tools that the caller can call on this socket, sorted by name: those after the name "after", as
// many as fit in a response. "next" is the name to continue after.
func (f *Finder) List(ctx context.Context, a call.Admitted) call.Outcome {
	page, help, err := readPage(&a)
	if err != nil {
		return call.Failed(ctx, err)
	}
	if help != "" {
		return call.Text(ctx, &a.Request, help)
	}
	if err := f.Tools.Ready(ctx); err != nil {
		return call.Failed(ctx, err)
	}
	entrance := f.Config.Config().Entrance(a.Socket)
	list, taken := []listedTool{}, map[string]bool{}
	serving := f.Tools.Serving()
	discovering, listening := serving.Discovering(), serving.Listening()
	for _, s := range f.Tools.List() {
		taken[s.Name] = true
		if len(listening[s.Name]) == 0 && s.Serving() && entrance.Serves(s.Category) && !slices.Contains(discovering, s.Name) {
			list = append(list, listedTool{
				Name: s.Name, Title: s.Title, Description: s.Description, Category: s.Category,
				Schema: s.Schema, Annotations: annotations(s.Annotations, s.Mutating), Output: s.Output, Mutating: s.Mutating,
			})
		}
	}
	var wait time.Duration
	var refresh func(discovery.Key)
	if page.Refresh {
		refresh = func(key discovery.Key) { wait = max(wait, f.Discovered.Refresh(key)) }
	}
	found, missing := f.listDiscovered(ctx, a, taken, refresh)
	list = slices.DeleteFunc(append(list, found...), func(t listedTool) bool {
		return !a.Execution.Admits(t.Name) || !mayList(&a, t.Name)
	})
	slices.SortFunc(list, func(a, b listedTool) int { return strings.Compare(a.Name, b.Name) })
	res := &wire.Result{Ran: true}
	if a.Form == wire.Plain {
		for _, t := range list {
			res.Stdout = append(append(res.Stdout, t.Name...), '\n')
		}
		for _, m := range missing {
			res.Stderr = fmt.Appendf(res.Stderr, "%s: %s\n", m.Source, m.Message)
		}
		if wait > 0 {
			res.Stderr = fmt.Appendf(res.Stderr, "some tools were not discovered again; try again in %v\n", wait.Round(time.Second))
		}
	}
	var answer struct {
		Tools   []json.RawMessage `json:"tools"`
		Next    string            `json:"next,omitempty"`
		Missing []unlisted        `json:"missing,omitempty"`
		// RefreshAfter is the time, in milliseconds, until the refresh that the caller wanted is possible.
		RefreshAfter int64 `json:"refresh_after_ms,omitempty"`
	}
	if answer.Tools, answer.Next, err = page.of(list); err != nil {
		return call.Failed(ctx, err)
	}
	answer.Missing = missing
	answer.RefreshAfter = (wait + time.Millisecond - 1).Milliseconds()
	res.Data, err = json.Marshal(answer)
	if err != nil {
		return call.Failed(ctx, err)
	}
	return call.Outcome{Result: res}
}

// annotations returns what a tool of tools.d declares of itself, without the title, or nil. One that is mutating is
// not read-only.
func annotations(a *abi.Annotations, mutating bool) json.RawMessage {
	if a == nil {
		return nil
	}
	said := *a
	said.Title = ""
	if no := false; mutating {
		said.ReadOnly = &no
	}
	b, err := json.Marshal(said)
	if err != nil || string(b) == "{}" {
		return nil
	}
	return b
}

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// CompleteID is the reserved tool id whose call completes a command line: its arguments are the name of a tool and the
// words after it, the last one as typed so far. It runs no tool.
const CompleteID = "tools.complete"

// Complete returns the flags and values that the schema of a tool names, to callers that may call the tool. It returns
// nothing for a tool without a schema, whose program would have to be asked.
func (f *Finder) Complete(ctx context.Context, a call.Admitted) call.Outcome {
	if a.Form != wire.Plain || len(a.Args) < 2 {
		return call.Failed(ctx, fault.Errorf(fault.InvalidPayload, "tools.complete takes the name of a tool and the words after it; call it in the plain form, as tool-client --complete does"))
	}
	named := *a.Call
	named.Tool, named.Args = a.Args[0], a.Args[1:]
	words := named.Args
	a.Call = &named
	if !a.Execution.Admits(named.Tool) || !mayList(&a, named.Tool) {
		return call.Failed(ctx, tools.Unknown(named.Tool))
	}
	p, release, err := f.Pin(ctx, a)
	if err != nil {
		return call.Failed(ctx, err)
	}
	defer release()
	text := ""
	if p.TakesText() {
		text, err = arguments.Complete(arguments.Tool{Name: named.Tool, Schema: json.RawMessage(p.Schema())}, words)
	}
	if err != nil {
		return call.Failed(ctx, err)
	}
	return call.Text(ctx, &a.Request, text)
}
