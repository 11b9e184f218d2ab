// Package regular opens regular files, and nothing that is in their place: opening a
// named pipe would wait for its other end, and reading a device may never end. A daemon
// that opens what is in its folders by this package is not stopped by what somebody, or
// a restored backup, put there. Replace writes a file that has to outlast a crash.
//
// It follows links, as os.Open does; O_NOFOLLOW in a flag prevents that for the last name.
// It does not say whose a file is, or who can write to it.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Error is the cause of a PathError of this package: the file is not a regular one.
type Error struct{ Mode fs.FileMode }

// Error describes what is there and what to do about it.
func (e Error) Error() string {
	kind := "a device"
	switch e.Mode.Type() {
	case fs.ModeNamedPipe:
		kind = "a named pipe"
	case fs.ModeSocket:
		kind = "a socket"
	case fs.ModeDir:
		kind = "a folder"
	}
	return fmt.Sprintf("it is %s and not a regular file; move it away", kind)
}

// Open opens a file for reading.
func Open(path string) (*os.File, error) { return OpenFile(path, os.O_RDONLY, 0) }

// OpenFile opens a file as os.OpenFile does. The cause of the error is an Error if what is
// there is not a regular file.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, perm)
	if err != nil {
		// Neither a socket, a pipe that nobody reads nor a folder can be opened for
		// writing; what the system says of them does not tell what they are.
		if fi, e := os.Stat(path); e == nil && !fi.Mode().IsRegular() {
			err = &fs.PathError{Op: "open", Path: path, Err: Error{fi.Mode()}}
		}
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: Error{fi.Mode()}}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile reads a whole file.
func ReadFile(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WriteFile writes a whole file, as os.WriteFile does.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	f, err := OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Replace atomically replaces the file at path by one of mode 0600, and syncs it and its
// folder: after a crash there is the old file or the new one.
func Replace(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already unless there was an error
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return SyncDir(dir)
}

// SyncDir syncs the entries of a folder.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
