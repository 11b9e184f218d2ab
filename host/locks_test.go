package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// names are those in a folder that match.
func names(t testing.TB, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// another starts a daemon, which must not serve, and returns why not.
func another(t *testing.T, c config.Config) error {
	t.Helper()
	if err := c.Complete(func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	h, err := host.New(t.Context(), c, &log)
	if err != nil {
		return err
	}
	served := errors.New("it serves")
	return errors.Join(h.Serve(t.Context(), func() error { return served }), h.Close())
}

// The locks of a daemon are in its state folder: containers have the folder of the
// socket, and who can open a lock can hold it. They go when it stops.
func TestLocksAreInTheStateFolder(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	if got := names(t, filepath.Join(filepath.Dir(d.Socket), "*.lock")); len(got) > 0 {
		t.Errorf("beside the socket: %q", got)
	}
	if got := names(t, filepath.Join(d.Config.State, "socket-*.lock")); len(got) != 2 {
		t.Errorf("in the state folder: %q", got)
	}
	d.Stop(t)
	if got := names(t, filepath.Join(d.Config.State, "socket-*.lock")); len(got) > 0 {
		t.Errorf("left in the state folder: %q", got)
	}
}

// A state folder has one daemon: its journals, records and secrets are nobody else's.
func TestAStateFolderHasOneDaemon(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	c := d.Config
	dir, err := os.MkdirTemp("", "toold")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c.Socket, c.Admin = filepath.Join(dir, "tool.sock"), filepath.Join(dir, "admin.sock")
	if err := another(t, c); err == nil || !strings.Contains(err.Error(), "in use by another toold") {
		t.Errorf("a second daemon of the state folder: %v", err)
	}
	if a := ask(t, d.Socket, M{"tool": "tools.list"}); a.Status != "success" {
		t.Errorf("the first one: %s", a.raw)
	}
}

// A socket has one daemon, also where the second has a state folder of its own; what
// that made is removed.
func TestASocketHasOneDaemon(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	c := d.Config
	c.State, c.Admin = t.TempDir(), ""
	if err := another(t, c); err == nil || !strings.Contains(err.Error(), "another daemon serves this socket") {
		t.Errorf("a second daemon of the socket: %v", err)
	}
	if got := names(t, filepath.Join(c.State, "socket-*.lock")); len(got) > 0 {
		t.Errorf("left in the state folder: %q", got)
	}
	if a := ask(t, d.Socket, M{"tool": "tools.list"}); a.Status != "success" {
		t.Errorf("the first one: %s", a.raw)
	}
}
