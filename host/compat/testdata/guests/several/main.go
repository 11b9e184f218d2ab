// Several is a plugin of two tools, with the exports call_tool and list_tools.
package main

import (
	"encoding/json"
	"strings"

	"github.com/toold/toold/host/compat/testdata/guests/extism"
)

func main() {}

//go:wasmexport list_tools
func listTools() int32 {
	var in struct{ Request, Context map[string]any }
	if err := json.Unmarshal(extism.Input(), &in); err != nil || in.Context == nil {
		return extism.Fail("list_tools wants a request and a context")
	}
	return extism.Output([]byte(`{"tools":[{"name":"text.upper","description":"In capitals.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}},` +
		`{"name":"text.length","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`))
}

//go:wasmexport call_tool
func callTool() int32 {
	var in struct {
		Request struct {
			Name      string
			Arguments struct{ Text string }
		}
	}
	if err := json.Unmarshal(extism.Input(), &in); err != nil {
		return extism.Fail(err.Error())
	}
	text := strings.ToUpper(in.Request.Arguments.Text)
	if in.Request.Name == "text.length" {
		text = strings.Repeat("I", len(text))
	}
	out, _ := json.Marshal(map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}})
	return extism.Output(out)
}
