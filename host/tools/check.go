package tools

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire/callbacks"
)

// ParseDefinition parses a tool.json strictly: an unknown or duplicate key, a wrong
// type or a value out of range is a Faults error, with file (as it is named here),
// line, column and JSON pointer. It reads no other file.
func ParseDefinition(file string, data []byte) (*Definition, error) {
	d := DefaultDefinition()
	if len(data) > MaxDefinition {
		return nil, Faults{{File: file, Reason: fmt.Sprintf("is %d bytes, more than the %d that a definition may have", len(data), MaxDefinition)}}
	}
	if err := strictjson.Unmarshal(data, d); err != nil {
		var f *strictjson.Fault
		if errors.As(err, &f) {
			return nil, Faults{{File: file, Line: f.Line, Column: f.Column, Pointer: f.Pointer, Reason: f.Reason}}
		}
		return nil, Faults{{File: file, Reason: err.Error()}}
	}
	c := &checker{file: file, data: data}
	c.definition(d)
	if len(c.faults) > 0 {
		return nil, c.faults
	}
	return d, nil
}

func (c *checker) definition(d *Definition) {
	c.execution(d)
	if len(d.Description) > 4096 {
		c.fault("/description", "is longer than 4096 bytes")
	}
	if d.Schema != nil {
		if _, err := CompilePayload(d.Schema); err != nil {
			c.fault("/schema", "%v", err)
		}
	}
	if d.OutputSchema != nil {
		if _, err := CompileSchema(d.OutputSchema); err != nil {
			c.fault("/output_schema", "%v", err)
		}
		if d.Binary != "" || d.WASI != "" {
			c.fault("/output_schema", "is of what a handler answers as data, and this is a program, which answers none")
		}
		if d.Entry != nil && d.Entry.Output == EntryStdout {
			c.fault("/output_schema", "is of what a handler answers as data, and with the entry's output stdout it answers none")
		}
	}
	if !(d.Timeout > 0) || d.Timeout > maxTimeout {
		c.fault("/timeout", "is %v; it must be more than 0 and at most %v seconds", d.Timeout, float64(maxTimeout))
	}
	c.oneOf("/terminal_output", d.TerminalOutput, TerminalDisplay, TerminalAll)
	c.oneOf("/policy", d.Policy, PolicyNone, PolicyRequired)
	if d.Category != "" && !ValidName(d.Category) {
		c.fault("/category", "is %q; it must match %s", d.Category, nameRule)
	}
	if d.User != "" {
		if _, err := confine.LookUpUser(d.User); err != nil {
			c.fault("/user", "%v", err)
		}
	}
	for i, root := range d.Roots {
		c.absolute(fmt.Sprintf("/roots/%d", i), root)
	}
	c.capabilities(&d.Capabilities, d.Policy)
	c.environment(d)
	c.environmentSeen(d)
	c.callbacks(d)
	c.secrets(d)
	c.limits(&d.Limits)
	c.identity(&d.Identity)
	c.discovery(d)
	c.reliability(&d.Reliability)
	c.reconcile(d)
	checkOn(c, d)
	for _, name := range sortedKeys(d.Hash) {
		at := "/hash/" + escapePointer(name)
		if !filepath.IsLocal(name) || name == "." {
			c.fault(at, "names %q; it must name a file of the tool's folder", name)
		}
		if b, err := hex.DecodeString(d.Hash[name]); err != nil || len(b) != 32 || strings.ToLower(d.Hash[name]) != d.Hash[name] {
			c.fault(at, "must be a sha256 as 64 lower-case hexadecimal digits (sha256sum prints one)")
		}
	}
}

