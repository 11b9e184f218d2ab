package pdk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// fill sets every field beneath v to something.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.String:
		v.SetString("text " + string(rune('a'+*n%26)) + "<\"\\\n\u2028\U0001F600\x7f")
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(-*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		m.SetMapIndex(reflect.ValueOf("k"), reflect.ValueOf("v"))
		v.Set(m)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.Set(reflect.ValueOf(json.RawMessage(`{"a":[1,-2.5e3,null,true,"x\u00e9"]}`)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	default:
		panic(v.Kind())
	}
}

// TestDecodeCallKnowsEveryField fails when abi.Call gets a field that
// decodeCall passes over.
func TestDecodeCallKnowsEveryField(t *testing.T) {
	var want, got abi.Call
	n := 0
	fill(reflect.ValueOf(&want).Elem(), &n)
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := decodeCall(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// plainNames reports whether no object has a name twice, or one that differs
// from another in case only: there encoding/json has rules of its own, and
// the host sends neither.
func plainNames(d *json.Decoder) bool {
	t, err := d.Token()
	if err != nil {
		return false
	}
	seen := make(map[string]bool)
	switch t {
	case json.Delim('{'):
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return false
			}
			for _, c := range name.(string) {
				if c >= 0x80 || 'A' <= c && c <= 'Z' {
					return false
				}
			}
			if seen[name.(string)] || !plainNames(d) {
				return false
			}
			seen[name.(string)] = true
		}
		d.Token()
	case json.Delim('['):
		for d.More() {
			if !plainNames(d) {
				return false
			}
		}
		d.Token()
	}
	return true
}

// FuzzDecodeCall compares with encoding/json.
func FuzzDecodeCall(f *testing.F) {
	for _, s := range []string{
		``, `{}`, ` { } `, `null`, `[]`, `{"tool":"git"}`, `{"tool":null,"args":null,"env":null,"repo_config":null,"attempt":null,"read_only":null}`, `{"args":["a","\u00e9\ud83d\ude00\ud800x\udc00"]}`,
		`{"args":[]}`, `{"args":["a",]}`, `{"args":["a"],}`, `{"tool":1}`, `{"attempt":1.5}`, `{"attempt":1e2}`, `{"attempt":-0}`, `{"attempt":9999999999999999999}`, `{"env":{"A":"b","A":"c"}}`,
		`{"payload":{"a":[1,2,{"b":"\""}]}}`, `{"payload":01}`, `{"payload":nul}`, `{"x":{"y":[[[]]]},"tool":"t"}`, `{"repo_config":{"entries":[{"key":"a.b","value":"c"},{}],"error":"x","z":1}}`,
		`{"tool":"a` + "\x01" + `"}`, `{"tool":"\x"}`, `{"tool":"\u12"}`, `{"tool":"` + "\xff" + `"}`, `{"tool":"a"}x`, `{"tool" "a"}`, `{"tool":"a"`, "{\"tool\"\t:\r\n\"a\"}", `{"binding":null}`, `{"\u0074ool":"x"}`,
		`{"tool":"\u+123"}`, `{"attempt":}`, `{"args":"x"}`, `{"args":[null]}`, `{"read_only":truex}`, `{"deadline_ms":-5}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want abi.Call
		err := decodeCall(b, &got)
		wantErr := json.Unmarshal(b, &want)
		// encoding/json takes a name in another case for ours.
		if err == nil && wantErr != nil && plainNames(json.NewDecoder(bytes.NewReader(b))) {
			t.Errorf("%q is read as %+v, encoding/json says %v", b, got, wantErr)
		}
		if err != nil || wantErr != nil {
			return // Refusing more than encoding/json does is harmless.
		}
		if !plainNames(json.NewDecoder(bytes.NewReader(b))) {
			return
		}
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		if string(g) != string(w) {
			t.Errorf("%q is read as %s, by encoding/json as %s", b, g, w)
		}
	})
}
