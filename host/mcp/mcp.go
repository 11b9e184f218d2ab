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
	"encoding/json"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/wire"
)

const (
	// MaxMessage is how long a message of a client may be, in bytes.
	MaxMessage = 1 << 20
	// maxPending is how many requests of a connection may be unanswered. Past them
	// nothing more is read from it.
	maxPending = 64
	// maxCalls is how many requests of a connection are in the pipeline at a time.
	// A further one is answered OVERLOADED.
	maxCalls = 16
	// maxListens is how many streams of notifications a connection may have.
	maxListens = 4
	// maxBacklog is how many bytes are read while nothing could be written.
	maxBacklog = 4 << 20
	// writePatience is how long a client may take to read one message before its
	// connection is closed.
	writePatience = 30 * time.Second
)

// Config is fixed once the front end is made.
type Config struct {
	// Version is the daemon's, for clients to show.
	Version string
	// Call takes one call the whole way. It is required.
	Call func(context.Context, call.Request) call.Outcome
	// Logger gets what no client can be told. It is required.
	Logger *slog.Logger
}

// Front serves MCP. It is safe for concurrent use.
type Front struct {
	config  Config
	stopped chan struct{} // closed by EndWaits
	stop    func()

	mu         sync.Mutex // guards what follows
	requesters map[*requester]struct{}
	waiting    map[string]*dialog // that wait for an answer, by the execution
}

// New makes a front end.
func New(config Config) *Front {
	f := &Front{config: config, stopped: make(chan struct{}), requesters: map[*requester]struct{}{}, waiting: map[string]*dialog{}}
	f.stop = sync.OnceFunc(func() { close(f.stopped) })
	return f
}

// EndWaits ends what waits for an answer of a client, and has nothing wait from now on.
func (f *Front) EndWaits() { f.stop() }

// Peer is who connected, as the kernel says, and where: fields of call.Request.
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

// ListChanged has every client told whose list of tools is another one than it was
// last given. It returns at once.
func (f *Front) ListChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.requesters {
		select {
		case r.changed <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// watch has r told of changes until the function that it returns is called, which
// waits for the end.
func (f *Front) watch(r *requester, server *sdk.Server) (end func()) {
	f.mu.Lock()
	f.requesters[r] = struct{}{}
	f.mu.Unlock()
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(over, server) })
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
	r.server = server
	server.AddReceivingMiddleware(r.receive)
	if err := serveTasks(server); err != nil {
		f.config.Logger.Error("serve tasks of MCP", "error", err) // not of this SDK
	}
	return server
}

// Serve serves one connection, and returns when it is over and its calls have
// ended. Once stopping is closed no further call is taken, and the connection is
// closed when those that run were answered. The end of ctx ends them.
func (f *Front) Serve(ctx context.Context, stopping <-chan struct{}, nc net.Conn, who Peer) {
	c := newConn(f, nc, who)
	server := f.newServer(c.requester, sdk.ServerOptions{})
	session, err := server.Connect(context.WithoutCancel(ctx), c, nil)
	if err != nil {
		f.config.Logger.Error("serve an MCP client", "error", err)
		c.Close()
		return
	}
	unwatch := f.watch(c.requester, server)
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
	c.talking.Wait()
	c.Close()
	close(over)
	draining.Wait()
	unwatch()
}

const instructions = "Tools of a toold daemon. A call may be denied by a policy: the result says which rule denied it and what to do instead. " +
	"Where a result says OUTCOME_UNKNOWN the call may have taken effect: find out before you call again. " +
	"_meta[\"io.toold/idempotencyKey\"] of tools/call makes a call that can be repeated without running twice."

// Refusal is what a connection is told that is not served.
func Refusal(err *fault.Error) []byte {
	return append(errorMessage(nil, translate.CodeRefused, err), '\n')
}

// errorMessage is an answer with an error; a nil id is null, of what has none.
func errorMessage(id json.RawMessage, code int, err *fault.Error) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	type detail struct {
		Code    int              `json:"code"`
		Message string           `json:"message"`
		Data    *translate.Fault `json:"data"`
	}
	b, _ := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   detail          `json:"error"`
	}{"2.0", id, detail{code, err.Error(), translate.FaultOf(err)}})
	return b
}
