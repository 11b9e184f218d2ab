package repoconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/toold/toold/pdk/abi"
)

// stateFiles are the files from which git continues what was begun, as far as
// they name programs, options or commands (sequencer.c,
// builtin/rebase.c and builtin/am.c). The other files beside them are messages,
// object names, counters and markers.
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
// be read there, git cannot read either.
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
// files. It never blocks and leaves no root, whatever is put in a folder's place.
func (r *repoReader) plainTree(dir string, depth int, entries *int) error {
	list, err := r.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // git-lfs cannot read it either
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

// maxFilters is how many names of filters are reported.
const maxFilters = 32

func (r *repoReader) addState(name string, content []byte) {
	r.state = append(r.state, abi.ConfigEntry{Key: strings.ToValidUTF8(name, "\uFFFD"), Value: strings.ToValidUTF8(string(content), "\uFFFD")})
}
