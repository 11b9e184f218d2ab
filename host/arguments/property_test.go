package arguments_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
)

// shape is a schema that the test made, of which it knows what fits it.
type shape struct {
	kind  string   // a type of JSON Schema, or "any", "maybe" (string or null), "several", "enum"
	props []*prop  // of an object
	rest  *shape   // of further names of an object, nil where there are none
	items *shape   // of an array
	enum  []string // JSON
}

type prop struct {
	words []string // the name is these, in some style
	name  string
	*shape
	must bool
	ref  string // under $defs, "" where it stands in place
}

type maker struct {
	*rand.Rand
	defs []string // members of $defs
}

var words = []string{"dry", "run", "user", "id", "branch", "max", "size", "no", "json", "to"}

func (m *maker) pick(list ...string) string { return list[m.IntN(len(list))] }

// style writes words as one name.
func style(words []string, how int) string {
	out := slices.Clone(words)
	for i, w := range out {
		if how == 2 && i > 0 || how == 3 {
			out[i] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return strings.Join(out, []string{"_", "-", "", ""}[how])
}

func (m *maker) object(depth int) *shape {
	s := &shape{kind: "object"}
	names := map[string]bool{}
	for range m.IntN(6) {
		p := &prop{must: m.IntN(3) == 0, shape: m.shape(depth)}
		for range 1 + m.IntN(3) {
			p.words = append(p.words, m.pick(words...))
		}
		p.name = style(p.words, m.IntN(4))
		if m.IntN(12) == 0 {
			p.words, p.name = []string{"n"}, "n"
		}
		if names[p.name] {
			continue
		}
		names[p.name] = true
		if m.IntN(3) == 0 {
			p.ref = fmt.Sprintf("d/%d", len(m.defs))
			m.defs = append(m.defs, "")
			m.defs[len(m.defs)-1] = fmt.Sprintf("%q: %s", p.ref, m.text(p.shape))
		}
		s.props = append(s.props, p)
	}
	if m.IntN(4) == 0 {
		s.rest = m.shape(0)
	}
	return s
}

func (m *maker) shape(depth int) *shape {
	kinds := []string{"string", "string", "integer", "number", "boolean", "null", "any", "maybe", "several", "enum"}
	if depth > 0 {
		kinds = append(kinds, "object", "object", "array", "array")
	}
	switch kind := m.pick(kinds...); kind {
	case "object":
		return m.object(depth - 1)
	case "array":
		return &shape{kind: "array", items: m.shape(depth - 1)}
	case "enum":
		return &shape{kind: "enum", enum: []string{`"on"`, `"off"`, `1`, `"1"`, `null`, `[2]`}[:1+m.IntN(6)]}
	default:
		return &shape{kind: kind}
	}
}

// text writes s as a JSON Schema, in one of the ways to say it.
func (m *maker) text(s *shape) string {
	switch s.kind {
	case "any":
		return m.pick(`{}`, `true`, `{"description": "anything"}`)
	case "maybe":
		return m.pick(`{"type": ["string", "null"]}`, `{"anyOf": [{"type": "null"}, {"type": "string"}], "default": null}`)
	case "several":
		return m.pick(`{"type": ["string", "integer", "boolean", "object"]}`, `{"oneOf": [{"type": ["boolean", "string"]}, {"type": ["integer", "object"]}]}`)
	case "enum":
		return `{"enum": [` + strings.Join(s.enum, ", ") + `]}`
	case "array":
		return `{"type": "array", "items": ` + m.text(s.items) + `}`
	case "object":
		return m.objectText(s)
	}
	return m.pick(`{"type": "`+s.kind+`"}`, `{"type": ["`+s.kind+`"]}`, `{"allOf": [{"type": "`+s.kind+`"}]}`)
}

func (m *maker) objectText(s *shape) string {
	var props, must []string
	for _, p := range s.props {
		text := fmt.Sprintf(`{"$ref": "#/$defs/%s"}`, strings.ReplaceAll(p.ref, "/", "~1"))
		if p.ref == "" {
			text = m.text(p.shape)
		}
		props = append(props, fmt.Sprintf("%q: %s", p.name, text))
		if p.must {
			must = append(must, fmt.Sprintf("%q", p.name))
		}
	}
	rest := "false"
	if s.rest != nil {
		rest = m.text(s.rest)
	}
	return `{"type": "object", "additionalProperties": ` + rest + `, "required": [` + strings.Join(must, ", ") + `], "properties": {` + strings.Join(props, ", ") + `}}`
}

// node is a value that fits a shape.
type node struct {
	*shape
	json    string
	members []*node // of an object
	prop    *prop   // of a member
	name    string
	list    []*node // of an array
}

func (m *maker) string() string {
	return m.pick("", "a", "Hello, world", "a=b", "--user", "-n", "--", "-", "5", "-5", "null", "true", `"q"`, "[1]", "[x", `{"a": 1}`, "{", "- x", "--no-run", "two\nlines\n", " spaces ", "größe \U0001F600", "<&>\u2028\x00\x1b", "--help", "--json", "json={}")
}

func jsonString(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (m *maker) value(s *shape) *node {
	n := &node{shape: s}
	switch s.kind {
	case "string":
		n.json = jsonString(m.string())
	case "integer":
		n.json = m.pick("0", "-5", "5.0", "1e3", "12345678901234567890")
	case "number":
		n.json = m.pick("0", "-5", "0.5", "-1.5e-7", "1e400")
	case "boolean":
		n.json = m.pick("true", "false")
	case "null":
		n.json = "null"
	case "maybe":
		n.json = m.pick("null", jsonString(m.string()))
	case "several":
		n.json = m.pick("5", "true", `{"x": [1]}`, jsonString(m.string()))
	case "any":
		n.json = m.pick("5", "true", "null", `[1, "a"]`, `{"x": [1]}`, jsonString(m.string()))
	case "enum":
		n.json = m.pick(s.enum...)
	case "array":
		texts := []string{}
		for range m.IntN(4) {
			e := m.value(s.items)
			n.list, texts = append(n.list, e), append(texts, e.json)
		}
		n.json = "[" + strings.Join(texts, ", ") + "]"
	case "object":
		for _, p := range s.props {
			if p.must || m.IntN(2) == 0 {
				v := m.value(p.shape)
				v.prop, v.name = p, p.name
				n.members = append(n.members, v)
			}
		}
		if s.rest != nil && m.IntN(2) == 0 {
			v := m.value(s.rest)
			v.name = "other"
			n.members = append(n.members, v)
		}
		m.Shuffle(len(n.members), func(i, j int) { n.members[i], n.members[j] = n.members[j], n.members[i] })
		texts := []string{}
		for _, v := range n.members {
			texts = append(texts, jsonString(v.name)+": "+v.json)
		}
		n.json = "{" + strings.Join(texts, ", ") + "}"
	}
	return n
}

// inverse writes a payload as a command line.
type inverse struct {
	*maker
	groups [][]string // arguments that belong together
	stdin  *string
	// unsaid is set where flags alone cannot say it.
	unsaid bool
}

// call is the name by which a member can be called.
func (v *inverse) call(of *shape, member *node) string {
	if member.prop == nil {
		return member.name
	}
	same := 0
	for _, p := range of.props {
		if slices.Equal(p.words, member.prop.words) {
			same++
		}
	}
	name := style(member.prop.words, v.IntN(4))
	if same > 1 || slices.ContainsFunc(of.props, func(p *prop) bool { return p.name == name }) {
		return member.name
	}
	return name
}

func (v *inverse) add(flag, text string) {
	forms := []string{"--" + flag + "=" + text, "-" + flag + "=" + text, flag + "=" + text}
	if !strings.HasPrefix(text, "-") || len(text) > 1 && '0' <= text[1] && text[1] <= '9' {
		v.groups = append(v.groups, [][]string{{"--" + flag, text}, {"-" + flag, text}, forms[:1], forms[1:2], forms[2:]}[v.IntN(5)])
		return
	}
	v.groups = append(v.groups, forms[v.IntN(3):][:1])
}

func (v *inverse) object(of *node, prefix string) {
	for _, m := range of.members {
		v.member(m, prefix+v.call(of.shape, m))
	}
}

func (v *inverse) member(n *node, flag string) {
	var s string
	isText := n.json[0] == '"'
	if isText {
		if err := json.Unmarshal([]byte(n.json), &s); err != nil {
			panic(err)
		}
	}
	isJSON := strictjson.Check([]byte(strings.Trim(s, " \t\r\n"))) == nil
	switch n.kind {
	case "boolean":
		switch v.IntN(3) {
		case 0:
			v.add(flag, n.json)
		case 1:
			v.groups = append(v.groups, []string{"--" + flag, n.json})
		default:
			v.groups = append(v.groups, []string{map[string]string{"true": "--", "false": "--no-"}[n.json] + flag})
		}
	case "string", "maybe":
		switch {
		case isText && v.stdin == nil && v.IntN(3) == 0:
			v.stdin = &s
			v.add(flag, "-")
		case !isText:
			v.add(flag, "null")
		case s == "-" || n.kind == "maybe" && s == "null":
			v.unsaid = true
		default:
			v.add(flag, s)
		}
	case "array":
		plain := len(n.list) > 0
		for _, e := range n.list {
			plain = plain && (e.kind == "integer" || e.kind == "number" || e.kind == "boolean" || e.kind == "object" ||
				e.kind == "string" && !strings.HasPrefix(strings.TrimSpace(e.json[1:]), "[") && e.json != `"-"`)
		}
		if !plain || v.IntN(2) == 0 {
			v.add(flag, n.json)
			return
		}
		for _, e := range n.list {
			text := e.json
			if e.kind == "string" {
				if err := json.Unmarshal([]byte(e.json), &text); err != nil {
					panic(err)
				}
			}
			v.add(flag, text)
		}
	case "object":
		if len(n.members) > 0 && v.IntN(3) > 0 {
			v.object(n, flag+".")
		} else {
			v.add(flag, n.json)
		}
	case "enum":
		texts := slices.DeleteFunc(slices.Clone(n.enum), func(e string) bool { return e[0] == '"' })
		switch {
		case isText && slices.Contains(texts, s):
			// 1 and "1" are both in it: only JSON can say which. Where there is
			// nothing but text in it, JSON is text too.
			v.unsaid = true
		case isText:
			v.add(flag, s)
		default:
			v.add(flag, n.json)
		}
	default:
		if isText && s != "-" && !isJSON && v.IntN(2) == 0 {
			v.add(flag, s)
		} else {
			v.add(flag, n.json)
		}
	}
}

// args joins the groups, in an order that keeps the elements of arrays.
func (v *inverse) args() []string { return slices.Concat(v.groups...) }

// TestInverse makes schemas, payloads that fit them and command lines that say
// these payloads, and reads the command lines back.
func TestInverse(t *testing.T) {
	said := 0
	for seed := range uint64(3000) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 1))}
		top := m.object(3)
		schema := m.objectText(top)
		schema = `{"$defs": {` + strings.Join(m.defs, ", ") + `}, ` + schema[1:]
		compiled, err := tools.CompileSchema(json.RawMessage(schema))
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, schema, err)
		}
		payload := m.value(top)
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(payload.json))
		if err == nil {
			err = compiled.Validate(doc)
		}
		if err != nil {
			t.Fatalf("seed %d: the test made %s for %s: %v", seed, payload.json, schema, err)
		}
		v := &inverse{maker: m}
		v.object(payload, "")
		args, stdin := v.args(), ""
		if v.unsaid {
			args = []string{"--json", payload.json}
			if slices.ContainsFunc(top.props, func(p *prop) bool { return slices.Equal(p.words, []string{"json"}) }) {
				args = args[1:]
			}
		} else {
			said++
			if v.stdin != nil {
				stdin = *v.stdin
			}
		}
		got, err := parse(schema, stdin, args...)
		if err != nil {
			t.Errorf("seed %d: %s: %q: %v", seed, schema, args, err)
			continue
		}
		if !equal(t, string(got.Payload), payload.json) || got.ReadStdin != (v.stdin != nil && !v.unsaid) {
			t.Errorf("seed %d: %s: %q: %s, want %s", seed, schema, args, got.Payload, payload.json)
		}
		if t.Failed() && seed > 100 {
			return
		}
	}
	if said < 2000 {
		t.Errorf("only %d payloads were said by flags", said)
	}
}

