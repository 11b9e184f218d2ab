// Package form looks at forms that HTTP requests send, for a field that has servers
// take a POST for another request than the one that was judged.
package form

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Overridden is the field of a form by which servers take a POST for a request with
// another method (Rack, Symfony, Laravel).
const Overridden = "_method"

// ErrOverridden is that of a form with the field.
var ErrOverridden = errors.New("its form has the field " + Overridden + ", which has some servers do another request than the one that is judged")

// Is reports whether a server might parse a body of these types as a form.
func Is(types []string) bool {
	t := strings.ToLower(strings.Join(types, ","))
	return strings.Contains(t, "form-urlencoded") || strings.Contains(t, "multipart/") || strings.TrimSpace(t) == ""
}

// Unreadable returns why a form with these headers cannot be inspected although a server may
// accept it; empty if it can.
func Unreadable(h http.Header) string {
	if e := strings.Join(h["Content-Encoding"], ","); e != "" && !strings.EqualFold(e, "identity") {
		return "its form is encoded, and cannot be looked into; send it as it is"
	}
	for _, part := range strings.Split(strings.ToLower(strings.Join(h["Content-Type"], ";")), ";") {
		name, value, _ := strings.Cut(part, "=")
		if strings.Contains(name, "charset") && !slices.Contains([]string{"utf-8", "us-ascii", "iso-8859-1"}, strings.Trim(strings.TrimSpace(value), `"`)) {
			return "its form is in a charset that is not looked into; send it in utf-8"
		}
	}
	return ""
}

// NewReader returns a reader of the form body that fails with ErrOverridden where a field seems
// to have the name Overridden, in any encoding that a server might accept. What was read before
// that has been sent by then, and is not a whole request.
func NewReader(body io.ReadCloser) io.ReadCloser { return &reader{ReadCloser: body} }

type reader struct {
	io.ReadCloser
	at      int  // bytes of Overridden that were seen
	within  bool // of another name
	escape  int  // digits of an escaped byte that are to come
	escaped byte
	err     error
}

func (f *reader) Read(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.ReadCloser.Read(p)
	for _, c := range p[:n] {
		if f.see(c) {
			f.err = ErrOverridden
			return 0, f.err
		}
	}
	return n, err
}

// see processes a byte of the form, and reports whether it completes the name.
func (f *reader) see(c byte) bool {
	if f.escape > 0 {
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if digit < 0 {
			f.escape = 0
			return f.letter('%') || f.see(c)
		}
		f.escaped = f.escaped<<4 | byte(digit)
		if f.escape--; f.escape > 0 {
			return false
		}
		return f.letter(f.escaped)
	}
	if c == '%' {
		f.escape, f.escaped = 2, 0
		return false
	}
	return f.letter(c)
}

// letter processes a byte that is not part of an escape.
func (f *reader) letter(c byte) bool {
	if c == '\\' || c == 0 || c >= 0x80 { // which some leave out
		return false
	}
	if c >= 'A' && c <= 'Z' {
		c |= 0x20
	}
	switch {
	case !f.within && (c == Overridden[f.at] || c == '.' && f.at == 0): // PHP writes _ for it
		f.at++
	case c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-':
		f.within, f.at = true, 0
	default: // a name may begin behind it
		f.within, f.at = false, 0
	}
	if f.at == len(Overridden) {
		f.at = 0
		return true
	}
	return false
}
