package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/tools"
)

// schema prints one, and compiles what it prints.
func schema(t *testing.T, name string) (*jsonschema.Schema, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"schema", name}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("code %d: %s", code, errs.String())
	}
	var doc map[string]any
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s, doc
}

func TestSchemas(t *testing.T) {
	tool, doc := schema(t, "tool")
	if err := tool.Validate(map[string]any{"binary": "/usr/bin/git", "timeout": 600}); err != nil {
		t.Errorf("a good tool.json: %v", err)
	}
	if tool.Validate(map[string]any{"binray": "/usr/bin/git"}) == nil {
		t.Error("an unknown field of tool.json is let through")
	}
	// What the definition knows, the schema knows.
	properties := doc["properties"].(map[string]any)
	for f := range reflect.TypeFor[tools.Definition]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && properties[name] == nil {
			t.Errorf("the schema of tool.json does not have %q", name)
		}
	}

	config, _ := schema(t, "config")
	if err := config.Validate(map[string]any{"tools": "tools.d"}); err != nil {
		t.Errorf("a good toold.json: %v", err)
	}

	_, doc = schema(t, "abi")
	for _, name := range []string{"Call", "Decision", "Result", "Describe", "Error", "RepoConfig"} {
		if doc["$defs"].(map[string]any)[name] == nil {
			t.Errorf("the schema of the guest interface does not define %s", name)
		}
	}
}

func TestSchemaOfNothing(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"schema", "nosuch"}, strings.NewReader(""), &out, &errs); code != 64 {
		t.Errorf("code %d: %s", code, errs.String())
	}
}
