package call

import (
	"math"
	"os"
	"strings"
	"sync/atomic"

	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
)

// Parent is what a call that a module asks for has of the call in which it asks.
// Nothing in it is the module's to choose.
type Parent struct {
	// Execution is the id of that call, Session the id of its session.
	Execution, Session string
	// Names are the tools, as they were called, in whose calls this one is, the
	// outermost first. The last one is that of Execution.
	Names []string
	// Allowed is what the module may call.
	Allowed tools.ToolCalls
	// ReadsOnly says that the call changes nothing, and what it asks for must not.
	ReadsOnly bool
	// Holds are the tools of tools.d of which the calls that wait for this one
	// hold a place. It is nil for a job, for which nobody waits.
	Holds []string
	// Fuel is what may be taken altogether; nil for a job, which has its own.
	Fuel *Fuel
}

// MaxDepth is how deep calls of modules may be in one another.
const MaxDepth = 8

// Waits reports whether a call of p is waiting for what it asked for. A nil p does
// not.
func (p *Parent) Waits() bool { return p != nil && p.Holds != nil }

// Held are the tools of which the calls that wait have a place; nil for a nil p.
func (p *Parent) Held() []string {
	if p == nil {
		return nil
	}
	return p.Holds
}

// ForJob is p for what goes on without the call that asked for it.
func (p *Parent) ForJob() *Parent {
	if p == nil {
		return nil
	}
	job := *p
	job.Holds, job.Fuel = nil, nil
	return &job
}

// ID is the execution id of p; empty for nil.
func (p *Parent) ID() string {
	if p == nil {
		return ""
	}
	return p.Execution
}

// extensionID begins the ids of the identities that tools are run by with events.
// The ids of all others are hexadecimal digits.
const extensionID = "extension-"

// Extension is who a tool of that name is run by with events. It has no token, so no
// claims, and may do what the tool's definition grants.
func Extension(tool string) identity.Caller {
	return identity.Caller{ID: extensionID + tool, UID: uint32(os.Getuid())}
}

// IsExtension reports whether the identity of that id is one of Extension.
func IsExtension(id string) bool { return strings.HasPrefix(id, extensionID) }

// Fuel is what the modules of several calls may still take together. It is safe
// for concurrent use.
type Fuel struct{ left atomic.Int64 }

// Left is how much is left. A nil f has no bound.
func (f *Fuel) Left() int64 {
	if f == nil {
		return math.MaxInt64
	}
	return max(f.left.Load(), 0)
}

// Take takes n, which may be more than is left.
func (f *Fuel) Take(n int64) {
	if f != nil {
		f.left.Add(-n)
	}
}

// Budget is the fuel that a call asked for by p may take.
func (p *Parent) Budget() *Fuel {
	if p == nil {
		return nil
	}
	return p.Fuel
}
