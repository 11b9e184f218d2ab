package execute

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/toold/toold/host/mask"
)

func TestCapture(t *testing.T) {
	c := capture{max: 5}
	for _, s := range []string{"abc", "def", "ghi"} {
		if n, err := io.WriteString(&c, s); n != 3 || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
	}
	if c.buf.String() != "abcde" || !c.cut {
		t.Errorf("kept %q, cut %v", c.buf.String(), c.cut)
	}
}

func TestVarsAreScopedAndBounded(t *testing.T) {
	var v vars
	a, b := varScope{"alice", "", "t"}, varScope{"bob", "", "t"}
	if err := v.set(a, "k", []byte("12345"), 10); err != nil {
		t.Fatal(err)
	}
	if got := v.get(b, "k"); got != nil {
		t.Errorf("bob reads %q", got)
	}
	if err := v.set(a, "l", []byte("12345"), 10); err == nil {
		t.Error("12 bytes were kept under a limit of 10")
	}
	if err := v.set(a, "k", []byte("123456789"), 10); err != nil {
		t.Errorf("replacing counts the old value: %v", err)
	}
	if err := v.set(a, "k", nil, 10); err != nil || v.get(a, "k") != nil {
		t.Errorf("forgotten: %v, %q", err, v.get(a, "k"))
	}
	for i := range maxVarScopes {
		if err := v.set(varScope{fmt.Sprint(i), "", "t"}, "k", []byte("x"), 10); err != nil {
			t.Fatal(err)
		}
	}
	if len(v.scopes) != maxVarScopes || v.recent.Len() != maxVarScopes {
		t.Errorf("%d scopes are kept", len(v.scopes))
	}
	// All of them together are bounded, too, however much one tool may keep.
	big := make([]byte, 50<<20)
	for i := range 10 {
		if err := v.set(varScope{"big", fmt.Sprint(i), "t"}, "k", big, 64<<20); err != nil {
			t.Fatal(err)
		}
	}
	if v.bytes > maxVarBytes || v.get(varScope{"big", "0", "t"}, "k") != nil || len(v.get(varScope{"big", "9", "t"}, "k")) != len(big) {
		t.Errorf("%d bytes are kept", v.bytes)
	}
	var sum int64
	for e := v.recent.Front(); e != nil; e = e.Next() {
		sum += e.Value.(*scopeVars).size
	}
	if sum != v.bytes {
		t.Errorf("%d bytes are kept, and %d count", sum, v.bytes)
	}
}

// JSON with its secrets masked is JSON still.
func TestMaskedDataIsJSON(t *testing.T) {
	secrets := [][]byte{[]byte("123456"), []byte(`a"b\c d`), []byte(`":"value`), []byte("line\nbreak")}
	for data, want := range map[string]string{
		`{"pin":123456,"n":1}`:             `{"n":1,"pin":"[secret]"}`,
		`[-912345678.5e3]`:                 `["[secret]"]`,
		`{"a":"x 123456 y"}`:               `{"a":"x [secret] y"}`,
		`{"123456":true}`:                  `{"[secret]":true}`,
		`{"a":"a\"b\\c d"}`:                `{"a":"[secret]"}`,
		`{"a":"a\u0022b\u005cc\u0020d"}`:   `{"a":"[secret]"}`,
		`{"a":"line\nbreak"}`:              `{"a":"[secret]"}`,
		`{"name":"value"}`:                 `{"name":"value"}`,
		`{"a":1234567890123456789}`:        `{"a":"[secret]"}`,
		`{"a":9007199254740993,"b":"<&>"}`: `{"a":9007199254740993,"b":"<&>"}`,
	} {
		got := string(mask.JSON([]byte(data), secrets))
		var have, wanted any
		if err := json.Unmarshal([]byte(got), &have); err != nil {
			t.Errorf("%s became %s: %v", data, got, err)
			continue
		}
		json.Unmarshal([]byte(want), &wanted)
		if !reflect.DeepEqual(have, wanted) || strings.Contains(got, "123456") {
			t.Errorf("%s became %s, want %s", data, got, want)
		}
	}
}
