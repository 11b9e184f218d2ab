package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

func schemaVerb(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "schema [tool|config|abi]",
		Short: "Print the JSON Schema of tool.json, toold.json or the guest interface",
		Long: `Print a JSON Schema: of tool.json (tool, the default), of toold.json (config) or
of what guests are asked and answer (abi). Point an editor at it:

  toolctl schema tool > ~/.cache/tool.schema.json`,
		Args:      args(cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: []string{"tool", "config", "abi"},
		RunE: func(_ *cobra.Command, names []string) error {
			var text []byte
			switch first(append(names, "tool")...) {
			case "tool":
				text = tools.Schema()
			case "config":
				text = host.ConfigSchema
			case "abi":
				return s.printJSON(abiSchema())
			}
			_, err := fmt.Fprintf(s.out, "%s\n", strings.TrimSpace(string(text)))
			return err
		},
	}
}

// abiSchema is made from the types of package abi, so that it cannot say
// anything else.
func abiSchema() map[string]any {
	defs := map[string]any{}
	for _, t := range []reflect.Type{
		reflect.TypeFor[abi.Call](), reflect.TypeFor[abi.Decision](), reflect.TypeFor[abi.Result](),
		reflect.TypeFor[abi.Describe](), reflect.TypeFor[abi.ExecRequest](), reflect.TypeFor[abi.ExecResult](),
	} {
		typeSchema(t, defs)
	}
	return map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"title":       "toold guest interface",
		"description": fmt.Sprintf("What guests are asked and answer, version %d. Each definition is one message.", abi.Version),
		"$defs":       defs,
	}
}

// typeSchema is the schema of one type; structs become definitions of defs.
func typeSchema(t reflect.Type, defs map[string]any) map[string]any {
	switch t {
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(t.Elem(), defs)
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": typeSchema(t.Elem(), defs)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": typeSchema(t.Elem(), defs)}
	case reflect.Struct:
		if defs[t.Name()] == nil {
			properties, required := map[string]any{}, []string{}
			defs[t.Name()] = map[string]any{} // in case it contains itself
			for f := range t.Fields() {
				name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
				properties[name] = typeSchema(f.Type, defs)
				if !strings.Contains(options, "omit") {
					required = append(required, name)
				}
			}
			def := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
			if len(required) > 0 {
				def["required"] = required
			}
			defs[t.Name()] = def
		}
		return map[string]any{"$ref": "#/$defs/" + t.Name()}
	}
	panic("no schema for " + t.String())
}
