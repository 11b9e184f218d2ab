// A module that brings tools, for tests of the host. Its configuration says
// which, its payload how a call behaves.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport discover
func discover() int32 { return pdk.Discover(surface) }

//go:wasmexport handle
func handle() int32 { return pdk.Handle(call) }

func surface(d *abi.Discovery) (*abi.Surface, error) {
	if url := pdk.Config("url"); url != "" {
		if _, err := pdk.HTTP(&pdk.HTTPRequest{URL: url + "/discover", Headers: credential()}); err != nil {
			return nil, err
		}
	}
	s := &abi.Surface{}
	switch kind, n, _ := strings.Cut(pdk.Config("surface"), " "); kind {
	case "many":
		count, _ := strconv.Atoi(n)
		for i := range count {
			s.Tools = append(s.Tools, abi.SurfaceTool{
				Name: fmt.Sprintf("tool_%04d", i), Description: "One of many tools.",
				Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}`),
			})
		}
	case "raw":
		return s, json.Unmarshal([]byte(n), s)
	case "error":
		return nil, errors.New("cannot, with " + pdk.Config("password"))
	default:
		yes := true
		s.Tools = []abi.SurfaceTool{
			{Name: "look", Annotations: &abi.Annotations{ReadOnly: &yes}},
			{Name: "change", Mutating: true, Annotations: &abi.Annotations{ReadOnly: &yes}},
			{Name: "user_" + pdk.Config("user")},
		}
	}
	return s, nil
}

func credential() map[string]string {
	return map[string]string{"Authorization": "Bearer " + pdk.Config("password"), "X-Other": pdk.Config("password")}
}

func call(c *abi.Call) (*abi.Result, error) {
	var p struct {
		Do, Method, Path string
		// Look is what the guest looks for in what it got, reversed.
		Look string
	}
	if len(c.Payload) > 0 {
		if err := json.Unmarshal(c.Payload, &p); err != nil {
			return nil, err
		}
	}
	switch p.Do {
	case "config":
		data, err := json.Marshal(map[string]string{"password": pdk.Config("password"), "user": pdk.Config("user"), "read_only": strconv.FormatBool(c.ReadOnly)})
		return &abi.Result{Data: data}, err
	case "http", "leak", "look":
		r, err := pdk.HTTP(&pdk.HTTPRequest{Method: p.Method, URL: pdk.Config("url") + p.Path, Headers: credential()})
		if err != nil {
			return &abi.Result{Error: &abi.Error{Message: err.Error()}}, nil
		}
		body := string(r.Body) + r.Headers["x-repeat"]
		if p.Do == "look" {
			look := []byte(p.Look)
			slices.Reverse(look)
			return &abi.Result{Data: json.RawMessage(strconv.FormatBool(strings.Contains(body, string(look))))}, nil
		}
		if p.Do == "leak" { // everywhere that a guest can put it
			pdk.Log(pdk.LevelError, body)
			pdk.Emit(pdk.Progress, r.Body)
			pdk.Emit(pdk.Stderr, []byte(body))
			return &abi.Result{Stdout: body, Error: &abi.Error{Code: "LEAK", Message: body}}, nil
		}
		data, err := json.Marshal(map[string]any{"status": r.Status, "body": body})
		return &abi.Result{Data: data, Stdout: body}, err
	}
	if urls, ok := strings.CutPrefix(p.Do, "insist "); ok { // whatever comes of it, it says that another attempt may help
		pdk.Log(pdk.LevelInfo, fmt.Sprintf("attempt %d", c.Attempt))
		for _, url := range strings.Fields(urls) {
			pdk.HTTP(&pdk.HTTPRequest{URL: url})
		}
		if p.Method == "silent" {
			return nil, errors.New("no answer")
		}
		return &abi.Result{Error: &abi.Error{Message: "no answer", Retriable: true}}, nil
	}
	return &abi.Result{Data: json.RawMessage(`{}`)}, nil
}

func main() {}
