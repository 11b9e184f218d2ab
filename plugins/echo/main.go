// Echo is the tool "echo": it answers what it was given. A command line comes
// back as text, input as it came, a payload as data. It is the smallest
// handler there is, and a way to see what a caller's request looks like to a
// tool.
package main

import (
	"errors"
	"io"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport handle
func handle() int32 { return pdk.Handle(echo) }

func echo(c *abi.Call) (*abi.Result, error) {
	switch {
	case len(c.Args) > 0:
		return &abi.Result{Stdout: strings.Join(c.Args, " ") + "\n"}, nil
	case len(c.Payload) > 0:
		return &abi.Result{Data: c.Payload}, nil
	}
	for {
		p, err := pdk.Recv()
		if errors.Is(err, io.EOF) {
			return &abi.Result{}, nil
		}
		if err != nil {
			return nil, err
		}
		if err := pdk.Emit(pdk.Stdout, p); err != nil {
			return nil, err
		}
	}
}

func main() {}
