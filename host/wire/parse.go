package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire/callbacks"
)

// MaxArgs is the largest total size of a call's arguments, in bytes, each counted
// with its terminating zero byte. It is the default limit of Linux for a process.
const MaxArgs = 2 << 20

// Message is a frame from a client: a *Call or a *Typed.
type Message interface{ message() }

func (*Call) message()  {}
func (*Typed) message() {}

// The types of the frames that belong to a running call.
const (
	TypeStdin    = "stdin"
	TypeSignal   = "signal"
	TypeArgs     = "args"
	TypeResize   = "resize"
	TypeCallback = "callback"
	TypeStdout   = "stdout"
	TypeStderr   = "stderr"
	TypeProgress = "progress"
	TypeStopped  = "stopped"
	TypeResult   = "result"
)

// Typed is a frame that belongs to a running call.
type Typed struct {
	// Type is TypeStdin, TypeSignal, TypeResize, TypeCallback or TypeArgs.
	Type string
	// Data and EOF are those of TypeStdin: the next bytes of the input, and
	// whether they are the last.
	Data []byte
	EOF  bool
	// Signal is that of TypeSignal.
	Signal syscall.Signal
	// Size is that of TypeResize.
	Size Size
	// Callback is that of TypeCallback.
	Callback *callbacks.Reply
	// Args are the next arguments; with Join the first one continues the last
	// one so far. More reports that another args frame follows.
	Args []string
	Join bool
	More bool
}

// plainRequest is a request in plain form.
type plainRequest struct {
	Tool           string            `json:"tool"`
	Args           []string          `json:"args"`
	Cwd            string            `json:"cwd"`
	Session        string            `json:"session"`
	Token          string            `json:"token"`
	IdempotencyKey string            `json:"idempotency_key"`
	Retry          bool              `json:"retry"`
	TimeoutMS      milliseconds      `json:"timeout_ms"`
	Stream         bool              `json:"stream"`
	More           bool              `json:"more"`
	Stdin          *base64Text       `json:"stdin"`
	Env            map[string]string `json:"env"`
	EnvSeen        []string          `json:"env_seen"`
	Background     bool              `json:"background"`
	Detach         bool              `json:"detach"`
	Trace          traceparent       `json:"trace"`
	TTY            *TTY              `json:"tty"`
	Callbacks      []string          `json:"callbacks"`
}

// envelopeRequest is a request in envelope form.
type envelopeRequest struct {
	ToolID         string            `json:"toolId"`
	ExecutionID    executionID       `json:"executionId"`
	IdempotencyKey string            `json:"idempotencyKey"`
	Payload        object            `json:"payload"`
	Metadata       metadata          `json:"metadata"`
	Session        string            `json:"session"`
	Token          string            `json:"token"`
	Retry          bool              `json:"retry"`
	TimeoutMS      milliseconds      `json:"timeoutMs"`
	Stream         bool              `json:"stream"`
	More           bool              `json:"more"`
	Stdin          *base64Text       `json:"stdin"`
	Env            map[string]string `json:"env"`
	Background     bool              `json:"background"`
	Detach         bool              `json:"detach"`
	Trace          traceparent       `json:"trace"`
	TTY            *TTY              `json:"tty"`
	Callbacks      []string          `json:"callbacks"`
}

type metadata struct {
	CallerInfo json.RawMessage `json:"callerInfo"`
	TraceID    string          `json:"traceId"`
	Timestamp  timestamp       `json:"timestamp"`
	Session    string          `json:"session"`
	Token      string          `json:"token"`
}

// argsPayload is the payload of an envelope that calls a command.
type argsPayload struct {
	Args  []string    `json:"args"`
	Cwd   string      `json:"cwd"`
	Stdin *base64Text `json:"stdin"`
}

// CommandFault returns INVALID_PAYLOAD with the reason if payload is not {args, cwd?, stdin?}, which calls a command;
// otherwise nil.
func CommandFault(payload json.RawMessage) error {
	var command argsPayload
	err := strictjson.Unmarshal(payload, &command)
	var f *strictjson.Fault
	switch {
	case errors.As(err, &f):
		return fault.Errorf(fault.InvalidPayload, "/payload%s: %s (byte %d)", f.Pointer, f.Reason, f.Offset)
	case err != nil:
		return fault.Errorf(fault.InvalidPayload, "/payload: %w", err)
	case command.Args == nil:
		return fault.Errorf(fault.InvalidPayload, "/payload/args: is missing; it has the arguments of the command, [] if there are none")
	}
	return nil
}

