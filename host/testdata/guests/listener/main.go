// A handler that is run with events: it logs each as it came, and where its
// configuration names a tool, calls that. An event of the tool "hold" it waits with.
package main

import (
	"encoding/json"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 {
	return pdk.Handle(func(c *abi.Call) (*abi.Result, error) {
		pdk.Log(pdk.LevelInfo, "told "+string(c.Payload)+" as "+c.Caller)
		var event struct{ Tool string }
		if err := json.Unmarshal(c.Payload, &event); err != nil {
			return nil, err
		}
		request := pdk.Config("calls")
		if event.Tool == "hold" {
			request = pdk.Config("holds")
		}
		if request != "" {
			out, err := pdk.ToolCall([]byte(request))
			if err != nil {
				return nil, err
			}
			pdk.Log(pdk.LevelInfo, "answered "+string(out))
		}
		return &abi.Result{}, nil
	})
}

func main() {}
