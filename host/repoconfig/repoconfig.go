package repoconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/pdk/abi"
)

// Bounds of one Read. Repositories with thousands of branches stay
// well beneath them; what is beyond sets Error.
const (
	maxConfigBytes   = 1 << 20 // of all files together
	maxConfigEntries = 10000
	maxIncludeDepth  = 10      // git's own
	maxGitFile       = 1 << 16 // .git files, HEAD, commondir and alternates
	maxAlternates    = 5       // git's own

	maxSubmodules     = 1000 // folders that are looked at
	maxSubmoduleDepth = 10

	maxRepoFiles = 200000  // entries of folders that may hold links, and of any one folder
	maxListed    = 1000000 // entries of all folders that are read
	maxResolved  = 4000    // paths that may lead through links
	maxRepoDepth = 20
	maxRemotes   = 250 // paths that may be remotes
)

// Read reads what the git repository around cwd makes git do: its
// configuration, as far as the repository itself brings it along (config, what
// that includes, config.worktree, and, apart, those of its submodules), and
// the state of operations that were begun. The user's and the system's
// configuration are the operator's and not in it. args are those of the call:
// the repositories beneath the roots that they, or the configuration's
// remotes, name by a path are read as well.
//
// It answers at least what git would read: an includeIf counts as if its
// condition held, and config.worktree as if the extension were on. The
// repository is looked for from cwd upward as git does, but not above the
// root that holds cwd; no repository there is no entry and no Error. Error is
// set whenever git might see something else than what is answered: a syntax
// that git refuses, a path or a link that leads out of roots, something that
// is not a regular file, a git directory that is only half there, or a bound.
//
// What was read may have changed when git reads it again. The policy's
// answer is therefore the first fence of two; the confinement of the process
// is the other.
func Read(cwd string, roots, args []string) *abi.RepoConfig {
	return read(&repoReader{}, cwd, roots, args)
}

// ReadLFS is Read for a git that has git-lfs, which reads further files there.
func ReadLFS(cwd string, roots, args []string) *abi.RepoConfig {
	return read(&repoReader{lfs: true}, cwd, roots, args)
}

func read(r *repoReader, cwd string, roots, args []string) *abi.RepoConfig {
	r.open, r.judged = make(map[string]*tree), make(map[string]bool)
	defer r.close()
	for _, root := range roots {
		p, err := evalSymlinks(root)
		if err != nil {
			continue // A root that is missing holds nothing.
		}
		r.roots = append(r.roots, p)
	}
	at, err := r.locate(cwd, args)
	if err == nil {
		err = r.read(&at, args)
	}
	if err != nil {
		return &abi.RepoConfig{Error: err.Error()}
	}
	c := &abi.RepoConfig{Entries: r.entries, Submodules: r.submodules, State: r.state, Remotes: r.remotes, Modules: r.modules, WorkTree: at.workTree, Hooks: r.hooks, HooksDir: r.hooksDir, RemoteHooks: r.remoteHooks, Bare: r.bare}
	if at.moved {
		c.Dir, c.GitDir = at.dir, at.gitDir
	}
	if r.remoteErr != nil {
		c.RemoteError = r.remoteErr.Error()
	}
	return c
}

type repoReader struct {
	lfs     bool     // what git-lfs reads is looked at
	roots   []string // resolved
	open    map[string]*tree
	entries []abi.ConfigEntry
	state   []abi.ConfigEntry
	bytes   int

	submodules []abi.ConfigEntry
	folders    int // seen while looking for submodules
	links      int // entries seen while looking for links
	listed     int // entries of folders that were read
	resolved   int // paths that were resolved

	remotes   []abi.ConfigEntry
	remoteErr error
	judged    map[string]bool // git directories of remotes

	modules     []abi.ConfigEntry // of .gitmodules
	hooks       []string
	hooksDir    string
	remoteHooks []string
	bare        string
}

func (r *repoReader) close() {
	for _, root := range r.open {
		root.close()
	}
}

func (r *repoReader) read(at *place, args []string) error {
	gitDir, top := at.gitDir, at.dir
	if gitDir == "" {
		var err error
		if gitDir, top, err = r.findGitDir(at.dir, at.root); err != nil {
			return err
		}
		if gitDir == top {
			r.bare = gitDir
		}
	}
	if gitDir != "" {
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
		r.entries, r.submodules = own, r.entries
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
			r.hooks, r.hooksDir = r.readHooks(common, top, own)
			r.readFilters(common, top)
		}
		if !at.looks && r.lfs {
			if err := r.readLFS(common, top); err != nil {
				return err
			}
		}
		if slices.Contains(args, "submodule") {
			if err := r.readModules(top); err != nil {
				return err
			}
		}
	}
	r.readRemotes(at.dir, at.root, args)
	return nil
}

