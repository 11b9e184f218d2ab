package regular

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestOthersAreRefused: no way of opening waits for, or takes, what is no regular file.
func TestOthersAreRefused(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(socket)
	t.Chdir(dir) // the path of a socket is short
	err = errors.Join(syscall.Mkfifo(path("pipe"), 0o600), os.Mkdir(path("folder"), 0o700), os.Symlink("pipe", path("link")),
		syscall.Bind(socket, &syscall.SockaddrUnix{Name: "socket"}))
	if err != nil {
		t.Fatal(err)
	}
	for place, kind := range map[string]string{path("pipe"): "a named pipe", path("folder"): "a folder", path("link"): "a named pipe", path("socket"): "a socket", os.DevNull: "a device"} {
		for way, open := range map[string]func() (*os.File, error){
			"Open":      func() (*os.File, error) { return Open(place) },
			"to write":  func() (*os.File, error) { return OpenFile(place, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) },
			"to change": func() (*os.File, error) { return OpenFile(place, os.O_RDWR, 0) },
			"ReadFile":  func() (*os.File, error) { _, err := ReadFile(place); return nil, err },
			"WriteFile": func() (*os.File, error) { return nil, WriteFile(place, []byte("x"), 0o600) },
		} {
			f, err := open()
			if f != nil {
				f.Close()
			}
			if _, ok := errors.AsType[Error](err); !ok || !strings.Contains(err.Error(), place+": it is "+kind+" ") {
				t.Errorf("%s, %s: %v", place, way, err)
			}
		}
	}
}

// TestFilesAreOpened: what is no error of os is none here.
func TestFilesAreOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that there is not: %v", err)
	}
	if err := WriteFile(path, []byte("longer text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := ReadFile(path); string(b) != "text" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
}

// TestReplace: the new content is there whole, for its owner alone, whatever was in its
// place, and nothing beside it.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "f"), filepath.Join(t.TempDir(), "other")
	if err := errors.Join(os.WriteFile(other, []byte("other"), 0o644), os.Symlink(other, path)); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := Replace(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(path)
		if err != nil || fi.Mode() != 0o600 {
			t.Errorf("%v, %v", fi.Mode(), err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q, %v", b, err)
		}
	}
	if b, err := os.ReadFile(other); err != nil || string(b) != "other" {
		t.Errorf("what the link led to became %q, %v", b, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "folder"), nil); err == nil {
		t.Error("a folder was replaced")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("it left %v, %v", list, err)
	}
}
