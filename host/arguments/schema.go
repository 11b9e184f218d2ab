package arguments

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// kinds is a set of JSON types.
type kinds uint8

const (
	null kinds = 1 << iota
	boolean
	integer
	fraction // a number that is not an integer
	text
	array
	object

	number   = integer | fraction
	anything = null | boolean | number | text | array | object
)

// kindsOf maps the type names of JSON Schema to kinds.
var kindsOf = map[string]kinds{
	"null": null, "boolean": boolean, "integer": integer, "number": number,
	"string": text, "array": array, "object": object,
}

// names lists the types of k as a schema names them.
func (k kinds) names() []string {
	if k&fraction != 0 {
		k |= number
	}
	var list []string
	for _, n := range []string{"string", "number", "integer", "boolean", "array", "object", "null"} {
		if of := kindsOf[n]; k&of == of {
			list = append(list, n)
			k &^= of
		}
	}
	return list
}

// String formats k for a sentence: "an integer or null".
func (k kinds) String() string {
	if k == anything {
		return "a value"
	}
	list := k.names()
	for i, n := range list {
		switch n {
		case "null":
		case "integer", "array", "object":
			list[i] = "an " + n
		default:
			list[i] = "a " + n
		}
	}
	return strings.Join(list, " or ")
}

// kindOf returns the type of a value that is valid JSON without leading space.
func kindOf(v []byte) kinds {
	switch v[0] {
	case '{':
		return object
	case '[':
		return array
	case '"':
		return text
	case 't', 'f':
		return boolean
	case 'n':
		return null
	}
	if whole(v) {
		return integer
	}
	return fraction
}

// whole reports whether a JSON number is an integer, as 5, 5.0 and 50e-1 are. It does not compute the number, which
// can be 1e999999999.
func whole(v []byte) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(string(v), "-")), "e")
	before, after, _ := strings.Cut(mantissa, ".")
	digits := before + after
	significant := strings.TrimRight(digits, "0")
	if significant == "" {
		return true
	}
	e, err := strconv.Atoi(exponent)
	if err != nil && exponent != "" {
		return exponent[0] != '-'
	}
	return e >= len(after)-(len(digits)-len(significant))
}

// value is a part of a schema's text. Members are in text order.
type value struct {
	text     []byte
	members  []member
	elements []*value
	// root is the value that a reference starting with "#" is relative to.
	root *value
}

type member struct {
	name  string
	value *value
}

// newValue parses a text that passes strictjson.Check.
func newValue(data []byte, root *value) *value {
	v := &value{text: bytes.Clone(bytes.Trim(data, " \t\r\n")), root: root}
	if root == nil {
		v.root = v
	}
	switch v.text[0] {
	case '{':
		_ = strictjson.Members(v.text, func(name, data []byte) {
			if string(name) == "$id" && data[0] == '"' && !bytes.HasPrefix(data, []byte(`"#`)) {
				v.root = v
			}
		})
		_ = strictjson.Members(v.text, func(name, data []byte) {
			v.members = append(v.members, member{string(name), newValue(data, v.root)})
		})
	case '[':
		var list []json.RawMessage
		_ = strictjson.Unmarshal(v.text, &list)
		for _, e := range list {
			v.elements = append(v.elements, newValue(e, v.root))
		}
	}
	return v
}

