package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/tools"
)

// Watch reloads tools when their folders change, until ctx ends or the catalog is
// closed. Where the system reports no changes (it is out of inotify instances, or the
// file system does not support them), Watch relies on the check of all folders every
// 5 seconds and logs a warning.
func (c *Catalog) Watch(ctx context.Context) error {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		c.cfg.Logger.Warn("no notice of changes in tools.d; it is looked at now and then", "every", restat, "error", err)
		return c.watch(ctx, nil, restat)
	}
	return c.watch(ctx, n, restat)
}

// watch reloads tools when n, which may be nil, reports changes, and looks at all of
// them every restat. It closes n.
func (c *Catalog) watch(ctx context.Context, n *fsnotify.Watcher, restat time.Duration) error {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.work.Add(1)
		defer c.work.Done()
	}
	c.mu.Unlock()
	if n != nil {
		defer n.Close() // before work is done, which Close waits for
	}
	if closed {
		return nil
	}

	w := &watcher{c: c, notify: n, folders: map[string]*folder{}, warned: map[string]bool{}}
	var events chan fsnotify.Event
	var faults chan error
	if n != nil {
		events, faults = n.Events, n.Errors
	}
	s := newSchedule(settle, restat, time.Now())
	w.follow()
	// Changes between Open and here were not reported to anybody.
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
			c.cfg.Logger.Warn("notice of changes in tools.d was lost", "error", err)
			s.touch(everything, time.Now())
		case <-timer.C:
			names, all := s.take(time.Now())
			if all || len(names) > 0 {
				// Before loading, so that later changes are reported.
				w.follow()
			}
			if all {
				w.reconcileAll()
			}
			for _, name := range names {
				c.reconcile(name)
			}
		case <-c.changed:
			// The files of a tool may have moved to other folders.
			w.follow()
		case <-ctx.Done():
			return nil
		case <-c.ctx.Done():
			return nil
		}
	}
}

// watcher holds the folders that Watch watches. It is owned by one goroutine.
type watcher struct {
	c       *Catalog
	notify  *fsnotify.Watcher // nil: no changes are reported
	folders map[string]*folder
	// tools and restricted are the folders' paths without links.
	tools, restricted string
	warned            map[string]bool
	// misnamed are the names that were logged.
	misnamed map[string]bool
	// unheard are tools whose folders may have changed just before they were
	// watched.
	unheard []string
}

// folder is a folder that is watched.
type folder struct {
	id os.FileInfo
	// owners are the tools that have files in it.
	owners []string
	// bases are the names of tools.d or the restricted folder in it, if it is
	// their parent. Changes of other entries are ignored.
	bases []string
}

// heard returns the tools that an event may concern.
func (w *watcher) heard(e fsnotify.Event) []string {
	dir, base := filepath.Dir(e.Name), filepath.Base(e.Name)
	var out []string
	if f := w.folders[e.Name]; f != nil { // of the folder itself: moved, removed, chmod
		out = append(out, f.owners...)
		if len(f.bases) > 0 {
			out = append(out, everything)
		}
		if e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
			// A new folder of that name may reuse its inode.
			w.forget(e.Name)
		}
	}
	switch f := w.folders[dir]; {
	case dir == w.tools:
		if e.Has(fsnotify.Create) {
			// Files are about to be written into the new folder.
			w.listen(e.Name, base)
		}
		if tools.ValidName(base) {
			return append(out, base)
		}
		return append(out, everything) // ..data, which links of any tool may lead through
	case dir == w.restricted:
		name, ext := strings.TrimSuffix(base, path.Ext(base)), path.Ext(base)
		if tools.ValidName(name) && slices.Contains([]string{".wasm", ".sh", ".py"}, ext) {
			return append(out, name)
		}
		return append(out, everything)
	case f != nil:
		out = append(out, f.owners...)
		if slices.Contains(f.bases, base) || len(f.bases) > 0 && strings.HasPrefix(base, "..") {
			out = append(out, everything)
		}
	}
	return out
}

