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

// Invocation is one call of one export.
type Invocation struct {
	Export string
	Input  []byte
	// Identity names on whose behalf the call is made. State of a module is
	// never carried from one identity to another, not even in principle: an
	// instance that served one is not given to the next.
	Identity string
	// Config is what config_get answers; nil stands for the Spec's.
	Config map[string]string
	// Fuel is how many metered instructions the call may take where that is less
	// than the Spec's; 0 is no further limit.
	Fuel int64
	Services
}

// Services are what the host does for a guest during a call. Each gets the
// call's context and returns soon after it ends. A nil one is not there for
// this call: the guest is told so.
type Services struct {
	Log    func(ctx context.Context, level slog.Level, text string)
	VarGet func(key string) []byte
	// VarSet stores value, or removes key when value is nil. Its error ends
	// the call: a *fault.Error as it is, another as a trap.
	VarSet func(key string, value []byte) error
	HTTP   func(ctx context.Context, r *HTTPRequest) (*HTTPResponse, error)
	Exec   func(ctx context.Context, r *abi.ExecRequest) *abi.ExecResult
	// Emit sends output while the call runs. stream is "stdout", "stderr" or
	// "progress". p is not kept.
	Emit func(stream string, p []byte) error
	// Recv waits for input; io.EOF ends it.
	Recv func(ctx context.Context) ([]byte, error)
	// ToolCall makes a call. It may take at most fuel, and says what it took.
	// ctx may be kept beyond the call.
	ToolCall func(ctx context.Context, fuel int64, envelope []byte) (answer []byte, took int64, err error)
}

// HTTPError is the error of Services.HTTP where its kind is known, of which
// components are told.
type HTTPError struct {
	Kind HTTPKind
	Text string
}

func (e *HTTPError) Error() string { return e.Text }

// HTTPKind is why a request got no answer.
type HTTPKind uint8

const (
	HTTPFailed  HTTPKind = iota
	HTTPDenied           // it is not granted, or who would answer is not trusted
	HTTPRefused          // nobody took the connection
	HTTPTimeout
	HTTPUnknownHost
)

// HTTPRequest is what a guest asks for.
type HTTPRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"-"`
}

// HTTPResponse is what it gets.
type HTTPResponse struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

// Reply is what came of a call.
type Reply struct {
	Output []byte
	Stats  Stats
}

// Stats are what a call cost.
type Stats struct {
	Fuel          int64 // metered instructions
	Called        int64 // metered instructions that the calls took that it made
	PeakMemory    int64 // bytes of the guest's memory and of the blocks it exchanged with the host
	PagesRestored int   // pages of 4 KiB that the next call would have seen
	// NotRestored says why the next call needs an instance of its own, where
	// it does.
	NotRestored string
}

// call is what the host functions work on. It is the context that wazero
// hands them.
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
	faults int64 // that the thread had when the call began

	drawn io.Reader // what randomness is while the module initialises itself

	config map[string]string
	k      kernel
	out    []byte // of tool_write
	wrote  bool
	logged int
	// printed: it was told that nobody reads its standard output.
	printed bool

	exceptions exceptions

	httpStatus int
	httpHeader map[string]string
}

// Call runs one export on fresh state. The error, when there is one, is an
// *Error, whose Kind says how it ended: there is no such export (NoExport,
// IsCommand, BadModule), the guest failed (Failed, Trapped), a limit was reached
// (FuelUsed, MemoryUsed, OutputUsed), ctx ended (DeadlineMet, Aborted) or there is
// no memory for another instance now (Overloaded). A *fault.Error of a Service
// that ends the call is answered as it is.
//
// Stats are filled in for failed calls too.
func (m *Module) Call(ctx context.Context, inv Invocation) (Reply, error) {
	if err := m.enter(ctx); err != nil {
		return Reply{}, err
	}
	defer m.leave()
	if inv.Export != "describe" && inv.Export != "discover" { // which are asked when it is loaded
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

// callOnce is one call, on one thread unless it waits. again reports that the
// instance is as it was and may serve another; after any error it may not,
// whatever the error was.
func (in *instance) callOnce(ctx context.Context, inv *Invocation) (reply Reply, again bool, err error) {
	in.c.pin()
	defer in.c.unpin() // before the instance is another's
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

// call runs "resumed", when there is one, and an export.
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

// pin keeps the call on its thread, so that the thread's page faults are the
// call's.
func (c *call) pin() {
	if c.inst.m.e.strategy == strategyCount {
		runtime.LockOSThread()
		c.pinned = true
		c.faults = threadFaults()
	}
}

// unpin is for a call that will wait: a goroutine that is bound to a thread is
// dear to switch, and what it saves is little beside waiting.
func (c *call) unpin() {
	if c.pinned {
		c.pinned = false
		runtime.UnlockOSThread()
	}
}

// faulted reports whether pages may have been written for the first time
// since the call began.
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

// memory is a module's memory, or nil: wazero answers a nil that is not.
func memory(mod api.Module) api.Memory {
	if mem := mod.Memory(); !reflect.ValueOf(mem).IsNil() {
		return mem
	}
	return nil
}

// checkCanceled ends the call when its context has ended.
func (c *call) checkCanceled() {
	select {
	case <-c.done:
		panic(ended(c.Err()))
	default:
	}
}

// classify turns what wazero answered into one of our errors.
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
		// Few languages survive a memory.grow that fails; what they trap
		// with says less than this.
		e := in.m.errorf(MemoryUsed, "give it less to do", "%s needs more than %d bytes of memory", export, in.m.spec.Memory)
		e.Cause = cause
		return e
	}
	text := export + " trapped: " + what.Error()
	where := in.m.where(cause)
	if where != "" {
		text += " " + where
	}
	// An SDK whose language says nothing to stderr sets an error before it
	// traps.
	said := in.reason()
	if said == "" {
		said = c.k.errorText()
	}
	if said != "" {
		text += ": " + said
	}
	return &Error{Kind: Trapped, Module: in.m.spec.Name, Detail: text, Remedy: advice(what.Error(), where, said), Cause: cause}
}
