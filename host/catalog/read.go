package catalog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/tools"
)

// places is how many of some work may be under way at once: it holds one token for
// each.
type places chan struct{}

// do runs f when there is a place. It reports false if ctx has ended, whether or not f
// ran before that.
func (p places) do(ctx context.Context, f func()) bool {
	select {
	case p <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-p }()
	if ctx.Err() != nil {
		return false
	}
	f()
	return ctx.Err() == nil
}

// full reports whether the next that comes has to wait.
func (p places) full() bool { return len(p) == cap(p) }

// settle is how long the files of a tool must have been unchanged before they are
// read.
const settle = 100 * time.Millisecond

// reader reads versions of tools from disk.
type reader struct {
	dir, restricted string // as Config.Dir and Config.Restricted
	reads           places
}

func (r *reader) open() (*disk.Disk, error) { return disk.Open(r.dir, r.restricted) }

// maxUnstable is how often a folder that keeps changing is read again before the
// load fails.
const maxUnstable = 50

// errUnstable is the error for files that kept changing while they were read.
var errUnstable = errors.New("its files keep changing while they are read; write them elsewhere and rename them into place")

// known is what the last load found on disk.
type known struct {
	stamps *disk.Stamps // of the files; nil reads them whatever they are
	// failed, if set, is the digest of a version that does not load and that is only
	// to be loaded again if it is another one, whatever the stamps say.
	failed string
}

// stable reads a version whose files did not change while they were read, nor for
// settle before. A nil candidate without an error means that nothing has changed
// since last.
func (r *reader) stable(ctx context.Context, name string, last known, terms terms) (v *candidate, seen *disk.Stamps, err error) {
	for range maxUnstable {
		var again bool
		if !r.reads.do(ctx, func() { v, seen, again, err = r.once(name, last, terms) }) {
			return nil, nil, ctx.Err()
		}
		if !again {
			return v, seen, err
		}
		// Some file changed just now, or in the future of this clock (other hosts
		// may write here). The version is stable if a later look finds the same.
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		still := false
		if seen == nil {
			continue
		}
		if d, e := r.open(); e == nil {
			still = d.Same(seen) && d.Current()
			d.Close()
		}
		if still {
			return v, seen, err
		}
	}
	return nil, nil, errUnstable
}

// once reads the folder. again reports whether it may be incomplete.
func (r *reader) once(name string, last known, terms terms) (v *candidate, seen *disk.Stamps, again bool, err error) {
	d, err := r.open()
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if !exists(r.dir) {
				return &candidate{name: name, gone: "the tools folder is gone"}, nil, false, nil
			}
			if r.restricted == "" || exists(r.restricted) {
				// A link in the path was replaced while it was resolved.
				return nil, nil, true, err
			}
		}
		return nil, nil, false, fmt.Errorf("%w; make the folder readable", err)
	}
	defer d.Close()
	same := last.stamps != nil && d.Same(last.stamps)
	if same && last.failed == "" {
		return nil, last.stamps, false, nil
	}
	v = readCandidate(d, name, terms)
	if same && v.digest == last.failed {
		return nil, last.stamps, false, nil
	}
	quiet := time.Now().UnixNano() - d.Newest()
	seen = d.Seen()
	return v, seen, quiet < int64(settle) || !d.Same(seen) || !d.Current(), nil
}

// recall reads the modules of v again, which it forgot. It reports false if its
// files are others now.
func (r *reader) recall(ctx context.Context, v *candidate) bool {
	var now *candidate
	r.reads.do(ctx, func() {
		read, _, again, err := r.once(v.name, known{}, v.terms)
		if err == nil && !again && read != nil && read.digest == v.digest {
			now = read
		}
	})
	if now == nil {
		return false
	}
	v.handler, v.linked, v.policies = now.handler, now.linked, now.policies
	return true
}

// exists reports whether a folder exists. It tries again before it reports false: a
// link in the path may have been replaced, and its old target removed, during the
// lookup. Kubernetes does that on every change of a volume.
func exists(dir string) bool {
	for range 3 {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// misnamed is an entry of tools.d that would be a tool under another name, or in a folder.
type misnamed struct{ name, why string }

// toolNames lists the entries of tools.d whose name may be a tool's, in order, and those
// that are a tool's but for their name: they would otherwise be ignored without a word.
func toolNames(dir string) (names []string, others []misnamed, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if tools.ValidName(e.Name()) {
			names = append(names, e.Name())
		} else if why := misplaced(dir, e); why != "" {
			others = append(others, misnamed{e.Name(), why})
		}
	}
	return names, others, nil
}

// misplaced says why an entry of tools.d that is meant to be a tool is none. It is empty
// for all else, such as what begins with a dot.
func misplaced(dir string, e fs.DirEntry) string {
	name := e.Name()
	switch file := filepath.Join(dir, name); {
	case strings.HasPrefix(name, "."):
		return ""
	case e.IsDir():
		if !slices.ContainsFunc([]string{tools.DefinitionFile, tools.HandlerFile, tools.PolicyFile}, func(f string) bool {
			_, err := os.Lstat(filepath.Join(file, f))
			return err == nil
		}) {
			return ""
		}
		return fmt.Sprintf("the name of the folder %q %s", file, tools.NameFault(name))
	case filepath.Ext(name) == ".wasm":
		return fmt.Sprintf("a tool is a folder, and this is a file; put it there as %s, or as %s if it is a policy", filepath.Join(strings.TrimSuffix(file, ".wasm"), tools.HandlerFile), tools.PolicyFile)
	}
	return ""
}
