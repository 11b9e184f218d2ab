package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Bounds of what a module may bring for one identity.
const (
	maxOffers      = 4096
	maxOfferText   = 4096     // bytes of a title or a description
	maxOfferSchema = 64 << 10 // bytes, and of a binding
	maxSurfaceSize = 4 << 20  // bytes of the whole answer
)

// offered is the tool that a module brings for k's caller, as k calls it.
type offered struct {
	discovery.Tool
	key    discovery.Key
	schema *jsonschema.Schema
}

// acquire finds and pins the tool that k names: one of tools.d, or else one
// that a module of tools.d brings for this caller. What the caller cannot see
// gets the same answer as what is not there.
func (h *Host) acquire(ctx context.Context, k *call, on *listener) (release func(), err error) {
	name := k.Tool
	tool, release, err := h.tools.Acquire(ctx, name)
	switch {
	case err == nil && on.serves(tool.Def.Category) && !tool.Discovers:
		k.tool = tool
		if err := h.resolve(k); err != nil {
			release()
			return nil, err
		}
		return release, nil
	case err == nil:
		release()
		return nil, tools.Unknown(name)
	}
	var we *fault.Error
	if !errors.As(err, &we) || we.Code != fault.UnknownTool {
		return nil, err
	}
	// A module that is still being loaded may bring it.
	if err := h.tools.Ready(ctx); err != nil {
		return nil, err
	}
	var why error
	for _, source := range h.tools.Discovering() {
		found, release, err := h.surfaceOf(ctx, k, on, source)
		if err == nil {
			if o, ok := found.Find(name, k.readOnly); ok {
				if err := h.offer(k, o); err != nil {
					release()
					return nil, err
				}
				return release, nil
			}
			release()
		} else if !errors.Is(err, errNotServed) && why == nil {
			why = err
		}
	}
	k.tool, k.effective = nil, nil
	if why == nil {
		return nil, we
	}
	// Nobody knows whether there is such a tool. The answer is the same for
	// every name.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := asError(ctx, why)
	switch e.Code {
	case fault.Unauthenticated, fault.ToolBroken:
		return nil, &fault.Error{Code: fault.UnknownTool, Message: we.Message + "; " + e.Message, Cause: why}
	}
	return nil, e
}

// errNotServed is surfaceOf's for a tool that is not there on this socket, or
// brings nothing now.
var errNotServed = errors.New("not served")

// surfaceOf is what the tool source brings for k's caller. On success k.tool
// is pinned until release.
func (h *Host) surfaceOf(ctx context.Context, k *call, on *listener, source string) (*discovery.Surface, func(), error) {
	for range 4 {
		tool, release, err := h.tools.Acquire(ctx, source)
		if err != nil || !tool.Discovers || !on.serves(tool.Def.Category) {
			if err == nil {
				release()
			}
			return nil, nil, errNotServed
		}
		k.tool = tool
		if err = h.resolve(k); err == nil {
			var s *discovery.Surface
			if s, err = h.surfaces.Get(ctx, k.key, h.discovery(k, tool)); err == nil {
				return s, release, nil
			}
		}
		release()
		if !errors.Is(err, discovery.ErrSuperseded) {
			return nil, nil, err
		}
	}
	return nil, nil, fault.Errorf(fault.Overloaded, "the tools of %s change faster than they can be listed; try again", source)
}

// resolve makes k's caller what it is to k's tool.
func (h *Host) resolve(k *call) error {
	def := k.tool.Def
	generation := h.surfaces.Generation()
	o := identity.Overlay{
		Tool: k.tool.Name, Version: k.tool.Version, Config: k.tool.Config,
		Claims: def.Identity.Claims, Secret: def.Identity.Secret, Generation: generation,
	}
	if k.tool.Discovers {
		o.Values = map[string]string{}
		secrets, err := h.definedSecrets(k)
		if err != nil {
			return err
		}
		for _, s := range secrets {
			o.Values[s.name] = s.value
		}
	}
	k.effective = h.identity.Load().Effective(k.caller, o)
	k.readOnly = k.effective.ReadOnly
	if k.tool.Discovers {
		k.key = discovery.Key{
			Fingerprint: k.effective.Fingerprint(), Tool: k.tool.Name, Version: k.tool.Version,
			Generation: generation, Shown: k.effective.Shown, ReadOnly: k.readOnly,
		}
	}
	return nil
}

