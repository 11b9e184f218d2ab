package host

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/pipeline"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// maxWaitingEvents is how many events wait for one tool. Further ones are dropped.
const maxWaitingEvents = 256

// extensions run tools that declare "on" with what happens. One goroutine reads
// events and passes them on; each tool has a queue and one that runs it, one
// event after the other. Nothing of this is waited for by a call.
type extensions struct {
	parts *pipeline.Parts
	call  func(context.Context, call.Request) call.Outcome // Host.Call
	// changed holds a token when the tools must be looked at again.
	changed chan struct{}
	stop    context.CancelFunc
	done    sync.WaitGroup
	// byTool is for the goroutine that reads.
	byTool map[string]*extension
}

// extension is one tool that is run with events.
type extension struct {
	name  string
	kinds []events.Kind
	queue chan events.Event
	stop  context.CancelFunc

	mu      sync.Mutex
	dropped int64 // that it was not told yet; guarded by mu
}

// newExtensions makes the extensions of a daemon of parts. They run from start on.
func newExtensions(parts *pipeline.Parts, call func(context.Context, call.Request) call.Outcome) *extensions {
	return &extensions{parts: parts, call: call, changed: make(chan struct{}, 1), byTool: map[string]*extension{}, stop: func() {}}
}

func (x *extensions) start(ctx context.Context) {
	ctx, x.stop = context.WithCancel(ctx)
	x.change()
	x.done.Go(func() { x.run(ctx) })
}

// change has the tools looked at again. It does not wait.
func (x *extensions) change() {
	select {
	case x.changed <- struct{}{}:
	default:
	}
}

// close ends what runs, and waits for it.
func (x *extensions) close() {
	x.stop()
	x.done.Wait()
}

// run reads events while there is a tool that is run with any.
func (x *extensions) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-x.changed:
			x.follow(ctx)
		case <-ctx.Done():
			return
		}
		cursor := ""
		for len(x.byTool) > 0 && ctx.Err() == nil {
			next, err := x.watch(ctx, cursor)
			if cursor = next; err != nil {
				if e := (*fault.Error)(nil); errors.As(err, &e) && e.Code == fault.Overloaded {
					break // the daemon stops
				}
				x.parts.Log.Error("events cannot be watched, so no tool is run with them; raise sessions.watchers in toold.json where that is the limit", "error", err)
				break
			}
		}
	}
	for _, e := range x.byTool {
		e.stop()
	}
}

// watch reads events after cursor until the reader is too slow, or no tool is left
// that is run with any. An error is why there is nothing to read.
func (x *extensions) watch(ctx context.Context, cursor string) (next string, err error) {
	w, err := x.parts.Events.Watch(events.Filter{Operator: true, Kinds: slices.Collect(maps.Values(eventKinds))}, cursor)
	if err != nil {
		return "", err
	}
	defer w.Close()
	for len(x.byTool) > 0 {
		// Next can be called again when its context has ended: nothing is lost.
		wait, wake := context.WithCancel(ctx)
		woken := make(chan struct{})
		go func() {
			defer close(woken)
			select {
			case <-x.changed:
				x.change()
				wake()
			case <-wait.Done():
			}
		}()
		e, err := w.Next(wait)
		wake()
		<-woken
		var cut *fault.Error
		switch {
		case err == nil:
			x.pass(&e)
		case ctx.Err() != nil:
			return w.Cursor(), nil
		case errors.As(err, &cut) && cut.Code == fault.LimitExceeded:
			return w.Cursor(), nil
		case !errors.Is(err, context.Canceled):
			return "", err
		}
		select {
		case <-x.changed:
			x.follow(ctx)
		default:
		}
	}
	return w.Cursor(), nil
}

// follow has the tools that are run with events as they are now.
func (x *extensions) follow(ctx context.Context) {
	now := x.parts.Tools.Serving().Listening()
	for name, e := range x.byTool {
		if _, still := now[name]; !still {
			e.stop()
			delete(x.byTool, name)
		}
	}
	for name, on := range now {
		e := x.byTool[name]
		if e == nil {
			e = &extension{name: name, queue: make(chan events.Event, maxWaitingEvents)}
			var run context.Context
			run, e.stop = context.WithCancel(ctx)
			x.byTool[name] = e
			x.done.Go(func() { x.serve(run, e) })
		}
		e.kinds = nil
		for _, name := range on {
			e.kinds = append(e.kinds, eventKinds[name])
		}
	}
}

