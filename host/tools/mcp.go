package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/abi"
)

// MCPPlugin is how the hosts of MCP tools call an Extism plugin: its exports, and
// what they take and answer. There are two ways, of which modules have one.
type MCPPlugin struct {
	list, call string
	wrapped    bool // requests are in {"request": ..., "context": ...}, not in {"params": ...}
}

// MCPPluginOf is how m is called, or nil where it is no such plugin.
func MCPPluginOf(m *guest.Module) *MCPPlugin {
	for _, p := range []MCPPlugin{{list: "describe", call: "call"}, {list: "list_tools", call: "call_tool", wrapped: true}} {
		if !m.Has("handle") && m.Has(p.list) && m.Has(p.call) {
			return &p
		}
	}
	return nil
}

// Export is what is called for a tool.
func (p *MCPPlugin) Export() string { return p.call }

// wrap makes a request what the exports read.
func (p *MCPPlugin) wrap(request any) ([]byte, error) {
	if p.wrapped {
		return json.Marshal(map[string]any{"request": request, "context": map[string]any{"id": "0", "_meta": map[string]any{}}})
	}
	return json.Marshal(map[string]any{"method": "tools/call", "params": request})
}

// Listing is the export that lists tools, and its input.
func (p *MCPPlugin) Listing() (export string, input []byte, err error) {
	if !p.wrapped {
		return p.list, nil, nil
	}
	input, err = p.wrap(map[string]any{})
	return p.list, input, err
}

// Tools reads what the plugin lists. Each has its own name as its binding, since
// that of a tool here has fewer characters. What is unknown is ignored: it is
// MCP's, which grows.
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

// mcpName is a tool's name as it is here: in small letters, with "-" for what no
// name has. It may still be none.
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

// Input is what the plugin reads for a call of a tool that it calls name.
func (p *MCPPlugin) Input(name string, payload json.RawMessage) ([]byte, error) {
	request := map[string]any{"name": name}
	if len(payload) > 0 {
		request["arguments"] = payload
	}
	return p.wrap(request)
}

// Result reads what the plugin answers: its texts, one after the other, and the
// rest as data.
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
