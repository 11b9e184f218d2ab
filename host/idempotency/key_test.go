package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{`1.0`, `1`},
		{` {"b":1,"a":[true , null]} `, `{"a":[true,null],"b":1}`},
		{`"\u0061\/\u20ac"`, `"a/€"`},
		{`[1e2, 0.000001, 1E-7, -0, 4.50]`, `[100,0.000001,1e-7,0,4.5]`},
		{`9007199254740991`, `9007199254740991`},
		{`[9007199254740992,-9007199254740992]`, `[9007199254740992,-9007199254740992]`},
		{`"\ud83d\ude00"`, `"😀"`},
		// The example of RFC 8785, section 3.2.3: names by UTF-16 code units.
		{`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
	} {
		got, err := Canonical([]byte(tt.in))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.in, got, err, tt.want)
		}
	}
	for in, why := range map[string]string{
		`{"a":1,"a":1}`:               `"a" occurs twice`,
		`{"a":1,"\u0061":2}`:          `"a" occurs twice`,
		`{"x":[{"a":1,"b":2,"a":3}]}`: `"a" occurs twice`,
		`9007199254740993`:            "past 2^53",
		`-9007199254740993`:           "past 2^53",
		`{"id":12345678901234567890}`: "past 2^53",
		`9007199254740993.0`:          "past 2^53",
		`1e20`:                        "past 2^53",
		`1e400`:                       "past 2^53",
		`"\ud800"`:                    "",
		`"\ud800\u0061"`:              "surrogate",
		"\"\xff\"":                    "UTF-8",
		`1 2`:                         "follows",
		``:                            "EOF",
		`{"a":`:                       "EOF",
		`[1,]`:                        "invalid",
		`nul`:                         "",
		strings.Repeat("[", 600) + strings.Repeat("]", 600): "deeper",
	} {
		got, err := Canonical([]byte(in))
		var p *PayloadError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40s: %s, %v; want an error with %q", in, got, err, why)
		}
	}
}

func TestKeys(t *testing.T) {
	auto := func(scope, payload, caller string) string {
		t.Helper()
		k, err := AutoKey(scope, []byte(payload), caller)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	one := auto("git", `{"n":1.0,"a":"x"}`, "alice")
	// printf '%s' '["git",{"a":"x","n":1},"alice"]' | sha256sum
	if want := "5159e42289d3b2169cccd01d261c948b94a0b5883a26c30d73a3b8ddf8a3dedc"; one != want {
		t.Errorf("got %s, want %s", one, want)
	}
	if one != auto("git", `{"a":"x", "n":1}`, "alice") {
		t.Error("the same payload has two keys")
	}
	seen := map[string]string{one: "one"}
	for name, k := range map[string]string{
		"another caller":  auto("git", `{"n":1,"a":"x"}`, "bob"),
		"another tool":    auto("gh", `{"n":1,"a":"x"}`, "alice"),
		"another payload": auto("git", `{"n":2,"a":"x"}`, "alice"),
	} {
		if seen[k] != "" {
			t.Errorf("%s has the key of %s", name, seen[k])
		}
		seen[k] = name
	}
	alice, err1 := CallerKey("git", "k", "alice")
	bob, err2 := CallerKey("git", "k", "bob")
	gh, err3 := CallerKey("gh", "k", "alice")
	if err := errors.Join(err1, err2, err3); err != nil || alice == bob || alice == gh {
		t.Errorf("one key for two: %s %s %s, %v", alice, bob, gh, err)
	}
	if _, err := AutoKey("git", []byte(`{}`), ""); !errors.Is(err, ErrNoCaller) {
		t.Errorf("nobody's key: %v", err)
	}
	if _, err := CallerKey("git", "k", ""); !errors.Is(err, ErrNoCaller) {
		t.Errorf("nobody's key: %v", err)
	}
	var p *PayloadError
	if _, err := CallerKey("git", "\xff", "alice"); !errors.As(err, &p) {
		t.Errorf("a key that is not UTF-8: %v", err)
	}
	// One text that would close the array must not pass for another.
	if _, err := AutoKey("git", []byte(`1,"x"],[1`), "alice"); !errors.As(err, &p) {
		t.Errorf("a payload of two values: %v", err)
	}
}

// What is canonical stays so, means the same, and has one form.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		`{"b":[1.0,2e2],"a":"\u20ac"}`, `"\ud83d\ude00"`, `9007199254740993`, `{"a":1,"\u0061":1}`, `[[],{}]`, `-0.0`, ` null `, `{"":{"":0}}`, "\"\x7f\u2028\"",
		`5e-324`, `0.1e1`, `"\ud800"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := Canonical(in)
		if err != nil {
			var p *PayloadError
			if !errors.As(err, &p) {
				t.Fatal(err)
			}
			return
		}
		again, err := Canonical(out)
		if err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%q, then %q, %v", out, again, err)
		}
		var a, b any
		if err := json.Unmarshal(in, &a); err != nil {
			t.Fatalf("%q was admitted: %v", in, err)
		}
		if err := json.Unmarshal(out, &b); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%q became %q: %v", in, out, err)
		}
		// Another spelling of the same value has the same form.
		spelled, err := json.MarshalIndent(a, " ", "\t")
		if err != nil {
			t.Fatal(err)
		}
		if other, err := Canonical(spelled); err != nil || !bytes.Equal(other, out) {
			t.Fatalf("%q is %q, %q is %q (%v)", in, out, spelled, other, err)
		}
	})
}
