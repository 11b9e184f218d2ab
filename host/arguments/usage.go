package arguments

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits on a usage text: it is sent in one frame, and schemas may refer to themselves.
const (
	width        = 80 // of a line, in characters
	column       = 28 // where the texts of flags begin
	maxUsage     = 32 << 10
	maxFlags     = 256
	maxUsageDots = 2
	maxText      = 4096 // bytes of a description
)

// usage returns the text of --help: the command line, the description, and each flag, required ones first, otherwise
// in schema order.
func (c *command) usage() string {
	var b strings.Builder
	rows := c.rows(c.top, nil, nil)
	lead, optional := "usage: "+c.name, false
	for _, r := range rows {
		if r.must && r.level == 1 {
			lead += " " + r.flag
		} else {
			optional = true
		}
	}
	if optional || c.top.unlisted() {
		lead += " [--flag VALUE]..."
	}
	if utf8.RuneCountInString(lead) > width {
		lead = "usage: " + c.name + " --flag VALUE..."
	}
	b.WriteString(lead + "\n")
	about := c.description
	if about == "" {
		about = c.top.about
	}
	if about = clean(about, maxText); about != "" {
		b.WriteByte('\n')
		wrap(&b, 0, 0, about)
	}
	b.WriteByte('\n')

	var end strings.Builder
	if f, _ := c.top.find("json"); f == nil {
		line(&end, "--json OBJECT", "the whole payload, without other flags")
	}
	line(&end, strings.Join(c.asksHelp(), ", "), "this text")
	end.WriteByte('\n')
	if slices.ContainsFunc(rows, func(r row) bool { return r.schema.only(boolean) }) {
		wrap(&end, 0, 0, "--no-NAME makes a flag without a value false.")
	}
	if slices.ContainsFunc(rows, func(r row) bool { return r.schema.takes(array) }) {
		wrap(&end, 0, 0, "A flag with ... can be repeated, or takes a JSON array.")
	}
	if open := c.open(&fields{}); len(open) == 1 {
		wrap(&end, 0, 0, "One argument without a flag is "+c.called(open)+".")
	}
	wrap(&end, 0, 0, "A value of - is read from standard input; one flag can have it.")

	if c.top.unlisted() {
		line(&b, "--NAME "+c.shape(c.schema(c.top.rest)), "any other name")
	}
	for i, r := range rows {
		var row strings.Builder
		line(&row, r.flag, r.text)
		if b.Len()+row.Len()+end.Len() > maxUsage || i == maxFlags {
			wrap(&b, 2, 2, "and more, which the schema has")
			break
		}
		b.WriteString(row.String())
	}
	return b.String() + end.String()
}

// row is a property in the usage.
type row struct {
	flag, text string
	schema     *schema
	must       bool
	level      int // depth of the property; 1 is one of the payload itself
}

// rows lists the properties of s, which is at the end of path, and those nested in them. above are the schemas that
// contain s: a schema that contains itself is shown once.
func (c *command) rows(s *schema, path []step, above []*schema) []row {
	above = append(above[:len(above):len(above)], s)
	var must, may []row
	for _, pr := range s.properties {
		if len(must)+len(may) > maxFlags {
			break
		}
		of := c.schema(pr.value)
		at := append(path[:len(path):len(path)], step{pr.name, of})
		r := row{schema: of, must: s.requires[pr.name], level: len(at)}
		if r.flag = c.flagOf(at); r.flag == "" {
			r.flag = quoted(pr.name) + ", in --json only"
		} else {
			r.flag = show(r.flag)
		}
		if !of.only(boolean) {
			r.flag += " " + c.shape(of)
		}
		if of.takes(array) {
			r.flag += "..."
		}
		r.text = describe(of, r.must, path)
		list := []row{r}
		if of.inside() && len(at) <= maxUsageDots && !slices.Contains(above, of) {
			list = append(list, c.rows(of, at, above)...)
			if f := c.flagOf(at); f != "" && of.unlisted() {
				rest := c.schema(of.rest)
				list = append(list, row{flag: show(f) + ".NAME " + c.shape(rest), schema: rest, level: len(at) + 1})
			}
		}
		if r.must {
			must = append(must, list...)
		} else {
			may = append(may, list...)
		}
	}
	return append(must, may...)
}

// shape returns the names of the types of s, for an array those of its elements.
func (c *command) shape(s *schema) string {
	k := s.kinds
	if s.takes(array) && s.items != nil {
		k = k&^array | c.schema(s.items).kinds
	}
	if k == anything {
		return "VALUE"
	}
	return strings.ToUpper(strings.Join(k.names(), "|"))
}

// describe returns the description of a property apart from its type.
func describe(s *schema, must bool, path []step) string {
	var parts []string
	switch {
	case must && len(path) > 0:
		parts = append(parts, "required with "+path[len(path)-1].name)
	case must:
		parts = append(parts, "required")
	}
	if s.enum != nil {
		values := s.enum.display(maxText / 2)
		parts = append(parts, clean("one of "+strings.Join(values, ", "), maxText))
	}
	if s.preset != nil {
		parts = append(parts, clean("default "+s.preset.display(), maxText/2))
	}
	text, about := strings.Join(parts, "; "), clean(s.about, maxText)
	if text != "" && about != "" {
		text += ". "
	}
	return text + about
}

// line writes a flag with its text next to it, or below it if the flag is long.
func line(b *strings.Builder, flag, text string) {
	b.WriteString("  " + flag)
	n := 2 + utf8.RuneCountInString(flag)
	if text == "" {
		b.WriteByte('\n')
		return
	}
	if n > column-2 {
		b.WriteByte('\n')
		n = 0
	}
	wrap(b, n, column, text)
}

// wrap writes text in lines of width characters, indented by indent. The first line continues after n characters that
// are already written.
func wrap(b *strings.Builder, n, indent int, text string) {
	fresh := true // the line has no text yet
	if n < indent {
		b.WriteString(strings.Repeat(" ", indent-n))
		n = indent
	}
	for _, word := range strings.Fields(text) {
		size := utf8.RuneCountInString(word)
		if !fresh && n+1+size > width {
			b.WriteString("\n" + strings.Repeat(" ", indent))
			n, fresh = indent, true
		}
		if !fresh {
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n, fresh = n+size, false
	}
	b.WriteByte('\n')
}
