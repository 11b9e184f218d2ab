package guest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"

	"github.com/toold/toold/pdk/abi"
)

// Invocation is one call of an export.
type Invocation struct {
	Export string
	Input  []byte
	// Identity names the principal on whose behalf the call is made. Module state is
	// never carried from one identity to another, not even in principle: an instance
	// that served one is not given to the next.
	Identity string
	// Config holds the values that config_get returns; nil means the Spec's.
	Config map[string]string
	// Fuel limits the metered instructions of the call if it is less than the Spec's
	// limit; 0 means no further limit.
	Fuel int64
	Services
}

// Services are what the host does for a guest during a call. Each gets the call's
// context and must return soon after it ends. A nil service is unavailable for this
// call: the guest receives an error.
type Services struct {
	Log    func(ctx context.Context, level slog.Level, text string)
	VarGet func(key string) []byte
	// VarSet stores value, or removes key if value is nil. Its error ends the call: a
	// *fault.Error is returned as it is, any other becomes a trap.
	VarSet func(key string, value []byte) error
	HTTP   func(ctx context.Context, r *HTTPRequest) (*HTTPResponse, error)
	Exec   func(ctx context.Context, r *abi.ExecRequest) *abi.ExecResult
	// Emit sends output while the call runs. stream is "stdout", "stderr" or
	// "progress". p must not be retained.
	Emit func(stream string, p []byte) error
	// Recv waits for input. It returns io.EOF at the end.
	Recv func(ctx context.Context) ([]byte, error)
	// ToolCall calls another tool. It may use at most fuel and returns the fuel used in
	// took. ctx may be kept beyond the call.
	ToolCall func(ctx context.Context, fuel int64, envelope []byte) (answer []byte, took int64, err error)
}

// HTTPError is an error of Services.HTTP of known kind. Components receive the kind.
type HTTPError struct {
	Kind HTTPKind
	Text string
}

func (e *HTTPError) Error() string { return e.Text }

// HTTPKind is the reason why a request got no response.
type HTTPKind uint8

const (
	HTTPFailed  HTTPKind = iota
	HTTPDenied           // it is not granted, or the server is not trusted
	HTTPRefused          // connection refused
	HTTPTimeout
	HTTPUnknownHost
)

