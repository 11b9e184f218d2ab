package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// invalid converts an error of strictjson to the error of a request.
func invalid(err error) *fault.Error {
	switch err := err.(type) {
	case *fault.Error:
		return err
	case *strictjson.Fault:
		where := err.Pointer
		if where == "" {
			where = "the request"
		}
		e := fault.Errorf(fault.InvalidEnvelope, "%s: %s (byte %d)", where, err.Reason, err.Offset)
		e.Cause = err
		return e
	}
	return fault.Errorf(fault.InvalidEnvelope, "%w", err)
}

// refuse returns the error of a request with an invalid value at pointer.
func refuse(pointer, reason string) *fault.Error {
	return fault.Errorf(fault.InvalidEnvelope, "%s: %s", pointer, reason)
}

// executionID is a version-4 UUID.
type executionID string

func (id *executionID) UnmarshalText(text []byte) error {
	if !validExecutionID(string(text)) {
		return errors.New("must be a version-4 UUID, such as 7d444840-9dc0-41d1-b245-5ffdce74fad2")
	}
	*id = executionID(text)
	return nil
}

func validExecutionID(s string) bool {
	if len(s) != 36 || s[14] != '4' || !strings.ContainsRune("89abAB", rune(s[19])) {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) {
				return false
			}
		}
	}
	return true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// traceparent is a W3C traceparent, or "".
type traceparent string

func (t *traceparent) UnmarshalText(text []byte) error {
	s := string(text)
	if s != "" && !validTraceparent(s) {
		return errors.New("must be a W3C traceparent, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	}
	*t = traceparent(s)
	return nil
}

func validTraceparent(s string) bool {
	// Versions after 00 may append fields.
	if len(s) < 55 || len(s) > 55 && (s[:2] == "00" || s[55] != '-') || s[:2] == "ff" {
		return false
	}
	for i := range 55 {
		switch i {
		case 2, 35, 52:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) || 'A' <= s[i] && s[i] <= 'F' {
				return false
			}
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// base64Text is base64 with padding, RFC 4648.
type base64Text []byte

func (b *base64Text) UnmarshalText(text []byte) error {
	data, ok := decodeBase64(text)
	if !ok {
		return errors.New("must be base64 with padding, RFC 4648, without line breaks")
	}
	*b = data
	return nil
}

// decodeBase64 decodes base64, and rejects the line breaks that the standard
// library ignores.
func decodeBase64(text []byte) ([]byte, bool) {
	if bytes.IndexByte(text, '\n') >= 0 || bytes.IndexByte(text, '\r') >= 0 {
		return nil, false
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(data, text)
	return data[:n], err == nil
}

// milliseconds is a duration of at least 0.
type milliseconds int64

func (m *milliseconds) UnmarshalJSON(text []byte) error {
	var n int64
	if err := strictjson.Unmarshal(text, &n); err != nil {
		return err
	}
	if n < 0 || n > math.MaxInt64/int64(time.Millisecond) {
		return fmt.Errorf("must be milliseconds from 0 up, not %d", n)
	}
	*m = milliseconds(n)
	return nil
}

func (m milliseconds) duration() time.Duration { return time.Duration(m) * time.Millisecond }

// timestamp is a time in RFC 3339, or in milliseconds since 1970.
type timestamp time.Time

func (t *timestamp) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		var s string
		if err := strictjson.Unmarshal(text, &s); err != nil {
			return err
		}
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return errors.New("must be a time in RFC 3339, such as 2026-01-02T15:04:05Z")
		}
		*t = timestamp(v)
		return nil
	}
	var n int64
	if err := strictjson.Unmarshal(text, &n); err != nil {
		return errors.New("must be a time in RFC 3339, or in milliseconds since 1970")
	}
	*t = timestamp(time.UnixMilli(n))
	return nil
}

// object is the text of a JSON object.
type object json.RawMessage

func (o *object) UnmarshalJSON(text []byte) error {
	if text[0] != '{' {
		return strictjson.Unmarshal(text, &struct{}{}) // for its error
	}
	*o = text
	return nil
}

// signalName is a signal, by its name with or without SIG.
type signalName syscall.Signal

func (n *signalName) UnmarshalText(text []byte) error {
	name := strings.TrimPrefix(string(text), "SIG")
	for _, s := range signals {
		if s.name == name {
			*n = signalName(s.signal)
			return nil
		}
	}
	return errors.New("must be one of INT, TERM, HUP, QUIT, KILL, USR1, USR2, TSTP and CONT")
}

// signals are those that a caller can send; the table is never modified.
var signals = [...]struct {
	name   string
	signal syscall.Signal
}{
	{"INT", syscall.SIGINT},
	{"TERM", syscall.SIGTERM},
	{"HUP", syscall.SIGHUP},
	{"QUIT", syscall.SIGQUIT},
	{"KILL", syscall.SIGKILL},
	{"USR1", syscall.SIGUSR1},
	{"USR2", syscall.SIGUSR2},
	{"TSTP", syscall.SIGTSTP},
	{"CONT", syscall.SIGCONT},
}
