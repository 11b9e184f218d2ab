package pdk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestDecodeWireKnowsEveryField fails when abi.Wire gets a field that decodeWire
// passes over.
func TestDecodeWireKnowsEveryField(t *testing.T) {
	var want, got abi.Wire
	n := 0
	fill(reflect.ValueOf(&want).Elem(), &n)
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeWire(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// FuzzDecodeWire compares with encoding/json.
func FuzzDecodeWire(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"on":"git-push","host":"h","port":22,"path":"/p","remote":"ssh://h/p","refs":[{"name":"refs/heads/main","old":"00","new":"11","force":true}],"push_options":["a"],"call":{"tool":"git"}}`,
		`{"refs":[{"force":null}]}`, `{"refs":[{"force":false},{"force":1}]}`, `{"refs":null}`, `{"refs":[null]}`, `{"refs":{}}`, `{"refs":[1]}`, `{"refs":[],"refs":[{"name":"a"}]}`, `{"port":1e3}`,
		`{"on":"http","method":"GET","path":"/\ud800"}`, `{"on":"http"}x`, `{"refs":[{"name":"a","name":"b","force":true,"force":null}]}`, `{"call":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want abi.Wire
		err := decodeWire(b, &got)
		wantErr := json.Unmarshal(b, &want)
		// encoding/json takes a name in another case for ours.
		if !plainNames(json.NewDecoder(bytes.NewReader(b))) {
			return
		}
		if err == nil && wantErr != nil {
			t.Errorf("%q is read as %+v, encoding/json says %v", b, got, wantErr)
		}
		if err != nil || wantErr != nil {
			return // Refusing more than encoding/json does is harmless.
		}
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		if string(g) != string(w) {
			t.Errorf("%q is read as %s, by encoding/json as %s", b, g, w)
		}
	})
}

// A policy that fails answers no decision.
func TestWireFails(t *testing.T) {
	var f Fake
	for name, fn := range map[string]func(*abi.Wire) *abi.Decision{
		"nothing": func(*abi.Wire) *abi.Decision { return nil },
		"a panic": func(*abi.Wire) *abi.Decision { panic("x") },
	} {
		if out, err := f.Run(func() int32 { return Wire(fn) }, []byte(`{"on":"http"}`)); err == nil || out != nil {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
	if _, err := f.Run(func() int32 { return Wire(func(*abi.Wire) *abi.Decision { return Allow() }) }, []byte(`{"on":`)); err == nil {
		t.Error("what cannot be read is allowed")
	}
	out, err := f.Run(func() int32 {
		return Wire(func(w *abi.Wire) *abi.Decision { return Deny(w.On, w.Path, "") })
	}, []byte(`{"on":"http","path":"/x"}`))
	if err != nil || string(out) != `{"effect":"deny","rule":"http","reason":"/x"}` {
		t.Errorf("%s, %v", out, err)
	}
}
