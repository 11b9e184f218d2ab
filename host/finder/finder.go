// Package finder finds the tool that a call names, and lists the tools that a caller can call: those of tools.d, and
// those that modules of tools.d provide for the caller. A tool that a caller may not see is indistinguishable from one
// that does not exist.
package finder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/discovery"
	"github.com/toold/toold/host/execute"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// Config is fixed when a Finder is created.
type Config struct {
	// Config and Identity return the ones in force; a reload replaces them.
	Config     func() *config.Config
	Identity   func() *identity.Resolver
	Tools      *catalog.Catalog
	Discovered *discovery.Cache
	Execute    *execute.Executor // calls modules
	Log        *slog.Logger
}

// Finder finds tools. It is safe for concurrent use.
type Finder struct {
	Config
	schemas schemas
	// counts holds the digests of the relevant part of the configuration in force.
	counts atomic.Pointer[counts]
}

// New returns a Finder.
func New(c Config) *Finder { return &Finder{Config: c} }

// counts has one digest for modules that run no binaries, and one for those that do.
type counts struct {
	of   *config.Config
	sums [2]string
}

// settings returns the digest of the configuration that is relevant to t. A configuration does not change once it is
// in force.
func (f *Finder) settings(t *tools.Tool) string {
	now := f.Config.Config()
	k := f.counts.Load()
	if k == nil || k.of != now {
		k = &counts{now, [2]string{now.DiscoverySettings(false), now.DiscoverySettings(true)}}
		f.counts.Store(k)
	}
	if len(t.Def.Capabilities.Exec) > 0 {
		return k.sums[1]
	}
	return k.sums[0]
}

// errNotServed is the error for a tool that does not exist on this socket, or provides nothing now.
var errNotServed = errors.New("not served")

// Pin finds the tool that a names and holds it until release. A tool that the caller may not see gets the same
// response as one that does not exist.
func (f *Finder) Pin(ctx context.Context, a call.Admitted) (_ call.Pinned, release func(), err error) {
	name, entrance := a.Tool, f.Config.Config().Entrance(a.Socket)
	tool, release, err := f.Tools.Acquire(ctx, name)
	switch {
	case err == nil && len(tool.Def.On) > 0 && a.Caller.ID != call.Extension(name).ID:
		// Such a tool takes its input for an event that happened, so only the daemon may call it.
		release()
		return call.Pinned{}, nil, tools.Unknown(name)
	case err == nil && entrance.Serves(tool.Def.Category) && !tool.Discovers:
		p, _, err := f.resolve(a, tool)
		if err != nil {
			release()
			return p, nil, err
		}
		return p, release, nil
	case err == nil:
		release()
	}
	hidden := err == nil
	unknown := tools.Unknown(name)
	if e := (*fault.Error)(nil); !hidden && (!errors.As(err, &e) || e.Code != fault.UnknownTool) {
		return call.Pinned{}, nil, err
	}
	// A module that is still being loaded may provide it.
	if err := f.Tools.Ready(ctx); err != nil {
		return call.Pinned{}, nil, err
	}
	var why error
	names := f.names(a)
	for _, source := range f.Tools.Serving().Discovering() {
		p, key, surface, release, err := f.discovered(ctx, a, source, nil)
		if err == nil {
			if t, ok := surface.Find(name, p.ReadOnly()); ok && !hidden {
				if p, err = f.bring(p, key, t); err != nil {
					release()
					return p, nil, err
				}
				return p, release, nil
			}
			for _, t := range surface.Visible(p.ReadOnly()) {
				names = append(names, t.Name)
			}
			release()
		} else if !errors.Is(err, errNotServed) && why == nil {
			why = err
		}
	}
	unknown = nearTo(unknown, name, slices.DeleteFunc(names, func(n string) bool { return !a.Execution.Admits(n) }))
	if why == nil {
		return call.Pinned{}, nil, unknown
	}
	// Whether the tool exists is unknown. The response is the same for every name.
	if err := ctx.Err(); err != nil {
		return call.Pinned{}, nil, err
	}
	e := call.AsError(ctx, why)
	switch {
	case e.Code == fault.Unauthenticated && f.Config.Config().Identity.JWKS == "":
		// Callers have no identities here, so none could call what this module provides.
		return call.Pinned{}, nil, unknown
	case e.Code == fault.Unauthenticated, e.Code == fault.ToolBroken:
		e = &fault.Error{Code: fault.UnknownTool, Message: unknown.Message + "; " + e.Message, Cause: why}
	}
	return call.Pinned{}, nil, e
}

