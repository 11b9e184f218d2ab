package mcp

//lint:file-ignore SA1019 sampling, roots and logging go on until clients have gone over

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

const (
	// maxRounds is how often a module asks in one call.
	maxRounds = 32
	// outcomePatience is how long a client that answered may ask for what came of it.
	outcomePatience = time.Minute
)

// dialog is a call whose module may ask the client that made it. Versions of the
// protocol with sessions ask by a request of the server. Later ones answer the call
// with what is asked and a state, and the client makes the call again with the answers
// and that state: the call itself goes on meanwhile, and runs once.
type dialog struct {
	of   *dialogs
	as   Caller
	id   string   // of the execution
	name string   // of the tool
	tool string   // the same as the client calls it
	key  string   // its idempotency key, or empty
	what [32]byte // digestOfCall
	can  *sdk.ClientCapabilities
	// direct is true if the client is asked by requests.
	direct bool
	cancel context.CancelCauseFunc // of what runs
	over   chan struct{}           // closed when outcome is there
	// outcome is what came of the call, or of its becoming a job.
	outcome call.Outcome

	mu       sync.Mutex // guards what follows
	client   *listening // nil while no request waits
	asked    sdk.InputRequestMap
	given    sdk.InputResponseMap // came with the call, for what it may ask
	open     sdk.InputRequestMap  // that the client has to answer
	answers  map[string]json.RawMessage
	ready    chan struct{} // closed when open was answered
	state    string        // of open
	news     chan struct{} // closed when there is something to ask
	lacking  *sdk.ClientCapabilities
	reported int64  // of progress without a number
	rest     []byte // of the answer that is read
}

// listening is a request that waits for a call.
type listening struct {
	ctx     context.Context
	session *sdk.ServerSession
	token   any // for progress; nil: it wants none
	extra   *sdk.RequestExtra
}

// dialogs are the calls of one requester.
type dialogs struct {
	client *client
	waits  *waits
	// talking are those that go on while no request of the client waits for them.
	talking sync.WaitGroup

	mu     sync.Mutex         // guards what follows
	states map[string]*dialog // by each state that the client was given
}

// waits are the calls of all requesters that wait for an answer: a task is asked for on
// any connection of its identity.
type waits struct {
	stopped chan struct{} // closed when nothing is to wait any more

	mu    sync.Mutex         // guards what follows
	calls map[string]*dialog // by the execution
}

// attach sends what the module tells to the request q, until detach.
func (d *dialog) attach(ctx context.Context, q *sdk.CallToolRequest) (detach func()) {
	l := &listening{ctx, q.Session, q.Params.GetProgressToken(), q.Extra}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.client = l
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.client == l {
			d.client = nil
		}
	}
}

func (d *dialog) listener() *listening {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.client
}

// take takes what answers open questions. What answers nothing is left out.
func (d *dialog) take(given sdk.InputResponseMap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == nil {
		return
	}
	for key, q := range d.open {
		if answer, ok := answerTo(q, given[key]); ok {
			d.answers[key] = answer
			delete(d.open, key)
		}
	}
	if len(d.open) == 0 {
		d.open, d.news = nil, make(chan struct{})
		close(d.ready)
	}
}

// questions returns those that are open, with their state.
func (d *dialog) questions() (sdk.InputRequestMap, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.open), d.state
}

// note records whether d waits for its client.
func (w *waits) note(d *dialog, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waits {
		w.calls[d.id] = d
	} else {
		delete(w.calls, d.id)
	}
}

// asking returns the call of that execution if it waits for its client, else nil.
func (w *waits) asking(id string) *dialog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[id]
}

// remember gives d a state that its client finds it by.
func (all *dialogs) remember(d *dialog) (state string, _ error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	rounds := map[*dialog]int{}
	for _, other := range all.states {
		rounds[other]++
	}
	if rounds[d] == 0 && len(rounds) >= all.client.maxCalls {
		// Those that are over wait for nobody: they are there for who lost the stream.
		maps.DeleteFunc(all.states, func(_ string, other *dialog) bool { return other.isOver() })
		maps.DeleteFunc(rounds, func(other *dialog, _ int) bool { return other.isOver() })
		if len(rounds) >= all.client.maxCalls {
			return "", fault.Errorf(fault.Overloaded, "this client has %d calls already that wait for its answers; answer one first", len(rounds))
		}
	}
	if rounds[d] >= maxRounds {
		return "", fault.Errorf(fault.LimitExceeded, "the tool has asked %d times in this call, and that is the limit", maxRounds)
	}
	state = rand.Text()
	all.states[state] = d
	return state, nil
}