// discovery is the discovery of what tool brings for k's caller. It may run on
// when k has ended, and takes from k now what it needs. What comes of it is for
// everybody with that fingerprint, so that the module hears of no other name.
func (h *Host) discovery(k *call, tool *tools.Tool) func(context.Context) (*discovery.Surface, error) {
	about := &wire.Call{Tool: tool.Name, ExecutionID: k.ExecutionID, Trace: k.Trace}
	caller, effective, readOnly := k.caller, k.effective, k.readOnly
	caller.ID = k.key.Fingerprint
	return func(ctx context.Context) (*discovery.Surface, error) {
		pinned, release, err := h.tools.Acquire(ctx, tool.Name)
		if err != nil {
			return nil, err
		}
		defer release()
		if pinned.Version != tool.Version {
			return nil, discovery.ErrSuperseded
		}
		return h.discover(ctx, &call{Call: about, caller: caller, effective: effective, readOnly: readOnly, tool: pinned})
	}
}

// discover asks the module which tools it brings.
func (h *Host) discover(ctx context.Context, k *call) (*discovery.Surface, error) {
	tool := k.tool
	in, err := json.Marshal(abi.Discovery{
		Tool: tool.Name, ReadOnly: k.readOnly, DeadlineMS: discovery.MaxTime.Milliseconds(),
	})
	if err != nil {
		return nil, err
	}
	secrets, err := h.secrets(k)
	if err != nil {
		return nil, err
	}
	mask := func(e *fault.Error) *fault.Error {
		return &fault.Error{Code: e.Code, Message: maskText(e.Message, values(secrets)), MayRetry: e.MayRetry}
	}
	reply, err := tool.Handler.Call(ctx, h.invocation(k, "discover", in))
	if err != nil {
		e := mask(asError(ctx, err))
		if e.Code == fault.ToolFailed {
			e.MayRetry = true
		}
		e.Message = "list the tools of " + tool.Name + ": " + e.Message
		return nil, e
	}
	broken := func(format string, a ...any) error {
		return mask(fault.Errorf(fault.ToolBroken, "%s lists tools that cannot be taken: "+format, append([]any{tool.Name}, a...)...))
	}
	if len(reply.Output) > maxSurfaceSize {
		return nil, broken("they are over %d bytes", maxSurfaceSize)
	}
	var s abi.Surface
	if err := strictjson.Unmarshal(reply.Output, &s); err != nil {
		return nil, broken("%w", err)
	}
	if e := s.Error; e != nil {
		we := &fault.Error{Code: fault.ToolFailed, Message: tool.Name + " cannot list its tools: " + e.Message, MayRetry: e.Retriable}
		if e.Code == abi.Unauthenticated {
			we.Code, we.Message = fault.Unauthenticated, tool.Name+" refuses this identity: "+e.Message
		}
		return nil, mask(we)
	}
	offers, err := h.checkOffers(&s)
	if err != nil {
		return nil, broken("%w", err)
	}
	var safety abi.Safety
	if s.Safety != nil {
		safety = *s.Safety
	}
	return discovery.NewSurface(offers, safety, time.Duration(min(max(s.TTLMS, 0), 1<<40))*time.Millisecond), nil
}

