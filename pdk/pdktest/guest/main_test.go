package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/pdktest/vectors"
)

// TestNatively runs the vectors on the guest as a native program: pdk.Fake,
// with which guests are tested, answers as the engine does.
func TestNatively(t *testing.T) {
	all, err := vectors.Load("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		t.Run(v.Export+"/"+v.Name, func(t *testing.T) {
			out, f, h, err := natively(&v)
			switch {
			case v.Fails != nil:
				if err == nil || !strings.Contains(err.Error(), v.Message) {
					t.Errorf("answered %s, %v; must fail with %q", out, err, v.Message)
				}
			case err != nil:
				t.Error(err)
			default:
				if err := errors.Join(v.CheckAnswer(out), h.CheckAsked()); err != nil {
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

// natively makes the call of a vector with pdk.Fake in front of the vector's
// host. Of the log and the output the Fake keeps what it keeps.
func natively(v *vectors.Vector) ([]byte, *pdk.Fake, *vectors.Host, error) {
	h := v.Host()
	f := &pdk.Fake{
		Config: v.Config,
		Vars:   map[string][]byte{},
		HTTP: func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
			a, err := h.HTTP(vectors.HTTPAsked{Method: r.Method, URL: r.URL, Headers: r.Headers, Body: string(r.Body)})
			if err != nil {
				return nil, err
			}
			return &pdk.HTTPResponse{Status: a.Status, Headers: a.Headers, Body: []byte(a.Body)}, nil
		},
		Exec: h.Exec,
		Recv: func() abi.RecvResult {
			p, err := h.Recv()
			return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString(p), EOF: err != nil}
		},
		ToolCall: h.ToolCall,
	}
	for k, value := range v.Vars {
		f.Vars[k] = []byte(value)
	}
	export := map[string]func() int32{"describe": describe, "restrict": restrict, "handle": handle, "discover": discover, "classify": classify, "reconcile": reconcile, "wire": wire}[v.Export]
	out, err := run1(f, export, v.Bytes())
	for k := range v.Vars {
		h.VarSet(k, f.Vars[k])
	}
	for k, value := range f.Vars {
		h.VarSet(k, value)
	}
	return out, f, h, err
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
