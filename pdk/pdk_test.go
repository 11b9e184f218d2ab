package pdk_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func ExampleRestrict() {
	restrict := func() int32 {
		return pdk.Restrict(func(c *abi.Call) *abi.Decision {
			for _, a := range c.Args {
				if a == "--force" {
					return pdk.Deny("force", "--force rewrites what others have", "push without it")
				}
			}
			return pdk.Allow()
		})
	}
	f := &pdk.Fake{}
	d, _ := f.Restrict(restrict, &abi.Call{Tool: "git", Args: []string{"push", "--force"}})
	fmt.Println(d.Effect, "-", d.Reason)
	d, _ = f.Restrict(restrict, &abi.Call{Tool: "git", Args: []string{"status"}})
	fmt.Println(d.Effect)
	// Output:
	// deny - --force rewrites what others have
	// allow
}

func ExampleHandle() {
	handle := func() int32 {
		return pdk.Handle(func(c *abi.Call) (*abi.Result, error) {
			return &abi.Result{Stdout: strings.Join(c.Args, " ") + pdk.Config("end")}, nil
		})
	}
	f := &pdk.Fake{Config: map[string]string{"end": "\n"}}
	r, _ := f.Handle(handle, &abi.Call{Tool: "echo", Args: []string{"hello", "there"}})
	fmt.Print(r.Stdout)
	// Output: hello there
}

func TestRestrictFailsClosed(t *testing.T) {
	tests := []struct {
		name   string
		input  string
		policy func(*abi.Call) *abi.Decision
		want   string
	}{
		{"panic", `{"tool":"x"}`, func(*abi.Call) *abi.Decision { panic("lost") }, "policy panicked: lost"},
		{"index", `{"tool":"x"}`, func(c *abi.Call) *abi.Decision { _ = c.Args[3]; return pdk.Allow() }, "index out of range"},
		{"nil", `{"tool":"x"}`, func(*abi.Call) *abi.Decision { return nil }, "no decision"},
		{"not json", `{"tool":`, func(*abi.Call) *abi.Decision { return pdk.Allow() }, "read call"},
		{"empty", ``, func(*abi.Call) *abi.Decision { return pdk.Allow() }, "read call"},
		{"wrong type", `{"args":"push"}`, func(*abi.Call) *abi.Decision { return pdk.Allow() }, "read call"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &pdk.Fake{}
			out, err := f.Run(func() int32 { return pdk.Restrict(tt.policy) }, []byte(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("output %q, error %v, want error with %q", out, err, tt.want)
			}
		})
	}
}

func TestHandle(t *testing.T) {
	f := &pdk.Fake{}
	_, err := f.Handle(func() int32 {
		return pdk.Handle(func(*abi.Call) (*abi.Result, error) { return nil, io.ErrUnexpectedEOF })
	}, &abi.Call{})
	if err == nil || err.Error() != "unexpected EOF" {
		t.Errorf("error %v, want that of the handler", err)
	}
	r, err := f.Handle(func() int32 {
		return pdk.Handle(func(*abi.Call) (*abi.Result, error) { return nil, nil })
	}, &abi.Call{})
	if err != nil || r.ExitCode != 0 {
		t.Errorf("nil result: %+v, %v", r, err)
	}
}

func TestDescribeFillsABI(t *testing.T) {
	f := &pdk.Fake{}
	out, err := f.Run(func() int32 { return pdk.Describe(abi.Describe{Name: "x"}) }, nil)
	if err != nil || string(out) != `{"abi":1,"name":"x"}` {
		t.Errorf("output %s, %v", out, err)
	}
}

func TestHostFunctions(t *testing.T) {
	pieces := [][]byte{[]byte("one"), {0, 0xff}}
	f := &pdk.Fake{
		Config: map[string]string{"empty": ""},
		HTTP: func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
			return &pdk.HTTPResponse{Status: 200, Body: []byte(r.Method)}, nil
		},
		Exec: func(r *abi.ExecRequest) *abi.ExecResult { return &abi.ExecResult{ExitCode: len(r.Args)} },
		Recv: func() abi.RecvResult {
			if len(pieces) == 0 {
				return abi.RecvResult{EOF: true}
			}
			p := pieces[0]
			pieces = pieces[1:]
			return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString(p)}
		},
		ToolCall: func(b []byte) []byte { return b },
	}
	_, err := f.Run(func() int32 {
		if _, ok := pdk.LookupConfig("none"); ok {
			t.Error("a key that is not there was found")
		}
		if v, ok := pdk.LookupConfig("empty"); v != "" || !ok {
			t.Error("an empty value was not found")
		}
		pdk.VarSet("k", []byte("v"))
		if v := pdk.VarGet("k"); string(v) != "v" {
			t.Errorf("var %q", v)
		}
		pdk.VarSet("k", nil)
		if v := pdk.VarGet("k"); v != nil {
			t.Errorf("removed var %q", v)
		}
		pdk.Log(pdk.LevelInfo, "line")
		if r, err := pdk.HTTP(&pdk.HTTPRequest{URL: "http://x/"}); err != nil || string(r.Body) != "GET" {
			t.Errorf("http %v, %v", r, err)
		}
		if r, err := pdk.Exec(&abi.ExecRequest{Path: "/bin/x", Args: []string{"a", "b"}}); err != nil || r.ExitCode != 2 {
			t.Errorf("exec %v, %v", r, err)
		}
		for {
			p, err := pdk.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := pdk.Emit(pdk.Stdout, p); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := pdk.ToolCall([]byte("{}")); string(out) != "{}" || err != nil {
			t.Errorf("tool call %q, %v", out, err)
		}
		return 0
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(f.Emitted[pdk.Stdout], []byte("one\x00\xff")) {
		t.Errorf("emitted %q", f.Emitted)
	}
	if len(f.Logged) != 1 || f.Logged[0] != "line" {
		t.Errorf("logged %q", f.Logged)
	}
}

// A host that grants nothing answers errors, never zero values that look
// like success.
func TestUngranted(t *testing.T) {
	f := &pdk.Fake{}
	f.Run(func() int32 {
		if _, err := pdk.Exec(&abi.ExecRequest{Path: "/bin/x"}); err == nil {
			t.Error("exec succeeded")
		}
		if _, err := pdk.HTTP(&pdk.HTTPRequest{URL: "http://x/"}); err == nil {
			t.Error("http succeeded")
		}
		if _, err := pdk.ToolCall([]byte("{}")); err == nil {
			t.Error("tool call succeeded")
		}
		return 0
	}, nil)
}
