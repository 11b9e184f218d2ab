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
		if err := json.Unmarshal(in, &q); err != nil {
			return nil, fmt.Errorf("read call and result: %w", err)
		}
		return json.Marshal(fn(&q.Call, &q.Result))
	})
}
