package main

import (
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestNotes(t *testing.T) {
	var asked string
	host := &pdk.Fake{ToolCall: func(envelope []byte) []byte {
		asked = string(envelope)
		return []byte(`{"status":"success","data":{"exit_code":0,"stdout":"Add b\nAdd a\n"}}`)
	}}
	r, err := host.Handle(handle, &abi.Call{Tool: "notes", Args: []string{"v1"}})
	if err != nil || r.Stdout != "Since v1:\n- Add b\n- Add a\n" || !strings.Contains(asked, `"v1..HEAD"`) {
		t.Errorf("%+v, %v, asked %s", r, err, asked)
	}
	host.ToolCall = func([]byte) []byte {
		return []byte(`{"status":"error","error":{"code":"DENIED","message":"denied by rule x"}}`)
	}
	if r, err := host.Handle(handle, &abi.Call{Tool: "notes", Args: []string{"v1"}}); err != nil || r.Error == nil || r.Error.Code != "DENIED" {
		t.Errorf("%+v, %v", r, err)
	}
}
