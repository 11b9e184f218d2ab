package main_test

import (
	"os"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

func TestMain(m *testing.M) { os.Exit(hosttest.MainWaiting(m)) }

// TestScripts runs how the daemon starts, swaps and stops, with real tools.
func TestScripts(t *testing.T) {
	t.Parallel()
	hosttest.Scripts(t, "testdata/script/*.txtar")
}
