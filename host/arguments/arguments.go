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
	"io"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/strictjson"
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
	c, err := newCommand(t.Name, t.Description, t.Schema)
	if err != nil {
		return nil, err
	}
	p := &parser{input: input{command: c, stdin: stdin, limit: limit, payload: &fields{}}}
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
	input
	loose []string // arguments without a flag
	help  bool
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

// isNumber reports whether s is a number, such as -5, which looks like a flag.
func isNumber(s string) bool {
	return strictjson.Check([]byte(s)) == nil && kindOf([]byte(s))&number != 0
}
