package dashboard_test

import (
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// A daemon without any privilege does not see what a process holds that hides it.
func TestUnprivileged(t *testing.T) {
	hosttest.Unprivileged(t, "^(TestNoToolLooks|TestWhoMayLook)$", nil, nil)
}
