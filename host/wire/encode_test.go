package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire"
)

func TestEncodeResult(t *testing.T) {
	denied := fault.Errorf(fault.Denied, "no")
	for _, test := range []struct {
		name            string
		result          wire.Result
		plain, envelope string
	}{
		{
			"success", wire.Result{Ran: true, Stdout: []byte("out\n"), Stderr: []byte("err"), Duration: 12 * time.Millisecond, ExecutionID: id},
			`{"exit_code":0,"stdout":"out\n","stderr":"err","error":"","status":"success","duration_ms":12,"execution_id":"` + id + `"}`,
			`{"status":"success","data":{"exit_code":0,"stdout":"out\n","stderr":"err"},"durationMs":12,"fromCache":false,"executionId":"` + id + `"}`,
		},
		{
			"a tool's own exit code", wire.Result{Ran: true, ExitCode: 1, FromCache: true},
			`{"exit_code":1,"stdout":"","stderr":"","error":"","status":"error","code":"TOOL_FAILED","retriable":false,"duration_ms":0,"from_cache":true}`,
			`{"status":"error","data":{"exit_code":1,"stdout":"","stderr":""},"error":{"code":"TOOL_FAILED","message":"the tool ended with exit code 1; its output is in data","retriable":false},"durationMs":0,"fromCache":true}`,
		},
		{
			"denied", wire.Result{Err: denied},
			`{"exit_code":126,"stdout":"","stderr":"","error":"no","status":"error","code":"DENIED","retriable":false,"duration_ms":0}`,
			`{"status":"error","error":{"code":"DENIED","message":"no","retriable":false},"durationMs":0,"fromCache":false}`,
		},
		{
			"timeout with partial output", wire.Result{Err: fault.Errorf(fault.Timeout, "after 5s"), Stdout: []byte("half")},
			`{"exit_code":124,"stdout":"half","stderr":"","error":"after 5s","status":"timeout","code":"TIMEOUT","retriable":true,"duration_ms":0}`,
			`{"status":"timeout","data":{"exit_code":124,"stdout":"half","stderr":""},"error":{"code":"TIMEOUT","message":"after 5s","retriable":true},"durationMs":0,"fromCache":false}`,
		},
		{
			"open breaker", wire.Result{Err: fault.Errorf(fault.CircuitOpen, "wait")},
			`{"exit_code":75,"stdout":"","stderr":"","error":"wait","status":"circuit_open","code":"CIRCUIT_OPEN","retriable":true,"duration_ms":0}`,
			`{"status":"circuit_open","error":{"code":"CIRCUIT_OPEN","message":"wait","retriable":true},"durationMs":0,"fromCache":false}`,
		},
		{
			"a failure that the tool calls retriable", wire.Result{Ran: true, ExitCode: 7, Err: &fault.Error{Code: fault.ToolFailed, Message: "busy", MayRetry: true}},
			`{"exit_code":7,"stdout":"","stderr":"","error":"busy","status":"error","code":"TOOL_FAILED","retriable":true,"duration_ms":0}`,
			`{"status":"error","data":{"exit_code":7,"stdout":"","stderr":""},"error":{"code":"TOOL_FAILED","message":"busy","retriable":true},"durationMs":0,"fromCache":false}`,
		},
		{
			"data", wire.Result{Ran: true, Data: json.RawMessage(`{"a":[1]}`)},
			`{"exit_code":0,"stdout":"{\"a\":[1]}\n","stderr":"","error":"","status":"success","duration_ms":0}`,
			`{"status":"success","data":{"a":[1]},"durationMs":0,"fromCache":false}`,
		},
		{
			"not UTF-8", wire.Result{Ran: true, Stdout: []byte("a\xffb\xc3"), Stderr: []byte("\xed\xa0\x80"), Err: fault.Errorf(fault.Internal, "\xfe")},
			`{"exit_code":70,"stdout":"a` + "\uFFFDb\uFFFD" + `","stderr":"` + "\uFFFD\uFFFD\uFFFD" + `","error":"` + "\uFFFD" + `","status":"error","code":"INTERNAL","retriable":false,"duration_ms":0}`,
			`{"status":"error","data":{"exit_code":70,"stdout":"a` + "\uFFFDb\uFFFD" + `","stderr":"` + "\uFFFD\uFFFD\uFFFD" + `"},"error":{"code":"INTERNAL","message":"` + "\uFFFD" + `","retriable":false},"durationMs":0,"fromCache":false}`,
		},
		{
			"already cut", wire.Result{Ran: true, Truncated: true},
			`{"exit_code":0,"stdout":"","stderr":"","error":"","status":"success","duration_ms":0,"truncated":true}`,
			`{"status":"success","data":{"exit_code":0,"stdout":"","stderr":"","truncated":true},"durationMs":0,"fromCache":false}`,
		},
	} {
		if got := string(wire.EncodeResult(wire.Plain, &test.result)); got != test.plain {
			t.Errorf("%s, plain:\n got %s\nwant %s", test.name, got, test.plain)
		}
		if got := string(wire.EncodeResult(wire.Envelope, &test.result)); got != test.envelope {
			t.Errorf("%s, envelope:\n got %s\nwant %s", test.name, got, test.envelope)
		}
	}
}

