package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// maxListed is how many sessions' lists are remembered for one requester.
const maxListed = 64

// list returns all tools that the pipeline lists for as, by name, and those it reports missing.
func (c *client) list(ctx context.Context, as Caller) (list []translate.Tool, missing []json.RawMessage, _ *fault.Error) {
	for after := ""; ; {
		payload, err := json.Marshal(map[string]string{"after": after})
		if err != nil {
			return nil, nil, fault.Errorf(fault.Internal, "%w", err)
		}
		o := c.config.Call(ctx, c.request(&wire.Call{
			Form: wire.Envelope, Tool: "tools.list", ExecutionID: wire.NewExecutionID(), Payload: payload,
			Token: as.Token, Session: as.Session, Cwd: as.Cwd,
		}, wire.Streams{}))
		if err := o.Err(); err != nil {
			return nil, nil, err
		}
		var page struct {
			Tools   []translate.Tool  `json:"tools"`
			Next    string            `json:"next"`
			Missing []json.RawMessage `json:"missing"`
		}
		if err := strictjson.UnmarshalLenient(o.Result.Data, &page); err != nil {
			return nil, nil, fault.Errorf(fault.Internal, "read the list of tools: %w", err)
		}
		list, missing = append(list, page.Tools...), page.Missing
		if page.Next <= after {
			return list, missing, nil
		}
		after = page.Next
	}
}

// hasOutput reports whether clients were shown an output schema of the tool. They expect
// structured content in each of its results then.
func (c *client) hasOutput(ctx context.Context, as Caller, name string) bool {
	list, _, err := c.list(ctx, as)
	i := slices.IndexFunc(list, func(t translate.Tool) bool { return t.Name == name })
	return err == nil && i >= 0 && list[i].HasOutput()
}

// structure gives the result of a tool its data as structured content, where clients
// want that. It asks only where data came beside texts.
func (c *client) structure(ctx context.Context, as Caller, name string, res *sdk.CallToolResult, data json.RawMessage) {
	if res.StructuredContent == nil && !res.IsError && len(data) > 0 && data[0] == '{' && c.hasOutput(ctx, as, name) {
		res.StructuredContent = data
	}
}

// named returns the name of the tool that clients see as shown.
func (c *client) named(ctx context.Context, as Caller, shown string) (string, *fault.Error) {
	if !translate.Fits(shown) {
		return "", fault.Errorf(fault.UnknownTool, "there is no tool %q; tools/list lists those that there are", shown)
	}
	if !translate.MayBeMapped(shown) {
		return shown, nil
	}
	list, _, err := c.list(ctx, as)
	if err != nil {
		return "", err
	}
	for name, s := range translate.Names(list) {
		if s == shown {
			return name, nil
		}
	}
	return shown, nil
}

// listed is the list that a client was given last.
type listed struct {
	as     Caller
	digest [32]byte
}

// lists has what clients of a requester were shown of the tools.
type lists struct {
	client  *client
	server  *sdk.Server
	changed chan struct{} // the tools of the daemon did, maybe

	mu     sync.Mutex        // guards what follows
	listed map[string]listed // by session
	stale  bool              // some client has an older list than another one

	mirroring sync.Mutex
	mirrored  map[string]string // see mirror; guarded by mirroring
}

// gave notes the list that a client was given. Over HTTP other clients of the
// identity may have an older one: they are notified.
func (l *lists) gave(as Caller, list []translate.Tool) {
	now := listed{as, digestOf(list)}
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.listed[as.Session]
	if len(l.listed) >= maxListed {
		clear(l.listed) // their clients are notified of the next change, of any tool
	}
	l.listed[as.Session] = now
	if l.client.identity != "" && known && last.digest != now.digest {
		l.stale = true
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// isAnother reports whether a list is another one than clients were given last,
// and keeps the new ones.
func (l *lists) isAnother() (another bool) {
	l.mu.Lock()
	given := maps.Clone(l.listed)
	another, l.stale = l.stale, false
	unknown := l.client.identity != "" && len(given) == 0
	l.mu.Unlock()
	for session, last := range given {
		list, _, err := l.client.list(l.client.left, last.as)
		if err != nil {
			continue // its next request gets the error
		}
		l.mirror(list)
		digest := digestOf(list)
		l.mu.Lock()
		if now := l.listed[session]; now.digest != digest {
			// It may have been given one meanwhile.
			another = true
			l.listed[session] = listed{last.as, digest}
		}
		l.mu.Unlock()
	}
	return another || unknown
}

// watch tells clients when their list of tools is another one, until over.
func (l *lists) watch(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-l.changed:
		}
		if l.isAnother() {
			// The SDK tells those that listen of a change of its own tools only. This
			// one is never listed or called: both are the pipeline's.
			addTool(l.server, "changed", json.RawMessage(translate.AnyObject))
		}
	}
}

// mirrorKeyword marks a property that a request over HTTP has in a header too, for
// what routes it.
const mirrorKeyword = `"x-mcp-header"`

// mirror makes the SDK check those headers, which it does for its own tools. It neither
// lists nor calls them.
func (l *lists) mirror(list []translate.Tool) {
	if l.client.identity == "" {
		return
	}
	want := map[string]string{}
	names := translate.Names(list)
	for _, t := range list {
		if shown, ok := names[t.Name]; ok && bytes.Contains(t.Schema, []byte(mirrorKeyword)) {
			want[shown] = string(t.Schema)
		}
	}
	l.mirroring.Lock()
	defer l.mirroring.Unlock()
	if maps.Equal(want, l.mirrored) {
		return
	}
	for name := range l.mirrored {
		if _, ok := want[name]; !ok {
			l.server.RemoveTools(name)
		}
	}
	for name, schema := range want {
		if l.mirrored[name] != schema {
			addTool(l.server, name, json.RawMessage(schema))
		}
	}
	l.mirrored = want
}

// addTool makes a tool known to the SDK, which panics at a schema that it cannot use.
func addTool(server *sdk.Server, name string, schema json.RawMessage) {
	defer func() { _ = recover() }() // the headers of that tool are not checked
	server.AddTool(&sdk.Tool{Name: name, InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, io.EOF
	})
}

func digestOf(list []translate.Tool) [32]byte {
	b, _ := json.Marshal(list)
	return sha256.Sum256(b)
}
