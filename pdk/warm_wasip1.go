package pdk

import (
	"encoding/json"
	"runtime"

	"github.com/toold/toold/pdk/abi"
)

// Every call begins from an image of the module as initialisation left it.
// What is done here is done once a version and not once a call:
// encoding/json learns the types that travel, and the heap gets room, so that
// a call neither grows the memory nor fills caches. For a small policy that is
// three quarters of its time.
func init() {
	warm()
	runtime.GC()
	// Again: the collection has emptied the pools of buffers, and the
	// allocator's caches. The first object of a size costs as much as the next
	// twenty.
	warm()
	warm()
	var kept []any // on the heap
	for n := 8; n <= 4096; n += max(8, n/8&^7) {
		kept = append(kept, make([]byte, n), make([]*byte, n/8))
	}
	runtime.KeepAlive(kept)
}

func warm() {
	var c abi.Call
	json.Unmarshal([]byte(`{"tool":"t","args":["a","b"],"cwd":"/","roots":["/"],"payload":{"a":1},"env":{"A":"b"},"execution_id":"x","attempt":1,"caller":"c","deadline_ms":1}`), &c)
	json.Marshal(Deny("rule", "reason", "instead"))
	json.Marshal(&abi.Decision{Effect: abi.Allow, Args: c.Args, Env: c.Env})
	json.Marshal(&abi.Result{Stdout: c.Tool, Data: c.Payload})
}
