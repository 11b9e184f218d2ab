// One is a plugin of one tool, with the exports call and describe.
package main

import (
	"encoding/json"

	"github.com/toold/toold/host/compat/testdata/guests/extism"
)

func main() {}

//go:wasmexport describe
func describe() int32 {
	return extism.Output([]byte(`{"tools":[{"name":"Fetch_It","description":"Fetches a page.","inputSchema":{"type":"object","required":["url"],` +
		`"properties":{"url":{"type":"string"},"elicit":{"type":"boolean"}}}}]}`))
}

//go:wasmexport call
func call() int32 {
	var in struct {
		Params struct {
			Name      string
			Arguments struct {
				URL    string
				Elicit bool
			}
		}
	}
	if err := json.Unmarshal(extism.Input(), &in); err != nil {
		return extism.Fail(err.Error())
	}
	args := in.Params.Arguments
	if args.Elicit {
		extism.Elicit()
	}
	if args.URL == "none" {
		return extism.Output([]byte(`{"isError":true,"content":[{"type":"text","text":"` + in.Params.Name + ` has no such page"}]}`))
	}
	status, body := extism.Get(args.URL)
	out, err := json.Marshal(map[string]any{
		"content":           []any{map[string]any{"type": "text", "text": string(body)}},
		"structuredContent": map[string]any{"status": status},
	})
	if err != nil {
		return extism.Fail(err.Error())
	}
	return extism.Output(out)
}
