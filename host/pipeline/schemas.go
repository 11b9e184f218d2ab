package pipeline

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/tools"
)

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
