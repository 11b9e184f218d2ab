package main_test

import (
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// TestScripts runs each verb against a real daemon.
func TestScripts(t *testing.T) {
	t.Parallel()
	hosttest.Scripts(t, "testdata/script/*.txtar")
}
