package config

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// key is one setting of toold.json.
type key struct {
	name, kind, fallback, text string
}

// reference is every setting of the schema, in the order of the schema.
func reference(t *testing.T) []key {
	t.Helper()
	var keys []key
	var walk func(prefix string, schema json.RawMessage)
	walk = func(prefix string, schema json.RawMessage) {
		var s struct {
			Type, Description, Pattern string
			Enum                       []string
			Default                    json.RawMessage
			Minimum, Maximum           *json.Number
			Properties, Items          json.RawMessage
		}
		if err := json.Unmarshal(schema, &s); err != nil {
			t.Fatal(err)
		}
		if s.Properties != nil {
			for _, m := range members(t, s.Properties) {
				walk(strings.TrimPrefix(prefix+"."+m.name, "."), m.value)
			}
			return
		}
		if s.Items != nil && strings.Contains(string(s.Items), `"properties"`) {
			walk(prefix+"[]", s.Items)
			return
		}
		k := key{name: prefix, kind: s.Type, fallback: string(s.Default), text: s.Description}
		switch {
		case s.Enum != nil:
			k.kind = "one of " + strings.Join(s.Enum, ", ")
		case s.Items != nil:
			k.kind = "a list of texts"
		case s.Type == "string":
			k.kind = "text"
		case s.Type == "boolean":
			k.kind = "true or false"
		case s.Type == "integer":
			k.kind = "a number"
			if s.Minimum != nil && *s.Minimum != "0" {
				k.kind += " from " + s.Minimum.String()
			}
			if s.Maximum != nil {
				k.kind += " to " + s.Maximum.String()
			}
		}
		keys = append(keys, k)
	}
	walk("", Schema)
	return keys
}

type member struct {
	name  string
	value json.RawMessage
}

// members are those of an object, in order.
func members(t *testing.T, object []byte) (list []member) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(object)))
	d.Token()
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		m := member{name: name.(string)}
		if err := d.Decode(&m.value); err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

func reversed(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// variable is the environment variable and flag of a setting that has one.
var variables = regexp.MustCompile(`\{"([A-Z_]+)", &c\.(\w+)\}`)

// TestReference compares docs/configuration.md with the schema. TOOLD_UPDATE_DOCS=1
// writes it anew.
func TestReference(t *testing.T) {
	const doc = "../../docs/configuration.md"
	const begin, end = "<!-- of the schema: TOOLD_UPDATE_DOCS=1 go test -run TestReference ./host/config -->\n", "<!-- end -->\n"
	source, err := os.ReadFile("load.go")
	if err != nil {
		t.Fatal(err)
	}
	variable := map[string]string{"roots": "TOOLD_ROOTS"}
	for _, m := range variables.FindAllSubmatch(source, -1) {
		field, ok := reflect.TypeFor[Config]().FieldByName(string(m[2]))
		if !ok {
			t.Fatalf("%s has no setting", m[1])
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		variable[name] = string(m[1])
	}
	var b strings.Builder
	b.WriteString(begin)
	b.WriteString("| key | what | values | default |\n| --- | --- | --- | --- |\n")
	cell := func(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
	for _, k := range reference(t) {
		if k.text == "" {
			t.Errorf("%s has no description in the schema", k.name)
		}
		name := "`" + k.name + "`"
		if v := variable[k.name]; v != "" {
			name += "<br>`" + v + "`"
		}
		fallback := ""
		if k.fallback != "" {
			fallback = "`" + k.fallback + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, cell(k.text), cell(k.kind), fallback)
	}
	b.WriteString(end)
	text, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	from, to := strings.Index(string(text), begin), strings.Index(string(text), end)
	if from < 0 || to < 0 {
		t.Fatalf("%s has no place for the reference", doc)
	}
	want := string(text[:from]) + b.String() + string(text[to+len(end):])
	if want == string(text) {
		return
	}
	if os.Getenv("TOOLD_UPDATE_DOCS") == "" {
		t.Fatalf("%s is not what the schema says; TOOLD_UPDATE_DOCS=1 writes it", doc)
	}
	if err := os.WriteFile(doc, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
