// Package wire is toold's protocol: what goes over the tool socket, byte for
// byte, and the types that both ends read it into.
//
// It imports the standard library only and starts nothing, so that a wrapper
// that links it starts in about a millisecond.
package wire
