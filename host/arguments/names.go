package arguments

import (
	"strings"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// maxLevels is how many levels a dotted name can have.
const maxLevels = 32

// command is a tool as its command line: what names refer to in its schema.
type command struct {
	name, description string
	*document
	top *schema
}

// newCommand reads the schema of t.
func newCommand(name, description string, data []byte) (*command, error) {
	doc, top, err := newDocument(data)
	if err != nil {
		return nil, err
	}
	return &command{name: name, description: description, document: doc, top: top}, nil
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

// last returns the schema of the property at the end of path. For an empty path, it is that of the payload.
func last(path []step) *schema {
	if len(path) == 0 {
		return &schema{kinds: object}
	}
	return path[len(path)-1].schema
}

// resolve interprets an argument that begins with a dash. Names in the schema take precedence over --json, --help and
// --no-NAME.
func (c *command) resolve(arg string) (flag, error) {
	f := flag{}
	f.label, f.value, f.bound = strings.Cut(arg, "=")
	name := undashed(f.label)
	path, err := c.listed(f.label, name)
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
		path, err := c.listed(f.label, of)
		if err != nil {
			return f, err
		}
		if path == nil {
			break
		}
		if last(path).kinds&boolean == 0 || last(path).kinds == anything {
			return f, c.wrong("%s would make a boolean false, and %s is not one", show(f.label), c.called(path))
		}
		f.what, f.path = negate, path
	}
	return f, nil
}

// listed returns the path to the property that name refers to, with dots for nested objects. It returns nil if the
// schema lists no such property; inside a listed object, any name that the object admits will do.
func (c *command) listed(label, name string) ([]step, error) {
	var path []step
	for s := c.top; len(path) < maxLevels; {
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
			return nil, c.wrong("%s can be %s; write the name as it is there", show(label), list(several, show, " or "))
		case found == nil, dotted && !c.schema(found.value).inside():
			if len(path) == 0 || name == "" || !s.unlisted() {
				return nil, nil
			}
			return append(path, step{name, c.schema(s.rest)}), nil
		}
		s = c.schema(found.value)
		path = append(path, step{found.name, s})
		if !dotted {
			return path, nil
		}
		name = inner
	}
	return nil, c.wrong("%s has more than %d dots; give an outer one as JSON", show(label), maxLevels-1)
}

// unlistedPath returns the path to a name that the schema does not list. It returns nil if the payload cannot have
// that name, or if it refers to a part of a listed object.
func (c *command) unlistedPath(name string) []step {
	if name == "" || !c.top.unlisted() {
		return nil
	}
	outer, _, dotted := strings.Cut(name, ".")
	if found, _ := c.top.find(outer); dotted && found != nil && c.schema(found.value).inside() {
		return nil
	}
	return []step{{name, c.schema(c.top.rest)}}
}

// unknown returns the error for a flag or name that is not in the schema.
func (c *command) unknown(label, name string) error {
	what := "flag"
	if !strings.HasPrefix(label, "-") {
		what = "name"
	}
	s, path := c.top, []step(nil)
	last := name
	for {
		head, tail, dotted := strings.Cut(last, ".")
		found, _ := s.find(head)
		if !dotted || found == nil || !c.schema(found.value).inside() || len(path) == maxLevels {
			break
		}
		s, last = c.schema(found.value), tail
		path = append(path, step{found.name, s})
	}
	flags := c.flags(s, path)
	known := make([]string, len(flags))
	for i, f := range flags {
		known[i] = undashed(f)
	}
	outer := ""
	if path != nil {
		outer = undashed(c.flagOf(path)) + "."
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
		return c.wrong("unknown name %s; did you mean %s?", show(label), show(near))
	case near != "":
		return c.wrong("unknown flag %s; did you mean %s?", show(label), show(dashed(near)))
	case len(flags) == 0:
		return c.wrong("unknown %s %s; there are none here", what, show(label))
	}
	return c.wrong("unknown %s %s; the flags are %s", what, show(label), list(flags, show, ", "))
}

// flags lists the flags of the properties of s, which is at the end of path.
func (c *command) flags(s *schema, path []step) []string {
	var flags []string
	for _, pr := range s.properties {
		if f := c.flagOf(append(path[:len(path):len(path)], step{pr.name, nil})); f != "" {
			flags = append(flags, f)
		}
	}
	return flags
}

// flagOf returns the flag for the property at the end of path, in kebab-case if that is unambiguous, or "" if no flag
// can name it.
func (c *command) flagOf(path []step) string {
	var b strings.Builder
	s := c.top
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
func (c *command) called(path []step) string {
	if f := c.flagOf(path); f != "" {
		return show(f)
	}
	return quoted(path[len(path)-1].name)
}

// wrong returns an error in the command line that says what to do next.
func (c *command) wrong(format string, args ...any) error {
	next := "see the schema that toolctl tools " + c.name + " --json shows"
	if asks := c.asksHelp(); asks != nil {
		next = "run " + c.name + " " + asks[0]
	}
	return fault.Errorf(fault.InvalidPayload, format+"; %s", append(args, next)...)
}

// asksHelp lists the flags that print the usage: those that are not properties.
func (c *command) asksHelp() (flags []string) {
	for _, ask := range []string{"--help", "-h"} {
		if f, several := c.top.find(undashed(ask)); f == nil && several == nil {
			flags = append(flags, ask)
		}
	}
	return flags
}
