package identity

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

func code(err error) fault.Code {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	r, err := New(dir, Config{AllowUID: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Resolve("", 1000)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.Resolve("", 1001)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID == b.ID || len(a.ID) != 32 {
		t.Errorf("callers 1000 and 1001 are %q and %q", a.ID, b.ID)
	}
	again, err := New(dir, Config{AllowUID: true})
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := again.Resolve("", 1000); c != a {
		t.Errorf("after a restart caller 1000 is %v, was %v", c, a)
	}
	other, err := New(t.TempDir(), Config{AllowUID: true})
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := other.Resolve("", 1000); c.ID == a.ID {
		t.Error("two hosts give one user the same id")
	}
	closed, err := r.With(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() error{
		"overflow uid": func() error { _, err := r.Resolve("", 65534); return err },
		"uid off":      func() error { _, err := closed.Resolve("", 1000); return err },
		"token":        func() error { _, err := r.Resolve("secret-token", 1000); return err },
	} {
		err := try()
		if code(err) != fault.Unauthenticated {
			t.Errorf("%s: %v, want UNAUTHENTICATED", name, err)
		}
		if err != nil && bytes.Contains([]byte(err.Error()), []byte("secret-token")) {
			t.Errorf("%s: the error holds the token: %v", name, err)
		}
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(dir, Config{AllowUID: true}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, keyFile)
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v", fi.Mode())
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".key-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(dir, Config{AllowUID: true}); err == nil {
		t.Error("a key that everybody can read was taken")
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(dir, Config{AllowUID: true}); err == nil {
		t.Error("a key of five bytes was taken")
	}
}

// TestLinkedKey: a host key with a second hard link is refused, except for the
// temporary one of its creation.
func TestLinkedKey(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(dir, Config{AllowUID: true}); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, keyFile)
	if others, _ := filepath.Glob(filepath.Join(dir, ".key-*")); len(others) > 0 {
		t.Errorf("%v is left", others)
	}
	for name, refused := range map[string]bool{"other": true, ".key-123": false} {
		other := filepath.Join(dir, name)
		if err := os.Link(key, other); err != nil {
			t.Fatal(err)
		}
		_, err := New(dir, Config{AllowUID: true})
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "hard links") {
			t.Errorf("%s: %v", name, err)
		}
		os.Remove(other)
	}
	if err := errors.Join(os.Rename(key, filepath.Join(dir, "there")), os.Symlink("there", key)); err != nil {
		t.Fatal(err)
	}
	if _, err := New(dir, Config{AllowUID: true}); err == nil {
		t.Error("a link is followed")
	}
}

// TestKeyIsLost: a host key that is missing, or another one than before, is refused until
// an operator says that it is meant; nobody's ID changes unnoticed.
func TestKeyIsLost(t *testing.T) {
	id := func(dir string) (string, error) {
		r, err := New(dir, Config{AllowUID: true})
		if err != nil {
			return "", err
		}
		c, err := r.Resolve("", 1000)
		return c.ID, err
	}
	dir, other := t.TempDir(), t.TempDir()
	first, err := id(dir)
	if err != nil {
		t.Fatal(err)
	}
	second, err := id(other)
	if err != nil || second == first {
		t.Fatalf("%s after %s: %v", second, first, err)
	}
	key, keyID := filepath.Join(dir, keyFile), filepath.Join(dir, keyIDFile)
	kept, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(filepath.Join(other, keyFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := id(dir); err == nil || !strings.Contains(err.Error(), key+" is missing") || !strings.Contains(err.Error(), "restore it from a backup, or remove "+keyID) {
		t.Errorf("missing: %v", err)
	}
	if _, err := os.Lstat(key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: one was made: %v", err)
	}
	if err := os.WriteFile(key, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := id(dir); err == nil || !strings.Contains(err.Error(), key+" is another one than before") || !strings.Contains(err.Error(), "or remove "+keyID) {
		t.Errorf("another: %v", err)
	}
	if err := os.WriteFile(key, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := id(dir); again != first || err != nil {
		t.Errorf("restored: %s, %v; want %s", again, err, first)
	}
	// The operator means it; and a folder of a version that recorded nothing.
	if err := errors.Join(os.Remove(keyID), os.WriteFile(key, foreign, 0o600)); err != nil {
		t.Fatal(err)
	}
	if again, err := id(dir); again != second || err != nil {
		t.Errorf("replaced on purpose: %s, %v; want %s", again, err, second)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := id(dir); err == nil {
		t.Error("the new key was not recorded")
	}
}