func TestEncodeStreamResult(t *testing.T) {
	r := &wire.Result{Ran: true, ExitCode: 3, Stdout: []byte("sent before"), Truncated: true}
	if got, want := string(wire.EncodeStreamResult(wire.Plain, r)), `{"type":"result","exit_code":3,"error":"","status":"error","code":"TOOL_FAILED","retriable":false,"duration_ms":0,"truncated":true}`; got != want {
		t.Errorf("plain:\n got %s\nwant %s", got, want)
	}
	if got, want := string(wire.EncodeStreamResult(wire.Envelope, r)), `{"type":"result","status":"error","data":{"exit_code":3,"truncated":true},"error":{"code":"TOOL_FAILED","message":"the tool ended with exit code 3; its output is in data","retriable":false},"durationMs":0,"fromCache":false}`; got != want {
		t.Errorf("envelope:\n got %s\nwant %s", got, want)
	}
}

// TestTruncation: an answer that just fits is not cut, one byte more is, and
// then at a character, with all the room used.
func TestTruncation(t *testing.T) {
	for _, form := range []wire.Form{wire.Plain, wire.Envelope} {
		bare := len(wire.EncodeResult(form, &wire.Result{Ran: true}))
		fits := wire.MaxFrame - bare
		for _, test := range []struct {
			stdout, stderr string
			cut            bool
		}{
			{strings.Repeat("x", fits), "", false},
			{strings.Repeat("x", fits+1), "", true},
			{"", strings.Repeat("x", fits), false},
			{"", strings.Repeat("x", fits+1), true},
			{strings.Repeat("\n", fits/2), "", false},
			{strings.Repeat("\n", fits/2+1), "", true},
			{strings.Repeat("x", fits-10), "0123456789", false},
			{strings.Repeat("x", fits-10), "0123456789a", true},
			{strings.Repeat("x", 1<<20), "kept whole", true},
			{"kept whole", strings.Repeat("x", 1<<20), true},
			{strings.Repeat("x", 1<<20), strings.Repeat("y", 1<<20), true},
			{strings.Repeat("é", fits), "", true},
			{"x" + strings.Repeat("😀", fits), "", true},
			{strings.Repeat("\x00", fits), strings.Repeat("\xff", fits), true},
		} {
			frame := wire.EncodeResult(form, &wire.Result{Ran: true, Stdout: []byte(test.stdout), Stderr: []byte(test.stderr)})
			p, err := wire.ParseResponse(frame)
			if err != nil {
				t.Fatal(err)
			}
			got := p.Result
			wantOut, wantErr := strings.ToValidUTF8(test.stdout, "\uFFFD"), test.stderr
			if !utf8.ValidString(wantErr) {
				wantErr = strings.Repeat("\uFFFD", len(test.stderr))
			}
			name := fmt.Sprintf("form %d, %d and %d bytes", form, len(test.stdout), len(test.stderr))
			if got.Truncated != test.cut {
				t.Errorf("%s: truncated is %v", name, got.Truncated)
			}
			if !test.cut && (string(got.Stdout) != wantOut || string(got.Stderr) != wantErr) {
				t.Errorf("%s: was changed", name)
			}
			if !strings.HasPrefix(wantOut, string(got.Stdout)) || !strings.HasPrefix(wantErr, string(got.Stderr)) {
				t.Errorf("%s: is not the beginning of what was written", name)
			}
			if test.stdout == "kept whole" && string(got.Stdout) != test.stdout || test.stderr == "kept whole" && string(got.Stderr) != test.stderr {
				t.Errorf("%s: the short one was cut: %d, %d", name, len(got.Stdout), len(got.Stderr))
			}
			// The longest character takes 6 bytes, in each of two texts.
			if len(frame) > wire.MaxFrame || test.cut && len(frame) < wire.MaxFrame-12-len(`,"truncated":true`) {
				t.Errorf("%s: the answer has %d bytes", name, len(frame))
			}
			if len(test.stdout) > fits && len(test.stderr) > fits && (len(got.Stdout) < 5000 || len(got.Stderr) < 5000) {
				t.Errorf("%s: one took the room of the other: %d, %d", name, len(got.Stdout), len(got.Stderr))
			}
		}
	}
}

