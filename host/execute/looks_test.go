package execute

import (
	"context"
	"testing"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/pdk/abi"
)

// TestLookOnly: a module that only looks gets none of what could change something.
func TestLookOnly(t *testing.T) {
	inv := guest.Invocation{}
	inv.VarSet = func(string, []byte) error { t.Error("a variable was set"); return nil }
	inv.ToolCall = func(context.Context, int64, []byte) ([]byte, int64, error) {
		t.Error("a tool was called")
		return nil, 0, nil
	}
	inv.Exec = func(context.Context, *abi.ExecRequest) *abi.ExecResult {
		t.Error("a binary ran")
		return &abi.ExecResult{}
	}
	lookOnly(&inv)
	if inv.VarSet("a", nil) == nil || inv.ToolCall != nil || inv.Exec(t.Context(), &abi.ExecRequest{}).Error == nil {
		t.Error("something is not refused")
	}
}
