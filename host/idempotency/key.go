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

// ErrNoCaller is returned for a key of nobody: it would be everybody's.
var ErrNoCaller = errors.New("make an idempotency key: the caller is not known")

// PayloadError says why a payload has no canonical form.
type PayloadError struct {
	Reason string
	Cause  error // may be nil
}

func (e *PayloadError) Error() string { return "make the payload canonical: " + e.Reason }
func (e *PayloadError) Unwrap() error { return e.Cause }

// Canonical is the form of RFC 8785 of a JSON text: members sorted, numbers as
// ECMAScript writes them (1.0 is 1), escapes only where needed. What two
// readers could take differently is a *PayloadError: a name that occurs twice
// in one object, a number past ±2^53 (its neighbours have the same canonical
// form), a lone surrogate, invalid UTF-8, more than one value.
func Canonical(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, &PayloadError{Reason: "it is not UTF-8"}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := admit(d, 0); err != nil {
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

// admit reads one value and refuses what has no one meaning.
func admit(d *json.Decoder, depth int) error {
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
		return admitNumber(t.String())
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
			if err := admit(d, depth+1); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return &PayloadError{Reason: err.Error(), Cause: err}
		}
	}
	return nil
}

// admitNumber refuses what a float64 cannot tell from its neighbours. 2^53
// itself is what 2^53+1 is rounded to, so it is admitted by its spelling.
func admitNumber(s string) error {
	const limit = 1 << 53
	f, err := strconv.ParseFloat(s, 64)
	if err == nil && (f > -limit && f < limit || s == "9007199254740992" || s == "-9007199254740992") {
		return nil
	}
	return &PayloadError{Reason: fmt.Sprintf("the number %.32s is past 2^53; send it as a string", s)}
}

// AutoKey is the key of a mutating call that names none:
// sha256(JCS([scope, payload, caller])). caller is what the host knows of the
// caller, never what the caller says of itself. Errors are ErrNoCaller and
// *PayloadError.
func AutoKey(scope string, payload []byte, caller string) (string, error) {
	return fold(caller, scope, json.RawMessage(payload), caller)
}

// CallerKey folds the caller into the key that it gave, so that nobody can be
// answered with the result of another. It never equals an AutoKey, which is
// made of three elements.
func CallerKey(scope, key, caller string) (string, error) {
	return fold(caller, "key", scope, key, caller)
}

// Digest is what Request.Payload takes: sha256(JCS(payload)).
func Digest(payload []byte) (string, error) {
	text, err := Canonical(payload)
	if err != nil {
		return "", err
	}
	return digest(text), nil
}

func fold(caller string, parts ...any) (string, error) {
	if caller == "" {
		return "", ErrNoCaller
	}
	for _, p := range parts {
		// json.Marshal would write U+FFFD for them, the same for all.
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
