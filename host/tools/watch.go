package tools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toold/toold/host/process"
)

// Watch looks at tools when their folders change, until ctx ends or the
// catalog is closed. Where the system gives no notice of changes (it has run
// out of inotify instances, or the file system has none), the slow look at
// everything is what remains, and the log says so.
func (c *Catalog) Watch(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.work.Add(1)
	c.mu.Unlock()
	defer c.work.Done()

	w := &watcher{c: c, folders: map[string]*folder{}, warned: map[string]bool{}}
	var events chan fsnotify.Event
	var faults chan error
	if n, err := c.notify(); err != nil {
		c.log.Warn("no notice of changes in tools.d; it is looked at now and then", "every", c.cfg.Restat, "error", err)
	} else {
		w.notify = n
		events, faults = n.Events, n.Errors
		defer n.Close()
	}
	s := newSchedule(c.cfg.Settle, c.cfg.Restat, time.Now())
	w.follow()
	// What changed between Open and here was heard by nobody.
	s.touch(everything, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, name := range w.unheard {
			s.touch(name, time.Now())
		}
		w.unheard = nil
		timer.Reset(time.Until(s.next()))
		select {
		case e := <-events:
			for _, name := range w.heard(e) {
				s.touch(name, time.Now())
			}
		case err := <-faults:
			// Events were lost: anything may have changed.
			c.log.Warn("notice of changes in tools.d was lost", "error", err)
			s.touch(everything, time.Now())
		case <-timer.C:
			names, all := s.take(time.Now())
			if all || len(names) > 0 {
				// Before looking, so that what changes after the look is heard.
				w.follow()
			}
			if all {
				c.examineAll()
			}
			for _, name := range names {
				c.examine(name)
			}
		case <-c.changed:
			// The files of a tool may be in other folders now.
			w.follow()
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return nil
		}
	}
}

// watcher is what Watch knows of the folders that it hears from. One goroutine
// owns it.
type watcher struct {
	c       *Catalog
	notify  *fsnotify.Watcher // nil: nothing is heard
	folders map[string]*folder
	// tops are the real paths of tools.d and the restricted folder.
	tools, restricted string
	warned            map[string]bool
	// unheard are tools in whose folders something may have changed just
	// before they were watched.
	unheard []string
}

// folder is one folder that is watched, by its path without links.
type folder struct {
	id os.FileInfo
	// owners are the tools that it concerns, by any of its files.
	owners map[string]bool
	// parent: it holds tools.d or the restricted folder, and concerns them
	// only as far as base names them.
	bases map[string]bool
}

// heard turns one event into the tools that it may concern.
func (w *watcher) heard(e fsnotify.Event) []string {
	dir, base := filepath.Dir(e.Name), filepath.Base(e.Name)
	var out []string
	if f := w.folders[e.Name]; f != nil { // of the folder itself: moved, removed, chmod
		out = slices.AppendSeq(out, maps.Keys(f.owners))
		if len(f.bases) > 0 {
			out = append(out, everything)
		}
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			// The next folder of that name may even have its inode.
			w.forget(e.Name)
		}
	}
	switch f := w.folders[dir]; {
	case dir == w.tools:
		if e.Has(fsnotify.Create) {
			// What is written into a new folder comes next.
			w.listen(e.Name, base)
		}
		if ValidName(base) {
			return append(out, base)
		}
		return append(out, everything) // ..data, on which any of them may stand
	case dir == w.restricted:
		name, ext := strings.TrimSuffix(base, path.Ext(base)), path.Ext(base)
		if ValidName(name) && slices.Contains([]string{".wasm", ".sh", ".py"}, ext) {
			return append(out, name)
		}
		return append(out, everything)
	case f != nil:
		out = slices.AppendSeq(out, maps.Keys(f.owners))
		if f.bases[base] || len(f.bases) > 0 && strings.HasPrefix(base, "..") {
			out = append(out, everything)
		}
	}
	return out
}

