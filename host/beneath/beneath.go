//go:build unix

// Package beneath keeps paths beneath roots: the folders that calls may work in. What is
// opened or resolved here is judged by where it is, not by its name, so that neither a
// link nor a folder that is swapped leads out.
package beneath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/fault"
)

// Open opens the folder dir and returns it with its path free of
// symbolic links, when it is one of roots or lies beneath one. The folder is
// opened first, links and all, and judged afterwards by where the open folder
// is: its parents are walked upwards until one is a root. So a link that
// leads out is refused, a link that stays inside is not, and swapping folders
// or links in between changes nothing.
//
// A root is opened without following any symbolic link, since whoever may
// write above a root could turn it into a link to anywhere: see Resolve.
//
// The error is INVALID_PAYLOAD and the same for a folder that is missing, is
// none, cannot be opened or lies outside: nobody learns from it what is there
// outside the roots. It is OVERLOADED where the host has no room to look.
func Open(roots []string, dir string) (*os.File, string, error) {
	if dir == "" {
		return nil, "", fault.Errorf(fault.InvalidPayload, "cwd is missing: name a folder beneath %s", strings.Join(roots, ", "))
	}
	refuse := func(more string, err error) (*os.File, string, error) {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
			return nil, "", fault.Errorf(fault.Overloaded, "open cwd: %w: this host has no room now; try again", err)
		}
		return nil, "", fault.Errorf(fault.InvalidPayload, "cwd %q is not a folder beneath %s%s: change to one that is", dir, strings.Join(roots, ", "), more)
	}
	if !filepath.IsAbs(dir) || strings.IndexByte(dir, 0) >= 0 {
		return refuse("", nil)
	}
	// A folder that is named without any link is where its name says, and where
	// a root's name is a part of that, beneath that root.
	if dir == filepath.Clean(dir) && slices.ContainsFunc(roots, func(root string) bool { return Has(root, dir) }) {
		if fd, err := OpenResolved(dir); err == nil {
			return os.NewFile(uintptr(fd), dir), dir, nil
		}
	}
	known, trouble, closeRoots, err := openRoots(roots)
	defer closeRoots()
	if len(known) == 0 {
		return refuse(trouble, err)
	}

	fd, err := RetryEINTR(func() (int, error) { return unix.Open(dir, OpenFolder, 0) })
	if err != nil {
		return refuse(trouble, err)
	}
	f := os.NewFile(uintptr(fd), dir)
	up, last := -1, folderID{}
	defer func() {
		if up >= 0 {
			unix.Close(up)
		}
	}()
	for at := fd; ; at = up {
		here, err := identify(at)
		if err != nil || here == last {
			// The parent of the topmost folder is itself.
			f.Close()
			return refuse(trouble, err)
		}
		if slices.Contains(known, here) {
			real, err := pathOf(f)
			if err != nil {
				f.Close()
				return refuse(trouble, err)
			}
			return f, real, nil
		}
		last = here
		next, err := RetryEINTR(func() (int, error) { return unix.Openat(at, "..", OpenFolder, 0) })
		if err != nil {
			f.Close()
			return refuse(trouble, err)
		}
		if up >= 0 {
			unix.Close(up)
		}
		up = next
	}
}

// folderID is a folder, as long as it is open, whatever its names are.
type folderID struct{ dev, ino uint64 }

func identify(fd int) (folderID, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return folderID{uint64(st.Dev), uint64(st.Ino)}, err
}

// openRoots opens roots, and says what is wrong with those that are not among
// known; last is the error of one of them. They stay open until release is called: an inode number means something
// only as long as the inode cannot be freed.
func openRoots(roots []string) (known []folderID, trouble string, release func(), last error) {
	var fds []int
	for _, root := range roots {
		fd, err := OpenNoLinks(root)
		if err == nil {
			fds = append(fds, fd)
			var i folderID
			if i, err = identify(fd); err == nil {
				known = append(known, i)
				continue
			}
		}
		trouble, last = trouble+fmt.Sprintf("; root %s: %v", root, err), err
	}
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return known, trouble, release, last
}

// Has reports whether path is root or lies in it, by their names alone. Both
// are clean and absolute.
func Has(root, path string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

// Resolve returns roots absolute and free of symbolic links. It is meant
// to be called once, when roots are read from a configuration that only the
// operator writes.
func Resolve(roots []string) ([]string, error) {
	out := make([]string, 0, len(roots))
	for _, root := range roots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return nil, err
		}
		real, err := filepath.EvalSymlinks(abs)
		if err != nil {
			return nil, fmt.Errorf("resolve root %s: %w: create it, or name another", root, err)
		}
		out = append(out, real)
	}
	return out, nil
}

var errLink = errors.New("it is reached through a symbolic link: name the folder that the link stands for")

// OpenNoLinks opens the folder path and follows no symbolic link.
func OpenNoLinks(path string) (int, error) {
	if !filepath.IsAbs(path) {
		return -1, errors.New("it is not an absolute path")
	}
	// In one step where the kernel can. Otherwise, and to say what is wrong,
	// one component after the other.
	if fd, err := OpenResolved(path); err == nil {
		return fd, nil
	}
	top, err := RetryEINTR(func() (int, error) { return unix.Open("/", OpenFolder, 0) })
	if err != nil || filepath.Clean(path) == "/" {
		return top, err
	}
	defer unix.Close(top)
	return Walk(top, filepath.Clean(path)[1:], OpenFolder)
}

// Walk opens path relative to the folder dir, with flags, and follows no symbolic link.
func Walk(dir int, path string, flags int) (int, error) {
	fd := dir
	for name, rest, more := "", path, true; more; {
		name, rest, more = strings.Cut(rest, "/")
		how := flags
		if more {
			how = OpenFolder
		}
		next, err := RetryEINTR(func() (int, error) { return unix.Openat(fd, name, how|unix.O_NOFOLLOW, 0) })
		if err == unix.ENOTDIR || err == unix.ELOOP {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				err = errLink
			}
		}
		if fd != dir {
			unix.Close(fd)
		}
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}
