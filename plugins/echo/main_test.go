package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestEcho(t *testing.T) {
	t.Run("args", func(t *testing.T) {
		r, err := (&pdk.Fake{}).Handle(handle, &abi.Call{Args: []string{"a", "b  c", ""}})
		if err != nil || r.Stdout != "a b  c \n" || r.ExitCode != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("payload", func(t *testing.T) {
		r, err := (&pdk.Fake{}).Handle(handle, &abi.Call{Payload: json.RawMessage(`{"a":[1,"ä"]}`)})
		if err != nil || string(r.Data) != `{"a":[1,"ä"]}` {
			t.Errorf("%s, %v", r.Data, err)
		}
	})
	t.Run("input", func(t *testing.T) {
		pieces := [][]byte{[]byte("one\n"), {0, 0xff, 0xfe}, []byte("three")}
		i := -1
		f := &pdk.Fake{Recv: func() abi.RecvResult {
			if i++; i == len(pieces) {
				return abi.RecvResult{EOF: true}
			}
			return abi.RecvResult{DataBase64: base64.StdEncoding.EncodeToString(pieces[i])}
		}}
		if _, err := f.Handle(handle, &abi.Call{}); err != nil || !bytes.Equal(f.Emitted[pdk.Stdout], bytes.Join(pieces, nil)) {
			t.Errorf("%q, %v", f.Emitted, err)
		}
	})
	t.Run("input that breaks off", func(t *testing.T) {
		f := &pdk.Fake{Recv: func() abi.RecvResult { return abi.RecvResult{Error: &abi.Error{Message: "the caller left"}} }}
		if _, err := f.Handle(handle, &abi.Call{}); err == nil || err.Error() != "the caller left" {
			t.Error(err)
		}
	})
}
