package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

const (
	anyObject = `{"type":"object"}`
	// commandSchema describes what a tool takes that has no schema.
	commandSchema = `{"type":"object","properties":{` +
		`"args":{"type":"array","items":{"type":"string"},"description":"The arguments of the command, without its name."},` +
		`"cwd":{"type":"string","description":"The folder to work in. Default: where the client was started."},` +
		`"stdin":{"type":"string","contentEncoding":"base64","description":"The input, in base64."}},"required":["args"]}`
	// maxPage is about how many bytes of tools one answer has.
	maxPage = 512 << 10
)

// Keys of _meta, of requests and of results.
const (
	metaKey         = "io.toold/idempotencyKey"
	metaTurn        = "io.toold/turn"
	metaRetry       = "io.toold/retry"
	metaQuery       = "io.toold/query"
	metaLimit       = "io.toold/limit"
	metaSession     = "io.toold/session"
	metaToken       = "io.toold/token"
	metaError       = "io.toold/error"
	metaExecution   = "io.toold/executionId"
	metaFromCache   = "io.toold/fromCache"
	metaTruncated   = "io.toold/truncated"
	metaExitCode    = "io.toold/exitCode"
	metaMissing     = "io.toold/missing"
	metaToolName    = "io.toold/name"
	metaToolUnshown = "io.toold/schemaUnshown"
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

// tool is one tool as the pipeline lists it.
type tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Annotations json.RawMessage `json:"annotations"`
	Output      json.RawMessage `json:"output_schema"`
	Icons       []abi.Icon      `json:"icons"`
	Mutating    bool            `json:"mutating"`
	Source      string          `json:"source"`
	Unshown     bool            `json:"schema_unshown"`
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
func (r *requester) list(ctx context.Context, as Caller) (list []tool, missing []json.RawMessage, _ *fault.Error) {
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
			Tools   []tool            `json:"tools"`
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
		return nil, rpcError(refused)
	}
	defer done()
	var meta sdk.Meta
	var cursor string
	if q.Params != nil {
		meta, cursor = q.Params.Meta, q.Params.Cursor
	}
	as, refused := r.as(meta, token)
	if refused != nil {
		return nil, rpcError(refused)
	}
	list, missing, refused := r.list(run, as)
	if refused != nil {
		return nil, rpcError(refused)
	}
	r.gave(as, list)
	r.mirror(list)
	chosen, limit, refused := choiceOf(meta)
	if refused != nil {
		return nil, rpcError(refused)
	}
	res := &sdk.ListToolsResult{Tools: []*sdk.Tool{}, Cacheable: sdk.Cacheable{CacheScope: "private", TTLMs: int(listTTL.Milliseconds())}}
	if meta[metaQuery] != nil || meta[metaLimit] != nil {
		res.TTLMs = 0 // clients keep an answer whatever its _meta asked for
	}
	if len(missing) > 0 {
		res.Meta = sdk.Meta{metaMissing: missing}
	}
	size := 0
	names := shownNames(list)
	for _, t := range list {
		shown, ok := names[t.Name]
		if !ok || t.Name <= cursor || !chosen(t) {
			continue
		}
		if size > maxPage || limit > 0 && len(res.Tools) >= limit {
			res.NextCursor = cmp.Or(res.NextCursor, cursor)
			break
		}
		size += len(t.Schema) + len(t.Output) + len(t.Description) + len(t.Annotations) + 256
		res.Tools = append(res.Tools, describe(t, shown))
		cursor = t.Name
	}
	return res, nil
}

// choiceOf is which tools a client wants listed, and how many in one answer; 0 is as
// many as fit.
func choiceOf(meta sdk.Meta) (chosen func(tool) bool, limit int, _ *fault.Error) {
	var words []string
	if v, there := meta[metaQuery]; there {
		query, ok := v.(string)
		if words = strings.Fields(strings.ToLower(query)); !ok || len(query) > maxQuery {
			return nil, 0, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string of up to %d bytes", metaQuery, maxQuery)
		}
	}
	if v, there := meta[metaLimit]; there {
		n, ok := v.(float64)
		if limit = int(n); !ok || float64(limit) != n || limit < 1 {
			return nil, 0, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a number from 1 on", metaLimit)
		}
	}
	return func(t tool) bool {
		text := strings.ToLower(t.Name + "\n" + t.Title + "\n" + t.Description)
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	}, limit, nil
}

