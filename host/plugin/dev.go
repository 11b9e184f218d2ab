package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toold/toold/pdk/toolchain"
)

// debounce is the delay between the last change and a build: editors write a file
// in several steps.
const debounce = 30 * time.Millisecond

// BuildResult is one build of Dev.
type BuildResult struct {
	Modules []Module
	// Saved is when the change was detected, Took the duration of the build.
	Saved time.Time
	Took  time.Duration
	// Changed reports that the tool's folder has changed.
	Changed bool
	// Digest is that of all files installed in the tool's folder.
	Digest string
	// Err is why nothing was installed: the daemon keeps the previous version.
	Err error
}

// Dev builds the project and installs it in the tools folder of a daemon as the
// tool name, now and whenever a source changes, until ctx ends. It calls report
// after each build; report may be slow.
func (p *Project) Dev(ctx context.Context, toolsDir, name string, report func(BuildResult)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", p.Dir, err)
	}
	defer watcher.Close()
	if err := p.watchFolders(watcher); err != nil {
		return fmt.Errorf("watch %s: %w", p.Dir, err)
	}
	if p.builder, err = toolchain.OpenBuilder(ctx, p.Language, p.Dir); err != nil {
		return err
	}
	// These fast builds are for this daemon only: the optimised modules in the
	// project's folder stay unchanged.
	if p.out, err = os.MkdirTemp("", "toold-dev-"); err != nil {
		p.builder.Close()
		return err
	}
	defer func() {
		p.builder.Close()
		os.RemoveAll(p.out)
		p.builder, p.out = nil, ""
	}()
	round := func(saved time.Time) {
		start := time.Now()
		b := BuildResult{Saved: saved}
		b.Modules, b.Err = p.Build(ctx, false, nil)
		if b.Err == nil {
			b.Changed, b.Digest, b.Err = p.install(filepath.Join(toolsDir, name), b.Modules)
		}
		b.Took = time.Since(start)
		if ctx.Err() == nil {
			report(b)
		}
	}
	round(time.Now())
	var due <-chan time.Time
	var saved time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return fmt.Errorf("watch %s: %w", p.Dir, err)
		case e := <-watcher.Events:
			if !p.isSource(e.Name) || e.Op == fsnotify.Chmod {
				continue
			}
			if e.Op.Has(fsnotify.Create) {
				if st, err := os.Stat(e.Name); err == nil && st.IsDir() {
					if err := p.watchFolders(watcher); err != nil {
						return err
					}
				}
			}
			if due == nil {
				saved = time.Now()
			}
			due = time.After(debounce)
		case <-due:
			due = nil
			round(saved)
		}
	}
}

// isSource reports whether the build depends on a file.
func (p *Project) isSource(name string) bool {
	rel, err := filepath.Rel(p.Dir, name)
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		if isSkipped(part) {
			return false
		}
	}
	base := filepath.Base(name)
	return filepath.Ext(name) != ".wasm" && !strings.HasSuffix(base, "~") && base != "Cargo.lock" && base != CasesFile
}

func isSkipped(part string) bool {
	return strings.HasPrefix(part, ".") || part == "target" || part == "node_modules" || part == "build"
}

// watchFolders watches all folders with sources.
func (p *Project) watchFolders(w *fsnotify.Watcher) error {
	return filepath.WalkDir(p.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != p.Dir && isSkipped(d.Name()) {
			return fs.SkipDir
		}
		return w.Add(path)
	})
}

// install copies a project's modules and definition to a tool's folder. A new
// folder appears complete; in an existing one each changed file is replaced
// atomically. changed reports whether any file changed.
func (p *Project) install(to string, modules []Module) (changed bool, digest string, err error) {
	files := map[string]string{} // name -> where it is
	for _, m := range modules {
		files[m.File] = filepath.Join(firstNonEmpty(p.out, p.Dir), m.File)
	}
	for _, f := range []string{definitionFile, "setup.sh"} {
		if _, err := os.Stat(filepath.Join(p.Dir, f)); err == nil {
			files[f] = filepath.Join(p.Dir, f)
		}
	}
	fresh := false
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		fresh = true
	}
	// A temporary folder whose name is not a valid tool name.
	tmp, err := os.MkdirTemp(filepath.Dir(to), ".drop-")
	if err != nil {
		return changed, "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return changed, "", err
	}
	sum := sha256.New()
	for _, f := range slices.Sorted(maps.Keys(files)) {
		b, err := os.ReadFile(files[f])
		if err != nil {
			return changed, "", err
		}
		fmt.Fprintf(sum, "%s %d\n", f, len(b))
		sum.Write(b)
		if old, err := os.ReadFile(filepath.Join(to, f)); err == nil && string(old) == string(b) {
			continue
		}
		changed = true
		mode := fs.FileMode(0o644)
		if f == "setup.sh" {
			mode = 0o755
		}
		aside := filepath.Join(tmp, f)
		if err := os.WriteFile(aside, b, mode); err != nil {
			return changed, "", err
		}
		if !fresh {
			if err := os.Rename(aside, filepath.Join(to, f)); err != nil {
				return changed, "", err
			}
		}
	}
	digest = hex.EncodeToString(sum.Sum(nil))
	if fresh {
		return true, digest, os.Rename(tmp, to)
	}
	return changed, digest, nil
}
