package tools

import _ "embed"

//go:embed tool.schema.json
var toolSchema []byte

// Schema returns the JSON Schema of tool.json, for editors and other programs.
// ParseDefinition refuses every file that the schema refuses, and checks more, such as
// the variables that no caller may set.
func Schema() []byte { return append([]byte(nil), toolSchema...) }
