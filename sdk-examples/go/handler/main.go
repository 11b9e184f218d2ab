// Handler is the tool "greet": it greets whom it is told to.
package main

import (
	"encoding/json"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 { return pdk.Handle(greet) }

func greet(c *abi.Call) (*abi.Result, error) {
	who := struct {
		Name string `json:"name"`
	}{strings.Join(c.Args, " ")}
	if len(c.Payload) > 0 {
		// A program asks with a payload instead of arguments.
		if err := json.Unmarshal(c.Payload, &who); err != nil {
			return nil, err
		}
	}
	switch who.Name {
	case "":
		who.Name = "world"
	case "nobody":
		return &abi.Result{Error: &abi.Error{Code: "NOBODY", Message: "there is nobody to greet"}}, nil
	}
	text := pdk.Config("greeting") + ", " + who.Name + "!"
	data, err := json.Marshal(map[string]string{"greeting": text})
	if err != nil {
		return nil, err
	}
	return &abi.Result{Stdout: text + "\n", Data: data}, nil
}

func main() {}