// gave notes the list that a client was given. Over HTTP other clients of the
// identity may have an older one: they are told.
func (r *requester) gave(as Caller, list []tool) {
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
func (r *requester) mirror(list []tool) {
	if r.identity == "" {
		return
	}
	want := map[string]string{}
	names := shownNames(list)
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

func digestOf(list []tool) [32]byte {
	b, _ := json.Marshal(list)
	return sha256.Sum256(b)
}

// describe is t as MCP has it. A hint is never wider than the truth: that a tool only
// reads is said where its module says so and the host holds it to that.
func describe(t tool, shown string) *sdk.Tool {
	out := &sdk.Tool{Name: shown, Title: t.Title, Description: t.Description, Annotations: &sdk.ToolAnnotations{}, Meta: sdk.Meta{}}
	if shown != t.Name {
		out.Meta[metaToolName] = t.Name
	}
	switch schema, ok := objectSchema(t.Schema); {
	case t.Unshown:
		out.InputSchema = json.RawMessage(anyObject)
		out.Meta[metaToolUnshown] = true
	case ok:
		out.InputSchema = schema
	default:
		out.InputSchema = json.RawMessage(commandSchema)
	}
	if isObjectSchema(t.Output) {
		out.OutputSchema = t.Output
	}
	for _, icon := range t.Icons {
		out.Icons = append(out.Icons, sdk.Icon{Source: icon.Src, MIMEType: icon.MIMEType, Sizes: icon.Sizes, Theme: sdk.IconTheme(icon.Theme)})
	}
	if t.Source == "" {
		return out // what it does is decided call by call: the defaults are the widest
	}
	var said struct {
		ReadOnly    *bool `json:"read_only"`
		Destructive *bool `json:"destructive"`
		Idempotent  *bool `json:"idempotent"`
		OpenWorld   *bool `json:"open_world"`
	}
	if t.Title == "" {
		var named struct {
			Title string `json:"title"`
		}
		if json.Unmarshal(t.Annotations, &named) == nil {
			out.Title = named.Title
		}
	}
	if len(t.Annotations) > 0 && strictjson.UnmarshalLenient(t.Annotations, &said) != nil {
		return out
	}
	a := out.Annotations
	a.ReadOnlyHint = !t.Mutating && said.ReadOnly != nil && *said.ReadOnly
	a.DestructiveHint, a.OpenWorldHint = said.Destructive, said.OpenWorld
	a.IdempotentHint = said.Idempotent != nil && *said.Idempotent
	return out
}

// isObjectSchema reports whether clients may be told that output schema: of those that
// are not of objects the data is no structured content.
func isObjectSchema(schema json.RawMessage) bool {
	var said struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(schema, &said) == nil && said.Type == "object"
}

// hasOutput reports whether clients were told an output schema of the tool. They want
// structured content of each of its results then.
func (r *requester) hasOutput(ctx context.Context, as Caller, name string) bool {
	list, _, err := r.list(ctx, as)
	i := slices.IndexFunc(list, func(t tool) bool { return t.Name == name })
	return err == nil && i >= 0 && isObjectSchema(list[i].Output)
}

// structure gives the result of a tool its data as structured content, where clients
// want that. It asks only where data came beside texts.
func (r *requester) structure(ctx context.Context, as Caller, name string, res *sdk.CallToolResult, data json.RawMessage) {
	if res.StructuredContent == nil && !res.IsError && len(data) > 0 && data[0] == '{' && r.hasOutput(ctx, as, name) {
		res.StructuredContent = data
	}
}

// objectSchema is a schema as MCP wants it: with the type object, which a payload
// always has.
func objectSchema(schema json.RawMessage) (json.RawMessage, bool) {
	if len(schema) == 0 {
		return nil, false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(schema, &fields) != nil {
		return json.RawMessage(anyObject), true // true or false
	}
	if string(fields["type"]) == `"object"` {
		return schema, true
	}
	fields["type"] = json.RawMessage(`"object"`)
	b, err := json.Marshal(fields)
	return b, err == nil
}

// maxName is the longest name that every client takes, in bytes.
const maxName = 64

// fits reports whether every client takes the name: ^[A-Za-z0-9_-]{1,64}$.
func fits(name string) bool {
	return name != "" && len(name) <= maxName && strings.IndexFunc(name, notOfNames) < 0
}

func notOfNames(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// hashed is how many bytes of its digest a name has that does not fit.
const hashed = 4

// shownName is the name of a tool for clients: its own where that fits, else what fits of
// it and a part of its digest, the same one always.
func shownName(name string) string {
	if fits(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	tail := "-" + hex.EncodeToString(sum[:hashed])
	head := strings.Map(func(r rune) rune {
		if notOfNames(r) {
			return '_'
		}
		return r
	}, name)
	return head[:min(len(head), maxName-len(tail))] + tail
}

// mayBeMapped reports whether shownName may have made the name of another one.
func mayBeMapped(name string) bool {
	i := len(name) - 2*hashed - 1
	if i < 0 || name[i] != '-' {
		return false
	}
	_, err := hex.DecodeString(name[i+1:])
	return err == nil
}

// shownNames are the names of list for clients, by name. One whose name for clients
// is another's is left out; a tool always has its own.
func shownNames(list []tool) map[string]string {
	names, taken := make(map[string]string, len(list)), map[string]bool{}
	for _, mapped := range []bool{false, true} {
		for _, t := range list {
			if fits(t.Name) == mapped {
				continue
			}
			shown := shownName(t.Name)
			if taken[shown] {
				continue
			}
			taken[shown], names[t.Name] = true, shown
		}
	}
	return names
}

// named is the name of the tool that clients have as shown.
func (r *requester) named(ctx context.Context, as Caller, shown string) (string, *fault.Error) {
	if !fits(shown) {
		return "", fault.Errorf(fault.UnknownTool, "there is no tool %q; tools/list lists those that there are", shown)
	}
	if !mayBeMapped(shown) {
		return shown, nil
	}
	list, _, err := r.list(ctx, as)
	if err != nil {
		return "", err
	}
	for name, s := range shownNames(list) {
		if s == shown {
			return name, nil
		}
	}
	return shown, nil
}

// callTool answers tools/call. What fails is a result too: it is for who asked for the
// call.
func (r *requester) callTool(ctx context.Context, q *sdk.CallToolRequest, token string) (sdk.Result, error) {
	failed := func(e *fault.Error) (sdk.Result, error) { return complete(q, resultOf(&wire.Result{Err: e})), nil }
	if q.Params == nil {
		return failed(fault.Errorf(fault.InvalidEnvelope, "params are missing; name the tool to call"))
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
	res := resultOf(d.outcome.Result)
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
	if d := r.sameCall(as, made.IdempotencyKey, what); d != nil {
		return d, nil, nil
	}
	if refused := r.decide(ctx, as, p); refused != nil {
		return nil, nil, refused
	}
	d := &dialog{
		r: r, as: as, id: made.ExecutionID, name: name, tool: p.Name, key: made.IdempotencyKey, what: what, can: q.ClientCapabilities(),
		direct: q.ProtocolVersion() < sessionless, given: p.InputResponses, over: make(chan struct{}), news: make(chan struct{}),
	}
	of := r.request(made, wire.Streams{Progress: d.progress, Receive: d.receive})
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
	key, refused := keyOf(name, payload, p.Meta)
	if refused != nil {
		return nil, refused
	}
	frame, err := json.Marshal(struct {
		Tool    string          `json:"toolId"`
		ID      string          `json:"executionId"`
		Payload json.RawMessage `json:"payload"`
		Token   string          `json:"token,omitempty"`
		Session string          `json:"session,omitempty"`
		Key     any             `json:"idempotencyKey,omitempty"`
		Retry   any             `json:"retry,omitempty"`
	}{name, wire.NewExecutionID(), payload, as.Token, as.Session, key, p.Meta[metaRetry]})
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

// keyOf is the idempotency key of a call: the one that its client gave it, or one for
// what the call is, in the turn that the client says it is of. In one turn of an agent
// the same call again is one that is repeated; without that nobody could tell it from
// one that is meant twice.
func keyOf(name string, payload json.RawMessage, meta sdk.Meta) (any, *fault.Error) {
	key, given := meta[metaKey]
	turn, named := meta[metaTurn]
	if given || !named {
		return key, nil
	}
	text, ok := turn.(string)
	if !ok || text == "" || len(text) > maxTurn {
		return nil, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string of 1 to %d bytes", metaTurn, maxTurn)
	}
	sum, err := digestOfCall(text, name, payload)
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
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

// progressOf is what a tool told of its progress: {progress, total, message}, as MCP
// has it, or anything else as the message.
func progressOf(data json.RawMessage) *sdk.ProgressNotificationParams {
	var p struct {
		Progress *float64 `json:"progress"`
		Total    float64  `json:"total"`
		Message  string   `json:"message"`
	}
	if strictjson.Unmarshal(data, &p) != nil || p.Progress == nil {
		return &sdk.ProgressNotificationParams{Message: textOf(data)}
	}
	return &sdk.ProgressNotificationParams{Progress: *p.Progress, Total: p.Total, Message: p.Message}
}

// textOf is one JSON value as people read it.
func textOf(data json.RawMessage) string {
	var s string
	if json.Unmarshal(data, &s) == nil {
		return s
	}
	return string(data)
}

// faultData is an error for programs.
type faultData struct {
	Code      fault.Code `json:"code"`
	Message   string     `json:"message"`
	Rule      string     `json:"rule,omitempty"`
	Retriable bool       `json:"retriable"`
	ToolCode  string     `json:"tool_code,omitempty"`
}

func dataOf(e *fault.Error) *faultData {
	d := &faultData{Code: e.Code, Message: e.Message, Retriable: e.Retriable(), ToolCode: e.ToolCode}
	if rest, ok := strings.CutPrefix(e.Message, "denied by rule "); ok && e.Code == fault.Denied {
		d.Rule, _, _ = strings.Cut(rest, ":")
	}
	return d
}

// rpcError is e as the error of a request that is no call of a tool.
func rpcError(e *fault.Error) error {
	data, _ := json.Marshal(dataOf(e))
	return &jsonrpc.Error{Code: codeRefused, Message: e.Error(), Data: data}
}

// dataContent is the one member of data that is content of MCP already: images, audio,
// resources and texts.
const dataContent = "io.toold/content"

// contentOf is the content that data is, where it is such.
func contentOf(data json.RawMessage) ([]sdk.Content, bool) {
	if !bytes.Contains(data, []byte(dataContent)) {
		return nil, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil || len(members) != 1 || len(members[dataContent]) == 0 {
		return nil, false
	}
	var result sdk.CallToolResult
	wrapped := append(append([]byte(`{"content":`), members[dataContent]...), '}')
	if json.Unmarshal(wrapped, &result) != nil {
		return nil, false
	}
	return result.Content, true
}

// resultOf is r as MCP has it: standard output, data and standard error, each as a
// text of its own, and what failed as the last one.
func resultOf(r *wire.Result) *sdk.CallToolResult {
	out := &sdk.CallToolResult{Content: []sdk.Content{}, Meta: sdk.Meta{}}
	text := func(s string) {
		if s != "" {
			out.Content = append(out.Content, &sdk.TextContent{Text: strings.ToValidUTF8(s, "\uFFFD")})
		}
	}
	text(string(r.Stdout))
	if blocks, ok := contentOf(r.Data); ok {
		out.Content = append(out.Content, blocks...)
	} else if len(r.Data) > 0 && string(r.Data) != "null" {
		text(string(r.Data))
		if r.Data[0] == '{' && len(r.Stdout) == 0 && len(r.Stderr) == 0 {
			// Clients that know it show this and no text.
			out.StructuredContent = r.Data
		}
	}
	text(string(r.Stderr))
	if r.Truncated {
		text("[the output is truncated: it was longer than this tool's answers may be]")
		out.Meta[metaTruncated] = true
	}
	if r.ExecutionID != "" {
		out.Meta[metaExecution] = r.ExecutionID
	}
	if r.FromCache {
		out.Meta[metaFromCache] = true
	}
	switch e := r.Err; {
	case e != nil:
		out.IsError = true
		out.Meta[metaError] = dataOf(e)
		again := "calling again as it is will not help"
		if e.Retriable() {
			again = "the same call may be made again"
		}
		text(fmt.Sprintf("%s (%s)", e.Error(), again))
		if r.Ran {
			out.Meta[metaExitCode] = r.ExitCode
		}
	case r.ExitCode != 0:
		out.IsError = true
		out.Meta[metaExitCode] = r.ExitCode
		text(fmt.Sprintf("[exit code %d]", r.ExitCode))
	}
	return out
}
