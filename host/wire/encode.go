package wire

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// maxMessage bounds an error message in a response, in bytes of JSON.
const maxMessage = 8192

// EncodeResult returns the response to a call that is not streamed, as JSON of at most MaxFrame bytes.
//
// Text that does not fit is cut at a character boundary, and "truncated" is set; standard output and standard error
// get half of the space each, plus what the other does not need. Invalid UTF-8 becomes U+FFFD. Data cannot be cut: if
// it does not fit, the response is LIMIT_EXCEEDED.
func EncodeResult(form Form, r *Result) []byte { return encodeResult(form, r, false) }

// EncodeStreamResult returns the last frame of a streamed call, as JSON of at most
// MaxFrame bytes: that of EncodeResult without the text.
func EncodeStreamResult(form Form, r *Result) []byte { return encodeResult(form, r, true) }

func encodeResult(form Form, r *Result, stream bool) []byte {
	if form == Envelope {
		return encodeEnvelope(r, stream)
	}
	return encodePlain(r, stream)
}

// answer holds the fields that both forms have in common.
type answer struct {
	status    string
	exit      int
	code      fault.Code
	message   string
	retriable bool
	toolCode  string
}

// answerOf derives the response from a result. A tool that ran and did not exit with 0 gets the code TOOL_FAILED, but
// no message: its own output has one.
func answerOf(r *Result) answer {
	a := answer{status: r.Status(), exit: r.Exit()}
	switch {
	case r.Err != nil:
		a.code, a.message, a.retriable, a.toolCode = r.Err.Code, r.Err.Message, r.Err.Retriable(), r.Err.ToolCode
	case r.ExitCode != 0:
		a.code, a.retriable = fault.ToolFailed, r.MayRetry
	}
	return a
}

func encodePlain(r *Result, stream bool) []byte {
	a := answerOf(r)
	head := make([]byte, 0, 512)
	head = append(head, '{')
	if stream {
		head = append(head, `"type":"result",`...)
	}
	head = append(head, `"exit_code":`...)
	head = strconv.AppendInt(head, int64(a.exit), 10)
	var tail []byte
	tail = append(tail, `,"error":`...)
	tail = appendMessage(tail, a.message)
	tail = append(tail, `,"status":"`...)
	tail = append(tail, a.status...)
	tail = append(tail, '"')
	if a.code != "" {
		tail = append(tail, `,"code":`...)
		tail = appendMessage(tail, string(a.code))
		tail = append(tail, `,"retriable":`...)
		tail = strconv.AppendBool(tail, a.retriable)
		tail = appendToolCode(tail, a.toolCode)
	}
	tail = append(tail, `,"duration_ms":`...)
	tail = strconv.AppendInt(tail, r.Duration.Milliseconds(), 10)
	if r.FromCache {
		tail = append(tail, `,"from_cache":true`...)
	}
	if r.ExecutionID != "" {
		tail = append(tail, `,"execution_id":`...)
		tail = appendMessage(tail, r.ExecutionID)
	}
	tail = appendUsage(tail, r.Usage)
	const truncated = `,"truncated":true`
	if stream {
		if r.Truncated {
			tail = append(tail, truncated...)
		}
		return append(append(head, tail...), '}')
	}
	stdout := r.Stdout
	if len(stdout) == 0 && r.Data != nil {
		stdout = DataText(r.Data)
	}
	return appendTexts(head, tail, `,"stdout":`, stdout, `,"stderr":`, r.Stderr, truncated, "}", r.Truncated)
}

