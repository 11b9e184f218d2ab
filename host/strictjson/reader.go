// Package strictjson parses JSON from outside toold: requests,
// tool.json, toold.json, the answers of guests. It rejects ambiguous text, and its
// errors have a position; Unmarshal lists what is rejected.
package strictjson

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest.
const maxDepth = 64

// Fault is an error in a JSON text, with its position.
type Fault struct {
	// Pointer is the RFC 6901 pointer of the invalid value, "" for the whole
	// text. For an unknown or duplicate member it names that member.
	Pointer string
	// Offset is the byte at which the fault was found, from 0; Line and Column
	// are the same position from 1, the column in characters.
	Offset, Line, Column int
	// Reason describes the fault and, if possible, what is expected.
	Reason string
}

func (f *Fault) Error() string {
	if f.Pointer == "" {
		return fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, f.Reason)
	}
	return fmt.Sprintf("line %d, column %d: %s: %s", f.Line, f.Column, f.Pointer, f.Reason)
}

// step is one element of the path to the current value: the name of a member, or
// the index of an element if name is nil.
type step struct {
	name  []byte
	index int
}

// reader is a parser of JSON (RFC 8259) that rejects ambiguous text: invalid
// UTF-8, lone surrogates, duplicate names in an object, anything after the value.
type reader struct {
	data []byte
	pos  int
	path []step
	// nameAt is the offset of the current member's name.
	nameAt int
}

// faultAt returns a fault of the current value at an offset.
func (r *reader) faultAt(offset int, format string, args ...any) *Fault {
	f := &Fault{Offset: offset, Reason: fmt.Sprintf(format, args...)}
	var b strings.Builder
	for _, s := range r.path {
		b.WriteByte('/')
		if s.name == nil {
			b.WriteString(strconv.Itoa(s.index))
			continue
		}
		name := strings.ReplaceAll(string(s.name), "~", "~0")
		b.WriteString(strings.ReplaceAll(name, "/", "~1"))
	}
	f.Pointer = b.String()
	before := r.data[:offset]
	f.Line = 1 + bytes.Count(before, []byte{'\n'})
	f.Column = 1 + utf8.RuneCount(before[1+bytes.LastIndexByte(before, '\n'):])
	return f
}

func (r *reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// kind returns the kind of value that begins at the next byte, "" for none.
func (r *reader) kind() string {
	if r.pos >= len(r.data) {
		return ""
	}
	switch c := r.data[r.pos]; c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return "a number"
		}
		return ""
	}
}

// wrongKind returns the fault of a value of another kind than want, or of no value.
func (r *reader) wrongKind(want string) *Fault {
	if have := r.kind(); have != "" {
		return r.faultAt(r.pos, "must be %s, not %s", want, have)
	}
	return r.unexpected("expected " + want)
}

// unexpected returns the fault of an unexpected next byte or end.
func (r *reader) unexpected(want string) *Fault {
	if r.pos >= len(r.data) {
		if len(bytes.TrimSpace(r.data)) == 0 {
			return r.faultAt(r.pos, "%s, but the text is empty", want)
		}
		return r.faultAt(r.pos, "%s, but the text ends here", want)
	}
	c, n := utf8.DecodeRune(r.data[r.pos:])
	switch {
	case c == utf8.RuneError && n <= 1:
		return r.faultAt(r.pos, "byte 0x%02X is not UTF-8", r.data[r.pos])
	case c == '\uFEFF':
		return r.faultAt(r.pos, "%s, got a byte order mark; leave it out", want)
	case c == '/':
		return r.faultAt(r.pos, "%s, got %q; JSON has no comments", want, c)
	case c == '\'':
		return r.faultAt(r.pos, "%s, got %q; JSON strings stand in double quotes", want, c)
	}
	return r.faultAt(r.pos, "%s, got %q", want, c)
}

// whole reads one value with f and checks that nothing follows it.
func (r *reader) whole(f func() *Fault) *Fault {
	r.space()
	if err := f(); err != nil {
		return err
	}
	r.space()
	if r.pos < len(r.data) {
		return r.unexpected("expected nothing after the value")
	}
	return nil
}

// skip checks a value of any kind and discards it.
func (r *reader) skip() *Fault {
	switch r.kind() {
	case "an object":
		return r.object(func([]byte) *Fault { return r.skip() })
	case "an array":
		return r.array(func(int) *Fault { return r.skip() })
	case "a string":
		_, err := r.string()
		return err
	case "a number":
		_, err := r.number()
		return err
	case "a boolean", "null":
		_, err := r.literal()
		return err
	}
	return r.unexpected("expected a value")
}

