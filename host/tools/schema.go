package tools

import _ "embed"

//go:embed tool.schema.json
var toolSchema []byte

// Schema is the JSON Schema of tool.json, for editors and other programs. A
// file that it refuses, ParseDefinition refuses too; ParseDefinition knows
// rules beyond it, such as the variables that no caller may set.
func Schema() []byte { return append([]byte(nil), toolSchema...) }
