package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

const (
	// maxPage is about how many bytes of tools one answer has.
	maxPage = 512 << 10
)

// Keys of _meta, of requests and of results.
const (
	metaKey     = "io.toold/idempotencyKey"
	metaTurn    = "io.toold/turn"
	metaRetry   = "io.toold/retry"
	metaQuery   = "io.toold/query"
	metaLimit   = "io.toold/limit"
	metaSession = "io.toold/session"
	metaToken   = "io.toold/token"
	metaMissing = "io.toold/missing"
)

// maxQuery is the longest query for tools, in bytes.
const maxQuery = 1024

// maxListed is how many sessions' lists are remembered for one requester.
const maxListed = 64

// listTTL is how long a client may use a list without asking again. One that listens
// is told of changes.
const listTTL = 30 * time.Second

// listed is the list that a client was given last.
type listed struct {
	as     Caller
	digest [32]byte
}

// as is who asks for a request, by its _meta and the token that it came with.
func (r *requester) as(meta sdk.Meta, token string) (Caller, *fault.Error) {
	as := r.caller
	for key, to := range map[string]*string{metaToken: &as.Token, metaSession: &as.Session} {
		v, there := meta[key]
		if !there {
			continue
		}
		s, ok := v.(string)
		if !ok {
			return as, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string", key)
		}
		*to = s
	}
	if r.identity != "" {
		if _, there := meta[metaToken]; there {
			return as, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not taken over HTTP; send the token as Authorization: Bearer", metaToken)
		}
		as.Token = token
	}
	return as, nil
}

