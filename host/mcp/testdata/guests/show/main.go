// A module that brings the tools that the conformance suites of MCP expect of a
// server, by their names.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport discover
func discover() int32 { return pdk.Discover(surface) }

//go:wasmexport handle
func handle() int32 { return pdk.Handle(call) }

const (
	// One pixel, and no sound.
	png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
	wav = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="

	text     = `{"type":"text","text":"This is a simple text response for testing."}`
	image    = `{"type":"image","data":"` + png + `","mimeType":"image/png"}`
	audio    = `{"type":"audio","data":"` + wav + `","mimeType":"audio/wav"}`
	resource = `{"type":"resource","resource":{"uri":"test://embedded-resource","mimeType":"text/plain","text":"This is an embedded resource"}}`

	// Keywords of JSON Schema 2020-12 that have to arrive as they are.
	schema = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",` +
		`"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},` +
		`"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},` +
		`"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],` +
		`"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}`
	header = `{"type":"object","properties":{"region":{"type":"string","description":"mirrored into Mcp-Param-Region","x-mcp-header":"Region"},"level":{"type":"integer"}}}`
)

var contents = map[string]string{
	"test_simple_text":            text,
	"test_image_content":          image,
	"test_audio_content":          audio,
	"test_embedded_resource":      resource,
	"test_multiple_content_types": text + "," + image + "," + resource,
	"test_x_mcp_header":           text,
	"json_schema_2020_12_tool":    text,
}

func surface(*abi.Discovery) (*abi.Surface, error) {
	s := &abi.Surface{}
	add := func(name, schema string) {
		s.Tools = append(s.Tools, abi.SurfaceTool{Name: name, Description: "For the conformance suite.", Schema: json.RawMessage(schema)})
	}
	for name := range contents {
		switch name {
		case "json_schema_2020_12_tool":
			add(name, schema)
		case "test_x_mcp_header":
			add(name, header)
		default:
			add(name, `{"type":"object"}`)
		}
	}
	for _, name := range []string{"test_tool_with_progress", "test_streaming_elicitation", "test_error_handling"} {
		add(name, `{"type":"object"}`)
	}
	add("greet", `{"type":"object","properties":{"name":{"type":"string"}}}`)
	add("slow_compute", `{"type":"object","properties":{"seconds":{"type":"number"},"label":{"type":"string"}}}`)
	add("failing_job", `{"type":"object"}`)
	add("protocol_error_job", `{"type":"object"}`)
	return s, nil
}

func call(c *abi.Call) (*abi.Result, error) {
	if list, ok := contents[c.Tool]; ok {
		return &abi.Result{Data: json.RawMessage(`{"io.toold/content":[` + list + `]}`)}, nil
	}
	var p struct {
		Name    string
		Seconds float64
	}
	if len(c.Payload) > 0 {
		if err := json.Unmarshal(c.Payload, &p); err != nil {
			return nil, err
		}
	}
	switch c.Tool {
	case "test_tool_with_progress", "test_streaming_elicitation":
		for _, percent := range []int{0, 50, 100} {
			pdk.Emit(pdk.Progress, fmt.Appendf(nil, `{"progress":%d,"total":100,"message":"Completed step %d of 100"}`, percent, percent))
		}
		return &abi.Result{Stdout: "done"}, nil
	case "greet":
		return &abi.Result{Stdout: "Hello, " + p.Name + "!"}, nil
	case "slow_compute":
		time.Sleep(time.Duration(p.Seconds * float64(time.Second)))
		return &abi.Result{Stdout: "computed"}, nil
	case "failing_job", "protocol_error_job":
		time.Sleep(time.Second)
		if c.Tool == "protocol_error_job" {
			panic("as the suite wants it")
		}
		return &abi.Result{Error: &abi.Error{Message: "this tool always fails"}}, nil
	case "test_error_handling":
		return &abi.Result{Error: &abi.Error{Message: "this tool always fails"}}, nil
	}
	return nil, errors.New("no such tool")
}

func main() {}
