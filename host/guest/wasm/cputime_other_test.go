//go:build !linux

package wasm

import "time"

var began = time.Now()

func cpuTime() time.Duration { return time.Since(began) }
