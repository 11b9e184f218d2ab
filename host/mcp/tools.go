package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

const (
	// maxPage is about how many bytes of tools one answer has.
	maxPage = 512 << 10
)

// listTTL is how long a client may use a list without asking again. One that listens
// is told of changes.
const listTTL = 30 * time.Second

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
	r.lists.gave(as, list)
	r.lists.mirror(list)
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

// choiceOf returns which tools a client asks for, and how many in one answer; 0 is as
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

// dialog returns the call that q makes, with its request, or the running call that q
// continues.
func (r *requester) dialog(ctx context.Context, q *sdk.CallToolRequest, token string) (*dialog, *call.Request, error) {
	p := q.Params
	as, refused := r.as(p.Meta, token)
	if refused != nil {
		return nil, nil, refused
	}
	if _, approves := p.InputResponses[inputApproval]; !approves {
		if d, err := r.dialogs.find(as, p); d != nil || err != nil {
			return d, nil, err
		}
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
	if d := r.dialogs.same(as, key, what); d != nil {
		return d, nil, nil
	}
	if refused := r.decide(ctx, as, p); refused != nil {
		return nil, nil, refused
	}
	d := &dialog{
		of: &r.dialogs, as: as, id: made.ExecutionID, name: name, tool: p.Name, key: key, what: what, can: q.ClientCapabilities(),
		direct: q.ProtocolVersion() < sessionless, given: p.InputResponses, over: make(chan struct{}), news: make(chan struct{}),
	}
	of := r.request(made, wire.Streams{Progress: d.progress, Receive: d.receive})
	of.TurnKey = turnKey
	if knowsTasks(d.can) {
		of.JobAfter = taskAfter
	}
	return d, &of, nil
}

// complete marks a result as a whole one or as one that asks for input, which versions
// without sessions require of each. The SDK marks those that it makes itself.
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