func encodeEnvelope(r *Result, stream bool) []byte {
	a := answerOf(r)
	if r.Data != nil {
		if err := strictjson.Check(r.Data); err != nil {
			return encodeEnvelope(&Result{
				ExecutionID: r.ExecutionID, Duration: r.Duration,
				Err: fault.Errorf(fault.Internal, "the tool ran, but its data is not JSON: %w; this is a fault of the tool", err),
			}, stream)
		}
	}
	head := make([]byte, 0, 512)
	head = append(head, '{')
	if stream {
		head = append(head, `"type":"result",`...)
	}
	head = append(head, `"status":"`...)
	head = append(head, a.status...)
	head = append(head, '"')
	var tail []byte
	if a.code != "" {
		if a.message == "" {
			a.message = fmt.Sprintf("the tool ended with exit code %d; its output is in data", a.exit)
		}
		tail = append(tail, `,"error":{"code":`...)
		tail = appendMessage(tail, string(a.code))
		tail = append(tail, `,"message":`...)
		tail = appendMessage(tail, a.message)
		tail = append(tail, `,"retriable":`...)
		tail = strconv.AppendBool(tail, a.retriable)
		tail = appendToolCode(tail, a.toolCode)
		tail = append(tail, '}')
	}
	tail = append(tail, `,"durationMs":`...)
	tail = strconv.AppendInt(tail, r.Duration.Milliseconds(), 10)
	tail = append(tail, `,"fromCache":`...)
	tail = strconv.AppendBool(tail, r.FromCache)
	if r.ExecutionID != "" {
		tail = append(tail, `,"executionId":`...)
		tail = appendMessage(tail, r.ExecutionID)
	}
	tail = appendUsage(tail, r.Usage)
	tail = append(tail, '}')

	const data = `,"data":`
	switch {
	case r.Data != nil:
		if size := len(head) + len(data) + len(r.Data) + len(tail); size > MaxFrame {
			return encodeEnvelope(&Result{
				ExecutionID: r.ExecutionID, Duration: r.Duration, FromCache: r.FromCache,
				Err: fault.Errorf(fault.LimitExceeded, "the tool ran, but its data of %d bytes does not fit in one answer; toolctl result %s shows it", len(r.Data), r.ExecutionID),
			}, stream)
		}
		head = append(append(head, data...), r.Data...)
	case r.Ran || len(r.Stdout)+len(r.Stderr) > 0:
		head = append(append(head, data...), `{"exit_code":`...)
		head = strconv.AppendInt(head, int64(a.exit), 10)
		const truncated = `,"truncated":true`
		if !stream {
			return appendTexts(head, nil, `,"stdout":`, r.Stdout, `,"stderr":`, r.Stderr, truncated, "}"+string(tail), r.Truncated)
		}
		if r.Truncated {
			head = append(head, truncated...)
		}
		head = append(head, '}')
	}
	return append(head, tail...)
}

func appendToolCode(b []byte, code string) []byte {
	if code == "" {
		return b
	}
	return appendMessage(append(b, `,"tool_code":`...), code)
}

func appendUsage(b []byte, u *Usage) []byte {
	if u == nil {
		return b
	}
	b = append(b, `,"usage":{"fuel":`...)
	b = strconv.AppendInt(b, u.Fuel, 10)
	b = append(b, `,"memory":`...)
	b = strconv.AppendInt(b, u.Memory, 10)
	b = append(b, `,"pages":`...)
	b = strconv.AppendInt(b, u.Pages, 10)
	if u.Attempts > 0 {
		b = strconv.AppendInt(append(b, `,"attempts":`...), int64(u.Attempts), 10)
	}
	if u.RetriesCut > 0 {
		b = strconv.AppendInt(append(b, `,"retries_cut":`...), int64(u.RetriesCut), 10)
	}
	return append(b, '}')
}

// DataText returns the standard output, for a plain call, of a tool that returned data and no text.
func DataText(data json.RawMessage) []byte {
	return append(data[:len(data):len(data)], '\n')
}

// appendTexts appends to head the two named texts, tail, truncated if it applies,
// and end; it cuts the texts so that all of it fits in a frame.
func appendTexts(head, tail []byte, name1 string, text1 []byte, name2 string, text2 []byte, truncated, end string, cut bool) []byte {
	room := MaxFrame - len(head) - len(name1) - len(name2) - len(tail) - len(end) - len(`""""`)
	if cut {
		room -= len(truncated)
	}
	size1, size2 := textSize(text1, room), textSize(text2, room)
	if size1+size2 > room {
		if !cut {
			cut = true
			room -= len(truncated)
		}
		size2 = min(size2, max(room/2, room-size1))
		size1 = min(size1, room-size2)
	}
	out := append(head, name1...)
	out = appendCut(out, text1, size1)
	out = append(out, name2...)
	out = appendCut(out, text2, size2)
	out = append(out, tail...)
	if cut {
		out = append(out, truncated...)
	}
	return append(out, end...)
}

func appendMessage(dst []byte, s string) []byte { return appendCut(dst, s, maxMessage) }

// EncodeProgress returns a progress frame, as JSON. The error is a
// *strictjson.Fault if data is not one JSON value, and a *fault.Error with
// MessageTooLarge if it does not fit in a frame.
func EncodeProgress(data json.RawMessage) ([]byte, error) {
	if err := strictjson.Check(data); err != nil {
		return nil, err
	}
	out := append([]byte(`{"type":"progress","data":`), data...)
	out = append(out, '}')
	if len(out) > MaxFrame {
		return nil, tooLarge(int64(len(out)))
	}
	return out, nil
}

