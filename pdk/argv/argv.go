// Package argv reads a command line by a grammar, so that a policy can allow
// what it understands instead of forbidding what it fears.
//
// A [Grammar] lists the flags of one command, each with the type of its
// value, and the [Style] in which the program reads its command line. Parse
// answers a [Line]: the flags and operands, in order, each flag in its
// canonical spelling and each value checked and possibly rewritten. What the
// grammar does not know is a [Refusal] that names the argument. There is no
// third outcome, and Parse never panics, whatever the arguments are.
//
// A policy then runs the line as it was understood, written anew with
// [Line.Flags], [Line.Operands] or [Line.Args], and never the arguments as they
// came. So it does not matter whether the program would have read them in
// another way: a value that looks like a flag is joined to its own flag where
// the program can read it so, flags come first, and "--" ends them.
//
// What is promised of a line that Parse returned:
//
//   - every flag in it is one of the grammar's, in a spelling of the grammar,
//     and none has Refuse set;
//   - every value passed its flag's Value;
//   - no argument holds a NUL byte;
//   - parsing the rewritten line again gives the same line.
//
// Abbreviations, which many programs accept, are refused: what "--up" means
// depends on the version of the program.
//
// The package imports the standard library only, keeps no state and builds
// for wasip1. A Grammar is not changed by Parse and may be shared.
package argv

import (
	"slices"
	"strings"
)

// Style is how one program reads its command line. The zero Style is that of
// a getopt_long program: --name value, --name=value, -n value, -nvalue, -abc.
type Style struct {
	// NoEquals: "--name=value" is not read as a value (curl). Values are then
	// written as an argument of their own, which such programs take whatever
	// it looks like.
	NoEquals bool
	// ShortEquals: "-n=value" gives n the value "value", not "=value", and is
	// the one way to give a short flag an optional value (Go's pflag).
	ShortEquals bool
	// NoCluster: "-abc" is neither "-a -b -c" nor "-a" with the value "bc"
	// (npm).
	NoCluster bool
	// OperandsEndFlags: what follows the first operand is an operand too.
	OperandsEndFlags bool
	// NoDashes: the program does not read "--" as the end of the flags. One
	// that is given is refused, and so is an operand that begins with "-".
	NoDashes bool
	// Numbers: "-5" is read as the flag "-NUM" with the value "5" (git log).
	// The grammar must have a flag of that name.
	Numbers bool
	// EndOfFlags is an argument that ends the flags and means nothing else
	// (git's "--end-of-options"); "" is none. Operands behind it that begin with
	// "-" are refused, and so it is left out of the line.
	EndOfFlags string
}

// Number is the name of the flag that "-5" is read as under Style.Numbers.
const Number = "-NUM"

// Flag is one flag of a grammar.
type Flag struct {
	// Names are its spellings, separated by spaces: "-o --output". The last
	// one is the canonical one, in which the line is written.
	Names string
	// Value checks the flag's value. Nil is a flag that takes none.
	Value Value
	// Optional: the value may be left out, and when it is given it is joined
	// ("--color=always", "-M90").
	Optional bool
	// Negatable: "--no-NAME" is understood too, without a value. It is not
	// told apart by its canonical spelling but by Item.Negated.
	Negatable bool
	// Once: giving the flag twice is refused.
	Once bool
	// Refuse makes a flag known and refused: it says why. Instead says what
	// to do instead. A refused flag needs no Value.
	Refuse  string
	Instead string
}

// Canonical is the spelling in which the flag is written.
func (f *Flag) Canonical() string {
	names := strings.Fields(f.Names)
	if len(names) == 0 {
		return ""
	}
	return names[len(names)-1]
}

// Grammar is what one command understands. Make it with New.
type Grammar struct {
	style  Style
	byName map[string]*Flag
	order  []*Flag
}