// names returns the names of the tools in tools.d that the caller of a can call.
func (f *Finder) names(a call.Admitted) []string {
	entrance := f.Config.Config().Entrance(a.Socket)
	discovering := f.Tools.Serving().Discovering()
	var names []string
	for _, s := range f.Tools.List() {
		if s.Serving() && entrance.Serves(s.Category) && !slices.Contains(discovering, s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

// maxNear is how many names the error for an unknown name suggests.
const maxNear = 3

// nearTo returns unknown, the error for name, with similar names added. It suggests only names that the caller can
// call, so that it reveals no others.
func nearTo(unknown *fault.Error, name string, names []string) *fault.Error {
	var near []string
	for len(near) < maxNear {
		n := strictjson.Nearest(name, names)
		if n == "" {
			break
		}
		near = append(near, n)
		names = slices.DeleteFunc(names, func(s string) bool { return s == n })
	}
	if len(near) == 0 {
		return unknown
	}
	with := *unknown
	at := strings.LastIndex(with.Message, "; ") + 2 // before the advice
	with.Message = with.Message[:at] + "did you mean " + strings.Join(near, " or ") + "? " + with.Message[at:]
	return &with
}

// resolve returns a as a call of tool, with what the tool grants its caller. The key is for a tool that provides
// further ones.
func (f *Finder) resolve(a call.Admitted, tool *tools.Tool) (call.Pinned, discovery.Key, error) {
	p := call.Pinned{Admitted: a, Tool: tool, Payload: a.Call.Payload}
	generation, settings := f.Discovered.Generation(), ""
	if tool.Discovers {
		settings = f.settings(tool)
	}
	o := identity.Overlay{
		Tool: tool.Name, Version: tool.Version, Config: tool.Config,
		Claims: tool.Def.Identity.Claims, Secret: tool.Def.Identity.Secret, Settings: settings,
	}
	if tool.Discovers {
		var err error
		if o.Values, err = f.Execute.SecretValues(tool, a.Caller); err != nil {
			return p, discovery.Key{}, err
		}
	}
	p.Effective = f.Identity().Effective(a.Caller, o)
	if !tool.Discovers {
		return p, discovery.Key{}, nil
	}
	return p, discovery.Key{
		Fingerprint: p.Effective.Fingerprint(), Tool: tool.Name, Version: tool.Version,
		Generation: generation, Settings: settings, Shown: p.Effective.Shown, ReadOnly: p.ReadOnly(),
	}, nil
}

// discovered returns what the tool source provides for the caller of a, pinned until release. A non-nil refresh
// selects what the caller wants discovered anew.
func (f *Finder) discovered(ctx context.Context, a call.Admitted, source string, refresh func(discovery.Key)) (p call.Pinned, key discovery.Key, s *discovery.Surface, release func(), err error) {
	entrance := f.Config.Config().Entrance(a.Socket)
	for range 4 {
		tool, release, err := f.Tools.Acquire(ctx, source)
		if err != nil || !tool.Discovers || !entrance.Serves(tool.Def.Category) {
			if err == nil {
				release()
			}
			return p, key, nil, nil, errNotServed
		}
		if p, key, err = f.resolve(a, tool); err == nil {
			if refresh != nil {
				refresh(key)
				refresh = nil
			}
			if s, err = f.Discovered.Get(ctx, key, f.Discovery(p, key)); err == nil {
				return p, key, s, release, nil
			}
		}
		release()
		if !errors.Is(err, discovery.ErrSuperseded) {
			return p, key, nil, nil, err
		}
	}
	return p, key, nil, nil, fault.Errorf(fault.Overloaded, "the tools of %s change faster than they can be listed; try again", source)
}

// Discovery returns the discovery of what p's tool provides for its caller. It may continue after the call has ended.
// Its result is for everybody with that fingerprint, so the module gets no other name, and no session.
func (f *Finder) Discovery(p call.Pinned, key discovery.Key) func(context.Context) (*discovery.Surface, error) {
	tool := p.Tool
	caller := p.Caller
	caller.ID = key.Fingerprint
	about := call.Pinned{
		Admitted: call.Admitted{
			Request: call.Request{Call: &wire.Call{Tool: tool.Name, ExecutionID: p.ExecutionID, Trace: p.Trace}},
			Caller:  caller,
		},
		Effective: p.Effective,
	}
	return func(ctx context.Context) (_ *discovery.Surface, err error) {
		defer func() {
			if !errors.Is(err, discovery.ErrSuperseded) {
				p.Execution.Discovered(tool.Name, call.AsError(ctx, err))
			}
		}()
		pinned, release, err := f.Tools.Acquire(ctx, tool.Name)
		if err != nil {
			return nil, err
		}
		defer release()
		if pinned.Version != tool.Version {
			return nil, discovery.ErrSuperseded
		}
		about.Tool = pinned
		return f.discover(ctx, &about)
	}
}

// discover asks the module which tools it provides.
func (f *Finder) discover(ctx context.Context, p *call.Pinned) (*discovery.Surface, error) {
	tool := p.Tool
	export := "discover"
	in, err := json.Marshal(abi.Discovery{
		Tool: tool.Name, ReadOnly: p.ReadOnly(), DeadlineMS: discovery.MaxTime.Milliseconds(),
	})
	if tool.MCP != nil {
		export, in, err = tool.MCP.Listing()
	}
	if err != nil {
		return nil, err
	}
	maskText, err := f.Execute.Masker(p)
	if err != nil {
		return nil, err
	}
	mask := func(e *fault.Error) *fault.Error {
		if maskText == nil {
			return e
		}
		return &fault.Error{Code: e.Code, Message: maskText(e.Message), MayRetry: e.MayRetry}
	}
	var up execute.Upstream
	reply, err := f.Execute.Ask(ctx, execute.Question{Call: p, Module: tool.Handler, Export: export, Input: in, Trace: p.Trace, Upstream: &up})
	if err != nil {
		e := mask(call.AsError(ctx, err))
		if e.Code == fault.ToolFailed {
			e.MayRetry = !up.Refused()
		}
		e.Message = "list the tools of " + tool.Name + ": " + e.Message
		return nil, e
	}
	broken := func(format string, a ...any) error {
		return mask(fault.Errorf(fault.ToolBroken, "%s lists tools that cannot be taken: "+format, append([]any{tool.Name}, a...)...))
	}
	if len(reply.Output) > discovery.MaxSize {
		return nil, broken("they are over %d bytes", discovery.MaxSize)
	}
	var s abi.Surface
	if tool.MCP != nil {
		if s.Tools, err = tool.MCP.Tools(reply.Output); err != nil {
			return nil, broken("%w", err)
		}
		// What the plugin says about its tools is informative; tool.json determines what they may do.
		for i := range s.Tools {
			s.Tools[i].Mutating = tool.Def.Mutating
		}
	} else if err := strictjson.Unmarshal(reply.Output, &s); err != nil {
		return nil, broken("%w", err)
	}
	if e := s.Error; e != nil {
		we := &fault.Error{Code: fault.ToolFailed, Message: tool.Name + " cannot list its tools: " + e.Message, MayRetry: e.Retriable && !up.Refused()}
		if e.Code == abi.Unauthenticated {
			we.Code, we.Message = fault.Unauthenticated, tool.Name+" refuses this identity: "+e.Message
		}
		return nil, mask(we)
	}
	list, err := f.check(&s)
	if err != nil {
		return nil, broken("%w", err)
	}
	var safety abi.Safety
	if s.Safety != nil {
		safety = *s.Safety
	}
	ttl := cmp.Or(
		tool.Def.Discovery.TTL.Duration(),
		time.Duration(min(max(s.TTLMS, 0), 1<<40))*time.Millisecond,
		time.Duration(f.Config.Config().Discovery.TTL)*time.Second,
	)
	return discovery.NewSurface(list, safety, ttl), nil
}

// check validates a module's list and accepts it as a whole or not at all.
func (f *Finder) check(s *abi.Surface) ([]discovery.Tool, error) {
	if len(s.Tools) > discovery.MaxTools {
		return nil, fmt.Errorf("%d tools, and the limit is %d", len(s.Tools), discovery.MaxTools)
	}
	seen := map[string]string{}
	list := make([]discovery.Tool, 0, len(s.Tools))
	for i := range s.Tools {
		t := &s.Tools[i]
		called := cmp.Or(t.Title, t.Name)
		switch other, double := seen[t.Name]; {
		case !tools.ValidName(t.Name):
			return nil, fmt.Errorf("tool %d: the name %.80q %s", i, t.Name, tools.NameFault(t.Name))
		case double:
			return nil, fmt.Errorf("%q and %q would both be %s", other, called, t.Name)
		case len(t.Title) > discovery.MaxText || len(t.Description) > discovery.MaxText:
			return nil, fmt.Errorf("the text of %s is over %d bytes", t.Name, discovery.MaxText)
		case len(t.Schema) > discovery.MaxSchema || len(t.Binding) > discovery.MaxSchema || len(t.OutputSchema) > discovery.MaxSchema:
			return nil, fmt.Errorf("a schema or the binding of %s is over %d bytes", t.Name, discovery.MaxSchema)
		}
		seen[t.Name] = called
		o := discovery.Tool{Name: t.Name, Title: t.Title, Description: t.Description, Schema: string(t.Schema), Output: string(t.OutputSchema), Binding: string(t.Binding), Mutating: t.Mutating}
		for what, text := range map[string]*string{"schema": &o.Schema, "output schema": &o.Output} {
			if *text == "null" {
				*text = ""
			}
			compiled, err := f.schemas.compile(*text)
			if err == nil && text == &o.Schema {
				err = tools.AdmitsObject(compiled)
			}
			if err != nil {
				return nil, fmt.Errorf("the %s of %s %w", what, t.Name, err)
			}
		}
		if err := checkIcons(t.Icons); err != nil {
			return nil, fmt.Errorf("the icons of %s: %w", t.Name, err)
		}
		if len(t.Icons) > 0 {
			b, err := json.Marshal(t.Icons)
			if err != nil {
				return nil, err
			}
			o.Icons = string(b)
		}
		if t.Annotations != nil {
			a := *t.Annotations
			// A tool must not claim less for itself than what it does.
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
		list = append(list, o)
	}
	return list, nil
}

// maxIcons bounds the icons of a tool in total, in bytes.
const maxIcons = 16 << 10

// checkIcons admits icons that a client can show without contacting anybody, or only the server that the icon names.
func checkIcons(icons []abi.Icon) error {
	size := 0
	for _, icon := range icons {
		if !strings.HasPrefix(icon.Src, "https://") && !strings.HasPrefix(icon.Src, "data:image/") {
			return fmt.Errorf("src %.80q is neither an https: URL nor an image in a data: URL", icon.Src)
		}
		if icon.Theme != "" && icon.Theme != "light" && icon.Theme != "dark" {
			return fmt.Errorf("theme %.80q is neither light nor dark", icon.Theme)
		}
		size += len(icon.Src) + len(icon.MIMEType) + len(strings.Join(icon.Sizes, ""))
	}
	if size > maxIcons {
		return fmt.Errorf("they have %d bytes, and %d is the limit", size, maxIcons)
	}
	return nil
}

// bring returns p as a call of t, which p's tool provides for its caller.
func (f *Finder) bring(p call.Pinned, key discovery.Key, t discovery.Tool) (call.Pinned, error) {
	schema, err := f.schemas.compile(t.Schema)
	if err != nil {
		return p, fault.Errorf(fault.Internal, "the schema of %s: %w", t.Name, err)
	}
	output, err := f.schemas.compile(t.Output)
	if err != nil {
		return p, fault.Errorf(fault.Internal, "the output schema of %s: %w", t.Name, err)
	}
	p.Discovered = &call.Discovered{Tool: t, Key: key, Schema: schema, Output: output}
	return p, nil
}
