package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/toold/toold/host/strictjson"
)

// memory is what the catalog remembers across restarts: which tools have had
// a policy, and which setup.sh has run. It is one small file, replaced whole
// before what it says is acted upon.
type memory struct {
	path string

	mu  sync.Mutex
	rec remembered // guarded by mu
}

// remembered is the file's content. It is read strictly: a damaged file is an
// error at start, since forgetting would turn tools that lost their policy
// into tools without one.
type remembered struct {
	Version int `json:"version"`
	// Global: a policy for all tools has been there.
	Global bool                `json:"global,omitempty"`
	Tools  map[string]toolPast `json:"tools,omitempty"`
}

type toolPast struct {
	// Policy: the tool has had one of its own, or the fallback of its name.
	Policy bool `json:"policy,omitempty"`
	// Setup is the sha256 of the setup.sh that last ran to success.
	Setup string `json:"setup,omitempty"`
}

const memoryFile = "tools.json"

func openMemory(stateDir string) (*memory, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	m := &memory{path: filepath.Join(stateDir, memoryFile), rec: remembered{Version: 1}}
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		m.rec.Version = 0
		err = strictjson.Unmarshal(data, &m.rec)
		if err == nil && m.rec.Version != 1 {
			err = fmt.Errorf("version %d is not one that this toold knows", m.rec.Version)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, which says which tools have had a policy: %w; restore it, or remove it if every tool has the policy it should have", m.path, err)
	}
	return m, nil
}

// past is what is known of one tool, and whether there has been a policy for
// all of them.
func (m *memory) past(name string) (p toolPast, global bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rec.Tools[name], m.rec.Global
}

// update changes what is remembered and returns when it is on disk. It does
// nothing when nothing changes.
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
		// Without the path, which is that of a temporary file.
		return fmt.Errorf("remember in %s which tools have a policy: %s; make the state folder writable", m.path, reason(err))
	}
	m.rec = next
	return nil
}

// write replaces the file: a crash leaves the old one or the new one.
func (m *memory) write(rec remembered) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(m.path)
	f, err := os.CreateTemp(dir, "."+memoryFile+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), m.path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
