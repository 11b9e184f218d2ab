package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
)

// catalogueFile is the index of a catalogue: for each tool it lists the files in the folder of the tool's name, with
// their sha256.
const catalogueFile = "catalogue.json"

// Limits on catalogues, which come from others.
const (
	maxCatalogue   = 1 << 20
	maxToolFiles   = 64
	maxToolFile    = 64 << 20
	maxToolTotal   = 256 << 20
	maxFetchBlocks = 4 << 20 // in units of 512 bytes, for a file that git creates
	fetchTimeout   = 5 * time.Minute
)

// catalogue is the content of a catalogueFile.
type catalogue struct {
	// Tools lists the files of each tool: path in its folder to sha256 in hex.
	Tools map[string]map[string]string `json:"tools"`
}

// fileName matches valid names for a file of a tool: no path leaves the tool's folder, is hidden, or has a special
// meaning to a terminal or another file system.
var fileName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){0,3}$`)

// digestRule matches a sha256 in hex.
var digestRule = regexp.MustCompile(`^[0-9a-f]{64}$`)

// source is an open catalogue with the means to read its files.
type source struct {
	// name is its location: a folder, or the address of a repository. An update opens it again.
	name string
	// commit is the commit of a repository.
	commit string
	list   catalogue
	// read returns the content of a regular file of at most limit bytes.
	read  func(name string, limit int64) ([]byte, error)
	close func()
}

// openSource opens the catalogue at from: a folder, the address of a git repository, or "" for the tools that come
// with toolctl. commit applies to a repository.
func openSource(ctx context.Context, from, commit string) (*source, error) {
	var s *source
	var err error
	switch {
	case from == "":
		from, err = builtIn()
		if err == nil {
			s, err = openFolder(from)
		}
	case isAddress(from):
		s, err = openRepository(ctx, from, commit)
		commit = ""
	default:
		s, err = openFolder(from)
	}
	if err == nil && commit != "" {
		s.close()
		return nil, usageError{fmt.Errorf("--commit is for the address of a repository, and %s is a folder", quote(from))}
	}
	if err != nil {
		return nil, fmt.Errorf("open the catalogue: %w", err)
	}
	text, err := s.read(catalogueFile, maxCatalogue)
	if err == nil {
		err = s.list.parse(text)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("read %s of the catalogue %s: %w", catalogueFile, quote(from), err)
	}
	return s, nil
}

// builtIn returns the folder of the tools that come with this toolctl.
func builtIn() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	top := filepath.Dir(filepath.Dir(self)) // the parent of bin
	for _, dir := range []string{filepath.Join(top, "tools.d"), filepath.Join(top, "share", "toold", "tools.d")} {
		if _, err := os.Lstat(filepath.Join(dir, catalogueFile)); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no tools came with %s; name a catalogue: --from FOLDER, --from https://HOST/REPOSITORY", self)
}

// isAddress reports whether from is the address of a repository, not a folder.
func isAddress(from string) bool {
	if strings.Contains(from, "://") || strings.Contains(from, "::") {
		return true
	}
	host, _, scp := strings.Cut(from, ":")
	return scp && !strings.Contains(host, "/")
}

// parse parses a catalogueFile strictly.
func (c *catalogue) parse(text []byte) error {
	if err := strictjson.Unmarshal(text, c); err != nil {
		return err
	}
	if len(c.Tools) == 0 {
		return errors.New("it has no tools")
	}
	for name, files := range c.Tools {
		if !tools.ValidName(name) {
			return fmt.Errorf("%q cannot be the name of a tool", name)
		}
		if len(files) == 0 || len(files) > maxToolFiles {
			return fmt.Errorf("tool %s has %d files; it can have 1 to %d", name, len(files), maxToolFiles)
		}
		for file, digest := range files {
			if !fileName.MatchString(file) {
				return fmt.Errorf("tool %s: %q cannot be the name of a file: use relative paths of letters, digits, dots, - and _, nothing hidden", name, file)
			}
			if strings.HasSuffix(file, keptSuffix) {
				return fmt.Errorf("tool %s: %q cannot be the name of a file: toolctl makes files that end with %s", name, file, keptSuffix)
			}
			if !digestRule.MatchString(digest) {
				return fmt.Errorf("tool %s: the sha256 of %s is %q; write 64 digits in lower-case hex", name, file, digest)
			}
		}
	}
	return nil
}

// tool reads the files of a tool and verifies them against the catalogue's digests.
func (s *source) tool(name string) (map[string][]byte, error) {
	want, ok := s.list.Tools[name]
	if !ok {
		return nil, fmt.Errorf("the catalogue has no tool %q; it has %s", name, strings.Join(sortedKeys(s.list.Tools), ", "))
	}
	files := map[string][]byte{}
	left := int64(maxToolTotal)
	for _, file := range sortedKeys(want) {
		data, err := s.read(name+"/"+file, min(left, maxToolFile))
		if err != nil {
			return nil, fmt.Errorf("read %s of tool %s: %w", file, name, err)
		}
		left -= int64(len(data))
		if got := digestOf(data); got != want[file] {
			return nil, fmt.Errorf("%s of tool %s is not what the catalogue says: its sha256 is %s, and not %s; ask who keeps the catalogue", file, name, got, want[file])
		}
		files[file] = data
	}
	return files, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// openFolder opens a folder as a catalogue. It follows no links.
func openFolder(dir string) (*source, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &source{
		name: dir, close: func() { root.Close() },
		read: func(name string, limit int64) ([]byte, error) { return readFile(root, name, limit) },
	}, nil
}

// readFile reads a regular file under root that is not reached through a link.
func readFile(root *os.Root, name string, limit int64) ([]byte, error) {
	at := ""
	for part := range strings.SplitSeq(name, "/") {
		at = path.Join(at, part)
		info, err := root.Lstat(at)
		switch {
		case err != nil:
			return nil, err
		case at != name && !info.IsDir():
			return nil, fmt.Errorf("%s is not a folder", at)
		case at == name && !info.Mode().IsRegular():
			return nil, fmt.Errorf("%s is not a regular file", at)
		}
	}
	// Non-blocking, in case it has become a pipe since; Root confines one that has become a link.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	return data, checkSize(int64(len(data)), limit)
}

func checkSize(size, limit int64) error {
	if size > limit {
		return fmt.Errorf("it is larger than %s", tools.Size(limit))
	}
	return nil
}

// openRepository fetches one commit of a repository. Its files are read as objects and never checked out: links stay
// text, and neither hooks nor filters run.
func openRepository(ctx context.Context, address, commit string) (_ *source, err error) {
	if commit != "" && !regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`).MatchString(commit) {
		return nil, usageError{fmt.Errorf("the commit is %q; give all of its 40 digits", commit)}
	}
	dir, err := os.MkdirTemp("", "toolctl-catalogue-")
	if err != nil {
		return nil, err
	}
	close := func() { os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			close()
		}
	}()
	git := func(limit int64, args ...string) ([]byte, error) { return runGit(ctx, dir, limit, args...) }
	if _, err := git(1<<16, "init", "--quiet", "--bare", "--template="); err != nil {
		return nil, err
	}
	if _, err := git(1<<16, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance", "--", address, first(commit, "HEAD")); err != nil {
		return nil, err
	}
	found, err := git(1<<16, "rev-parse", "--verify", "--end-of-options", "FETCH_HEAD^{commit}")
	if err != nil {
		return nil, err
	}
	got := strings.TrimSpace(string(found))
	if commit != "" && got != commit {
		return nil, fmt.Errorf("%s gave commit %s in place of %s", quote(address), got, commit)
	}
	return &source{name: address, commit: got, close: close, read: func(name string, limit int64) ([]byte, error) {
		entry, err := git(1<<16, "ls-tree", "-z", "--full-tree", "--end-of-options", got, "--", ":(literal)"+name)
		if err != nil {
			return nil, err
		}
		// MODE SP TYPE SP OBJECT TAB PATH NUL
		fields := strings.Fields(string(entry))
		switch {
		case len(fields) < 4:
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		case fields[0] != "100644" && fields[0] != "100755":
			return nil, fmt.Errorf("%s is not a regular file", name)
		}
		size, err := git(64, "cat-file", "-s", fields[2])
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(size)), 10, 64)
		if err != nil {
			return nil, err
		}
		if err := checkSize(n, limit); err != nil {
			return nil, err
		}
		return git(limit, "cat-file", "blob", fields[2])
	}}, nil
}

