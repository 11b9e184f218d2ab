package catalog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
)

// TestExplain: a module that does not run as tool.json has it is told so with
// the place in tool.json, by an error with a code.
func TestExplain(t *testing.T) {
	e := testEngine(t)
	load := func(s guest.Spec) (*guest.Module, error) {
		s.Name = "greet/handler.wasm"
		m, err := e.Load(t.Context(), s)
		if err == nil {
			t.Cleanup(m.Close)
		}
		return m, err
	}
	call := func(s guest.Spec, export string) error {
		m, err := load(s)
		if err == nil {
			_, err = m.Call(t.Context(), guest.Invocation{Export: export})
		}
		return err
	}
	run := func(s guest.Spec) error {
		m, err := load(s)
		if err == nil {
			_, _, err = m.Run(t.Context(), guest.Command{})
		}
		return err
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	ended := func(ctx context.Context) error {
		_, err := e.Load(ctx, guest.Spec{Wasm: handler("x")})
		return err
	}
	spec := func(w wasm) guest.Spec { return guest.Spec{Wasm: w.bytes()} }
	with := func(s guest.Spec, change func(*guest.Spec)) guest.Spec { change(&s); return s }
	greets := spec(wasm{answers: map[string]string{"handle": "0123456789", "trap": ""}})
	for _, tt := range []struct {
		err  error
		kind guest.Kind
		want string
	}{
		{call(guest.Spec{}, ""), guest.BadModule, "TOOL_BROKEN: greet/handler.wasm: the file is empty; build the module again"},
		{call(greets, "greet"), guest.NoExport, `TOOL_BROKEN: greet/handler.wasm: has no export "greet"; it has handle, trap; set "entry" in tool.json, or export it`},
		{call(guest.Spec{Wasm: command()}, "handle"), guest.IsCommand, `TOOL_BROKEN: greet/handler.wasm: has no export "handle": it is a WASI command; name it under "wasi" in tool.json, or build it as a reactor (Go: -buildmode=c-shared, clang: -mexec-model=reactor)`},
		{run(greets), guest.NotCommand, `TOOL_BROKEN: greet/handler.wasm: has no export "_start": it is not a WASI command; name it as "handler" in tool.json, or build it as a command`},
		{run(spec(wasm{start: true, imports: []string{"tool_emit"}})), guest.NotCommand, `TOOL_BROKEN: greet/handler.wasm: imports functions of plugins beside its "_start"; name it as "handler" in tool.json, or build it without them`},
		{call(spec(wasm{imports: []string{"tool_exec"}}), ""), guest.NotGranted, `TOOL_BROKEN: greet/handler.wasm: imports "tool_exec" from "extism:host/user", which it may not have; to grant it, add "capabilities": {"exec": ["/usr/bin/example"]} to tool.json`},
		{call(with(greets, func(s *guest.Spec) { s.Files = []guest.Mount{{Guest: "/data", Host: "/nowhere"}} }), "handle"), guest.BadMount, "TOOL_BROKEN: greet/handler.wasm: open folder for the guest: open /nowhere: no such file or directory; correct capabilities.files in tool.json"},
		{call(with(greets, func(s *guest.Spec) { s.Memory = 1 }), "handle"), guest.BadLimit, "TOOL_BROKEN: greet/handler.wasm: a memory limit of 1 bytes is not between 65536 and 4294836224; change limits.memory in tool.json"},
		{call(with(spec(wasm{answers: map[string]string{"handle": strings.Repeat("x", 70000)}}), func(s *guest.Spec) { s.Memory = 1 << 16 }), "handle"), guest.NoRoom, "TOOL_BROKEN: greet/handler.wasm: it needs 131072 bytes of memory to begin with and may have 65536; raise limits.memory in tool.json"},
		{call(greets, "trap"), guest.Trapped, "GUEST_TRAP: greet/handler.wasm: trap trapped: unreachable; look at the function named first; what the module logged may say more"},
		{call(with(greets, func(s *guest.Spec) { s.Output = 9 }), "handle"), guest.OutputUsed, "LIMIT_EXCEEDED: greet/handler.wasm: the output is over 9 bytes; raise limits.output in tool.json, or answer less"},
		{call(with(greets, func(s *guest.Spec) { s.Fuel = 1 }), "handle"), guest.FuelUsed, "LIMIT_EXCEEDED: greet/handler.wasm: the call used its 1 units of fuel; give it less input, raise limits.fuel in tool.json, or end the loop or recursion that has no end"},
		{ended(late), guest.DeadlineMet, "TIMEOUT: the call reached its deadline; raise timeout in tool.json, or that of the caller, or wait for less"},
		{ended(gone), guest.Aborted, "ABORTED: the call was aborted"},
		// These take a module that a compiler makes, or a full host: host/guest has them.
		{&guest.Error{Kind: guest.Failed, Detail: "no such branch"}, guest.Failed, "TOOL_FAILED: no such branch"},
		{&guest.Error{Kind: guest.MemoryUsed, Module: "m", Detail: "handle needs more than 9 bytes of memory", Remedy: "give it less to do"}, guest.MemoryUsed, "LIMIT_EXCEEDED: m: handle needs more than 9 bytes of memory; raise limits.memory in tool.json, or give it less to do"},
		{&guest.Error{Kind: guest.BlocksUsed, Module: "m", Detail: "it exchanges more than 9 bytes with the host"}, guest.BlocksUsed, "LIMIT_EXCEEDED: m: it exchanges more than 9 bytes with the host; raise limits.memory in tool.json"},
		{&guest.Error{Kind: guest.Starved, Module: "m", Detail: "this machine is busy", Remedy: "it is tried again by itself"}, guest.Starved, "OVERLOADED: m: this machine is busy; it is tried again by itself, or raise limits.compile.time in tool.json"},
		{&guest.Error{Kind: guest.Overloaded, Module: "m", Detail: "no memory", Remedy: "try again"}, guest.Overloaded, "OVERLOADED: m: no memory; try again"},
		{&guest.Error{Module: "m", Detail: "a fault of the host"}, guest.Internal, "INTERNAL: m: a fault of the host"},
	} {
		t.Run(tt.kind.String(), func(t *testing.T) {
			e, ok := errors.AsType[*guest.Error](tt.err)
			if !ok || e.Kind != tt.kind {
				t.Fatalf("%v is not of kind %s", tt.err, tt.kind)
			}
			if strings.Contains(e.Error(), "tool.json") {
				t.Errorf("the engine speaks of tool.json: %s", e)
			}
			got := tools.Explain(tt.err)
			if got.Error() != tt.want {
				t.Errorf("got\n  %s, must be\n  %s", got, tt.want)
			}
			if errors.Unwrap(got) != e.Cause || tools.Explain(got) != got {
				t.Error("the cause is lost, or it is explained twice")
			}
		})
	}
	other := fmt.Errorf("read: %w", fault.Errorf(fault.Denied, "no"))
	if tools.Explain(other) != other || tools.Explain(nil) != nil {
		t.Error("an error that is not the engine's is changed")
	}
}

// TestDescribeIsExplained: what a describe export ends by has its code in what is
// told of the tool.
func TestDescribeIsExplained(t *testing.T) {
	b := newFixture(t)
	b.write(map[string]string{"t/handler.wasm": string(wasm{answers: map[string]string{"handle": "{}", "describe": ""}}.bytes())})
	b.open()
	b.refused("t", fault.ToolBroken, "describe fails: GUEST_TRAP: t/handler.wasm: describe trapped: unreachable")
}

// TestCallsAtLoadAreTriedAgain: an export that failed because the host had no room or
// time for it does not break its tool for good.
func TestCallsAtLoadAreTriedAgain(t *testing.T) {
	for kind, want := range map[guest.Kind]fault.Code{
		guest.Overloaded: fault.Overloaded, guest.DeadlineMet: fault.Timeout, guest.Internal: fault.Internal,
		guest.Trapped: fault.ToolBroken, guest.FuelUsed: fault.ToolBroken, guest.Failed: fault.ToolBroken,
	} {
		e, ok := errors.AsType[*fault.Error](callFailed("t/handler.wasm", "describe", &guest.Error{Kind: kind, Detail: "it"}, "fix it"))
		if !ok || e.Code != want || !strings.HasPrefix(e.Message, "t/handler.wasm: describe fails: ") {
			t.Errorf("kind %v: got %v, want %s", kind, e, want)
		}
	}
}

// command is a WASI command that does nothing.
func command() []byte {
	return join([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, vec([][]byte{{0x60, 0, 0}})), section(3, vec([][]byte{{0}})),
		section(7, vec([][]byte{join(named("_start"), []byte{0, 0})})), section(10, vec([][]byte{{2, 0, 0x0b}})))
}
