// Package compat runs modules that others compiled, as they are, through a
// whole daemon, beside other engines: Extism plugins beside go-sdk, WASI
// commands beside wasmtime. What runs, and what is refused and why, is the
// table in docs/compatibility.md, which its tests write and compare.
//
// The modules are fetched by scripts/corpus, with the origin and hash of each
// in testdata/corpus.txt. Without them the tests are skipped.
package compat
