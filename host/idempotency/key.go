package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// maxDepth is how deep a payload may nest.
const maxDepth = 512

// ErrNoCaller is returned for a key without a caller: all callers would share it.
var ErrNoCaller = errors.New("make an idempotency key: the caller is not known")

// PayloadError is the error for a payload without a canonical form.
type PayloadError struct {
	Reason string
	Cause  error // may be nil
}

func (e *PayloadError) Error() string { return "make the payload canonical: " + e.Reason }
func (e *PayloadError) Unwrap() error { return e.Cause }

// Canonical returns the RFC 8785 form of a JSON text: members sorted, numbers as
// ECMAScript writes them (1.0 is 1), escapes only where needed. Ambiguous text is
// a *PayloadError: a duplicate name in an object, a number past ±2^53 (adjacent
// ones have the same canonical form), a lone surrogate, invalid UTF-8, more than
// one value.
func Canonical(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, &PayloadError{Reason: "it is not UTF-8"}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := checkValue(d, 0); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, &PayloadError{Reason: "something follows the value"}
	}
	out, err := jcs.Transform(text)
	if err != nil {
		return nil, &PayloadError{Reason: err.Error(), Cause: err}
	}
	return out, nil
}

// checkValue reads one value and rejects ambiguous text.
func checkValue(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return &PayloadError{Reason: fmt.Sprintf("it nests deeper than %d", maxDepth)}
	}
	t, err := d.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return &PayloadError{Reason: err.Error(), Cause: err}
	}
	switch t := t.(type) {
	case json.Number:
		return checkNumber(t.String())
	case json.Delim:
		seen := map[string]bool{}
		for d.More() {
			if t == '{' {
				name, err := d.Token()
				if err != nil {
					return &PayloadError{Reason: err.Error(), Cause: err}
				}
				if seen[name.(string)] {
					return &PayloadError{Reason: fmt.Sprintf("the name %.64q occurs twice in one object", name)}
				}
				seen[name.(string)] = true
			}
			if err := checkValue(d, depth+1); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return &PayloadError{Reason: err.Error(), Cause: err}
		}
	}
	return nil
}

// checkNumber rejects numbers that a float64 cannot represent exactly. 2^53+1 is
// rounded to 2^53, so that one is accepted by its spelling.
func checkNumber(s string) error {
	const limit = 1 << 53
	f, err := strconv.ParseFloat(s, 64)
	if err == nil && (f > -limit && f < limit || s == "9007199254740992" || s == "-9007199254740992") {
		return nil
	}
	return &PayloadError{Reason: fmt.Sprintf("the number %.32s is past 2^53; send it as a string", s)}
}

// AutoKey returns the key of a mutating call that names none:
// sha256(JCS([scope, payload, caller])). caller is the identity that the host
// resolved, never one that the caller claims. Errors are ErrNoCaller and
// *PayloadError.
func AutoKey(scope string, payload []byte, caller string) (string, error) {
	return hashKey(caller, scope, json.RawMessage(payload), caller)
}

// CallerKey hashes the caller into the key that it sent, so that no caller can
// get the result of another. It never equals an AutoKey, which has three
// elements.
func CallerKey(scope, key, caller string) (string, error) {
	return hashKey(caller, "key", scope, key, caller)
}

// Digest returns sha256(JCS(payload)), for Request.Payload.
func Digest(payload []byte) (string, error) {
	text, err := Canonical(payload)
	if err != nil {
		return "", err
	}
	return digest(text), nil
}

func hashKey(caller string, parts ...any) (string, error) {
	if caller == "" {
		return "", ErrNoCaller
	}
	for _, p := range parts {
		// json.Marshal would replace invalid bytes by U+FFFD, so that different
		// texts had one key.
		if s, ok := p.(string); ok && !utf8.ValidString(s) {
			return "", &PayloadError{Reason: "a part of the key is not UTF-8"}
		}
		if raw, ok := p.(json.RawMessage); ok {
			if _, err := Canonical(raw); err != nil { // before it is embedded
				return "", err
			}
		}
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return "", &PayloadError{Reason: err.Error(), Cause: err}
	}
	return Digest(text)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
