package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/fault"
)

func readArchive(t testing.TB, file string) map[string][]byte {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range a.Files {
		if _, double := out[f.Name]; double {
			t.Fatalf("%s holds %s twice", file, f.Name)
		}
		out[f.Name] = f.Data
	}
	return out
}

func compiledToolSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("tool.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("tool.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bySchema is what the published schema says of a document.
func bySchema(s *jsonschema.Schema, data []byte) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return s.Validate(doc)
}

func TestGoodDefinitions(t *testing.T) {
	schema := compiledToolSchema(t)
	files := readArchive(t, "testdata/good.txtar")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseDefinition(name, files[name]); err != nil {
				t.Errorf("parser: %v", err)
			}
			if err := bySchema(schema, files[name]); err != nil {
				t.Errorf("schema: %v", err)
			}
		})
	}
}

func TestBadDefinitions(t *testing.T) {
	schema := compiledToolSchema(t)
	files := readArchive(t, "testdata/bad.txtar")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		base, ok := strings.CutSuffix(name, ".json")
		if !ok {
			continue
		}
		t.Run(base, func(t *testing.T) {
			want, ok := files[base+".want"]
			if !ok {
				t.Fatal("the archive says no error for it")
			}
			text, beyond := strings.CutPrefix(string(want), "parser only\n")
			text = strings.TrimSpace(text)
			_, err := ParseDefinition(name, files[name])
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("got %v, want faults", err)
			}
			if msg := err.Error(); !strings.HasPrefix(msg, name+":") || !strings.Contains(msg, text) {
				t.Errorf("got  %s\nwant %s… with %s", msg, name, text)
			}
			if faults[0].Line < 1 || faults[0].Column < 1 {
				t.Errorf("%v has no position", faults[0])
			}
			if refused := bySchema(schema, files[name]) != nil; refused == beyond {
				t.Errorf("the schema refuses it: %v, the archive says: %v", refused, !beyond)
			}
		})
	}
}

// TestReadyDefinitions reads the definitions that this repository ships.
func TestReadyDefinitions(t *testing.T) {
	schema := compiledToolSchema(t)
	files, err := filepath.Glob("../../tools.d/*/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			d, err := ParseDefinition(file, data)
			if err != nil {
				t.Fatalf("parser: %v", err)
			}
			if err := bySchema(schema, data); err != nil {
				t.Errorf("schema: %v", err)
			}
			if d.Description == "" {
				t.Error("it has no description")
			}
		})
	}
}

// TestSchemaMatchesStruct holds the published schema against the Go types:
// same names at every level, and the defaults that the parser fills in.
func TestSchemaMatchesStruct(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal(Schema(), &doc); err != nil {
		t.Fatal(err)
	}
	defs := doc["$defs"].(map[string]any)
	var walk func(at string, typ reflect.Type, value reflect.Value, schema map[string]any)
	walk = func(at string, typ reflect.Type, value reflect.Value, schema map[string]any) {
		if ref, ok := schema["$ref"].(string); ok {
			for k, v := range defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any) {
				if _, own := schema[k]; !own {
					schema[k] = v
				}
			}
		}
		if typ.Kind() == reflect.Pointer {
			typ, value = typ.Elem(), reflect.Value{}
		}
		if d, ok := schema["default"]; ok && value.IsValid() {
			b, err := json.Marshal(value.Interface())
			if err != nil {
				t.Fatal(err)
			}
			w, _ := json.Marshal(d)
			if string(b) != string(w) && !(value.IsZero() && (string(w) == "0" || string(w) == "false")) {
				t.Errorf("%s: the schema's default is %s, the parser's %s", at, w, b)
			}
		}
		switch typ.Kind() {
		case reflect.Struct:
			properties, _ := schema["properties"].(map[string]any)
			if schema["additionalProperties"] != false {
				t.Errorf("%s: the schema admits unknown properties", at)
			}
			seen := map[string]bool{}
			for i := range typ.NumField() {
				f := typ.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				seen[name] = true
				p, ok := properties[name].(map[string]any)
				if !ok {
					t.Errorf("%s/%s is in the type and not in the schema", at, name)
					continue
				}
				if name != "$schema" && p["description"] == nil && strings.Count(at, "/") < 1 {
					t.Errorf("%s/%s has no description", at, name)
				}
				var v reflect.Value
				if value.IsValid() {
					v = value.Field(i)
				}
				walk(at+"/"+name, f.Type, v, p)
			}
			for name := range properties {
				if !seen[name] {
					t.Errorf("%s/%s is in the schema and not in the type", at, name)
				}
			}
		case reflect.Map:
			if ap, ok := schema["additionalProperties"].(map[string]any); ok {
				walk(at+"/*", typ.Elem(), reflect.Value{}, ap)
			} else {
				t.Errorf("%s: the schema says nothing of its values", at)
			}
		case reflect.Slice:
			if typ.Elem().Kind() == reflect.Uint8 {
				return // raw JSON
			}
			if items, ok := schema["items"].(map[string]any); ok {
				walk(at+"/[]", typ.Elem(), reflect.Value{}, items)
			} else {
				t.Errorf("%s: the schema says nothing of its items", at)
			}
		}
	}
	d := DefaultDefinition()
	walk("", reflect.TypeOf(*d), reflect.ValueOf(*d), doc)
}

