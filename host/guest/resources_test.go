package guest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

// ownCounter is what a result has for a resource that ended with the call.
const ownCounter = `"own\u003ccounter\u003e"`

// A component's own resources are made for a call by their constructors, lent or
// given to it, and ended with it.
func TestComponentResources(t *testing.T) {
	m := loadComponent(t, "resources", Spec{})
	if m.Unshared() != "" {
		t.Errorf("it has no image: %s", m.Unshared())
	}
	for _, tt := range []struct{ export, in, want string }{
		{"[method]counter.get", `{"self": {"start": 7, "label": "a"}}`, `7`},
		{"[method]counter.add", `{"self": {"start": 7, "label": "a"}, "n": 5}`, `12`},
		{"[method]counter.label", `{"self": {"start": 7, "label": "ümlaut"}}`, `"ümlaut"`},
		{"[static]counter.sum", `{"of": [{"start": 1, "label": ""}, {"start": 2, "label": ""}, {"start": 39, "label": ""}]}`, `42`},
		{"[static]counter.sum", `{"of": []}`, `0`},
		{"[static]counter.merge", `{"a": {"start": 1, "label": "x"}, "b": {"start": 2, "label": "y"}}`, ownCounter},
		{"[constructor]counter", `{"start": 1, "label": ""}`, ownCounter},
		{"[constructor]view", `{"of": {"start": 1, "label": ""}}`, `"own\u003cview\u003e"`},
		{"live", `{"n": 9}`, `[9,0]`},
		{"give", `{"n": 3}`, `[` + ownCounter + `,` + ownCounter + `,` + ownCounter + `]`},
		{"find", `{"label": "none"}`, `{"ok":null}`},
		{"find", `{"label": "x"}`, `{"ok":` + ownCounter + `}`},
		{"find", `{"label": "error"}`, `{"err":"no such counter"}`},
		{"live", `{"n": 0}`, `[0,0]`},
	} {
		if got, _ := ask(t, m, "test:resources/counters#"+tt.export, tt.in); got != tt.want {
			t.Errorf("%s(%s) = %s, want %s", tt.export, tt.in, got, tt.want)
		}
	}
	for _, tt := range []struct{ export, in, says string }{
		{"[method]counter.get", `{"self": 1}`, "/self: it is a number, not an object"},
		{"[method]counter.get", `{"self": {"start": 1}}`, "/self/label: it is missing"},
		{"[static]counter.sum", `{"of": [{"start": -1, "label": ""}]}`, "/of/0/start"},
		// A view is made of a counter: not of plain values.
		{"[method]view.get", `{"self": {"of": {"start": 1, "label": ""}}}`, "cannot be given as JSON"},
	} {
		_, err := m.Call(context.Background(), Invocation{Export: "test:resources/counters#" + tt.export, Input: []byte(tt.in)})
		wantCode(t, err, fault.InvalidPayload, tt.says)
	}
	// One whose end fails fails the call.
	_, err := m.Call(context.Background(), Invocation{Export: "test:resources/counters#find", Input: []byte(`{"label": "trap"}`)})
	wantCode(t, err, fault.GuestTrap, "unreachable")

	f, ok := m.Function("test:resources/counters#[method]counter.add")
	const schema = `{"properties":{"n":{"type":"number"},"self":{"description":"borrow\u003ccounter\u003e: what makes one","properties":{"label":{"type":"string"},"start":{"type":"number"}},"required":["start","label"],"type":"object"}},"required":["self","n"],"type":"object"}`
	if !ok || string(f.Input) != schema || f.Type != "func(self: borrow<counter>, n: u32) -> u32" {
		t.Errorf("add is %s, with the schema\n%s, want\n%s", f.Type, f.Input, schema)
	}
	if f, ok := m.Function("test:resources/counters#give"); !ok || !json.Valid(f.Output) || !strings.Contains(string(f.Output), `"own\u003ccounter\u003e"`) {
		t.Errorf("the output of give is %s", f.Output)
	}
}

