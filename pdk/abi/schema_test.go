package abi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

var update = flag.Bool("update", false, "write schema.json anew")

// types are all that travel. The host says the open ones; guests answer the
// others.
var types = []struct {
	of   any
	open bool
}{
	{abi.Call{}, true}, {abi.Callbacks{}, true}, {abi.Callback{}, false}, {abi.RepoConfig{}, true}, {abi.ConfigEntry{}, true},
	{abi.Describe{}, false}, {abi.Annotations{}, false},
	{abi.Decision{}, false}, {abi.Approval{}, false}, {abi.Result{}, false},
	{abi.Classify{}, true}, {abi.Classification{}, false},
	{abi.Reconcile{}, true}, {abi.ReconcileRan{}, true}, {abi.Reconciliation{}, false},
	{abi.Wire{}, true}, {abi.WireRef{}, true},
	{abi.Discovery{}, true}, {abi.Surface{}, false}, {abi.SurfaceTool{}, false}, {abi.Icon{}, false}, {abi.Safety{}, false},
	// Errors go both ways; strict is what the host is.
	{abi.Error{}, false},
	{abi.ExecRequest{}, false}, {abi.ExecResult{}, true},
	{abi.EmitRequest{}, false}, {abi.EmitResult{}, true}, {abi.RecvResult{}, true},
}

// narrower is what the schema says beyond the Go type.
var narrower = map[string]map[string]any{
	"Call.payload":              {"type": "object"},
	"Call.attempt":              {"minimum": 1},
	"Call.deadline_ms":          {"minimum": 1},
	"Describe.abi":              {"minimum": 1},
	"Discovery.deadline_ms":     {"minimum": 1},
	"Surface.ttl_ms":            {"minimum": 1},
	"SurfaceTool.schema":        {"type": "object"},
	"SurfaceTool.output_schema": {"type": "object"},
	"Describe.schema":           {"type": "object"},
	"Decision.effect":           {"enum": []string{abi.Allow, abi.Deny, abi.Ask}},
	"Decision.timeout_ms":       {"minimum": 1},
	"Approval.ttl_ms":           {"minimum": 1000, "maximum": 604800000},
	"Reconciliation.verdict":    {"enum": []string{abi.VerdictDone, abi.VerdictNotDone, abi.VerdictUnknown}},
	"Wire.on":                   {"enum": []string{abi.WirePush, abi.WireHTTP}},
	"WireRef.force":             {"type": []string{"boolean", "null"}},
	"EmitRequest.stream":        {"enum": []string{"stdout", "stderr", "progress"}},
}

// generate makes the schema of the types from their fields and comments.
func generate(t *testing.T) []byte {
	t.Helper()
	docs := comments(t)
	defs := map[string]any{}
	for _, x := range types {
		typ := reflect.TypeOf(x.of)
		properties, required := map[string]any{}, []string{}
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag := strings.Split(f.Tag.Get("json"), ",")
			p := typeSchema(t, f.Type)
			if strings.HasSuffix(tag[0], "_base64") {
				p["contentEncoding"] = "base64"
			}
			if d := docs[typ.Name()+"."+f.Name]; d != "" {
				p["description"] = d
			}
			maps.Copy(p, narrower[typ.Name()+"."+tag[0]])
			properties[tag[0]] = p
			if len(tag) == 1 {
				required = append(required, tag[0])
			}
		}
		def := map[string]any{"type": "object", "description": docs[typ.Name()], "properties": properties}
		if len(required) > 0 {
			def["required"] = required
		}
		if !x.open {
			def["additionalProperties"] = false
		}
		defs[typ.Name()] = def
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"$id":         "urn:toold:guest-interface:1",
		"title":       "toold guest interface, version 1",
		"description": "What guests are asked and answer, each type under $defs. Unknown fields of what a guest answers are refused; a guest ignores those of what it is asked.",
		"$defs":       defs,
	}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func typeSchema(t *testing.T, typ reflect.Type) map[string]any {
	t.Helper()
	if typ == reflect.TypeFor[json.RawMessage]() {
		return map[string]any{}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return typeSchema(t, typ.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": typeSchema(t, typ.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": typeSchema(t, typ.Elem())}
	case reflect.Struct:
		return map[string]any{"$ref": "#/$defs/" + typ.Name()}
	}
	t.Fatalf("no schema for %s", typ)
	return nil
}

// comments are those of the package's types and fields, by name.
func comments(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "abi.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	text := func(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
	docs := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			spec := s.(*ast.TypeSpec)
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			docs[spec.Name.Name] = text(g.Doc)
			for _, field := range st.Fields.List {
				for _, n := range field.Names {
					docs[spec.Name.Name+"."+n.Name] = text(field.Doc)
				}
			}
		}
	}
	return docs
}

