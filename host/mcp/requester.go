package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

// requester makes requests under common limits: the client of one connection of a
// socket, or all clients of one identity over HTTP.
type requester struct {
	front *Front
	who   Peer
	// caller is what requests have that say nothing else.
	caller Caller
	// identity is the id of the identity whose requests these are, over HTTP.
	// Empty on a socket, where a request may have a token of its own.
	identity             string
	maxCalls, maxListens int
	// left ends when the client has gone, with the cause for calls that run.
	left    context.Context
	leave   context.CancelCauseFunc
	changed chan struct{} // the tools of the daemon did, maybe

	// talking are the calls that go on while no request of the client waits for them.
	talking sync.WaitGroup

	mu       sync.Mutex // guards what follows
	draining bool
	calls    int
	dialogs  map[string]*dialog // by each state that the client was given
	listens  int
	listed   map[string]listed // by session
	stale    bool              // some client has an older list than another one

	server    *sdk.Server
	mirrored  map[string]string // see mirror; guarded by mirroring
	mirroring sync.Mutex
}

func newRequester(f *Front, who Peer, maxCalls, maxListens int) *requester {
	r := &requester{front: f, who: who, maxCalls: maxCalls, maxListens: maxListens, changed: make(chan struct{}, 1), listed: map[string]listed{}, dialogs: map[string]*dialog{}, mirrored: map[string]string{}}
	r.left, r.leave = context.WithCancelCause(context.Background())
	return r
}

// receive serves what the pipeline is asked for, and keeps a panic to its request.
// The rest, such as initialize, is the SDK's.
func (r *requester) receive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				r.front.config.Logger.Error("panic in a request of MCP", "method", method, "panic", v, "stack", string(debug.Stack()))
				res, err = nil, translate.Error(fault.Errorf(fault.Internal, "the daemon failed at this request; see its log"))
			}
		}()
		token, refused := r.tokenOf(req)
		if refused != nil {
			return nil, translate.Error(refused)
		}
		switch q := req.(type) {
		case *sdk.ListToolsRequest:
			return r.listTools(ctx, q, token)
		case *sdk.CallToolRequest:
			return r.callTool(ctx, q, token)
		case *sdk.ServerRequest[*taskParams]:
			return r.serveTask(ctx, method, q, token)
		}
		if undeclared(method) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + strconv.Quote(method) + "; this server has tools only"}
		}
		if method == "subscriptions/listen" {
			return r.listen(ctx, method, req, next)
		}
		return next(ctx, method, req)
	}
}

// undeclared reports whether a method is of what the daemon does not offer, and which
// the SDK answers all the same.
func undeclared(method string) bool {
	kind, _, _ := strings.Cut(method, "/")
	return kind == "prompts" || kind == "resources" || kind == "completion"
}

// tokenOf is the token that a request over HTTP came with. It has to be that of the
// identity whose server this is: a session is no proof of who uses it.
func (r *requester) tokenOf(req sdk.Request) (string, *fault.Error) {
	if r.identity == "" {
		return "", nil
	}
	extra := req.GetExtra()
	if extra == nil || extra.TokenInfo == nil || extra.TokenInfo.UserID != r.identity {
		return "", fault.Errorf(fault.Unauthenticated, "the request is not of the identity that this session is of; connect anew")
	}
	token, _ := extra.TokenInfo.Extra[extraToken].(string)
	if token == "" {
		return "", fault.Errorf(fault.Unauthenticated, "the request has no token; send it as Authorization: Bearer")
	}
	return token, nil
}

// listen has the SDK serve a stream of notifications, which ends with the daemon.
func (r *requester) listen(ctx context.Context, method string, req sdk.Request, next sdk.MethodHandler) (sdk.Result, error) {
	r.mu.Lock()
	over := r.listens >= r.maxListens
	if !over {
		r.listens++
	}
	r.mu.Unlock()
	if over {
		return nil, translate.Error(fault.Errorf(fault.Overloaded, "there are %d streams of notifications already; end one first", r.maxListens))
	}
	defer func() {
		r.mu.Lock()
		r.listens--
		r.mu.Unlock()
	}()
	return next(ctx, method, req)
}

// begin takes a place for a request in the pipeline, until done. Its context ends
// when the client cancels the request, with ABORTED, and when the client leaves, with
// wire.ErrLeft: the pipeline knows what goes on then.
func (r *requester) begin(ctx context.Context, session *sdk.ServerSession) (_ context.Context, done func(), err *fault.Error) {
	if err := r.enter(); err != nil {
		return nil, nil, err
	}
	run, cancel := r.life(ctx)
	untie := r.tie(ctx, session, cancel)
	return run, func() {
		untie()
		cancel(nil)
		r.exit()
	}, nil
}

// enter takes a place for a request in the pipeline, until exit.
func (r *requester) enter() *fault.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.draining:
		return fault.Errorf(fault.Overloaded, "the daemon is stopping; try again when it is back")
	case r.calls >= r.maxCalls:
		return fault.Errorf(fault.Overloaded, "this client has %d calls that run already; wait for one of them", r.maxCalls)
	}
	r.calls++
	return nil
}

func (r *requester) exit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls--
}

// life is a context with the values of ctx that ends when the client leaves, or by
// cancel, which has to be called.
func (r *requester) life(ctx context.Context) (run context.Context, cancel context.CancelCauseFunc) {
	run, end := context.WithCancelCause(context.WithoutCancel(ctx))
	left := context.AfterFunc(r.left, func() { end(context.Cause(r.left)) })
	return run, func(cause error) {
		left()
		end(cause)
	}
}

// tie has the end of a request's context cancel what runs for it, until untie.
func (r *requester) tie(ctx context.Context, session *sdk.ServerSession, cancel context.CancelCauseFunc) (untie func() bool) {
	// Over HTTP without a session a request ends when its stream is closed, and
	// that says no more than that nobody reads the answer.
	streamed := r.identity != "" && session.ID() == ""
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

// drain has requests refused that come later.
func (r *requester) drain() {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
}

// request is call as this requester makes it.
func (r *requester) request(q *wire.Call, streams wire.Streams) call.Request {
	return call.Request{
		Call: q, UID: r.who.UID, Peer: call.Peer{PID: r.who.PID, Container: r.who.Container, Socket: r.who.Socket},
		Focus: r.who.Focus, Streams: streams,
	}
}

// watch tells clients when their list of tools is another one, until over.
func (r *requester) watch(over <-chan struct{}, server *sdk.Server) {
	for {
		select {
		case <-over:
			return
		case <-r.changed:
		}
		if r.listIsAnother() {
			// The SDK tells those that listen of a change of its own tools only. This
			// one is never listed or called: both are the pipeline's.
			addTool(server, "changed", json.RawMessage(translate.AnyObject))
		}
	}
}
