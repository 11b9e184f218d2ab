package mask_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/toold/toold/host/mask"
)

func TestTexts(t *testing.T) {
	hide := func(t mask.JSONText) string {
		if t.Member == "token" || t.Before == "--token" {
			return mask.Placeholder
		}
		return strings.ReplaceAll(t.Text, "5ec2e7", mask.Placeholder)
	}
	for in, want := range map[string]string{
		`{"a":"5ec2e7"}`:                      `{"a":"[secret]"}`,
		`{"5ec2e7":[1,null,true]}`:            `{"[secret]":[1,null,true]}`,
		`[]`:                                  `[]`,
		`"<5ec2e7>"`:                          `"<[secret]>"`,
		` { "a" : [ "5ec2e7" , {} , [] ] } `:  `{"a":["[secret]",{},[]]}`,
		`{"a":"5ec2e7","a":"x"}`:              `{"a":"[secret]","a":"x"}`,
		`{"token":"x","b":"x"}`:               `{"token":"[secret]","b":"x"}`,
		`{"token":["x",{"a":"y"}],"token":1}`: `{"token":["[secret]",{"a":"y"}],"token":1}`,
		`["--token","x","x"]`:                 `["--token","[secret]","x"]`,
		`["--token",["x"],"x"]`:               `["--token",["x"],"x"]`,
		`{"a":"\u0035ec2e7"}`:                 `{"a":"[secret]"}`,
		`[1e5, {"b": 12}, {"c": {"d": "x"}}]`: `[1e5, {"b": 12}, {"c": {"d": "x"}}]`,
	} {
		got, changed, err := mask.Texts([]byte(in), hide)
		if err != nil || string(got) != want || changed != (in != want) {
			t.Errorf("%s: got %s, %v, %v, want %s", in, got, changed, err, want)
		}
	}
	for _, in := range []string{``, `{`, `{"a":1} 5ec2e7`, `{"a" "b"}`} {
		if _, _, err := mask.Texts([]byte(in), hide); err == nil {
			t.Errorf("%s: no error", in)
		}
	}
}

// FuzzTexts: what comes out is JSON, as it was where there is no secret, and without
// it where there is one.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{`{"a":"5ec2e7","a":["x",1e9]}`, `[{"5ec2e7":null}]`, `"\u0035ec2e7"`, `[[],{},"",5]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, changed, err := mask.Texts(data, func(t mask.JSONText) string {
			return strings.ReplaceAll(t.Text, "5ec2e7", mask.Placeholder)
		})
		if (err == nil) != json.Valid(data) {
			t.Fatalf("%q: %v", data, err)
		}
		if err != nil {
			return
		}
		if !json.Valid(out) || !changed && !bytes.Equal(out, data) {
			t.Fatalf("%q became %q", data, out)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			token, err := d.Token()
			if err != nil {
				break
			}
			if s, _ := token.(string); strings.Contains(s, "5ec2e7") {
				t.Fatalf("%q became %q", data, out)
			}
		}
	})
}
