//go:build linux

package main_test

import (
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/toold/toold/host/hosttest"
)

// TestDoctorInContainer mounts a socket as a container has it.
func TestDoctorInContainer(t *testing.T) {
	if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("namespaces cannot be made here: %v, %s", err, out)
	}
	hosttest.Params(t, testscript.Params{Dir: "testdata/mount"})
}
