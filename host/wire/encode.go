package wire

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// maxMessage is the most bytes of JSON that an error's message takes of an
// answer: enough for any message that was written for a person.
const maxMessage = 8192

// EncodeResult is the answer to a call that is not streamed, as JSON of at most
// MaxFrame bytes.
//
// Text that would not fit is cut at a character, and "truncated" says so;
// standard output and standard error have half of the room each, and what one
// does not need the other gets. Bytes that are not UTF-8 become U+FFFD. Data
// cannot be cut: data that does not fit is LIMIT_EXCEEDED in its place.
func EncodeResult(form Form, r *Result) []byte { return encodeResult(form, r, false) }

// EncodeStreamResult is the last frame of a streamed call, as JSON of at most
// MaxFrame bytes: what EncodeResult gives, without the text.
func EncodeStreamResult(form Form, r *Result) []byte { return encodeResult(form, r, true) }

func encodeResult(form Form, r *Result, stream bool) []byte {
	if form == Envelope {
		return encodeEnvelope(r, stream)
	}
	return encodePlain(r, stream)
}

// answer is what the two forms say alike.
type answer struct {
	status    string
	exit      int
	code      fault.Code
	message   string
	retriable bool
}

// answerOf derives the answer from a result. A tool that ran and did not exit
// with 0 has failed, for a program; for a person its own text says enough.
func answerOf(r *Result) answer {
	a := answer{status: r.Status(), exit: r.Exit()}
	switch {
	case r.Err != nil:
		a.code, a.message, a.retriable = r.Err.Code, r.Err.Message, r.Err.Retriable()
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
	return append(b, '}')
}

// DataText is the standard output of a tool that answered with data and no text,
// for a caller of the plain form.
func DataText(data json.RawMessage) []byte {
	return append(data[:len(data):len(data)], '\n')
}

// appendTexts is head, the two texts under their names, tail, truncated where
// it applies, and end; the texts are cut so that all of it fits in a frame.
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

// textSize is how many bytes text takes in a JSON string, without the quotes;
// anything over most where it is more than most.
func textSize[T []byte | string](text T, most int) int {
	size := 0
	for i := 0; i < len(text) && size <= most; {
		n, out := encodedSize(text[i:])
		i += n
		size += out
	}
	return size
}

// encodedSize is how many bytes the first character of text has, and how many
// it takes in a JSON string. A byte that is not UTF-8 becomes U+FFFD.
func encodedSize[T []byte | string](text T) (n, out int) {
	switch c := text[0]; {
	case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
		return 1, 2
	case c < ' ':
		return 1, 6
	case c < utf8.RuneSelf:
		return 1, 1
	}
	r, n := utf8.DecodeRuneInString(string(text[:min(len(text), utf8.UTFMax)]))
	if r == utf8.RuneError && n == 1 {
		return 1, len("\uFFFD")
	}
	return n, n
}

// appendText appends the content of a JSON string that says text, as much of it
// as fits in room bytes, and reports how much of text that was.
func appendText[T []byte | string](dst []byte, text T, room int) ([]byte, int) {
	const hex = "0123456789abcdef"
	for i := 0; i < len(text); {
		n, out := encodedSize(text[i:])
		if room -= out; room < 0 {
			return dst, i
		}
		switch c := text[i]; {
		case out == n:
			dst = append(dst, text[i:i+n]...)
		case c >= utf8.RuneSelf:
			dst = append(dst, "\uFFFD"...)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, '\\', c)
		}
		i += n
	}
	return dst, len(text)
}

// appendCut appends a JSON string that says text, as much of it as fits in room
// bytes between the quotes.
func appendCut[T []byte | string](dst []byte, text T, room int) []byte {
	dst = append(dst, '"')
	dst, _ = appendText(dst, text, room)
	return append(dst, '"')
}

func appendMessage(dst []byte, s string) []byte { return appendCut(dst, s, maxMessage) }

// appendString appends a JSON string that says all of s.
func appendString(dst []byte, s string) []byte { return appendCut(dst, s, math.MaxInt) }

// EncodeProgress is a progress frame, as JSON. data is one JSON value; the error
// is a *Fault where it is not, and an *Error with MessageTooLarge where it does
// not fit in a frame.
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

// EncodeOpen is the frame that asks a client for its input, as JSON.
func EncodeOpen() []byte { return []byte(`{"type":"stdin","open":true}`) }

// EncodeAck is the frame that acknowledges n further bytes of input, as JSON.
func EncodeAck(n int) []byte {
	out := strconv.AppendInt([]byte(`{"type":"stdin","ack":`), int64(n), 10)
	return append(out, '}')
}

// EncodeEOF is the frame that ends the input, as JSON.
func EncodeEOF() []byte { return []byte(`{"type":"stdin","eof":true}`) }

// EncodeSignal is the frame that sends a signal to the tool, as JSON; nil for a
// signal that the protocol does not have.
func EncodeSignal(signal syscall.Signal) []byte {
	for _, s := range signals {
		if s.signal == signal {
			return append(append([]byte(`{"type":"signal","name":"`), s.name...), `"}`...)
		}
	}
	return nil
}

// EncodeRequest is the frames of a request, as JSON of at most MaxFrame bytes
// each: the request itself, and, where the arguments of a streamed one do not
// fit, the args frames that follow it.
//
// An envelope without Payload gets {args, cwd, stdin?}. The error is an *Error:
// MessageTooLarge for what does not fit, InvalidEnvelope for what JSON cannot
// say (an argument that is not UTF-8, a payload that is not JSON).
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

// checkText finds what JSON cannot say: replacing it silently would make another
// call of it.
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
			// An argument goes in whole where it fits in what is left of this
			// frame, or in a frame of its own, and in parts elsewhere.
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
	// The names of the two forms differ in more than their spelling only for
	// what a plain request has at its top and an envelope in its payload.
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
		// Rounded up: a timeout of less than a millisecond is not none.
		dst = append(dst, timeout...)
		dst = strconv.AppendInt(dst, int64((c.Timeout-1)/time.Millisecond)+1, 10)
	}
	flag(`,"stream"`, c.Stream)
	flag(`,"more"`, more)
	if len(c.Env) > 0 {
		dst = append(dst, `,"env":{`...)
		sep := byte(0)
		for name, value := range c.Env {
			if sep != 0 {
				dst = append(dst, sep)
			}
			sep = ','
			dst = appendString(dst, name)
			dst = append(dst, ':')
			dst = appendString(dst, value)
		}
		dst = append(dst, '}')
	}
	flag(`,"background"`, c.Background)
	flag(`,"detach"`, c.Detach)
	text(`,"trace"`, c.Trace)
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
	dst = append(dst, `,"cwd":`...)
	dst = appendString(dst, c.Cwd)
	if c.Stdin != nil {
		dst = append(dst, `,"stdin":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, c.Stdin)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}