func TestDefaults(t *testing.T) {
	d, err := ParseDefinition("tool.json", []byte(`{"entry": {"export": "x"}, "capabilities": {"http": {"hosts": ["a.example"]}, "files": {"/d": {"path": "/srv"}}}, "limits": {"fuel": 7}}`))
	if err != nil {
		t.Fatal(err)
	}
	if d.Timeout.Duration() != 300*time.Second || !d.Stdin || d.Mutating || d.Idempotent {
		t.Errorf("timeout %v, stdin %v, mutating %v, idempotent %v", d.Timeout, d.Stdin, d.Mutating, d.Idempotent)
	}
	if l := d.Limits; l.Memory != 64<<20 || l.Fuel != 7 || l.Output != 16<<20 || l.Concurrency != 32 || l.Queue != 256 || l.Stream != 0 {
		t.Errorf("limits %+v", l)
	}
	if r := d.Reliability; r.TTL != 86400 || r.FailedTTL != 30 || r.OnDuplicate != "wait" || r.AutoKey != nil || r.Retry != (Retry{3, 500, 5000, RetryBudget{0.1, 10}}) || r.Breaker != (Breaker{Failures: 5, Window: 100, Ratio: 0.5, ResetMS: 30000}) {
		t.Errorf("reliability %+v", r)
	}
	if *d.Entry != (Entry{"x", "call", "result"}) {
		t.Errorf("entry %+v", d.Entry)
	}
	if m := d.Capabilities.HTTP.Methods; !slices.Equal(m, []string{"GET", "HEAD"}) {
		t.Errorf("methods %v", m)
	}
	if m := d.Capabilities.Files["/d"].Mode; m != "ro" {
		t.Errorf("files mode %q", m)
	}
}

func TestDefinitionTooLarge(t *testing.T) {
	_, err := ParseDefinition("tool.json", bytes.Repeat([]byte(" "), MaxDefinition+1))
	if err == nil || !strings.Contains(err.Error(), "more than the") {
		t.Errorf("got %v", err)
	}
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"git", "a", "0", "a-b_c", strings.Repeat("a", 64)} {
		if !ValidName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{"", ".", "..", "...", "Git", "git\n", "a/b", `a\b`, "-a", "_a", "a.b", "é", "a\x00", strings.Repeat("a", 65), "..data", " git", "git "} {
		if ValidName(name) {
			t.Errorf("%q is admitted", name)
		}
	}
}

func TestNeverFromCaller(t *testing.T) {
	for _, name := range []string{
		"LD_PRELOAD", "ld_preload", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "GLIBC_TUNABLES", "GCONV_PATH", "PATH", "HOME", "IFS", "ENV",
		"BASH_ENV", "BASH_FUNC_ls", "SHELLOPTS", "PS4", "PYTHONPATH", "PYTHONSTARTUP", "PERL5OPT", "PERL5LIB", "RUBYOPT", "NODE_OPTIONS", "NODE_PATH",
		"npm_config_script_shell", "NPM_CONFIG_USERCONFIG", "JAVA_TOOL_OPTIONS", "EDITOR", "VISUAL", "PAGER", "GH_PAGER", "GH_EDITOR", "GH_BROWSER", "GH_HOST", "GH_TOKEN", "GH_CONFIG_DIR",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_DIR", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_EXTERNAL_DIFF", "GIT_AUTHOR_NAMES", "SSH_AUTH_SOCK", "SSH_ASKPASS", "LESSOPEN",
		"http_proxy", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "CURL_HOME", "SSLKEYLOGFILE", "XDG_CONFIG_HOME", "TMPDIR",
		"KUBECONFIG", "DOCKER_HOST", "TOOL_TOKEN", "TRACEPARENT", "MAKEFLAGS", "OPENSSL_CONF", "GNUPGHOME",
	} {
		if neverFromCaller(name) == "" {
			t.Errorf("%s may be admitted", name)
		}
	}
	for _, name := range []string{"TZ", "LANG", "LC_ALL", "TERM", "COLUMNS", "CI", "DEBUG", "NODE_ENV", "GIT_AUTHOR_NAME", "GIT_COMMITTER_DATE", "MY_PATH", "NO_COLOR", "GIT_LITERAL_PATHSPECS", "GIT_REFLOG_ACTION"} {
		if why := neverFromCaller(name); why != "" {
			t.Errorf("%s is barred: it %s", name, why)
		}
	}
}

