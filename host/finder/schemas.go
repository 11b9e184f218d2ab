package finder

import (
	"encoding/json"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/tools"
)

// schemas caches the compiled schemas of provided tools: thousands of identities share a few.
type schemas struct {
	mu sync.Mutex
	m  map[string]*jsonschema.Schema // guarded by mu
}

// maxSchemas limits the cache; beyond that it is emptied.
const maxSchemas = 8192

// compile returns nil for an empty schema, which admits any object.
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
