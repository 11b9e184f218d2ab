package arguments

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/strictjson"
)

// given is a value as written on the command line.
type given struct {
	label string // the argument that names the property
	text  string
	stdin bool // text is read from standard input
	ahead bool // and has not been read yet
}

// fields holds the given properties of an object, in the order given.
type fields struct {
	list  []*field
	index map[string]*field
}

type field struct {
	name   string
	schema *schema
	given  []*given // more than one for an array
	inner  *fields  // values given by dotted names; then given is empty
}

// field returns the field of that name, and adds it if f has none.
func (f *fields) field(name string, s *schema) *field {
	if got := f.index[name]; got != nil {
		return got
	}
	if f.index == nil {
		f.index = map[string]*field{}
	}
	got := &field{name: name, schema: s}
	f.index[name] = got
	f.list = append(f.list, got)
	return got
}

// open lists the required texts that given does not have. If there is exactly
// one, it can be given without its flag.
func (c *command) open(given *fields) []step {
	var open []step
	for _, pr := range c.top.properties {
		if !c.top.requires[pr.name] || given.index[pr.name] != nil {
			continue
		}
		if s := c.schema(pr.value); s.takes(text) {
			open = append(open, step{pr.name, s})
		}
	}
	return open
}

// input is what a command line gives, on the way to a payload.
type input struct {
	*command
	payload *fields // from flags
	whole   *given  // --json

	stdin io.Reader
	limit int64
	asks  *given // the value to read from stdin; null stands in for it until then
}

// give records a value of the property at the end of path.
func (in *input) give(path []step, g *given) error {
	if err := in.reads(g); err != nil {
		return err
	}
	at := in.payload
	for i, s := range path {
		f := at.field(s.name, s.schema)
		if i < len(path)-1 {
			if f.given != nil {
				return in.wrong("%s gives a part of what %s gives whole; write one of the two", g.label, f.given[0].label)
			}
			if f.inner == nil {
				f.inner = &fields{}
			}
			at = f.inner
			continue
		}
		switch {
		case f.inner != nil:
			return in.wrong("%s gives whole what other flags give a part of; write one of the two", g.label)
		case f.given != nil && !f.schema.takes(array):
			return in.wrong("%s is given twice, and takes one value", g.label)
		}
		f.given = append(f.given, g)
	}
	return nil
}

// reads records that g is to be read from standard input, if it is.
func (in *input) reads(g *given) error {
	if g.text != "-" {
		return nil
	}
	if in.asks != nil {
		return in.wrong("%s and %s both read standard input, which only one can", in.asks.label, g.label)
	}
	g.stdin, g.ahead = true, true
	in.asks = g
	return nil
}

// readStdin reads the value that was requested from standard input.
func (in *input) readStdin() error {
	if in.stdin == nil {
		return in.wrong("%s is to be read from standard input, and there is none", in.asks.label)
	}
	b, err := io.ReadAll(io.LimitReader(in.stdin, in.limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("read standard input for %s: %w", in.asks.label, err)
	case int64(len(b)) > in.limit:
		return in.wrong("standard input, for %s, has over %d bytes; give less", in.asks.label, in.limit)
	case !utf8.Valid(b):
		return in.wrong("standard input, for %s, is not UTF-8 text", in.asks.label)
	}
	in.asks.text, in.asks.ahead = string(b), false
	return nil
}

// build builds the payload from what was given.
func (in *input) build() (json.RawMessage, error) {
	if in.whole != nil {
		return in.object(in.whole)
	}
	var b bytes.Buffer
	if err := in.encode(&b, in.top, in.payload, nil); err != nil {
		return nil, err
	}
	if err := strictjson.Check(b.Bytes()); err != nil { // it nests too deep
		return nil, in.wrong("read the payload: %s", cut(err.Error(), 300))
	}
	return b.Bytes(), nil
}

// encode writes what was given of the object s, which is at the end of path. It fails if a required property is
// missing.
func (in *input) encode(b *bytes.Buffer, s *schema, of *fields, path []step) error {
	b.WriteByte('{')
	for i, f := range of.list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(quote(f.name))
		b.WriteByte(':')
		var v []byte
		var err error
		switch {
		case f.inner != nil:
			err = in.encode(b, f.schema, f.inner, append(path[:len(path):len(path)], step{f.name, f.schema}))
		case f.schema.takes(array):
			v, err = in.list(f.schema, f.given)
		default:
			v, err = in.value(f.schema, f.given[0])
		}
		if err != nil {
			return err
		}
		b.Write(v)
	}
	b.WriteByte('}')

	var missing []string
	for _, name := range s.required {
		if of.index[name] == nil {
			missing = append(missing, in.called(append(path[:len(path):len(path)], step{name, nil})))
		}
	}
	if missing == nil {
		return nil
	}
	return in.wrong("%s must be given", list(missing, strings.Clone, ", "))
}

