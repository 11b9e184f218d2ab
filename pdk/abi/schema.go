//go:build !wasip1

package abi

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema is the JSON Schema of this package's types, each under $defs by its
// name. What a guest returns is closed: the host refuses fields that are not
// in it. What the host sends is open: a guest ignores unknown fields, since later
// versions may add some. Guests do not link it.
func Schema() []byte { return append([]byte(nil), schema...) }
