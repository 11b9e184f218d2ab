package repoconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// place is where git works. All paths are resolved.
type place struct {
	dir, root string
	gitDir    string // what --git-dir names
	workTree  string // what --work-tree names
	moved     bool   // the arguments have one of these
	looks     bool   // the subcommand only looks, and runs no hook
}

// looking are subcommands that run no hook and go on with nothing that was
// begun. git accepts no alias for them. Shell prompts run some of them all the time.
var looking = []string{"blame", "cat-file", "describe", "diff", "for-each-ref", "grep", "log", "ls-files", "ls-tree", "merge-base", "reflog", "rev-list", "rev-parse", "shortlog", "show", "show-ref", "status", "version"}

// Args returns args as git reads them in an environment: GIT_DIR and GIT_WORK_TREE count as
// flags before all others.
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
func (r *roots) locate(cwd string, args []string) (place, error) {
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
				continue // -C=x is not -C
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
func (r *roots) folder(flag, dir, p string) (string, error) {
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
