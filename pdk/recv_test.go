package pdk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// FuzzDecodeRecv: what decodeRecv takes, encoding/json takes alike.
func FuzzDecodeRecv(f *testing.F) {
	for _, s := range []string{
		`{"data_base64":"AAEC"}`, `{"eof":true}`, `{"error":{"code":"X","message":"m","retriable":true}}`, `{"error":null}`, `{}`, `null`, ``,
		` { "data_base64" : "\u0041A==" , "later" : [1,{"a":null}] } `, `{"eof":1}`, `{"data_base64":1}`, `{"error":"m"}`, `{"eof":true}x`, `{"eof":true`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if hasOtherCase(b) {
			return // encoding/json takes "EOF" for "eof".
		}
		var got, want abi.RecvResult
		if err := decodeRecv(b, &got); err != nil {
			return
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("takes %q, which encoding/json refuses: %v", b, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q reads as %+v, must be %+v", b, got, want)
		}
	})
}

func hasOtherCase(b []byte) bool {
	var m map[string]json.RawMessage
	if json.Unmarshal(b, &m) != nil {
		return false
	}
	for k := range m {
		l := strings.ToLower(k)
		if k != l && (l == "data_base64" || l == "eof" || l == "error") {
			return true
		}
	}
	// Those of an error are read by encoding/json itself; one that is there
	// twice with other names is left out with the rest.
	return strings.Count(strings.ToLower(string(b)), `"error"`) > 1 || bytes.Contains(b, []byte(`\u`))
}
