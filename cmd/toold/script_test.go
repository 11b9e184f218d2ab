package main_test

import (
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// TestScripts runs how the daemon starts, swaps and stops, with real tools.
func TestScripts(t *testing.T) { hosttest.Scripts(t, "testdata/script/*.txtar") }