// readRepository appends the configuration of the repository at gitDir, and
// refuses it where git would be led out of the roots. It answers the common
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

func readlink(p string) string {
	target, _ := os.Readlink(p)
	return target
}

// workTree answers what core.worktree names, or "". It refuses a working tree
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

// rootOf answers the root that holds the resolved path p, or "".
func (r *repoReader) rootOf(p string) string {
	best := ""
	for _, root := range r.roots {
		if beneath.Has(root, p) && len(root) > len(best) {
			best = root
		}
	}
	return best
}

// findGitDir follows setup_git_directory_gently_1 in git's setup.c. It answers
// the folder in which it found the git directory, too.
func (r *repoReader) findGitDir(dir, root string) (gitDir, top string, err error) {
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
			// A link into nothing is no repository to git either, but can
			// become one at any time.
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
func (r *repoReader) followGitFile(dir, file string) (string, error) {
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
func (r *repoReader) isGitDir(dir string) (bool, error) {
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
func (r *repoReader) checkHead(file string) error {
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

// commonDir answers what git calls GIT_COMMON_DIR: for a linked worktree the
// git directory of the main one.
func (r *repoReader) commonDir(gitDir string) (string, error) {
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

// evalSymlinks is p without links.
func evalSymlinks(p string) (string, error) {
	if isLinkFree(p) {
		return p, nil
	}
	return beneath.RealPath(p)
}

// isLinkFree reports whether the kernel can tell at once that p leads through no link.
func isLinkFree(p string) bool { return filepath.IsAbs(p) && p == filepath.Clean(p) && linkFree(p) }

// resolve answers p without links. A path out of the roots is an error.
func (r *repoReader) resolve(p string) (string, error) {
	q, err := p, error(nil)
	if !isLinkFree(p) {
		if r.resolved++; r.resolved > maxResolved {
			return "", fmt.Errorf("%s is one symbolic link too many to look at", p)
		}
		q, err = beneath.RealPath(p)
	}
	if errors.Is(err, syscall.ENOTDIR) {
		err = fs.ErrNotExist // To git it is the same.
	}
	if err != nil {
		if r.rootOf(filepath.Clean(p)) != "" {
			return "", plain(err)
		}
		q = "" // Whether it is there is not for the caller to know.
	}
	if r.rootOf(q) == "" {
		return "", fmt.Errorf("%s leads out of the roots", p)
	}
	return q, nil
}

// openPath opens what p names with open, which must lie beneath the roots
// whatever links are on the way.
func (r *repoReader) openPath(p string, open func(t *tree, rel string) (*os.File, error)) (*os.File, error) {
	if !strings.Contains(p, "..") {
		if top := r.rootOf(p); top != "" {
			f, err := r.openBeneath(top, p, open)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				return f, err
			}
		}
	}
	// Links lead to another root, or are absolute.
	q, err := r.resolve(p)
	if err != nil {
		return nil, err
	}
	// Between resolve and open someone may have put a link in the way: the
	// tree does not follow it out.
	f, err := r.openBeneath(r.rootOf(q), q, open)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, err)
	}
	return f, nil
}

// openBeneath opens p beneath the root top.
func (r *repoReader) openBeneath(top, p string, open func(t *tree, rel string) (*os.File, error)) (*os.File, error) {
	root := r.open[top]
	if root == nil {
		var err error
		if root, err = openTree(top); err != nil {
			return nil, plain(err)
		}
		r.open[top] = root
	}
	rel := strings.TrimLeft(strings.TrimPrefix(p, top), "/")
	if rel == "" {
		rel = "."
	}
	f, err := open(root, rel)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, fs.ErrNotExist // To git it is the same.
	}
	if err != nil {
		return nil, plain(err)
	}
	return f, nil
}

// readDir lists a folder beneath the roots. It keeps no more than maxRepoFiles entries at
// a time, and reads maxListed of all folders.
func (r *repoReader) readDir(p string) ([]fs.DirEntry, error) {
	f, err := r.openPath(p, (*tree).openDir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	most := min(maxRepoFiles, maxListed-r.listed)
	list, err := f.ReadDir(most + 1) // in no order
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", p, plain(err))
	}
	if r.listed += len(list); len(list) > most {
		return nil, fmt.Errorf("%s holds too many files to look at", p)
	}
	return list, nil
}

// readFile reads a regular file beneath the roots of at most limit bytes.
func (r *repoReader) readFile(p string, limit int) ([]byte, error) {
	f, err := r.openPath(p, (*tree).open)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", p)
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p, plain(err))
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%s is too large", p)
	}
	return b, nil
}

