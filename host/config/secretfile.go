package config

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/toold/toold/host/regular"
)

// OpenSecret opens a file that contains secrets, and refuses one with another name (a hard link): a confined tool is
// denied the known name, and could read it by the other.
func OpenSecret(path string) (*os.File, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && links(fi) > 1 {
		err = SeveralNames(path, links(fi))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// SeveralNames returns the error for a file with secrets that has n names.
func SeveralNames(path string, n uint64) error {
	return fmt.Errorf("%s has %d names (hard links), and tools could read it by another one; give it a file of its own: cp -p %[1]s %[1]s.new && mv %[1]s.new %[1]s", path, n)
}

// Names returns the number of hard links of a file; 0 if it does not exist.
func Names(path string) uint64 {
	fi, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return links(fi)
}

func links(fi fs.FileInfo) uint64 {
	if s, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Nlink)
	}
	return 1
}
