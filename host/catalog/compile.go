package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// describeTimeout limits the call of describe at load. It is generous, since fuel
// limits the work and a machine that compiles many tools is busy.
const describeTimeout = 30 * time.Second

// compiler makes generations of candidates.
type compiler struct {
	engine *guest.Engine
	// runner knows which users a tool may run as; nil: this host starts no processes.
	runner *process.Runner
	setups *setups
}

// compile compiles the modules of a candidate and returns a generation. It leaves
// nothing open on an error.
func (c *compiler) compile(ctx context.Context, v *candidate) (_ *generation, err error) {
	if v.err != nil {
		return nil, v.err
	}
	def := v.def
	g := &generation{has: v.present, digest: v.digest, tool: tools.Tool{
		Name: v.name, Version: v.digest[:32], Kind: v.kind, Def: def, Dir: v.dir,
		Description: def.Description, Annotations: def.Annotations,
		SchemaSource: def.Schema, OutputSource: def.OutputSchema, Config: def.Config,
	}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	t := &g.tool
	if err := v.checkRoots(); err != nil {
		return nil, err
	}
	if err := c.findUser(v, t); err != nil {
		return nil, err
	}
	if err := c.loadPolicies(ctx, v, t); err != nil {
		return nil, err
	}
	if v.kind != tools.Binary {
		if err := c.loadHandler(ctx, v, t); err != nil {
			return nil, err
		}
	}
	slices.Sort(t.Wants)
	t.Wants = slices.Compact(t.Wants)
	if t.SchemaSource != nil {
		if t.Schema, err = tools.CompilePayload(t.SchemaSource); err != nil {
			return nil, broken("the schema of tool %s %w", v.name, err)
		}
	}
	if t.OutputSource != nil {
		if t.Output, err = tools.CompileSchema(t.OutputSource); err != nil {
			return nil, broken("the output schema of tool %s %w", v.name, err)
		}
	}
	err = c.setups.run(ctx, v)
	if v.setup.data != nil {
		v.shareGitConfig()
		v.findPrograms() // setup.sh may have installed them, even if it failed
		v.sum()
		g.digest, t.Version = v.digest, v.digest[:32]
	}
	if err != nil {
		return nil, err
	}
	for _, p := range v.programs {
		if v.kind == tools.Binary {
			if p.Err != nil && !p.Missing {
				return nil, broken("tool %s cannot start: %s %w", v.name, p.File, p.Err)
			}
			// If it is missing now, it may be installed before the first call.
			t.Binary, g.program = p.File, p
		}
		if len(p.Interpreters) > 0 && p.Err == nil {
			if t.Interpreters == nil {
				t.Interpreters = map[string][]confine.Interpreter{}
			}
			t.Interpreters[p.File] = p.Interpreters
		}
	}
	return g, nil
}

// loadPolicies adds the policies to t, which owns them also on an error, and what they
// want to be told.
func (c *compiler) loadPolicies(ctx context.Context, v *candidate, t *tools.Tool) error {
	for _, p := range v.policies {
		m, err := c.loadPolicy(ctx, v, p)
		if err != nil {
			return err
		}
		t.Policies = append(t.Policies, m)
		t.PolicyFiles = append(t.PolicyFiles, p.file)
		sum := sha256.Sum256(p.data)
		t.PolicyDigests = append(t.PolicyDigests, hex.EncodeToString(sum[:]))
		d, err := describe(ctx, m, p.file)
		if err != nil {
			return err
		}
		t.Wants = append(t.Wants, d.Wants...)
	}
	return nil
}

// findUser sets the user that the tool's programs run as.
func (c *compiler) findUser(v *candidate, t *tools.Tool) (err error) {
	if v.def.User == "" {
		return nil
	}
	if t.User, err = confine.LookUpUser(v.def.User); err != nil {
		return broken("tool %s: user %v", v.name, err)
	}
	reason := "nothing runs binaries here"
	if c.runner != nil {
		s := c.runner.Confinement()
		if s.Users {
			return nil
		}
		reason = s.UsersReason
	}
	return broken("tool %s is to run as user %s: %s; or take user out of %s", v.name, v.def.User, reason, tools.DefinitionFile)
}

// policyFuel is the fuel of a policy, a seventh of a second: unlike a handler it
// works on no input that is large, and callers wait for it.
const policyFuel = 1_000_000_000

// loadPolicy loads a policy. It gets the default limits and not those of the tool,
// since restricting a tool must not break its policy.
func (c *compiler) loadPolicy(ctx context.Context, v *candidate, p module) (*guest.Module, error) {
	std := tools.DefaultDefinition().Limits
	name := v.name + "/" + path.Base(p.place.Path)
	m, err := c.engine.Load(ctx, guest.Spec{
		Name: name, Wasm: p.data,
		First: true, Memory: int64(std.Memory), Fuel: policyFuel, Output: int64(std.Output),
		Grants: v.def.Capabilities.Grants() & guest.GrantState,
		Config: v.def.Config, Concurrency: v.def.Limits.Concurrency,
	})
	if err != nil {
		return nil, loadError(p.file, err)
	}
	if !m.Has("restrict") {
		m.Close()
		return nil, broken("%s exports no restrict, so it is not a policy; every call is refused until one loads: put a policy there", p.file)
	}
	return m, nil
}

func (c *compiler) loadHandler(ctx context.Context, v *candidate, t *tools.Tool) error {
	def, k := v.def, &v.def.Capabilities
	spec := guest.Spec{
		Name: v.name + "/" + path.Base(v.handler.place.Path), Wasm: v.handler.data,
		Memory: int64(def.Limits.Memory), Fuel: def.Limits.Fuel, Output: int64(def.Limits.Output),
		Grants:  k.Grants(),
		Compile: def.Limits.Compile.Limits(),
		Config:  def.Config, Concurrency: def.Limits.Concurrency, Stock: v.kind == tools.Handler,
	}
	for _, at := range slices.Sorted(maps.Keys(k.Files)) {
		spec.Files = append(spec.Files, guest.Mount{Guest: at, Host: k.Files[at].Path, ReadOnly: k.Files[at].Mode != "rw"})
	}
	for i, l := range v.linked {
		spec.Linked = append(spec.Linked, guest.Linked{Name: v.manifest.Modules[i].Name, Wasm: l.data})
	}
	m, err := c.engine.Load(ctx, spec)
	if err != nil {
		return loadError(v.handler.file, err)
	}
	sum := sha256.Sum256(v.handler.data)
	t.Handler, t.HandlerFile, t.HandlerDigest = m, v.handler.file, hex.EncodeToString(sum[:])
	for _, e := range m.Missing() {
		e.Module = ""
		t.Missing = append(t.Missing, tools.Explain(e).Error())
	}
	if v.kind == tools.WASI {
		if !m.Has("_start") {
			return broken("%s exports no _start, so it is not a WASI command; name it in handler if it is an Extism module", t.HandlerFile)
		}
		if !m.IsCommand() {
			return broken("%s imports functions of Extism, so it is not a WASI command, though it has a _start; name it in handler", t.HandlerFile)
		}
		return nil
	}
	switch {
	case m.IsComponent() && !m.IsCommand() && (def.Entry != nil || !m.Has("handle")):
		return t.UseFunction(def.Entry)
	case def.Entry != nil && !m.Has(def.Entry.Export):
		return broken("%s has no export %q, which tool.json names in entry; name one that it has", t.HandlerFile, def.Entry.Export)
	case def.Entry != nil:
		t.Entry = def.Entry
	case m.Has("handle"):
		t.Entry = &tools.Entry{Export: "handle", Input: tools.EntryCall, Output: tools.EntryResult}
	case tools.MCPPluginOf(m) != nil:
		t.MCP = tools.MCPPluginOf(m)
		t.Entry = &tools.Entry{Export: t.MCP.Export(), Input: tools.EntryPayload, Output: tools.EntryResult}
		return listMCP(ctx, m, t)
	case m.IsCommand():
		t.Kind = tools.WASI
		return v.checkUse(tools.WASI)
	default:
		return broken(`%s exports neither handle nor _start of a WASI command; say in tool.json which export is the tool: "entry": {"export": NAME}%s`, t.HandlerFile, exported(m))
	}
	if t.Entry.Export != "handle" { // a stock plugin, whose describe is its own
		return nil
	}
	t.Discovers = m.Has("discover")
	d, err := describe(ctx, m, t.HandlerFile)
	if err != nil {
		return err
	}
	t.Wants = append(t.Wants, d.Wants...)
	if t.Description == "" {
		t.Description = d.Description
	}
	if t.Annotations == nil {
		t.Annotations = d.Annotations
	}
	if t.SchemaSource == nil && d.Schema != nil {
		t.SchemaSource = d.Schema
	}
	return nil
}

// loadError replaces the short name of a module in an error of the engine with its
// file name.
func loadError(file string, err error) error {
	if e, ok := errors.AsType[*guest.Error](err); ok {
		unnamed := *e
		unnamed.Module = ""
		err = tools.Explain(&unnamed)
	}
	e, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return broken("load %s: %w", file, err)
	}
	return &fault.Error{Code: e.Code, Message: "load " + file + ": " + e.Message, Cause: err}
}