// runGit runs the system's git in dir and returns its output of at most limit bytes. It runs no hooks, fetches only
// over https, ssh and local paths, and creates no file larger than maxFetchBlocks.
func runGit(ctx context.Context, dir string, limit int64, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	safe := []string{"-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "fetch.fsckObjects=true",
		// A single file, so that the limit applies.
		"-c", "fetch.unpackLimit=1", "-c", "core.bigFileThreshold=1m",
		"-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always", "-c", "protocol.file.allow=always"}
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit -f %d && exec git "$@"`, maxFetchBlocks), "git"}, append(safe, args...)...)...)
	cmd.Dir = dir
	cmd.WaitDelay = time.Second
	// The operator's settings for a repository of their own must not affect this one; those for authentication must.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "GIT_") && !strings.HasPrefix(name, "GIT_SSH") && !strings.HasPrefix(name, "GIT_SSL") && name != "GIT_ASKPASS"
	})
	cmd.Env = append(cmd.Env, "GIT_DIR="+dir, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	var said limited
	said.left = 4096
	out := limited{left: limit + 1}
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, oneLine(strings.TrimSpace(said.String())))
	}
	return out.Bytes(), checkSize(int64(out.Len()), limit)
}

// limited keeps the first bytes written and drops the rest.
type limited struct {
	bytes.Buffer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(int64(len(p)), l.left)
	l.left -= n
	l.Buffer.Write(p[:n])
	return len(p), nil
}

// listCatalogue builds a catalogueFile from the folders in dir that are tools.
func listCatalogue(dir string) (*catalogue, error) {
	c := &catalogue{Tools: map[string]map[string]string{}}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || !tools.ValidName(e.Name()) {
			continue
		}
		files := map[string]string{}
		err := fs.WalkDir(root.FS(), e.Name(), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := readFile(root, name, maxToolFile)
			if err != nil {
				return err
			}
			files[strings.TrimPrefix(name, e.Name()+"/")] = digestOf(data)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list tool %s: %w", e.Name(), err)
		}
		if len(files) > 0 {
			c.Tools[e.Name()] = files
		}
	}
	text, err := c.text()
	if err != nil {
		return nil, err
	}
	return c, new(catalogue).parse(text)
}
