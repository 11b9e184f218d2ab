// Package wasip2 implements WASI 0.2 for components: the interfaces cli, clocks,
// filesystem, io and random, and outgoing http requests, on top of a Host. The Host
// decides what a guest may reach: this package opens only what is in the Host's
// folders.
//
// A State holds the handles of one instance. Using a handle of the wrong kind, a
// dropped handle or one that never existed is a trap; it never reaches another
// resource. sockets, and http as a server, return the case of their own error type that
// means "denied", or trap.
//
// The engine links guests with it. Functions run on the goroutine of the call.
package wasip2

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/guest/component"
	"github.com/toold/toold/host/guest/folder"
)

// Host provides what an instance may reach.
type Host struct {
	Args, Env []string // Env is NAME=value
	// Stdin reads the input, like io.Reader; nil is an empty input.
	Stdin func(p []byte) (int, error)
	// Stdout and Stderr receive the output.
	Stdout, Stderr func(p []byte) error
	Dirs           []folder.Folder
	// Charge charges for n bytes of work. It may panic to end the call.
	Charge func(n uint64)
	// Hold reserves n bytes of host memory until the call ends. It may panic to end the
	// call.
	Hold func(n uint64)
	// Sleep waits. It may panic to end the call.
	Sleep func(time.Duration)
	// Monotonic returns a time in nanoseconds that never goes back.
	Monotonic func() uint64
	Random    func(p []byte)
	// HTTP sends a request or refuses it. The error may be an *HTTPError.
	HTTP func(*Request) (*Response, error)
	// Exit ends the call of a guest that exits; it does not return.
	Exit func(code uint8)
}

// mostHandles is the maximum number of handles of an instance.
const mostHandles = 16_384

// kind is the type of object that a handle refers to.
type kind uint8

const (
	nothing kind = iota // a free handle
	stdin
	stdout
	stderr
	preopen // Host.Dirs[n]
	local   // a resource of the component itself: of is its type, n its representation
	// The kinds below belong to one call: an Image never contains them.
	fileInput
	fileOutput
	opened
	entries
	pollable
	failed
	// Kinds of wasi:http; their handles use web.
	httpFields
	fixedFields // immutable
	outgoingRequest
	httpOutgoingBody
	bodyOutput
	requestOptions
	futureResponse
	incomingResponse
	httpIncomingBody
	bodyInput
	futureTrailers
)

// handle is an entry in the handle table.
type handle struct {
	kind kind
	n    int
	file *openFile
	at   int64    // position of a stream; -1 appends
	left []string // names of entries not read yet
	when uint64   // time at which a pollable is ready
	text string   // of an error
	of   *component.Resource
	web  any // wasi:http object; for a pollable, the request whose response it waits for
}

// holds reports whether the handle keeps its file open.
func (h *handle) holds() bool {
	return h.kind == opened || h.kind == fileInput || h.kind == fileOutput
}

// State is the handle table of one instance.
type State struct {
	Host  Host
	table []handle
	free  []uint32
	files int // number of open files
}

// Image is the set of handles that every instance starts with.
type Image struct {
	table []handle
	free  []uint32
}

// Image returns the current handles. It reports false if some of them belong to this
// instance alone.
func (s *State) Image() (Image, bool) {
	for _, h := range s.table {
		if h.kind > local {
			return Image{}, false
		}
	}
	return Image{slices.Clone(s.table), slices.Clone(s.free)}, true
}

// Reset closes all open files and restores the handles of an image.
func (s *State) Reset(to Image) {
	for _, h := range s.table {
		if h.holds() {
			s.release(h.file)
		}
	}
	s.table = append(s.table[:0], to.table...)
	s.free = append(s.free[:0], to.free...)
}

// trap ends the call of a guest that broke a rule.
func trap(format string, args ...any) {
	panic(&component.Trap{Reason: fmt.Sprintf(format, args...)})
}

// add adds a handle and returns its number. Numbers start at 1.
func (s *State) add(h handle) uint32 {
	s.Host.Charge(64)
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.table[i-1] = h
		return i
	}
	if len(s.table) >= mostHandles {
		trap("has more than %d handles", mostHandles)
	}
	s.table = append(s.table, h)
	return uint32(len(s.table))
}

