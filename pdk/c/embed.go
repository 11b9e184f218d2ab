// Package c holds the C SDK for guests, toold.h, for those who hand it out.
package c

import "embed"

// SDK is the header, and nothing else.
//
//go:embed toold.h
var SDK embed.FS
