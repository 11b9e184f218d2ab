package main_test

import (
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// TestScripts runs what a shell does with a wrapper against a real daemon and
// the real tools.
func TestScripts(t *testing.T) { hosttest.Scripts(t, "testdata/script/*.txtar") }