func TestDataThatDoesNotFit(t *testing.T) {
	r := &wire.Result{Ran: true, ExecutionID: id, Data: json.RawMessage(`"` + strings.Repeat("x", wire.MaxFrame) + `"`)}
	for _, frame := range [][]byte{wire.EncodeResult(wire.Envelope, r), wire.EncodeStreamResult(wire.Envelope, r)} {
		p, err := wire.ParseResponse(frame)
		if err != nil || p.Result.Err == nil || p.Result.Err.Code != fault.LimitExceeded || !strings.Contains(p.Result.Err.Message, id) || p.Result.ExecutionID != id {
			t.Errorf("%s, %v", frame, err)
		}
	}
	bare := len(wire.EncodeResult(wire.Envelope, &wire.Result{Data: json.RawMessage(`""`)}))
	r = &wire.Result{Data: json.RawMessage(`"` + strings.Repeat("x", wire.MaxFrame-bare) + `"`)}
	if frame := wire.EncodeResult(wire.Envelope, r); len(frame) != wire.MaxFrame || !bytes.Contains(frame, r.Data) {
		t.Errorf("data that just fits is answered with %d bytes", len(frame))
	}
}

func TestDataThatIsNotJSON(t *testing.T) {
	for _, data := range []string{`{`, "\"\xff\"", `{"a":1,"a":2}`, ``} {
		frame := wire.EncodeResult(wire.Envelope, &wire.Result{Ran: true, Data: json.RawMessage(data)})
		p, err := wire.ParseResponse(frame)
		if err != nil || p.Result.Err == nil || p.Result.Err.Code != fault.Internal {
			t.Errorf("%q is answered with %s", data, frame)
		}
	}
}

// FuzzEncodeResult: whatever a tool writes and an error says, the answer fits
// in a frame, is strict JSON, and is the beginning of what was written.
func FuzzEncodeResult(f *testing.F) {
	f.Add([]byte("out"), []byte("err"), "no", 3, true, uint16(0))
	f.Add([]byte("\x00\xff\n"), []byte("é"), "\"", -1, false, uint16(40000))
	f.Fuzz(func(t *testing.T, stdout, stderr []byte, message string, exit int, ran bool, times uint16) {
		r := &wire.Result{ExitCode: exit, Ran: ran, Stdout: bytes.Repeat(stdout, int(times)%5000), Stderr: stderr}
		if message != "" {
			r.Err = &fault.Error{Code: fault.ToolFailed, Message: message}
		}
		for _, form := range []wire.Form{wire.Plain, wire.Envelope} {
			frame := wire.EncodeResult(form, r)
			var strict map[string]any
			if err := strictjson.Unmarshal(frame, &strict); err != nil || len(frame) > wire.MaxFrame {
				t.Fatalf("%d bytes, %v", len(frame), err)
			}
			p, err := wire.ParseResponse(frame)
			if err != nil {
				t.Fatal(err)
			}
			if form == wire.Envelope && !ran && len(r.Stdout)+len(r.Stderr) == 0 {
				continue // then there is no data
			}
			if !strings.HasPrefix(replaced(r.Stdout), string(p.Result.Stdout)) || !strings.HasPrefix(replaced(r.Stderr), string(p.Result.Stderr)) {
				t.Fatalf("%q and %q were answered as %q and %q", r.Stdout, r.Stderr, p.Result.Stdout, p.Result.Stderr)
			}
			if !p.Result.Truncated && (len(p.Result.Stdout) != len(replaced(r.Stdout)) || len(p.Result.Stderr) != len(replaced(r.Stderr))) {
				t.Fatal("cut without saying so")
			}
		}
	})
}

// replaced is p with U+FFFD for each byte that is not UTF-8.
func replaced(p []byte) string { return string([]rune(string(p))) }

