package strictjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/strictjson"
)

// sample has a field of each kind that is read into.
type sample struct {
	Text    string            `json:"text"`
	Flag    bool              `json:"flag"`
	Number  int               `json:"number"`
	Small   uint8             `json:"small"`
	Ratio   float64           `json:"ratio"`
	List    []string          `json:"list"`
	Bytes   []byte            `json:"bytes"`
	Map     map[string]int    `json:"map"`
	Inner   *sample           `json:"inner"`
	Many    []inner           `json:"many"`
	Raw     json.RawMessage   `json:"raw"`
	Any     any               `json:"any"`
	When    time.Time         `json:"when"`
	Limits  map[string]*inner `json:"limits,omitempty"`
	Named   named             `json:"named"`
	Skipped string            `json:"-"`
	NoTag   string
	embedded
}

type named string

type inner struct {
	Name string `json:"name"`
}

type embedded struct {
	Below string `json:"below"`
}

func TestUnmarshal(t *testing.T) {
	in := `{"text":"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é😀","flag":true,"number":-12,"small":255,"ratio":1.5e3,
		"list":["a",""],"bytes":"AQI=","map":{"a":1,"b":2},"inner":{"text":"x","inner":null},"many":[{"name":"1"},{}],
		"raw": {"a" : [1, 2]} ,"any":{"a":[1,"x",true,null]},"when":"2026-01-02T03:04:05Z","limits":{"l":{"name":"n"},"m":null},
		"named":"n","NoTag":"t","below":"b"}`
	var got, want sample
	if err := strictjson.Unmarshal([]byte(in), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(in), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestUnmarshalFaults(t *testing.T) {
	deep := strings.Repeat(`[`, 65) + strings.Repeat(`]`, 65)
	for _, test := range []struct {
		in, pointer, reason string
	}{
		{``, ``, "expected an object, but the text is empty"},
		{"  \n", ``, "expected an object, but the text is empty"},
		{`null`, ``, "must be an object, not null"},
		{`[]`, ``, "must be an object, not an array"},
		{`{`, ``, `expected '}' or a name in double quotes, but the text ends here`},
		{`{"text"`, `/text`, `expected ':' after the name, but the text ends here`},
		{`{"text":`, `/text`, "expected a string, but the text ends here"},
		{`{"text":"x"`, ``, "expected ',' or '}' after a member, but the text ends here"},
		{`{"text":"x",}`, ``, "expected a member after the comma, got '}'"},
		{`{"list":["x",]}`, `/list`, "expected an element after the comma, got ']'"},
		{`{"list":["x" "y"]}`, `/list`, `expected ',' or ']' after an element, got '"'`},
		{`{} x`, ``, "expected nothing after the value, got 'x'"},
		{`{}{}`, ``, "expected nothing after the value, got '{'"},
		{`{"text":'x'}`, `/text`, `expected a string, got '\''; JSON strings stand in double quotes`},
		{"{\"text\":\"x\", // why\n}", ``, `expected a name in double quotes, got '/'; JSON has no comments`},
		{"\xEF\xBB\xBF{}", ``, "expected an object, got a byte order mark; leave it out"},
		{`{text:1}`, ``, `expected '}' or a name in double quotes, got 't'`},

		{`{"text":1}`, `/text`, "must be a string, not a number"},
		{`{"text":null}`, `/text`, "must be a string, not null"},
		{`{"flag":"true"}`, `/flag`, "must be true or false, not a string"},
		{`{"flag":tru}`, `/flag`, "expected true, false or null, got 't'"},
		{`{"number":"1"}`, `/number`, "must be a number, not a string"},
		{`{"number":1.0}`, `/number`, "must be a whole number in plain digits, not 1.0"},
		{`{"number":1e2}`, `/number`, "must be a whole number in plain digits, not 1e2"},
		{`{"number":9223372036854775808}`, `/number`, "9223372036854775808 is out of range"},
		{`{"small":256}`, `/small`, "256 is out of range"},
		{`{"small":-1}`, `/small`, "must be a whole number from 0 up, not -1"},
		{`{"ratio":1e999}`, `/ratio`, "1e999 is out of range"},
		{`{"any":1e999}`, `/any`, "1e999 is out of range"},
		{`{"number":01}`, `/number`, "a number cannot have a leading zero"},
		{`{"number":-}`, `/number`, "expected a digit, got '}'"},
		{`{"ratio":1.}`, `/ratio`, "expected a digit after the point, got '}'"},
		{`{"ratio":1e}`, `/ratio`, "expected a digit in the exponent, got '}'"},
		{`{"ratio":+1}`, `/ratio`, "expected a number, got '+'"},
		{`{"list":{}}`, `/list`, "must be an array, not an object"},
		{`{"list":["a",1]}`, `/list/1`, "must be a string, not a number"},
		{`{"map":[]}`, `/map`, "must be an object, not an array"},
		{`{"map":{"a":1,"b":"2"}}`, `/map/b`, "must be a number, not a string"},
		{`{"bytes":"A"}`, `/bytes`, "must be base64 (RFC 4648, with padding)"},
		{`{"many":[{},{"name":1}]}`, `/many/1/name`, "must be a string, not a number"},
		{`{"when":"yesterday"}`, `/when`, `parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`},

		{`{"txt":"x"}`, `/txt`, `is not a known name; did you mean "text"?`},
		{`{"Text":"x"}`, `/Text`, `is not a known name; did you mean "text"?`},
		{`{"numbre":1}`, `/numbre`, `is not a known name; did you mean "number"?`},
		{`{"inner":{"lits":[]}}`, `/inner/lits`, `is not a known name; did you mean "list"?`},
		{`{"many":[{"frobnicate":1}]}`, `/many/0/frobnicate`, `is not a known name; valid: name`},
		{`{"Skipped":1}`, `/Skipped`, `is not a known name; valid: text, flag, number, small, ratio, list, bytes, map, inner, many, raw, any, when, limits, named, NoTag, below`},
		{`{"inner":{"a/b~c":1}}`, `/inner/a~1b~0c`, `is not a known name; valid: text, flag, number, small, ratio, list, bytes, map, inner, many, raw, any, when, limits, named, NoTag, below`},

		{`{"text":"a","flag":true,"text":"b"}`, `/text`, "is a duplicate name"},
		{`{"text":"a","t\u0065xt":"b"}`, `/text`, "is a duplicate name"},
		{`{"map":{"a":1,"b":2,"a":3}}`, `/map/a`, "is a duplicate name"},
		{`{"raw":{"x":{"a":1,"a":1}}}`, `/raw/x/a`, "is a duplicate name"},
		{`{"any":[{"a":1,"a":1}]}`, `/any/0/a`, "is a duplicate name"},
		{`{"map":{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"2":1}}`, `/map/2`, "is a duplicate name"},
		{`{"map":{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"10":1}}`, `/map/10`, "is a duplicate name"},

		{"{\"text\":\"a\xFFb\"}", `/text`, "byte 0xFF is not UTF-8"},
		{"{\"text\":\"\\n\xC3\"}", `/text`, "byte 0xC3 is not UTF-8"},
		{"{\"t\xFFxt\":1}", ``, "byte 0xFF is not UTF-8"},
		{"{\"raw\":\"\xED\xA0\x80\"}", `/raw`, "byte 0xED is not UTF-8"},
		{"{\xFF}", ``, "byte 0xFF is not UTF-8"},
		{`{"text":"\ud800"}`, `/text`, "lone half of a surrogate pair"},
		{`{"text":"\ude00\ud83d"}`, `/text`, "lone half of a surrogate pair"},
		{`{"text":"\u12g4"}`, `/text`, `expected four hexadecimal digits after \u`},
		{`{"text":"\x41"}`, `/text`, `unknown escape \x; valid: \" \\ \/ \b \f \n \r \t \u`},
		{"{\"text\":\"a\tb\"}", `/text`, "holds a raw control character 0x09; escape it"},
		{`{"text":"abc`, `/text`, "expected '\"' at the end of a string, but the text ends here"},
		{`{"text":"abc\`, `/text`, "expected '\"' at the end of a string, but the text ends here"},
		{`{"any":` + deep + `}`, `/any` + strings.Repeat("/0", 63), "nests deeper than 64"},
		{`{"any":` + strings.Repeat(`{"a":`, 64) + `1` + strings.Repeat(`}`, 65), `/any` + strings.Repeat("/a", 63), "nests deeper than 64"},
		{`{"raw":` + deep + `}`, `/raw` + strings.Repeat("/0", 63), "nests deeper than 64"},
	} {
		var v sample
		err := strictjson.Unmarshal([]byte(test.in), &v)
		var f *strictjson.Fault
		if !errors.As(err, &f) {
			t.Errorf("%s: %v, want a fault", test.in, err)
			continue
		}
		if f.Pointer != test.pointer || f.Reason != test.reason {
			t.Errorf("%s:\n got %q: %s\nwant %q: %s", test.in, f.Pointer, f.Reason, test.pointer, test.reason)
		}
	}
}

func TestUnmarshalAtTheDepthLimit(t *testing.T) {
	var v any
	if err := strictjson.Unmarshal([]byte(strings.Repeat(`[`, 64)+strings.Repeat(`]`, 64)), &v); err != nil {
		t.Error(err)
	}
}

func TestFaultSaysWhere(t *testing.T) {
	in := "{\n  \"text\": \"é\", \"flag\": 1\n}"
	var f *strictjson.Fault
	if !errors.As(strictjson.Unmarshal([]byte(in), new(sample)), &f) {
		t.Fatal("no fault")
	}
	if want := strings.Index(in, "1"); f.Offset != want || f.Line != 2 || f.Column != 24 {
		t.Errorf("offset %d, line %d, column %d; want %d, 2, 24", f.Offset, f.Line, f.Column, want)
	}
	if got, want := f.Error(), "line 2, column 24: /flag: must be true or false, not a number"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.As(strictjson.Unmarshal([]byte("{\n\"text\":\"\",\n\"flagg\":true}"), new(sample)), &f) {
		t.Fatal("no fault")
	}
	if f.Line != 3 || f.Column != 1 {
		t.Errorf("an unknown field is shown at line %d, column %d, not at its name", f.Line, f.Column)
	}
}

// strictInner reads its own members, as a type with rules of its own does.
type strictInner struct{ inner inner }

func (s *strictInner) UnmarshalJSON(text []byte) error { return strictjson.Unmarshal(text, &s.inner) }

func TestFaultWithinAnUnmarshaler(t *testing.T) {
	in := "{\"a\":[ {\"name\":\"\"},\n{\"name\":1}]}"
	var v struct {
		A []strictInner `json:"a"`
	}
	var f *strictjson.Fault
	if !errors.As(strictjson.Unmarshal([]byte(in), &v), &f) {
		t.Fatal("no fault")
	}
	if f.Pointer != "/a/1/name" || f.Line != 2 || f.Column != 9 {
		t.Errorf("got %v", f)
	}
}

func TestUnmarshalPanicsOnWhatCannotBeRead(t *testing.T) {
	for _, v := range []any{nil, sample{}, (*sample)(nil), new(chan int), new(map[int]int), new(fmt.Stringer)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("reading into %T did not panic", v)
				}
			}()
			strictjson.Unmarshal([]byte(`{}`), v)
		}()
	}
}

// FuzzUnmarshal holds Unmarshal against encoding/json: what it accepts,
// encoding/json accepts, with the same value.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, `null`, `0`, `-0.0e+1`, `"\ud83d\ude00"`, `{"a":{"b":[1,2,{"c":null}]}}`,
		`{"text":"x","list":["a"],"number":1,"raw":[1, 2],"many":[{"name":"n"}],"bytes":"AQI=","when":"2026-01-02T03:04:05Z"}`,
		`{"text":"x","text":"y"}`, `{"a":1}x`, `"\u0000"`, "\"\xff\"", `{"below":"b","NoTag":""}`, `{"map":null,"list":null,"inner":null,"any":null,"raw":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, typ := range []reflect.Type{
			reflect.TypeFor[any](), reflect.TypeFor[sample](), reflect.TypeFor[[]sample](), reflect.TypeFor[map[string]any](),
			reflect.TypeFor[string](), reflect.TypeFor[int16](), reflect.TypeFor[float32](), reflect.TypeFor[json.RawMessage](),
		} {
			got, want := reflect.New(typ), reflect.New(typ)
			err := strictjson.Unmarshal(in, got.Interface())
			var fault *strictjson.Fault
			if err != nil {
				if !errors.As(err, &fault) || fault.Reason == "" || fault.Line < 1 || fault.Column < 1 || fault.Offset > len(in) {
					t.Fatalf("%q into %s: %#v", in, typ, err)
				}
				continue
			}
			if err := json.Unmarshal(in, want.Interface()); err != nil {
				t.Fatalf("%q into %s was accepted; encoding/json: %v", in, typ, err)
			}
			if !reflect.DeepEqual(got.Interface(), want.Interface()) {
				t.Fatalf("%q into %s: %v, want %v", in, typ, got.Elem(), want.Elem())
			}
		}
	})
}
