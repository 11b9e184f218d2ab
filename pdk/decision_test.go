package pdk

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

// FuzzEncodeDecision: what is written reads as what json.Marshal writes.
func FuzzEncodeDecision(f *testing.F) {
	f.Add("allow", "git.push", "rule \"x\"", "\x00\x1f\n\t\\\u2028<&>", "a\xff\xc0b", "", int64(0), uint16(0))
	f.Add("deny", "", "", "", "é日\U0001F600\uFFFD", "A", int64(-5), uint16(0xffff))
	f.Fuzz(func(t *testing.T, effect, rule, reason, arg, value, key string, ms int64, which uint16) {
		has := func(n int) bool { return which>>n&1 != 0 }
		flag := func(n int) *bool {
			if !has(n) {
				return nil
			}
			v := has(n + 1)
			return &v
		}
		d := &abi.Decision{Effect: effect, Rule: rule, Reason: reason, Instead: value, IdempotencyKey: key, TimeoutMS: ms,
			Mutating: flag(0), Idempotent: flag(2), Stdin: flag(4), Shell: has(6)}
		if has(7) {
			d.Args = []string{}
		}
		if has(8) {
			d.Args = []string{arg, value, reason}
		}
		if has(12) {
			d.ShellLines = []string{arg, value}
		}
		if has(13) {
			d.Notes = []string{reason, arg}
		}
		if has(9) {
			d.Env = map[string]string{}
		}
		if has(10) {
			d.Env = map[string]string{"N": arg, "M" + value: value}
		}
		if has(11) {
			d.StdinBase64 = &arg
		}
		want, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		got := encodeDecision(d)
		var a, b any
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		json.Unmarshal(want, &b)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("wrote %s, json.Marshal writes %s", got, want)
		}
	})
}

// TestEncodesEveryField fails when Decision has a field that encodeDecision
// does not write.
func TestEncodesEveryField(t *testing.T) {
	var d abi.Decision
	n := 0
	fill(reflect.ValueOf(&d).Elem(), &n)
	var got, want map[string]any
	json.Unmarshal(encodeDecision(&d), &got)
	b, _ := json.Marshal(&d)
	json.Unmarshal(b, &want)
	if len(want) != reflect.TypeOf(d).NumField() || !reflect.DeepEqual(got, want) {
		t.Errorf("encodeDecision writes %v, want %v", got, want)
	}
}
