package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// CompileSchema compiles a payload schema, made strict: an object that lists its
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
		return nil, errors.New("must be an object: the JSON Schema of the payload")
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
		return nil, fmt.Errorf("is no JSON Schema: %w", oneLine(err))
	}
	s, err := c.Compile(payloadURL)
	if err != nil {
		return nil, fmt.Errorf("is no valid JSON Schema: %w", oneLine(innermost(err)))
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
	err = t.Schema.Validate(doc)
	if err == nil {
		return nil
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
				if near := strictjson.Nearest(unknown[at+1:], propertiesAt(t.Schema, unknown[:at])); near != "" {
					what += fmt.Sprintf("; did you mean %q?", near)
				}
				continue
			}
			what = strings.TrimSpace(u.InstanceLocation + " " + u.Error.String())
		}
	}
	return fault.Errorf(fault.InvalidPayload, "the payload does not fit the schema of tool %s: %v; toolctl tools %s --json shows the schema", t.Name, oneLine(errors.New(what)), t.Name)
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