func (c *checker) execution(d *Definition) {
	var set []string
	for _, w := range [...]struct{ field, value string }{{"binary", d.Binary}, {"handler", d.Handler}, {"wasi", d.WASI}} {
		if has(c.data, "/"+w.field) {
			set = append(set, w.field)
			if w.value == "" {
				c.fault("/"+w.field, "is empty; leave the field out for the default")
			}
		}
	}
	if len(set) > 1 {
		c.fault("/"+set[1], "cannot stand beside %s: a tool is executed in one way, keep one of binary, handler and wasi", set[0])
	}
	if b := d.Binary; b != "" {
		switch {
		case strings.ContainsRune(b, 0):
			c.fault("/binary", "holds a zero byte")
		case strings.ContainsRune(b, '/') && (!path.IsAbs(b) || path.Clean(b) != b):
			c.fault("/binary", "is %q; it must be a clean absolute path, or a bare name that is looked up in %s", b, BinaryPath)
		case b == "/" || b == "." || b == "..":
			c.fault("/binary", "is %q, which is a folder", b)
		}
	}
	for _, w := range [...]struct {
		field, value string
		ext          []string
	}{{"handler", d.Handler, []string{".wasm", ".json"}}, {"wasi", d.WASI, []string{".wasm"}}} {
		if w.value == "" {
			continue
		}
		if !filepath.IsLocal(w.value) || path.Clean(w.value) != w.value {
			c.fault("/"+w.field, "is %q; it must be a clean path beneath the tool's folder", w.value)
		} else if !slices.Contains(w.ext, path.Ext(w.value)) {
			c.fault("/"+w.field, "is %q; it must end in %s", w.value, strings.Join(w.ext, " or "))
		} else if w.value == DefinitionFile || w.value == PolicyFile {
			c.fault("/"+w.field, "is %q, which has a meaning of its own in a tool's folder; give the module another name", w.value)
		}
	}
	if e := d.Entry; e != nil {
		if e.Export == "" {
			c.fault("/entry", "needs export, the name of the function that is the tool")
		}
		c.oneOf("/entry/input", e.Input, EntryCall, EntryStdin, EntryPayload)
		c.oneOf("/entry/output", e.Output, EntryResult, EntryStdout)
		if e.Input == "" {
			e.Input = EntryCall
		}
		if e.Output == "" {
			e.Output = EntryResult
		}
		if d.Binary != "" || d.WASI != "" {
			c.fault("/entry", "is for a handler; a binary or wasi program has no exports that are called")
		}
	}
}

func (c *checker) absolute(pointer, p string) bool {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		c.fault(pointer, "is %q; it must be a clean absolute path", p)
		return false
	}
	return true
}

