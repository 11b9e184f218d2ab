package pdk

import (
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/toold/toold/pdk/abi"
)

// decodeCall reads a Call. In a guest encoding/json costs some 1,700 metered
// instructions a byte, and the Call of a policy that wants the configuration
// of a large repository is a megabyte; this costs about a thirtieth of that.
// It takes what json.Unmarshal takes, less names in another case and null, and
// passes over unknown fields: a newer host may send some. Of a
// name that is there twice the last counts.
func decodeCall(b []byte, c *abi.Call) error {
	r := &callReader{b: b}
	r.call(c)
	return r.end()
}

// end returns what was wrong, which something after the value is too.
func (r *callReader) end() error {
	r.space()
	if r.err == nil && r.i != len(r.b) {
		r.fail("data after the end")
	}
	return r.err
}

// whole is object, where null is none.
func (r *callReader) whole(member func(name []byte)) {
	if r.null() {
		r.fail("not an object")
		return
	}
	r.object(member)
}

func (r *callReader) call(c *abi.Call) {
	r.whole(func(name []byte) {
		switch string(name) {
		case "tool":
			c.Tool = r.string()
		case "args":
			c.Args = r.strings()
		case "cwd":
			c.Cwd = r.string()
		case "roots":
			c.Roots = r.strings()
		case "payload":
			c.Payload = r.raw()
		case "stdin_base64":
			c.StdinBase64 = r.string()
		case "env":
			c.Env = map[string]string{}
			r.object(func(name []byte) {
				n := string(name)
				c.Env[n] = r.string()
			})
		case "env_seen":
			c.EnvSeen = r.strings()
		case "execution_id":
			c.ExecutionID = r.string()
		case "attempt":
			c.Attempt = int(r.int())
		case "session":
			c.Session = r.string()
		case "caller":
			c.Caller = r.string()
		case "read_only":
			c.ReadOnly = r.bool()
		case "binding":
			c.Binding = r.raw()
		case "deadline_ms":
			c.DeadlineMS = r.int()
		case "callbacks":
			c.Callbacks = nil
			if r.null() {
				return
			}
			c.Callbacks = &abi.Callbacks{}
			r.object(func(name []byte) {
				switch string(name) {
				case "kinds":
					c.Callbacks.Kinds = r.strings()
				case "folder":
					c.Callbacks.Folder = r.string()
				default:
					r.raw()
				}
			})
		case "repo_config":
			c.RepoConfig = nil
			if r.null() {
				return
			}
			c.RepoConfig = &abi.RepoConfig{}
			r.object(func(name []byte) {
				switch string(name) {
				case "entries":
					c.RepoConfig.Entries = r.entries()
				case "submodules":
					c.RepoConfig.Submodules = r.entries()
				case "state":
					c.RepoConfig.State = r.entries()
				case "remotes":
					c.RepoConfig.Remotes = r.entries()
				case "remote_error":
					c.RepoConfig.RemoteError = r.string()
				case "modules":
					c.RepoConfig.Modules = r.entries()
				case "dir":
					c.RepoConfig.Dir = r.string()
				case "git_dir":
					c.RepoConfig.GitDir = r.string()
				case "work_tree":
					c.RepoConfig.WorkTree = r.string()
				case "hooks":
					c.RepoConfig.Hooks = r.strings()
				case "bare":
					c.RepoConfig.Bare = r.string()
				case "hooks_dir":
					c.RepoConfig.HooksDir = r.string()
				case "remote_hooks":
					c.RepoConfig.RemoteHooks = r.strings()
				case "error":
					c.RepoConfig.Error = r.string()
				default:
					r.raw()
				}
			})
		default:
			r.raw()
		}
	})
}

// callReader reads JSON. After an error it is at the end of its input.
type callReader struct {
	b     []byte
	i     int
	depth int
	err   error
}

func (r *callReader) fail(what string) {
	if r.err == nil {
		r.err = errors.New(what + " at offset " + strconv.Itoa(r.i))
	}
	r.i = len(r.b)
}

func (r *callReader) space() {
	for r.i < len(r.b) && (r.b[r.i] == ' ' || r.b[r.i] == '\t' || r.b[r.i] == '\n' || r.b[r.i] == '\r') {
		r.i++
	}
}

// next takes c, after white space, when it comes next.
func (r *callReader) next(c byte) bool {
	r.space()
	if r.i < len(r.b) && r.b[r.i] == c {
		r.i++
		return true
	}
	return false
}

// literal takes word when it comes next.
func (r *callReader) literal(word string) bool {
	r.space()
	if len(r.b)-r.i >= len(word) && string(r.b[r.i:r.i+len(word)]) == word {
		r.i += len(word)
		return true
	}
	return false
}

func (r *callReader) null() bool { return r.literal("null") }

// object calls member for each name; member reads the value. It does not keep
// the name.
func (r *callReader) object(member func(name []byte)) {
	r.sequence('{', '}', func() {
		r.space()
		if r.i == len(r.b) || r.b[r.i] != '"' {
			r.fail("no name")
			return
		}
		name := r.bytes()
		if !r.next(':') {
			r.fail("no colon")
			return
		}
		member(name)
	})
}