// New makes a grammar. Several lists of flags may be given, so that commands
// can share some. It panics when two flags share a spelling or a spelling is
// not one: a fault of the program, not of its input.
func New(style Style, flags ...[]Flag) *Grammar {
	g := &Grammar{style: style, byName: make(map[string]*Flag)}
	for _, list := range flags {
		for i := range list {
			f := &list[i]
			names := strings.Fields(f.Names)
			if len(names) == 0 {
				panic("argv: a flag without a name")
			}
			for _, name := range names {
				if len(name) < 2 || name[0] != '-' || name == "--" || strings.ContainsRune(name, '=') {
					panic("argv: " + name + " is not a flag")
				}
				if g.byName[name] != nil {
					panic("argv: " + name + " is given twice")
				}
				g.byName[name] = f
			}
			g.order = append(g.order, f)
		}
	}
	return g
}

// Lookup is the flag of that spelling, or nil.
func (g *Grammar) Lookup(name string) *Flag { return g.byName[name] }

// All is every flag of the grammar, in the order given. It must not be
// changed.
func (g *Grammar) All() []*Flag { return g.order }

// Item is one flag or operand of a line.
type Item struct {
	// Flag is nil for an operand.
	Flag *Flag
	// Name is the flag's canonical spelling ("--output"), and "" for an
	// operand. A negated flag has the name of the flag itself.
	Name    string
	Negated bool
	// Value is the flag's value as its type left it, or the operand.
	Value string
	// HasValue distinguishes "--color=" from "--color".
	HasValue bool
	// Dashed: an operand that came after "--".
	Dashed bool
}

// Line is a command line that was understood.
type Line struct {
	Items []Item
	// Dashes: the caller wrote "--". For some programs it means more than the
	// end of the flags (git: what follows is a path).
	Dashes bool
	style  Style
}

// Parse reads args. The error is a *Refusal.
func (g *Grammar) Parse(args []string, in Scope) (*Line, error) {
	p := parser{g: g, args: args, in: in, line: &Line{style: g.style}}
	if err := p.run(); err != nil {
		return nil, err
	}
	return p.line, nil
}

type parser struct {
	g    *Grammar
	args []string
	in   Scope
	line *Line
}

func (p *parser) next() (string, bool) {
	if len(p.args) == 0 {
		return "", false
	}
	a := p.args[0]
	p.args = p.args[1:]
	return a, true
}

// run returns error rather than *Refusal so that a nil one is nil.
func (p *parser) run() error {
	for _, a := range p.args {
		if strings.IndexByte(a, 0) >= 0 {
			return &Refusal{Rule: "arg.nul", Arg: a, Reason: "an argument holds a NUL byte"}
		}
	}
	for {
		a, ok := p.next()
		if !ok {
			return nil
		}
		var r *Refusal
		switch {
		case a == "--" && p.g.style.NoDashes:
			r = &Refusal{Rule: "arg.dashes", Arg: a, Reason: `"--" has no meaning to this program`, Instead: "leave it out"}
		case a == "--":
			p.line.Dashes = true
			for _, rest := range p.args {
				p.line.Items = append(p.line.Items, Item{Value: rest, Dashed: true})
			}
			p.args = nil
		case a == p.g.style.EndOfFlags && p.g.byName[a] == nil:
			for _, rest := range p.args {
				if rest == "--" {
					break
				}
				if len(rest) > 1 && rest[0] == '-' {
					return &Refusal{Rule: "arg.dash", Arg: rest, Reason: Quote(rest) + " comes after " + a + " and looks like a flag", Instead: "put flags first"}
				}
			}
		case strings.HasPrefix(a, "--"):
			r = p.long(a)
		case len(a) > 1 && a[0] == '-':
			r = p.short(a)
		default:
			p.line.Items = append(p.line.Items, Item{Value: a})
			if p.g.style.OperandsEndFlags {
				for _, rest := range p.args {
					if p.g.style.NoDashes && strings.HasPrefix(rest, "-") {
						return &Refusal{Rule: "arg.dash", Arg: rest, Reason: Quote(rest) + " comes after an operand and looks like a flag", Instead: "put flags first"}
					}
					p.line.Items = append(p.line.Items, Item{Value: rest})
				}
				p.args = nil
			}
		}
		if r != nil {
			return r
		}
	}
}

