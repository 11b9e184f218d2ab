package mask

import (
	"bytes"
	"encoding/json"
	"errors"
)

// Placeholder replaces a secret.
const Placeholder = "[secret]"

// JSONText is a text in a document and its context: the name of the member that it, or the
// array that it is in, is the value of, and the text before it in an array. Either may be
// empty.
type JSONText struct {
	Text, Member, Before string
}

// container is an object or array that Texts is in.
type container struct {
	object  bool
	n       int    // tokens in it so far; of an object, names are the even ones
	member  string // the last name; of an array, that of the member whose value it is
	element string // the last element, if it is a text
}

// Texts returns data with mask applied to its texts, names of members and numbers,
// and whether anything changed; a number that changes becomes Placeholder. It reads token by
// token, so that each of several members of the same name is masked. It returns an error if
// data is not JSON.
//
// Every call's record in the audit log goes through it, which is why it does not use
// json.Decoder: that takes twice as long, and seven times the allocations.
func Texts(data []byte, mask func(JSONText) string) (out []byte, changed bool, err error) {
	if !json.Valid(data) {
		return nil, false, errors.New("the data is not JSON")
	}
	whole := data
	out = make([]byte, 0, len(data))
	apply := func(token []byte, t JSONText) {
		u := mask(t)
		if u == t.Text {
			out = append(out, token...)
			return
		}
		changed = true
		if token[0] != '"' {
			u = Placeholder
		}
		out = appendText(out, u)
	}
	in := []container{{}} // the document is like an array of one element
	for len(data) > 0 {
		token := data[:tokenLen(data)]
		data = data[len(token):]
		c := &in[len(in)-1]
		switch token[0] {
		case ' ', '\t', '\n', '\r':
			continue
		case ',', ':':
			out = append(out, token...)
			continue
		case ']', '}':
			out = append(out, token...)
			in = in[:len(in)-1]
			continue
		}
		name := c.object && c.n%2 == 0
		c.n++
		before := c.element
		c.element = ""
		switch token[0] {
		case '[', '{':
			out = append(out, token...)
			next := container{object: token[0] == '{'}
			if !next.object {
				next.member = c.member
			}
			in = append(in, next)
		case '"':
			text := textOf(token)
			switch {
			case name:
				c.member = text
				apply(token, JSONText{Text: text})
				continue
			case !c.object:
				c.element = text
			}
			apply(token, JSONText{Text: text, Member: c.member, Before: before})
		case 't', 'f', 'n':
			out = append(out, token...)
		default:
			apply(token, JSONText{Text: string(token)})
		}
	}
	if !changed {
		return whole, false, nil
	}
	return out, true, nil
}

// tokenLen is the length of the token, or of the space, that data begins with. data
// is the rest of a JSON text.
func tokenLen(data []byte) int {
	switch data[0] {
	case ' ', '\t', '\n', '\r', ',', ':', '[', ']', '{', '}':
		return 1
	case '"':
		for i := 1; ; i++ {
			switch data[i] {
			case '"':
				return i + 1
			case '\\':
				i++
			}
		}
	}
	if i := bytes.IndexAny(data, " \t\n\r,]}"); i >= 0 {
		return i
	}
	return len(data)
}

// textOf returns the text that the token stands for.
func textOf(token []byte) string {
	if bytes.IndexByte(token, '\\') < 0 {
		return string(token[1 : len(token)-1])
	}
	var s string
	json.Unmarshal(token, &s) // a token of a JSON text
	return s
}

func appendText(b []byte, s string) []byte {
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	e.Encode(s) // never fails for a string
	return append(b, w.Bytes()[:w.Len()-1]...)
}
