package execute

import (
	"container/list"
	"sync"

	"github.com/toold/toold/host/fault"
)

// maxVarScopes is how many (identity, session, tool) scopes keep variables, and
// maxVarBytes how many bytes they have together; the least recently used scope is
// dropped first. Any caller can make sessions, and so scopes.
const (
	maxVarScopes = 10000
	maxVarBytes  = 256 << 20
)

// varScope identifies a set of variables. No two scopes share any.
type varScope struct{ caller, session, tool string }

// vars is the state that guests keep between calls with var_get and var_set.
// It lives as long as the daemon.
type vars struct {
	mu     sync.Mutex
	scopes map[varScope]*list.Element // guarded by mu
	recent list.List                  // of *scopeVars, most recent first; guarded by mu
	bytes  int64                      // in all of them; guarded by mu
}

type scopeVars struct {
	scope varScope
	size  int64
	m     map[string][]byte
}

func (v *vars) get(s varScope, key string) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, ok := v.scopes[s]
	if !ok {
		return nil
	}
	v.recent.MoveToFront(e)
	return e.Value.(*scopeVars).m[key]
}

// set stores a copy of value under key, or deletes the key if value is nil. limit
// bounds the names and values of the scope together, in bytes.
func (v *vars) set(s varScope, key string, value []byte, limit int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	e, ok := v.scopes[s]
	if !ok {
		if value == nil {
			return nil
		}
		if v.scopes == nil {
			v.scopes = map[varScope]*list.Element{}
		}
		e = v.recent.PushFront(&scopeVars{scope: s, m: map[string][]byte{}})
		v.scopes[s] = e
	}
	v.recent.MoveToFront(e)
	sv := e.Value.(*scopeVars)
	size := sv.size
	if old, ok := sv.m[key]; ok {
		size -= int64(len(key) + len(old))
	}
	if value == nil {
		delete(sv.m, key)
		v.resizeLocked(sv, size)
		return nil
	}
	size += int64(len(key) + len(value))
	if size > limit {
		return fault.Errorf(fault.LimitExceeded, "keep variable %q: %d bytes with it, and capabilities.state in tool.json allows %d; keep less, or raise it", key, size, limit)
	}
	sv.m[key] = append([]byte{}, value...)
	v.resizeLocked(sv, size)
	return nil
}

// resizeLocked records the size of sv, the most recent scope, and drops other scopes
// until the bounds hold.
func (v *vars) resizeLocked(sv *scopeVars, size int64) {
	v.bytes += size - sv.size
	sv.size = size
	for v.recent.Len() > maxVarScopes || v.bytes > maxVarBytes && v.recent.Len() > 1 {
		old := v.recent.Remove(v.recent.Back()).(*scopeVars)
		delete(v.scopes, old.scope)
		v.bytes -= old.size
	}
}