// FuzzParse: whatever the schema and the arguments, there is a fault, a usage,
// or an object that another way to write it gives as well.
func FuzzParse(f *testing.F) {
	for _, args := range []string{"--title\x00a", "--body=-\x00--title=x\x00--base=y", `{"a": 1}`, "--json\x00-", "--help", "--author.name=x\x00--no-author.admin\x00x=1\x00--\x00y", "--ids\x00[1,2]\x00--ids\x003", "-5", "--label=[\x00--matrix=[1]\x00--extra=\"x\""} {
		f.Add(pull, args, "text")
	}
	f.Add(`{"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"x": {"$ref": "#"}}}]}}}`, "--x.x.x.x=1", "")
	f.Add(`{"oneOf": [{"required": ["a"], "properties": {"a": {"enum": [1, "1", null]}}}, {"patternProperties": {"^x": {}}, "additionalProperties": false}]}`, "a=1\x00xy=2", "{}")
	f.Add(`{"type": "array", "items": false, "properties": {"json": true, "": {}, "a.b": {"type": ["array", "string"]}}, "additionalProperties": {"const": 1e400}}`, "--=x\x00a.b=1\x00b=1e400", "")
	f.Fuzz(func(t *testing.T, schema, line, stdin string) {
		args := strings.Split(line, "\x00")
		got, err := arguments.Parse(arguments.Tool{Name: "t", Schema: json.RawMessage(schema)}, args, strings.NewReader(stdin), 1<<16)
		if err != nil {
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Code != fault.InvalidPayload && fe.Code != fault.Internal || len(fe.Message) > 16<<10 {
				t.Fatalf("the fault %v", err)
			}
			if checked := strictjson.Check([]byte(schema)) == nil && strings.HasPrefix(strings.TrimLeft(schema, " \t\r\n"), "{"); checked != (fe.Code == fault.InvalidPayload) && schema != "" {
				t.Fatalf("a schema that is %v: %v", checked, err)
			}
			return
		}
		if got.Help != "" {
			if got.Payload != nil || got.ReadStdin || len(got.Help) > 48<<10 {
				t.Fatalf("usage with %d bytes, and %s", len(got.Help), got.Payload)
			}
			return
		}
		if strictjson.Check(got.Payload) != nil || got.Payload[0] != '{' || got.Payload[len(got.Payload)-1] != '}' {
			t.Fatalf("the payload %s", got.Payload)
		}
		again, err := arguments.Parse(arguments.Tool{Name: "t", Schema: json.RawMessage(schema)}, []string{string(got.Payload)}, nil, 0)
		if err != nil || string(again.Payload) != string(got.Payload) {
			t.Fatalf("%s as JSON is %+v, %v", got.Payload, again, err)
		}
	})
}