// Variables that lead git elsewhere are for a tool alone that never runs without a
// policy.
func TestJudgedVariables(t *testing.T) {
	for policy, admitted := range map[string]bool{`"policy":"required",`: true, `"policy":"none",`: false, ``: false} {
		for _, name := range []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"} {
			_, err := ParseDefinition("tool.json", []byte(`{"binary":"/usr/bin/git","description":"x",`+policy+`"capabilities":{"env":["`+name+`"]}}`))
			if want := admitted && name != "GIT_OBJECT_DIRECTORY"; (err == nil) != want {
				t.Errorf("%s with %s: %v", name, policy, err)
			}
		}
	}
}

func TestPosition(t *testing.T) {
	doc := []byte("{\n  \"a\": [1,\n    {\"ö\": \"é\", \"b/c~d\": 2}],\n  \"e\": {}\n}")
	for _, tt := range []struct {
		pointer      string
		line, column int
		found        bool
	}{
		{"", 1, 1, true}, {"/a", 2, 8, true}, {"/a/0", 2, 9, true}, {"/a/1", 3, 5, true}, {"/a/1/ö", 3, 11, true}, {"/a/1/b~1c~0d", 3, 25, true},
		{"/e", 4, 8, true}, {"/e/x", 4, 8, false}, {"/x", 1, 1, false}, {"/a/7", 2, 8, false}, {"/a/-1", 2, 8, false}, {"/a/0/x", 2, 9, false},
	} {
		line, column := position(doc, tt.pointer)
		if line != tt.line || column != tt.column || has(doc, tt.pointer) != tt.found {
			t.Errorf("%s: got %d:%d, %v, want %d:%d, %v", tt.pointer, line, column, has(doc, tt.pointer), tt.line, tt.column, tt.found)
		}
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[string]Size{`0`: 0, `1024`: 1024, `"64MiB"`: 64 << 20, `"1 GiB"`: 1 << 30, `"3B"`: 3, `"5KiB"`: 5 << 10, `"12"`: 12} {
		var s Size
		if err := json.Unmarshal([]byte(in), &s); err != nil || s != want {
			t.Errorf("%s: got %d, %v", in, s, err)
		}
		b, _ := json.Marshal(s)
		var again Size
		if err := json.Unmarshal(b, &again); err != nil || again != s {
			t.Errorf("%s: written as %s, read as %d, %v", in, b, again, err)
		}
	}
	for _, in := range []string{`-1`, `1.5`, `"64MB"`, `"MiB"`, `"+1B"`, `"1 MiB B"`, `"9223372036854775807KiB"`, `true`, `[]`, `""`, `"-1MiB"`} {
		var s Size
		if err := json.Unmarshal([]byte(in), &s); err == nil {
			t.Errorf("%s: read as %d", in, s)
		}
	}
}

func TestPayloadSchema(t *testing.T) {
	for _, tt := range []struct {
		name, schema, payload string
		ok                    bool
	}{
		{"known", `{"properties": {"a": {"type": "string"}}}`, `{"a": "x"}`, true},
		{"unknown", `{"properties": {"a": {}}}`, `{"a": 1, "b": 2}`, false},
		{"unknown, said to be fine", `{"properties": {"a": {}}, "additionalProperties": true}`, `{"b": 2}`, true},
		{"unknown, deep", `{"properties": {"a": {"properties": {"b": {}}}}}`, `{"a": {"c": 1}}`, false},
		{"unknown, in an item", `{"properties": {"a": {"items": {"properties": {"b": {}}}}}}`, `{"a": [{"c": 1}]}`, false},
		{"known by allOf", `{"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}`, `{"a": 1, "b": 2}`, true},
		{"unknown beside allOf", `{"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}`, `{"c": 2}`, false},
		{"unknown, older draft", `{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {}}}`, `{"b": 1}`, false},
		{"format", `{"properties": {"a": {"format": "date"}}}`, `{"a": "yesterday"}`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := CompileSchema([]byte(tt.schema))
			if err != nil {
				t.Fatal(err)
			}
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.payload))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(doc); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPayloadIsAnObject: a schema that no payload can match is refused, however it says so.
func TestPayloadIsAnObject(t *testing.T) {
	for schema, want := range map[string]string{
		`{}`: "", `{"type": "object"}`: "", `{"type": ["string", "object"]}`: "", `{"$ref": "#"}`: "",
		`{"anyOf": [{"type": "string"}, {"type": "object"}]}`: "",
		`{"type": "string"}`:                                         "admits string and no object",
		`{"type": ["array", "null"]}`:                                "admits null, array and no object",
		`{"allOf": [{"type": "array"}]}`:                             "admits array and no object",
		`{"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}`: "admits integer and no object",
	} {
		_, err := CompilePayload([]byte(schema))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", schema, err, want)
		}
		_, err = ParseDefinition("tool.json", []byte(`{"handler": "a.wasm", "schema": `+schema+`}`))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "/schema "+want)) {
			t.Errorf("%s: got %v, want %q", schema, err, want)
		}
	}
}