// Parse parses a frame from a client.
//
// The error is a *fault.Error with InvalidEnvelope (or InvalidPayload, for an argument that cannot be passed to a
// process) whose message has the path of the fault. On an error the Message is still a *Call, with as much of Form,
// Stream and ExecutionID as could be parsed, so that the response has the sender's form; or a *Typed with its Type.
func Parse(frame []byte) (Message, error) {
	head, err := peek(frame)
	switch {
	case err != nil:
		return head.call(), invalid(err)
	case head.typ != "" && head.form == nil:
		return parseTyped(frame, head.typ)
	case head.form == nil:
		return head.call(), invalid(&strictjson.Fault{Line: 1, Column: 1, Reason: "has neither \"tool\" nor \"toolId\" nor \"type\"; a plain request names its \"tool\", an envelope its \"toolId\""})
	case *head.form == Envelope:
		return parseEnvelope(frame, head)
	}
	return parsePlain(frame, head)
}

// head holds the members of a frame that decide how to parse it and respond to it.
type head struct {
	form        *Form
	typ         string
	stream      bool
	executionID string
}

func (h *head) call() *Call {
	c := &Call{Stream: h.stream}
	if h.form != nil {
		c.Form = *h.form
	}
	if c.Form == Envelope && validExecutionID(h.executionID) {
		c.ExecutionID = h.executionID
	}
	return c
}

// peek checks the syntax of the whole frame and reads its head. On an error, the
// head has what preceded the fault.
func peek(frame []byte) (head, error) {
	var h head
	err := strictjson.Members(frame, func(name, value []byte) {
		switch string(name) {
		case "tool":
			if h.form == nil {
				h.form = new(Plain)
			}
		case "toolId":
			h.form = new(Envelope)
		case "type":
			if value[0] == '"' {
				strictjson.Unmarshal(value, &h.typ) // already checked
			}
		case "executionId":
			if value[0] == '"' {
				strictjson.Unmarshal(value, &h.executionID)
			}
		case "stream":
			h.stream = value[0] == 't'
		}
	})
	return h, err
}

func parsePlain(frame []byte, h head) (Message, error) {
	var q plainRequest
	if err := strictjson.Unmarshal(frame, &q); err != nil {
		return h.call(), invalid(err)
	}
	c := &Call{
		Form: Plain, Tool: q.Tool, Args: q.Args, Cwd: q.Cwd,
		Env: q.Env, EnvSeen: q.EnvSeen, Session: q.Session, Token: q.Token,
		IdempotencyKey: q.IdempotencyKey, Retry: q.Retry, Timeout: q.TimeoutMS.duration(),
		Background: q.Background, Detach: q.Detach, Stream: q.Stream, More: q.More, Trace: string(q.Trace), TTY: q.TTY, Callbacks: q.Callbacks,
	}
	if q.Stdin != nil {
		c.Stdin = *q.Stdin
	}
	if c.Tool == "" {
		return h.call(), refuse("/tool", "is empty; it names the tool to call")
	}
	if err := c.finish(); err != nil {
		return h.call(), err
	}
	return c, nil
}

