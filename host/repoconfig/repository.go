package repoconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

const (
	maxConfigBytes   = 1 << 20 // of all files together
	maxConfigEntries = 10000
	maxIncludeDepth  = 10 // git's own
	maxAlternates    = 5  // git's own

	maxSubmodules     = 1000 // folders that are looked at
	maxSubmoduleDepth = 10

	maxRepoDepth = 20
	maxRemotes   = 250 // paths that may be remotes
)

// repoReader collects what repositories make git do.
type repoReader struct {
	roots
	entries []abi.ConfigEntry // of configuration
	state   []abi.ConfigEntry // of operations that were begun
	modules []abi.ConfigEntry // of .gitmodules
	bytes   int
	folders int // seen while looking for submodules
	links   int // entries seen while looking for links
}

// readRepository appends the configuration of the repository at gitDir, and
// refuses it where git would be led out of the roots. It returns the common
// git directory.
func (r *repoReader) readRepository(gitDir string) (common string, err error) {
	if common, err = r.commonDir(gitDir); err != nil {
		return "", err
	}
	from := len(r.entries)
	for _, f := range []string{common + "/config", gitDir + "/config.worktree"} {
		if err := r.readConfig(f, 0); err != nil {
			return "", err
		}
	}
	if err := r.checkFiles(gitDir, 0); err != nil {
		return "", err
	}
	if common != gitDir {
		if err := r.checkFiles(common, 0); err != nil {
			return "", err
		}
	}
	if _, err := r.workTree(gitDir, r.entries[from:]); err != nil {
		return "", err
	}
	return common, r.checkObjects(common+"/objects", 0)
}

// readSubmodules reads the configuration of the repositories beneath dir. A
// submodule's name may have slashes, and it may have submodules of its own.
func (r *repoReader) readSubmodules(dir string, depth int) error {
	list, err := r.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		sub := dir + "/" + e.Name()
		if fi, err := os.Stat(sub); err != nil || !fi.IsDir() {
			continue
		}
		if r.folders++; r.folders > maxSubmodules || depth == maxSubmoduleDepth {
			return fmt.Errorf("%s has too many submodules", dir)
		}
		if _, err := os.Lstat(sub + "/HEAD"); err != nil {
			err = r.readSubmodules(sub, depth+1)
			if err != nil {
				return err
			}
			continue
		}
		common, err := r.readRepository(sub)
		if err != nil {
			return err
		}
		if err := r.readSubmodules(common+"/modules", depth+1); err != nil {
			return err
		}
	}
	return nil
}