// get returns the handle v, which must be of one of the kinds.
func (s *State) get(v any, kinds ...kind) *handle {
	i := v.(uint32)
	if i == 0 || uint64(i) > uint64(len(s.table)) || !slices.Contains(kinds, s.table[i-1].kind) {
		trap("handle %d is not of that kind", i)
	}
	return &s.table[i-1]
}

// resources maps the resources that a guest can drop to their kinds of handles.
var resources = map[string][]kind{
	"wasi:io/streams/input-stream":                 {stdin, fileInput, bodyInput},
	"wasi:io/streams/output-stream":                {stdout, stderr, fileOutput, bodyOutput},
	"wasi:io/poll/pollable":                        {pollable},
	"wasi:io/error/error":                          {failed},
	"wasi:filesystem/types/descriptor":             {preopen, opened},
	"wasi:filesystem/types/directory-entry-stream": {entries},
	"wasi:cli/terminal-input/terminal-input":       {},
	"wasi:cli/terminal-output/terminal-output":     {},
	"wasi:http/types/fields":                       {httpFields, fixedFields},
	"wasi:http/types/outgoing-request":             {outgoingRequest},
	"wasi:http/types/outgoing-body":                {httpOutgoingBody},
	"wasi:http/types/request-options":              {requestOptions},
	"wasi:http/types/future-incoming-response":     {futureResponse},
	"wasi:http/types/incoming-response":            {incomingResponse},
	"wasi:http/types/incoming-body":                {httpIncomingBody},
	"wasi:http/types/future-trailers":              {futureTrailers},
}

// Drop drops a handle to a resource of the host.
func (s *State) Drop(r *component.Resource, i uint32) {
	h := s.get(i, resources[r.String()]...)
	if h.holds() {
		s.release(h.file)
	}
	if h.kind == httpOutgoingBody {
		h.web.(*outgoingBody).request.fail(&HTTPError{"", "the body of the request was dropped before it was finished"})
	}
	*h = handle{}
	s.free = append(s.free, i)
}

// New creates a handle to a resource of the component itself.
func (s *State) New(r *component.Resource, rep uint32) uint32 {
	return s.add(handle{kind: local, of: r, n: int(rep)})
}

// Rep returns the representation that a handle made by New refers to.
func (s *State) Rep(r *component.Resource, i uint32) uint32 {
	h := s.get(i, local)
	if h.of != r {
		trap("handle %d is to a %s, not to a %s", i, h.of, r)
	}
	return uint32(h.n)
}

// Take drops a handle made by New, without ending the resource, and returns its
// representation.
func (s *State) Take(r *component.Resource, i uint32) uint32 {
	rep := s.Rep(r, i)
	s.table[i-1] = handle{}
	s.free = append(s.free, i)
	return rep
}

// Func is a function that components may import.
type Func struct {
	Interface, Name string
	// Type is the function's type, formatted like component.FuncType.String.
	Type string
	// Do is called with the lifted parameters and returns the result to lower.
	Do func(s *State, args []any) any
}

// abbreviations are short names for types in the table.
var abbreviations = map[string]string{
	"input-stream":           "wasi:io/streams/input-stream",
	"output-stream":          "wasi:io/streams/output-stream",
	"stream-error":           "variant{last-operation-failed(own<wasi:io/error/error>), closed}",
	"pollable":               "wasi:io/poll/pollable",
	"io-error":               "wasi:io/error/error",
	"datetime":               "record{seconds: u64, nanoseconds: u32}",
	"directory-entry-stream": "wasi:filesystem/types/directory-entry-stream",
	"descriptor-type":        descriptorType,
	"descriptor-flags":       "flags{read, write, file-integrity-sync, data-integrity-sync, requested-write-sync, mutate-directory}",
	"descriptor-stat":        "record{type: " + descriptorType + ", link-count: u64, size: u64, data-access-timestamp: option<record{seconds: u64, nanoseconds: u32}>, data-modification-timestamp: option<record{seconds: u64, nanoseconds: u32}>, status-change-timestamp: option<record{seconds: u64, nanoseconds: u32}>}",
	"descriptor":             "wasi:filesystem/types/descriptor",
	"path-flags":             "flags{symlink-follow}",
	"open-flags":             "flags{create, directory, exclusive, truncate}",
	"new-timestamp":          "variant{no-change, now, timestamp(record{seconds: u64, nanoseconds: u32})}",
	"metadata-hash-value":    "record{lower: u64, upper: u64}",
	"directory-entry":        "record{type: " + descriptorType + ", name: string}",
	"advice":                 "enum{normal, sequential, random, will-need, dont-need, no-reuse}",
	"error-code":             "enum{" + strings.Join(errorCodes, ", ") + "}",
	"terminal-input":         "wasi:cli/terminal-input/terminal-input",
	"terminal-output":        "wasi:cli/terminal-output/terminal-output",
}