func parseEnvelope(frame []byte, h head) (Message, error) {
	var q envelopeRequest
	if err := strictjson.Unmarshal(frame, &q); err != nil {
		return h.call(), invalid(err)
	}
	switch {
	case q.ToolID == "":
		return h.call(), refuse("/toolId", "is empty; it names the tool to call")
	case q.ExecutionID == "":
		return h.call(), refuse("/executionId", "is missing; generate a version-4 UUID for each execution")
	case q.Payload == nil:
		return h.call(), refuse("/payload", "is missing; it is an object, {} if the tool takes nothing")
	case q.Session != "" && q.Metadata.Session != "" && q.Session != q.Metadata.Session:
		return h.call(), refuse("/metadata/session", "is not the same as /session; send one of them")
	case q.Token != "" && q.Metadata.Token != "" && q.Token != q.Metadata.Token:
		return h.call(), refuse("/metadata/token", "is not the same as /token; send one of them")
	}
	c := &Call{
		Form: Envelope, Tool: q.ToolID, ExecutionID: string(q.ExecutionID), Payload: json.RawMessage(q.Payload),
		Env: q.Env, Session: q.Session, Token: q.Token,
		IdempotencyKey: q.IdempotencyKey, Retry: q.Retry, Timeout: q.TimeoutMS.duration(),
		Background: q.Background, Detach: q.Detach, Stream: q.Stream, More: q.More, Trace: string(q.Trace), TTY: q.TTY, Callbacks: q.Callbacks,
		TraceID: q.Metadata.TraceID, Timestamp: time.Time(q.Metadata.Timestamp), CallerInfo: q.Metadata.CallerInfo,
	}
	if c.Session == "" {
		c.Session = q.Metadata.Session
	}
	if c.Token == "" {
		c.Token = q.Metadata.Token
	}
	if q.Stdin != nil {
		c.Stdin = *q.Stdin
	}
	var command argsPayload
	if strictjson.Unmarshal(q.Payload, &command) == nil && command.Args != nil {
		c.Args, c.Cwd = command.Args, command.Cwd
		if command.Stdin != nil {
			if q.Stdin != nil {
				return h.call(), refuse("/stdin", "is in the payload too; send one of them")
			}
			c.Stdin = *command.Stdin
		}
	} else if c.More {
		return h.call(), refuse("/more", "is true, but /payload is not {args, cwd, stdin?}: there are no arguments to continue")
	}
	if err := c.finish(); err != nil {
		return h.call(), err
	}
	return c, nil
}

// finish validates what both forms have in common, and builds the payload of a plain call.
func (c *Call) finish() error {
	if c.More && !c.Stream {
		return refuse("/more", "is true, but /stream is not: only a streamed request has args frames")
	}
	if err := c.TTY.check(c.Stream, c.Stdin); err != nil {
		return err
	}
	if err := c.checkCallbacks(); err != nil {
		return err
	}
	if strings.IndexByte(c.Cwd, 0) >= 0 {
		return fault.Errorf(fault.InvalidPayload, "cwd holds a zero byte; no folder has such a name")
	}
	for name, value := range c.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(value, 0) >= 0 {
			return fault.Errorf(fault.InvalidPayload, "env %q is not a valid variable: its name must not be empty or contain '=', nor name or value a zero byte", name)
		}
	}
	if len(c.EnvSeen) > MaxEnvSeen {
		return refuse("/env_seen", "has more than 64 names; send those that matter")
	}
	for i, name := range c.EnvSeen {
		if !SeenName(name) {
			return refuse("/env_seen/"+strconv.Itoa(i), "is not a name of letters, digits and _, of at most 128 bytes; leave it out")
		}
	}
	if err := c.countArgs(c.Args); err != nil {
		return err
	}
	if !c.More {
		c.complete()
	}
	return nil
}

// Complete returns c as Parse would have returned it, for a call that did not arrive as a frame: it adds a missing
// execution id, and the payload of a plain call. c itself is not changed. The errors are those of Parse.
func (c *Call) Complete() (*Call, error) {
	if c.Tool == "" {
		return nil, refuse("/tool", "is empty; it names the tool to call")
	}
	if c.ExecutionID != "" && !validExecutionID(c.ExecutionID) {
		return nil, refuse("/executionId", "must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2")
	}
	if c.ExecutionID != "" && c.Payload != nil {
		return c, nil
	}
	whole := *c
	if whole.ExecutionID == "" {
		whole.ExecutionID = NewExecutionID()
	}
	if whole.Payload == nil {
		whole.argBytes = 0
		if err := whole.finish(); err != nil {
			return nil, err
		}
	}
	if whole.Payload == nil {
		whole.Payload = json.RawMessage("{}")
	}
	return &whole, nil
}

// countArgs validates further arguments, or parts of them.
func (c *Call) countArgs(args []string) error {
	for _, a := range args {
		if strings.IndexByte(a, 0) >= 0 {
			return fault.Errorf(fault.InvalidPayload, "an argument contains a zero byte, which cannot be passed to a process")
		}
		c.argBytes += len(a) + 1
	}
	if c.argBytes > MaxArgs {
		return fault.Errorf(fault.MessageTooLarge, "the arguments have over %d bytes; give the tool fewer at once, as xargs does, or a list in a file", MaxArgs)
	}
	return nil
}

