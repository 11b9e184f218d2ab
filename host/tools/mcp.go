package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/abi"
)

// MCPPlugin is the interface by which hosts of MCP tools call an Extism plugin: its
// exports, their inputs and outputs. There are two such interfaces; a module has one.
type MCPPlugin struct {
	list, call string
	wrapped    bool // requests are in {"request": ..., "context": ...}, not in {"params": ...}
}

// MCPPluginOf returns the interface of m, or nil if it is not such a plugin.
func MCPPluginOf(m *guest.Module) *MCPPlugin {
	for _, p := range []MCPPlugin{{list: "describe", call: "call"}, {list: "list_tools", call: "call_tool", wrapped: true}} {
		if !m.Has("handle") && m.Has(p.list) && m.Has(p.call) {
			return &p
		}
	}
	return nil
}

// Export returns the export that is called for a tool.
func (p *MCPPlugin) Export() string { return p.call }

// wrap encodes a request in the form that the exports read.
func (p *MCPPlugin) wrap(request any) ([]byte, error) {
	if p.wrapped {
		return json.Marshal(map[string]any{"request": request, "context": map[string]any{"id": "0", "_meta": map[string]any{}}})
	}
	return json.Marshal(map[string]any{"method": "tools/call", "params": request})
}

// Listing returns the export that lists tools, and its input.
func (p *MCPPlugin) Listing() (export string, input []byte, err error) {
	if !p.wrapped {
		return p.list, nil, nil
	}
	input, err = p.wrap(map[string]any{})
	return p.list, input, err
}

// Tools parses the list of a plugin. The binding of each tool is its own name, since
// names here allow fewer characters. Unknown members are ignored: MCP adds new ones.
func (p *MCPPlugin) Tools(reply []byte) ([]abi.SurfaceTool, error) {
	var said struct {
		Tools []struct {
			Name, Title, Description string
			InputSchema              json.RawMessage
			OutputSchema             json.RawMessage
			Icons                    []struct {
				Src, MIMEType, Theme string
				Sizes                []string
			}
			Annotations *struct {
				Title                                                        string
				ReadOnlyHint, DestructiveHint, IdempotentHint, OpenWorldHint *bool
			}
		}
	}
	if err := json.Unmarshal(reply, &said); err != nil {
		return nil, fmt.Errorf("%s answers no list of tools: %w", p.list, err)
	}
	if len(said.Tools) == 0 {
		return nil, fmt.Errorf("%s lists no tools", p.list)
	}
	var list []abi.SurfaceTool
	for _, t := range said.Tools {
		binding, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		out := abi.SurfaceTool{Name: mcpName(t.Name), Title: t.Title, Description: t.Description, Schema: t.InputSchema, Binding: binding}
		if bytes.Equal(out.Schema, []byte("null")) {
			out.Schema = nil
		}
		if !bytes.Equal(t.OutputSchema, []byte("null")) {
			out.OutputSchema = t.OutputSchema
		}
		for _, icon := range t.Icons {
			out.Icons = append(out.Icons, abi.Icon{Src: icon.Src, MIMEType: icon.MIMEType, Sizes: icon.Sizes, Theme: icon.Theme})
		}
		if a := t.Annotations; a != nil {
			out.Annotations = &abi.Annotations{ReadOnly: a.ReadOnlyHint, Destructive: a.DestructiveHint, Idempotent: a.IdempotentHint, OpenWorld: a.OpenWorldHint}
		}
		list = append(list, out)
	}
	return list, nil
}

// mcpName returns the name of a tool in lower case, with "-" for characters that
// names cannot have. It may still be invalid.
func mcpName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '-'
	}, name)
}

// Input returns the input of the plugin for a call of the tool that it names name.
func (p *MCPPlugin) Input(name string, payload json.RawMessage) ([]byte, error) {
	request := map[string]any{"name": name}
	if len(payload) > 0 {
		request["arguments"] = payload
	}
	return p.wrap(request)
}

// Result parses the answer of the plugin: its texts in order, and the rest as data.
func (p *MCPPlugin) Result(reply []byte) (*abi.Result, error) {
	var said struct {
		Content []struct {
			Type, Text string
		}
		StructuredContent json.RawMessage
		IsError           bool
	}
	if err := json.Unmarshal(reply, &said); err != nil {
		return nil, fmt.Errorf("%s answers no result: %w", p.call, err)
	}
	var out abi.Result
	var texts []string
	for _, c := range said.Content {
		if c.Type == "text" {
			texts = append(texts, strings.TrimSuffix(c.Text, "\n")+"\n")
		}
	}
	text := strings.Join(texts, "")
	if said.IsError {
		if text = strings.TrimSpace(text); text == "" {
			text = "the tool failed and said nothing"
		}
		return &abi.Result{ExitCode: 1, Error: &abi.Error{Message: text}}, nil
	}
	out.Stdout = text
	switch {
	case len(said.StructuredContent) > 0 && !bytes.Equal(said.StructuredContent, []byte("null")):
		out.Data = said.StructuredContent
	case len(texts) < len(said.Content):
		out.Data = bytes.Clone(reply)
	}
	return &out, nil
}
