// Command ask is a tool that asks a question in the middle of its work and goes
// on with the answer: it is called as "release NAME", says what it is about to
// do, and does it when it is told yes.
//
// The answer comes by pdk.Recv: it is what somebody sends with session.steer (or
// toolctl session steer) while the tool runs as a turn, and what the caller types
// where the call is streamed.
package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport handle
func handle() int32 { return pdk.Handle(release) }

func release(c *abi.Call) (*abi.Result, error) {
	if len(c.Args) != 1 {
		return &abi.Result{Error: &abi.Error{Code: "USAGE", Message: "usage: release NAME"}}, nil
	}
	name := c.Args[0]
	if err := say("checked %s: 3 changes since the last release\n", name); err != nil {
		return nil, err
	}
	for range 3 {
		if err := say("release %s? [yes/no] ", name); err != nil {
			return nil, err
		}
		answer, err := line()
		if errors.Is(err, io.EOF) {
			return &abi.Result{ExitCode: 1, Stderr: "nobody answers, so nothing is released\n"}, nil
		}
		if err != nil {
			return nil, err
		}
		switch strings.ToLower(answer) {
		case "yes", "y":
			return &abi.Result{Stdout: "released " + name + "\n"}, nil
		case "no", "n":
			return &abi.Result{Stdout: "left " + name + " as it is\n"}, nil
		}
		if err := say("%q is neither yes nor no\n", answer); err != nil {
			return nil, err
		}
	}
	return &abi.Result{ExitCode: 1, Stderr: "no answer that is one, so nothing is released\n"}, nil
}

// say shows what the tool is doing at once, and not only when it has ended.
func say(format string, a ...any) error {
	return pdk.Emit("stdout", fmt.Appendf(nil, format, a...))
}

// line reads up to the end of a line, or of what came so far: an answer that was
// steered is one message, whether it ends in a line break or not.
func line() (string, error) {
	b, err := pdk.Recv()
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(first), nil
}

func main() {}
