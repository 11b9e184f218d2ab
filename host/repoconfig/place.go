package repoconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

// place is where git works. All paths are resolved.
type place struct {
	dir, root string
	gitDir    string // what --git-dir names
	workTree  string // what --work-tree names
	moved     bool   // the arguments say one of these
	looks     bool   // the subcommand only looks, and runs no hook
}

// looking are subcommands that run no hook and go on with nothing that was
// begun. git takes no alias for them. A shell's prompt asks for some all day.
var looking = []string{"blame", "cat-file", "describe", "diff", "for-each-ref", "grep", "log", "ls-files", "ls-tree", "merge-base", "reflog", "rev-list", "rev-parse", "shortlog", "show", "show-ref", "status", "version"}

// Args answers args as git takes them in an environment: GIT_DIR and GIT_WORK_TREE
// are flags in front of all others.
func Args(env map[string]string, args []string) []string {
	var front []string
	for _, v := range [][2]string{{"GIT_DIR", "--git-dir="}, {"GIT_WORK_TREE", "--work-tree="}} {
		if value := env[v[0]]; value != "" {
			front = append(front, v[1]+value)
		}
	}
	return append(front, args...)
}

// locate follows the flags before the subcommand as git does (handle_options in
// git.c): each -C counts from the one before, and the last --git-dir and
// --work-tree count from where they all lead.
func (r *repoReader) locate(cwd string, args []string) (place, error) {
	var at place
	var gitDir, workTree string
	dir, err := evalSymlinks(cwd)
	if err != nil {
		return at, fmt.Errorf("resolve working directory: %w", plain(err))
	}
	if at.root = r.rootOf(dir); at.root == "" {
		return at, errors.New("working directory is outside the roots")
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		switch name {
		case "-C", "-c", "--git-dir", "--work-tree":
			if name[1] != '-' && joined {
				continue // -C=x is no -C
			}
			if !joined {
				if len(args) == 0 {
					return at, fmt.Errorf("%s has no value", name)
				}
				value, args = args[0], args[1:]
			}
		}
		switch name {
		case "-C":
			at.moved = true
			if value == "" {
				continue
			}
			if dir, err = r.folder(name, dir, value); err != nil {
				return at, err
			}
		case "--git-dir":
			at.moved, gitDir = true, value
		case "--work-tree":
			at.moved, workTree = true, value
		}
	}
	at.dir, at.root = dir, r.rootOf(dir)
	at.looks = len(args) > 0 && slices.Contains(looking, args[0])
	if workTree != "" {
		if at.workTree, err = r.folder("--work-tree", dir, workTree); err != nil {
			return at, err
		}
	}
	if gitDir == "" {
		return at, nil
	}
	if !strings.HasPrefix(gitDir, "/") {
		gitDir = dir + "/" + gitDir
	}
	q, err := r.resolve(gitDir)
	if err != nil {
		return at, fmt.Errorf("--git-dir: %w", err)
	}
	if fi, err := os.Lstat(q); err == nil && fi.Mode().IsRegular() {
		if q, err = r.followGitFile(filepath.Dir(q), q); err != nil {
			return at, err
		}
		if q, err = r.resolve(q); err != nil {
			return at, err
		}
	}
	ok, err := r.isGitDir(q)
	if err == nil && !ok {
		err = fmt.Errorf("--git-dir names %s, which is not a git directory", gitDir)
	}
	at.gitDir = q
	return at, err
}

// folder resolves the folder p, which the flag of that name gives, from dir.
func (r *repoReader) folder(flag, dir, p string) (string, error) {
	if !strings.HasPrefix(p, "/") {
		p = dir + "/" + p // Not cleaned: ".." after a link is not where it came from.
	}
	q, err := r.resolve(p)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", flag, p, err)
	}
	if fi, err := os.Lstat(q); err != nil || !fi.IsDir() {
		return "", fmt.Errorf("%s %s: not a folder", flag, p)
	}
	return q, nil
}

// readModules reads .gitmodules at the top of the working tree. git takes none
// that is a link, and follows no include in it.
func (r *repoReader) readModules(top string) error {
	file := top + "/.gitmodules"
	if readlink(file) != "" {
		return fmt.Errorf("%s is a link", file)
	}
	b, err := r.readFile(file, maxConfigBytes-r.bytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.bytes += len(b)
	return parseGitConfig(b, func(key, value string, _ bool) error {
		if len(r.modules) == maxConfigEntries {
			return fmt.Errorf("%s has more than %d entries", file, maxConfigEntries)
		}
		r.modules = append(r.modules, abi.ConfigEntry{Key: key, Value: strings.ToValidUTF8(value, "\uFFFD")})
		return nil
	})
}

// hookNames are the hooks that git runs (githooks(5)).
var hookNames = []string{
	"applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit", "post-index-change", "post-merge", "post-receive", "post-rewrite", "post-update",
	"pre-applypatch", "pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-push", "pre-rebase", "pre-receive", "prepare-commit-msg", "proc-receive", "push-to-checkout", "reference-transaction", "update",
}

// readHooks answers the hooks that git would run in the repository: executable
// files in the folder of hooks, which a relative core.hooksPath names from the
// top of the working tree on. A folder outside of the roots is not looked at.
// Those in the repository's own folder are answered as "hooks/NAME" where it is
// not that one: some of git's programs do not read core.hooksPath. in is where the
// first of these folders leads; empty where it is not to be looked at.
func (r *repoReader) readHooks(common, top string, entries []abi.ConfigEntry) (names []string, in string) {
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

// hooksIn answers the hooks in dir, and where that leads; "" where that is not to be
// looked at.
func (r *repoReader) hooksIn(dir, top string) (names []string, in string) {
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
		// Whether a file outside of the roots is there is not for the caller to
		// know: a link that does not lead to a file beneath them counts.
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
