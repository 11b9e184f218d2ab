// Package mcp is a front end for clients of the Model Context Protocol: it serves
// MCP on connections that it is given, by the official SDK, and makes each
// tools/list and tools/call a call of the daemon's pipeline. It decides nothing:
// who calls, what they see, whether a call runs and how often is the pipeline's,
// and is asked for each request.
//
// It promises that what one client sends is bounded (bytes of a message, requests
// that are not answered, calls that run), that a panic in a request ends that
// request and no more, and that nothing is left of a client that has gone but a
// mutating call with an idempotency key that had begun. It offers no prompts, no
// resources and no completion.
//
// Package host gives it its connections.
package mcp

import (
	"context"
	"log/slog"
	"net"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

const (
	// maxCalls is how many requests of a connection are in the pipeline at a time.
	// A further one is answered OVERLOADED.
	maxCalls = 16
	// maxListens is how many streams of notifications a connection may have.
	maxListens = 4
)

// Front serves MCP. It is safe for concurrent use.
type Front struct {
	config Config
	waits  *waits
	stop   func()

	mu         sync.Mutex // guards what follows
	requesters map[*requester]struct{}
}

// New makes a front end.
func New(config Config) *Front {
	f := &Front{config: config, waits: &waits{stopped: make(chan struct{}), calls: map[string]*dialog{}}, requesters: map[*requester]struct{}{}}
	f.stop = sync.OnceFunc(func() { close(f.waits.stopped) })
	return f
}

// EndWaits ends all waits for answers of clients, present and future.
func (f *Front) EndWaits() { f.stop() }

// ListChanged notifies every client whose list of tools differs from the one it was
// last given. It returns at once.
func (f *Front) ListChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.requesters {
		select {
		case r.lists.changed <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// watch notifies r of changes until the function that it returns is called, which
// waits for the end.
func (f *Front) watch(r *requester) (end func()) {
	f.mu.Lock()
	f.requesters[r] = struct{}{}
	f.mu.Unlock()
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.lists.watch(over) })
	return func() {
		f.mu.Lock()
		delete(f.requesters, r)
		f.mu.Unlock()
		close(over)
		watching.Wait()
	}
}

// newServer makes the SDK's server for the requests of r.
func (f *Front) newServer(r *requester, o sdk.ServerOptions) *sdk.Server {
	o.Instructions = instructions
	o.Logger = slog.New(slog.DiscardHandler)
	//lint:ignore SA1019 clients of older versions ask for logging
	o.Capabilities = &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: true}, Logging: &sdk.LoggingCapabilities{}, Extensions: map[string]any{tasksExtension: map[string]any{}}}
	server := sdk.NewServer(&sdk.Implementation{Name: "toold", Version: f.config.Version}, &o)
	r.lists.server = server
	server.AddReceivingMiddleware(r.receive)
	if err := serveTasks(server); err != nil {
		f.config.Logger.Error("serve tasks of MCP", "error", err) // not of this SDK
	}
	return server
}

// Serve serves one connection, and returns once it is closed and its calls have ended. After
// stopping is closed it accepts no further call, and closes the connection once the running
// ones were answered. The end of ctx ends them.
func (f *Front) Serve(ctx context.Context, stopping <-chan struct{}, nc net.Conn, who Peer) {
	c := newConn(newRequester(f.config, f.waits, who, maxCalls, maxListens), nc)
	server := f.newServer(c.requester, sdk.ServerOptions{})
	session, err := server.Connect(context.WithoutCancel(ctx), c, nil)
	if err != nil {
		f.config.Logger.Error("serve an MCP client", "error", err)
		c.Close()
		return
	}
	unwatch := f.watch(c.requester)
	over := make(chan struct{})
	var draining sync.WaitGroup
	draining.Go(func() {
		select {
		case <-over:
		case <-stopping:
			c.drain()
		}
	})
	// The calls that are ended so are answered, and then there is none.
	ended := context.AfterFunc(ctx, func() { c.leave(context.Cause(ctx)) })
	session.Wait()
	ended()
	c.leave(wire.ErrLeft)
	c.dialogs.talking.Wait()
	c.Close()
	close(over)
	draining.Wait()
	unwatch()
}

const instructions = "Tools of a toold daemon. A call may be denied by a policy: the result says which rule denied it and what to do instead. " +
	"Where a result says OUTCOME_UNKNOWN the call may have taken effect: find out before you call again. " +
	"_meta[\"io.toold/idempotencyKey\"] of tools/call makes a call that can be repeated without running twice."

// Refusal returns the message for a connection that is not served.
func Refusal(err *fault.Error) []byte {
	return append(translate.ErrorMessage(nil, translate.CodeRefused, err), '\n')
}

// receive serves what the pipeline is asked for, and keeps a panic to its request.
// The rest, such as initialize, is the SDK's.
func (r *requester) receive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (res sdk.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				r.config.Logger.Error("panic in a request of MCP", "method", method, "panic", v, "stack", string(debug.Stack()))
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

// undeclared reports whether a method belongs to what the daemon does not offer, and
// the SDK answers all the same.
func undeclared(method string) bool {
	kind, _, _ := strings.Cut(method, "/")
	return kind == "prompts" || kind == "resources" || kind == "completion"
}

// listen makes the SDK serve a stream of notifications, which ends with the daemon.
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