// object reads an object and calls member with each name; member must read the
// value. The name is valid until member returns.
func (r *reader) object(member func(name []byte) *Fault) *Fault {
	if r.pos >= len(r.data) || r.data[r.pos] != '{' {
		return r.wrongKind("an object")
	}
	if len(r.path) == maxDepth {
		return r.faultAt(r.pos, "nests deeper than %d", maxDepth)
	}
	r.pos++
	var names nameSet
	for first := true; ; first = false {
		r.space()
		if r.pos < len(r.data) && r.data[r.pos] == '}' {
			if !first {
				return r.faultAt(r.pos, "expected a member after the comma, got '}'")
			}
			r.pos++
			return nil
		}
		at := r.pos
		if r.pos >= len(r.data) || r.data[r.pos] != '"' {
			if first {
				return r.unexpected(`expected '}' or a name in double quotes`)
			}
			return r.unexpected("expected a name in double quotes")
		}
		name, err := r.string()
		if err != nil {
			return err
		}
		r.path = append(r.path, step{name: name})
		if !names.add(name) {
			return r.faultAt(at, "is a duplicate name")
		}
		r.space()
		if r.pos >= len(r.data) || r.data[r.pos] != ':' {
			return r.unexpected("expected ':' after the name")
		}
		r.pos++
		r.space()
		r.nameAt = at
		if err := member(name); err != nil {
			return err
		}
		r.path = r.path[:len(r.path)-1]
		r.space()
		if r.pos >= len(r.data) || r.data[r.pos] != ',' && r.data[r.pos] != '}' {
			return r.unexpected("expected ',' or '}' after a member")
		}
		if r.data[r.pos] == '}' {
			r.pos++
			return nil
		}
		r.pos++
	}
}

// array reads an array and calls element with each index; element must read the
// value.
func (r *reader) array(element func(i int) *Fault) *Fault {
	if r.pos >= len(r.data) || r.data[r.pos] != '[' {
		return r.wrongKind("an array")
	}
	if len(r.path) == maxDepth {
		return r.faultAt(r.pos, "nests deeper than %d", maxDepth)
	}
	r.pos++
	for i := 0; ; i++ {
		r.space()
		if r.pos < len(r.data) && r.data[r.pos] == ']' {
			if i > 0 {
				return r.faultAt(r.pos, "expected an element after the comma, got ']'")
			}
			r.pos++
			return nil
		}
		r.path = append(r.path, step{index: i})
		if err := element(i); err != nil {
			return err
		}
		r.path = r.path[:len(r.path)-1]
		r.space()
		if r.pos >= len(r.data) || r.data[r.pos] != ',' && r.data[r.pos] != ']' {
			return r.unexpected("expected ',' or ']' after an element")
		}
		if r.data[r.pos] == ']' {
			r.pos++
			return nil
		}
		r.pos++
	}
}

// string reads a string and returns its value. Without escapes the result aliases
// the text.
func (r *reader) string() ([]byte, *Fault) {
	if r.pos >= len(r.data) || r.data[r.pos] != '"' {
		return nil, r.wrongKind("a string")
	}
	start := r.pos + 1
	ascii := true
	for i := start; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '"':
			s := r.data[start:i]
			if !ascii {
				if at := invalidUTF8(s); at >= 0 {
					return nil, r.faultAt(start+at, "byte 0x%02X is not UTF-8", s[at])
				}
			}
			r.pos = i + 1
			return s, nil
		case c == '\\':
			return r.escaped(start)
		case c < ' ':
			return nil, r.faultAt(i, "holds a raw control character 0x%02X; escape it", c)
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	return nil, r.faultAt(len(r.data), "expected '\"' at the end of a string, but the text ends here")
}