// HTTPRequest is a request made by a guest.
type HTTPRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"-"`
}

// HTTPResponse is the response to an HTTPRequest.
type HTTPResponse struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

// Reply is the result of a call.
type Reply struct {
	Output []byte
	Stats  Stats
}

// Stats are the resources used by a call.
type Stats struct {
	Fuel          int64 // metered instructions
	Called        int64 // metered instructions of the calls that it made
	PeakMemory    int64 // bytes of the guest's memory and of the blocks exchanged with the host
	PagesRestored int   // 4 KiB pages restored so that the next call does not see them
	// NotRestored is the reason why the next call needs a new instance, if it does.
	NotRestored string
}

// call is the state that host functions work on. wazero passes it to them as the
// context.
type call struct {
	context.Context
	inst  *instance
	guest api.Module
	inv   *Invocation

	meter       meter
	place       place
	deadline    time.Time
	hasDeadline bool
	done        <-chan struct{}

	pinned bool  // to this thread
	faults int64 // faults of the thread when the call began

	drawn io.Reader // source of randomness during initialization

	config map[string]string
	k      kernel
	out    []byte // output of tool_write
	wrote  bool
	logged int
	// printed reports that the guest has been warned that nobody reads its standard
	// output.
	printed bool

	exceptions exceptions

	httpStatus int
	httpHeader map[string]string
}

// Call runs one export on fresh state. A non-nil error is an *Error, whose Kind says
// how the call ended: there is no such export (NoExport, IsCommand, BadModule), the
// guest failed (Failed, Trapped), a limit was reached (FuelUsed, MemoryUsed,
// OutputUsed), ctx ended (DeadlineMet, Aborted), or there is currently no memory for
// another instance (Overloaded). A *fault.Error of a Service that ends the call is
// returned as it is.
//
// Stats are filled in for failed calls too.
func (m *Module) Call(ctx context.Context, inv Invocation) (Reply, error) {
	if err := m.enter(ctx); err != nil {
		return Reply{}, err
	}
	defer m.leave()
	if inv.Export != "describe" && inv.Export != "discover" { // those two are called when the module is loaded
		m.sleeper.called.Store(true)
	}
	if err := m.checkExport(inv.Export); err != nil {
		return Reply{}, err
	}
	if err := ctx.Err(); err != nil {
		return Reply{}, ended(err)
	}
	in, err := m.take(ctx, inv.Identity)
	if err != nil {
		return Reply{}, err
	}
	reply, again, err := in.callOnce(ctx, &inv)
	if again {
		m.put(in)
	} else {
		in.close()
	}
	return reply, err
}

// callOnce runs one call, on one thread unless it waits. again reports that the
// instance has been restored and may serve another call; after any error it may not.
func (in *instance) callOnce(ctx context.Context, inv *Invocation) (reply Reply, again bool, err error) {
	in.c.pin()
	defer in.c.unpin() // before another call uses the instance
	if reply, err = in.call(ctx, inv); err != nil {
		return reply, false, err
	}
	reply.Stats.PagesRestored, again = in.restoreState()
	if !again {
		reply.Stats.NotRestored = in.changed()
	}
	in.end()
	return reply, again, nil
}

// call runs "resumed", if it exists, and then an export.
func (in *instance) call(ctx context.Context, inv *Invocation) (Reply, error) {
	m, c := in.m, &in.c
	config := inv.Config
	if config == nil {
		config = m.spec.Config
	}
	if err := in.beginRun(ctx, inv, config); err != nil {
		return Reply{}, err
	}
	if m.comp != nil {
		return in.callComponent(inv)
	}
	if m.Has("resumed") {
		if _, err := in.invoke(&in.part, "resumed"); err != nil {
			return Reply{Stats: c.stats()}, err
		}
	}
	rc, err := in.invoke(&in.part, inv.Export)
	reply := Reply{Stats: c.stats()}
	if err != nil {
		return reply, err
	}
	if text := c.k.errorText(); text != "" {
		return reply, errorf(Failed, "", "", "%s", text)
	}
	if rc != 0 {
		return reply, m.errorf(Failed, "return 0 and answer a Result, or set an error (the SDKs do both)", "%s returned %d and said nothing", inv.Export, int32(rc))
	}
	if c.wrote {
		reply.Output = c.out
		return reply, nil
	}
	out, ok := c.k.output(uint64(m.spec.Output))
	if !ok {
		return reply, m.tooMuchOutput()
	}
	reply.Output = out
	return reply, nil
}

// pin locks the call to its thread, so that the thread's page faults are the call's.
func (c *call) pin() {
	if c.inst.m.e.strategy == strategyCount {
		runtime.LockOSThread()
		c.pinned = true
		c.faults = threadFaults()
	}
}

// unpin undoes pin for a call that is about to wait: switching a goroutine that is
// locked to a thread is expensive, and pinning saves little compared with waiting.
func (c *call) unpin() {
	if c.pinned {
		c.pinned = false
		runtime.UnlockOSThread()
	}
}

// faulted reports whether pages may have been written for the first time since the call
// began.
func (c *call) faulted() bool { return !c.pinned || threadFaults() != c.faults }

func (c *call) stats() Stats {
	s := Stats{Fuel: c.meter.used() - c.meter.called, Called: c.meter.called, PeakMemory: int64(len(c.k.mem))}
	for _, p := range c.inst.parts() {
		if p.mem != nil {
			s.PeakMemory += int64(p.mem.peak)
		}
	}
	return s
}

// memory returns a module's memory, or nil: wazero returns a non-nil interface that
// holds nil.
func memory(mod api.Module) api.Memory {
	if mem := mod.Memory(); !reflect.ValueOf(mem).IsNil() {
		return mem
	}
	return nil
}

// checkCanceled ends the call if its context has ended.
func (c *call) checkCanceled() {
	select {
	case <-c.done:
		panic(ended(c.Err()))
	default:
	}
}

// classify converts an error of wazero to an *Error.
func (c *call) classify(export string, err error) error {
	if e := own(err); e != nil {
		return e
	}
	if exit, ok := errors.AsType[*sys.ExitError](err); ok {
		return c.trap(export, errors.New("it left with exit code "+itoa(exit.ExitCode())), err)
	}
	if rerr, ok := errors.AsType[runtime.Error](err); ok {
		e := c.inst.m.errorf(Internal, "", "%s: a fault of the host", export)
		e.Cause = err
		c.inst.m.e.cfg.Logger.Error("host function failed", "module", e.Module, "error", rerr, "detail", err)
		return e
	}
	first := firstLine(err)
	first = strings.TrimSuffix(first, " (recovered by wazero)")
	first = strings.TrimPrefix(first, "wasm error: ")
	return c.trap(export, errors.New(first), err)
}

func (c *call) trap(export string, what, cause error) *Error {
	in := c.inst
	if in.memories(func(l *linear) bool { return l.overloaded }) || in.stack.scarce && what.Error() == stackOverflow {
		return in.m.overloaded()
	}
	if in.memories(func(l *linear) bool { return l.refused }) {
		// Few languages survive a failed memory.grow; their trap is less informative
		// than this.
		e := in.m.errorf(MemoryUsed, "give it less to do", "%s needs more than %d bytes of memory", export, in.m.spec.Memory)
		e.Cause = cause
		return e
	}
	text := export + " trapped: " + what.Error()
	where := in.m.where(cause)
	if where != "" {
		text += " " + where
	}
	// An SDK whose language prints nothing to stderr sets an error before it traps.
	said := in.reason()
	if said == "" {
		said = c.k.errorText()
	}
	if said != "" {
		text += ": " + said
	}
	return &Error{Kind: Trapped, Module: in.m.spec.Name, Detail: text, Remedy: advice(what.Error(), where, said), Cause: cause}
}
