// Package pdk is the Go SDK for toold guests: policies and tools that run as
// WebAssembly modules.
//
// A guest is a main package with exported functions. Each takes nothing and
// answers 0; what it is asked and what it answers travels as JSON (package
// abi), which Restrict, Handle and Describe read and write:
//
//	package main
//
//	import (
//		"github.com/toold/toold/pdk"
//		"github.com/toold/toold/pdk/abi"
//	)
//
//	//go:wasmexport restrict
//	func restrict() int32 { return pdk.Restrict(policy) }
//
//	func policy(c *abi.Call) *abi.Decision {
//		for _, a := range c.Args {
//			if a == "--force" {
//				return pdk.Deny("force", "--force rewrites what others have", "push without it")
//			}
//		}
//		return pdk.Allow()
//	}
//
//	func main() {}
//
// It is built with the Go toolchain alone:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags=-s -o restricted.wasm .
//
// or with TinyGo (-target=wasip1 -buildmode=c-shared): the package keeps to
// what TinyGo has, though it is built with it nowhere here. Where TinyGo does
// not recover from panics, one of a policy is a trap, which refuses as well.
//
// A module imports only the host functions that it uses, and all of them but
// Exec, Emit, Recv and ToolCall are Extism's own, so a guest without those runs
// on any Extism host. The build tag toold_bulk moves input and output in one
// copy each, with two imports that only toold has: of what a policy takes that
// answers five kilobytes, a third.
//
// A policy fails closed: an input that cannot be read, a nil Decision or a
// panic is an error of the guest, and the host refuses a call whose policy
// fails. A panic in a handler ends the call as a trap.
//
// The package builds natively too, with Fake in the place of the host, so
// that policies and handlers are tested with go test.
package pdk

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toold/toold/pdk/abi"
)

// Restrict is the body of the restrict export: it asks policy about the Call
// at hand. The answer is what the export returns.
func Restrict(policy func(*abi.Call) *abi.Decision) (code int32) {
	defer func() {
		if p := recover(); p != nil {
			code = fail(fmt.Errorf("policy panicked: %v", p))
		}
	}()
	return Export(func(in []byte) ([]byte, error) {
		var c abi.Call
		if err := decodeCall(in, &c); err != nil {
			return nil, fmt.Errorf("read call: %w", err)
		}
		d := policy(&c)
		if d == nil {
			return nil, errors.New("policy returned no decision")
		}
		return encodeDecision(d), nil
	})
}

// Handle is the body of the handle export: it runs fn for the Call at hand.
// An error of fn ends the call as TOOL_FAILED with that text; a failure that
// has a code of its own, or may be retried, goes into Result.Error instead.
func Handle(fn func(*abi.Call) (*abi.Result, error)) int32 {
	return Export(func(in []byte) ([]byte, error) {
		var c abi.Call
		if err := decodeCall(in, &c); err != nil {
			return nil, fmt.Errorf("read call: %w", err)
		}
		r, err := fn(&c)
		if err != nil {
			return nil, err
		}
		if r == nil {
			r = &abi.Result{}
		}
		return json.Marshal(r)
	})
}

// Discover is the body of the discover export: it answers the tools that the
// module brings for one identity. An error of fn is one of the moment; that the
// server refuses the identity goes into Surface.Error.
func Discover(fn func(*abi.Discovery) (*abi.Surface, error)) int32 {
	return Export(func(in []byte) ([]byte, error) {
		var d abi.Discovery
		if err := decodeDiscovery(in, &d); err != nil {
			return nil, fmt.Errorf("read discovery: %w", err)
		}
		s, err := fn(&d)
		if err != nil {
			return nil, err
		}
		if s == nil {
			s = &abi.Surface{}
		}
		if s.Tools == nil {
			s.Tools = []abi.SurfaceTool{}
		}
		return json.Marshal(s)
	})
}

// decodeDiscovery reads a Discovery, as decodeCall reads a Call.
func decodeDiscovery(b []byte, d *abi.Discovery) error {
	r := &callReader{b: b}
	r.whole(func(name []byte) {
		switch string(name) {
		case "tool":
			d.Tool = r.string()
		case "read_only":
			d.ReadOnly = r.bool()
		case "deadline_ms":
			d.DeadlineMS = r.int()
		default:
			r.raw()
		}
	})
	return r.end()
}

// Describe is the body of the describe export. An ABI of 0 stands for the
// version that this package was written for.
func Describe(d abi.Describe) int32 {
	if d.ABI == 0 {
		d.ABI = abi.Version
	}
	return Export(func([]byte) ([]byte, error) { return json.Marshal(d) })
}

// Export is the body of any other export: fn gets the input's bytes and
// answers the output's.
func Export(fn func(input []byte) ([]byte, error)) int32 {
	out, err := fn(readInput())
	if err != nil {
		return fail(err)
	}
	writeOutput(out)
	return 0
}

func fail(err error) int32 {
	setError(err.Error())
	return 1
}

// Allow returns a Decision that lets the call run as it was asked. Set its
// fields to change what runs.
func Allow() *abi.Decision { return &abi.Decision{Effect: abi.Allow} }

// Ask returns a Decision that lets the call run, as it was asked, once somebody
// has approved it: the operator, or one that by names. text is shown to who
// decides; it should say what the call would do. Set the fields of the Decision to
// change what runs, and those of its Ask for how long there is and who else may.
func Ask(rule, text string, by ...string) *abi.Decision {
	return &abi.Decision{Effect: abi.Ask, Rule: rule, Ask: &abi.Approval{By: by, Text: text}}
}

// Deny returns a Decision that refuses the call. rule names the rule for
// logs, reason says which argument is at fault and why, and instead what the
// caller can do; both are shown to the caller.
func Deny(rule, reason, instead string) *abi.Decision {
	return &abi.Decision{Effect: abi.Deny, Rule: rule, Reason: reason, Instead: instead}
}