func (c *checker) capabilities(k *Capabilities, policy string) {
	for i, p := range k.Exec {
		c.absolute(fmt.Sprintf("/capabilities/exec/%d", i), p)
	}
	for i, host := range k.Network {
		at := fmt.Sprintf("/capabilities/network/%d", i)
		if socket, ok := strings.CutPrefix(host, "unix:"); ok {
			c.absolute(at, socket)
		} else if !validHost(host, true) {
			c.fault(at, `is %q; it must be a host, a host:port, an address, "*.example.com", "*" or "unix:/path"`, host)
		}
	}
	if h := k.HTTP; h != nil {
		if len(h.Hosts) == 0 {
			c.fault("/capabilities/http", `needs hosts, the list of hosts that requests may go to; leave http out to grant none`)
		}
		for i, host := range h.Hosts {
			if !validHost(host, true) {
				c.fault(fmt.Sprintf("/capabilities/http/hosts/%d", i), `is %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, host)
			}
		}
		for i, m := range h.Methods {
			if m != "*" && !methodRule.MatchString(m) {
				c.fault(fmt.Sprintf("/capabilities/http/methods/%d", i), `is %q; it must be a method in upper case such as "GET", or "*"`, m)
			}
		}
		if len(h.Methods) == 0 {
			h.Methods = []string{"GET", "HEAD"}
		}
	}
	for _, guest := range sortedKeys(k.Files) {
		f, at := k.Files[guest], "/capabilities/files/"+escapePointer(guest)
		c.absolute(at, guest)
		c.absolute(at+"/path", f.Path)
		c.oneOf(at+"/mode", f.Mode, "ro", "rw")
		if f.Mode == "" {
			f.Mode = "ro"
			k.Files[guest] = f
		}
	}
	for i, name := range k.Env {
		at := fmt.Sprintf("/capabilities/env/%d", i)
		if !variableRule.MatchString(name) {
			c.fault(at, "is %q; it must be the name of a variable", name)
		} else if why := neverFromCaller(name); why != "" && !(policy == PolicyRequired && slices.Contains(judged, name)) {
			c.fault(at, "is %s, which %s; set it in environment if the tool needs a fixed value", name, why)
		}
	}
	within(c, "/capabilities/state", k.State, 0, maxState)
	checkToolCalls(c, k.ToolCall)
}

func (c *checker) environment(d *Definition) {
	for _, name := range sortedKeys(d.Environment) {
		at := "/environment/" + escapePointer(name)
		if !variableRule.MatchString(name) {
			c.fault(at, "is not the name of a variable")
		}
		if strings.ContainsRune(d.Environment[name], 0) {
			c.fault(at, "holds a zero byte")
		}
		if slices.Contains(d.Capabilities.Env, name) {
			c.fault(at, "is fixed here and open to callers in capabilities.env; keep one")
		}
	}
}

func (c *checker) callbacks(d *Definition) {
	for i, kind := range d.Callbacks {
		if !slices.Contains(callbacks.Kinds(), kind) {
			c.fault(fmt.Sprintf("/callbacks/%d", i), "is not one of %s", strings.Join(callbacks.Kinds(), ", "))
		}
	}
}

func (c *checker) environmentSeen(d *Definition) {
	for _, name := range sortedKeys(d.EnvironmentSeen) {
		at := "/environment_seen/" + escapePointer(name)
		if !variableRule.MatchString(strings.TrimSuffix(name, "*")) {
			c.fault(at, "is not the name of a variable, nor its beginning and a *")
		}
		if strings.ContainsFunc(d.EnvironmentSeen[name], unicode.IsControl) {
			c.fault(at, "holds a control character; it is what to do instead, in a few words")
		}
	}
}

func (c *checker) limits(l *Limits) {
	within(c, "/limits/memory", l.Memory, 64<<10, maxMemory)
	within(c, "/limits/fuel", l.Fuel, 1, maxFuel)
	within(c, "/limits/output", l.Output, 1, maxOutput)
	if l.Stream < 0 {
		c.fault("/limits/stream", "is negative; 0 is no limit")
	}
	within(c, "/limits/concurrency", l.Concurrency, 1, maxConcurrency)
	within(c, "/limits/queue", l.Queue, 0, maxConcurrency)
	if t := l.Compile.Time; t != 0 {
		within(c, "/limits/compile/time", t, 1, maxCompileTime)
	}
	if m := l.Compile.Memory; m != 0 {
		within(c, "/limits/compile/memory", m, 64<<20, maxCompileMemory)
	}
	if m := l.Compile.Module; m != 0 {
		within(c, "/limits/compile/module", m, 1<<10, maxCompileModule)
	}
}

func (c *checker) identity(id *Identity) {
	for _, list := range [...]struct {
		at    string
		names []string
	}{{"/identity/claims", id.Claims}, {"/identity/secret", id.Secret}} {
		for i, name := range list.names {
			at := fmt.Sprintf("%s/%d", list.at, i)
			if !validClaim(name) {
				c.fault(at, "is %q; it must be the name of a claim", name)
			}
			if slices.Contains(list.names[:i], name) {
				c.fault(at, "is %s, which the list has already", name)
			}
		}
	}
}

func (c *checker) discovery(d *Definition) {
	if has(c.data, "/discovery/ttl") {
		within(c, "/discovery/ttl", d.Discovery.TTL, 1, 24*3600)
	}
	if d.Discovery.TTL != 0 && (d.Binary != "" || d.WASI != "") {
		c.fault("/discovery", "is for a handler; a binary or wasi program brings no tools")
	}
}

func (c *checker) reliability(r *Reliability) {
	if !(r.TTL > 0) || r.TTL > maxTTL {
		c.fault("/reliability/ttl", "is %v; it must be more than 0 and at most %v seconds", r.TTL, float64(maxTTL))
	}
	within(c, "/reliability/failed_ttl", r.FailedTTL, 0, maxTTL)
	if r.OnDuplicate == "" {
		r.OnDuplicate = DuplicateWait
	}
	c.oneOf("/reliability/on_duplicate", r.OnDuplicate, DuplicateWait, DuplicateFail)
	c.oneOf("/reliability/mode", r.Mode, "off", "shadow", "read-only", "all")
	for i, code := range r.RetriableExits {
		within(c, fmt.Sprintf("/reliability/retriable_exits/%d", i), code, 1, 255)
	}
	within(c, "/reliability/retry/max", r.Retry.Max, 0, 100)
	within(c, "/reliability/retry/initial_ms", r.Retry.InitialMS, 1, maxMillis)
	within(c, "/reliability/retry/cap_ms", r.Retry.CapMS, 1, maxMillis)
	if r.Retry.CapMS < r.Retry.InitialMS {
		c.fault("/reliability/retry", "has cap_ms %d below initial_ms %d", r.Retry.CapMS, r.Retry.InitialMS)
	}
	if s := r.Retry.Budget.Share; !(s > 0) || s > 1 {
		c.fault("/reliability/retry/budget/share", "is %v; it must be more than 0 and at most 1", s)
	}
	within(c, "/reliability/retry/budget/burst", r.Retry.Budget.Burst, 1, 1_000_000)
	within(c, "/reliability/breaker/failures", r.Breaker.Failures, 1, 1_000_000)
	within(c, "/reliability/breaker/window", r.Breaker.Window, 1, 100_000)
	if !(r.Breaker.Ratio > 0) || r.Breaker.Ratio > 1 {
		c.fault("/reliability/breaker/ratio", "is %v; it must be more than 0 and at most 1", r.Breaker.Ratio)
	}
	within(c, "/reliability/breaker/reset_ms", r.Breaker.ResetMS, 1, maxMillis)
}

func (c *checker) reconcile(d *Definition) {
	r := d.Reconcile
	if r == nil {
		return
	}
	if d.Binary == "" {
		c.fault("/reconcile", "is for a binary; a module exports reconcile")
	}
	if len(r.Args) == 0 {
		c.fault("/reconcile/args", "is empty; it is what the binary is run with")
	}
	if len(r.Done)+len(r.NotDone) == 0 {
		c.fault("/reconcile", "has no exit codes; name those of done, not_done or both")
	}
	for i, code := range r.Done {
		within(c, fmt.Sprintf("/reconcile/done/%d", i), code, 0, 255)
	}
	for i, code := range r.NotDone {
		within(c, fmt.Sprintf("/reconcile/not_done/%d", i), code, 0, 255)
		if slices.Contains(r.Done, code) {
			c.fault(fmt.Sprintf("/reconcile/not_done/%d", i), "is %d, which is in done too", code)
		}
	}
}

func checkToolCalls(c *checker, t ToolCalls) {
	if t.Sessions() {
		return
	}
	if len(t) > maxToolCalls {
		c.fault("/capabilities/tool_call", "has %d names; it must have at most %d, or \"*\" for every tool", len(t), maxToolCalls)
	}
	for i, name := range t {
		if name != "*" && !ValidName(name) && !slices.Contains(SessionCalls(), name) {
			c.fault(fmt.Sprintf("/capabilities/tool_call/%d", i), `is %q; it must be the name of a tool, "*" for every tool, or one of %q`, name, SessionCalls())
		}
	}
}
