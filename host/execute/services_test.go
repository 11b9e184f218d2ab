package execute

import (
	"reflect"
	"slices"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// TestServicesOfGrants: a guest to which all is granted is served all, and one to
// which nothing is, nothing but what every guest has.
func TestServicesOfGrants(t *testing.T) {
	served := func(k tools.Capabilities) (names []string) {
		p := &call.Pinned{
			Admitted:  call.Admitted{Request: call.Request{Call: &wire.Call{}}},
			Tool:      &tools.Tool{Def: &tools.Definition{Capabilities: k}},
			Effective: &identity.Effective{},
		}
		inv := New(Config{}).invocation(&Question{Call: p})
		services := reflect.ValueOf(inv.Services)
		for i := range services.NumField() {
			if !services.Field(i).IsNil() {
				names = append(names, services.Type().Field(i).Name)
			}
		}
		return names
	}
	all := tools.Capabilities{Exec: []string{"/bin/true"}, HTTP: &tools.HTTP{Hosts: []string{"*"}}, State: 1, ToolCall: tools.ToolCalls{"*"}}
	if missing := guest.AllGrants &^ all.Grants(); missing != 0 {
		t.Fatalf("the test does not grant %s: add it", missing)
	}
	got := append(served(all), "Emit", "Recv") // which a handler has, see running.handler
	for field := range reflect.TypeFor[guest.Services]().Fields() {
		if !slices.Contains(got, field.Name) {
			t.Errorf("%s is granted and not served: add it to Executor.invocation", field.Name)
		}
	}
	if got := served(tools.Capabilities{}); !slices.Equal(got, []string{"Log"}) {
		t.Errorf("without a grant a guest is served %v", got)
	}
}
