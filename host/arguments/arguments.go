// Package arguments parses a command line into the payload that a tool's JSON Schema describes: "--name value",
// "--name=value", "name=value", "--flag".
//
// It promises a payload that the caller could have sent as JSON: values have the types that the schema gives to their
// properties, no name occurs twice, and no default is filled in. It does not validate the payload against the rest of
// the schema; its caller does, as with any payload. Standard input is read only when an argument asks for it.
//
// The pipeline calls it for plain calls of tools with a schema.
package arguments

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// Limits on a command line, and on the lists in messages.
const (
	maxLevels = 32 // of a dotted name
	maxListed = 12 // names or values
)

// Tool is the tool that a command line calls.
type Tool struct {
	Name        string
	Description string          // for the usage; defaults to that of the schema
	Schema      json.RawMessage // of the payload; an empty one admits any object
}

// Parsed is the result of parsing a command line.
type Parsed struct {
	// Payload is a JSON object that strictjson.Check passes. It is nil with Help.
	Payload json.RawMessage
	// Help is the usage, if the command line asks for it.
	Help string
	// ReadStdin reports that a value was read from standard input.
	ReadStdin bool
}

// Parse parses args as the payload of t. For a value of - it reads stdin, at most limit bytes, once everything else is
// known to be valid; stdin may be nil if there is none.
//
// A mistake in args is a *fault.Error with INVALID_PAYLOAD, which names the argument and says what to do next. A
// schema that cannot be read is one with INTERNAL. An error of stdin is wrapped and keeps its own code.
func Parse(t Tool, args []string, stdin io.Reader, limit int64) (*Parsed, error) {
	doc, top, err := newDocument(t.Schema)
	if err != nil {
		return nil, err
	}
	p := &parser{tool: t, document: doc, top: top, stdin: stdin, limit: limit, payload: &fields{}}
	out, err := p.parse(args)
	if p.work > maxWork && p.whole == nil && !p.help {
		return nil, p.wrong("the parts of the schema refer to each other too often to read arguments by; give the payload with --json")
	}
	return out, err
}

// parse implements Parse for a schema that could be read.
func (p *parser) parse(args []string) (*Parsed, error) {
	for i, arg := range args {
		if !utf8.ValidString(arg) {
			return nil, p.wrong("argument %d is not UTF-8", i+1)
		}
	}
	if len(args) == 1 && strings.HasPrefix(strings.TrimSpace(args[0]), "{") {
		p.whole = &given{label: "the argument", text: args[0]}
	} else if err := p.scan(args); err != nil {
		return nil, err
	}
	if p.help {
		return &Parsed{Help: p.usage()}, nil
	}
	if err := p.place(); err != nil {
		return nil, err
	}
	if p.asks != nil {
		if _, err := p.build(); err != nil { // before anything is read
			return nil, err
		}
		if err := p.readStdin(); err != nil {
			return nil, err
		}
	}
	payload, err := p.build()
	if err != nil {
		return nil, err
	}
	return &Parsed{Payload: payload, ReadStdin: p.asks != nil}, nil
}

// parser is the state of parsing one command line.
type parser struct {
	tool Tool
	*document
	top *schema

	payload *fields  // from flags
	whole   *given   // --json
	loose   []string // arguments without a flag
	help    bool

	stdin io.Reader
	limit int64
	asks  *given // the value to read from stdin; null stands in for it until then
}

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

// flag is an argument that names something.
type flag struct {
	what  meaning
	label string // the argument up to its value
	path  []step // of a property
	value string
	bound bool // by =, so the value is present
}

type meaning int

const (
	unknown meaning = iota
	assign          // a property
	negate          // --no-NAME
	payload         // --json
	help            // --help, -h
)

// step is a property on the path to a nested one.
type step struct {
	name   string
	schema *schema
}

