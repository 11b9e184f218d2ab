// Package repoconfig reads what a git repository makes git do: its configuration,
// hooks, remotes, and the state of operations that were begun.
//
// It follows git's own rules of finding and reading a repository, and reads only
// beneath the roots of a call. It decides nothing: the policy of git does, from what
// Read returns.
package repoconfig

import (
	"slices"

	"github.com/toold/toold/pdk/abi"
)

// Read reads what the git repository around cwd makes git do: its
// configuration, as far as the repository itself contains it (config, what
// that includes, config.worktree, and, apart, those of its submodules), and
// the state of operations that were begun. The user's and the system's
// configuration are the operator's and not in it. args are those of the call:
// the repositories beneath the roots that they, or the configuration's
// remotes, name by a path are read as well.
//
// It returns at least what git would read: an includeIf counts as if its
// condition held, and config.worktree as if the extension were on. The
// repository is looked for from cwd upward as git does, but not above the
// root that holds cwd; no repository there is no entry and no Error. Error is
// set whenever git might see something else than what is returned: a syntax
// that git refuses, a path or a link that leads out of roots, something that
// is not a regular file, a git directory that is only half there, or a bound.
//
// What was read may have changed when git reads it again. The policy's
// decision is therefore the first barrier of two; the confinement of the process
// is the other.
func Read(cwd string, roots, args []string) *abi.RepoConfig {
	return read(cwd, roots, args, false)
}

// ReadLFS is Read for a git with git-lfs, which reads further files there.
func ReadLFS(cwd string, roots, args []string) *abi.RepoConfig {
	return read(cwd, roots, args, true)
}

func read(cwd string, roots, args []string, lfs bool) *abi.RepoConfig {
	r := &repoReader{roots: newRoots(roots)}
	defer r.close()
	at, err := r.locate(cwd, args)
	if err != nil {
		return &abi.RepoConfig{Error: err.Error()}
	}
	c := &abi.RepoConfig{}
	if err := fill(c, r, &at, args, lfs); err != nil {
		return &abi.RepoConfig{Error: err.Error()}
	}
	c.Entries, c.State, c.Modules = r.entries, r.state, r.modules
	c.WorkTree = at.workTree
	if at.moved {
		c.Dir, c.GitDir = at.dir, at.gitDir
	}
	others := remotes{of: r, judged: make(map[string]bool)}
	if err := others.read(at.dir, at.root, args); err != nil {
		c.RemoteError = err.Error()
	}
	c.Remotes, c.RemoteHooks = others.entries, others.hooks
	return c
}

// fill reads the repository that git finds from at, with r. It sets at.workTree where
// the configuration names it.
func fill(c *abi.RepoConfig, r *repoReader, at *place, args []string, lfs bool) error {
	gitDir, top := at.gitDir, at.dir
	if gitDir == "" {
		var err error
		if gitDir, top, err = r.findGitDir(at.dir, at.root); err != nil || gitDir == "" {
			return err
		}
		if gitDir == top {
			c.Bare = gitDir
		}
	}
	common, err := r.readRepository(gitDir)
	if err != nil {
		return err
	}
	if err := r.readState(gitDir, common, !at.looks); err != nil {
		return err
	}
	own := r.entries
	r.entries = nil
	err = r.readSubmodules(common+"/modules", 0)
	r.entries, c.Submodules = own, r.entries
	if err != nil {
		return err
	}
	if at.workTree == "" {
		if at.workTree, err = r.workTree(gitDir, own); err != nil {
			return err
		}
	}
	if at.workTree != "" {
		top = at.workTree
	}
	if !at.looks {
		c.Hooks, c.HooksDir = r.readHooks(common, top, own)
		r.readFilters(common, top)
	}
	if !at.looks && lfs {
		if err := r.readLFS(common, top); err != nil {
			return err
		}
	}
	if slices.Contains(args, "submodule") {
		return r.readModules(top)
	}
	return nil
}
