package pdk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// TestDecodeReconcileKnowsEveryField fails when abi.Reconcile gets a field that
// decodeReconcile passes over.
func TestDecodeReconcileKnowsEveryField(t *testing.T) {
	var want, got abi.Reconcile
	n := 0
	fill(reflect.ValueOf(&want).Elem(), &n)
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeReconcile(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// FuzzDecodeReconcile compares with encoding/json.
func FuzzDecodeReconcile(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"call":{"tool":"git","args":["push"]},"key":"k","gone":true,"facts":{"a":[1]},"began_ms":1,"ended_ms":-2,"now_ms":3}`,
		`{"call":null,"env":null,"facts":null,"ran":null,"before":null}`, `{"ran":[{"args":["a"],"exit_code":1,"stdout":"x","error":{"code":"DENIED","message":"m"}},{}]}`,
		`{"ran":{}}`, `{"ran":[1]}`, `{"ran":[{"exit_code":"x"}]}`, `{"gone":1}`, `{"gone":truex}`, `{"call":{"tool":"a"},"call":{"args":["b"]}}`, `{"ran":[{"stdout":"a"}],"ran":[{"stderr":"b"}]}`,
		`{"facts":01}`, `{"facts":{"a":1}`, `{"env":["A",null]}`, `{"began_ms":1e3}`, `{"x":[[{}]],"key":"\ud800"}`, `{"gone":true}x`, `{"g\u006fne":true}`, `{"env":["a"],"env":["b","c"]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want abi.Reconcile
		err := decodeReconcile(b, &got)
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