// list is all that the pipeline lists for as, by name, and what it says is missing.
func (r *requester) list(ctx context.Context, as Caller) (list []translate.Tool, missing []json.RawMessage, _ *fault.Error) {
	for after := ""; ; {
		payload, err := json.Marshal(map[string]string{"after": after})
		if err != nil {
			return nil, nil, fault.Errorf(fault.Internal, "%w", err)
		}
		o := r.front.config.Call(ctx, r.request(&wire.Call{
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

// listTools answers tools/list: those after the name that the cursor is, as many as
// fit an answer.
func (r *requester) listTools(ctx context.Context, q *sdk.ListToolsRequest, token string) (sdk.Result, error) {
	run, done, refused := r.begin(ctx, q.Session)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	defer done()
	var meta sdk.Meta
	var cursor string
	if q.Params != nil {
		meta, cursor = q.Params.Meta, q.Params.Cursor
	}
	as, refused := r.as(meta, token)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	list, missing, refused := r.list(run, as)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	r.gave(as, list)
	r.mirror(list)
	chosen, limit, refused := choiceOf(meta)
	if refused != nil {
		return nil, translate.Error(refused)
	}
	res := &sdk.ListToolsResult{Tools: []*sdk.Tool{}, Cacheable: sdk.Cacheable{CacheScope: "private", TTLMs: int(listTTL.Milliseconds())}}
	if meta[metaQuery] != nil || meta[metaLimit] != nil {
		res.TTLMs = 0 // clients keep an answer whatever its _meta asked for
	}
	if len(missing) > 0 {
		res.Meta = sdk.Meta{metaMissing: missing}
	}
	size, names := 0, translate.Names(list)
	searchable := cursor == "" && limit != 1 && meta[metaQuery] == nil && !hasTool(list, searchTool)
	if searchable && limit > 0 && len(names) > limit {
		limit-- // for the search
	}
	for _, t := range list {
		shown, ok := names[t.Name]
		if !ok || t.Name <= cursor || !chosen(t) {
			continue
		}
		if size > maxPage || limit > 0 && len(res.Tools) >= limit {
			res.NextCursor = cmp.Or(res.NextCursor, cursor)
			break
		}
		size += t.Size()
		res.Tools = append(res.Tools, t.Describe(shown))
		cursor = t.Name
	}
	if searchable && res.NextCursor != "" {
		res.Tools = slices.Insert(res.Tools, 0, search())
	}
	return res, nil
}

// choiceOf is which tools a client wants listed, and how many in one answer; 0 is as
// many as fit.
func choiceOf(meta sdk.Meta) (chosen func(translate.Tool) bool, limit int, _ *fault.Error) {
	var words []string
	if v, there := meta[metaQuery]; there {
		query, ok := v.(string)
		fits := false
		if words, fits = wordsOf(query); !ok || !fits {
			return nil, 0, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string of up to %d bytes", metaQuery, maxQuery)
		}
	}
	if v, there := meta[metaLimit]; there {
		n, ok := v.(float64)
		if limit = int(n); !ok || float64(limit) != n || limit < 1 {
			return nil, 0, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a number from 1 on", metaLimit)
		}
	}
	return func(t translate.Tool) bool { return t.HasWords(words) }, limit, nil
}

// gave notes the list that a client was given. Over HTTP other clients of the
// identity may have an older one: they are told.
func (r *requester) gave(as Caller, list []translate.Tool) {
	now := listed{as, digestOf(list)}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.listed[as.Session]
	if len(r.listed) >= maxListed {
		clear(r.listed) // their clients are told of the next change, whatever it is
	}
	r.listed[as.Session] = now
	if r.identity != "" && known && last.digest != now.digest {
		r.stale = true
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// listIsAnother reports whether a list is another one than clients were given last,
// and keeps the new ones.
func (r *requester) listIsAnother() (another bool) {
	r.mu.Lock()
	given := maps.Clone(r.listed)
	another, r.stale = r.stale, false
	unknown := r.identity != "" && len(given) == 0
	r.mu.Unlock()
	for session, last := range given {
		list, _, err := r.list(r.left, last.as)
		if err != nil {
			continue // its next request says why
		}
		r.mirror(list)
		digest := digestOf(list)
		r.mu.Lock()
		if now := r.listed[session]; now.digest != digest {
			// It may have been given one meanwhile.
			another = true
			r.listed[session] = listed{last.as, digest}
		}
		r.mu.Unlock()
	}
	return another || unknown
}

// mirrorKeyword marks a property that a request over HTTP has in a header too, for
// what routes it.
const mirrorKeyword = `"x-mcp-header"`

// mirror has the SDK check those headers: it does for tools that it knows. It neither
// lists nor calls them.
func (r *requester) mirror(list []translate.Tool) {
	if r.identity == "" {
		return
	}
	want := map[string]string{}
	names := translate.Names(list)
	for _, t := range list {
		if shown, ok := names[t.Name]; ok && bytes.Contains(t.Schema, []byte(mirrorKeyword)) {
			want[shown] = string(t.Schema)
		}
	}
	r.mirroring.Lock()
	defer r.mirroring.Unlock()
	if maps.Equal(want, r.mirrored) {
		return
	}
	for name := range r.mirrored {
		if _, ok := want[name]; !ok {
			r.server.RemoveTools(name)
		}
	}
	for name, schema := range want {
		if r.mirrored[name] != schema {
			addTool(r.server, name, json.RawMessage(schema))
		}
	}
	r.mirrored = want
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

// hasOutput reports whether clients were told an output schema of the tool. They want
// structured content of each of its results then.
func (r *requester) hasOutput(ctx context.Context, as Caller, name string) bool {
	list, _, err := r.list(ctx, as)
	i := slices.IndexFunc(list, func(t translate.Tool) bool { return t.Name == name })
	return err == nil && i >= 0 && list[i].HasOutput()
}

// structure gives the result of a tool its data as structured content, where clients
// want that. It asks only where data came beside texts.
func (r *requester) structure(ctx context.Context, as Caller, name string, res *sdk.CallToolResult, data json.RawMessage) {
	if res.StructuredContent == nil && !res.IsError && len(data) > 0 && data[0] == '{' && r.hasOutput(ctx, as, name) {
		res.StructuredContent = data
	}
}

// named is the name of the tool that clients have as shown.
func (r *requester) named(ctx context.Context, as Caller, shown string) (string, *fault.Error) {
	if !translate.Fits(shown) {
		return "", fault.Errorf(fault.UnknownTool, "there is no tool %q; tools/list lists those that there are", shown)
	}
	if !translate.MayBeMapped(shown) {
		return shown, nil
	}
	list, _, err := r.list(ctx, as)
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

// callTool answers tools/call. What fails is a result too: it is for who asked for the
// call.
func (r *requester) callTool(ctx context.Context, q *sdk.CallToolRequest, token string) (sdk.Result, error) {
	failed := func(e *fault.Error) (sdk.Result, error) {
		return complete(q, translate.Result(&wire.Result{Err: e})), nil
	}
	if q.Params == nil {
		return failed(fault.Errorf(fault.InvalidEnvelope, "params are missing; name the tool to call"))
	}
	if q.Params.Name == searchTool {
		if found := r.searchTools(ctx, q, token); found != nil {
			return complete(q, found), nil
		}
	}
	if refused := r.enter(); refused != nil {
		return failed(refused)
	}
	defer r.exit()
	run, cancel := r.life(ctx)
	d, of, err := r.dialog(run, q, token)
	if err != nil {
		cancel(nil)
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			return failed(refused)
		}
		return nil, err
	}
	defer d.attach(run, q)()
	if of == nil { // it runs already
		defer cancel(nil)
	} else {
		d.cancel = cancel
		d.run(run, *of)
	}
	if asks := d.serve(ctx, q); asks != nil {
		return complete(q, asks), nil
	}
	if d.outcome.Job {
		return started(d.id), nil
	}
	if err := d.lacks(d.outcome); err != nil {
		return nil, err
	}
	if asks := r.askUser(ctx, d.as, q, d.outcome.Result); asks != nil {
		return complete(q, asks), nil
	}
	res := translate.Result(d.outcome.Result)
	r.structure(ctx, d.as, d.name, res, d.outcome.Result.Data)
	return complete(q, res), nil
}

// dialog is the call that q makes, with the request that it is, or the one that runs
// already and q goes on with.
func (r *requester) dialog(ctx context.Context, q *sdk.CallToolRequest, token string) (*dialog, *call.Request, error) {
	p := q.Params
	as, refused := r.as(p.Meta, token)
	if refused != nil {
		return nil, nil, refused
	}
	if d, err := r.dialogOf(as, p); d != nil || err != nil {
		return d, nil, err
	}
	name, refused := r.named(ctx, as, p.Name)
	if refused != nil {
		return nil, nil, refused
	}
	made, refused := envelope(name, as, p)
	if refused != nil {
		return nil, nil, refused
	}
	what, err := digestOfCall("", p.Name, made.Payload)
	if err != nil {
		return nil, nil, fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
	}
	turnKey, refused := turnKeyOf(name, made.Payload, p.Meta)
	if refused != nil {
		return nil, nil, refused
	}
	key := cmp.Or(made.IdempotencyKey, turnKey)
	if d := r.sameCall(as, key, what); d != nil {
		return d, nil, nil
	}
	if refused := r.decide(ctx, as, p); refused != nil {
		return nil, nil, refused
	}
	d := &dialog{
		r: r, as: as, id: made.ExecutionID, name: name, tool: p.Name, key: key, what: what, can: q.ClientCapabilities(),
		direct: q.ProtocolVersion() < sessionless, given: p.InputResponses, over: make(chan struct{}), news: make(chan struct{}),
	}
	of := r.request(made, wire.Streams{Progress: d.progress, Receive: d.receive})
	of.TurnKey = turnKey
	if knowsTasks(d.can) {
		of.JobAfter = taskAfter
	}
	return d, &of, nil
}

// complete says whether a result is a whole one or asks for input, which versions
// without sessions want of each. The SDK says so of those that it makes itself.
func complete(q *sdk.CallToolRequest, result *sdk.CallToolResult) *sdk.CallToolResult {
	if q.ProtocolVersion() < sessionless {
		return result
	}
	kind := `{"resultType":"complete"}`
	if result.InputRequests != nil {
		kind = `{"resultType":"input_required"}`
	}
	var whole sdk.CallToolResult
	if json.Unmarshal([]byte(kind), &whole) != nil {
		return result
	}
	whole.InputRequests, whole.RequestState = result.InputRequests, result.RequestState
	whole.Meta, whole.Content, whole.StructuredContent, whole.IsError = result.Meta, result.Content, result.StructuredContent, result.IsError
	return &whole
}

// envelope is p as a call. It is written and read as a frame of the tool socket, so
// that the same is taken on both.
func envelope(name string, as Caller, p *sdk.CallToolParamsRaw) (*wire.Call, *fault.Error) {
	payload := p.Arguments
	if len(payload) == 0 || string(payload) == "null" {
		payload = json.RawMessage("{}")
	}
	frame, err := json.Marshal(struct {
		Tool    string          `json:"toolId"`
		ID      string          `json:"executionId"`
		Payload json.RawMessage `json:"payload"`
		Token   string          `json:"token,omitempty"`
		Session string          `json:"session,omitempty"`
		Key     any             `json:"idempotencyKey,omitempty"`
		Retry   any             `json:"retry,omitempty"`
	}{name, wire.NewExecutionID(), payload, as.Token, as.Session, p.Meta[metaKey], p.Meta[metaRetry]})
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
	}
	msg, err := wire.Parse(frame)
	if err != nil {
		e, ok := err.(*fault.Error)
		if !ok {
			e = fault.Errorf(fault.InvalidEnvelope, "%w", err)
		}
		return nil, e
	}
	made, ok := msg.(*wire.Call)
	if !ok {
		return nil, fault.Errorf(fault.Internal, "a call was read as %T; report this", msg)
	}
	if made.Cwd == "" && strings.IndexByte(as.Cwd, 0) < 0 {
		made.Cwd = as.Cwd
	}
	return made, nil
}

// maxTurn is the longest name of a turn, in bytes.
const maxTurn = 256

// turnKeyOf is the key of a call that has none of its client's: one for what it is, in
// the turn that its client says it is of; empty where it says none. In one turn of an agent
// the same change again is one that is repeated; without that nobody could tell it from
// one that is meant twice.
func turnKeyOf(name string, payload json.RawMessage, meta sdk.Meta) (string, *fault.Error) {
	_, given := meta[metaKey]
	turn, named := meta[metaTurn]
	if given || !named {
		return "", nil
	}
	text, ok := turn.(string)
	if !ok || text == "" || len(text) > maxTurn {
		return "", fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string of 1 to %d bytes", metaTurn, maxTurn)
	}
	sum, err := digestOfCall(text, name, payload)
	if err != nil {
		return "", fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
	}
	return "turn-" + hex.EncodeToString(sum[:]), nil
}

// digestOfCall is the same for the same call: the order of the members of its
// arguments is not its own.
func digestOfCall(turn, name string, payload json.RawMessage) (sum [32]byte, err error) {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var args any
	if err := decoder.Decode(&args); err != nil {
		return sum, err
	}
	same, err := json.Marshal([]any{turn, name, args})
	return sha256.Sum256(same), err
}
