package pdk

import (
	"strconv"
	"unicode/utf8"

	"github.com/toold/toold/pdk/abi"
)

// encodeDecision writes a Decision as json.Marshal does, but for the order of
// Env and for what that escapes for browsers. In a guest it takes a tenth of
// the time, and a policy that forces many arguments spent most of its time
// there.
func encodeDecision(d *abi.Decision) []byte {
	w := objectWriter{b: make([]byte, 0, 256+16*len(d.Args))}
	w.b = append(w.b, '{')
	w.name("effect")
	w.text(d.Effect)
	w.optional("rule", d.Rule)
	w.optional("reason", d.Reason)
	w.optional("instead", d.Instead)
	if a := d.Ask; a != nil {
		w.name("ask")
		ask := objectWriter{b: append(w.b, '{')}
		if len(a.By) > 0 {
			ask.list("by", a.By)
		}
		if a.Self {
			ask.flag("self", &a.Self)
		}
		if a.TTLMS != 0 {
			ask.name("ttl_ms")
			ask.b = strconv.AppendInt(ask.b, a.TTLMS, 10)
		}
		ask.optional("text", a.Text)
		w.b = append(ask.b, '}')
	}
	if d.Args != nil {
		w.list("args", d.Args)
	}
	if d.Env != nil {
		w.name("env")
		env := objectWriter{b: append(w.b, '{')}
		for name, value := range d.Env {
			env.name(name)
			env.text(value)
		}
		w.b = append(env.b, '}')
	}
	if d.StdinBase64 != nil {
		w.name("stdin_base64")
		w.text(*d.StdinBase64)
	}
	w.flag("mutating", d.Mutating)
	w.flag("idempotent", d.Idempotent)
	w.optional("idempotency_key", d.IdempotencyKey)
	if d.TimeoutMS != 0 {
		w.name("timeout_ms")
		w.b = strconv.AppendInt(w.b, d.TimeoutMS, 10)
	}
	w.flag("stdin", d.Stdin)
	if d.Shell {
		w.flag("shell", &d.Shell)
	}
	if len(d.ShellLines) > 0 {
		w.list("shell_lines", d.ShellLines)
	}
	if len(d.Notes) > 0 {
		w.list("notes", d.Notes)
	}
	if d.Callbacks != nil {
		w.name("callbacks")
		w.b = append(w.b, '[')
		for i, c := range d.Callbacks {
			if i > 0 {
				w.b = append(w.b, ',')
			}
			one := objectWriter{b: append(w.b, '{')}
			one.name("kind")
			one.text(c.Kind)
			one.name("name")
			one.text(c.Name)
			one.optional("path", c.Path)
			w.b = append(one.b, '}')
		}
		w.b = append(w.b, ']')
	}
	return append(w.b, '}')
}

// objectWriter appends the members of an object.
type objectWriter struct {
	b    []byte
	some bool // a member was written
}

func (w *objectWriter) name(name string) {
	if w.some {
		w.b = append(w.b, ',')
	}
	w.some = true
	w.text(name)
	w.b = append(w.b, ':')
}

func (w *objectWriter) optional(name, value string) {
	if value != "" {
		w.name(name)
		w.text(value)
	}
}

func (w *objectWriter) list(name string, values []string) {
	w.name(name)
	w.b = append(w.b, '[')
	for i, v := range values {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.text(v)
	}
	w.b = append(w.b, ']')
}

func (w *objectWriter) flag(name string, value *bool) {
	if value != nil {
		w.name(name)
		w.b = strconv.AppendBool(w.b, *value)
	}
}

// plain are the bytes that stand for themselves in a JSON string.
var plain = func() (p [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		p[c] = c != '"' && c != '\\'
	}
	return p
}()

// text appends s as a JSON string. What is no UTF-8 is replaced.
func (w *objectWriter) text(s string) {
	w.b = append(w.b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				w.b = append(append(w.b, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		w.b = append(w.b, s[from:i]...)
		switch c {
		case '"', '\\':
			w.b = append(w.b, '\\', c)
		case '\n':
			w.b = append(w.b, '\\', 'n')
		case '\t':
			w.b = append(w.b, '\\', 't')
		default:
			const hex = "0123456789abcdef"
			w.b = append(w.b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	w.b = append(append(w.b, s[from:]...), '"')
}
