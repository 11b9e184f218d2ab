// A handler for tests of the host. Its first argument says how it behaves.
package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

const version = "version-000000"

// calls counts the calls that this instance has seen: every call sees 1.
var calls int

//go:wasmexport handle
func handle() int32 { return pdk.Handle(run) }

func run(c *abi.Call) (*abi.Result, error) {
	calls++
	verb := ""
	if len(c.Args) > 0 {
		verb = c.Args[0]
	}
	switch verb {
	case "policy-version":
		return &abi.Result{Stdout: strings.Join(c.Args[1:], " ") + " " + version}, nil
	case "calls":
		return &abi.Result{Stdout: fmt.Sprint(calls)}, nil
	case "exit":
		code := 7
		if len(c.Args) > 1 {
			fmt.Sscan(c.Args[1], &code)
		}
		return &abi.Result{ExitCode: code, Stdout: "out", Stderr: "err"}, nil
	case "fail":
		return &abi.Result{Error: &abi.Error{Code: "UPSTREAM_DOWN", Message: "the upstream is down", Retriable: true}}, nil
	case "fail-with": // a code, and data beside it
		return &abi.Result{Data: json.RawMessage(`{"seen": true}`), Error: &abi.Error{Code: c.Args[1], Message: "as asked"}}, nil
	case "error":
		return nil, errors.New("could not")
	case "trap":
		panic("a handler that panics")
	case "up-and-loop":
		if err := pdk.Emit("stdout", []byte("up\n")); err != nil {
			return nil, err
		}
		fallthrough
	case "loop":
		for {
			calls++
		}
	case "emit":
		for i := range 3 {
			if err := pdk.Emit("stdout", fmt.Appendf(nil, "line %d\n", i)); err != nil {
				return nil, err
			}
		}
		return &abi.Result{Stdout: "end\n"}, pdk.Emit("stderr", []byte("beside\n"))
	case "cat":
		for {
			b, err := pdk.Recv()
			if err == io.EOF {
				return &abi.Result{}, nil
			}
			if err != nil {
				return nil, err
			}
			if err := pdk.Emit("stdout", b); err != nil {
				return nil, err
			}
		}
	case "exec":
		r, err := pdk.Exec(&abi.ExecRequest{Path: c.Args[1], Args: c.Args[2:]})
		if err != nil {
			return nil, err
		}
		return &abi.Result{ExitCode: r.ExitCode, StdoutBase64: r.StdoutBase64}, nil
	case "http":
		r, err := pdk.HTTP(&pdk.HTTPRequest{URL: c.Args[1]})
		if err != nil {
			return nil, err
		}
		return &abi.Result{Stdout: fmt.Sprint(r.Status, " ", string(r.Body))}, nil
	case "see": // all that the guest sees of an answer, in a form in which nothing of it is masked
		r := &pdk.HTTPRequest{URL: c.Args[1], Headers: map[string]string{}}
		for _, h := range c.Args[2:] {
			name, value, _ := strings.Cut(h, ": ")
			if handle, ok := strings.CutPrefix(value, "Basic of "); ok {
				value = "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+pdk.Config(handle)))
			}
			r.Headers[name] = value
		}
		resp, err := pdk.HTTP(r)
		text := ""
		if err != nil {
			text = "error " + err.Error()
		} else {
			for name, v := range resp.Headers {
				text += name + ": " + v + "\n"
			}
			text += "\n" + string(resp.Body)
		}
		return &abi.Result{Stdout: fmt.Sprint([]byte(text))}, nil
	case "must": // fails where the answer is not 200
		r, err := pdk.HTTP(&pdk.HTTPRequest{URL: c.Args[1]})
		if err != nil {
			return nil, err
		}
		if r.Status != 200 {
			return nil, fmt.Errorf("the upstream answered %d", r.Status)
		}
		return &abi.Result{Stdout: fmt.Sprint(r.Status, " on attempt ", c.Attempt)}, nil
	case "pause":
		for range 3_000_000 {
			calls++
		}
		return &abi.Result{}, nil
	case "count":
		n := len(pdk.VarGet("n")) + 1
		pdk.VarSet("n", []byte(strings.Repeat("x", n)))
		return &abi.Result{Stdout: fmt.Sprint(n)}, nil
	}
	data, err := json.Marshal(c)
	if strings.HasPrefix(verb, "--") || strings.Contains(verb, "=") { // a command line that became a payload
		return &abi.Result{Data: data, Stdout: string(c.Payload)}, err
	}
	return &abi.Result{Data: data, Stdout: strings.Join(c.Args, " ")}, err
}

func main() {}
