package tools

import (
	"errors"
	"strings"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
)

// What the engine says of a module is about limits and imports. Here it becomes
// what a caller is told: a code, and what to change in tool.json.

// moduleFault is what an error of the engine is to a caller.
type moduleFault struct {
	code fault.Code
	// remedy is what to do where tool.json has a part in it; {} stands for what
	// the module's author can do. Empty: that alone.
	remedy string
}

// moduleFaults is the whole table; it is never written to.
var moduleFaults = map[guest.Kind]moduleFault{
	guest.Internal:    {fault.Internal, ""},
	guest.BadModule:   {fault.ToolBroken, ""},
	guest.NoExport:    {fault.ToolBroken, `set "entry" in tool.json, or {}`},
	guest.IsCommand:   {fault.ToolBroken, `name it under "wasi" in tool.json, or {}`},
	guest.NotCommand:  {fault.ToolBroken, `name it as "handler" in tool.json, or {}`},
	guest.NotGranted:  {fault.ToolBroken, ""}, // see Explain
	guest.BadMount:    {fault.ToolBroken, "correct capabilities.files in tool.json"},
	guest.BadLimit:    {fault.ToolBroken, "change limits.memory in tool.json"},
	guest.NoRoom:      {fault.ToolBroken, "raise limits.memory in tool.json"},
	guest.Failed:      {fault.ToolFailed, ""},
	guest.Trapped:     {fault.GuestTrap, ""},
	guest.FuelUsed:    {fault.LimitExceeded, "{}, do less, or raise limits.fuel in tool.json"},
	guest.MemoryUsed:  {fault.LimitExceeded, "raise limits.memory in tool.json, or {}"},
	guest.BlocksUsed:  {fault.LimitExceeded, "raise limits.memory in tool.json"},
	guest.OutputUsed:  {fault.LimitExceeded, "raise limits.output in tool.json, or {}"},
	guest.DeadlineMet: {fault.Timeout, "raise timeout in tool.json, or that of the caller, or {}"},
	guest.Aborted:     {fault.Aborted, ""},
	guest.Overloaded:  {fault.Overloaded, ""},
}

// Explain gives an error of host/guest its code, and says what to change in
// tool.json. Any other error, and nil, it returns as it is.
func Explain(err error) error {
	if _, done := errors.AsType[*fault.Error](err); done {
		return err
	}
	e, ok := errors.AsType[*guest.Error](err)
	if !ok {
		return err
	}
	f, ok := moduleFaults[e.Kind]
	if !ok {
		f.code = fault.Internal
	}
	said := *e
	switch {
	case e.Kind == guest.NotGranted:
		said.Remedy = "to grant it, add " + Granting(e.Lacks) + " to tool.json"
	case f.remedy != "":
		said.Remedy = strings.ReplaceAll(f.remedy, "{}", e.Remedy)
	}
	return &fault.Error{Code: f.code, Message: said.Error(), Cause: e.Cause}
}

// grants says which capability gives a module which functions, and how to write
// it; it is never written to.
var grants = []struct {
	grant guest.Grants
	given func(k *Capabilities) bool
	line  string
}{
	{guest.GrantState, func(k *Capabilities) bool { return k.State > 0 }, `"capabilities": {"state": 65536}`},
	{guest.GrantHTTP, func(k *Capabilities) bool { return k.HTTP != nil }, `"capabilities": {"http": {"hosts": ["api.example.com"]}}`},
	{guest.GrantExec, func(k *Capabilities) bool { return len(k.Exec) > 0 }, `"capabilities": {"exec": ["/usr/bin/example"]}`},
	{guest.GrantToolCall, func(k *Capabilities) bool { return k.ToolCall }, `"capabilities": {"tool_call": true}`},
}

// Grants are the functions that k lets a module import.
func (k *Capabilities) Grants() guest.Grants {
	var gs guest.Grants
	for _, g := range grants {
		if g.given(k) {
			gs |= g.grant
		}
	}
	return gs
}

// Granting is the line of tool.json that gives a module the grant need; empty
// for 0.
func Granting(need guest.Grants) string {
	for _, g := range grants {
		if g.grant == need {
			return g.line
		}
	}
	return ""
}
