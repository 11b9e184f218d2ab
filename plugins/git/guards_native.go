//go:build !wasip1

package main

// guards are the checks that are left out, so that tests of the native build see for
// each of them that the others, and the confinement, hold. The module has no such
// switch: guards_wasip1.go.
type guards map[check]bool

func (g guards) off(c check) bool { return g[c] }
