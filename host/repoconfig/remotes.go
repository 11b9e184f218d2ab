package repoconfig

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

// remotes collects the configuration and hooks of other repositories that git opens.
type remotes struct {
	of      *repoReader // of the repository whose remotes they are
	entries []abi.ConfigEntry
	hooks   []string
	judged  map[string]bool // their git directories
}

// read reads the repositories that the configuration's remotes, or the
// call's arguments, name by a path beneath the roots: git opens them as it
// opens its own.
func (r *remotes) read(cwd, root string, args []string) error {
	var dirs []string
	for dir := cwd; ; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
		if dir == root || dir == "/" {
			break
		}
	}
	tried := make(map[string]bool)
	for _, name := range remoteNames(r.of.entries, args) {
		p, ok := localPath(name)
		if !ok || tried[p] {
			continue
		}
		tried[p] = true
		if len(tried) > maxRemotes {
			return errors.New("the configuration and the arguments name too many folders")
		}
		from := dirs
		if filepath.IsAbs(p) {
			from = []string{""}
		}
		for _, dir := range from {
			if dir != "" {
				dir += "/"
			}
			if err := r.readRemote(dir + p); err != nil {
				return err
			}
		}
	}
	return nil
}

// remoteNames returns all texts that git may use as the place of a remote.
func remoteNames(entries []abi.ConfigEntry, args []string) []string {
	var names, to, from []string
	for _, e := range entries {
		section, rest, _ := strings.Cut(e.Key, ".")
		name := rest[strings.LastIndexByte(rest, '.')+1:]
		switch section + "." + name {
		case "remote.url", "remote.pushurl", "remote.pushdefault", "branch.remote", "branch.pushremote":
			names = append(names, e.Value)
		case "url.insteadof", "url.pushinsteadof":
			to, from = append(to, strings.TrimSuffix(rest, "."+name)), append(from, e.Value)
		}
	}
	for i, a := range args {
		switch a {
		case "clone", "fetch", "ls-remote", "pull", "push":
			for _, a := range args[i+1:] {
				if a != "" && a[0] != '-' {
					names = append(names, a)
				}
			}
		default:
			continue
		}
		break
	}
	for _, name := range names[:len(names):len(names)] {
		for i := range to {
			if rest, ok := strings.CutPrefix(name, from[i]); ok && len(names) < 100*maxRemotes {
				names = append(names, to[i]+rest)
			}
		}
	}
	return names
}

// localPath returns the path that the place of a remote is, as git reads it
// (url_is_local_not_ssh in connect.c).
func localPath(url string) (string, bool) {
	if rest, ok := strings.CutPrefix(url, "file://"); ok {
		return rest, filepath.IsAbs(rest)
	}
	if url == "" || strings.ContainsAny(url, "\x00\n") {
		return "", false
	}
	if colon := strings.IndexByte(url, ':'); colon >= 0 && !strings.Contains(url[:colon], "/") {
		return "", false // ssh, another scheme, or a helper
	}
	return url, true
}

// maxGitFileOfGit is the largest file that git reads as a .git file (setup.c).
const maxGitFileOfGit = 1 << 20

// readRemote reads the repository that git finds by the path p (enter_repo in
// path.c, get_repo_path in builtin/clone.c). What is not a repository is skipped.
func (r *remotes) readRemote(p string) error {
	for _, candidate := range []string{p + "/.git", p, p + ".git/.git", p + ".git"} {
		fi, err := os.Stat(candidate)
		if err != nil || r.of.rootOf(filepath.Clean(candidate)) == "" {
			continue // Outside of the roots, which the policy reports.
		}
		gitDir, err := r.of.resolve(candidate)
		if err != nil {
			return err
		}
		if fi.Mode().IsRegular() {
			b, err := r.of.readFile(candidate, maxGitFileOfGit)
			if err != nil || !strings.HasPrefix(string(b), "gitdir: ") {
				continue // A bundle, or another file.
			}
			f, err := r.of.followGitFile(filepath.Dir(candidate), candidate)
			if err == nil {
				gitDir, err = r.of.resolve(f)
			}
			if err != nil {
				return err
			}
		} else if ok, err := r.of.isGitDir(candidate); err != nil {
			return err
		} else if !ok {
			continue
		}
		if r.judged[gitDir] {
			continue
		}
		r.judged[gitDir] = true
		own := r.of.entries
		r.of.entries = nil
		common, err := r.of.readRepository(gitDir)
		read := r.of.entries
		r.entries = append(r.entries, read...)
		r.of.entries = own
		if err != nil {
			return err
		}
		names, _ := r.of.readHooks(common, gitDir, read)
		for _, name := range names {
			if !slices.Contains(r.hooks, name) {
				r.hooks = append(r.hooks, name)
			}
		}
	}
	return nil
}
