package execute

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Masked stands where a secret would have been.
const Masked = "[secret]"

// JSONText is a text in a document and what tells its meaning: the name of the member
// that it is the value of, and the text before it in an array. Either may be empty.
type JSONText struct {
	Text, Member, Before string
}

// container is an object or array that MaskJSON is in.
type container struct {
	object  bool
	n       int    // tokens in it so far; of an object, names are the even ones
	member  string // the last name
	element string // the last element, if it is a text
}

// MaskJSON returns data with mask applied to its texts, names of members and numbers,
// and whether anything changed; a number that changes becomes Masked. It reads token by
// token, so that of members of the same name each is masked. The error says that data
// is not JSON.
func MaskJSON(data []byte, mask func(JSONText) string) (out []byte, changed bool, err error) {
	if !json.Valid(data) {
		return nil, false, errors.New("the data is not JSON")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	write := func(v any) {
		e.Encode(v)             // never fails: v is a token
		b.Truncate(b.Len() - 1) // the line's end
	}
	text := func(t JSONText) string {
		u := mask(t)
		changed = changed || u != t.Text
		return u
	}
	in := []container{{}} // the document is like an array of one element
	for {
		token, err := d.Token()
		if err != nil { // the end, since data is valid
			break
		}
		if end, ok := token.(json.Delim); ok && (end == '}' || end == ']') {
			b.WriteByte(byte(end))
			in = in[:len(in)-1]
			continue
		}
		c := &in[len(in)-1]
		name := c.object && c.n%2 == 0
		switch {
		case c.n == 0:
		case c.object && !name:
			b.WriteByte(':')
		default:
			b.WriteByte(',')
		}
		c.n++
		before := c.element
		c.element = ""
		switch v := token.(type) {
		case json.Delim:
			b.WriteByte(byte(v))
			in = append(in, container{object: v == '{'})
		case string:
			if name {
				c.member = v
				write(text(JSONText{Text: v}))
				continue
			}
			if !c.object {
				c.element = v
			}
			write(text(JSONText{Text: v, Member: c.member, Before: before}))
		case json.Number:
			if text(JSONText{Text: v.String()}) != v.String() {
				write(Masked)
			} else {
				b.WriteString(v.String())
			}
		default:
			write(v)
		}
	}
	if !changed {
		return data, false, nil
	}
	return b.Bytes(), true, nil
}