// exported names what could be the export of an entry.
func exported(m *guest.Module) string {
	names := m.Callables()
	if len(names) == 0 {
		return ""
	}
	return ", which may be " + strings.Join(names[:min(len(names), 8)], ", ")
}

// listMCP asks a plugin of a host of MCP tools for what it has, once for each
// version. One tool is t itself; several are brought for each caller.
func listMCP(ctx context.Context, m *guest.Module, t *tools.Tool) error {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	export, input, err := t.MCP.Listing()
	if err != nil {
		return err
	}
	reply, err := m.Call(ctx, guest.Invocation{Export: export, Input: input})
	if err != nil {
		return callFailed(t.HandlerFile, export, err, "fix it, or say in tool.json which export is the tool")
	}
	list, err := t.MCP.Tools(reply.Output)
	if err != nil {
		return broken("%s: %w; fix it, or say in tool.json which export is the tool", t.HandlerFile, err)
	}
	if len(list) > 1 {
		t.Discovers = true
		return nil
	}
	if err := json.Unmarshal(list[0].Binding, &t.MCPName); err != nil {
		return err
	}
	if t.Description == "" {
		t.Description = list[0].Description
	}
	if t.Annotations == nil {
		t.Annotations = list[0].Annotations
	}
	if t.SchemaSource == nil && list[0].Schema != nil {
		t.SchemaSource = list[0].Schema
	}
	if t.OutputSource == nil {
		t.OutputSource = list[0].OutputSchema
	}
	return nil
}