// forget drops all states of d.
func (all *dialogs) forget(d *dialog) {
	all.mu.Lock()
	defer all.mu.Unlock()
	maps.DeleteFunc(all.states, func(_ string, other *dialog) bool { return other == d })
}

func (d *dialog) isOver() bool {
	select {
	case <-d.over:
		return !d.outcome.Job
	default:
		return false
	}
}

// talk reports whether some call waits for its client, or for the client to ask what
// came of it.
func (all *dialogs) talk() bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(all.states) > 0
}

// find returns the call that a request with answers goes on with; nil where it begins
// one. What the client answered before is not taken twice.
func (all *dialogs) find(as Caller, p *sdk.CallToolParamsRaw) (*dialog, error) {
	if p.RequestState == "" {
		return nil, nil
	}
	all.mu.Lock()
	d := all.states[p.RequestState]
	all.mu.Unlock()
	if d == nil || !d.isOf(as) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState belongs to no call of this client that waits for an answer; make the call again, without requestState and inputResponses"}
	}
	made, refused := envelope(p.Name, as, p)
	if refused != nil {
		return nil, refused
	}
	if what, err := digestOfCall("", p.Name, made.Payload); err != nil || d.what != what {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is of a call with another name or other arguments; answer that one as it was"}
	}
	if _, state := d.questions(); state == p.RequestState {
		d.take(p.InputResponses)
	}
	return d, nil
}

// isOf reports whether d is a call of who asks for a request. Over HTTP the requester is
// the identity, and its token may be a newer one.
func (d *dialog) isOf(as Caller) bool {
	if d.of.client.identity != "" {
		as.Token = d.as.Token
	}
	return d.as == as
}

// same returns the call that waits for answers and has the key; nil where there is none.
// A client that lost what it was asked makes its call again with that key.
func (all *dialogs) same(as Caller, key string, what [32]byte) *dialog {
	if key == "" {
		return nil
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, d := range all.states {
		if d.key == key && d.what == what && d.isOf(as) {
			return d
		}
	}
	return nil
}

// run makes the call, and keeps what came of it.
func (d *dialog) run(ctx context.Context, q call.Request) {
	d.of.talking.Go(func() {
		defer d.cancel(nil)
		defer close(d.over)
		d.outcome = call.Outcome{Result: &wire.Result{Err: fault.Errorf(fault.Internal, "the daemon failed at this call; see its log")}}
		defer func() {
			if v := recover(); v != nil {
				d.of.client.config.Logger.Error("panic in a call of MCP", "panic", v, "stack", string(debug.Stack()))
			}
		}()
		d.outcome = d.of.client.config.Call(ctx, q)
		if d.of.client.left.Err() == nil && d.of.talk() {
			// Who answered and lost the stream may ask again for a while.
			time.AfterFunc(outcomePatience, func() { d.of.forget(d) })
		}
	})
}

// serve waits until the call is over, with nil, or has a question for the client.
func (d *dialog) serve(ctx context.Context, q *sdk.CallToolRequest) *sdk.CallToolResult {
	untie := d.of.client.tie(ctx, q.Session, d.cancel)
	defer untie()
	for {
		d.mu.Lock()
		news := d.news
		d.mu.Unlock()
		select {
		case <-d.over:
			return nil
		case <-news:
		}
		if open, state := d.questions(); len(open) > 0 {
			return &sdk.CallToolResult{InputRequests: open, RequestState: state}
		}
	}
}

// answerTo returns an answer as the module gets it; false if it does not answer q.
func answerTo(q sdk.InputRequest, answer sdk.InputResponse) (json.RawMessage, bool) {
	ok := false
	switch q.(type) {
	case *sdk.ElicitParams:
		_, ok = answer.(*sdk.ElicitResult)
	case *sdk.ListRootsParams:
		_, ok = answer.(*sdk.ListRootsResult)
	default:
		_, ok = answer.(*sdk.CreateMessageWithToolsResult)
	}
	if !ok || reflect.ValueOf(answer).IsNil() {
		return nil, false
	}
	b, err := json.Marshal(answer)
	return b, err == nil
}
