package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/pdktest"
)

// TestNatively runs the vectors on the guest as a native program: pdk.Fake,
// with which guests are tested, answers as the engine does.
func TestNatively(t *testing.T) {
	vectors, err := pdktest.Load("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		t.Run(v.Export+"/"+v.Name, func(t *testing.T) {
			recv := v.Recv
			f := &pdk.Fake{
				Config: v.Config,
				Vars:   map[string][]byte{},
				HTTP: func(*pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
					if v.HTTP.Error != "" {
						return nil, errors.New(v.HTTP.Error)
					}
					return &pdk.HTTPResponse{Status: v.HTTP.Status, Headers: v.HTTP.Headers, Body: []byte(v.HTTP.Body)}, nil
				},
				Exec: func(*abi.ExecRequest) *abi.ExecResult { return v.Exec },
				Recv: func() abi.RecvResult {
					if len(recv) == 0 {
						return abi.RecvResult{EOF: true}
					}
					p := recv[0]
					recv = recv[1:]
					return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString([]byte(p))}
				},
				ToolCall: func([]byte) []byte { return v.ToolCall },
			}
			for k, value := range v.Vars {
				f.Vars[k] = []byte(value)
			}
			export := map[string]func() int32{"describe": describe, "restrict": restrict, "handle": handle, "discover": discover, "classify": classify}[v.Export]
			out, err := run1(f, export, v.Bytes())
			switch {
			case v.Fails != nil:
				if err == nil || !strings.Contains(err.Error(), v.Message) {
					t.Errorf("answered %s, %v; must fail with %q", out, err, v.Message)
				}
			case err != nil:
				t.Error(err)
			default:
				if err := v.CheckAnswer(out); err != nil {
					t.Error(err)
				}
			}
			emitted := map[string]string{}
			for _, e := range v.Emitted {
				emitted[e.Stream] += e.Text
			}
			for stream, text := range emitted {
				if string(f.Emitted[stream]) != text {
					t.Errorf("emitted %q to %s, must be %q", f.Emitted[stream], stream, text)
				}
			}
			if len(f.Logged) != len(v.Log) {
				t.Errorf("logged %q", f.Logged)
			}
		})
	}
}

// run1 turns a panic, which is a trap in WebAssembly, into an error.
func run1(f *pdk.Fake, export func() int32, in []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("trap: %v", p)
		}
	}()
	return f.Run(export, in)
}
