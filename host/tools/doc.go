// Package tools says what a tool is.
//
// A Definition is a tool.json: ParseDefinition reads it strictly, fills in the defaults
// and reports every fault with its line and column; Schema is the same for editors, and
// docs/tools.md the reference. A Tool is a tool as it was loaded, with its policies and
// what executes it. It is a value that the stages of a call share and never change.
// Explain and CheckUse say in terms of tool.json why a tool cannot run as it is defined.
//
// The package opens no files and starts nothing: host/disk reads what a tool is made of,
// host/catalog makes a Tool of it and decides which one serves.
package tools