// checkOffers takes what a module lists, whole or not at all.
func (h *Host) checkOffers(s *abi.Surface) ([]discovery.Tool, error) {
	if len(s.Tools) > maxOffers {
		return nil, fmt.Errorf("%d tools, and at most %d can be", len(s.Tools), maxOffers)
	}
	seen := map[string]string{}
	offers := make([]discovery.Tool, 0, len(s.Tools))
	for i := range s.Tools {
		t := &s.Tools[i]
		called := cmp.Or(t.Title, t.Name)
		switch other, double := seen[t.Name]; {
		case !tools.ValidName(t.Name):
			return nil, fmt.Errorf("tool %d has the name %.80q, which is none", i, t.Name)
		case double:
			return nil, fmt.Errorf("%q and %q would both be %s", other, called, t.Name)
		case len(t.Title) > maxOfferText || len(t.Description) > maxOfferText:
			return nil, fmt.Errorf("the text of %s is over %d bytes", t.Name, maxOfferText)
		case len(t.Schema) > maxOfferSchema || len(t.Binding) > maxOfferSchema:
			return nil, fmt.Errorf("the schema or the binding of %s is over %d bytes", t.Name, maxOfferSchema)
		}
		seen[t.Name] = called
		o := discovery.Tool{Name: t.Name, Title: t.Title, Description: t.Description, Schema: string(t.Schema), Binding: string(t.Binding), Mutating: t.Mutating}
		if o.Schema == "null" {
			o.Schema = ""
		}
		if _, err := h.schemas.compile(o.Schema); err != nil {
			return nil, fmt.Errorf("the schema of %s %w", t.Name, err)
		}
		if t.Annotations != nil {
			a := *t.Annotations
			// What a tool says of itself must not say less than what it is.
			if t.Mutating {
				no := false
				a.ReadOnly = &no
			}
			b, err := json.Marshal(a)
			if err != nil {
				return nil, err
			}
			o.Annotations = string(b)
		}
		offers = append(offers, o)
	}
	return offers, nil
}

// offer makes k a call of what its caller is offered.
func (h *Host) offer(k *call, o discovery.Tool) error {
	schema, err := h.schemas.compile(o.Schema)
	if err != nil {
		return fault.Errorf(fault.Internal, "the schema of %s: %w", o.Name, err)
	}
	k.offered = &offered{Tool: o, key: k.key, schema: schema}
	if k.Form == wire.Plain && o.Schema != "" {
		k.Payload, err = namedArguments(k.Args, o.Schema)
	}
	return err
}

// validate checks the payload against the schema of what k calls.
func (k *call) validate() error {
	if k.offered == nil {
		return k.tool.Validate(k.Payload)
	}
	t := &tools.Tool{Name: k.Tool, Schema: k.offered.schema}
	return t.Validate(k.Payload)
}

// permit holds a caller that may only read to it, whatever the module says.
func (k *call) permit() error {
	k.mutating = k.mutating || k.offered != nil && k.offered.Mutating
	if k.readOnly && k.mutating {
		return fault.Errorf(fault.Denied, "denied by rule read-only: %s changes something, and this identity may only read; use a tool that reads", k.Tool)
	}
	return nil
}

// onlyReads reports whether the guest of k may make requests that read, and no
// others: what a module says of its tool, or an operator of a caller, the host
// holds it to.
func (k *call) onlyReads() bool {
	return k.readOnly || k.offered != nil && !k.offered.Mutating
}

// namedArguments is the payload of a plain call: one JSON object, or name=value
// for each property, with or without dashes before it.
func namedArguments(args []string, schema string) (json.RawMessage, error) {
	if len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "{") {
		return json.RawMessage(args[0]), nil
	}
	var s struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	if err := json.Unmarshal([]byte(schema), &s); err != nil {
		return nil, fault.Errorf(fault.Internal, "read a schema: %w", err)
	}
	payload := map[string]json.RawMessage{}
	for i, arg := range args {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !ok {
			return nil, fault.Errorf(fault.InvalidPayload, "argument %d is not name=value; the names are %s", i+1, strings.Join(slices.Sorted(maps.Keys(s.Properties)), ", "))
		}
		if _, double := payload[name]; double {
			return nil, fault.Errorf(fault.InvalidPayload, "argument %d gives %.80q again", i+1, name)
		}
		if p, known := s.Properties[name]; known && p.Type != "string" && json.Valid([]byte(value)) {
			payload[name] = json.RawMessage(value)
			continue
		}
		b, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		payload[name] = b
	}
	return json.Marshal(payload)
}

// errGone is what a handler answered whose binding leads nowhere any more.
var errGone = errors.New("what the tool stood for is gone")

