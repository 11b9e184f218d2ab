package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/mcp/translate"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

const (
	// maxPending is how many requests of a connection may be unanswered. Past them
	// nothing more is read from it.
	maxPending = 64
	// maxBacklog is how many bytes are read while nothing could be written.
	maxBacklog = 4 << 20
	// writePatience is how long a client may take to read one message before its
	// connection is closed.
	writePatience = 30 * time.Second
)

// MethodCaller is a notification that a client may begin with: who calls and from
// where, for the requests of the connection that do not say. Caller has its
// parameters.
const MethodCaller = "notifications/io.toold/caller"

// conn is one connection of a socket: the SDK's transport for it, and who makes its
// requests. Read sets the caller before any request.
type conn struct {
	*requester
	nc net.Conn

	in  *bufio.Reader // of Read
	any bool          // Read: there was a message

	writing sync.Mutex

	answered *sync.Cond // of what follows, which client.mu guards
	pending  map[jsonrpc.ID]struct{}
	writers  int // that write or wait to
	backlog  int // bytes that were read since one of them was done
	closed   bool
}

func newConn(r *requester, nc net.Conn) *conn {
	c := &conn{requester: r, nc: nc, in: bufio.NewReader(nc), pending: map[jsonrpc.ID]struct{}{}}
	c.answered = sync.NewCond(&c.mu)
	return c
}

// Connect implements sdk.Transport.
func (c *conn) Connect(context.Context) (sdk.Connection, error) { return c, nil }

// SessionID implements sdk.Connection: there is one session.
func (c *conn) SessionID() string { return "" }

// Close closes the connection. It may be called more than once.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.answered.Broadcast()
	c.mu.Unlock()
	c.leave(wire.ErrLeft)
	c.nc.Close()
	return nil
}

// Read returns the next message. It responds to invalid messages with an error, and continues
// with the next one.
func (c *conn) Read(context.Context) (jsonrpc.Message, error) {
	for {
		if !c.room() {
			return nil, io.EOF
		}
		line, err := readLine(c.in)
		if tooLong, ok := errors.AsType[*tooLongError](err); ok {
			c.any = true
			c.writeLine(translate.ErrorMessage(tooLong.id, jsonrpc.CodeInvalidRequest, fault.Errorf(fault.MessageTooLarge,
				"the message has %d bytes and may have %d; pass large contents in a file beneath a root, and its path as the argument", tooLong.size, MaxMessage)))
			continue
		}
		if err != nil {
			// What was cut off is no message.
			c.Close()
			return nil, err
		}
		if len(line) == 0 {
			continue
		}
		c.mu.Lock()
		c.backlog += len(line)
		c.mu.Unlock()
		first := !c.any
		c.any = true
		if c.who.Begin != nil && !c.who.Begin() {
			c.Close()
			return nil, io.EOF
		}
		if refused := check(line); refused != nil && line[0] == '{' {
			id := idFinder{}
			if json.Valid(line) {
				id.read(line)
			}
			c.writeLine(translate.ErrorMessage(id.id(), jsonrpc.CodeParseError, refused))
			continue
		}
		msg, err := decode(line)
		if err != nil {
			c.writeLine(translate.ErrorMessage(nil, jsonrpc.CodeParseError, fault.Errorf(fault.InvalidEnvelope, "%w; send one JSON-RPC message a line", err)))
			continue
		}
		q, ok := msg.(*jsonrpc.Request)
		if !ok {
			return msg, nil
		}
		if q.Method == MethodCaller && !q.IsCall() {
			if err := c.introduce(first, q.Params); err != nil {
				c.writeLine(translate.ErrorMessage(nil, jsonrpc.CodeInvalidRequest, fault.Errorf(fault.InvalidEnvelope, "%s: %w", MethodCaller, err)))
				c.leave(wire.ErrLeft)
				return nil, io.EOF // it would call as another one than it thinks
			}
			continue
		}
		if q.IsCall() {
			c.mu.Lock()
			c.pending[q.ID] = struct{}{}
			c.mu.Unlock()
		}
		return msg, nil
	}
}

// room waits until a further request may be read, and reports whether the connection
// is open.
func (c *conn) room() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed && (len(c.pending) >= maxPending || c.writers > 0 && c.backlog > maxBacklog) {
		c.answered.Wait()
	}
	return !c.closed
}

// decode decodes a message that passed check.
func decode(line []byte) (jsonrpc.Message, error) {
	if line[0] != '{' {
		return nil, errors.New("the message is not an object; batches are not taken")
	}
	return jsonrpc.DecodeMessage(line)
}

func (c *conn) introduce(first bool, params json.RawMessage) error {
	if !first {
		return errors.New("comes after another message; send it first")
	}
	var caller Caller
	if err := strictjson.Unmarshal(params, &caller); err != nil {
		return err
	}
	c.client.caller = caller
	return nil
}

// Write writes a message. A client that does not read for writePatience loses the connection.
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	data, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	err = c.writeLine(data)
	if answer, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.pending, answer.ID)
		c.answered.Broadcast()
		c.mu.Unlock()
		c.closeDrained()
	}
	return err
}

func (c *conn) writeLine(data []byte) error {
	c.mu.Lock()
	c.writers++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writers--
		c.backlog = 0
		c.answered.Broadcast()
	}()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.nc.SetWriteDeadline(time.Now().Add(writePatience))
	_, err := c.nc.Write(append(data, '\n'))
	if err != nil {
		c.Close()
	}
	return err
}

// drain takes no further calls and closes the connection when those that run were
// answered.
func (c *conn) drain() {
	c.client.drain()
	c.closeDrained()
}

// closeDrained closes a connection that is to be drained and has answered all but
// streams of notifications, which have no end of their own.
func (c *conn) closeDrained() {
	c.mu.Lock()
	over := c.draining && len(c.pending) <= c.listens
	c.mu.Unlock()
	if over {
		c.Close()
	}
}
