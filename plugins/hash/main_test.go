package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

const (
	sha256abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	md5abc    = "900150983cd24fb0d6963f7d28e17f72"
	sha1abc   = "a9993e364706816aba3e25717850c26c9cd0d89d"
	sha384abc = "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7"
	sha512abc = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
)

func TestHash(t *testing.T) {
	for _, tt := range []struct {
		name  string
		call  abi.Call
		input []string
		want  string
		code  int
		fails string
	}{
		{name: "text", call: abi.Call{Args: []string{"abc"}}, want: sha256abc},
		{name: "algorithm", call: abi.Call{Args: []string{"-a", "md5", "abc"}}, want: md5abc},
		{name: "joined", call: abi.Call{Args: []string{"--algorithm=sha1", "abc"}}, want: sha1abc},
		{name: "sha384", call: abi.Call{Args: []string{"-asha384", "--", "abc"}}, want: sha384abc},
		{name: "sha512", call: abi.Call{Args: []string{"-asha512", "abc"}}, want: sha512abc},
		{name: "words", call: abi.Call{Args: []string{"a", "b"}}, want: "c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65"},
		{name: "input", input: []string{"a", "bc"}, want: sha256abc},
		{name: "no input", want: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{name: "payload", call: abi.Call{Payload: json.RawMessage(`{"algorithm":"md5","text":"abc"}`)}, want: md5abc},
		{name: "payload without algorithm", call: abi.Call{Payload: json.RawMessage(`{"text":"abc"}`)}, want: sha256abc},
		{name: "payload of an empty text", call: abi.Call{Payload: json.RawMessage(`{"text":""}`)}, input: []string{"abc"}, want: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{name: "payload and input", call: abi.Call{Payload: json.RawMessage(`{"algorithm":"sha1"}`)}, input: []string{"abc"}, want: sha1abc},
		{name: "unknown flag", call: abi.Call{Args: []string{"-x"}}, code: 2},
		{name: "unknown algorithm", call: abi.Call{Args: []string{"-a", "crc"}}, code: 2},
		{name: "unknown algorithm of a payload", call: abi.Call{Payload: json.RawMessage(`{"algorithm":"crc"}`)}, fails: `algorithm "crc"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &pdk.Fake{Recv: func() abi.RecvResult {
				if len(tt.input) == 0 {
					return abi.RecvResult{EOF: true}
				}
				p := tt.input[0]
				tt.input = tt.input[1:]
				return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString([]byte(p))}
			}}
			r, err := f.Handle(handle, &tt.call)
			switch {
			case tt.fails != "":
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v", err)
				}
			case err != nil:
				t.Error(err)
			case tt.code != 0:
				if r.ExitCode != tt.code || r.Stderr == "" {
					t.Errorf("%+v", r)
				}
			case r.Stdout != tt.want+"\n" || !strings.Contains(string(r.Data), tt.want):
				t.Errorf("%+v %s, want %s", r, r.Data, tt.want)
			}
		})
	}
}

func TestSchema(t *testing.T) {
	s, err := tools.CompileSchema(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	for payload, ok := range map[string]bool{
		`{}`: true, `{"text":"a"}`: true, `{"algorithm":"md5","text":"a"}`: true, `{"args":["a"],"cwd":"/"}`: true,
		`{"algorithm":"crc"}`: false, `{"text":1}`: false, `{"txt":"a"}`: false,
	} {
		var v any
		if err := json.Unmarshal([]byte(payload), &v); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); (err == nil) != ok {
			t.Errorf("%s: %v", payload, err)
		}
	}
}
