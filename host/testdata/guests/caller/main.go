// A handler that makes calls for its caller: each argument is an envelope, and its
// output has the answers, one a line. An argument "spin" computes without an end.
package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 {
	return pdk.Handle(func(c *abi.Call) (*abi.Result, error) {
		var text []byte
		for _, a := range c.Args {
			for a == "spin" {
				n++
			}
			out, err := pdk.ToolCall([]byte(a))
			if err != nil {
				return nil, err
			}
			if text = append(text, out...); len(c.Args) > 1 {
				text = append(text, '\n')
			}
		}
		return &abi.Result{Stdout: string(text)}, nil
	})
}

// n counts where the compiler cannot see that nobody reads it.
var n int

func main() {}