// get returns the member of that name, or nil if v has none.
func (v *value) get(name string) *value {
	for _, m := range v.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// string returns the value of v if it is a string, else "".
func (v *value) string() string {
	var s string
	if v != nil && v.text[0] == '"' {
		_ = strictjson.Unmarshal(v.text, &s)
	}
	return s
}

// refer resolves a reference in v. It returns nil if it does not point into the same text.
func (v *value) refer(ref string) *value {
	pointer, local := strings.CutPrefix(ref, "#")
	pointer, err := url.PathUnescape(pointer)
	if !local || err != nil || pointer != "" && pointer[0] != '/' {
		return nil
	}
	at := v.root
	for _, step := range strings.Split(pointer, "/")[1:] {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		if i, err := strconv.Atoi(step); err == nil && 0 <= i && i < len(at.elements) {
			at = at.elements[i]
		} else if at = at.get(step); at == nil {
			return nil
		}
	}
	return at
}

// schema is the simple part of a JSON Schema: the combined types, names and values of $ref, allOf, anyOf and oneOf.
// When in doubt, it admits too much; the payload is validated against the whole schema anyway.
type schema struct {
	kinds kinds
	enum  *values // nil: any value of kinds
	// preset is the default, or nil.
	preset *value
	about  string

	properties []property
	index      map[string]int   // of properties, by name
	styles     map[string][]int // by kebab(name)
	required   []string
	requires   map[string]bool // likewise
	others

	items *value
}

// others are the properties of an object that its schema does not list. open means that they are admitted, closed that
// they are not; rest is the schema of their values. With neither set, an object that lists no names admits any.
type others struct {
	open, closed bool
	rest         *value
}

// values are the values of an enum; many schemas can refer to one.
type values struct {
	list []*value
	set  map[string]bool // their canonical form, computed on first use
}

type property struct {
	name  string
	value *value
}

// document is a schema's text, whose parts are read on demand.
type document struct {
	top *value
	// alone means that a $ref hides its siblings, as in drafts up to 7.
	alone bool
	read  map[*value]*schema
	work  int // properties and values merged from one part into another so far
}

// maxWork bounds the cost of reading a schema whose parts refer to each other many times. Once it is used up, the
// result admits too much.
const maxWork = 1 << 17

// newDocument reads the schema of a payload. An empty schema admits any object.
func newDocument(data []byte) (*document, *schema, error) {
	if len(data) == 0 {
		data = []byte("{}")
	}
	if err := strictjson.Check(data); err != nil {
		return nil, nil, fault.Errorf(fault.Internal, "read the schema of a payload: %w", err)
	}
	d := &document{top: newValue(data, nil), read: map[*value]*schema{}}
	if d.top.text[0] != '{' {
		return nil, nil, fault.Errorf(fault.Internal, "read the schema of a payload: it is not an object")
	}
	d.alone = strings.Contains(d.top.get("$schema").string(), "draft-0")
	return d, d.schema(d.top), nil
}

// schema reads v. nil, like true, admits anything.
func (d *document) schema(v *value) *schema {
	if v == nil || d.work > maxWork {
		return &schema{kinds: anything}
	}
	if s, known := d.read[v]; known {
		if s == nil { // it refers to itself, which adds nothing
			return &schema{kinds: anything}
		}
		return s
	}
	d.read[v] = nil
	s := &schema{kinds: anything}
	d.fill(s, v)
	if s.kinds == 0 {
		s.kinds = anything // it admits nothing; the validator reports that
	}
	for i, p := range s.properties {
		if k := kebab(p.name); k != "" {
			if s.styles == nil {
				s.styles = map[string][]int{}
			}
			s.styles[k] = append(s.styles[k], i)
		}
	}
	d.read[v] = s
	return s
}

// fill reads the keywords of v into s.
func (d *document) fill(s *schema, v *value) {
	s.about = v.get("description").string()
	s.preset = v.get("default")
	if ref := v.get("$ref").string(); ref != "" {
		d.both(s, d.schema(v.refer(ref)))
		if d.alone {
			return
		}
	}
	for _, m := range v.members {
		switch m.name {
		case "type":
			k := kindsOf[m.value.string()]
			for _, t := range m.value.elements {
				k |= kindsOf[t.string()]
			}
			if k != 0 {
				s.kinds &= k
			}
		case "enum":
			s.admit(&values{list: m.value.elements})
		case "const":
			s.admit(&values{list: []*value{m.value}})
		case "properties":
			for _, p := range m.value.members {
				s.add(p, "allOf")
			}
		case "required":
			for _, r := range m.value.elements {
				s.require(r.string())
			}
		case "items":
			if v.get("prefixItems") == nil && m.value.elements == nil {
				s.items = together("allOf", s.items, m.value)
			}
		case "additionalProperties", "unevaluatedProperties":
			switch patterns := v.get("patternProperties"); {
			case patterns != nil:
			case string(m.value.text) == "false":
				s.closed = true
			default:
				s.open, s.rest = true, m.value
			}
		case "patternProperties":
			s.open = true
		case "allOf":
			for _, e := range m.value.elements {
				d.both(s, d.schema(e))
			}
		case "anyOf", "oneOf":
			d.both(s, d.either(m.value.elements))
		}
	}
}

// admit restricts s to the values of enum.
func (s *schema) admit(enum *values) {
	if s.enum == nil && enum != nil && len(enum.list) > 0 {
		s.enum = enum
		var k kinds
		for _, v := range enum.list {
			k |= kindOf(v.text)
		}
		s.kinds &= k
	}
}

// add adds a property. If s already has one of that name, how ("allOf" or "anyOf") determines how they are combined.
func (s *schema) add(p member, how string) {
	if s.index == nil {
		s.index = map[string]int{}
	}
	if i, known := s.index[p.name]; known {
		s.properties[i].value = together(how, s.properties[i].value, p.value)
		return
	}
	s.index[p.name] = len(s.properties)
	s.properties = append(s.properties, property(p))
}

func (s *schema) require(name string) {
	if s.requires == nil {
		s.requires = map[string]bool{}
	}
	if !s.requires[name] {
		s.requires[name] = true
		s.required = append(s.required, name)
	}
}

// together returns the schema for both a and b (how is "allOf"), or for either ("anyOf").
func together(how string, a, b *value) *value {
	switch {
	case a == nil || a == b:
		return b
	case b == nil:
		return a
	}
	list := &value{text: []byte("[]"), elements: []*value{a, b}}
	return &value{text: []byte("{}"), members: []member{{how, list}}}
}

// display lists the values for a person, up to a total length of most.
func (e *values) display(most int) (list []string) {
	size := 0
	for _, v := range e.list {
		text := v.display()
		if size += len(text); size > most {
			return append(list, "…")
		}
		list = append(list, text)
	}
	return list
}

// display formats v for a person: a string without its quotes.
func (v *value) display() string {
	if v.text[0] == '"' {
		return v.string()
	}
	return string(v.text)
}

// both restricts s to what t admits as well.
func (d *document) both(s, t *schema) {
	if d.work += len(t.properties); d.work > maxWork {
		return
	}
	s.kinds &= t.kinds
	s.admit(t.enum)
	if s.preset == nil {
		s.preset = t.preset
	}
	if s.about == "" {
		s.about = t.about
	}
	for _, p := range t.properties {
		s.add(member(p), "allOf")
	}
	for _, r := range t.required {
		s.require(r)
	}
	s.open, s.closed = s.open || t.open, s.closed || t.closed
	s.rest = together("allOf", s.rest, t.rest)
	s.items = together("allOf", s.items, t.items)
}

// either builds the schema of a value that fits one of the alternatives.
func (d *document) either(alternatives []*value) *schema {
	u := &schema{}
	var objects, listed int
	var enum []*value
	needed := map[string]int{} // number of objects that require it
	anyItems := false
	for _, v := range alternatives {
		t := d.schema(v)
		d.work += len(t.properties)
		if t.enum != nil {
			d.work += len(t.enum.list)
		}
		if d.work > maxWork {
			return &schema{kinds: anything}
		}
		u.kinds |= t.kinds
		switch {
		case t.enum != nil:
			enum, listed = append(enum, t.enum.list...), listed+1
		case t.kinds == null:
			enum, listed = append(enum, &value{text: []byte("null")}), listed+1
		}
		if t.kinds&object != 0 {
			u.open, u.closed = u.open || t.open, t.closed && (u.closed || objects == 0)
			objects++
			u.rest = together("anyOf", u.rest, t.rest)
			for _, p := range t.properties {
				u.add(member(p), "anyOf")
			}
			for _, r := range t.required {
				needed[r]++
				u.require(r)
			}
		}
		if t.kinds&array != 0 {
			u.items = together("anyOf", u.items, t.items)
			anyItems = anyItems || t.items == nil
		}
	}
	// Only what all of them require is required.
	all := u.required
	u.required, u.requires = nil, nil
	for _, r := range all {
		if needed[r] == objects {
			u.require(r)
		}
	}
	if len(alternatives) == 0 {
		u.kinds = anything
	}
	if listed == len(alternatives) {
		u.enum = &values{list: enum}
	}
	if anyItems {
		u.items = nil
	}
	return u
}

// takes reports whether s explicitly admits one of k: a schema that admits anything does not.
func (s *schema) takes(k kinds) bool {
	return s.kinds != anything && s.kinds&k != 0
}

// only reports whether s admits nothing but k and null.
func (s *schema) only(k kinds) bool {
	return s.kinds&k != 0 && s.kinds&^(k|null) == 0
}

// admits reports whether v, which is JSON, fits the types and the enum of s.
func (s *schema) admits(v []byte) bool {
	if kindOf(v)&s.kinds == 0 {
		return false
	}
	if s.enum == nil {
		return true
	}
	if s.enum.set == nil {
		s.enum.set = map[string]bool{}
		for _, e := range s.enum.list {
			s.enum.set[canonical(e.text)] = true
		}
	}
	return s.enum.set[canonical(v)]
}

// canonical returns the same text for equal values: 1 and 1.0, and objects whose members are in a different order.
func canonical(v []byte) string {
	var x any
	if json.Unmarshal(v, &x) != nil { // a number that no float64 can hold
		return string(v)
	}
	b, err := json.Marshal(x)
	if err != nil {
		return string(v)
	}
	return string(b)
}

// inside reports whether names within s can be given, as in a.b for a.
func (s *schema) inside() bool {
	return s.kinds&object != 0 && (len(s.properties) > 0 || s.kinds != anything || s.open)
}

// unlisted reports whether s admits names that it does not list.
func (s *schema) unlisted() bool {
	return !s.closed && (s.open || len(s.properties) == 0)
}

// find returns the property that name refers to: the one of exactly that name, or else the one equal to it in
// kebab-case. If there are several, it returns their names.
func (s *schema) find(name string) (p *property, several []string) {
	if i, ok := s.index[name]; ok {
		return &s.properties[i], nil
	}
	same := s.styles[kebab(name)]
	if len(same) == 1 {
		return &s.properties[same[0]], nil
	}
	for _, i := range same {
		several = append(several, s.properties[i].name)
	}
	return nil, several
}

// kebab converts a name to kebab-case: dry-run for dry_run, dryRun and DryRun.
func kebab(name string) string {
	var b strings.Builder
	rs := []rune(name)
	for i, c := range rs {
		if c == '_' || c == '-' {
			c = '-'
		} else if unicode.IsUpper(c) && i > 0 {
			p := rs[i-1]
			if unicode.IsLower(p) || unicode.IsDigit(p) || unicode.IsUpper(p) && i+1 < len(rs) && unicode.IsLower(rs[i+1]) {
				b.WriteByte('-')
			}
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return strings.Trim(b.String(), "-")
}