// TestSchemaOpensNothing: a reference to a file is refused also where the file
// is a schema.
func TestSchemaOpensNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(file, []byte(`{"type": "object"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := CompileSchema([]byte(`{"$ref": "file://` + file + `"}`)); err == nil || !strings.Contains(err.Error(), "its own parts only") {
		t.Errorf("got %v", err)
	}
}

func TestValidate(t *testing.T) {
	schema, err := CompileSchema([]byte(`{"type": "object", "required": ["q"], "properties": {"q": {"type": "string"}, "in": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	tool := &Tool{Name: "t", Schema: schema}
	for payload, want := range map[string]string{
		`{"q": "x"}`:                            "",
		`{"q": "x", "in": {"n": 5}}`:            "",
		`{"q": 1}`:                              "/q got number, want string",
		`{}`:                                    "missing property 'q'",
		`{"q": "x", "r": 1}`:                    "/r is not a property",
		`{"q": "x", "in": {"n": 6}}`:            "/in/n maximum",
		`{"q": "x", "in": {"m": 6}}`:            "/in/m is not a property",
		`{"q": "x", "in": {"n": 1.5}}`:          "/in/n got number, want integer",
		`[]`:                                    "got array, want object",
		`{"q": "` + strings.Repeat("x", 3) + ``: "read the payload",
	} {
		err := tool.Validate([]byte(payload))
		var e *fault.Error
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", payload, err)
			}
		} else if !errors.As(err, &e) || e.Code != fault.InvalidPayload || !strings.Contains(e.Message, want) || strings.Contains(e.Message, "\n") {
			t.Errorf("%s: got %v, want %s", payload, err, want)
		}
	}
	if err := (&Tool{}).Validate([]byte(`{"a": 1}`)); err != nil {
		t.Errorf("without a schema: %v", err)
	}
}

func FuzzParseDefinition(f *testing.F) {
	for _, file := range []string{"testdata/good.txtar", "testdata/bad.txtar"} {
		for name, data := range readArchive(f, file) {
			if strings.HasSuffix(name, ".json") {
				f.Add(data)
			}
		}
	}
	schema := compiledToolSchema(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := ParseDefinition("tool.json", data)
		if err != nil {
			var faults Faults
			if !errors.As(err, &faults) || len(faults) == 0 {
				t.Fatalf("an error of another type: %v", err)
			}
			if strings.ContainsRune(err.Error(), '\n') {
				t.Fatalf("more than a line: %q", err)
			}
			return
		}
		if err := bySchema(schema, data); err != nil && !os.IsNotExist(err) {
			t.Fatalf("the parser takes what the schema refuses: %v", err)
		}
		// What was read means the same when it is written and read again.
		b, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseDefinition("tool.json", b)
		if err != nil {
			t.Fatalf("written as %s: %v", b, err)
		}
		if fmt.Sprintf("%+v", *again) != fmt.Sprintf("%+v", *d) && !bytes.Contains(data, []byte(`"schema"`)) {
			b2, _ := json.Marshal(again)
			if !bytes.Equal(b, b2) {
				t.Fatalf("written as\n%s\nread as\n%s", b, b2)
			}
		}
	})
}
