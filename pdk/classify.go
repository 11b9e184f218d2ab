package pdk

import (
	"encoding/json"
	"fmt"

	"github.com/toold/toold/pdk/abi"
)

// Classify is the body of the classify export of a policy: fn is asked what
// the exit of the tool's binary means. A policy without the export leaves that
// to reliability.retriable_exits in tool.json.
func Classify(fn func(*abi.Call, *abi.Result) abi.Classification) int32 {
	return Export(func(in []byte) ([]byte, error) {
		var q abi.Classify
		if err := decodeClassify(in, &q); err != nil {
			return nil, fmt.Errorf("read call and result: %w", err)
		}
		return json.Marshal(fn(&q.Call, &q.Result))
	})
}

// decodeClassify reads what classify is asked, as decodeCall reads a Call.
func decodeClassify(b []byte, q *abi.Classify) error {
	r := &callReader{b: b}
	r.whole(func(name []byte) {
		switch string(name) {
		case "call":
			q.Call = abi.Call{}
			r.call(&q.Call)
		case "result":
			if raw := r.raw(); r.err == nil {
				if err := json.Unmarshal(raw, &q.Result); err != nil {
					r.fail(err.Error())
				}
			}
		default:
			r.raw()
		}
	})
	return r.end()
}