// executeOffered calls a tool that a module brought for the caller, and once
// more when it had moved meanwhile.
func (h *Host) executeOffered(ctx context.Context, k *call) (*wire.Result, error) {
	res, err := h.executeHandler(ctx, k)
	if errors.Is(err, errGone) {
		h.surfaces.Invalidate(k.offered.key.Fingerprint, "a call found its tool gone")
		if err := h.again(ctx, k); err != nil {
			return nil, err
		}
		if res, err = h.executeHandler(ctx, k); errors.Is(err, errGone) {
			h.surfaces.Invalidate(k.offered.key.Fingerprint, "a call found its tool gone")
			if e := k.said.Error; e != nil {
				// It is listed, and what it stands on is not there.
				return nil, fault.Errorf(fault.ToolFailed, "%s", maskText(e.Message, h.hidden(k)))
			}
			return nil, tools.Unknown(k.Tool)
		}
	}
	if s := k.said.Safety; s != nil {
		h.surfaces.Agree(k.offered.key.Fingerprint, *s)
	}
	if e := k.said.Error; e != nil && e.Code == abi.Unauthenticated {
		we := asError(ctx, err)
		h.surfaces.Refuse(k.offered.key.Fingerprint, &fault.Error{Code: fault.Unauthenticated, Message: k.tool.Name + " refuses this identity: " + we.Message})
		return res, &fault.Error{Code: fault.Unauthenticated, Message: we.Message, Cause: err}
	}
	return res, err
}

// again finds k's tool anew, on the version of the module that k began with.
func (h *Host) again(ctx context.Context, k *call) error {
	s, err := h.surfaces.Get(ctx, k.offered.key, h.discovery(k, k.tool))
	if errors.Is(err, discovery.ErrSuperseded) {
		return tools.Unknown(k.Tool)
	}
	if err != nil {
		return err
	}
	o, ok := s.Find(k.Tool, k.readOnly)
	switch {
	case !ok:
		return tools.Unknown(k.Tool)
	case o.Schema != k.offered.Schema:
		return fault.Errorf(fault.InvalidPayload, "%s takes other arguments than before; list the tools again, and call it as it is now", k.Tool)
	case o.Mutating != k.offered.Mutating:
		return fault.Errorf(fault.InvalidPayload, "%s is of another kind than before; list the tools again", k.Tool)
	}
	moved := o.Binding != k.offered.Binding
	k.offered.Tool = o
	if !moved {
		return nil
	}
	// The policy was asked about something else.
	mutating := k.mutating
	if _, err := h.decide(ctx, k); err != nil {
		return err
	}
	if k.mutating != mutating {
		return fault.Errorf(fault.InvalidPayload, "%s is of another kind than before, as its policy says; call it again", k.Tool)
	}
	return nil
}

// listOffers is what the modules bring for k's caller, by name, and why some
// of it is missing. Where two modules bring one name, the first of them has
// it; a tool of tools.d always has its own.
func (h *Host) listOffers(ctx context.Context, k *call, on *listener, taken map[string]bool) (list []listedTool, missing []unlisted) {
	for _, source := range h.tools.Discovering() {
		s, release, err := h.surfaceOf(ctx, k, on, source)
		if errors.Is(err, errNotServed) {
			continue
		}
		if err != nil {
			e := asError(ctx, err)
			missing = append(missing, unlisted{source, string(e.Code), brief(e.Message, maxReason), e.Retriable()})
			continue
		}
		category := k.tool.Def.Category
		for _, o := range s.Offers(k.readOnly) {
			if taken[o.Name] {
				h.log.Warn("tool is left out: another has its name", "tool", source, "name", o.Name)
				continue
			}
			taken[o.Name] = true
			list = append(list, listedTool{
				Name: o.Name, Title: o.Title, Description: o.Description, Category: category,
				Schema: raw(o.Schema), Annotations: raw(o.Annotations), Mutating: o.Mutating, Source: source,
			})
		}
		if s.Stale != "" {
			missing = append(missing, unlisted{source, "", "its tools may be out of date: " + brief(s.Stale, maxReason), true})
		}
		release()
	}
	k.tool, k.effective = nil, nil
	return list, missing
}