// escaped reads the string with escapes whose content begins at start.
func (r *reader) escaped(start int) ([]byte, *Fault) {
	out := make([]byte, 0, 64)
	for i := start; i < len(r.data); {
		c := r.data[i]
		switch {
		case c == '"':
			r.pos = i + 1
			return out, nil
		case c < ' ':
			return nil, r.faultAt(i, "holds a raw control character 0x%02X; escape it", c)
		case c >= utf8.RuneSelf:
			_, n := utf8.DecodeRune(r.data[i:])
			if n == 1 {
				return nil, r.faultAt(i, "byte 0x%02X is not UTF-8", c)
			}
			out = append(out, r.data[i:i+n]...)
			i += n
		case c != '\\':
			out = append(out, c)
			i++
		default:
			if i+1 >= len(r.data) {
				return nil, r.faultAt(len(r.data), "expected '\"' at the end of a string, but the text ends here")
			}
			switch e := r.data[i+1]; e {
			case '"', '\\', '/':
				out = append(out, e)
				i += 2
			case 'b':
				out = append(out, '\b')
				i += 2
			case 'f':
				out = append(out, '\f')
				i += 2
			case 'n':
				out = append(out, '\n')
				i += 2
			case 'r':
				out = append(out, '\r')
				i += 2
			case 't':
				out = append(out, '\t')
				i += 2
			case 'u':
				c, n := r.unicode(i)
				if n == 0 {
					return nil, r.faultAt(i, `expected four hexadecimal digits after \u`)
				}
				if c < 0 {
					return nil, r.faultAt(i, "lone half of a surrogate pair")
				}
				out = utf8.AppendRune(out, c)
				i += n
			default:
				return nil, r.faultAt(i, `unknown escape \%c; valid: \" \\ \/ \b \f \n \r \t \u`, rune(e))
			}
		}
	}
	return nil, r.faultAt(len(r.data), "expected '\"' at the end of a string, but the text ends here")
}

// unicode reads \uXXXX, or a surrogate pair of them, at i. n is its length in
// bytes, 0 if it is malformed; c is -1 for half of a pair.
func (r *reader) unicode(i int) (c rune, n int) {
	high := hex4(r.data, i)
	switch {
	case high < 0:
		return 0, 0
	case high < 0xD800 || high > 0xDFFF:
		return high, 6
	case high > 0xDBFF:
		return -1, 6
	}
	low := hex4(r.data, i+6)
	if low < 0xDC00 || low > 0xDFFF {
		return -1, 6
	}
	return 0x10000 + (high-0xD800)<<10 + (low - 0xDC00), 12
}

// hex4 returns the value of \uXXXX at i, -1 for none.
func hex4(data []byte, i int) rune {
	if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
		return -1
	}
	var v rune
	for _, c := range data[i+2 : i+6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		v = v<<4 | rune(c)
	}
	return v
}

// invalidUTF8 returns the index of the first invalid byte of s, or -1.
func invalidUTF8(s []byte) int {
	if utf8.Valid(s) {
		return -1
	}
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRune(s[i:])
		if c == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// number reads a number and returns its text.
func (r *reader) number() ([]byte, *Fault) {
	start := r.pos
	digits := func() bool {
		from := r.pos
		for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
			r.pos++
		}
		return r.pos > from
	}
	if r.pos < len(r.data) && r.data[r.pos] == '-' {
		r.pos++
	}
	leading := r.pos
	if !digits() {
		return nil, r.unexpected("expected a digit")
	}
	if r.data[leading] == '0' && r.pos > leading+1 {
		return nil, r.faultAt(leading, "a number cannot have a leading zero")
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if !digits() {
			return nil, r.unexpected("expected a digit after the point")
		}
	}
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if !digits() {
			return nil, r.unexpected("expected a digit in the exponent")
		}
	}
	return r.data[start:r.pos], nil
}

// literal reads true, false or null and returns it.
func (r *reader) literal() (string, *Fault) {
	for _, word := range [...]string{"true", "false", "null"} {
		if rest := r.data[r.pos:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			r.pos += len(word)
			return word, nil
		}
	}
	return "", r.unexpected("expected true, false or null")
}

// nameSet is the set of names of one object.
type nameSet struct {
	few  [8][]byte
	n    int
	many map[string]struct{}
}

// add adds name and reports whether it is new.
func (s *nameSet) add(name []byte) bool {
	if s.many != nil {
		if _, ok := s.many[string(name)]; ok {
			return false
		}
		s.many[string(name)] = struct{}{}
		return true
	}
	for _, have := range s.few[:s.n] {
		if bytes.Equal(have, name) {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	s.many = make(map[string]struct{}, 4*len(s.few))
	for _, have := range s.few {
		s.many[string(have)] = struct{}{}
	}
	s.many[string(name)] = struct{}{}
	return true
}
