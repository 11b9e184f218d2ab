package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/tools"
)

// loader turns what is on disk into generations, and remembers which tools have had a
// policy.
type loader struct {
	reader   reader
	compiler compiler
	memory   *memory
	// modules and policies limit what is compiled at once. A version that brings a
	// new policy has places of its own, and waits for no module.
	modules, policies places
}

// outcome is what came of a candidate. At most one of generation, err, same and moved
// is set; none is if ctx ended.
type outcome struct {
	// generation serves from now on.
	generation *generation
	// err is why the candidate does not load. deny reports that the generation before
	// must not go on either, since it would skip a policy.
	err  error
	deny bool
	// same reports that the candidate is what serves already.
	same bool
	// moved reports that the files are others now: read them again.
	moved bool
}

// load makes a generation of v, in the place of old, which may be nil.
func (l *loader) load(ctx context.Context, v *candidate, old *generation) (o outcome) {
	// Recorded first, so that neither a crash nor a failed load forgets that there
	// is a policy.
	err := l.memory.update(v.name, func(p *toolPast, global *bool) {
		p.Policy = p.Policy || v.present.own
		*global = *global || v.present.global
	})
	// The policies on disk are binding even if this version does not load: the
	// generation that serves must not have fewer.
	o.deny = v.legacy || old != nil && old.has.without(v.present)
	if err != nil {
		o.err = fault.Errorf(fault.Internal, "load tool %s: %w", v.name, err)
		return o
	}
	if o.err = l.lost(v); o.err != nil {
		o.deny = true
		return o
	}
	if old != nil && v.digest == old.digest && !(v.installs() && l.compiler.setups.due(v.name, v.programs)) {
		return outcome{same: true}
	}
	turn := l.turn(v, old)
	// A thousand tools that wait would hold a thousand modules: they are read again
	// instead.
	forgotten := v.err == nil && turn == l.modules && turn.full()
	if forgotten {
		v.forget()
	}
	done := turn.do(ctx, func() {
		if o.moved = forgotten && !l.reader.recall(ctx, v); !o.moved {
			o.generation, o.err = l.compiler.compile(ctx, v)
		}
	})
	if done && o.generation != nil {
		// Without a policy this is reached only if the operator confirmed that.
		err := l.memory.update(v.name, func(p *toolPast, global *bool) {
			p.Policy = v.present.own
			*global = *global && (v.present.global || !v.globalNone)
		})
		if err == nil {
			return o
		}
		o.err = fault.Errorf(fault.Internal, "load tool %s: %w", v.name, err)
	}
	if o.generation != nil {
		o.generation.close()
		o.generation = nil
	}
	if !done {
		return outcome{}
	}
	return o
}

// turn is where v waits until it may be compiled. A version with a policy that old
// does not have waits for no other: until it serves, calls are decided without it.
func (l *loader) turn(v *candidate, old *generation) places {
	for _, p := range v.policies {
		sum := sha256.Sum256(p.data)
		if old == nil || !slices.Contains(old.tool.PolicyDigests, hex.EncodeToString(sum[:])) {
			return l.policies
		}
	}
	return l.modules
}

// lost returns an error if the tool once had a policy that is gone, or requires one
// that it does not have.
func (l *loader) lost(v *candidate) error {
	past, global := l.memory.past(v.name)
	none := v.def != nil && v.def.Policy == tools.PolicyNone
	switch {
	case past.Policy && !v.present.own && !none:
		return broken(`tool %s had a policy and has none any more, which does not make it unrestricted; put %s back, or say "policy": "none" in its tool.json`, v.name, tools.PolicyFile)
	case global && !v.present.global && !v.globalNone && !none:
		where := filepath.Join(l.reader.restricted, globalPolicy)
		if l.reader.restricted == "" {
			where = globalPolicy + " of the restricted folder, which this daemon was started without,"
		}
		return broken("tool %s had a policy for all tools and has none any more, which does not make it unrestricted; put %s back, or put an empty %s beside it if there is meant to be none", v.name, where, globalNone)
	case v.err == nil && v.def.Policy == tools.PolicyRequired && !v.present.own:
		return broken(`tool %s says "policy": "required" and has none; put %s into its folder (make build compiles those of this repository)`, v.name, tools.PolicyFile)
	}
	return nil
}
