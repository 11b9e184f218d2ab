package repoconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxGitFile bounds .git files, HEAD, commondir and alternates, in bytes.
const maxGitFile = 1 << 16

// findGitDir follows setup_git_directory_gently_1 in git's setup.c. It returns
// the folder in which it found the git directory, too.
func (r *roots) findGitDir(dir, root string) (gitDir, top string, err error) {
	for {
		candidate := dir + "/.git"
		fi, err := os.Stat(candidate)
		switch {
		case err == nil && fi.IsDir():
			ok, err := r.isGitDir(candidate)
			if err != nil || ok {
				return candidate, dir, err
			}
		case err == nil && fi.Mode().IsRegular():
			gitDir, err := r.followGitFile(dir, candidate)
			return gitDir, dir, err
		case err == nil:
			return "", "", fmt.Errorf("%s is neither a file nor a folder", candidate)
		case !errors.Is(err, fs.ErrNotExist):
			return "", "", fmt.Errorf("look for repository: %w", plain(err))
		default:
			// A link that leads nowhere is not a repository to git either, but
			// can become one at any time.
			if _, err := os.Lstat(candidate); err == nil {
				return "", "", fmt.Errorf("%s leads nowhere", candidate)
			}
		}
		if ok, err := r.isGitDir(dir); err != nil || ok {
			return dir, dir, err
		}
		if dir == root || dir == "/" {
			return "", "", nil
		}
		dir = filepath.Dir(dir)
	}
}

// followGitFile reads the "gitdir: PATH" of a worktree or a submodule.
func (r *roots) followGitFile(dir, file string) (string, error) {
	b, err := r.readFile(file, maxGitFile)
	if err != nil {
		return "", err
	}
	rest, ok := strings.CutPrefix(string(b), "gitdir: ")
	rest = strings.TrimRight(rest, "\r\n")
	if !ok || rest == "" || strings.ContainsAny(rest, "\x00\n\r") {
		return "", fmt.Errorf("%s has not the form \"gitdir: PATH\"", file)
	}
	if !strings.HasPrefix(rest, "/") {
		rest = dir + "/" + rest
	}
	ok, err = r.isGitDir(rest)
	if err == nil && !ok {
		err = fmt.Errorf("%s names %s, which is not a git directory", file, rest)
	}
	return rest, err
}

// isGitDir follows is_git_directory in git's setup.c.
func (r *roots) isGitDir(dir string) (bool, error) {
	if _, err := os.Lstat(dir + "/HEAD"); err != nil {
		return false, nil
	}
	common, err := r.commonDir(dir)
	if err != nil {
		return false, err
	}
	for _, sub := range []string{"/objects", "/refs"} {
		const execute = 1
		if syscall.Access(common+sub, execute) != nil {
			return false, nil
		}
	}
	if err := r.checkHead(dir + "/HEAD"); err != nil {
		return false, err
	}
	if _, err := r.resolve(dir); err != nil {
		return false, err
	}
	return true, nil
}

// checkHead makes sure that HEAD is what every version of git takes for a
// valid one (validate_headref). Where it is not, git would look further up,
// or not, by version.
func (r *roots) checkHead(file string) error {
	if target := readlink(file); target != "" {
		if strings.HasPrefix(target, "refs/") {
			return nil
		}
		return fmt.Errorf("%s is a link to something else than a reference", file)
	}
	b, err := r.readFile(file, maxGitFile)
	if err != nil {
		return err
	}
	s := string(b)
	if rest, ok := strings.CutPrefix(s, "ref:"); ok {
		// Git looks at the first 255 bytes.
		if i := strings.Index(s, "refs/"); i < 250 && strings.HasPrefix(strings.TrimLeft(rest, " \t\n\r"), "refs/") {
			return nil
		}
	} else if len(s) >= 40 && strings.Trim(s[:40], "0123456789abcdefABCDEF") == "" {
		return nil
	}
	return fmt.Errorf("%s is not a valid HEAD", file)
}

// commonDir returns what git calls GIT_COMMON_DIR: for a linked worktree the
// git directory of the main one.
func (r *roots) commonDir(gitDir string) (string, error) {
	file := gitDir + "/commondir"
	if _, err := os.Lstat(file); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return gitDir, nil
		}
		return "", fmt.Errorf("look for commondir: %w", plain(err))
	}
	b, err := r.readFile(file, maxGitFile)
	if err != nil {
		return "", err
	}
	p := strings.TrimRight(string(b), "\r\n")
	if p == "" || strings.ContainsAny(p, "\x00\n\r") {
		return "", fmt.Errorf("%s does not name a folder", file)
	}
	if !strings.HasPrefix(p, "/") {
		p = gitDir + "/" + p
	}
	// Resolved, since ".." after a link is not where the path came from.
	q, err := r.resolve(p)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return q, nil
}