// listedTool is one tool as tools.list answers it.
type listedTool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Category    string          `json:"category,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
	Mutating    bool            `json:"mutating,omitempty"`
	// Source is the tool of tools.d that brings this one for the caller.
	Source string `json:"source,omitempty"`
	// Unshown says that the schema is there, and too long for an answer.
	Unshown bool `json:"schema_unshown,omitempty"`
}

// unlisted is a tool of tools.d whose own tools are missing or out of date.
type unlisted struct {
	Source    string `json:"source"`
	Code      string `json:"code,omitempty"`
	Message   string `json:"message"`
	Retriable bool   `json:"retriable"`
}

// maxListPage is about how many bytes of tools one answer of tools.list has:
// what stays of a frame for them.
const maxListPage = 48 << 10

// maxReason is how much of why a module's tools are missing a list says, in bytes.
const maxReason = 512

// brief is the beginning of a text that somebody may have made long.
func brief(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// listTools answers the tools that the caller can call on this socket, by
// name: those after the name "after", as many as fit an answer. "next" is the
// name to go on after.
func (h *Host) listTools(ctx context.Context, k *call, on *listener) (*wire.Result, error) {
	var page struct {
		After string `json:"after"`
		Limit int    `json:"limit"`
	}
	if k.Form == wire.Envelope {
		if err := strictjson.Unmarshal(k.Payload, &page); err != nil {
			return nil, fault.Errorf(fault.InvalidPayload, "tools.list takes after and limit: %w", err)
		}
	}
	if err := h.tools.Ready(ctx); err != nil {
		return nil, err
	}
	list, taken := []listedTool{}, map[string]bool{}
	discovering := h.tools.Discovering()
	for _, s := range h.tools.List() {
		taken[s.Name] = true
		if s.Serving() && on.serves(s.Category) && !slices.Contains(discovering, s.Name) {
			list = append(list, listedTool{Name: s.Name, Description: s.Description, Category: s.Category, Schema: s.Schema, Mutating: s.Mutating})
		}
	}
	offers, missing := h.listOffers(ctx, k, on, taken)
	list = slices.DeleteFunc(append(list, offers...), func(t listedTool) bool { return !k.running.Admits(t.Name) })
	slices.SortFunc(list, func(a, b listedTool) int { return strings.Compare(a.Name, b.Name) })
	res := &wire.Result{Ran: true}
	if k.Form == wire.Plain {
		for _, t := range list {
			res.Stdout = append(append(res.Stdout, t.Name...), '\n')
		}
		for _, m := range missing {
			res.Stderr = fmt.Appendf(res.Stderr, "%s: %s\n", m.Source, m.Message)
		}
	}
	from, _ := slices.BinarySearchFunc(list, page.After, func(t listedTool, after string) int {
		if t.Name <= after {
			return -1
		}
		return 1
	})
	var answer struct {
		Tools   []json.RawMessage `json:"tools"`
		Next    string            `json:"next,omitempty"`
		Missing []unlisted        `json:"missing,omitempty"`
	}
	answer.Tools, answer.Missing = []json.RawMessage{}, missing
	size := 0
	for i, t := range list[from:] {
		if len(t.Schema) > maxListPage/2 {
			t.Schema, t.Unshown = nil, true
		}
		t.Description = brief(t.Description, maxOfferText)
		b, err := json.Marshal(t)
		if err != nil {
			return nil, err
		}
		if size += len(b); i > 0 && size > maxListPage || page.Limit > 0 && i >= page.Limit {
			answer.Next = list[from+i-1].Name
			break
		}
		answer.Tools = append(answer.Tools, b)
	}
	var err error
	res.Data, err = json.Marshal(answer)
	return res, err
}

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

// schemas keeps the compiled schemas of offered tools: thousands of identities
// share a few.
type schemas struct {
	mu sync.Mutex
	m  map[string]*jsonschema.Schema // guarded by mu
}

// maxSchemas is how many are kept; beyond that all of them go.
const maxSchemas = 8192

// compile is nil for an empty schema, which admits any object.
func (s *schemas) compile(text string) (*jsonschema.Schema, error) {
	if text == "" {
		return nil, nil
	}
	s.mu.Lock()
	c, ok := s.m[text]
	s.mu.Unlock()
	if ok {
		return c, nil
	}
	c, err := tools.CompileSchema(json.RawMessage(text))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil || len(s.m) >= maxSchemas {
		s.m = map[string]*jsonschema.Schema{}
	}
	s.m[text] = c
	return c, nil
}