// complete builds the payload once all arguments have arrived.
func (c *Call) complete() {
	c.endJoin()
	if c.Form == Plain || c.argBytes > 0 {
		c.Payload = appendPayload(nil, c)
	}
}

// endJoin stores the argument that Join has extended.
func (c *Call) endJoin() {
	if c.joined != nil {
		c.Args[len(c.Args)-1] = string(c.joined)
		c.joined = nil
	}
}

// Extend appends the arguments of an args frame to a call that has More. The last
// frame sets More to false, and the call is complete. The error is a *fault.Error:
// MessageTooLarge over MaxArgs, InvalidPayload for an argument that cannot be
// passed to a process, InvalidEnvelope for an unexpected frame.
func (c *Call) Extend(t *Typed) error {
	if t.Type != TypeArgs || !c.More {
		return refuse("/type", "unexpected here; args frames follow a request, or an args frame, with \"more\": true")
	}
	if err := c.countArgs(t.Args); err != nil {
		return err
	}
	args := t.Args
	if t.Join && len(args) > 0 {
		if len(c.Args) == 0 {
			return refuse("/join", "is true, but there is no argument yet to continue")
		}
		if c.joined == nil {
			c.joined = []byte(c.Args[len(c.Args)-1])
		}
		c.joined = append(c.joined, args[0]...)
		args = args[1:]
	}
	if len(args) > 0 {
		c.endJoin()
		c.Args = append(c.Args, args...)
	}
	if c.More = t.More; !c.More {
		c.complete()
	}
	return nil
}

func parseTyped(frame []byte, typ string) (Message, error) {
	t := &Typed{Type: typ}
	var err error
	switch typ {
	case TypeStdin:
		if data, ok := chunk(frame, TypeStdin); ok {
			t.Data = data
			return t, nil
		}
		var q struct {
			Type string     `json:"type"`
			Data base64Text `json:"data"`
			EOF  bool       `json:"eof"`
		}
		err = strictjson.Unmarshal(frame, &q)
		t.Data, t.EOF = q.Data, q.EOF
	case TypeSignal:
		var q struct {
			Type string     `json:"type"`
			Name signalName `json:"name"`
		}
		err = strictjson.Unmarshal(frame, &q)
		if err == nil && q.Name == 0 {
			err = refuse("/name", "is missing; it names the signal: INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP or CONT")
		}
		t.Signal = syscall.Signal(q.Name)
	case TypeResize:
		var q struct {
			Type string  `json:"type"`
			Rows *uint16 `json:"rows"`
			Cols *uint16 `json:"cols"`
		}
		err = strictjson.Unmarshal(frame, &q)
		switch {
		case err != nil:
		case q.Rows == nil:
			err = refuse("/rows", "is missing; it is how many rows the terminal has")
		case q.Cols == nil:
			err = refuse("/cols", "is missing; it is how many columns the terminal has")
		default:
			t.Size = Size{*q.Rows, *q.Cols}
		}
	case TypeCallback:
		t.Callback, err = parseCallbackReply(frame)
	case TypeArgs:
		var q struct {
			Type string   `json:"type"`
			Args []string `json:"args"`
			Join bool     `json:"join"`
			More bool     `json:"more"`
		}
		err = strictjson.Unmarshal(frame, &q)
		t.Args, t.Join, t.More = q.Args, q.Join, q.More
	default:
		err = refuse("/type", "unknown frame type; valid: stdin, signal, resize, callback, args")
	}
	if err != nil {
		return &Typed{Type: typ}, invalid(err)
	}
	return t, nil
}

// chunk returns the data of a frame in exactly the form that AppendChunk writes:
// the fast path for most bytes. ok is false for any other frame.
func chunk(frame []byte, typ string) (data []byte, ok bool) {
	const before, between, after = `{"type":"`, `","data":"`, `"}`
	text, ok := bytes.CutPrefix(frame, []byte(before))
	if !ok {
		return nil, false
	}
	if len(text) < len(typ) || string(text[:len(typ)]) != typ {
		return nil, false
	}
	if text, ok = bytes.CutPrefix(text[len(typ):], []byte(between)); !ok {
		return nil, false
	}
	if text, ok = bytes.CutSuffix(text, []byte(after)); !ok {
		return nil, false
	}
	return decodeBase64(text)
}