// scan sorts args into flags and their values, arguments without a flag, and requests for something else.
func (p *parser) scan(args []string) error {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			p.loose = append(p.loose, args[i+1:]...)
			return nil
		case arg == "-" || !strings.HasPrefix(arg, "-"):
			if taken, err := p.assignment(arg); err != nil {
				return err
			} else if !taken {
				p.loose = append(p.loose, arg)
			}
			continue
		}
		f, err := p.resolve(arg)
		if err != nil {
			return err
		}
		if f.what == unknown {
			name := undashed(f.label)
			if !f.bound && arg == "-"+name && isNumber(arg) {
				p.loose = append(p.loose, arg)
				continue
			}
			if f.path = p.unlistedPath(name); f.path == nil {
				return p.unknown(f.label, name)
			}
			f.what = assign
			// In a run of boolean names, --no-NAME has its meaning if NAME is listed.
			if of, negated := strings.CutPrefix(name, "no-"); negated && of != "" && !f.bound && last(f.path).only(boolean) {
				f.what, f.path[0].name = negate, of
			}
		}
		if f.what == help {
			if f.bound {
				return p.wrong("%s takes no value", show(f.label))
			}
			p.help = true
			continue
		}
		g := &given{label: show(f.label)}
		var used int
		if g.text, used, err = p.text(f, args[i+1:]); err != nil {
			return err
		}
		i += used
		if f.what == payload {
			if p.whole != nil {
				return p.wrong("%s is given twice", g.label)
			}
			p.whole = g
			err = p.reads(g)
		} else {
			err = p.give(f.path, g)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// text returns the value of f: what follows its =, or the following arguments, of which it reports how many it used.
func (p *parser) text(f flag, after []string) (text string, used int, err error) {
	label, s := show(f.label), last(f.path)
	switch {
	case f.what == negate && f.bound:
		return "", 0, p.wrong("%s takes no value; write %s=false or %s=true", label, p.called(f.path), p.called(f.path))
	case f.what == negate:
		return "false", 0, nil
	case f.bound:
		return f.value, 0, nil
	case f.what == assign && s.only(boolean):
		if len(after) > 0 && (after[0] == "true" || after[0] == "false" || after[0] == "null" && s.kinds&null != 0) {
			return after[0], 1, nil
		}
		return "true", 0, nil
	case len(after) == 0 || after[0] == "--":
		return "", 0, p.wrong("%s needs %s", label, s.kinds)
	}
	// A flag that lacks its value must not consume the next flag.
	if text = after[0]; strings.HasPrefix(text, "-") && text != "-" {
		if next, err := p.resolve(text); err != nil || next.what != unknown {
			return "", 0, p.wrong("%s needs a value, and %s is a flag; if it is the value, write %s=%s", label, show(next.label), label, show(text))
		}
	}
	return text, 1, nil
}

// resolve interprets an argument that begins with a dash. Names in the schema take precedence over --json, --help and
// --no-NAME.
func (p *parser) resolve(arg string) (flag, error) {
	f := flag{}
	f.label, f.value, f.bound = strings.Cut(arg, "=")
	name := undashed(f.label)
	path, err := p.listed(f.label, name)
	if err != nil {
		return f, err
	}
	of, negated := strings.CutPrefix(name, "no-")
	switch {
	case path != nil:
		f.what, f.path = assign, path
	case name == "json":
		f.what = payload
	case name == "help", f.label == "-h":
		f.what = help
	case negated:
		path, err := p.listed(f.label, of)
		if err != nil {
			return f, err
		}
		if path == nil {
			break
		}
		if last(path).kinds&boolean == 0 || last(path).kinds == anything {
			return f, p.wrong("%s would make a boolean false, and %s is not one", show(f.label), p.called(path))
		}
		f.what, f.path = negate, path
	}
	return f, nil
}

// listed returns the path to the property that name refers to, with dots for nested objects. It returns nil if the
// schema lists no such property; inside a listed object, any name that the object admits will do.
func (p *parser) listed(label, name string) ([]step, error) {
	var path []step
	for s := p.top; len(path) < maxLevels; {
		found, several := s.find(name)
		inner, dotted := "", false
		if found == nil && several == nil {
			var outer string
			if outer, inner, dotted = strings.Cut(name, "."); dotted {
				found, several = s.find(outer)
			}
		}
		switch {
		case several != nil:
			return nil, p.wrong("%s can be %s; write the name as it is there", show(label), list(several, show, " or "))
		case found == nil, dotted && !p.schema(found.value).inside():
			if len(path) == 0 || name == "" || !s.unlisted() {
				return nil, nil
			}
			return append(path, step{name, p.schema(s.rest)}), nil
		}
		s = p.schema(found.value)
		path = append(path, step{found.name, s})
		if !dotted {
			return path, nil
		}
		name = inner
	}
	return nil, p.wrong("%s has more than %d dots; give an outer one as JSON", show(label), maxLevels-1)
}

// unlistedPath returns the path to a name that the schema does not list. It returns nil if the payload cannot have
// that name, or if it refers to a part of a listed object.
func (p *parser) unlistedPath(name string) []step {
	if name == "" || !p.top.unlisted() {
		return nil
	}
	outer, _, dotted := strings.Cut(name, ".")
	if found, _ := p.top.find(outer); dotted && found != nil && p.schema(found.value).inside() {
		return nil
	}
	return []step{{name, p.schema(p.top.rest)}}
}

// assignment handles name=value without dashes. An argument with = in it that does not begin with a name is text.
func (p *parser) assignment(arg string) (taken bool, err error) {
	name, value, ok := strings.Cut(arg, "=")
	if !ok {
		return false, nil
	}
	path, err := p.listed(name, name)
	if err != nil {
		return false, err
	}
	if path == nil {
		if !plain(name) {
			return false, nil
		}
		if path = p.unlistedPath(name); path == nil {
			return false, p.unknown(name, name)
		}
	}
	return true, p.give(path, &given{label: show(name), text: value})
}

// give records a value of the property at the end of path.
func (p *parser) give(path []step, g *given) error {
	if err := p.reads(g); err != nil {
		return err
	}
	at := p.payload
	for i, s := range path {
		f := at.field(s.name, s.schema)
		if i < len(path)-1 {
			if f.given != nil {
				return p.wrong("%s gives a part of what %s gives whole; write one of the two", g.label, f.given[0].label)
			}
			if f.inner == nil {
				f.inner = &fields{}
			}
			at = f.inner
			continue
		}
		switch {
		case f.inner != nil:
			return p.wrong("%s gives whole what other flags give a part of; write one of the two", g.label)
		case f.given != nil && !f.schema.takes(array):
			return p.wrong("%s is given twice, and takes one value", g.label)
		}
		f.given = append(f.given, g)
	}
	return nil
}

// reads records that g is to be read from standard input, if it is.
func (p *parser) reads(g *given) error {
	if g.text != "-" {
		return nil
	}
	if p.asks != nil {
		return p.wrong("%s and %s both read standard input, which only one can", p.asks.label, g.label)
	}
	g.stdin, g.ahead = true, true
	p.asks = g
	return nil
}

// place finds the property for an argument without a flag.
func (p *parser) place() error {
	if p.whole != nil {
		if len(p.payload.list) > 0 || len(p.loose) > 0 {
			return p.wrong("%s is the whole payload; write nothing beside it", p.whole.label)
		}
		return nil
	}
	if len(p.loose) == 0 {
		return nil
	}
	open := p.open(p.payload)
	if len(open) == 1 && len(p.loose) == 1 {
		return p.give(open, &given{label: p.called(open), text: p.loose[0]})
	}
	flags := p.flags(p.top, nil)
	next := "the flags are " + list(flags, show, ", ")
	switch {
	case len(flags) == 0:
		next = "it takes no flags"
	case len(open) == 1:
		next = "only one can be left without its flag, that of " + p.called(open)
	}
	if len(p.loose) > 1 {
		return p.wrong("%d arguments have no flag, the first is %s; %s", len(p.loose), quoted(p.loose[0]), next)
	}
	return p.wrong("the argument %s has no flag; %s", quoted(p.loose[0]), next)
}

// open lists the required texts that given does not have. If there is exactly
// one, it can be given without its flag.
func (p *parser) open(given *fields) []step {
	var open []step
	for _, pr := range p.top.properties {
		if !p.top.requires[pr.name] || given.index[pr.name] != nil {
			continue
		}
		if s := p.schema(pr.value); s.takes(text) {
			open = append(open, step{pr.name, s})
		}
	}
	return open
}

// readStdin reads the value that was requested from standard input.
func (p *parser) readStdin() error {
	if p.stdin == nil {
		return p.wrong("%s is to be read from standard input, and there is none", p.asks.label)
	}
	b, err := io.ReadAll(io.LimitReader(p.stdin, p.limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("read standard input for %s: %w", p.asks.label, err)
	case int64(len(b)) > p.limit:
		return p.wrong("standard input, for %s, has over %d bytes; give less", p.asks.label, p.limit)
	case !utf8.Valid(b):
		return p.wrong("standard input, for %s, is not UTF-8 text", p.asks.label)
	}
	p.asks.text, p.asks.ahead = string(b), false
	return nil
}

// unknown returns the error for a flag or name that is not in the schema.
func (p *parser) unknown(label, name string) error {
	what := "flag"
	if !strings.HasPrefix(label, "-") {
		what = "name"
	}
	s, path := p.top, []step(nil)
	last := name
	for {
		head, tail, dotted := strings.Cut(last, ".")
		found, _ := s.find(head)
		if !dotted || found == nil || !p.schema(found.value).inside() || len(path) == maxLevels {
			break
		}
		s, last = p.schema(found.value), tail
		path = append(path, step{found.name, s})
	}
	flags := p.flags(s, path)
	known := make([]string, len(flags))
	for i, f := range flags {
		known[i] = undashed(f)
	}
	outer := ""
	if path != nil {
		outer = undashed(p.flagOf(path)) + "."
	}
	near := strictjson.Nearest(outer+last, known)
	if of, negated := strings.CutPrefix(name, "no-"); near == "" && negated && what == "flag" {
		if near = strictjson.Nearest(of, known); near != "" {
			near = "no-" + near
		}
	}
	if near == "" && path == nil && what == "flag" {
		near = strictjson.Nearest(last, []string{"json", "help"})
	}
	switch {
	case near != "" && what == "name":
		return p.wrong("unknown name %s; did you mean %s?", show(label), show(near))
	case near != "":
		return p.wrong("unknown flag %s; did you mean %s?", show(label), show(dashed(near)))
	case len(flags) == 0:
		return p.wrong("unknown %s %s; there are none here", what, show(label))
	}
	return p.wrong("unknown %s %s; the flags are %s", what, show(label), list(flags, show, ", "))
}

// flags lists the flags of the properties of s, which is at the end of path.
func (p *parser) flags(s *schema, path []step) []string {
	var flags []string
	for _, pr := range s.properties {
		if f := p.flagOf(append(path[:len(path):len(path)], step{pr.name, nil})); f != "" {
			flags = append(flags, f)
		}
	}
	return flags
}

// flagOf returns the flag for the property at the end of path, in kebab-case if that is unambiguous, or "" if no flag
// can name it.
func (p *parser) flagOf(path []step) string {
	var b strings.Builder
	s := p.top
	for i, at := range path {
		name := kebab(at.name)
		if f, _ := s.find(name); name == "" || f == nil || f.name != at.name {
			name = at.name
		}
		if name == "" || strings.Contains(name, "=") || i < len(path)-1 && strings.Contains(name, ".") {
			return ""
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(name)
		s = at.schema
	}
	return dashed(b.String())
}

// called returns flagOf for a message, or the name if no flag can name it.
func (p *parser) called(path []step) string {
	if f := p.flagOf(path); f != "" {
		return show(f)
	}
	return quoted(path[len(path)-1].name)
}

// undashed returns the name in a flag.
func undashed(flag string) string {
	return strings.TrimPrefix(strings.TrimPrefix(flag, "-"), "-")
}

// dashed returns the flag for a name.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// wrong returns an error in the command line that says what to do next.
func (p *parser) wrong(format string, args ...any) error {
	next := "see the schema that toolctl tools " + p.tool.Name + " --json shows"
	if asks := p.asksHelp(); asks != nil {
		next = "run " + p.tool.Name + " " + asks[0]
	}
	return fault.Errorf(fault.InvalidPayload, format+"; %s", append(args, next)...)
}

// asksHelp lists the flags that print the usage: those that are not properties.
func (p *parser) asksHelp() (flags []string) {
	for _, ask := range []string{"--help", "-h"} {
		if f, several := p.top.find(undashed(ask)); f == nil && several == nil {
			flags = append(flags, ask)
		}
	}
	return flags
}

// isNumber reports whether s is a number, such as -5, which looks like a flag.
func isNumber(s string) bool {
	return strictjson.Check([]byte(s)) == nil && kindOf([]byte(s))&number != 0
}

// last returns the schema of the property at the end of path. For an empty path, it is that of the payload.
func last(path []step) *schema {
	if len(path) == 0 {
		return &schema{kinds: object}
	}
	return path[len(path)-1].schema
}

// plain reports whether s looks like a name and can go into a message as it is.
func plain(s string) bool {
	for i, c := range s {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c >= utf8.RuneSelf && unicode.IsLetter(c)
		if !letter && (i == 0 || c != '-' && c != '.' && (c < '0' || c > '9')) {
			return false
		}
	}
	return s != "" && len(s) <= 80
}

// show returns a flag or a name for a message, quoted unless it looks like one.
func show(s string) string {
	if plain(undashed(s)) {
		return s
	}
	return quoted(s)
}

// quoted returns a text for a message in quotes, or its beginning.
func quoted(s string) string {
	return fmt.Sprintf("%q", cut(s, 160))
}

// cut returns the beginning of a text, which may be arbitrarily long.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// list joins texts for a message, only the first ones if there are many.
func list(texts []string, as func(string) string, separator string) string {
	var b strings.Builder
	for i, s := range texts {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(texts)-i)
			break
		}
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(as(s))
	}
	return b.String()
}