const descriptorType = "enum{unknown, block-device, character-device, directory, fifo, symbolic-link, regular-file, socket}"

// Table lists the functions. It is built once for each engine.
func Table() []Func {
	var fs []Func
	for _, part := range [][]Func{cliFuncs(), clockFuncs(), ioFuncs(), fileFuncs(), httpFuncs()} {
		for _, f := range part {
			f.Type = expand(f.Type)
			fs = append(fs, f)
		}
	}
	return fs
}

// expand replaces the abbreviations in a type. Parameter names, which are followed by a
// colon, are left as they are.
func expand(t string) string {
	var b strings.Builder
	for len(t) > 0 {
		n := 0
		for n < len(t) && (t[n] == '-' && n > 0 || t[n] >= 'a' && t[n] <= 'z' || t[n] >= '0' && t[n] <= '9') {
			n++
		}
		if n == 0 {
			b.WriteByte(t[0])
			t = t[1:]
			continue
		}
		word := t[:n]
		t = t[n:]
		if full, ok := abbreviations[word]; ok && !strings.HasPrefix(t, ":") {
			word = full
		}
		b.WriteString(word)
	}
	return b.String()
}

// Link finds the function that a component imports by name, version and type. The error
// says why there is none.
func Link(table []Func, f *component.Func) (*Func, error) {
	iface, version := f.Unversioned()
	if strings.HasPrefix(iface, "wasi:") && !strings.HasPrefix(version, "0.2.") {
		return nil, fmt.Errorf("imports %s, of another version than WASI 0.2; build it for WASI 0.2", f)
	}
	for i := range table {
		t := &table[i]
		if t.Interface != iface || t.Name != f.Name {
			continue
		}
		if have := f.Type.String(); have != t.Type {
			return nil, fmt.Errorf("imports %s as %s, but it is %s", f, have, t.Type)
		}
		return t, nil
	}
	if strings.HasPrefix(iface, "wasi:sockets/") || strings.HasPrefix(iface, "wasi:http/") {
		return &Func{Interface: iface, Name: f.Name, Do: denied(f)}, nil
	}
	return nil, fmt.Errorf("imports %s, which this host does not have", f)
}

// denials are the error cases that mean "denied", for all interfaces.
var denials = []string{"access-denied", "not-supported", "HTTP-request-denied", "connection-refused"}

// denied returns a function that returns the "denied" case of f's own error type, or
// traps.
func denied(f *component.Func) func(*State, []any) any {
	if t := f.Type.Result; t != nil && t.Kind == component.Result {
		if e := t.Fields[1].Type; e != nil && (e.Kind == component.Enum || e.Kind == component.Variant) {
			for _, name := range denials {
				for i, c := range e.Fields {
					if c.Name == name && c.Type == nil {
						return func(*State, []any) any { return component.Bad(component.Case{Index: i}) }
					}
				}
			}
		}
	}
	return func(*State, []any) any {
		trap("calls %s, which this host does not have", f)
		return nil
	}
}

