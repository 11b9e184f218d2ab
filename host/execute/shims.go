package execute

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// shims makes copies of this program under names that select one of its helper
// programs for runs. Each is made on first use. Its zero value is ready.
type shims struct {
	mu   sync.Mutex
	made map[string]bool // by path; nil: none
}

// program makes the copy at path, in the state folder, unless it is there, and returns
// path.
func (s *shims) program(path string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[path] {
		if _, err := os.Lstat(path); err == nil {
			return path, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	// An earlier daemon of another version may have made it: replace it. Runs that
	// use the old one keep it.
	from, err := os.Open("/proc/self/exe") // valid even after the file was replaced
	if err != nil {
		own, failed := os.Executable()
		if failed != nil {
			return "", failed
		}
		if from, err = os.Open(own); err != nil {
			return "", err
		}
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(path), "")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		os.Remove(to.Name())
		return "", err
	}
	if s.made == nil {
		s.made = map[string]bool{}
	}
	s.made[path] = true
	return path, nil
}
