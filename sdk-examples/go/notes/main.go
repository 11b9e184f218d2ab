// Command notes is a tool that calls another one: "notes FROM" asks git what was
// committed since FROM, and writes release notes of it.
//
// It calls git as whoever called it: in the same session, in the same folder and
// behind the policy of git. Its tool.json names what it may call:
//
//	{"handler": "handler.wasm", "capabilities": {"tool_call": ["git"]}}
package main

import (
	"encoding/json"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 { return pdk.Handle(notes) }

func notes(c *abi.Call) (*abi.Result, error) {
	if len(c.Args) != 1 || strings.HasPrefix(c.Args[0], "-") {
		return &abi.Result{Error: &abi.Error{Code: "USAGE", Message: "usage: notes FROM"}}, nil
	}
	from := c.Args[0]
	log, failed, err := run("git", "log", "--format=%s", from+"..HEAD")
	if failed != nil || err != nil {
		return &abi.Result{Error: failed}, err
	}
	var text strings.Builder
	text.WriteString("Since " + from + ":\n")
	for line := range strings.Lines(log) {
		text.WriteString("- " + line)
	}
	return &abi.Result{Stdout: text.String()}, nil
}

// run calls a tool with arguments and returns what it wrote, or why it failed: a
// denial by its policy, an exit code, a deadline.
func run(tool string, args ...string) (stdout string, failed *abi.Error, err error) {
	request, err := json.Marshal(map[string]any{"toolId": tool, "payload": map[string]any{"args": args}})
	if err != nil {
		return "", nil, err
	}
	response, err := pdk.ToolCall(request)
	if err != nil {
		return "", nil, err
	}
	var answer struct {
		Error *abi.Error
		Data  struct{ Stdout, Stderr string }
	}
	if err := json.Unmarshal(response, &answer); err != nil {
		return "", nil, err
	}
	if failed = answer.Error; failed != nil {
		failed.Message = strings.TrimSpace(tool + ": " + failed.Message + "\n" + answer.Data.Stderr)
	}
	return answer.Data.Stdout, failed, nil
}

func main() {}