func (p *parser) long(a string) *Refusal {
	name, value, joined := a, "", false
	if !p.g.style.NoEquals {
		name, value, joined = strings.Cut(a, "=")
	}
	if f := p.g.byName[name]; f != nil {
		return p.flag(f, name, value, joined)
	}
	if rest, ok := strings.CutPrefix(name, "--no-"); ok {
		if f := p.g.byName["--"+rest]; f != nil && f.Negatable {
			if joined {
				return &Refusal{Rule: "flag.value", Arg: name, Reason: "flag " + Quote(name) + " takes no value", Instead: "write " + name}
			}
			if f.Refuse != "" {
				return refused(f, name)
			}
			return p.add(Item{Flag: f, Name: f.Canonical(), Negated: true}, name)
		}
	}
	return p.unknown(name)
}

func (p *parser) short(a string) *Refusal {
	// A whole argument may be the name of a flag: "-4", or "-NUM" which is
	// not something that a caller can write.
	if f := p.g.byName[a]; f != nil && a != Number {
		return p.flag(f, a, "", false)
	}
	if p.g.style.Numbers && isDigits(a[1:]) {
		if f := p.g.byName[Number]; f != nil {
			return p.flag(f, a, a[1:], true)
		}
	}
	if p.g.style.NoCluster && len(a) > 2 && !(p.g.style.ShortEquals && a[2] == '=') {
		return p.unknown(a)
	}
	for rest := a[1:]; rest != ""; {
		// Names are ASCII; a byte of a longer rune finds nothing.
		name := "-" + rest[:1]
		rest = rest[1:]
		f := p.g.byName[name]
		if f == nil {
			if len(a) > 2 {
				return p.unknownIn(name, a)
			}
			return p.unknown(name)
		}
		if f.Refuse != "" {
			return refused(f, name)
		}
		if p.g.style.ShortEquals && strings.HasPrefix(rest, "=") {
			if len(rest) == 1 {
				return &Refusal{Rule: "flag.value", Arg: name, Reason: Quote(a) + " can be read in two ways", Instead: "write the value as an argument of its own"}
			}
			return p.flag(f, name, rest[1:], true)
		}
		if f.Value != nil && !(f.Optional && p.g.style.ShortEquals) {
			return p.flag(f, name, rest, rest != "")
		}
		if r := p.flag(f, name, "", false); r != nil {
			return r
		}
	}
	return nil
}

// flag parses one flag of the grammar, and its value.
func (p *parser) flag(f *Flag, name, value string, joined bool) *Refusal {
	if f.Refuse != "" {
		return refused(f, name)
	}
	it := Item{Flag: f, Name: f.Canonical()}
	switch {
	case f.Value == nil:
		if joined {
			return &Refusal{Rule: "flag.value", Arg: name, Reason: "flag " + Quote(name) + " takes no value", Instead: "write " + name}
		}
		return p.add(it, name)
	case joined:
	case f.Optional:
		return p.add(it, name)
	default:
		v, ok := p.next()
		if !ok {
			return &Refusal{Rule: "flag.value", Arg: name, Reason: "flag " + Quote(name) + " needs a value", Instead: "give one"}
		}
		value = v
	}
	v, err := f.Value(value, p.in)
	if err != nil {
		r := &Refusal{Rule: "flag.value", Arg: name, Reason: "flag " + Quote(name) + ": " + err.Error()}
		if inner, ok := err.(*Refusal); ok {
			r.Rule, r.Reason, r.Instead = inner.Rule, "flag "+Quote(name)+": "+inner.Reason, inner.Instead
		}
		return r
	}
	it.Value, it.HasValue = v, true
	return p.add(it, name)
}

func (p *parser) add(it Item, name string) *Refusal {
	if it.Flag.Once && slices.ContainsFunc(p.line.Items, func(o Item) bool { return o.Flag == it.Flag }) {
		return &Refusal{Rule: "flag.twice", Arg: name, Reason: "flag " + Quote(name) + " is given twice", Instead: "give it once"}
	}
	p.line.Items = append(p.line.Items, it)
	return nil
}

