// Package assemblyscript holds the AssemblyScript SDK for guests, for those who
// hand it out.
package assemblyscript

import "embed"

// SDK is the folder assembly.
//
//go:embed assembly
var SDK embed.FS
