package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/strictjson"
)

// memory is the state of the catalog that survives restarts: which tools have had a
// policy, and which setup.sh has run. It is one small file, which is replaced
// atomically before a change takes effect.
type memory struct {
	path string

	mu  sync.Mutex
	rec remembered // guarded by mu
}

// remembered is the content of the file. A damaged file is an error at start: if it
// were ignored, tools that lost their policy would run without one.
type remembered struct {
	Version int `json:"version"`
	// Global reports that there has been a policy for all tools.
	Global bool                `json:"global,omitempty"`
	Tools  map[string]toolPast `json:"tools,omitempty"`
}

type toolPast struct {
	// Policy reports that the tool has had a policy of its own, or a fallback of
	// its name.
	Policy bool `json:"policy,omitempty"`
	// Setup is the sha256 of the setup.sh that last succeeded.
	Setup string `json:"setup,omitempty"`
}

const memoryFile = "tools.json"

func openMemory(stateDir string) (*memory, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	m := &memory{path: filepath.Join(stateDir, memoryFile), rec: remembered{Version: 1}}
	data, err := regular.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		m.rec.Version = 0
		err = strictjson.Unmarshal(data, &m.rec)
		if err == nil && m.rec.Version != 1 {
			err = fmt.Errorf("version %d is not supported by this toold", m.rec.Version)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, which says which tools have had a policy: %w; restore it, or remove it if every tool has the policy it should have", m.path, err)
	}
	return m, nil
}

// past returns what is recorded of a tool, and whether there has been a policy for
// all tools.
func (m *memory) past(name string) (p toolPast, global bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rec.Tools[name], m.rec.Global
}

// update changes the record of a tool and returns when it is on disk. It does not
// write if nothing changes.
func (m *memory) update(name string, change func(p *toolPast, global *bool)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, global := m.rec.Tools[name], m.rec.Global
	change(&p, &global)
	if p == m.rec.Tools[name] && global == m.rec.Global {
		return nil
	}
	next := remembered{Version: 1, Global: global, Tools: maps.Clone(m.rec.Tools)}
	if next.Tools == nil {
		next.Tools = map[string]toolPast{}
	}
	next.Tools[name] = p
	if p == (toolPast{}) {
		delete(next.Tools, name)
	}
	if err := m.write(next); err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err // its path is that of a temporary file
		}
		return fmt.Errorf("remember in %s which tools have a policy: %w; make the state folder writable", m.path, err)
	}
	m.rec = next
	return nil
}

// write replaces the file atomically: after a crash it is the old or the new one.
func (m *memory) write(rec remembered) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	return regular.Replace(m.path, append(data, '\n'))
}
