package call

import (
	"math"
	"os"
	"strings"
	"sync/atomic"

	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/tools"
)

// Parent is what a call that a module requests inherits from the call in which it does. The module chooses none of it.
type Parent struct {
	// Execution is the id of that call, Session the id of its session.
	Execution, Session string
	// Names are the tools, as they were called, whose calls contain this one, outermost first. The last one is that of
	// Execution.
	Names []string
	// Allowed is what the module may call.
	Allowed tools.ToolCalls
	// ReadsOnly means that the call changes nothing, and what it requests must not either.
	ReadsOnly bool
	// Holds lists the tools of tools.d in which the calls that wait for this one hold a place. It is nil for a job,
	// for which nobody waits.
	Holds []string
	// Fuel is what may be used in total; nil for a job, which has its own.
	Fuel *Fuel
}

// MaxDepth is how deep calls of modules may be nested.
const MaxDepth = 8

// Waits reports whether a call of p is waiting for what it requested. A nil p does not.
func (p *Parent) Waits() bool { return p != nil && p.Holds != nil }

// Held returns the tools in which the waiting calls hold a place; nil for a nil p.
func (p *Parent) Held() []string {
	if p == nil {
		return nil
	}
	return p.Holds
}

// ForJob returns p for what continues without the call that requested it.
func (p *Parent) ForJob() *Parent {
	if p == nil {
		return nil
	}
	job := *p
	job.Holds, job.Fuel = nil, nil
	return &job
}

// ID returns the execution id of p; empty for nil.
func (p *Parent) ID() string {
	if p == nil {
		return ""
	}
	return p.Execution
}

// extensionID begins the ids of the identities under which tools are run with events. All other ids consist of
// hexadecimal digits.
const extensionID = "extension-"

// Extension returns the identity under which the named tool is run with events. It has no token, so no claims, and may
// do what the tool's definition grants.
func Extension(tool string) identity.Caller {
	return identity.Caller{ID: extensionID + tool, UID: uint32(os.Getuid())}
}

// IsExtension reports whether id is that of an identity returned by Extension.
func IsExtension(id string) bool { return strings.HasPrefix(id, extensionID) }

// Fuel is what the modules of several calls may still use together. It is safe for concurrent use.
type Fuel struct{ left atomic.Int64 }

// Left returns how much is left. A nil f has no limit.
func (f *Fuel) Left() int64 {
	if f == nil {
		return math.MaxInt64
	}
	return max(f.left.Load(), 0)
}

// Take subtracts n, which may be more than is left.
func (f *Fuel) Take(n int64) {
	if f != nil {
		f.left.Add(-n)
	}
}

// Budget returns the fuel that a call requested by p may use.
func (p *Parent) Budget() *Fuel {
	if p == nil {
		return nil
	}
	return p.Fuel
}
