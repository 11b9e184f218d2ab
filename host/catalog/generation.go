package catalog

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/tools"
)

// generation is a Tool with its reference count.
type generation struct {
	tool   tools.Tool
	has    layers // the policies that it was loaded with
	digest string
	loaded time.Time
	// program is what was found of tool.Binary, for the kind Binary.
	program *disk.Program
	// since is from when on each of the tool's policies is asked; it is not
	// changed once the generation serves.
	since []time.Time

	refs    int  // calls that hold it; guarded by Catalog.mu
	retired bool // guarded by Catalog.mu: it is not handed out any more
}

// release gives back one reference. It reports whether it was the last of a
// generation that is retired, which the caller then ends.
func (g *generation) release() (last bool) {
	g.refs--
	return g.retired && g.refs == 0
}

// retire takes g, which may be nil, out of service. It reports whether no call holds
// it, and the caller then ends it.
func (g *generation) retire() (last bool) {
	if g == nil {
		return false
	}
	g.retired = true
	return g.refs == 0
}

// begin has g serve from now on, in the place of old, which may be nil.
func (g *generation) begin(old *generation, now time.Time) {
	g.loaded, g.since = now, make([]time.Time, len(g.tool.Policies))
	for i, digest := range g.tool.PolicyDigests {
		g.since[i] = now
		if old == nil {
			continue
		}
		if was := slices.Index(old.tool.PolicyDigests, digest); was >= 0 {
			g.since[i] = old.since[was]
		}
	}
}

func (g *generation) close() {
	for _, m := range g.tool.Policies {
		m.Close()
	}
	if g.tool.Handler != nil {
		g.tool.Handler.Close()
	}
}

// installed checks that the binary exists now: it may have been installed or
// removed since the tool was loaded.
func (g *generation) installed() (*tools.Tool, *fault.Error) {
	t := &g.tool
	if t.Kind != tools.Binary {
		return t, nil
	}
	if p := g.program; p.Err != nil { // an interpreter is missing
		return nil, fault.Errorf(fault.ToolNotInstalled, "tool %s cannot start: %s %w", t.Name, p.File, p.Err)
	}
	if disk.Executable(t.Binary) {
		return t, nil
	}
	name := t.Def.Binary
	if name == "" {
		name = t.Name
	}
	file, ok := disk.LookBinary(name)
	if !ok {
		where := "in " + tools.BinaryPath
		if filepath.IsAbs(name) {
			where = "there"
		}
		return nil, fault.Errorf(fault.ToolNotInstalled, "tool %s runs %s, and no such program is %s; install it on the host", t.Name, name, where)
	}
	found := *t
	found.Binary = file
	return &found, nil
}
