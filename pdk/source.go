//go:build !wasip1

package pdk

import "embed"

// Source is this package, abi and argv as they are, for those who hand them
// out. Guests do not link it.
//
//go:embed *.go abi/*.go abi/schema.json argv/*.go
var Source embed.FS
