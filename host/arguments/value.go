package arguments

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toold/toold/host/strictjson"
)

// build builds the payload from what was given.
func (p *parser) build() (json.RawMessage, error) {
	if p.whole != nil {
		return p.object(p.whole)
	}
	var b bytes.Buffer
	if err := p.encode(&b, p.top, p.payload, nil); err != nil {
		return nil, err
	}
	if err := strictjson.Check(b.Bytes()); err != nil { // it nests too deep
		return nil, p.wrong("read the payload: %s", cut(err.Error(), 300))
	}
	return b.Bytes(), nil
}

// encode writes what was given of the object s, which is at the end of path. It fails if a required property is
// missing.
func (p *parser) encode(b *bytes.Buffer, s *schema, of *fields, path []step) error {
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
			err = p.encode(b, f.schema, f.inner, append(path[:len(path):len(path)], step{f.name, f.schema}))
		case f.schema.takes(array):
			v, err = p.list(f.schema, f.given)
		default:
			v, err = p.value(f.schema, f.given[0])
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
			missing = append(missing, p.called(append(path[:len(path):len(path)], step{name, nil})))
		}
	}
	if missing == nil {
		return nil
	}
	return p.wrong("%s must be given", list(missing, strings.Clone, ", "))
}

// object returns the whole payload from g.
func (p *parser) object(g *given) (json.RawMessage, error) {
	v := trim(g.text)
	if g.ahead {
		return v, nil
	}
	if err := strictjson.Check(v); err != nil {
		return nil, p.wrong("%s wants an object: %s", g.label, cut(err.Error(), 300))
	}
	if k := kindOf(v); k != object {
		return nil, p.wrong("%s wants an object, has %s", g.label, k)
	}
	return v, nil
}

// value parses g by the types of s: as JSON if s admits that, else as text. If s admits only text and null, everything
// but null is text. Input from standard input is text wherever s admits text, so that the type does not depend on a
// file's content.
func (p *parser) value(s *schema, g *given) (json.RawMessage, error) {
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
	return nil, p.misfit(s, g.label, g.text)
}

// misfit returns the error for a text that s does not admit.
func (p *parser) misfit(s *schema, label, given string) error {
	if s.enum != nil {
		values := s.enum.display(64 << 10)
		near := strictjson.Nearest(given, values)
		if near != "" {
			near = "; did you mean " + shown(near) + "?"
		}
		return p.wrong("%s: %s is not one of %s%s", label, quoted(given), list(values, shown, ", "), near)
	}
	if err := strictjson.Check(trim(given)); err != nil && s.kinds&(array|object) != 0 {
		return p.wrong("%s wants %s as JSON: %s", label, s.kinds, cut(err.Error(), 300))
	}
	return p.wrong("%s wants %s, has %s", label, s.kinds, quoted(given))
}

// list parses the values given for a property that can be an array. A single text that s admits as it stands is the
// value; otherwise each is an element, or a JSON array of elements.
func (p *parser) list(s *schema, all []*given) (json.RawMessage, error) {
	if len(all) == 1 {
		g := all[0]
		v := trim(g.text)
		isJSON := strictjson.Check(v) == nil
		isArray := isJSON && v[0] == '['
		if s.kinds&text != 0 && (g.stdin || !isArray) || isJSON && !isArray && s.admits(v) {
			return p.value(s, g)
		}
	}
	items := p.schema(s.items)
	v := json.RawMessage{'['}
	for _, g := range all {
		elements, err := p.elements(items, g)
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
	if !s.admits(v) && (p.asks == nil || !p.asks.ahead) {
		return nil, p.misfit(s, all[0].label, string(v))
	}
	return v, nil
}

// elements parses g as a JSON array of elements, or as one element.
func (p *parser) elements(items *schema, g *given) ([]json.RawMessage, error) {
	v := trim(g.text)
	var elements []json.RawMessage
	if len(v) == 0 || v[0] != '[' || strictjson.Unmarshal(v, &elements) != nil {
		e, err := p.value(items, g)
		return []json.RawMessage{e}, err
	}
	for i, e := range elements {
		if items.admits(e) {
			continue
		}
		if items.takes(array) && items.admits(v) { // an element that is an array itself
			return []json.RawMessage{v}, nil
		}
		return nil, p.misfit(items, fmt.Sprintf("%s: element %d", g.label, i+1), string(e))
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

// shown returns a value for a message, quoted unless it is clear without quotes.
func shown(s string) string {
	if clean(s, 80) != s || s == "" {
		return quoted(s)
	}
	return s
}

// display formats v for a person: a string without its quotes.
func (v *value) display() string {
	if v.text[0] == '"' {
		return v.string()
	}
	return string(v.text)
}
