package translate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

// Keys of _meta of results.
const (
	MetaError     = "io.toold/error"
	metaExecution = "io.toold/executionId"
	metaFromCache = "io.toold/fromCache"
	metaTruncated = "io.toold/truncated"
	metaExitCode  = "io.toold/exitCode"
)

// CodeRefused is the JSON-RPC code of what the daemon refuses: one of those that are
// a server's own.
const CodeRefused = -32000

// Progress returns a tool's report of its progress: {progress, total, message} as MCP has it,
// or anything else as the message.
func Progress(data json.RawMessage) *sdk.ProgressNotificationParams {
	var p struct {
		Progress *float64 `json:"progress"`
		Total    float64  `json:"total"`
		Message  string   `json:"message"`
	}
	if strictjson.Unmarshal(data, &p) != nil || p.Progress == nil {
		return &sdk.ProgressNotificationParams{Message: textOf(data)}
	}
	return &sdk.ProgressNotificationParams{Progress: *p.Progress, Total: p.Total, Message: p.Message}
}

// textOf returns one JSON value as people read it.
func textOf(data json.RawMessage) string {
	var s string
	if json.Unmarshal(data, &s) == nil {
		return s
	}
	return string(data)
}

// Fault is an error for programs.
type Fault struct {
	Code      fault.Code `json:"code"`
	Message   string     `json:"message"`
	Rule      string     `json:"rule,omitempty"`
	Retriable bool       `json:"retriable"`
	ToolCode  string     `json:"tool_code,omitempty"`
}

// FaultOf returns e in the form for programs.
func FaultOf(e *fault.Error) *Fault {
	d := &Fault{Code: e.Code, Message: e.Message, Retriable: e.Retriable(), ToolCode: e.ToolCode}
	if rest, ok := strings.CutPrefix(e.Message, "denied by rule "); ok && e.Code == fault.Denied {
		d.Rule, _, _ = strings.Cut(rest, ":")
	}
	return d
}

// Error returns e as the error of a request that is not a tool call.
func Error(e *fault.Error) error {
	data, _ := json.Marshal(FaultOf(e))
	return &jsonrpc.Error{Code: CodeRefused, Message: e.Error(), Data: data}
}

// dataContent is the one member of data that is content of MCP already: images, audio,
// resources and texts.
const dataContent = "io.toold/content"

// contentOf returns the content that data is, if it is content.
func contentOf(data json.RawMessage) ([]sdk.Content, bool) {
	if !bytes.Contains(data, []byte(dataContent)) {
		return nil, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil || len(members) != 1 || len(members[dataContent]) == 0 {
		return nil, false
	}
	var result sdk.CallToolResult
	wrapped := append(append([]byte(`{"content":`), members[dataContent]...), '}')
	if json.Unmarshal(wrapped, &result) != nil {
		return nil, false
	}
	return result.Content, true
}

// Result returns r in MCP's form: standard output, data and standard error, each as a text of
// its own, and the reason of a failure as the last one.
func Result(r *wire.Result) *sdk.CallToolResult {
	out := &sdk.CallToolResult{Content: []sdk.Content{}, Meta: sdk.Meta{}}
	text := func(s string) {
		if s != "" {
			out.Content = append(out.Content, &sdk.TextContent{Text: strings.ToValidUTF8(s, "\uFFFD")})
		}
	}
	text(string(r.Stdout))
	if blocks, ok := contentOf(r.Data); ok {
		out.Content = append(out.Content, blocks...)
	} else if len(r.Data) > 0 && string(r.Data) != "null" {
		text(string(r.Data))
		if r.Data[0] == '{' && len(r.Stdout) == 0 && len(r.Stderr) == 0 {
			// Clients that know it show this and no text.
			out.StructuredContent = r.Data
		}
	}
	text(string(r.Stderr))
	if r.Truncated {
		text("[the output is truncated: it was longer than this tool's answers may be]")
		out.Meta[metaTruncated] = true
	}
	if r.ExecutionID != "" {
		out.Meta[metaExecution] = r.ExecutionID
	}
	if r.FromCache {
		out.Meta[metaFromCache] = true
	}
	switch e := r.Err; {
	case e != nil:
		out.IsError = true
		out.Meta[MetaError] = FaultOf(e)
		again := "calling again as it is will not help"
		if e.Retriable() {
			again = "the same call may be made again"
		}
		text(fmt.Sprintf("%s (%s)", e.Error(), again))
		if r.Ran {
			out.Meta[metaExitCode] = r.ExitCode
		}
	case r.ExitCode != 0:
		out.IsError = true
		out.Meta[metaExitCode] = r.ExitCode
		text(fmt.Sprintf("[exit code %d]", r.ExitCode))
	}
	return out
}