// sequence reads an object or array, or null.
func (r *callReader) sequence(open, end byte, item func()) {
	if r.null() {
		return
	}
	if !r.next(open) {
		r.fail("wrong type")
		return
	}
	const deepest = 1000
	if r.depth++; r.depth > deepest {
		r.fail("too deep")
		return
	}
	defer func() { r.depth-- }()
	if r.next(end) {
		return
	}
	for r.err == nil {
		item()
		if r.next(end) {
			return
		}
		if !r.next(',') {
			r.fail("no comma")
		}
	}
}

func (r *callReader) strings() []string {
	var list []string
	if r.null() {
		return nil
	}
	list = []string{}
	r.sequence('[', ']', func() { list = append(list, r.string()) })
	return list
}

func (r *callReader) entries() []abi.ConfigEntry {
	var list []abi.ConfigEntry
	if r.null() {
		return nil
	}
	list = []abi.ConfigEntry{}
	r.sequence('[', ']', func() {
		var e abi.ConfigEntry
		r.object(func(name []byte) {
			switch string(name) {
			case "key":
				e.Key = r.string()
			case "value":
				e.Value = r.string()
			default:
				r.raw()
			}
		})
		list = append(list, e)
	})
	return list
}

func (r *callReader) bool() bool {
	switch {
	case r.literal("true"):
		return true
	case r.literal("false"), r.null():
	default:
		r.fail("wrong type")
	}
	return false
}

func (r *callReader) int() int64 {
	if r.null() {
		return 0
	}
	r.space()
	from := r.i
	for r.i < len(r.b) && (r.b[r.i] == '-' || '0' <= r.b[r.i] && r.b[r.i] <= '9') {
		r.i++
	}
	n, err := strconv.ParseInt(string(r.b[from:r.i]), 10, 64)
	if text := string(r.b[from:r.i]); err != nil || strconv.FormatInt(n, 10) != text && text != "-0" {
		r.fail("not a whole number")
	}
	return n
}

// string reads a string, or null as "". It shares the input's memory, which
// nobody writes to any more: a guest allocates slowly.
func (r *callReader) string() string {
	b := r.bytes()
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// bytes is string, but the answer may lie in the input.
func (r *callReader) bytes() []byte {
	if r.null() {
		return nil
	}
	if !r.next('"') {
		r.fail("wrong type")
		return nil
	}
	b, from, high := r.b, r.i, byte(0)
	for i := from; i < len(b); i++ {
		c := b[i]
		if c == '"' {
			r.i = i + 1
			if high < utf8.RuneSelf {
				return b[from:i]
			}
			return text(b[from:i])
		}
		if c == '\\' {
			r.i = i
			return r.escaped(from)
		}
		if c < ' ' {
			r.i = i
			r.fail("control character in a string")
			return nil
		}
		high |= c
	}
	r.i = len(b)
	r.fail("string without an end")
	return nil
}

// text is s with bytes that are not UTF-8 replaced.
func text(s []byte) []byte {
	if utf8.Valid(s) {
		return s
	}
	return []byte(string([]rune(string(s))))
}

// escaped reads on, from the first backslash of the string that began at from.
func (r *callReader) escaped(from int) []byte {
	out := append(make([]byte, 0, 2*(r.i-from)+16), r.b[from:r.i]...)
	for r.i < len(r.b) {
		c := r.b[r.i]
		r.i++
		switch {
		case c == '"':
			return text(out)
		case c < ' ':
			r.fail("control character in a string")
			return nil
		case c != '\\':
			out = append(out, c)
			continue
		}
		if r.i == len(r.b) {
			break
		}
		c = r.b[r.i]
		r.i++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			u := r.hex()
			if utf16.IsSurrogate(u) {
				from := r.i
				low := rune(-1)
				if r.i+1 < len(r.b) && r.b[r.i] == '\\' && r.b[r.i+1] == 'u' {
					r.i += 2
					low = r.hex()
				}
				if u = utf16.DecodeRune(u, low); u == utf8.RuneError && r.err == nil {
					r.i = from // Not a pair: the second stands for itself.
				}
			}
			out = utf8.AppendRune(out, u)
		default:
			r.fail("unknown escape")
			return nil
		}
	}
	r.fail("string without an end")
	return nil
}

func (r *callReader) hex() rune {
	if len(r.b)-r.i < 4 {
		r.fail("string without an end")
		return utf8.RuneError
	}
	n, err := strconv.ParseUint(string(r.b[r.i:r.i+4]), 16, 32)
	if err != nil || r.b[r.i] == '+' {
		r.fail("unknown escape")
		return utf8.RuneError
	}
	r.i += 4
	return rune(n)
}

// raw takes any value as it stands. It is checked by whoever reads it.
func (r *callReader) raw() json.RawMessage {
	r.space()
	from := r.i
	r.skip()
	if r.err != nil {
		return nil
	}
	return json.RawMessage(append([]byte{}, r.b[from:r.i]...))
}

func (r *callReader) skip() {
	r.space()
	if r.i == len(r.b) {
		r.fail("no value")
		return
	}
	switch c := r.b[r.i]; {
	case c == '{':
		r.object(func([]byte) { r.skip() })
	case c == '[':
		r.sequence('[', ']', r.skip)
	case c == '"':
		r.string()
	case r.literal("true"), r.literal("false"), r.null():
	default:
		from := r.i
		for r.i < len(r.b) {
			c := r.b[r.i]
			if c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' && (c < '0' || c > '9') {
				break
			}
			r.i++
		}
		if !json.Valid(r.b[from:r.i]) {
			r.fail("no value")
		}
	}
}