// listen watches the folder of one tool that has just come.
func (w *watcher) listen(dir, name string) {
	if !ValidName(name) || w.folders[dir] != nil {
		return
	}
	if fi, err := os.Lstat(dir); err == nil && fi.IsDir() {
		w.add(dir, &folder{id: fi, owners: map[string]bool{name: true}, bases: map[string]bool{}})
	}
}

func (w *watcher) add(dir string, f *folder) {
	if err := w.notify.Add(dir); err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !w.warned[dir] {
			w.warned[dir] = true
			w.c.log.Warn("no notice of changes in a folder of tools.d; it is looked at now and then", "folder", dir, "every", w.c.cfg.Restat, "error", err)
		}
		return
	}
	delete(w.warned, dir)
	w.folders[dir] = f
	w.unheard = slices.AppendSeq(w.unheard, maps.Keys(f.owners))
	if dir == w.tools || dir == w.restricted {
		w.unheard = append(w.unheard, everything)
	}
}

func (w *watcher) forget(dir string) {
	// Gone already when the folder is.
	if err := w.notify.Remove(dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		w.c.log.Debug("unwatch folder", "folder", dir, "error", err)
	}
	delete(w.folders, dir)
}

// follow makes the folders that are watched those that the tools are in now:
// links are followed, and a folder that was replaced by another of the same
// name is watched anew.
func (w *watcher) follow() {
	if w.notify == nil {
		return
	}
	want := map[string]*folder{}
	add := func(real string) *folder {
		if f := want[real]; f != nil || real == "" {
			return f
		}
		fi, err := os.Stat(real)
		if err != nil || !fi.IsDir() {
			return nil
		}
		want[real] = &folder{id: fi, owners: map[string]bool{}, bases: map[string]bool{}}
		return want[real]
	}
	w.tools, w.restricted = realPath(w.c.cfg.Dir), realPath(w.c.cfg.Restricted)
	add(w.tools)
	add(w.restricted)
	for _, top := range []string{w.c.cfg.Dir, w.c.cfg.Restricted} {
		if top == "" {
			continue
		}
		if f := add(realPath(filepath.Dir(top))); f != nil {
			f.bases[filepath.Base(top)] = true
		}
	}
	for name, dirs := range w.c.folders() {
		for _, dir := range dirs {
			real := realPath(dir)
			if real == w.tools || real == w.restricted || !(w.tools != "" && process.Beneath(w.tools, real)) && !(w.restricted != "" && process.Beneath(w.restricted, real)) {
				continue // heard of as a whole, or outside
			}
			if f := add(real); f != nil {
				f.owners[name] = true
			}
		}
	}
	for dir, f := range w.folders {
		if n := want[dir]; n == nil || !os.SameFile(n.id, f.id) {
			w.forget(dir)
		}
	}
	for dir, f := range want {
		if w.folders[dir] == nil {
			w.add(dir, f)
		} else {
			w.folders[dir] = f
		}
	}
}

// realPath is dir without links; empty when it is not there.
func realPath(dir string) string {
	if dir == "" {
		return ""
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	return real
}

// folders are those that hold files of each tool, and of each name that may
// become one.
func (c *Catalog) folders() map[string][]string {
	out := map[string][]string{}
	names, _ := toolNames(c.cfg.Dir) // a look at everything says what is wrong
	for _, name := range names {
		out[name] = []string{filepath.Join(c.cfg.Dir, name)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, e := range c.tools {
		for p := range e.stamps {
			top := c.cfg.Dir
			if p.restricted {
				top = c.cfg.Restricted
			}
			if dir := filepath.Join(top, filepath.FromSlash(path.Dir(p.path))); !slices.Contains(out[name], dir) {
				out[name] = append(out[name], dir)
			}
		}
	}
	return out
}

// examineAll looks at every folder and at every tool that is known.
func (c *Catalog) examineAll() {
	names, err := toolNames(c.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.log.Error("look at the tools folder", "error", fmt.Errorf("%w; make it readable", err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.examineLocked(name)
	}
	for name := range c.tools {
		c.examineLocked(name)
	}
}
