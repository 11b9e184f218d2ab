package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// noLoader refuses references to other documents: a definition must mean the same on
// every host, and parsing it must not open files or connections.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("refers to %s; a schema may refer to its own parts only, copy the other one in under $defs", url)
}

// payloadURL is the base of the document's references to itself. It is never opened.
const payloadURL = "toold:payload"

// CompilePayload compiles the schema of a payload as CompileSchema does, and refuses one
// that AdmitsObject refuses.
func CompilePayload(schema json.RawMessage) (*jsonschema.Schema, error) {
	s, err := CompileSchema(schema)
	if err != nil {
		return nil, err
	}
	return s, AdmitsObject(s)
}

// AdmitsObject returns an error if the types of s, nil for any, admit no object: every
// payload is one, so no call could be made.
func AdmitsObject(s *jsonschema.Schema) error {
	if other := notObject(s, 32); other != "" {
		return fmt.Errorf("admits %s and no object, and every payload is an object; put the value into a property", other)
	}
	return nil
}

// notObject returns the types that s and what it refers to admit, if object is not one.
func notObject(s *jsonschema.Schema, depth int) string {
	if s == nil || depth == 0 {
		return ""
	}
	if s.Types != nil && !slices.Contains(s.Types.ToStrings(), "object") {
		return strings.Join(s.Types.ToStrings(), ", ")
	}
	for _, part := range append([]*jsonschema.Schema{s.Ref}, s.AllOf...) {
		if other := notObject(part, depth-1); other != "" {
			return other
		}
	}
	return ""
}

// CompileSchema compiles a schema of JSON, made strict: an object that lists its
// properties refuses all others, also within properties and items, unless it has
// additionalProperties or unevaluatedProperties. References to other documents are
// refused.
func CompileSchema(schema json.RawMessage) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("does not read as JSON: %w", err)
	}
	top, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("must be an object, such as {\"type\": \"object\"}")
	}
	refuse := "unevaluatedProperties"
	if version, _ := top["$schema"].(string); strings.Contains(version, "draft-0") {
		refuse = "additionalProperties" // older drafts have no unevaluatedProperties
	}
	closeObjects(top, refuse)
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(payloadURL, doc); err != nil {
		return nil, fmt.Errorf("is not a JSON Schema: %w", oneLine(err))
	}
	s, err := c.Compile(payloadURL)
	if err != nil {
		return nil, fmt.Errorf("is not a valid JSON Schema: %w", oneLine(innermost(err)))
	}
	return s, nil
}

// innermost is the first fault of a schema that has none inside: those around it only
// say that something in them is wrong. An error of another kind it returns as it is.
func innermost(err error) error {
	invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err)
	if !ok {
		return err
	}
	at, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err)
	if !ok {
		return err
	}
	for len(at.Causes) > 0 {
		at = at.Causes[0]
	}
	return errors.New(strings.TrimPrefix(at.Error(), "jsonschema validation failed with "))
}

// closeObjects makes schema, and the schemas of its properties and items, refuse
// properties that they do not list. Schemas under allOf, $defs and the like are not
// changed, since they may describe only a part of an object.
func closeObjects(schema map[string]any, refuse string) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		_, additional := schema["additionalProperties"]
		_, unevaluated := schema["unevaluatedProperties"]
		if !additional && !unevaluated {
			schema[refuse] = false
		}
		for _, p := range properties {
			if s, ok := p.(map[string]any); ok {
				closeObjects(s, refuse)
			}
		}
	}
	switch items := schema["items"].(type) {
	case map[string]any:
		closeObjects(items, refuse)
	case []any: // older drafts
		closeEach(items, refuse)
	}
	if items, ok := schema["prefixItems"].([]any); ok {
		closeEach(items, refuse)
	}
}

func closeEach(items []any, refuse string) {
	for _, p := range items {
		if s, ok := p.(map[string]any); ok {
			closeObjects(s, refuse)
		}
	}
}

// Validate checks the payload of a call against the tool's schema. The error is
// INVALID_PAYLOAD and says where the payload is wrong.
func (t *Tool) Validate(payload json.RawMessage) error {
	if t.Schema == nil {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return fault.Errorf(fault.InvalidPayload, "read the payload: %w", err)
	}
	if what := misfit(t.Schema, doc); what != "" {
		return fault.Errorf(fault.InvalidPayload, "the payload does not fit the schema of tool %s: %s; toolctl tools %s --json shows the schema", t.Name, what, t.Name)
	}
	return nil
}

// misfit returns where and how doc does not fit schema, in one line, or "".
func misfit(schema *jsonschema.Schema, doc any) string {
	err := schema.Validate(doc)
	if err == nil {
		return ""
	}
	what := err.Error()
	var ve *jsonschema.ValidationError
	if errors.As(err, &ve) {
		// The last fault is the innermost one, which a caller can act on. Those
		// before it only report that something inside is wrong.
		unknown := ""
		for _, u := range ve.BasicOutput().Errors {
			if u.Error == nil {
				continue
			}
			if _, ok := u.Error.Kind.(*kind.FalseSchema); ok {
				// Of several, name one that no command has: it is probably
				// misspelled.
				if unknown == "" || isCommandField(unknown) || !isCommandField(u.InstanceLocation) && u.InstanceLocation < unknown {
					unknown = u.InstanceLocation
				}
				what = unknown + " is not a property that the schema has"
				at := strings.LastIndexByte(unknown, '/')
				if near := strictjson.Nearest(unknown[at+1:], propertiesAt(schema, unknown[:at])); near != "" {
					what += fmt.Sprintf("; did you mean %q?", near)
				}
				continue
			}
			what = strings.TrimSpace(u.InstanceLocation + " " + u.Error.String())
		}
	}
	return oneLine(errors.New(what)).Error()
}

// CheckOutput checks the data of a call that succeeded, of the tool of that name, against
// its output schema; nil admits whatever data. The error is TOOL_FAILED.
func CheckOutput(name string, schema *jsonschema.Schema, data json.RawMessage) error {
	if schema == nil {
		return nil
	}
	if len(data) == 0 {
		return fault.Errorf(fault.ToolFailed, "%s answered no data, which its output schema is of; have it answer data, or take output_schema away", name)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fault.Errorf(fault.ToolFailed, "read the data that %s answered: %w", name, err)
	}
	if what := misfit(schema, doc); what != "" {
		return fault.Errorf(fault.ToolFailed, "the data that %s answered is not what its output schema says: %s; change the tool, or its output_schema", name, what)
	}
	return nil
}

// isCommandField reports whether pointer is a member that every call of a command
// has.
func isCommandField(pointer string) bool {
	return pointer == "/args" || pointer == "/cwd" || pointer == "/stdin"
}

// propertiesAt returns the names that schema lists for the object at pointer, as far
// as properties and items lead there.
func propertiesAt(schema *jsonschema.Schema, pointer string) []string {
	for _, name := range strings.Split(pointer, "/")[1:] {
		below := schema.Properties[name]
		if below == nil {
			below = schema.Items2020
		}
		if schema = below; schema == nil {
			return nil
		}
	}
	return sortedKeys(schema.Properties)
}

// oneLine turns a multi-line error of the library into one line of limited length,
// without the name of the document.
func oneLine(err error) error {
	text := strings.ReplaceAll(err.Error(), payloadURL, "the schema")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 400 {
		text = text[:400] + "…"
	}
	return errors.New(strings.ToValidUTF8(text, ""))
}