// A handle that is forged, dropped before, or to a resource of another type is a
// trap, whoever uses it. Ending resources is bound as all that a guest does.
func TestComponentResourceMisuse(t *testing.T) {
	m := loadComponent(t, "handles", Spec{Fuel: 50_000_000})
	for _, tt := range []struct {
		what, export, in string
		code             fault.Code
		says             string
	}{
		{"dropping what never was", "misuse", `{"n": 1}`, fault.GuestTrap, "handle 5 is not of that kind"},
		{"looking into what never was", "misuse", `{"n": 2}`, fault.GuestTrap, "handle 5 is not of that kind"},
		{"dropping twice", "misuse", `{"n": 3}`, fault.GuestTrap, "handle 1 is not of that kind"},
		{"dropping handle 0", "misuse", `{"n": 4}`, fault.GuestTrap, "handle 0 is not of that kind"},
		{"dropping the last handle of all", "misuse", `{"n": 5}`, fault.GuestTrap, "handle 4294967295 is not of that kind"},
		{"dropping another type", "misuse", `{"n": 6}`, fault.GuestTrap, "handle 1 is to a node, not to a counter"},
		{"looking into another type", "misuse", `{"n": 7}`, fault.GuestTrap, "handle 1 is to a node, not to a counter"},
		{"handles without an end", "misuse", `{"n": 8}`, fault.GuestTrap, "more than 16384 handles"},
		{"answering another type", "answer", `{"n": 9}`, fault.GuestTrap, "handle 1 is to a node, not to a counter"},
		{"answering what never was", "answer", `{"n": 10}`, fault.GuestTrap, "handle 2147483647 is not of that kind"},
		{"answering what was dropped", "answer", `{"n": 11}`, fault.GuestTrap, "handle 1 is not of that kind"},
		{"answering one twice", "twice", `{}`, fault.GuestTrap, "handle 1 is not of that kind"},
		{"a destructor that drops the same", "misuse", `{"n": 12}`, fault.GuestTrap, "handle 1 is not of that kind"},
		{"dropping while it makes room", "misuse", `{"n": 13}`, fault.GuestTrap, "while it makes room"},
		{"dropping while it frees its result", "freed", `{"n": 14}`, fault.GuestTrap, "while it makes room"},
		{"a destructor that traps", "answer", `{"n": 666}`, fault.GuestTrap, "unreachable"},
		{"a destructor that traps, of what was lent", "[method]counter.get", `{"self": {"rep": 666}}`, fault.GuestTrap, "unreachable"},
		{"a destructor without an end", "answer", `{"n": 667}`, fault.LimitExceeded, "fuel"},
		{"a destructor that drops what is nobody's", "answer", `{"n": 668}`, fault.GuestTrap, "handle 1 is not of that kind"},
		{"destructors that call one another", "chain", `{"n": 100}`, fault.GuestTrap, "8 deep"},
		{"a resource that nothing makes", "take-node", `{"n": {"rep": 1}}`, fault.InvalidPayload, "cannot be given"},
		{"the function that makes room, while it is called", "room", `{"a": 0, "b": 0, "c": 1, "d": 77}`, "", ""},
	} {
		t.Run(tt.what, func(t *testing.T) {
			_, err := m.Call(context.Background(), Invocation{Export: tt.export, Input: []byte(tt.in)})
			if tt.code == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantCode(t, err, tt.code, tt.says)
		})
	}
	for _, tt := range []struct{ export, in, want string }{
		{"indices", `{}`, `4294967295`},
		{"[method]counter.get", `{"self": {"rep": 4294967295}}`, `4294967295`}, // the representation, not a handle
		{"consume", `{"c": {"rep": 12}}`, `12`},
		{"keep", `{"c": {"rep": 12}}`, `12`},
		{"lent", `{"cs": [{"rep": 40}, {"rep": 2}]}`, `42`},
		{"chain", `{"n": 7}`, `8`},
		{"live", `{}`, `0`},
		{"many", `{"n": 3}`, `[` + ownCounter + `,` + ownCounter + `,` + ownCounter + `]`},
		{"live", `{}`, `0`}, // and no handle is left
		{"indices", `{}`, `4294967295`},
	} {
		if got, failed := ask(t, m, tt.export, tt.in); got != tt.want {
			t.Errorf("%s(%s) = %s %s, want %s", tt.export, tt.in, got, failed, tt.want)
		}
	}
	var fuel int64
	for i := range 100 {
		reply, err := m.Call(context.Background(), Invocation{Export: "many", Input: []byte(`{"n": 100}`)})
		if err != nil {
			t.Fatal(err)
		}
		if fuel == 0 {
			fuel = reply.Stats.Fuel
		}
		if reply.Stats.Fuel != fuel {
			t.Fatalf("call %d took %d, the first %d", i, reply.Stats.Fuel, fuel)
		}
	}
}

// What plugin inspect shows of a component with resources of its own.
func TestInspectResources(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata/components", "handles.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := Inspect("handles.wasm", b)
	if err != nil {
		t.Fatal(err)
	}
	for _, im := range info.Imports {
		if im.Fault != "" {
			t.Errorf("import %s: %s", im.Name, im.Fault)
		}
	}
}