// callFailed returns the error of an export that is called at load. What the host lacked
// keeps its code, so that the load is tried again: the module is not at fault.
func callFailed(file, export string, err error, remedy string) error {
	err = tools.Explain(err)
	if e, ok := errors.AsType[*fault.Error](err); ok && (e.Code == fault.Overloaded || e.Code == fault.Timeout || e.Code == fault.Internal) {
		return &fault.Error{Code: e.Code, Message: fmt.Sprintf("%s: %s fails: %s", file, export, e.Message), Cause: err}
	}
	return broken("%s: %s fails: %w; %s", file, export, err, remedy)
}

// describe calls the optional export describe. It is called once for each version.
func describe(ctx context.Context, m *guest.Module, file string) (d abi.Describe, err error) {
	if !m.Has("describe") {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	reply, err := m.Call(ctx, guest.Invocation{Export: "describe"})
	if err != nil {
		return d, callFailed(file, "describe", err, "fix it, or remove the export")
	}
	if err := strictjson.Unmarshal(reply.Output, &d); err != nil {
		return d, broken("%s: describe returned an invalid description: %w; build the module with a current SDK", file, err)
	}
	if d.ABI > abi.Version {
		return d, broken("%s is written for version %d of the guest interface, and this toold supports %d; use a newer toold, or a module built for %d", file, d.ABI, abi.Version, abi.Version)
	}
	if d.ABI < 1 {
		return d, broken("%s: describe answers abi %d; the first version is 1", file, d.ABI)
	}
	for _, w := range d.Wants {
		if w != abi.WantRepoConfig && w != abi.WantHTTP {
			return d, broken("%s wants %q in its calls, which this toold does not know; use a newer toold", file, w)
		}
	}
	return d, nil
}