// object returns the whole payload from g.
func (in *input) object(g *given) (json.RawMessage, error) {
	v := trim(g.text)
	if g.ahead {
		return v, nil
	}
	if err := strictjson.Check(v); err != nil {
		return nil, in.wrong("%s wants an object: %s", g.label, cut(err.Error(), 300))
	}
	if k := kindOf(v); k != object {
		return nil, in.wrong("%s wants an object, has %s", g.label, k)
	}
	return v, nil
}

// value parses g by the types of s: as JSON if s admits that, else as text. If s admits only text and null, everything
// but null is text. Input from standard input is text wherever s admits text, so that the type does not depend on a
// file's content.
func (in *input) value(s *schema, g *given) (json.RawMessage, error) {
	if g.ahead {
		return json.RawMessage("null"), nil
	}
	if v := trim(g.text); !s.only(text) && !(g.stdin && s.kinds&text != 0) || string(v) == "null" && !g.stdin {
		if strictjson.Check(v) == nil && s.admits(v) {
			return v, nil
		}
	}
	if v := quote(g.text); s.admits(v) {
		return v, nil
	}
	return nil, in.misfit(s, g.label, g.text)
}

// misfit returns the error for a text that s does not admit.
func (in *input) misfit(s *schema, label, given string) error {
	if s.enum != nil {
		values := s.enum.display(64 << 10)
		near := strictjson.Nearest(given, values)
		if near != "" {
			near = "; did you mean " + shown(near) + "?"
		}
		return in.wrong("%s: %s is not one of %s%s", label, quoted(given), list(values, shown, ", "), near)
	}
	if err := strictjson.Check(trim(given)); err != nil && s.kinds&(array|object) != 0 {
		return in.wrong("%s wants %s as JSON: %s", label, s.kinds, cut(err.Error(), 300))
	}
	return in.wrong("%s wants %s, has %s", label, s.kinds, quoted(given))
}

// list parses the values given for a property that can be an array. A single text that s admits as it stands is the
// value; otherwise each is an element, or a JSON array of elements.
func (in *input) list(s *schema, all []*given) (json.RawMessage, error) {
	if len(all) == 1 {
		g := all[0]
		v := trim(g.text)
		isJSON := strictjson.Check(v) == nil
		isArray := isJSON && v[0] == '['
		if s.kinds&text != 0 && (g.stdin || !isArray) || isJSON && !isArray && s.admits(v) {
			return in.value(s, g)
		}
	}
	items := in.schema(s.items)
	v := json.RawMessage{'['}
	for _, g := range all {
		elements, err := in.elements(items, g)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if len(v) > 1 {
				v = append(v, ',')
			}
			v = append(v, e...)
		}
	}
	v = append(v, ']')
	if !s.admits(v) && (in.asks == nil || !in.asks.ahead) {
		return nil, in.misfit(s, all[0].label, string(v))
	}
	return v, nil
}

// elements parses g as a JSON array of elements, or as one element.
func (in *input) elements(items *schema, g *given) ([]json.RawMessage, error) {
	v := trim(g.text)
	var elements []json.RawMessage
	if len(v) == 0 || v[0] != '[' || strictjson.Unmarshal(v, &elements) != nil {
		e, err := in.value(items, g)
		return []json.RawMessage{e}, err
	}
	for i, e := range elements {
		if items.admits(e) {
			continue
		}
		if items.takes(array) && items.admits(v) { // an element that is an array itself
			return []json.RawMessage{v}, nil
		}
		return nil, in.misfit(items, fmt.Sprintf("%s: element %d", g.label, i+1), string(e))
	}
	return elements, nil
}

// trim returns s without the space that JSON allows around a value.
func trim(s string) json.RawMessage {
	return json.RawMessage(strings.Trim(s, " \t\r\n"))
}

// quote writes a text as JSON.
func quote(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // no string is refused
	}
	return b
}