// AppendEvent appends to dst the frame, with its header, that EncodeProgress makes of JSON, for JSON that this program
// has encoded itself. The error is that of AppendFrame.
func AppendEvent(dst []byte, data json.RawMessage) ([]byte, error) {
	const head, tail = `{"type":"progress","data":`, `}`
	size := len(head) + len(data) + len(tail)
	if size > MaxFrame {
		return dst, tooLarge(int64(size))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	dst = append(append(dst, head...), data...)
	return append(dst, tail...), nil
}

// EncodeOpen returns the frame that requests input from a client, as JSON.
func EncodeOpen() []byte { return []byte(`{"type":"stdin","open":true}`) }

// EncodeAck returns the frame that acknowledges n bytes of input, as JSON.
func EncodeAck(n int) []byte {
	out := strconv.AppendInt([]byte(`{"type":"stdin","ack":`), int64(n), 10)
	return append(out, '}')
}

// EncodeEOF returns the frame that ends the input, as JSON.
func EncodeEOF() []byte { return []byte(`{"type":"stdin","eof":true}`) }

// EncodeSignal returns the frame that sends a signal to the tool, as JSON; nil for
// a signal that the protocol lacks.
func EncodeSignal(signal syscall.Signal) []byte {
	for _, s := range signals {
		if s.signal == signal {
			return append(append([]byte(`{"type":"signal","name":"`), s.name...), `"}`...)
		}
	}
	return nil
}

// EncodeRequest returns the frames of a request, as JSON of at most MaxFrame bytes
// each: the request itself, and args frames if the arguments of a streamed one do
// not fit.
//
// An envelope without Payload gets {args, cwd, stdin?}. The error is a
// *fault.Error: MessageTooLarge for what does not fit, InvalidEnvelope for an
// argument that is not UTF-8 or a payload that is not JSON.
func EncodeRequest(c *Call) ([][]byte, error) {
	if c.Payload != nil {
		if err := strictjson.Check(c.Payload); err != nil {
			return nil, invalid(err)
		}
	}
	if err := c.checkText(); err != nil {
		return nil, err
	}
	whole := appendRequest(nil, c, c.Args, false)
	if len(whole) <= MaxFrame {
		return [][]byte{whole}, nil
	}
	if !c.Stream || c.Form == Envelope && c.Payload != nil {
		return nil, tooLarge(int64(len(whole)))
	}
	first := appendRequest(nil, c, nil, true)
	if len(first) > MaxFrame {
		return nil, tooLarge(int64(len(first)))
	}
	return appendArgsFrames([][]byte{first}, c.Args), nil
}

// checkText rejects invalid UTF-8: JSON encoding would replace it silently, and so
// change the call.
func (c *Call) checkText() error {
	for i, a := range c.Args {
		if !utf8.ValidString(a) {
			return fault.Errorf(fault.InvalidEnvelope, "args/%d is not UTF-8: %q; the protocol carries text, so rename the file, or name it in a file that the tool reads", i, a)
		}
	}
	for name, value := range c.Env {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fault.Errorf(fault.InvalidEnvelope, "env/%s is not UTF-8: %q; the protocol carries text, so leave it out", name, value)
		}
	}
	for _, f := range [...]struct{ name, value string }{
		{"tool", c.Tool}, {"cwd", c.Cwd}, {"session", c.Session}, {"idempotency_key", c.IdempotencyKey}, {"trace", c.Trace}, {"traceId", c.TraceID},
	} {
		if !utf8.ValidString(f.value) {
			return fault.Errorf(fault.InvalidEnvelope, "%s is not UTF-8: %q; the protocol carries text", f.name, f.value)
		}
	}
	if !utf8.ValidString(c.Token) {
		return fault.Errorf(fault.InvalidEnvelope, "the token is not UTF-8; check where it comes from")
	}
	return nil
}

// appendArgsFrames appends the frames that carry args.
func appendArgsFrames(frames [][]byte, args []string) [][]byte {
	const begin, last = `{"type":"args","args":[`, `],"join":false,"more":false}`
	const room = MaxFrame - len(last)
	frame := append(make([]byte, 0, MaxFrame), begin...)
	joined, count := false, 0
	flush := func(more bool) {
		frame = append(frame, `],"join":`...)
		frame = strconv.AppendBool(frame, joined)
		frame = append(frame, `,"more":`...)
		frame = strconv.AppendBool(frame, more)
		frames = append(frames, append(frame, '}'))
		frame, count = append(make([]byte, 0, MaxFrame), begin...), 0
	}
	for _, a := range args {
		for rest := a; ; {
			// An argument that fits in the rest of this frame, or in a new one,
			// is sent whole, otherwise in parts.
			if count > 0 && textSize(rest, room) > room-len(frame)-len(`,""`) {
				flush(true)
				joined = false
			}
			if count > 0 {
				frame = append(frame, ',')
			}
			count++
			frame = append(frame, '"')
			var n int
			frame, n = appendText(frame, rest, room-len(frame)-len(`"`))
			frame = append(frame, '"')
			if rest = rest[n:]; rest == "" {
				break
			}
			flush(true)
			joined = true
		}
	}
	flush(false)
	return frames
}

