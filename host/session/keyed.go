package session

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/toold/toold/host/fault"
)

// maxKeys is how many idempotency keys of one identity are remembered.
const maxKeys = 1000

// keyedResults holds the answers of one identity's mutates that have idempotency
// keys.
type keyedResults struct {
	mu   sync.Mutex     // guards what follows
	list []*keyedResult // oldest first, at most maxKeys
}

// keyedResult is the answer to the mutate with a key. It does not change, since
// readers hold it without the lock.
type keyedResult struct {
	key, digest string          // of the request
	data        json.RawMessage // nil while the operation runs
}

// run returns the answer of operation, which runs once for each key: a repeated
// request with the same digest gets the first answer. An operation that failed
// had no effect, and its key can be used again.
func (k *keyedResults) run(key, digest string, operation func() (json.RawMessage, error)) (json.RawMessage, error) {
	k.mu.Lock()
	if i := slices.IndexFunc(k.list, func(r *keyedResult) bool { return r.key == key }); i >= 0 {
		r := k.list[i]
		k.mu.Unlock()
		switch {
		case r.digest != digest:
			return nil, fault.Errorf(fault.IdempotencyKeyReused, "the key was used for another operation; make a new one for each")
		case r.data == nil:
			return nil, fault.Errorf(fault.IdempotencyPending, "the operation with this key is still running; ask again")
		}
		return r.data, nil
	}
	pending := &keyedResult{key: key, digest: digest}
	k.addLocked(pending)
	k.mu.Unlock()
	data, err := operation()
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.Index(k.list, pending) // -1 if later keys have pushed it out
	switch {
	case i < 0:
	case err != nil:
		k.list = slices.Delete(k.list, i, i+1)
	default:
		k.list[i] = &keyedResult{key: key, digest: digest, data: data}
	}
	return data, err
}

// restore adds the answer to a request that a former daemon served.
func (k *keyedResults) restore(key, digest string, data json.RawMessage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addLocked(&keyedResult{key: key, digest: digest, data: data})
}

func (k *keyedResults) addLocked(r *keyedResult) {
	k.list = append(k.list, r)
	if len(k.list) > maxKeys {
		k.list = k.list[1:]
	}
}
