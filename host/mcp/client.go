package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// Config is fixed once the front end is made.
type Config struct {
	// Version is the daemon's, for clients to show.
	Version string
	// Call takes one call the whole way. It is required.
	Call func(context.Context, call.Request) call.Outcome
	// Logger gets what no client is shown. It is required.
	Logger *slog.Logger
}

// Peer describes who connected, as the kernel reports it, and where: fields of call.Request.
type Peer struct {
	UID       uint32
	PID       int
	Container string
	Socket    string
	Focus     *atomic.Pointer[string]
	// Begin is called before a message of the connection is served, and is false where
	// it is not to be: the place is another's. It may be nil.
	Begin func() bool
}

// Caller holds the defaults of the requests on a connection.
type Caller struct {
	Token   string `json:"token,omitempty"`
	Session string `json:"session,omitempty"`
	// Cwd is the folder in which tools work.
	Cwd string `json:"cwd,omitempty"`
}

// Keys of _meta, of requests and of results.
const (
	metaKey     = "io.toold/idempotencyKey"
	metaTurn    = "io.toold/turn"
	metaRetry   = "io.toold/retry"
	metaQuery   = "io.toold/query"
	metaLimit   = "io.toold/limit"
	metaSession = "io.toold/session"
	metaToken   = "io.toold/token"
	metaMissing = "io.toold/missing"
)

const (
	// sessionless is the first version of the protocol without sessions.
	sessionless = "2026-07-28"
	// tasksExtension is the extension by which a long call is answered with a task.
	tasksExtension = "io.modelcontextprotocol/tasks"
	// extraToken has the token of a request over HTTP in what the SDK keeps of it.
	extraToken = "token"
)

// client makes calls of the pipeline under common limits: whoever is at one connection of
// a socket, or all clients of one identity over HTTP.
type client struct {
	config Config
	who    Peer
	// caller has the defaults of requests.
	caller Caller
	// identity is the id of the identity whose requests these are, over HTTP.
	// Empty on a socket, where a request may have a token of its own.
	identity             string
	maxCalls, maxListens int
	// left ends when the client has gone, with the cause for calls that run.
	left  context.Context
	leave context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	draining bool
	calls    int
	listens  int
}

// as returns the caller of a request, by its _meta and the token that it came with.
func (c *client) as(meta sdk.Meta, token string) (Caller, *fault.Error) {
	as := c.caller
	for key, to := range map[string]*string{metaToken: &as.Token, metaSession: &as.Session} {
		v, there := meta[key]
		if !there {
			continue
		}
		s, ok := v.(string)
		if !ok {
			return as, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string", key)
		}
		*to = s
	}
	if c.identity != "" {
		if _, there := meta[metaToken]; there {
			return as, fault.Errorf(fault.InvalidEnvelope, "_meta %s is not taken over HTTP; send the token as Authorization: Bearer", metaToken)
		}
		as.Token = token
	}
	return as, nil
}

// tokenOf returns the token that a request over HTTP came with. It has to be that of the
// identity whose server this is: a session is no proof of who uses it.
func (c *client) tokenOf(req sdk.Request) (string, *fault.Error) {
	if c.identity == "" {
		return "", nil
	}
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil || extra.TokenInfo.UserID != c.identity {
		return "", fault.Errorf(fault.Unauthenticated, "the request is from another identity than this session; connect again")
	}
	token, _ := extra.TokenInfo.Extra[extraToken].(string)
	if token == "" {
		return "", fault.Errorf(fault.Unauthenticated, "the request has no token; send it as Authorization: Bearer")
	}
	return token, nil
}

// begin takes a place for a request in the pipeline, until done. Its context ends
// when the client cancels the request, with ABORTED, and when the client leaves, with
// wire.ErrLeft: the pipeline decides what continues then.
func (c *client) begin(ctx context.Context, session *sdk.ServerSession) (_ context.Context, done func(), err *fault.Error) {
	if err := c.enter(); err != nil {
		return nil, nil, err
	}
	run, cancel := c.life(ctx)
	untie := c.tie(ctx, session, cancel)
	return run, func() {
		untie()
		cancel(nil)
		c.exit()
	}, nil
}

// enter takes a place for a request in the pipeline, until exit.
func (c *client) enter() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.draining:
		return fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	case c.calls >= c.maxCalls:
		return fault.Errorf(fault.Overloaded, "this client has %d calls that run already; wait for one of them", c.maxCalls)
	}
	c.calls++
	return nil
}

func (c *client) exit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
}

// life returns a context with the values of ctx that ends when the client leaves, or by
// cancel, which has to be called.
func (c *client) life(ctx context.Context) (run context.Context, cancel context.CancelCauseFunc) {
	run, end := context.WithCancelCause(context.WithoutCancel(ctx))
	left := context.AfterFunc(c.left, func() { end(context.Cause(c.left)) })
	return run, func(cause error) {
		left()
		end(cause)
	}
}

// tie cancels what runs for a request when its context ends, until untie.
func (c *client) tie(ctx context.Context, session *sdk.ServerSession, cancel context.CancelCauseFunc) (untie func() bool) {
	// Over HTTP without a session a request ends when its stream is closed, and
	// that means only that nobody reads the answer.
	streamed := c.identity != "" && session.ID() == ""
	return context.AfterFunc(ctx, func() {
		// A connection that broke cancels its requests with another cause, and is
		// left.
		if cause := context.Cause(ctx); streamed || !errors.Is(cause, context.Canceled) {
			cancel(wire.ErrLeft)
			return
		}
		cancel(fault.Errorf(fault.Aborted, "the client cancelled the call"))
	})
}

// drain makes later requests fail.
func (c *client) drain() {
	c.mu.Lock()
	c.draining = true
	c.mu.Unlock()
}

// request returns a call as this client makes it.
func (c *client) request(q *wire.Call, streams wire.Streams) call.Request {
	return call.Request{
		Call: q, UID: c.who.UID, Peer: call.Peer{PID: c.who.PID, Container: c.who.Container, Socket: c.who.Socket},
		Focus: c.who.Focus, Streams: streams,
	}
}

// ask makes one of the calls of sessions or approvals, and returns its answer.
func (c *client) ask(ctx context.Context, as Caller, tool string, payload any) (json.RawMessage, *fault.Error) {
	b, err := json.Marshal(payload)
	if err != nil {
		return nil, fault.Errorf(fault.Internal, "%w", err)
	}
	o := c.config.Call(ctx, c.request(&wire.Call{
		Form: wire.Envelope, Tool: tool, ExecutionID: wire.NewExecutionID(), Payload: b, Token: as.Token, Session: as.Session,
	}, wire.Streams{}))
	if err := o.Err(); err != nil {
		return nil, err
	}
	return o.Result.Data, nil
}

// formsOf reports whether a client can have its user fill in forms.
func formsOf(can *sdk.ClientCapabilities) bool {
	return can != nil && can.Elicitation != nil && (can.Elicitation.Form != nil || can.Elicitation.URL == nil)
}

// knowsTasks reports whether the client of a request takes tasks.
func knowsTasks(of *sdk.ClientCapabilities) bool {
	if of == nil {
		return false
	}
	_, ok := of.Extensions[tasksExtension]
	return ok
}