// listen watches the folder of a tool that was just created.
func (w *watcher) listen(dir, name string) {
	if !tools.ValidName(name) || w.folders[dir] != nil {
		return
	}
	if fi, err := os.Lstat(dir); err == nil && fi.IsDir() {
		w.add(dir, &folder{id: fi, owners: []string{name}})
	}
}

func (w *watcher) add(dir string, f *folder) {
	if err := w.notify.Add(dir); err != nil {
		if !errors.Is(err, fs.ErrNotExist) && !w.warned[dir] {
			w.warned[dir] = true
			w.c.cfg.Logger.Warn("no notice of changes in a folder of tools.d; it is looked at now and then", "folder", dir, "every", restat, "error", err)
		}
		return
	}
	delete(w.warned, dir)
	w.folders[dir] = f
	w.unheard = append(w.unheard, f.owners...)
	if dir == w.tools || dir == w.restricted {
		w.unheard = append(w.unheard, everything)
	}
}

func (w *watcher) forget(dir string) {
	// The watch is gone already if the folder is.
	if err := w.notify.Remove(dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		w.c.cfg.Logger.Debug("unwatch folder", "folder", dir, "error", err)
	}
	delete(w.folders, dir)
}

// follow updates the set of watched folders to those that hold the tools' files now.
// Links are followed, and a folder that was replaced by another of the same name is
// watched again.
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
		want[real] = &folder{id: fi}
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
			f.bases = append(f.bases, filepath.Base(top))
		}
	}
	for name, dirs := range w.owned() {
		for _, dir := range dirs {
			real := realPath(dir)
			if real == w.tools || real == w.restricted || !(w.tools != "" && beneath.Has(w.tools, real)) && !(w.restricted != "" && beneath.Has(w.restricted, real)) {
				continue // watched anyway, or outside
			}
			if f := add(real); f != nil && !(len(f.owners) > 0 && f.owners[len(f.owners)-1] == name) {
				f.owners = append(f.owners, name)
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

// realPath returns dir without links, or an empty string if it does not exist.
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

// owned returns the folders that hold files of each tool, and of each name that
// may become a tool.
func (w *watcher) owned() map[string][]string {
	out := map[string][]string{}
	names, _, _ := toolNames(w.c.cfg.Dir) // reconcileAll logs the error
	for _, name := range names {
		out[name] = []string{filepath.Join(w.c.cfg.Dir, name)}
	}
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	for name, e := range w.c.tools {
		if e.seen.stamps == nil {
			continue
		}
		for p := range e.seen.stamps.All() {
			top := w.c.cfg.Dir
			if p.Restricted {
				top = w.c.cfg.Restricted
			}
			if dir := filepath.Join(top, filepath.FromSlash(path.Dir(p.Path))); !slices.Contains(out[name], dir) {
				out[name] = append(out[name], dir)
			}
		}
	}
	return out
}

// reconcileAll schedules a load of every folder and of every known tool.
func (w *watcher) reconcileAll() {
	names, others, err := toolNames(w.c.cfg.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.c.cfg.Logger.Error("look at the tools folder", "error", fmt.Errorf("%w; make it readable", err))
	}
	told := map[string]bool{}
	for _, m := range others {
		if told[m.name] = true; !w.misnamed[m.name] {
			w.c.cfg.Logger.Warn("no tool, though it has a tool's files", "name", m.name, "reason", m.why)
		}
	}
	w.misnamed = told
	w.c.mu.Lock()
	for name := range w.c.tools {
		names = append(names, name)
	}
	w.c.mu.Unlock()
	slices.Sort(names)
	d, err := w.c.loader.reader.open()
	if err == nil {
		defer d.Close()
	}
	for _, name := range slices.Compact(names) {
		// Looking here needs neither a goroutine nor memory for each tool.
		if err != nil || !w.same(d, name) {
			w.c.reconcile(name)
		}
	}
}

// same reports whether a load of the tool would do nothing, since nothing has
// changed.
func (w *watcher) same(d *disk.Disk, name string) bool {
	w.c.mu.Lock()
	e := w.c.tools[name]
	if e == nil || !e.untouched(time.Now()) {
		w.c.mu.Unlock()
		return false
	}
	stamps := e.seen.stamps
	w.c.mu.Unlock()
	return !w.c.moved(name) && d.Same(stamps)
}
