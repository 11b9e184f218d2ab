// Package rust holds the Rust SDK for guests, the crate toold, for those who
// hand it out.
package rust

import "embed"

// SDK is the sources of the crate; its Cargo.toml is that of a workspace.
//
//go:embed Cargo.toml src
var SDK embed.FS