// eventKinds are the events by the names that tool.json has for them. It is never
// written to.
var eventKinds = map[string]events.Kind{
	tools.OnCallBegin:    events.Begin,
	tools.OnCallEnd:      events.End,
	tools.OnJob:          events.Job,
	tools.OnSessionState: events.State,
	tools.OnToolChange:   events.Tool,
}

// pass gives e to the tools that are run with it. What a tool does that is run with
// an event is told to none: it could have no end.
func (x *extensions) pass(e *events.Event) {
	lost := int64(0)
	if e.Lost != nil {
		lost = max(e.Lost.State, 1)
	}
	for _, to := range x.byTool {
		if lost > 0 {
			x.drop(to, lost)
			continue
		}
		if !slices.Contains(to.kinds, e.Kind) || call.IsExtension(e.Owner) {
			continue
		}
		select {
		case to.queue <- *e:
		default:
			x.drop(to, 1)
		}
	}
}

// drop counts n events that a tool is not run with. The first ones are logged, and
// the tool is told how many with the next event.
func (x *extensions) drop(e *extension, n int64) {
	e.mu.Lock()
	first := e.dropped == 0
	e.dropped += n
	e.mu.Unlock()
	x.parts.Metrics.Dropped(e.name, n)
	if first {
		x.parts.Log.Warn("a tool is slower than the events that it is run with, and further ones are dropped; have it do less, or ask for fewer with on in tool.json", "tool", e.name, "waiting", maxWaitingEvents)
	}
}

// serve runs a tool with the events of its queue.
func (x *extensions) serve(ctx context.Context, e *extension) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-e.queue:
			x.runWith(ctx, e, &event)
		}
	}
}

// runWith runs a tool with one event, by an identity that has no token.
func (x *extensions) runWith(ctx context.Context, e *extension, event *events.Event) {
	e.mu.Lock()
	dropped := e.dropped
	e.dropped = 0
	e.mu.Unlock()
	payload, err := json.Marshal(told(event, dropped))
	if err != nil {
		x.parts.Log.Error("an event cannot be encoded", "tool", e.name, "error", err)
		return
	}
	caller := call.Extension(e.name)
	o := x.call(ctx, call.Request{
		Call: &wire.Call{Form: wire.Envelope, Tool: e.name, ExecutionID: wire.NewExecutionID(), Payload: payload},
		UID:  uint32(os.Getuid()), Peer: call.Peer{PID: os.Getpid()}, As: &caller,
	})
	if err := o.Err(); err != nil && ctx.Err() == nil {
		x.parts.Log.Warn("a tool failed with an event", "tool", e.name, "event", string(event.Kind), "execution_id", o.Result.ExecutionID, "code", err.Code, "error", err.Message)
	}
}

// toldEvent is what a tool is run with. It has nothing that a snapshot does not show.
type toldEvent struct {
	Event   string    `json:"event"`
	At      time.Time `json:"at"`
	Dropped int64     `json:"dropped,omitempty"`

	Owner     string `json:"owner,omitempty"`
	Session   string `json:"session,omitempty"`
	Execution string `json:"execution,omitempty"`
	Tool      string `json:"tool,omitempty"`
	Kind      string `json:"kind,omitempty"`

	Mutating   bool   `json:"mutating,omitempty"`
	Status     string `json:"status,omitempty"`
	Code       string `json:"code,omitempty"`
	ExitCode   int    `json:"exit_code,omitempty"`
	Attempts   int    `json:"attempts,omitempty"`
	DurationMS int64  `json:"duration_ms,omitempty"`
	BytesIn    int64  `json:"bytes_in,omitempty"`
	BytesOut   int64  `json:"bytes_out,omitempty"`

	State  string `json:"state,omitempty"`
	Change string `json:"change,omitempty"`
}

// told names each field of an event that a tool may see, so that one which is added
// to events is not told by that.
func told(e *events.Event, dropped int64) toldEvent {
	t := toldEvent{
		At: e.At, Dropped: dropped, Owner: e.Owner, Session: e.Session, Execution: e.Execution, Tool: e.Tool, Kind: e.Type,
		Mutating: e.Mutating, Status: e.Status, Code: string(e.Code), ExitCode: e.ExitCode, Attempts: e.Attempts,
		DurationMS: e.DurationMS, BytesIn: e.BytesIn, BytesOut: e.BytesOut, State: e.State, Change: e.Change,
	}
	for name, kind := range eventKinds {
		if kind == e.Kind {
			t.Event = name
		}
	}
	return t
}
