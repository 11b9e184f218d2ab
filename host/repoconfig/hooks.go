package repoconfig

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

// hookNames are the hooks that git runs (githooks(5)).
var hookNames = []string{
	"applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit", "post-index-change", "post-merge", "post-receive", "post-rewrite", "post-update",
	"pre-applypatch", "pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg", "proc-receive", "push-to-checkout", "reference-transaction", "update",
}

// readHooks returns the hooks that git would run in the repository: executable
// files in the folder of hooks, which a relative core.hooksPath names from the
// top of the working tree on. A folder outside of the roots is not looked at.
// Those in the repository's own folder are returned as "hooks/NAME" if it is
// not that one: some of git's programs do not read core.hooksPath. in is where the
// first of these folders leads; empty if it must not be looked at.
func (r *roots) readHooks(common, top string, entries []abi.ConfigEntry) (names []string, in string) {
	configured, dir := false, ""
	for _, e := range entries {
		if e.Key == "core.hookspath" {
			configured, dir = true, e.Value
		}
	}
	own, in := r.hooksIn(common+"/hooks", top)
	if !configured {
		return own, in
	}
	found, in := r.hooksIn(dir, top)
	names = slices.Clone(found)
	for _, name := range own {
		names = append(names, "hooks/"+name)
	}
	return names, in
}

// hooksIn returns the hooks in dir, and where that leads; "" if it must not be
// looked at.
func (r *roots) hooksIn(dir, top string) (names []string, in string) {
	switch {
	case dir == "" || dir == "/dev/null":
		return nil, ""
	case dir[0] == '~' || strings.HasPrefix(dir, "%("):
		return hookNames, ""
	case dir[0] != '/':
		dir = top + "/" + dir
	}
	dir, err := r.resolve(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ""
	}
	if err != nil {
		return hookNames, ""
	}
	list, err := r.readDir(dir)
	if err != nil {
		return nil, ""
	}
	for _, e := range list {
		if !slices.Contains(hookNames, e.Name()) {
			continue
		}
		// The caller must not learn whether a file outside of the roots is there: a
		// link that does not lead to a file beneath them counts.
		q, err := r.resolve(dir + "/" + e.Name())
		if err == nil {
			if fi, err := os.Lstat(q); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
				continue
			}
		}
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, dir
}
