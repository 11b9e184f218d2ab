// Package component reads WebAssembly components and takes them apart.
//
// Nearly all components are one core module and glue that compilers generate
// around it: a shim, whose table breaks a cycle, what fills that table, an
// adapter from WASI preview 1, and nested components that only rename. Read
// follows the glue and answers what is left, a Program: the main module, and for
// each of its imports and exports which function of the component it is, with its
// type. Nothing is run for that, and no engine for components is needed.
//
// What is left out is left out by what it does, never by its name: a shim is a
// module that only calls through its table. An adapter is the one exception. It
// counts as what its exports' names say, and whoever runs the program gives the
// main module its own WASI preview 1 instead. A component with another adapter
// behaves differently here, and reaches nothing more.
//
// Files are read strictly and within bounds: a type can only be made of older
// ones, so there are no cycles; what is evaluated twice counts twice. What is
// well-formed and cannot be taken apart is refused with what it has. Read does
// not validate all that a component must fulfil: core modules are checked by
// whoever runs them, and a nested component gets what it is given, not what it
// says that it needs.
//
// The engine calls it, and those who show components without running them.
package component
