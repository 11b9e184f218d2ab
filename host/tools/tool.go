package tools

import (
	"encoding/json"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/abi"
)

// BinaryPath is the search path for binaries that are given as a bare name. The
// daemon's own PATH is not used.
const BinaryPath = "/usr/local/bin:/usr/bin:/bin"

// Files with a fixed name in a tool's folder.
const (
	DefinitionFile = "tool.json"
	PolicyFile     = "restricted.wasm"
	HandlerFile    = "handler.wasm"
	SetupFile      = "setup.sh"
)

// Kind is how a tool executes.
type Kind string

const (
	Binary  Kind = "binary"  // a program of this host
	Handler Kind = "handler" // an export of a module
	WASI    Kind = "wasi"    // a WASI preview 1 command
)

// Tool is one generation of a tool. It is immutable; it and its modules may be used
// from Acquire until the release.
type Tool struct {
	Name string
	// Version identifies the content of the generation: the first half of the
	// sha256 over everything that it was made of, in hex. Generations made of the
	// same files have the same version.
	Version string
	Kind    Kind
	Def     *Definition
	// Dir is the tool's folder, with symbolic links resolved.
	Dir string
	// Policies are asked in this order before every call: the policy for all
	// tools, then the tool's own or its fallback. PolicyFiles are their files,
	// PolicyDigests the sha256 of these in hex.
	Policies      []*guest.Module
	PolicyFiles   []string
	PolicyDigests []string
	// Handler is the module, for the kinds Handler and WASI. HandlerFile is its
	// file, HandlerDigest its sha256 in hex.
	Handler       *guest.Module
	HandlerFile   string
	HandlerDigest string
	// Entry is how Handler is called; its Export is "handle" unless tool.json
	// says otherwise. Nil for the other kinds.
	Entry *Entry
	// MCP is the interface of Handler if it is a plugin of a host of MCP tools, and
	// MCPName the name that it gives its only tool. The tools of a plugin with
	// several are discovered (see Discovers).
	MCP     *MCPPlugin
	MCPName string
	// Missing are the imports of Handler that are not provided, each with what to do.
	// A call that uses one fails.
	Missing []string
	// Discovers reports whether Handler offers tools of its own for each identity
	// and is not called under its own name.
	Discovers bool
	// Binary is the absolute path of the program, for the kind Binary.
	Binary string
	// Interpreters maps the path of each script to its interpreters. The scripts are
	// Binary, or for other kinds the programs in Def.Capabilities.Exec.
	Interpreters map[string][]confine.Interpreter
	// User is the user that the tool's programs run as; nil is the user of this
	// process.
	User *confine.UserID
	// Schema validates the payload; nil accepts any object. SchemaSource is the
	// schema as its author wrote it.
	Schema       *jsonschema.Schema
	SchemaSource json.RawMessage
	// Output validates the data that a handler returns; nil accepts any. OutputSource
	// is the schema as its author wrote it.
	Output       *jsonschema.Schema
	OutputSource json.RawMessage
	Description  string
	Annotations  *abi.Annotations
	// Config is the configuration of the guests: that of an Extism manifest,
	// overridden by that of tool.json.
	Config map[string]string
	// Wants is the additional context that the policies or the handler requested
	// in describe, such as abi.WantRepoConfig; sorted.
	Wants []string
}

// Unknown returns the error for a name that is not a tool's or that this caller may
// not see. Both get the same error, so that a caller learns nothing from it.
func Unknown(name string) *fault.Error {
	if len(name) > 80 {
		name = strings.ToValidUTF8(name[:80], "") + "…"
	}
	return fault.Errorf(fault.UnknownTool, "there is no tool %q here; toolctl tools lists the tools", name)
}

// UseFunction makes the tool call a function of its component: the one that entry
// names, or the only one.
func (t *Tool) UseFunction(entry *Entry) error {
	functions := t.Handler.Functions()
	var f guest.ComponentFunction
	switch {
	case entry != nil:
		f, _ = t.Handler.Function(entry.Export)
	case len(functions) == 1:
		f = functions[0]
	}
	if f.Name == "" {
		var names []string
		for _, f := range functions {
			names = append(names, f.Name)
		}
		return fault.Errorf(fault.ToolBroken, `%s is a component with the functions %s; say in tool.json which is the tool: "entry": {"export": NAME}`, t.HandlerFile, strings.Join(names, ", "))
	}
	t.Entry = &Entry{Export: f.Name, Input: EntryPayload, Output: EntryResult}
	if f.Plain && entry != nil {
		t.Entry = entry
		return nil
	}
	if t.SchemaSource == nil {
		t.SchemaSource = f.Input
	}
	if t.Description == "" {
		t.Description = f.Name + ": " + f.Type
	}
	return nil
}