func cliFuncs() []Func {
	stream := func(k kind) func(*State, []any) any {
		return func(s *State, _ []any) any { return s.add(handle{kind: k}) }
	}
	none := func(*State, []any) any { return component.None }
	strs := func(ss []string) []any {
		out := make([]any, len(ss))
		for i, s := range ss {
			out[i] = s
		}
		return out
	}
	return []Func{
		{"wasi:cli/environment", "get-environment", "func() -> list<tuple<string, string>>", func(s *State, _ []any) any {
			out := []any{}
			for _, e := range s.Host.Env {
				name, value, _ := strings.Cut(e, "=")
				out = append(out, []any{name, value})
			}
			return out
		}},
		{"wasi:cli/environment", "get-arguments", "func() -> list<string>", func(s *State, _ []any) any { return strs(s.Host.Args) }},
		{"wasi:cli/environment", "initial-cwd", "func() -> option<string>", none},
		{"wasi:cli/exit", "exit", "func(status: result)", func(s *State, args []any) any {
			s.Host.Exit(uint8(args[0].(component.Case).Index))
			return nil
		}},
		{"wasi:cli/exit", "exit-with-code", "func(status-code: u8)", func(s *State, args []any) any {
			s.Host.Exit(uint8(args[0].(uint64)))
			return nil
		}},
		{"wasi:cli/stdin", "get-stdin", "func() -> own<input-stream>", stream(stdin)},
		{"wasi:cli/stdout", "get-stdout", "func() -> own<output-stream>", stream(stdout)},
		{"wasi:cli/stderr", "get-stderr", "func() -> own<output-stream>", stream(stderr)},
		{"wasi:cli/terminal-stdin", "get-terminal-stdin", "func() -> option<own<terminal-input>>", none},
		{"wasi:cli/terminal-stdout", "get-terminal-stdout", "func() -> option<own<terminal-output>>", none},
		{"wasi:cli/terminal-stderr", "get-terminal-stderr", "func() -> option<own<terminal-output>>", none},
	}
}

func datetime(t time.Time) []any {
	return []any{uint64(max(t.Unix(), 0)), uint64(t.Nanosecond())}
}

func clockFuncs() []Func {
	random := func(s *State, n uint64) []byte {
		s.Host.Charge(min(n, 1<<40) * 16)
		s.Host.Hold(n)
		p := make([]byte, n)
		s.Host.Random(p)
		return p
	}
	u64 := func(s *State, _ []any) any {
		var v uint64
		for _, b := range random(s, 8) {
			v = v<<8 | uint64(b)
		}
		return v
	}
	bytes := func(s *State, args []any) any { return random(s, args[0].(uint64)) }
	return []Func{
		{"wasi:clocks/wall-clock", "now", "func() -> datetime", func(*State, []any) any { return datetime(time.Now()) }},
		{"wasi:clocks/wall-clock", "resolution", "func() -> datetime", func(*State, []any) any { return []any{uint64(0), uint64(1000)} }},
		{"wasi:clocks/monotonic-clock", "now", "func() -> u64", func(s *State, _ []any) any { return s.Host.Monotonic() }},
		{"wasi:clocks/monotonic-clock", "resolution", "func() -> u64", func(*State, []any) any { return uint64(1000) }},
		{"wasi:clocks/monotonic-clock", "subscribe-instant", "func(when: u64) -> own<pollable>", func(s *State, args []any) any {
			return s.add(handle{kind: pollable, when: args[0].(uint64)})
		}},
		{"wasi:clocks/monotonic-clock", "subscribe-duration", "func(when: u64) -> own<pollable>", func(s *State, args []any) any {
			now, d := s.Host.Monotonic(), args[0].(uint64)
			return s.add(handle{kind: pollable, when: now + min(d, ^uint64(0)-now)})
		}},
		{"wasi:random/random", "get-random-bytes", "func(len: u64) -> list<u8>", bytes},
		{"wasi:random/random", "get-random-u64", "func() -> u64", u64},
		{"wasi:random/insecure", "get-insecure-random-bytes", "func(len: u64) -> list<u8>", bytes},
		{"wasi:random/insecure", "get-insecure-random-u64", "func() -> u64", u64},
		{"wasi:random/insecure-seed", "insecure-seed", "func() -> tuple<u64, u64>", func(s *State, _ []any) any {
			return []any{u64(s, nil), u64(s, nil)}
		}},
	}
}