// TestSchema: schema.json says what the types say, all of them.
func TestSchema(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile("schema.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(abi.Schema(), want) {
		t.Error("schema.json does not match abi.go; run: go test ./pdk/abi -run Schema -update")
	}
	for name := range comments(t) {
		if !strings.Contains(name, ".") && !bytes.Contains(want, []byte(`"`+name+`": {`)) {
			t.Errorf("%s has no schema: add it to types", name)
		}
	}
}

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(abi.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("abi.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("abi.json#/$defs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaAndReaderAgree: what the schema admits of a guest's answer the
// host's reader admits, and what it refuses the reader refuses, but for the
// values of enumerations and bounds, which are checked later.
func TestSchemaAndReaderAgree(t *testing.T) {
	for _, tt := range []struct {
		name string
		into any
		text string
		ok   bool
	}{
		{"Decision", &abi.Decision{}, `{"effect":"allow"}`, true},
		{"Decision", &abi.Decision{}, `{"effect":"deny","rule":"r","reason":"s","instead":"i"}`, true},
		{"Decision", &abi.Decision{}, `{"effect":"allow","args":[],"env":{},"stdin_base64":"","mutating":false,"timeout_ms":1,"stdin":true,"shell":true,"shell_lines":["a b"]}`, true},
		{"Decision", &abi.Decision{}, `{"effect":"allow","args":"x"}`, false},
		{"Decision", &abi.Decision{}, `{"effect":"allow","args":[1]}`, false},
		{"Decision", &abi.Decision{}, `{"effect":"allow","argv":[]}`, false},
		{"Decision", &abi.Decision{}, `{"Effect":"allow"}`, false},
		{"Decision", &abi.Decision{}, `{"effect":"allow","mutating":"yes"}`, false},
		{"Decision", &abi.Decision{}, `{"effect":"allow","timeout_ms":1.5}`, false},
		{"Decision", &abi.Decision{}, `[]`, false},
		{"Result", &abi.Result{}, `{"exit_code":0}`, true},
		{"Result", &abi.Result{}, `{"exit_code":1,"stdout":"a","stderr_base64":"AA==","data":[1],"error":{"message":"m","retriable":true},"gone":true}`, true},
		{"Result", &abi.Result{}, `{"exit_code":"1"}`, false},
		{"Result", &abi.Result{}, `{"exit_code":0,"error":"m"}`, false},
		{"Result", &abi.Result{}, `{"exit_code":0,"error":{"message":"m","kind":"x"}}`, false},
		{"Describe", &abi.Describe{}, `{"abi":1,"wants":["repo_config"],"annotations":{"read_only":true}}`, true},
		{"Describe", &abi.Describe{}, `{"abi":1,"annotations":{"readOnly":true}}`, false},
		{"Describe", &abi.Describe{}, `{"abi":"1"}`, false},
		{"EmitRequest", &abi.EmitRequest{}, `{"stream":"stdout","data_base64":"AA=="}`, true},
		{"EmitRequest", &abi.EmitRequest{}, `{"stream":"stdout","data":"AA=="}`, false},
		{"ExecRequest", &abi.ExecRequest{}, `{"path":"/x","args":["a"],"env":{"A":"b"}}`, true},
		{"ExecRequest", &abi.ExecRequest{}, `{"path":"/x","env":{"A":1}}`, false},
	} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.text))
		if err != nil {
			t.Fatal(err)
		}
		if err := compile(t, tt.name).Validate(doc); (err == nil) != tt.ok {
			t.Errorf("schema of %s on %s: %v", tt.name, tt.text, err)
		}
		if err := strictjson.Unmarshal([]byte(tt.text), tt.into); (err == nil) != tt.ok {
			t.Errorf("reader of %s on %s: %v", tt.name, tt.text, err)
		}
	}
}

// TestVectorsFitTheSchema: what the conformance suite sends and expects is
// what the schema describes.
func TestVectorsFitTheSchema(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	// What each export is asked (describe: anything) and answers.
	asked, answers := map[string]*jsonschema.Schema{}, map[string]*jsonschema.Schema{}
	for export, types := range map[string][2]string{
		"describe": {"", "Describe"}, "restrict": {"Call", "Decision"}, "handle": {"Call", "Result"},
		"discover": {"Discovery", "Surface"}, "classify": {"Classify", "Classification"},
		"reconcile": {"Reconcile", "Reconciliation"}, "wire": {"Wire", "Decision"},
	} {
		if types[0] != "" {
			asked[export] = compile(t, types[0])
		}
		answers[export] = compile(t, types[1])
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []struct {
			Name, Export string
			In, Out      json.RawMessage
		}
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			check := func(s *jsonschema.Schema, part string, text json.RawMessage) {
				if text == nil {
					return
				}
				doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Validate(doc); err != nil {
					t.Errorf("%s: %s: %s: %v", file, v.Name, part, err)
				}
			}
			// "null args" is what a sloppy host could say, and none that does
			// is described.
			if s := asked[v.Export]; s != nil && v.Name != "null args" {
				check(s, "in", v.In)
			}
			check(answers[v.Export], "out", v.Out)
		}
	}
}
