package repoconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/toold/toold/host/beneath"
)

const (
	maxRepoFiles = 200000  // entries of folders that may hold links, and of any one folder
	maxListed    = 1000000 // entries of all folders that are read
	maxResolved  = 4000    // paths that may lead through links
)

// roots reads files and folders beneath the roots of a call, and nothing else.
type roots struct {
	dirs     []string // resolved
	open     map[string]*tree
	listed   int // entries of folders that were read
	resolved int // paths that were resolved
}

// newRoots returns the roots of dirs. close must be called.
func newRoots(dirs []string) roots {
	r := roots{open: make(map[string]*tree)}
	for _, dir := range dirs {
		p, err := evalSymlinks(dir)
		if err != nil {
			continue // A root that is missing contains nothing.
		}
		r.dirs = append(r.dirs, p)
	}
	return r
}

func (r *roots) close() {
	for _, root := range r.open {
		root.close()
	}
}

// rootOf returns the root that holds the resolved path p, or "".
func (r *roots) rootOf(p string) string {
	best := ""
	for _, root := range r.dirs {
		if beneath.Has(root, p) && len(root) > len(best) {
			best = root
		}
	}
	return best
}

// resolve returns p without links. A path out of the roots is an error.
func (r *roots) resolve(p string) (string, error) {
	q, err := p, error(nil)
	if !isLinkFree(p) {
		if r.resolved++; r.resolved > maxResolved {
			return "", fmt.Errorf("%s is one symbolic link too many to look at", p)
		}
		q, err = beneath.RealPath(p)
	}
	if errors.Is(err, syscall.ENOTDIR) {
		err = fs.ErrNotExist // To git it is the same.
	}
	if err != nil {
		if r.rootOf(filepath.Clean(p)) != "" {
			return "", plain(err)
		}
		q = "" // The caller must not learn whether it is there.
	}
	if r.rootOf(q) == "" {
		return "", fmt.Errorf("%s leads out of the roots", p)
	}
	return q, nil
}

// openPath opens what p names with open, which must lie beneath the roots
// whatever links are on the way.
func (r *roots) openPath(p string, open func(t *tree, rel string) (*os.File, error)) (*os.File, error) {
	if !strings.Contains(p, "..") {
		if top := r.rootOf(p); top != "" {
			f, err := r.openBeneath(top, p, open)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				return f, err
			}
		}
	}
	// Links lead to another root, or are absolute.
	q, err := r.resolve(p)
	if err != nil {
		return nil, err
	}
	// Between resolve and open someone may have put a link in the way: the
	// tree does not follow it out.
	f, err := r.openBeneath(r.rootOf(q), q, open)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return f, nil
}

// openBeneath opens p beneath the root top.
func (r *roots) openBeneath(top, p string, open func(t *tree, rel string) (*os.File, error)) (*os.File, error) {
	root := r.open[top]
	if root == nil {
		var err error
		if root, err = openTree(top); err != nil {
			return nil, plain(err)
		}
		r.open[top] = root
	}
	rel := strings.TrimLeft(strings.TrimPrefix(p, top), "/")
	if rel == "" {
		rel = "."
	}
	f, err := open(root, rel)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fs.ErrNotExist // To git it is the same.
	}
	if err != nil {
		return nil, plain(err)
	}
	return f, nil
}

// readDir lists a folder beneath the roots. It keeps no more than maxRepoFiles entries at
// a time, and reads maxListed of all folders.
func (r *roots) readDir(p string) ([]fs.DirEntry, error) {
	f, err := r.openPath(p, (*tree).openDir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	most := min(maxRepoFiles, maxListed-r.listed)
	list, err := f.ReadDir(most + 1) // in no order
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", p, plain(err))
	}
	if r.listed += len(list); len(list) > most {
		return nil, fmt.Errorf("%s holds too many files to look at", p)
	}
	return list, nil
}

// readFile reads a regular file beneath the roots of at most limit bytes.
func (r *roots) readFile(p string, limit int) ([]byte, error) {
	f, err := r.openPath(p, (*tree).open)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", p)
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, plain(err))
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%s is too large", p)
	}
	return b, nil
}

// evalSymlinks returns p without links.
func evalSymlinks(p string) (string, error) {
	if isLinkFree(p) {
		return p, nil
	}
	return beneath.RealPath(p)
}

// isLinkFree reports whether the kernel can tell at once that p leads through no link.
func isLinkFree(p string) bool { return filepath.IsAbs(p) && p == filepath.Clean(p) && linkFree(p) }

func readlink(p string) string {
	target, _ := os.Readlink(p)
	return target
}

// plain takes the operation off a path error: the path is in the message
// already, or is one that the caller must not learn.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
