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
// working tree: git reads them, and writes what it knows of their resolution.
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

// stateFiles are the files that tell git how to go on with what was begun, as
// far as they name programs, options or commands (sequencer.c,
// builtin/rebase.c and builtin/am.c). What else lies beside them are messages,
// object names, counters and files that are there or not.
var stateFiles = map[string][]string{
	"rebase-merge": {"strategy", "strategy_opts", "gpg_sign_opt", "git-rebase-todo"},
	"rebase-apply": {"strategy", "strategy_opts", "gpg_sign_opt", "apply-opt"},
	"sequencer":    {"opts", "todo"},
}

// readState appends what operations that were begun left behind, and remotes
// that are kept as git did before it had a configuration.
func (r *repoReader) readState(gitDir, common string, bisects bool) error {
	head, err := r.readFile(gitDir+"/HEAD", maxGitFile)
	if target := readlink(gitDir + "/HEAD"); target != "" {
		head = []byte("ref: " + target)
	} else if err != nil {
		return err
	}
	r.addState("HEAD", head)
	for _, dir := range []string{"rebase-merge", "rebase-apply", "sequencer"} {
		if _, err := os.Lstat(gitDir + "/" + dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, name := range stateFiles[dir] {
			if err := r.readStateFile(gitDir, dir+"/"+name); err != nil {
				return err
			}
		}
	}
	// bisect reset checks out what this names.
	if bisects {
		if err := r.readStateFile(gitDir, "BISECT_START"); err != nil {
			return err
		}
	}
	for _, dir := range []string{"remotes", "branches"} {
		list, err := r.readDir(common + "/" + dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(list) > maxRemotes {
			return fmt.Errorf("%s/%s holds too many files", common, dir)
		}
		for _, e := range list {
			if e.IsDir() {
				continue // A name with a slash is none of these to git.
			}
			if err := r.readStateFile(common, dir+"/"+e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *repoReader) readStateFile(dir, name string) error {
	b, err := r.readFile(dir+"/"+name, maxConfigBytes-r.bytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.bytes += len(b)
	r.addState(name, b)
	return nil
}

// readFilters appends, as "filters", the names of the filters that attributes ask for, a
// line each: those at the top of the working tree and in info/attributes. What cannot
// be read there, git reads no better.
func (r *repoReader) readFilters(common, top string) {
	var names []string
	for _, file := range []string{top + "/.gitattributes", common + "/info/attributes"} {
		if readlink(file) != "" {
			continue
		}
		b, err := r.readFile(file, maxConfigBytes-r.bytes)
		if err != nil {
			continue
		}
		r.bytes += len(b)
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			for _, word := range strings.Fields(line) {
				if name, ok := strings.CutPrefix(word, "filter="); ok && len(names) < maxFilters && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) > 0 {
		r.addState("filters", []byte(strings.Join(names, "\n")))
	}
}

// readLFS appends, as "lfs", what a repository with files in LFS has, a line each: objects,
// a folder for them, and lfsconfig, a file that names their server. git-lfs checks out
// what it finds there under the name of an object, so that no link may stand for one.
func (r *repoReader) readLFS(common, top string) error {
	var has []string
	switch fi, err := os.Lstat(common + "/lfs"); {
	case err == nil && fi.IsDir():
		has = append(has, "objects")
		entries := 0
		if err := r.plainTree(common+"/lfs", 6, &entries); err != nil {
			return err
		}
	case err == nil:
		return fmt.Errorf("%s is not a folder", common+"/lfs")
	}
	if _, err := os.Lstat(top + "/.lfsconfig"); err == nil {
		has = append(has, "lfsconfig")
	}
	if len(has) > 0 {
		r.addState("lfs", []byte(strings.Join(has, "\n")))
	}
	return nil
}

// maxLFS is how many files in LFS, and folders of them, are looked at.
const maxLFS = 200_000

// plainTree returns an error unless all beneath dir, to some depth, are folders and
// files. It waits for nothing and leaves no root, whatever is put in a folder's place.
func (r *repoReader) plainTree(dir string, depth int, entries *int) error {
	list, err := r.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // git-lfs reads it no better
	}
	if err != nil {
		return err
	}
	if *entries += len(list); *entries > maxLFS {
		return fmt.Errorf("%s holds too much: git lfs prune it where git-lfs is", dir)
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		switch {
		case e.IsDir() && depth > 0:
			if err := r.plainTree(path, depth-1, entries); err != nil {
				return err
			}
		case !e.Type().IsRegular():
			return fmt.Errorf("%s is neither a folder nor a file; remove it", path)
		}
	}
	return nil
}

// maxFilters is how many names of filters are told.
const maxFilters = 32

func (r *repoReader) addState(name string, content []byte) {
	r.state = append(r.state, abi.ConfigEntry{Key: strings.ToValidUTF8(name, "\uFFFD"), Value: strings.ToValidUTF8(string(content), "\uFFFD")})
}

// readRemotes reads the repositories that the configuration's remotes, or the
// call's arguments, name by a path beneath the roots: git opens them as it
// opens its own.
func (r *repoReader) readRemotes(cwd, root string, args []string) {
	var dirs []string
	for dir := cwd; ; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
		if dir == root || dir == "/" {
			break
		}
	}
	tried := make(map[string]bool)
	for _, name := range r.remoteNames(args) {
		p, ok := localPath(name)
		if !ok || tried[p] {
			continue
		}
		tried[p] = true
		if len(tried) > maxRemotes {
			r.remoteErr = errors.New("the configuration and the arguments name too many folders")
			return
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
				r.remoteErr = err
				return
			}
		}
	}
}

// remoteNames are all texts that git may take for the place of a remote.
func (r *repoReader) remoteNames(args []string) []string {
	var names, to, from []string
	for _, e := range r.entries {
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

// localPath answers the path that the place of a remote is, as git sees it
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
// path.c, get_repo_path in builtin/clone.c). What is no repository is nothing.
func (r *repoReader) readRemote(p string) error {
	for _, candidate := range []string{p + "/.git", p, p + ".git/.git", p + ".git"} {
		fi, err := os.Stat(candidate)
		if err != nil || r.rootOf(filepath.Clean(candidate)) == "" {
			continue // Outside of the roots, which the policy says.
		}
		gitDir, err := r.resolve(candidate)
		if err != nil {
			return err
		}
		if fi.Mode().IsRegular() {
			b, err := r.readFile(candidate, maxGitFileOfGit)
			if err != nil || !strings.HasPrefix(string(b), "gitdir: ") {
				continue // A bundle, or any file.
			}
			f, err := r.followGitFile(filepath.Dir(candidate), candidate)
			if err == nil {
				gitDir, err = r.resolve(f)
			}
			if err != nil {
				return err
			}
		} else if ok, err := r.isGitDir(candidate); err != nil {
			return err
		} else if !ok {
			continue
		}
		if r.judged[gitDir] {
			continue
		}
		r.judged[gitDir] = true
		own := r.entries
		r.entries = nil
		common, err := r.readRepository(gitDir)
		read := r.entries
		r.remotes = append(r.remotes, read...)
		r.entries = own
		if err != nil {
			return err
		}
		names, _ := r.readHooks(common, gitDir, read)
		for _, name := range names {
			if !slices.Contains(r.remoteHooks, name) {
				r.remoteHooks = append(r.remoteHooks, name)
			}
		}
	}
	return nil
}