func refused(f *Flag, name string) *Refusal {
	return &Refusal{Rule: "flag.refused", Arg: name, Reason: "flag " + Quote(name) + " " + f.Refuse, Instead: f.Instead}
}

func (p *parser) unknown(name string) *Refusal {
	if full := p.completions(name); len(full) > 0 {
		return &Refusal{Rule: "flag.abbreviated", Arg: name,
			Reason:  "flag " + Quote(name) + " is not one that this policy knows, and abbreviations are refused",
			Instead: "write the flag in full: " + strings.Join(full, " or ")}
	}
	return &Refusal{Rule: "flag.unknown", Arg: name, Reason: "flag " + Quote(name) + " is not one that this policy knows", Instead: "leave it out"}
}

func (p *parser) unknownIn(name, cluster string) *Refusal {
	return &Refusal{Rule: "flag.unknown", Arg: name, Reason: "flag " + Quote(name) + " in " + Quote(cluster) + " is not one that this policy knows", Instead: "leave it out"}
}

// completions are the long flags that name may be short for, at most three.
func (p *parser) completions(name string) []string {
	if len(name) < 4 || !strings.HasPrefix(name, "--") {
		return nil
	}
	var out []string
	for _, f := range p.g.order {
		for n := range strings.FieldsSeq(f.Names) {
			if strings.HasPrefix(n, name) && f.Refuse == "" && len(out) < 3 {
				out = append(out, n)
			}
		}
	}
	return out
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// Has reports whether the flag of that canonical name is in the line and was
// not negated by a later one.
func (l *Line) Has(name string) bool {
	it := l.last(name)
	return it != nil && !it.Negated
}

// Get is the value of the last flag of that canonical name.
func (l *Line) Get(name string) (string, bool) {
	it := l.last(name)
	if it == nil || !it.HasValue {
		return "", false
	}
	return it.Value, true
}

// Values are the values of all flags of that canonical name, in order.
func (l *Line) Values(name string) []string {
	var out []string
	for i := range l.Items {
		if l.Items[i].Name == name && l.Items[i].HasValue {
			out = append(out, l.Items[i].Value)
		}
	}
	return out
}

func (l *Line) last(name string) *Item {
	for i := len(l.Items) - 1; i >= 0; i-- {
		if l.Items[i].Flag != nil && l.Items[i].Name == name {
			return &l.Items[i]
		}
	}
	return nil
}

// Operands are the arguments that are neither flags nor their values.
func (l *Line) Operands() []string {
	var out []string
	for i := range l.Items {
		if l.Items[i].Flag == nil {
			out = append(out, l.Items[i].Value)
		}
	}
	return out
}

// Write is how the item is written for the program, in one or two arguments.
func (l *Line) Write(it Item) []string {
	switch {
	case it.Flag == nil:
		return []string{it.Value}
	case it.Negated:
		return []string{"--no-" + strings.TrimPrefix(it.Name, "--")}
	case !it.HasValue:
		return []string{it.Name}
	case it.Name == Number:
		return []string{"-" + it.Value}
	case strings.HasPrefix(it.Name, "--") && !l.style.NoEquals:
		return []string{it.Name + "=" + it.Value}
	case it.Flag.Optional && l.style.ShortEquals:
		return []string{it.Name + "=" + it.Value}
	case it.Flag.Optional:
		return []string{it.Name + it.Value}
	}
	// An argument of its own is the one form of a short flag that no program
	// reads in two ways, an empty value and one with "=" in front included.
	return []string{it.Name, it.Value}
}

// Flags are the flags and their values, in order, as the program takes them.
func (l *Line) Flags() []string {
	var out []string
	for _, it := range l.Items {
		if it.Flag != nil {
			out = append(out, l.Write(it)...)
		}
	}
	return out
}

// Args is the whole line as it was understood: flags, "--", operands. Without
// operands there is no "--", unless the caller wrote one.
func (l *Line) Args() []string {
	out := l.Flags()
	ops := l.Operands()
	if (len(ops) > 0 || l.Dashes) && !l.style.NoDashes {
		out = append(out, "--")
	}
	return append(out, ops...)
}