func appendRequest(dst []byte, c *Call, args []string, more bool) []byte {
	text := func(name, value string) {
		if value != "" {
			dst = append(append(dst, name...), ':')
			dst = appendString(dst, value)
		}
	}
	flag := func(name string, value bool) {
		if value {
			dst = append(append(dst, name...), ":true"...)
		}
	}
	// The forms differ in the spelling of some names, and in args, cwd and
	// stdin, which an envelope has in its payload.
	key, timeout := `,"idempotency_key"`, `,"timeout_ms":`
	if c.Form == Envelope {
		key, timeout = `,"idempotencyKey"`, `,"timeoutMs":`
		dst = append(dst, `{"toolId":`...)
		dst = appendString(dst, c.Tool)
		text(`,"executionId"`, c.ExecutionID)
		dst = append(dst, `,"payload":`...)
		if c.Payload != nil {
			dst = append(dst, c.Payload...)
		} else {
			dst = appendPayloadArgs(dst, c, args)
		}
		dst = appendMetadata(dst, c)
	} else {
		dst = append(dst, `{"tool":`...)
		dst = appendString(dst, c.Tool)
		dst = append(dst, `,"args":`...)
		dst = appendStrings(dst, args)
		dst = append(dst, `,"cwd":`...)
		dst = appendString(dst, c.Cwd)
		if c.Stdin != nil {
			dst = append(dst, `,"stdin":"`...)
			dst = base64.StdEncoding.AppendEncode(dst, c.Stdin)
			dst = append(dst, '"')
		}
	}
	text(`,"session"`, c.Session)
	text(`,"token"`, c.Token)
	text(key, c.IdempotencyKey)
	flag(`,"retry"`, c.Retry)
	if c.Timeout > 0 {
		// Rounded up: 0 would mean no timeout.
		dst = append(dst, timeout...)
		dst = strconv.AppendInt(dst, int64((c.Timeout-1)/time.Millisecond)+1, 10)
	}
	flag(`,"stream"`, c.Stream)
	if c.TTY != nil {
		dst = appendTTY(dst, c.TTY)
	}
	if len(c.Callbacks) > 0 {
		dst = append(dst, `,"callbacks":`...)
		dst = appendStrings(dst, c.Callbacks)
	}
	flag(`,"more"`, more)
	dst = appendEnv(dst, c.Env)
	if len(c.EnvSeen) > 0 && c.Form == Plain {
		dst = append(dst, `,"env_seen":`...)
		dst = appendStrings(dst, c.EnvSeen)
	}
	flag(`,"background"`, c.Background)
	flag(`,"detach"`, c.Detach)
	text(`,"trace"`, c.Trace)
	return append(dst, '}')
}

func appendEnv(dst []byte, env map[string]string) []byte {
	if len(env) == 0 {
		return dst
	}
	dst = append(dst, `,"env":{`...)
	sep := byte(0)
	for name, value := range env {
		if sep != 0 {
			dst = append(dst, sep)
		}
		sep = ','
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendString(dst, value)
	}
	return append(dst, '}')
}

func appendMetadata(dst []byte, c *Call) []byte {
	if c.CallerInfo == nil && c.TraceID == "" && c.Timestamp.IsZero() {
		return dst
	}
	dst = append(dst, `,"metadata":{`...)
	start := len(dst)
	if c.CallerInfo != nil {
		dst = append(append(dst, `"callerInfo":`...), c.CallerInfo...)
	}
	comma := func() {
		if len(dst) > start {
			dst = append(dst, ',')
		}
	}
	if c.TraceID != "" {
		comma()
		dst = appendString(append(dst, `"traceId":`...), c.TraceID)
	}
	if !c.Timestamp.IsZero() {
		comma()
		dst = appendString(append(dst, `"timestamp":`...), c.Timestamp.Format(time.RFC3339Nano))
	}
	return append(dst, '}')
}

// appendPayload appends {args, cwd, stdin?}.
func appendPayload(dst []byte, c *Call) []byte { return appendPayloadArgs(dst, c, c.Args) }

func appendPayloadArgs(dst []byte, c *Call, args []string) []byte {
	dst = append(dst, `{"args":`...)
	dst = appendStrings(dst, args)
	if c.Cwd != "" {
		dst = append(dst, `,"cwd":`...)
		dst = appendString(dst, c.Cwd)
	}
	if c.Stdin != nil {
		dst = append(dst, `,"stdin":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, c.Stdin)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}
