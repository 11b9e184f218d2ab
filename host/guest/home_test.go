package guest

import (
	"context"
	"testing"

	"github.com/tetratelabs/wazero"
)

// typed is a module with n types of functions that no other has, of 63 bytes
// each. It imports from the host.
func typed(n int) []byte {
	var a asm
	answer := a.answerer()
	a.memory(1)
	for i := range n {
		params := make([]byte, 60)
		for bit := range params {
			params[bit] = 0x7f - byte(i>>bit&1)
		}
		a.typ(params, nil)
	}
	a.exported("run", nil, answer(i32c(0)), i32c(0))
	return a.bytes()
}

// What guests import is made once for those that get the same, and goes when
// nobody needs it.
func TestModulesShareAHome(t *testing.T) {
	e := sleepy(t, 64)
	open := func(h *home) bool {
		_, err := h.InstantiateModule(context.Background(), h.hosts[hostKey{module: envModule}].code, wazero.NewModuleConfig().WithName(""))
		return err == nil
	}
	one, other := load(t, e, Spec{Name: "one", Wasm: numbered(1)}), load(t, e, Spec{Name: "other", Wasm: numbered(2)})
	granted := load(t, e, Spec{Name: "granted", Wasm: numbered(3), Grants: GrantHTTP})
	for name, host := range one.imports {
		if other.imports[name] != host {
			t.Errorf("%s was made for each of two modules", name)
		}
	}
	if granted.imports[envModule] == one.imports[envModule] {
		t.Error("a module with another grant has the same functions")
	}
	if one.home != granted.home || len(one.hosts) > 0 {
		t.Error("modules have a home each")
	}

	// Types are kept as long as the home is.
	many := load(t, e, Spec{Name: "many", Wasm: typed(mostTypes / 60)})
	if many.home == one.home || !open(one.home) {
		t.Error("a module with many types shares a home with others")
	}
	full := many.home
	numberOf(t, one, Invocation{Export: "run"})
	many.Close()
	if open(full) {
		t.Error("its types are kept when it is gone")
	}
	last := one.home
	one.Close()
	other.Close()
	if !open(last) {
		t.Error("a home is closed before its last module")
	}
	granted.Close()
	if open(last) {
		t.Error("a home that was left is kept")
	}
}
