// Package translate has what the daemon has as MCP has it: tools with their names and
// schemas, results, errors, progress. It is given values and returns values: it makes
// no call, keeps nothing, and depends on no client. host/mcp uses it.
//
//   - A hint of a tool is never wider than what the host holds the tool to.
//   - A name for clients is one that every client takes, always the same for the same
//     tool, and never that of two tools of a list.
//   - What fails is said in a text for people and in _meta for programs.
package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

const (
	// AnyObject is the schema of any object.
	AnyObject = `{"type":"object"}`
	// commandSchema describes what a tool takes that has no schema.
	commandSchema = `{"type":"object","properties":{` +
		`"args":{"type":"array","items":{"type":"string"},"description":"The arguments of the command, without its name."},` +
		`"cwd":{"type":"string","description":"The folder to work in. Default: where the client was started."},` +
		`"stdin":{"type":"string","contentEncoding":"base64","description":"The input, in base64."}},"required":["args"]}`
)

// Keys of _meta of tools.
const (
	metaToolName    = "io.toold/name"
	metaToolUnshown = "io.toold/schemaUnshown"
)

// Tool is a tool as listed by the pipeline.
type Tool struct {
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

// Describe returns t in MCP's form, under the name shown. A hint never promises more than is
// true: a tool is said to be read-only only if its module says so and the host enforces it.
func (t *Tool) Describe(shown string) *sdk.Tool {
	out := &sdk.Tool{Name: shown, Title: t.Title, Description: t.Description, Annotations: &sdk.ToolAnnotations{}, Meta: sdk.Meta{}}
	if shown != t.Name {
		out.Meta[metaToolName] = t.Name
	}
	switch schema, ok := objectSchema(t.Schema); {
	case t.Unshown:
		out.InputSchema = json.RawMessage(AnyObject)
		out.Meta[metaToolUnshown] = true
	case ok:
		out.InputSchema = schema
	default:
		out.InputSchema = json.RawMessage(commandSchema)
	}
	if t.HasOutput() {
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

// HasOutput reports whether clients may get the output schema of t: data of a schema that is
// not for objects is not structured content.
func (t *Tool) HasOutput() bool {
	var said struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(t.Output, &said) == nil && said.Type == "object"
}

// objectSchema returns a schema as MCP requires it: with the type object, which a payload
// always has.
func objectSchema(schema json.RawMessage) (json.RawMessage, bool) {
	if len(schema) == 0 || string(schema) == "null" {
		return nil, false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(schema, &fields) != nil {
		return json.RawMessage(AnyObject), true // true or false
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

// Fits reports whether every client accepts the name: ^[A-Za-z0-9_-]{1,64}$.
func Fits(name string) bool {
	return name != "" && len(name) <= maxName && strings.IndexFunc(name, notOfNames) < 0
}

func notOfNames(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

// hashed is how many bytes of its digest a name has that does not fit.
const hashed = 4

// nameOf returns the name of a tool for clients: its own where that Fits, else what Fits of
// it and a part of its digest, the same one always.
func nameOf(name string) string {
	if Fits(name) {
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

// MayBeMapped reports whether the name may be one that nameOf made for another name.
func MayBeMapped(name string) bool {
	i := len(name) - 2*hashed - 1
	if i < 0 || name[i] != '-' {
		return false
	}
	_, err := hex.DecodeString(name[i+1:])
	return err == nil
}

// Names maps the tools of list, by name, to their names for clients. A tool whose name for
// clients is that of another tool is left out; a tool always keeps its own name.
func Names(list []Tool) map[string]string {
	names, taken := make(map[string]string, len(list)), map[string]bool{}
	for _, mapped := range []bool{false, true} {
		for _, t := range list {
			if Fits(t.Name) == mapped {
				continue
			}
			shown := nameOf(t.Name)
			if taken[shown] {
				continue
			}
			taken[shown], names[t.Name] = true, shown
		}
	}
	return names
}
