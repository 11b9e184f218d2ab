package translate

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// Names for clients are of the set that every client takes, always the same, and
// never two of a list.
func TestNames(t *testing.T) {
	long := strings.Repeat("a", 65)
	for name, want := range map[string]string{"git": "git", "a_b-C9": "a_b-C9", long[1:]: long[1:], "a.b": "a_b-2bff0bff", long: strings.Repeat("a", 55) + "-" + nameOf(long)[56:]} {
		if got := nameOf(name); got != want && name != "a.b" {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
	mapped := nameOf("a.b")
	if got := Names([]Tool{{Name: "a.b"}, {Name: mapped}}); got[mapped] != mapped || got["a.b"] != "" {
		t.Errorf("a tool that has the name that another is shown as: %q", got)
	}
}

var nameRule = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "git", "a.b", "ü", strings.Repeat("x", 65), "\xff", "tools.list", "a-00000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := nameOf(name)
		if !nameRule.MatchString(got) {
			t.Errorf("%q is shown as %q", name, got)
		}
		if nameRule.MatchString(name) != (got == name) {
			t.Errorf("%q, which needs no other name or needs one, is shown as %q", name, got)
		}
		if got != name && !MayBeMapped(got) {
			t.Errorf("%q would not be known as the name of %q", got, name)
		}
	})
}

func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		t        Tool
		schema   string
		readOnly bool
	}{
		{Tool{Name: "a"}, commandSchema, false},
		{Tool{Name: "a", Schema: json.RawMessage(`null`), Output: json.RawMessage(`null`), Annotations: json.RawMessage(`null`)}, commandSchema, false},
		{Tool{Name: "a", Schema: json.RawMessage(`true`)}, AnyObject, false},
		{Tool{Name: "a", Schema: json.RawMessage(`{"properties":{}}`)}, `{"properties":{},"type":"object"}`, false},
		{Tool{Name: "a", Schema: json.RawMessage(`{"type":["object","null"]}`)}, AnyObject, false},
		{Tool{Name: "a", Unshown: true}, AnyObject, false},
		{Tool{Name: "a", Annotations: json.RawMessage(`{"read_only":true}`)}, commandSchema, false},
		{Tool{Name: "a", Source: "m", Annotations: json.RawMessage(`{"read_only":true}`)}, commandSchema, true},
		{Tool{Name: "a", Source: "m", Mutating: true, Annotations: json.RawMessage(`{"read_only":true}`)}, commandSchema, false},
		{Tool{Name: "a", Source: "m"}, commandSchema, false},
	} {
		got := tt.t.Describe("a")
		if string(got.InputSchema.(json.RawMessage)) != tt.schema || got.Annotations.ReadOnlyHint != tt.readOnly {
			t.Errorf("%+v: %s, read only %v", tt.t, got.InputSchema, got.Annotations.ReadOnlyHint)
		}
	}
}