// plain takes the operation off a path error: the path is in the message
// already, or is one that the caller must not learn.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// parseGitConfig reads git's configuration syntax as git_parse_source in
// git's config.c does, and calls emit for each variable in order, with the
// key as "git config --list" prints it. It refuses what git refuses, and a
// file with NUL bytes or keys that are not UTF-8, which cannot be passed on
// as they are.
func parseGitConfig(b []byte, emit func(key, value string, hasValue bool) error) error {
	s := &configScanner{b: b, line: 1}
	if strings.IndexByte(string(b), 0) >= 0 {
		return errors.New("holds a NUL byte")
	}
	if rest, ok := strings.CutPrefix(string(b), "\uFEFF"); ok {
		s.b = []byte(rest)
	}
	section := ""
	for {
		c := s.next()
		switch {
		case c == '\n':
			if s.eof {
				return nil
			}
		case isConfigSpace(c):
		case c == '#' || c == ';':
			for c != '\n' {
				c = s.next()
			}
			if s.eof {
				return nil
			}
		case c == '[':
			name, ok := s.section()
			if !ok || !utf8.ValidString(name) {
				return s.fault("section")
			}
			section = name + "."
		case isConfigAlpha(c):
			key := []byte(section)
			for ; isConfigKeyChar(c); c = s.next() {
				key = append(key, lower(c))
			}
			for c == ' ' || c == '\t' {
				c = s.next()
			}
			value, hasValue := "", false
			if c != '\n' {
				if c != '=' {
					return s.fault("name")
				}
				if value, hasValue = s.value(); !hasValue {
					return s.fault("value")
				}
			}
			if err := emit(string(key), value, hasValue); err != nil {
				return err
			}
			if s.eof {
				return nil
			}
		default:
			return s.fault("line")
		}
	}
}

type configScanner struct {
	b    []byte
	pos  int
	line int
	eof  bool
}

func (s *configScanner) fault(what string) error {
	return fmt.Errorf("bad %s in line %d", what, s.line)
}

// next answers the next byte, "\r\n" as "\n", and "\n" with eof at the end.
func (s *configScanner) next() byte {
	if s.pos >= len(s.b) {
		s.eof = true
		return '\n'
	}
	c := s.b[s.pos]
	s.pos++
	if c == '\r' && s.pos < len(s.b) && s.b[s.pos] == '\n' {
		c = '\n'
		s.pos++
	}
	if c == '\n' {
		s.line++
	}
	return c
}

// section reads what follows "[": [name], [name.sub] or [name "sub"].
func (s *configScanner) section() (string, bool) {
	var name []byte
	for {
		c := s.next()
		switch {
		case s.eof:
			return "", false
		case c == ']':
			return string(name), len(name) > 0
		case isConfigSpace(c):
			return s.subsection(name, c)
		case !isConfigKeyChar(c) && c != '.':
			return "", false
		}
		name = append(name, lower(c))
	}
}

func (s *configScanner) subsection(name []byte, c byte) (string, bool) {
	for isConfigSpace(c) {
		if c == '\n' {
			return "", false
		}
		c = s.next()
	}
	if c != '"' {
		return "", false
	}
	name = append(name, '.')
	for {
		c := s.next()
		if c == '"' {
			break
		}
		if c == '\\' {
			c = s.next()
		}
		if c == '\n' {
			return "", false
		}
		name = append(name, c)
	}
	return string(name), s.next() == ']'
}

func (s *configScanner) value() (string, bool) {
	var v []byte
	quote, spaces := false, 0
	for {
		c := s.next()
		switch {
		case c == '\n':
			return string(v), !quote
		case isConfigSpace(c) && !quote:
			if len(v) > 0 {
				spaces++
			}
			continue
		case !quote && (c == ';' || c == '#'):
			for c != '\n' {
				c = s.next()
			}
			return string(v), true
		}
		for ; spaces > 0; spaces-- {
			v = append(v, ' ')
		}
		switch c {
		case '"':
			quote = !quote
		case '\\':
			switch c := s.next(); c {
			case '\n':
			case 't':
				v = append(v, '\t')
			case 'b':
				v = append(v, '\b')
			case 'n':
				v = append(v, '\n')
			case '\\', '"':
				v = append(v, c)
			default:
				return "", false
			}
		default:
			v = append(v, c)
		}
	}
}

// Character classes as git has them, independent of the locale.

func isConfigSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isConfigAlpha(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

func isConfigKeyChar(c byte) bool { return isConfigAlpha(c) || '0' <= c && c <= '9' || c == '-' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
