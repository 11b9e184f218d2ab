// A handler that makes a session call for its caller: its one argument is the
// envelope, and its output is the answer.
package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 {
	return pdk.Handle(func(c *abi.Call) (*abi.Result, error) {
		out, err := pdk.ToolCall([]byte(c.Args[0]))
		return &abi.Result{Stdout: string(out)}, err
	})
}

func main() {}
