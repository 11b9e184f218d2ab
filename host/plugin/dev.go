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

// quiet is how long nothing may change before a build begins: editors write a
// file in several steps.
const quiet = 30 * time.Millisecond

// Built is one round of Dev.
type Built struct {
	Modules []Module
	// Saved is when the change was seen, Took how long building took.
	Saved time.Time
	Took  time.Duration
	// Changed: the tool's folder is not as it was.
	Changed bool
	// Digest is one of all that was put into the tool's folder.
	Digest string
	// Err is why there is nothing new: the daemon goes on with what it has.
	Err error
}

// Dev builds the project, drops it into the tools folder of a daemon as the tool
// name, and does so again whenever a source changes, until ctx ends. Each round
// is told to report, which may take its time.
func (p *Project) Dev(ctx context.Context, toolsDir, name string, report func(Built)) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", p.Dir, err)
	}
	defer watcher.Close()
	if err := p.watch(watcher); err != nil {
		return fmt.Errorf("watch %s: %w", p.Dir, err)
	}
	if p.workshop, err = toolchain.OpenWorkshop(ctx, p.Language, p.Dir); err != nil {
		return err
	}
	// What is built quickly is for this daemon: the modules in the project's
	// folder, which somebody may copy elsewhere, stay as plugin build made them.
	if p.out, err = os.MkdirTemp("", "toold-dev-"); err != nil {
		p.workshop.Close()
		return err
	}
	defer func() {
		p.workshop.Close()
		os.RemoveAll(p.out)
		p.workshop, p.out = nil, ""
	}()
	round := func(saved time.Time) {
		start := time.Now()
		b := Built{Saved: saved}
		b.Modules, b.Err = p.Build(ctx, false, nil)
		if b.Err == nil {
			b.Changed, b.Digest, b.Err = p.drop(filepath.Join(toolsDir, name), b.Modules)
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
			if !p.source(e.Name) || e.Op == fsnotify.Chmod {
				continue
			}
			if e.Op.Has(fsnotify.Create) {
				if st, err := os.Stat(e.Name); err == nil && st.IsDir() {
					if err := p.watch(watcher); err != nil {
						return err
					}
				}
			}
			if due == nil {
				saved = time.Now()
			}
			due = time.After(quiet)
		case <-due:
			due = nil
			round(saved)
		}
	}
}

// source reports whether a change of a file is one of what is built.
func (p *Project) source(name string) bool {
	rel, err := filepath.Rel(p.Dir, name)
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		if skipped(part) {
			return false
		}
	}
	base := filepath.Base(name)
	return filepath.Ext(name) != ".wasm" && !strings.HasSuffix(base, "~") && base != "Cargo.lock" && base != CasesFile
}

func skipped(part string) bool {
	return strings.HasPrefix(part, ".") || part == "target" || part == "node_modules" || part == "build"
}

// watch adds all folders with sources.
func (p *Project) watch(w *fsnotify.Watcher) error {
	return filepath.WalkDir(p.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != p.Dir && skipped(d.Name()) {
			return fs.SkipDir
		}
		return w.Add(path)
	})
}

// drop puts a project's modules and definition into a tool's folder. A new
// folder appears whole; in one that is there each file that is not the same is
// replaced in one step. It reports whether there was one.
func (p *Project) drop(to string, modules []Module) (changed bool, digest string, err error) {
	files := map[string]string{} // name -> where it is
	for _, m := range modules {
		files[m.File] = filepath.Join(first(p.out, p.Dir), m.File)
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
	// Aside, under a name that is no tool's.
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