// readConfig appends what file and its includes hold. A missing file holds
// nothing.
func (r *repoReader) readConfig(file string, depth int) error {
	b, err := r.readFile(file, maxConfigBytes-r.bytes)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(file); err == nil {
			return fmt.Errorf("%s leads nowhere", file)
		}
		return nil
	}
	if err != nil {
		return err
	}
	r.bytes += len(b)
	err = parseGitConfig(b, func(key, value string, hasValue bool) error {
		if len(r.entries) == maxConfigEntries {
			return fmt.Errorf("more than %d entries", maxConfigEntries)
		}
		if !hasValue {
			value = "true"
		}
		r.entries = append(r.entries, abi.ConfigEntry{Key: key, Value: strings.ToValidUTF8(value, "\uFFFD")})
		if !isInclude(key) {
			return nil
		}
		switch {
		case !hasValue || value == "":
			return fmt.Errorf("%s names no file", key)
		case value[0] == '~' || strings.HasPrefix(value, "%("):
			return fmt.Errorf("%s leads out of the roots: %s", key, value)
		case depth == maxIncludeDepth:
			return errors.New("includes are nested too deeply")
		case value[0] != '/':
			// As git does it: beside the file as it was named, and never
			// cleaned, since ".." after a link is not where it came from.
			value = file[:strings.LastIndexByte(file, '/')+1] + value
		}
		return r.readConfig(value, depth+1)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// isInclude reports whether key is include.path or includeif.CONDITION.path.
func isInclude(key string) bool {
	cond, ok := strings.CutPrefix(key, "includeif.")
	return key == "include.path" || ok && strings.HasSuffix(cond, ".path")
}

// workTree returns what core.worktree names, or "". It refuses a working tree
// outside the roots: git would write there.
func (r *repoReader) workTree(gitDir string, entries []abi.ConfigEntry) (last string, err error) {
	for _, e := range entries {
		if e.Key != "core.worktree" {
			continue
		}
		p := e.Value
		if !strings.HasPrefix(p, "/") {
			p = gitDir + "/" + p
		}
		if last, err = r.resolve(p); err != nil {
			return "", fmt.Errorf("core.worktree: %w", err)
		}
	}
	return last, nil
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

// linkFolders are the folders of a git directory whose files git reads, or
// writes through, beside objects and hooks. Links out of the roots are looked
// for in them and in the folders beneath them.
var linkFolders = map[string]bool{
	"info": true, "logs": true, "refs": true, "rebase-merge": true, "rebase-apply": true, "sequencer": true,
	"worktrees": true, "rr-cache": true, "remotes": true, "branches": true, "reftable": true,
}

// checkFiles refuses links out of the roots in a git directory and in those of
// its folders that git looks into: git reads a message to commit from such a
// file, shows it as a reference or a note of what it did, and writes through
// it.
func (r *repoReader) checkFiles(dir string, depth int) error {
	list, err := r.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if r.links += len(list); r.links > maxRepoFiles || depth > maxRepoDepth {
		return fmt.Errorf("%s holds too many files to look at", dir)
	}
	for _, e := range list {
		name := dir + "/" + e.Name()
		folder := e.IsDir()
		if e.Type()&fs.ModeSymlink != 0 {
			if folder, err = r.checkLink(name); err != nil {
				return err
			}
		}
		if folder && (depth > 0 || linkFolders[e.Name()]) {
			if err := r.checkFiles(name, depth+1); err != nil {
				return err
			}
		}
		if depth == 0 && e.Name() == "MERGE_RR" {
			if err := r.checkMergeRR(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkLink refuses a link that leads nowhere, or out of the roots. It reports
// whether it leads to a folder.
func (r *repoReader) checkLink(name string) (folder bool, err error) {
	q, err := r.resolve(name)
	if errors.Is(err, fs.ErrNotExist) {
		if strings.HasSuffix(name, "/HEAD") && strings.HasPrefix(readlink(name), "refs/") {
			return false, nil // A branch without a commit.
		}
		return false, fmt.Errorf("%s leads nowhere", name)
	}
	if err != nil {
		return false, err
	}
	fi, err := os.Lstat(q)
	return err == nil && fi.IsDir(), nil
}

// checkMergeRR refuses a list of conflicts that names files outside of the
// working tree: git reads them, and writes their recorded resolution.
func (r *repoReader) checkMergeRR(file string) error {
	b, err := r.readFile(file, maxConfigBytes)
	if err != nil {
		return err
	}
	for item := range strings.SplitSeq(string(b), "\x00") {
		_, path, _ := strings.Cut(item, "\t")
		if path != "" && !filepath.IsLocal(path) {
			return fmt.Errorf("%s names a file outside of the working tree", file)
		}
	}
	return nil
}

// checkObjects refuses object stores outside the roots, or with links: git
// would read objects of other people's repositories from there.
func (r *repoReader) checkObjects(objects string, depth int) error {
	for _, dir := range []string{"", "/pack", "/info", "/info/commit-graphs"} {
		list, err := r.readDir(objects + dir)
		if errors.Is(err, fs.ErrNotExist) {
			if dir == "" {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range list {
			if e.Type()&fs.ModeSymlink == 0 {
				continue
			}
			// Git makes no links here. What one leads to may lead further.
			if folder, err := r.checkLink(objects + dir + "/" + e.Name()); err != nil {
				return err
			} else if folder {
				return fmt.Errorf("%s%s/%s is a link to a folder", objects, dir, e.Name())
			}
		}
	}
	b, err := r.readFile(objects+"/info/alternates", maxGitFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if depth >= maxAlternates {
		return fmt.Errorf("%s/info/alternates is nested too deeply", objects)
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '"' {
			return fmt.Errorf("%s/info/alternates has a quoted path", objects)
		}
		if !strings.HasPrefix(line, "/") {
			line = objects + "/" + line
		}
		q, err := r.resolve(line)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := r.checkObjects(q, depth+1); err != nil {
			return err
		}
	}
	return nil
}
