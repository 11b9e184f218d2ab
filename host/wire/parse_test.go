package wire_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

const id = "7d444840-9dc0-41d1-b245-5ffdce74fad2"

func parse(t *testing.T, frame string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(frame))
	if err != nil {
		t.Fatalf("%s: %v", frame, err)
	}
	return m
}

func TestParsePlain(t *testing.T) {
	got := parse(t, `{"tool":"git","args":["log","é"],"cwd":"/w","session":"s","token":"t","idempotency_key":"k","retry":true,"timeout_ms":1500,
		"stream":true,"stdin":"aGk=","env":{"A":"1"},"background":true,"detach":true,"trace":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`).(*wire.Call)
	if string(got.Payload) != `{"args":["log","é"],"cwd":"/w","stdin":"aGk="}` {
		t.Errorf("payload: %s", got.Payload)
	}
	want := &wire.Call{
		Form: wire.Plain, Tool: "git", Args: []string{"log", "é"}, Cwd: "/w", Session: "s", Token: "t", IdempotencyKey: "k", Retry: true,
		Timeout: 1500 * time.Millisecond, Stream: true, Stdin: []byte("hi"), Env: map[string]string{"A": "1"}, Background: true, Detach: true,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	sameCall(t, got, want)
	least := parse(t, `{"tool":"git"}`).(*wire.Call)
	if string(least.Payload) != `{"args":[]}` {
		t.Errorf("payload: %s", least.Payload)
	}
	if least.Stdin != nil {
		t.Error("no stdin was read as an empty one")
	}
	if empty := parse(t, `{"tool":"git","stdin":""}`).(*wire.Call); empty.Stdin == nil {
		t.Error("an empty stdin was read as none")
	}
}

func TestParseEnvelope(t *testing.T) {
	got := parse(t, `{"toolId":"resize","executionId":"`+id+`","idempotencyKey":"k","payload":{"width": 640},
		"metadata":{"callerInfo":{"name":"x"},"traceId":"t","timestamp":"2026-01-02T03:04:05Z","session":"s","token":"t"},"timeoutMs":10}`).(*wire.Call)
	want := &wire.Call{
		Form: wire.Envelope, Tool: "resize", ExecutionID: id, IdempotencyKey: "k", Session: "s", Token: "t", Timeout: 10 * time.Millisecond,
		CallerInfo: json.RawMessage(`{"name":"x"}`), TraceID: "t", Timestamp: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	sameCall(t, got, want)
	if string(got.Payload) != `{"width": 640}` {
		t.Errorf("payload: %s", got.Payload)
	}
	millis := parse(t, `{"toolId":"x","executionId":"`+id+`","payload":{},"metadata":{"timestamp":1767323045000}}`).(*wire.Call)
	if !millis.Timestamp.Equal(want.Timestamp) {
		t.Errorf("timestamp: %v", millis.Timestamp)
	}
}

// TestPayloadOfACommand: the two forms of a command are the same call.
func TestPayloadOfACommand(t *testing.T) {
	plain := parse(t, `{"tool":"git","args":["a"],"cwd":"/w","stdin":"aGk="}`).(*wire.Call)
	for _, payload := range []string{`{"args":["a"],"cwd":"/w","stdin":"aGk="}`, `{ "stdin" : "aGk=" , "cwd":"\u002fw","args":["a"] }`} {
		envelope := parse(t, `{"toolId":"git","executionId":"`+id+`","payload":`+payload+`}`).(*wire.Call)
		if !reflect.DeepEqual(envelope.Args, plain.Args) || envelope.Cwd != plain.Cwd || string(envelope.Stdin) != string(plain.Stdin) || string(envelope.Payload) != string(plain.Payload) {
			t.Errorf("%s: %+v", payload, envelope)
		}
	}
	for _, payload := range []string{`{}`, `{"cwd":"/w"}`, `{"args":"a"}`, `{"args":["a"],"more":1}`, `{"args":null}`, `{"args":[1]}`} {
		envelope := parse(t, `{"toolId":"git","executionId":"`+id+`","payload":`+payload+`}`).(*wire.Call)
		if envelope.Args != nil || envelope.Cwd != "" || string(envelope.Payload) != payload {
			t.Errorf("%s was taken for a command: %+v", payload, envelope)
		}
	}
}

// sameCall compares what the sender says; Payload follows from it.
func sameCall(t *testing.T, got, want *wire.Call) {
	t.Helper()
	g, w := reflect.ValueOf(*got), reflect.ValueOf(*want)
	for i := range g.NumField() {
		f := g.Type().Field(i)
		if f.Name == "Payload" || !f.IsExported() {
			continue
		}
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%s is %v, want %v", f.Name, g.Field(i), w.Field(i))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	envelope := func(rest string) string { return `{"toolId":"x","executionId":"` + id + `","payload":{}` + rest + `}` }
	for _, test := range []struct{ frame, code, message string }{
		{``, "INVALID_ENVELOPE", "the request: expected an object, but the text is empty (byte 0)"},
		{`[]`, "INVALID_ENVELOPE", "the request: must be an object, not an array (byte 0)"},
		{`"x"`, "INVALID_ENVELOPE", "the request: must be an object, not a string (byte 0)"},
		{`{"tool":"git"`, "INVALID_ENVELOPE", "the request: expected ',' or '}' after a member, but the text ends here (byte 13)"},
		{`{"tool":"git"}}`, "INVALID_ENVELOPE", "the request: expected nothing after the value, got '}' (byte 14)"},
		{"{\"tool\":\"g\xFFt\"}", "INVALID_ENVELOPE", "/tool: byte 0xFF is not UTF-8 (byte 10)"},
		{`{"tool":"git","tool":"gh"}`, "INVALID_ENVELOPE", "/tool: is a duplicate name (byte 14)"},
		{`{}`, "INVALID_ENVELOPE", `the request: has neither "tool" nor "toolId" nor "type"; a plain request names its "tool", an envelope its "toolId" (byte 0)`},
		{`{"args":[]}`, "INVALID_ENVELOPE", `the request: has neither "tool" nor "toolId" nor "type"; a plain request names its "tool", an envelope its "toolId" (byte 0)`},
		{`{"tool":""}`, "INVALID_ENVELOPE", "/tool: is empty; it names the tool to call"},
		{`{"tool":1}`, "INVALID_ENVELOPE", "/tool: must be a string, not a number (byte 8)"},
		{`{"tool":"git","args":"status"}`, "INVALID_ENVELOPE", "/args: must be an array, not a string (byte 21)"},
		{`{"tool":"git","args":["a",1]}`, "INVALID_ENVELOPE", "/args/1: must be a string, not a number (byte 26)"},
		{`{"tool":"git","arg":[]}`, "INVALID_ENVELOPE", `/arg: is not a known name; did you mean "args"? (byte 14)`},
		{`{"tool":"git","Args":[]}`, "INVALID_ENVELOPE", `/Args: is not a known name; did you mean "args"? (byte 14)`},
		{`{"tool":"git","idempotencyKey":"k"}`, "INVALID_ENVELOPE", `/idempotencyKey: is not a known name; did you mean "idempotency_key"? (byte 14)`},
		{`{"tool":"git","type":"stdin"}`, "INVALID_ENVELOPE", `/type: is not a known name; valid: tool, args, cwd, session, token, idempotency_key, retry, timeout_ms, stream, more, stdin, env, env_seen, background, detach, trace, tty, callbacks (byte 14)`},
		{`{"tool":"git","stdin":"a"}`, "INVALID_ENVELOPE", "/stdin: must be base64 with padding, RFC 4648, without line breaks (byte 22)"},
		{`{"tool":"git","stdin":"aGk=\n"}`, "INVALID_ENVELOPE", "/stdin: must be base64 with padding, RFC 4648, without line breaks (byte 22)"},
		{`{"tool":"git","timeout_ms":-1}`, "INVALID_ENVELOPE", "/timeout_ms: must be milliseconds from 0 up, not -1 (byte 27)"},
		{`{"tool":"git","timeout_ms":"1"}`, "INVALID_ENVELOPE", "/timeout_ms: must be a number, not a string (byte 27)"},
		{`{"tool":"git","timeout_ms":9223372036855}`, "INVALID_ENVELOPE", "/timeout_ms: must be milliseconds from 0 up, not 9223372036855 (byte 27)"},
		{`{"tool":"git","trace":"00-x"}`, "INVALID_ENVELOPE", "/trace: must be a W3C traceparent, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 (byte 22)"},
		{`{"tool":"git","env":{"A":1}}`, "INVALID_ENVELOPE", "/env/A: must be a string, not a number (byte 25)"},
		{`{"tool":"git","env":{"A":"1","A":"1"}}`, "INVALID_ENVELOPE", "/env/A: is a duplicate name (byte 29)"},
		{`{"tool":"git","env":{"A=B":"1"}}`, "INVALID_PAYLOAD", `env "A=B" is not a valid variable: its name must not be empty or contain '=', nor name or value a zero byte`},
		{`{"tool":"git","env":{"":"1"}}`, "INVALID_PAYLOAD", `env "" is not a valid variable: its name must not be empty or contain '=', nor name or value a zero byte`},
		{`{"tool":"git","env":{"A":"\u0000"}}`, "INVALID_PAYLOAD", `env "A" is not a valid variable: its name must not be empty or contain '=', nor name or value a zero byte`},
		{`{"tool":"git","args":["\u0000"]}`, "INVALID_PAYLOAD", "an argument contains a zero byte, which cannot be passed to a process"},
		{`{"tool":"git","cwd":"/a\u0000"}`, "INVALID_PAYLOAD", "cwd holds a zero byte; no folder has such a name"},
		{`{"tool":"git","more":true}`, "INVALID_ENVELOPE", "/more: is true, but /stream is not: only a streamed request has args frames"},
		{`{"tool":"git","toolId":"git","executionId":"` + id + `","payload":{}}`, "INVALID_ENVELOPE", `/tool: is not a known name; valid: toolId, executionId, idempotencyKey, payload, metadata, session, token, retry, timeoutMs, stream, more, stdin, env, background, detach, trace, tty, callbacks (byte 1)`},
		{`{"tool":"git","x":` + strings.Repeat(`[`, 64) + strings.Repeat(`]`, 64) + `}`, "INVALID_ENVELOPE", "/x" + strings.Repeat("/0", 63) + ": nests deeper than 64 (byte 81)"},

		{`{"toolId":"x"}`, "INVALID_ENVELOPE", "/executionId: is missing; generate a version-4 UUID for each execution"},
		{`{"toolId":"x","executionId":"` + id + `"}`, "INVALID_ENVELOPE", "/payload: is missing; it is an object, {} if the tool takes nothing"},
		{`{"toolId":"","executionId":"` + id + `","payload":{}}`, "INVALID_ENVELOPE", "/toolId: is empty; it names the tool to call"},
		{`{"toolId":"x","executionId":"","payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2 (byte 28)"},
		{`{"toolId":"x","executionId":"7d444840-9dc0-11d1-b245-5ffdce74fad2","payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2 (byte 28)"},
		{`{"toolId":"x","executionId":"7d444840-9dc0-41d1-7245-5ffdce74fad2","payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2 (byte 28)"},
		{`{"toolId":"x","executionId":"7d4448409dc041d1b2455ffdce74fad2","payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2 (byte 28)"},
		{`{"toolId":"x","executionId":"7d44484g-9dc0-41d1-b245-5ffdce74fad2","payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2 (byte 28)"},
		{`{"toolId":"x","executionId":4,"payload":{}}`, "INVALID_ENVELOPE", "/executionId: must be a string, not a number (byte 28)"},
		{`{"toolId":"x","executionId":"` + id + `","payload":[]}`, "INVALID_ENVELOPE", "/payload: must be an object, not an array (byte 77)"},
		{`{"toolId":"x","executionId":"` + id + `","payload":null}`, "INVALID_ENVELOPE", "/payload: must be an object, not null (byte 77)"},
		{`{"toolId":"x","executionId":"` + id + `","payload":{"a":1,"a":2}}`, "INVALID_ENVELOPE", "/payload/a: is a duplicate name (byte 84)"},
		{envelope(`,"metadata":{"callerinfo":1}`), "INVALID_ENVELOPE", `/metadata/callerinfo: is not a known name; did you mean "callerInfo"? (byte 92)`},
		{envelope(`,"metadata":{"timestamp":"now"}`), "INVALID_ENVELOPE", "/metadata/timestamp: must be a time in RFC 3339, such as 2026-01-02T15:04:05Z (byte 104)"},
		{envelope(`,"metadata":{"timestamp":true}`), "INVALID_ENVELOPE", "/metadata/timestamp: must be a time in RFC 3339, or in milliseconds since 1970 (byte 104)"},
		{envelope(`,"session":"a","metadata":{"session":"b"}`), "INVALID_ENVELOPE", "/metadata/session: is not the same as /session; send one of them"},
		{envelope(`,"token":"a","metadata":{"token":"b"}`), "INVALID_ENVELOPE", "/metadata/token: is not the same as /token; send one of them"},
		{envelope(`,"cwd":"/"`), "INVALID_ENVELOPE", `/cwd: is not a known name; valid: toolId, executionId, idempotencyKey, payload, metadata, session, token, retry, timeoutMs, stream, more, stdin, env, background, detach, trace, tty, callbacks (byte 80)`},
		{envelope(`,"stream":true,"more":true`), "INVALID_ENVELOPE", "/more: is true, but /payload is not {args, cwd, stdin?}: there are no arguments to continue"},
		{`{"toolId":"x","executionId":"` + id + `","payload":{"args":[],"stdin":""},"stdin":""}`, "INVALID_ENVELOPE", "/stdin: is in the payload too; send one of them"},

		{`{"type":"stdout","data":""}`, "INVALID_ENVELOPE", "/type: unknown frame type; valid: stdin, signal, resize, callback, args"},
		{`{"type":"stdin","data":"?"}`, "INVALID_ENVELOPE", "/data: must be base64 with padding, RFC 4648, without line breaks (byte 23)"},
		{"{\"type\":\"stdin\",\"data\":\"aGk=\n\"}", "INVALID_ENVELOPE", "/data: holds a raw control character 0x0A; escape it (byte 28)"},
		{`{"type":"stdin","open":true}`, "INVALID_ENVELOPE", `/open: is not a known name; valid: type, data, eof (byte 16)`},
		{`{"type":"signal"}`, "INVALID_ENVELOPE", "/name: is missing; it names the signal: INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP or CONT"},
		{`{"type":"signal","name":"STOP"}`, "INVALID_ENVELOPE", "/name: must be one of INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP and CONT (byte 24)"},
		{`{"type":"args","args":"a"}`, "INVALID_ENVELOPE", "/args: must be an array, not a string (byte 22)"},
	} {
		_, err := wire.Parse([]byte(test.frame))
		if got := string(code(err)); got != test.code || err.Error() != test.code+": "+test.message {
			t.Errorf("%s\n got %v\nwant %s: %s", test.frame, err, test.code, test.message)
		}
	}
}

// TestRefusedRequestKeepsItsForm: the answer to a malformed request has the
// shape that its sender reads.
func TestRefusedRequestKeepsItsForm(t *testing.T) {
	for frame, want := range map[string]wire.Call{
		`x`:                           {},
		`{"tool":"git","stream":true`: {Stream: true},
		`{"stream":true,"tool":1}`:    {Stream: true},
		`{"toolId":"x","executionId":"` + id + `"`:                     {Form: wire.Envelope, ExecutionID: id},
		`{"executionId":"` + id + `","toolId":"x","payload":3}`:        {Form: wire.Envelope, ExecutionID: id},
		`{"executionId":"not one","toolId":"x","payload":{}}`:          {Form: wire.Envelope},
		`{"tool":"x","executionId":"` + id + `","toolId":"x","args":1`: {Form: wire.Envelope, ExecutionID: id},
	} {
		m, err := wire.Parse([]byte(frame))
		if code(err) != fault.InvalidEnvelope {
			t.Errorf("%s: %v", frame, err)
		}
		got, ok := m.(*wire.Call)
		if !ok {
			t.Errorf("%s is a %T", frame, m)
			continue
		}
		sameCall(t, got, &want)
	}
	if m, _ := wire.Parse([]byte(`{"type":"stdin","data":1}`)); m.(*wire.Typed).Type != wire.TypeStdin {
		t.Errorf("a malformed stdin frame is a %+v", m)
	}
}

func TestParseTyped(t *testing.T) {
	for frame, want := range map[string]wire.Typed{
		`{"type":"stdin","data":"aGk="}`:                                      {Type: "stdin", Data: []byte("hi")},
		`{ "data":"aGk=","type":"stdin","eof":true}`:                          {Type: "stdin", Data: []byte("hi"), EOF: true},
		`{"type":"stdin","eof":true}`:                                         {Type: "stdin", EOF: true},
		`{"type":"signal","name":"INT"}`:                                      {Type: "signal", Signal: syscall.SIGINT},
		`{"type":"signal","name":"SIGTERM"}`:                                  {Type: "signal", Signal: syscall.SIGTERM},
		`{"type":"args","args":["a","b"],"more":true}`:                        {Type: "args", Args: []string{"a", "b"}, More: true},
		`{"type":"args","args":["a"],"join":true}`:                            {Type: "args", Args: []string{"a"}, Join: true},
		`{"type":"\u0073tdin","data":"` + strings.Repeat("\\u0041", 4) + `"}`: {Type: "stdin", Data: []byte{0, 0, 0}},
	} {
		if got := parse(t, frame).(*wire.Typed); !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: got %+v, want %+v", frame, *got, want)
		}
	}
}

func TestExtend(t *testing.T) {
	typed := func(frame string) *wire.Typed { return parse(t, frame).(*wire.Typed) }
	c := parse(t, `{"tool":"git","args":["add","fi"],"cwd":"/w","stream":true,"more":true}`).(*wire.Call)
	if c.Payload != nil {
		t.Errorf("payload before the arguments are all there: %s", c.Payload)
	}
	for _, f := range []string{
		`{"type":"args","args":["r"],"join":true,"more":true}`,
		`{"type":"args","args":["s","t"],"join":true,"more":true}`,
		`{"type":"args","args":[],"more":true}`,
		`{"type":"args","args":["u","v"],"more":false}`,
	} {
		if err := c.Extend(typed(f)); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	if want := []string{"add", "firs", "t", "u", "v"}; c.More || !reflect.DeepEqual(c.Args, want) {
		t.Errorf("got %q, more %v", c.Args, c.More)
	}
	if string(c.Payload) != `{"args":["add","firs","t","u","v"],"cwd":"/w"}` {
		t.Errorf("payload: %s", c.Payload)
	}
	if err := c.Extend(typed(`{"type":"args","args":["w"]}`)); code(err) != fault.InvalidEnvelope {
		t.Errorf("args after the last: %v", err)
	}

	more := func() *wire.Call { return parse(t, `{"tool":"git","stream":true,"more":true}`).(*wire.Call) }
	if err := more().Extend(typed(`{"type":"args","args":["a"],"join":true}`)); code(err) != fault.InvalidEnvelope {
		t.Errorf("joining nothing: %v", err)
	}
	if err := more().Extend(typed(`{"type":"args","args":["\u0000"]}`)); code(err) != fault.InvalidPayload {
		t.Errorf("a zero byte: %v", err)
	}
}

func TestExtendLimit(t *testing.T) {
	c := parse(t, `{"tool":"git","stream":true,"more":true}`).(*wire.Call)
	// 64 bytes with the zero byte that is counted.
	part := &wire.Typed{Type: wire.TypeArgs, Args: make([]string, 1024), More: true}
	for i := range part.Args {
		part.Args[i] = strings.Repeat("x", 63)
	}
	for n := 0; n < wire.MaxArgs; n += 64 * 1024 {
		if err := c.Extend(part); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
	if err := c.Extend(&wire.Typed{Type: wire.TypeArgs, Args: []string{""}}); code(err) != fault.MessageTooLarge {
		t.Errorf("one byte over the limit: %v", err)
	}
}

func TestEnvelopeWithArgsFrames(t *testing.T) {
	c := parse(t, `{"toolId":"git","executionId":"`+id+`","payload":{"args":["a"],"cwd":"/w"},"stream":true,"more":true}`).(*wire.Call)
	if err := c.Extend(&wire.Typed{Type: wire.TypeArgs, Args: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if string(c.Payload) != `{"args":["a","b"],"cwd":"/w"}` {
		t.Errorf("payload: %s", c.Payload)
	}
}

// roundTrip sends c as a client does and reads it as a server does.
func roundTrip(c *wire.Call) (*wire.Call, error) {
	frames, err := wire.EncodeRequest(c)
	if err != nil {
		return nil, err
	}
	var got *wire.Call
	for i, f := range frames {
		if len(f) > wire.MaxFrame {
			return nil, fmt.Errorf("frame %d has %d bytes", i, len(f))
		}
		m, err := wire.Parse(f)
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
		if i == 0 {
			got = m.(*wire.Call)
		} else if err := got.Extend(m.(*wire.Typed)); err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return got, nil
}

func TestEncodeRequest(t *testing.T) {
	full := wire.Call{
		Tool: "git", Args: []string{"commit", "-m", "a\"\\\n\x01\x7f é\u2028😀"}, Cwd: "/w", Session: "s", Token: "t", IdempotencyKey: "k", Retry: true,
		Timeout: 1500 * time.Millisecond, Stream: true, Stdin: []byte("\x00\xff"), Env: map[string]string{"A": "1", "B": "2"}, Background: true,
		Detach: true, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	envelope := full
	envelope.Form, envelope.ExecutionID = wire.Envelope, id
	envelope.CallerInfo, envelope.TraceID, envelope.Timestamp = json.RawMessage(`{"a":1}`), "t", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	program := envelope
	program.Args, program.Cwd, program.Stdin, program.Payload = nil, "", nil, json.RawMessage(`{"width":640}`)
	for _, want := range []wire.Call{{Tool: "git"}, full, envelope, program} {
		got, err := roundTrip(&want)
		if err != nil {
			t.Fatal(err)
		}
		if want.Args == nil && want.Payload == nil {
			want.Args = []string{}
		}
		sameCall(t, got, &want)
	}
	// What is less than a millisecond is not no limit at all.
	if got, err := roundTrip(&wire.Call{Tool: "x", Timeout: 1}); err != nil || got.Timeout != time.Millisecond {
		t.Errorf("a nanosecond became %v, %v", got.Timeout, err)
	}
}

func TestEncodeRequestLongArgs(t *testing.T) {
	many := make([]string, 20000)
	for i := range many {
		many[i] = fmt.Sprintf("some/folder/file-%05d.txt", i)
	}
	for name, args := range map[string][]string{
		"many":           many,
		"one":            {strings.Repeat("x", 1<<19)},
		"one of each":    {"a", strings.Repeat("é\n\x01", 1<<16), "", strings.Repeat("y", wire.MaxFrame), "b"},
		"empty":          make([]string, 1<<17),
		"frame-sized":    {strings.Repeat("a", 65000), strings.Repeat("b", 65450), strings.Repeat("c", 65480), "d", strings.Repeat("e", 65537)},
		"escapes at end": {strings.Repeat("a", 65400) + strings.Repeat("\x01", 200), strings.Repeat("\"", 70000)},
	} {
		for _, form := range []wire.Form{wire.Plain, wire.Envelope} {
			c := &wire.Call{Form: form, Tool: "git", Args: args, Cwd: "/w", Stream: true}
			if form == wire.Envelope {
				c.ExecutionID = id
			}
			got, err := roundTrip(c)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !reflect.DeepEqual(got.Args, args) || got.More || got.Cwd != "/w" {
				t.Errorf("%s: %d arguments came as %d", name, len(args), len(got.Args))
			}
		}
	}
}

func TestEncodeRequestRefuses(t *testing.T) {
	long := strings.Repeat("x", wire.MaxFrame)
	for want, calls := range map[fault.Code][]wire.Call{
		fault.MessageTooLarge: {
			{Tool: "x", Args: []string{long}},
			{Tool: "x", Stdin: []byte(long), Stream: true},
			{Tool: "x", Form: wire.Envelope, ExecutionID: id, Payload: json.RawMessage(`{"a":"` + long + `"}`), Stream: true},
		},
		fault.InvalidEnvelope: {
			{Tool: "x", Args: []string{"a", "\xff"}},
			{Tool: "x", Cwd: "/\xff"},
			{Tool: "x", Env: map[string]string{"A": "\xff"}},
			{Tool: "x", Token: "\xff"},
			{Tool: "\xff"},
			{Tool: "x", Form: wire.Envelope, Payload: json.RawMessage(`{`)},
		},
	} {
		for _, c := range calls {
			if _, err := wire.EncodeRequest(&c); code(err) != want {
				t.Errorf("%.80v: %v, want %s", c, err, want)
			}
		}
	}
}

// FuzzParse: whatever comes, the answer is a message or a refusal that can be
// answered; and what was read can be written and read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"tool":"git","args":["push","origin","main"],"cwd":"/workspace"}`,
		`{"tool":"git","stdin":"aGk=","env":{"A":"1"},"timeout_ms":5,"stream":true,"more":true,"trace":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`,
		`{"toolId":"x","executionId":"` + id + `","payload":{"args":["a"],"cwd":"/"},"metadata":{"callerInfo":{},"timestamp":1}}`,
		`{"toolId":"x","executionId":"` + id + `","payload":{"a":[1,2,{"b":null}]},"idempotencyKey":"k"}`,
		`{"tool":"git","stream":true,"tty":{"rows":24,"cols":80,"term":"xterm","colorterm":"","stderr":true}}`, `{"type":"resize","rows":50,"cols":132}`,
		`{"type":"stdin","data":"aGk="}`, `{"type":"stdin","eof":true}`, `{"type":"signal","name":"INT"}`, `{"type":"args","args":["a"],"more":true,"join":true}`,
		`{"tool":"a","tool":"b"}`, `[]`, `{`, "{\"tool\":\"\xff\"}", `{"type":"stdin","data":"\u0041AAA"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := wire.Parse(frame)
		if err != nil {
			switch code(err) {
			case fault.InvalidEnvelope, fault.InvalidPayload, fault.MessageTooLarge:
			default:
				t.Fatalf("%q: %v", frame, err)
			}
			if c, ok := m.(*wire.Call); ok {
				if answer := wire.EncodeResult(c.Form, &wire.Result{Err: err.(*fault.Error)}); !json.Valid(answer) {
					t.Fatalf("%q is answered with %q", frame, answer)
				}
			}
			return
		}
		// Nothing is accepted that another reader would refuse.
		var other map[string]any
		if err := json.Unmarshal(frame, &other); err != nil {
			t.Fatalf("%q was accepted; encoding/json: %v", frame, err)
		}
		switch m := m.(type) {
		case *wire.Call:
			if m.More || m.CallerInfo != nil || len(frame) > wire.MaxFrame {
				return // written again, these need not be the same frame
			}
			again, err := roundTrip(m)
			if err != nil {
				if code(err) == fault.MessageTooLarge {
					return // what was written shorter than we write it
				}
				t.Fatalf("%q is read as %+v, which cannot be sent: %v", frame, m, err)
			}
			if again.Tool != m.Tool || fmt.Sprint(again.Args) != fmt.Sprint(m.Args) || again.Cwd != m.Cwd || string(again.Stdin) != string(m.Stdin) ||
				again.Timeout != m.Timeout || string(again.Payload) != string(m.Payload) || fmt.Sprint(again.Env) != fmt.Sprint(m.Env) {
				t.Fatalf("%q is read as\n%+v, then as\n%+v", frame, m, again)
			}
		case *wire.Typed:
			if m.Type != other["type"] {
				t.Fatalf("%q is read as %+v", frame, m)
			}
		}
	})
}
