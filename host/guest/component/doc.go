// Package component reads WebAssembly components and reduces them to their main module.
//
// Nearly all components are one core module and glue that compilers generate around it:
// a shim, whose table breaks a cycle, a fixup that fills that table, an adapter from
// WASI preview 1, and nested components that only rename. Read follows the glue and
// returns the rest, a Program: the main module, and for each of its imports and exports
// the component's function behind it, with its type. This runs no code and needs no
// component engine.
//
// Glue is recognized by what it does, never by its name: a shim is a module that only
// calls through its table. The adapter is the one exception. It is assumed to do what
// the names of its exports imply, and the caller gives the main module its own WASI
// preview 1 instead. A component with another adapter behaves differently here, but
// reaches nothing more.
//
// Files are read strictly and within limits: a type can only refer to earlier types, so
// there are no cycles; a definition evaluated twice counts twice. A well-formed
// component that cannot be reduced is refused with the feature that prevents it. Read
// does not validate components completely: core modules are validated by whoever runs
// them, and a nested component gets what it is given, not what it declares to need.
//
// The engine uses it, and so do commands that inspect components without running them.
package component
