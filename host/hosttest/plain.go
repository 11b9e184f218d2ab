package hosttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Under the race detector a daemon's own program would compile modules ten
// times as slowly, and run into the limits of compiling. So there the compile
// process becomes the plain one: this test binary, built without the detector.
// It has to be this one, not toold: the version of wazero that the linker
// records, and test binaries do not all record, is part of what it compiles.

// plainPath returns the path of the plain binary: next to this one, since a compile
// process has no environment that could name another.
func plainPath() (string, error) {
	self, err := os.Executable()
	return self + ".plain", err
}

// packageDir is the folder that this binary tests, as the go command starts
// it: before a test changes to another.
var packageDir, packageDirErr = os.Getwd()

// buildPlain builds the plain binary, once a process.
var buildPlain = sync.OnceValue(func() error {
	path, err := plainPath()
	if err := errors.Join(err, packageDirErr); err != nil {
		return fmt.Errorf("build a compiler without the race detector: %w", err)
	}
	if os.Getenv(guestsVar) != "" {
		return nil // Unprivileged has copied it
	}
	cmd := exec.Command("go", "test", "-c", "-race=false", "-vet=off", "-o", path, ".")
	cmd.Dir = packageDir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build a compiler without the race detector, in %s: %w\n%s", packageDir, err, out)
	}
	return nil
})

// execPlain becomes the plain binary. It only returns when it cannot.
func execPlain() error {
	path, err := plainPath()
	if err == nil {
		err = syscall.Exec(path, os.Args, os.Environ())
	}
	return fmt.Errorf("start the compiler without the race detector: %w; hosttest.Start builds it", err)
}

// removePlain removes what buildPlain made, if it did.
func removePlain() {
	if path, err := plainPath(); raceEnabled && err == nil {
		os.Remove(path)
	}
}
