package tools

import (
	"cmp"
	"errors"
	"strings"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/process"
)

// Errors of the engine are about limits and imports of a module, and errors of
// processes about a binary. Here they become errors for callers: a code, and what to
// change in tool.json.

// told is what an error of the engine or of a process is to a caller.
type told struct {
	code fault.Code
	// remedy is what to do where tool.json has a part in it; {} stands for what
	// the error itself says to do. Empty: that alone.
	remedy string
}

// moduleFaults is the whole table of errors of the engine; it is never written
// to.
var moduleFaults = map[guest.Kind]told{
	guest.Internal:         {fault.Internal, ""},
	guest.BadModule:        {fault.ToolBroken, ""},
	guest.NoExport:         {fault.ToolBroken, `set "entry" in tool.json, or {}`},
	guest.IsCommand:        {fault.ToolBroken, `name it under "wasi" in tool.json, or {}`},
	guest.NotCommand:       {fault.ToolBroken, `name it as "handler" in tool.json, or {}`},
	guest.NotGranted:       {fault.ToolBroken, ""}, // see Explain
	guest.BadMount:         {fault.ToolBroken, "correct capabilities.files in tool.json"},
	guest.TooLarge:         {fault.ToolBroken, "raise limits.compile.module in tool.json, or {}"},
	guest.TooMuchToCompile: {fault.ToolBroken, "raise limits.compile in tool.json, or {}"},
	guest.Starved:          {fault.Overloaded, "{}, or raise limits.compile.time in tool.json"},
	guest.BadLimit:         {fault.ToolBroken, "change limits.memory in tool.json"},
	guest.NoRoom:           {fault.ToolBroken, "raise limits.memory in tool.json"},
	guest.Failed:           {fault.ToolFailed, ""},
	guest.Trapped:          {fault.GuestTrap, ""},
	guest.FuelUsed:         {fault.LimitExceeded, "{}, raise limits.fuel in tool.json, or end the loop or recursion that has no end"},
	guest.MemoryUsed:       {fault.LimitExceeded, "raise limits.memory in tool.json, or {}"},
	guest.BlocksUsed:       {fault.LimitExceeded, "raise limits.memory in tool.json"},
	guest.OutputUsed:       {fault.LimitExceeded, "raise limits.output in tool.json, or {}"},
	guest.DeadlineMet:      {fault.Timeout, "raise timeout in tool.json, or that of the caller, or {}"},
	guest.Aborted:          {fault.Aborted, ""},
	guest.Overloaded:       {fault.Overloaded, ""},
}

// processFaults is the table of errors of processes; it is never written to.
var processFaults = map[process.Kind]told{
	process.NotAbsolute:   {fault.ToolBroken, "{} in tool.json"},
	process.NotThere:      {fault.ToolNotInstalled, "{}, or name another binary in tool.json"},
	process.NotExecutable: {fault.ToolBroken, "make it executable for toold's user; when it is a script, name its interpreter in capabilities.exec"},
	process.NotProgram:    {fault.ToolBroken, "name another binary in tool.json"},
	process.NoUser:        {fault.ToolBroken, "or take user out of tool.json"},
}

// Explain gives an error of host/guest or host/process its code, and says what to
// change in tool.json. An error that has a code, any other error and nil it returns
// as they are.
func Explain(err error) error {
	if _, done := errors.AsType[*fault.Error](err); done {
		return err
	}
	if e, ok := errors.AsType[*guest.Error](err); ok {
		said, t := *e, moduleFaults[e.Kind]
		said.Remedy = t.instead(e.Remedy)
		if e.Kind == guest.NotGranted {
			said.Remedy = "to grant it, add " + Granting(e.Lacks) + " to tool.json"
		}
		return &fault.Error{Code: cmp.Or(t.code, fault.Internal), Message: said.Error(), Cause: e.Cause}
	}
	if e, ok := errors.AsType[*process.Error](err); ok {
		said, t := *e, processFaults[e.Kind]
		said.Remedy = t.instead(e.Remedy)
		return &fault.Error{Code: cmp.Or(t.code, fault.Internal), Message: said.Error(), Cause: e.Cause}
	}
	return err
}

// instead is what to do, where the error itself says remedy.
func (t told) instead(remedy string) string {
	if t.remedy == "" {
		return remedy
	}
	return strings.ReplaceAll(t.remedy, "{}", remedy)
}

// ExplainRefusal says in terms of tool.json why a process was refused a program.
func ExplainRefusal(reason string) string {
	switch reason {
	case confine.RefusedShell:
		return "it is a shell, and capabilities.exec does not name it, or the policy does not ask for it"
	case confine.RefusedProgram:
		return "capabilities.exec does not grant it"
	}
	return reason
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
	{guest.GrantToolCall, func(k *Capabilities) bool { return len(k.ToolCall) > 0 }, `"capabilities": {"tool_call": ["example"]}`},
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