func TestParseResponse(t *testing.T) {
	for frame, want := range map[string]wire.Response{
		`{"type":"stdout","data":"aGk="}`:              {Type: "stdout", Data: []byte("hi")},
		`{"type":"stderr", "data":"aGk=","later":[1]}`: {Type: "stderr", Data: []byte("hi")},
		`{"type":"progress","data":{"a":1}}`:           {Type: "progress", Progress: json.RawMessage(`{"a":1}`)},
		`{"type":"stdin","open":true}`:                 {Type: "stdin", Open: true},
		`{"type":"stdin","ack":7}`:                     {Type: "stdin", Ack: 7},
		`{"type":"weather","sunny":true}`:              {Type: "weather"},
		`{"exit_code":2,"stdout":"o","stderr":"e","error":""}`: {Type: "result", Result: &wire.Result{
			ExitCode: 2, Ran: true, Stdout: []byte("o"), Stderr: []byte("e")}},
		`{"type":"result","exit_code":126,"error":"no","code":"DENIED","retriable":false,"later":{}}`: {Type: "result", Result: &wire.Result{
			ExitCode: 126, Stdout: []byte{}, Stderr: []byte{}, Err: &fault.Error{Code: fault.Denied, Message: "no"}}},
		`{"exit_code":1,"stdout":"","stderr":"","error":"an old server"}`: {Type: "result", Result: &wire.Result{
			ExitCode: 1, Stdout: []byte{}, Stderr: []byte{}, Err: &fault.Error{Code: fault.Internal, Message: "an old server"}}},
		`{"status":"error","error":{"code":"DENIED","message":"no","retriable":false},"durationMs":3,"fromCache":true,"executionId":"e"}`: {Type: "result", Result: &wire.Result{
			ExitCode: 126, Err: &fault.Error{Code: fault.Denied, Message: "no"}, Duration: 3 * time.Millisecond, FromCache: true, ExecutionID: "e"}},
		`{"status":"success","data":{"exit_code":"mine"},"durationMs":0}`: {Type: "result", Result: &wire.Result{
			Ran: true, Data: json.RawMessage(`{"exit_code":"mine"}`)}},
		`{"status":"success","data":{"exit_code":0,"stdout":"o","stderr":"","truncated":true},"durationMs":0}`: {Type: "result", Result: &wire.Result{
			Ran: true, Data: json.RawMessage(`{"exit_code":0,"stdout":"o","stderr":"","truncated":true}`), Stdout: []byte("o"), Stderr: []byte{}, Truncated: true}},
	} {
		got, err := wire.ParseResponse([]byte(frame))
		if err != nil {
			t.Errorf("%s: %v", frame, err)
		} else if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v, %+v\nwant %+v, %+v", frame, got, got.Result, want, want.Result)
		}
	}
	for _, frame := range []string{``, `[]`, `{"type":"stdout","data":"?"}`, `{"type":"stdout"}`, `{"error":1}`, `{"durationMs":1,"error":"x"}`} {
		if p, err := wire.ParseResponse([]byte(frame)); err == nil {
			t.Errorf("%s is read as %+v", frame, p)
		}
	}
}

func TestEncodeProgress(t *testing.T) {
	got, err := wire.EncodeProgress(json.RawMessage(`{"done":0.5}`))
	if err != nil || string(got) != `{"type":"progress","data":{"done":0.5}}` {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := wire.EncodeProgress(json.RawMessage(`{`)); err == nil {
		t.Error("what is not JSON was encoded")
	}
	if _, err := wire.EncodeProgress(json.RawMessage(`"` + strings.Repeat("x", wire.MaxFrame) + `"`)); code(err) != fault.MessageTooLarge {
		t.Errorf("what does not fit: %v", err)
	}
}

// TestCodesAreAsSpecified reads the table of codes in the specification.
func TestCodesAreAsSpecified(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../fault/fault.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\t([A-Z_]+) +(yes|no) +(\d+) `).FindAllStringSubmatch(string(text), -1)
	for _, row := range rows {
		c := fault.Code(row[1])
		if got := fmt.Sprint(c.ExitCode()); got != row[3] {
			t.Errorf("the exit code of %s is %s, specified as %s", c, got, row[3])
		}
		if c.Retriable() != (row[2] == "yes") {
			t.Errorf("whether %s is retriable is %v, specified as %s", c, c.Retriable(), row[2])
		}
		if !strings.Contains(string(source), `"`+row[1]+`"`) {
			t.Errorf("%s is specified and is not there", c)
		}
	}
	if n := len(regexp.MustCompile(`(?m)Code += "[A-Z_]+"`).FindAllString(string(source), -1)) + len(regexp.MustCompile(`(?m)^\t[A-Z]\w+ += "[A-Z_]+"`).FindAllString(string(source), -1)); n != len(rows) {
		t.Errorf("%d codes are specified, %d are there", len(rows), n)
	}
	if c := fault.Code("LATER"); c.ExitCode() != 70 || c.Retriable() {
		t.Errorf("an unknown code: exit %d, retriable %v", c.ExitCode(), c.Retriable())
	}
}

// TestExamplesOfTheSpecification: the frame that the specification shows is one.
func TestExamplesOfTheSpecification(t *testing.T) {
	var b bytes.Buffer
	if err := wire.WriteFrame(&b, []byte(`{"tool":"git","cwd":"/"}`)); err != nil || b.String()[:4] != "\x00\x00\x00\x18" {
		t.Errorf("%q, %v", b.String(), err)
	}
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?s)\t(\{"toolId".*?\}\})\n\n\t(\{"status".*?\})\n`).FindStringSubmatch(string(text))
	if example == nil {
		t.Fatal("no example of an envelope")
	}
	if _, err := wire.Parse([]byte(example[1])); err != nil {
		t.Errorf("%s: %v", example[1], err)
	}
	if p, err := wire.ParseResponse([]byte(example[2])); err != nil || string(p.Result.Data) != `{"bytes": 10240}` {
		t.Errorf("%s: %v", example[2], err)
	}
}
