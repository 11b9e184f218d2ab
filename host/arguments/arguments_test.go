package arguments_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/toold/toold/host/arguments"
	"github.com/toold/toold/host/fault"
)

const pull = `{
	"type": "object",
	"description": "Opens a pull request.",
	"required": ["title", "base"],
	"properties": {
		"title": {"type": "string", "description": "What the request is called in every list of requests that anybody looks at, in one line."},
		"body": {"type": ["string", "null"]},
		"base": {"type": "string", "default": "main"},
		"state": {"enum": ["open", "closed", "draft"], "default": "open"},
		"dry_run": {"type": "boolean"},
		"maxCommits": {"type": "integer"},
		"score": {"type": "number"},
		"label": {"type": "array", "items": {"type": "string"}},
		"ids": {"type": "array", "items": {"type": "integer"}},
		"matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
		"author": {"$ref": "#/$defs/person"},
		"meta": {"type": "object", "additionalProperties": {"type": "string"}},
		"extra": {},
		"to": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
		"n": {"type": "integer"},
		"none": {"type": "null"}
	},
	"$defs": {"person": {
		"type": "object", "required": ["name"],
		"properties": {"name": {"type": "string"}, "admin": {"type": "boolean"}, "chief": {"$ref": "#/$defs/person"}}
	}}
}`

// parse parses args by schema, with the text for standard input.
func parse(schema, stdin string, args ...string) (*arguments.Parsed, error) {
	return arguments.Parse(arguments.Tool{Name: "pr", Schema: json.RawMessage(schema)}, args, strings.NewReader(stdin), 1<<20)
}

// equal reports whether two texts are the same JSON.
func equal(t testing.TB, a, b string) bool {
	t.Helper()
	var x, y any
	for text, v := range map[string]*any{a: &x, b: &y} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if a == b {
			return true
		}
	}
	return reflect.DeepEqual(x, y)
}

// TestValues: each way to write a value, beside --title and --base.
func TestValues(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // the payload without title and base
	}{
		{nil, `{}`},
		{[]string{"--body", "Hello"}, `{"body": "Hello"}`},
		{[]string{"--body=Hello"}, `{"body": "Hello"}`},
		{[]string{"body=Hello"}, `{"body": "Hello"}`},
		{[]string{"-body", "Hello"}, `{"body": "Hello"}`},
		{[]string{"-body=Hello"}, `{"body": "Hello"}`},
		{[]string{"--body="}, `{"body": ""}`},
		{[]string{"--body", ""}, `{"body": ""}`},
		{[]string{"--body=a=b"}, `{"body": "a=b"}`},
		{[]string{"--body", "a=b"}, `{"body": "a=b"}`},
		{[]string{"--body", "- a list"}, `{"body": "- a list"}`},
		{[]string{"--body", "---\ntitle: x"}, `{"body": "---\ntitle: x"}`},
		{[]string{"--body", "--strange"}, `{"body": "--strange"}`},
		{[]string{"--body=--title"}, `{"body": "--title"}`},
		{[]string{"--body", "5"}, `{"body": "5"}`},
		{[]string{"--body", "null"}, `{"body": null}`},
		{[]string{"--body", `"quoted"`}, `{"body": "\"quoted\""}`},
		{[]string{"--body", `{"a": 1}`}, `{"body": "{\"a\": 1}"}`},
		{[]string{"--body", "  space\t"}, `{"body": "  space\t"}`},

		{[]string{"--dry_run"}, `{"dry_run": true}`},
		{[]string{"--dry-run"}, `{"dry_run": true}`},
		{[]string{"--dryRun"}, `{"dry_run": true}`},
		{[]string{"dry-run=true"}, `{"dry_run": true}`},
		{[]string{"--dry-run=false"}, `{"dry_run": false}`},
		{[]string{"--dry-run", "false"}, `{"dry_run": false}`},
		{[]string{"--no-dry-run"}, `{"dry_run": false}`},
		{[]string{"--no-dry_run"}, `{"dry_run": false}`},
		{[]string{"--dry-run", "--body", "x"}, `{"dry_run": true, "body": "x"}`},
		{[]string{"--max-commits", "-5"}, `{"maxCommits": -5}`},
		{[]string{"--max_commits", " 5 "}, `{"maxCommits": 5}`},
		{[]string{"--max-commits=5.0"}, `{"maxCommits": 5.0}`},
		{[]string{"--max-commits=12e-1e"}, ``},
		{[]string{"--max-commits=1e3"}, `{"maxCommits": 1e3}`},
		{[]string{"--max-commits=9007199254740993"}, `{"maxCommits": 9007199254740993}`},
		{[]string{"--score=0.5"}, `{"score": 0.5}`},
		{[]string{"-n", "5"}, `{"n": 5}`},
		{[]string{"-n=5"}, `{"n": 5}`},
		{[]string{"--n", "5"}, `{"n": 5}`},
		{[]string{"--none=null"}, `{"none": null}`},
		{[]string{"--state", "closed"}, `{"state": "closed"}`},

		{[]string{"--label", "a"}, `{"label": ["a"]}`},
		{[]string{"--label", "a", "--label=b", "label=c"}, `{"label": ["a", "b", "c"]}`},
		{[]string{"--label", `["a", "b"]`}, `{"label": ["a", "b"]}`},
		{[]string{"--label", `["a", "b"]`, "--label", "c"}, `{"label": ["a", "b", "c"]}`},
		{[]string{"--label", `[]`}, `{"label": []}`},
		{[]string{"--label", `5`}, `{"label": ["5"]}`},
		{[]string{"--label", `[fix] a thing`}, `{"label": ["[fix] a thing"]}`},
		{[]string{"--ids", "1", "--ids", "2"}, `{"ids": [1, 2]}`},
		{[]string{"--ids", "[1,2]"}, `{"ids": [1, 2]}`},
		{[]string{"--matrix", "[1,2]", "--matrix", "[3]"}, `{"matrix": [[1, 2], [3]]}`},
		{[]string{"--matrix", "[[1,2],[3]]"}, `{"matrix": [[1, 2], [3]]}`},
		{[]string{"--to", "a"}, `{"to": "a"}`},
		{[]string{"--to", "a", "--to", "b"}, `{"to": ["a", "b"]}`},
		{[]string{"--to", `["a"]`}, `{"to": ["a"]}`},

		{[]string{"--author", `{"name": "Ada"}`}, `{"author": {"name": "Ada"}}`},
		{[]string{"--author.name", "Ada", "--author.admin"}, `{"author": {"name": "Ada", "admin": true}}`},
		{[]string{"--author.name", "Ada", "--no-author.admin"}, `{"author": {"name": "Ada", "admin": false}}`},
		{[]string{"author.name=Ada", "--author.chief.name=Eve"}, `{"author": {"name": "Ada", "chief": {"name": "Eve"}}}`},
		{[]string{"--meta.team", "5", "--meta.a.b=x"}, `{"meta": {"team": "5", "a.b": "x"}}`},
		{[]string{"--extra", "5"}, `{"extra": 5}`},
		{[]string{"--extra", "05"}, `{"extra": "05"}`},
		{[]string{"--extra", `{"a": 1, "a": 2}`}, `{"extra": "{\"a\": 1, \"a\": 2}"}`},
		{[]string{"--extra", `"5"`}, `{"extra": "5"}`},
	} {
		got, err := parse(pull, "", append([]string{"--title", "T", "--base", "main"}, tt.args...)...)
		if tt.want == "" {
			if err == nil {
				t.Errorf("%q gives %s", tt.args, got.Payload)
			}
			continue
		}
		want := strings.Replace(tt.want, "{", `{"title": "T", "base": "main",`, 1)
		if tt.want == "{}" {
			want = `{"title": "T", "base": "main"}`
		}
		if err != nil || !equal(t, string(got.Payload), want) || got.ReadStdin || got.Help != "" {
			t.Errorf("%q: %+v, %v, want %s", tt.args, got, err, want)
		}
	}
}

// TestPlainPayloads: one JSON object, or name=value for each property, with or
// without dashes.
func TestPlainPayloads(t *testing.T) {
	const schema = `{"type": "object", "properties": {"a": {"type": "integer"}}}`
	for _, tt := range []struct{ args, want string }{
		{"", `{}`}, {"a=1", `{"a": 1}`}, {"--a=1", `{"a": 1}`}, {"-a=1", `{"a": 1}`}, {`{"a":1}`, `{"a": 1}`},
		{"a=x", ""}, {"a", ""}, {"b=1", ""}, {"a=1 a=2", ""}, {`{"a":1} {"a":1}`, ""}, {`{"a":1} a=1`, ""},
	} {
		got, err := parse(schema, "", strings.Fields(tt.args)...)
		if tt.want == "" {
			wantFault(t, err, fault.InvalidPayload, "")
		} else if err != nil || !equal(t, string(got.Payload), tt.want) {
			t.Errorf("%s: %+v, %v, want %s", tt.args, got, err, tt.want)
		}
	}
	// Text stays text, and what no schema lists is JSON where it can be.
	got, err := parse(`{"type": "object", "additionalProperties": true, "properties": {"s": {"type": "string"}}}`, "", "s=1", "u=1", "--v=x", "--w.x", "[1]")
	if err != nil || !equal(t, string(got.Payload), `{"s": "1", "u": 1, "v": "x", "w.x": [1]}`) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWholePayload(t *testing.T) {
	const want = `{"title": "T", "deep": [{"x": 1}]}`
	for _, args := range [][]string{{want}, {"  " + want + "\n"}, {"--json", want}, {"--json=" + want}, {"-json", want}, {"--json", "-"}} {
		got, err := parse(pull, want, args...)
		if err != nil || string(got.Payload) != want {
			t.Errorf("%q: %+v, %v", args, got, err)
		}
		if reads := args[len(args)-1] == "-"; err == nil && got.ReadStdin != reads {
			t.Errorf("%q: read standard input: %v", args, got.ReadStdin)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--json", want, "--title", "x"}, "--json is the whole payload; write nothing beside it"},
		{[]string{"--title", "x", "--json", want}, "--json is the whole payload"},
		{[]string{"--json", want, "x"}, "--json is the whole payload"},
		{[]string{"--json", want, "--json", want}, "--json is given twice"},
		{[]string{"--json"}, "--json needs an object"},
		{[]string{"--json", "[1]"}, "--json wants an object, has an array"},
		{[]string{"--json", `{"a":1,"a":2}`}, "--json wants an object: line 1, column 8: /a: is a duplicate name"},
		{[]string{"--json", ``}, "--json wants an object: line 1, column 1"},
		{[]string{`{"a":`}, "the argument wants an object: line 1, column 6"},
	} {
		_, err := parse(pull, "", tt.args...)
		wantFault(t, err, fault.InvalidPayload, tt.want)
	}
	// A property of that name goes first.
	got, err := parse(`{"properties": {"json": {"type": "string"}, "help": {"type": "boolean"}, "h": {"type": "integer"}}}`, "", "--json", "{}", "--help", "-h", "5")
	if err != nil || !equal(t, string(got.Payload), `{"json": "{}", "help": true, "h": 5}`) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPositional(t *testing.T) {
	const one = `{"required": ["query", "limit"], "properties": {"limit": {"type": "integer"}, "query": {"type": "string"}, "in": {"type": "string"}}}`
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--limit=5", "cats"}, `{"limit": 5, "query": "cats"}`},
		{[]string{"cats", "--limit=5"}, `{"limit": 5, "query": "cats"}`},
		{[]string{"--limit=5", "--", "--in"}, `{"limit": 5, "query": "--in"}`},
		{[]string{"--limit=5", "--", "in=5"}, `{"limit": 5, "query": "in=5"}`},
		{[]string{"--limit=5", "select a=1"}, `{"limit": 5, "query": "select a=1"}`},
		{[]string{"--limit=5", "-5"}, `{"limit": 5, "query": "-5"}`},
		{[]string{"--limit=5", ""}, `{"limit": 5, "query": ""}`},
		{[]string{"--limit=5", "--", `{"a": 1}`}, `{"limit": 5, "query": "{\"a\": 1}"}`},
		{[]string{"--limit=5", "-"}, `{"limit": 5, "query": "from stdin"}`},
	} {
		got, err := parse(one, "from stdin", tt.args...)
		if err != nil || !equal(t, string(got.Payload), tt.want) {
			t.Errorf("%q: %+v, %v, want %s", tt.args, got, err, tt.want)
		}
	}
	for _, tt := range []struct {
		schema string
		args   []string
		want   string
	}{
		{one, []string{"--query=a", "--limit=5", "cats"}, `the argument "cats" has no flag; the flags are --limit, --query, --in; run pr --help`},
		{one, []string{"cats", "dogs"}, `2 arguments have no flag, the first is "cats"; only one can be left without its flag, that of --query`},
		{one, []string{"cats"}, `--limit must be given; run pr --help`},
		{one, []string{"ind=x"}, `unknown name ind; did you mean in?`},
		{pull, []string{"a thing"}, `the argument "a thing" has no flag; the flags are --title, --body, --base`},
		{`{"properties": {}, "additionalProperties": false}`, []string{"x"}, `the argument "x" has no flag; it takes no flags`},
	} {
		_, err := parse(tt.schema, "", tt.args...)
		wantFault(t, err, fault.InvalidPayload, tt.want)
	}
}

// TestMistakes: what is wrong names the flag, the nearest one, and what to do
// next.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--titel", "x"}, "unknown flag --titel; did you mean --title?; run pr --help"},
		{[]string{"--titel=x"}, "unknown flag --titel; did you mean --title?"},
		{[]string{"--drirun"}, "unknown flag --drirun; did you mean --dry-run?"},
		{[]string{"--no-dry-rum"}, "unknown flag --no-dry-rum; did you mean --no-dry-run?"},
		{[]string{"--author.nam", "x"}, "unknown flag --author.nam; did you mean --author.name?"},
		{[]string{"--author.chief.nmae", "x"}, "unknown flag --author.chief.nmae; did you mean --author.chief.name?"},
		{[]string{"--author.", "x"}, "unknown flag --author.; the flags are --author.name, --author.admin, --author.chief; run"},
		{[]string{"--jsn", "x"}, "unknown flag --jsn; did you mean --json?"},
		{[]string{"--everything"}, "unknown flag --everything; the flags are --title, --body, --base, --state, --dry-run, --max-commits, --score, --label, --ids, --matrix, --author, --meta and 4 more; run"},
		{[]string{"--\x1b[31m"}, `unknown flag "--\x1b[31m"`},
		{[]string{"-x"}, "unknown flag -x"},
		{[]string{"titel=x"}, "unknown name titel; did you mean title?"},
		{[]string{"--title.x=1"}, "unknown flag --title.x"},
		{[]string{"--title"}, "--title needs a string; run pr --help"},
		{[]string{"--title", "--"}, "--title needs a string"},
		{[]string{"--title", "--body", "x"}, "--title needs a value, and --body is a flag; if it is the value, write --title=--body"},
		{[]string{"--title", "--no-dry-run"}, "--title needs a value, and --no-dry-run is a flag"},
		{[]string{"--title", "--help"}, "--title needs a value, and --help is a flag"},
		{[]string{"--title", "a", "--title", "b"}, "--title is given twice, and takes one value"},
		{[]string{"--dry-run", "--no-dry-run"}, "--no-dry-run is given twice"},
		{[]string{"--dry-run", "--dryRun"}, "--dryRun is given twice"},
		{[]string{"--no-dry-run=true"}, "--no-dry-run takes no value; write --dry-run=false or --dry-run=true"},
		{[]string{"--no-title"}, "--no-title would make a boolean false, and --title is not one"},
		{[]string{"--help=x"}, "--help takes no value"},
		{[]string{"--dry-run=yes"}, `--dry-run wants a boolean, has "yes"`},
		{[]string{"--max-commits=5.5"}, `--max-commits wants an integer, has "5.5"`},
		{[]string{"--max-commits=x"}, `--max-commits wants an integer, has "x"`},
		{[]string{"--max-commits="}, `--max-commits wants an integer, has ""`},
		{[]string{"--score=NaN"}, `--score wants a number, has "NaN"`},
		{[]string{"--score=007"}, `--score wants a number, has "007"`},
		{[]string{"--none=x"}, `--none wants null, has "x"`},
		{[]string{"--state", "opn"}, `--state: "opn" is not one of open, closed, draft; did you mean open?; run pr --help`},
		{[]string{"--state", "7"}, `--state: "7" is not one of open, closed, draft; run`},
		{[]string{"--ids", "x"}, `--ids wants an integer, has "x"`},
		{[]string{"--ids", `[1,"x"]`}, `--ids: element 2 wants an integer, has "\"x\""`},
		{[]string{"--label", `[1,2]`}, `--label: element 1 wants a string, has "1"`},
		{[]string{"--author", "Ada"}, `--author wants an object as JSON: line 1, column 1`},
		{[]string{"--author", "[1]"}, `--author wants an object, has "[1]"`},
		{[]string{"--author={}", "--author.name=x"}, `--author.name gives a part of what --author gives whole; write one of the two`},
		{[]string{"--author.name=x", "--author={}"}, `--author gives whole what other flags give a part of`},
		{[]string{"--author.admin", "--title=x", "--base=y"}, `--author.name must be given; run pr --help`},
		{nil, `--title, --base must be given; run pr --help`},
		{[]string{"--body", "-", "--title", "-"}, `--body and --title both read standard input, which only one can`},
		{[]string{"--body", "-", "--json", "-"}, `--body and --json both read standard input`},
		{[]string{"--body=\xff"}, `argument 1 is not UTF-8`},
		{[]string{"--author" + strings.Repeat(".chief", 40) + ".name=x"}, "has more than 31 dots; give an outer one as JSON"},
		{[]string{"--title=x", "--base=y", "--extra=" + strings.Repeat("[", 63) + strings.Repeat("]", 63), "--n", "x"}, "--n wants an integer"},
	} {
		_, err := parse(pull, "text", tt.args...)
		wantFault(t, err, fault.InvalidPayload, tt.want)
	}
	// Without --help, the message says where else to look.
	_, err := parse(`{"properties": {"help": {"type": "string"}}}`, "", "--x")
	wantFault(t, err, fault.InvalidPayload, "unknown flag --x; the flags are --help; run pr -h")
	_, err = parse(`{"properties": {"help": {"type": "string"}, "h": {"type": "string"}}}`, "", "--x")
	wantFault(t, err, fault.InvalidPayload, "toolctl tools pr --json")
	// A message does not repeat what is long.
	_, err = parse(pull, "", "--"+strings.Repeat("x", 1<<20), strings.Repeat("y", 1<<20))
	if wantFault(t, err, fault.InvalidPayload, "unknown flag"); err != nil && len(err.Error()) > 1000 {
		t.Errorf("a message of %d bytes", len(err.Error()))
	}
	// A value within its bounds can be too deep in the payload.
	deep := strings.Repeat("[", 62) + strings.Repeat("]", 62)
	if _, err := parse(`{"properties": {"a": {"type": "object", "properties": {"b": {}}}}}`, "", "--a.b="+deep); err != nil {
		t.Error(err)
	}
	_, err = parse(`{"properties": {"a": {"type": "object", "properties": {"b": {}}}}}`, "", "--a.b=["+deep+"]")
	wantFault(t, err, fault.InvalidPayload, "nests deeper than 64")
}

// TestStyles: the names of two properties can be the same in kebab-case.
func TestStyles(t *testing.T) {
	const schema = `{"properties": {"fooBar": {"type": "string"}, "foo_bar": {"type": "string"}, "userID": {"type": "string"}, "HTTPPort": {"type": "integer"},
		"no_color": {"type": "boolean"}, "color": {"type": "boolean"}, "a.b": {"type": "string"}, "sha256Sum": {"type": "string"}, "größe": {"type": "integer"}, "a=b": {}, "": {"type": "string"}}}`
	got, err := parse(schema, "", "--foo_bar=1", "--fooBar=2", "--user-id=3", "--http-port=4", "--no-color", "--a.b=5", "--sha256-sum=6", "--größe", "7")
	if err != nil || !equal(t, string(got.Payload), `{"foo_bar": "1", "fooBar": "2", "userID": "3", "HTTPPort": 4, "no_color": true, "a.b": "5", "sha256Sum": "6", "größe": 7}`) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = parse(schema, "", "--foo-bar=1")
	wantFault(t, err, fault.InvalidPayload, "--foo-bar can be fooBar or foo_bar; write the name as it is there")
	_, err = parse(`{"required": ["a=b"], "properties": {"a=b": {}}}`, "")
	wantFault(t, err, fault.InvalidPayload, `"a=b" must be given`)
}

// TestSchemas: what $ref, allOf, anyOf and oneOf say together of a property.
func TestSchemas(t *testing.T) {
	for _, tt := range []struct {
		schema string
		args   []string
		want   string // a payload, or what an error says
	}{
		{`{"$ref": "#/$defs/call", "$defs": {"call": {"type": "object", "properties": {"n": {"$ref": "#/$defs/call/properties/m"}, "m": {"type": "integer"}}}}}`, []string{"-n=5"}, `{"n": 5}`},
		{`{"$ref": "#/definitions/a~1b%25", "definitions": {"a/b%": {"properties": {"n": {"type": "string"}}}}}`, []string{"-n=5"}, `{"n": "5"}`},
		{`{"allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}}], "properties": {"c": {"type": "boolean"}}}`, []string{"-a=1", "-b=1", "-c"}, `{"a": "1", "b": 1, "c": true}`},
		{`{"allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}]}`, nil, `-a must be given`},
		{`{"allOf": [{"properties": {"a": {"type": ["string", "integer"]}}}, {"properties": {"a": {"type": ["number", "null"]}}}]}`, []string{"-a=x"}, `-a wants an integer`},
		{`{"oneOf": [{"properties": {"a": {"type": "string"}, "k": {"const": "x"}}, "required": ["a", "k"]}, {"properties": {"b": {"type": "integer"}, "k": {"const": "y"}}, "required": ["k"]}]}`, []string{"-b=1", "-k=y"}, `{"b": 1, "k": "y"}`},
		{`{"oneOf": [{"properties": {"a": {"type": "string"}, "k": {"const": "x"}}, "required": ["a", "k"]}, {"properties": {"b": {"type": "integer"}, "k": {"const": "y"}}, "required": ["k"]}]}`, []string{"-b=1"}, `-k must be given`},
		{`{"oneOf": [{"properties": {"k": {"const": "x"}}}, {"properties": {"k": {"const": "y"}}}]}`, []string{"-k=z"}, `-k: "z" is not one of x, y`},
		{`{"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}`, []string{"-a=null"}, `{"a": null}`},
		{`{"properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}`, []string{"-a"}, `{"a": true}`},
		{`{"properties": {"a": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}}`, []string{"-a", "null"}, `{"a": null}`},
		{`{"properties": {"a": {"anyOf": [{"enum": ["x"]}, {"type": "null"}]}}}`, []string{"-a", "null"}, `{"a": null}`},
		{`{"properties": {"a": {"anyOf": [{"enum": ["x"]}, {"type": "null"}]}}}`, []string{"-a", "y"}, `-a: "y" is not one of x, null`},
		{`{"properties": {"a": {"anyOf": [{"$ref": "#/$defs/o"}, {"type": "null"}]}}, "$defs": {"o": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}}}`, []string{"--a.x=1"}, `{"a": {"x": 1}}`},
		{`{"properties": {"a": {"anyOf": [{"$ref": "#/$defs/o"}, {"type": "null"}]}}, "$defs": {"o": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}}}}`, []string{"--a.y=1"}, `--a.x must be given`},
		{`{"properties": {"a": {"type": ["string", "integer", "boolean"]}}}`, []string{"-a=5"}, `{"a": 5}`},
		{`{"properties": {"a": {"type": ["string", "integer", "boolean"]}}}`, []string{"-a=5.5"}, `{"a": "5.5"}`},
		{`{"properties": {"a": {"type": ["string", "integer", "boolean"]}}}`, []string{"-a"}, `-a needs a string or an integer or a boolean`},
		{`{"properties": {"a": {"type": ["string", "integer", "boolean"]}}}`, []string{"--no-a"}, `{"a": false}`},
		{`{"properties": {"a": {"enum": [1, "2", null, [1.0, {"b": 1, "c": 2}]]}}}`, []string{"-a=1.0"}, `{"a": 1.0}`},
		{`{"properties": {"a": {"enum": [1, "2", null, [1.0, {"b": 1, "c": 2}]]}}}`, []string{"-a=2"}, `{"a": "2"}`},
		{`{"properties": {"a": {"enum": [1, "2", null, [1.0, {"b": 1, "c": 2}]]}}}`, []string{`-a=[1, {"c": 2, "b": 1}]`}, `{"a": [1, {"c": 2, "b": 1}]}`},
		{`{"properties": {"a": {"enum": [1.5, 2.5]}}}`, []string{`-a=x`}, `-a: "x" is not one of 1.5, 2.5`},
		{`{"properties": {"a": {"type": "array", "items": {"enum": ["x", "y"]}}}}`, []string{`-a=x`, `-a=z`}, `-a: "z" is not one of x, y`},
		{`{"properties": {"a": {"type": "array", "items": {"enum": ["x", "y"]}}}}`, []string{`-a=["x","z"]`}, `-a: element 2: "\"z\"" is not one of x, y`},
		{`{"properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}}}`, []string{`-a=[1,"z"]`}, `{"a": [1, "z"]}`},
		{`{"properties": {"a": {"type": "array", "items": [{"type": "integer"}]}}}`, []string{`-a=1`, `-a=z`}, `{"a": [1, "z"]}`},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"s": {"type": "string"}}, "properties": {"a": {"$ref": "#/definitions/s", "type": "integer"}}}`, []string{"-a=5"}, `{"a": "5"}`},
		{`{"properties": {"a": {"$id": "https://example.com/a", "$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}}}, "$defs": {"x": {"type": "integer"}}}`, []string{"-a=1"}, `{"a": "1"}`},
		{`{"properties": {"a": {"$ref": "https://example.com/x"}, "b": {"$ref": "#/nowhere"}, "c": {"$ref": "#anchor"}, "d": true, "e": false}}`, []string{"-a=1", "-b=x", "-c=1", "-d=1", "-e=1"}, `{"a": 1, "b": "x", "c": 1, "d": 1, "e": 1}`},
		{`{"$ref": "#"}`, []string{"-a=1"}, `{"a": 1}`},
		{`{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "properties": {"a": {"$ref": "#/$defs/a"}}}`, []string{"-a={}"}, `{"a": {}}`},
		{`{"additionalProperties": {"type": "string"}}`, []string{"--any=1"}, `{"any": "1"}`},
		{`{"properties": {"a": {}}, "additionalProperties": false}`, []string{"--any=1"}, `unknown flag --any; the flags are -a`},
		{`{"properties": {"a": {}}}`, []string{"--any=1"}, `unknown flag --any; the flags are -a`},
		{`{"properties": {"a": {}}, "patternProperties": {"^x-": {}}, "additionalProperties": false}`, []string{"--x-b=1"}, `{"x-b": 1}`},
		{`{"properties": {"on": {"type": "boolean"}}, "additionalProperties": true}`, []string{"--no-on", "--no-off", "x", "--json", "{}"}, `--json is the whole payload`},
		{`{"properties": {"on": {"type": "boolean"}}, "additionalProperties": true}`, []string{"--no-on", "--no-off", "x"}, `{"on": false, "no-off": "x"}`},
		{`{"properties": {"on": {"type": "object", "properties": {"x": {}}}}, "additionalProperties": true}`, []string{"--on.y=1"}, `unknown flag --on.y; did you mean --on.x?`},
		{``, []string{"--any=1", "x=y"}, `{"any": 1, "x": "y"}`},
		{`{}`, []string{"--=1"}, `unknown flag "--"`},
		{`{}`, []string{"-5"}, `the argument "-5" has no flag`},
		{`{"type": "object"}`, []string{"--any"}, `--any needs a value`},
	} {
		got, err := parse(tt.schema, "", tt.args...)
		if strings.HasPrefix(tt.want, "{") {
			if err != nil || !equal(t, string(got.Payload), tt.want) {
				t.Errorf("%s: %q: %+v, %v, want %s", tt.schema, tt.args, got, err, tt.want)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: %q gives %s", tt.schema, tt.args, got.Payload)
			continue
		}
		wantFault(t, err, fault.InvalidPayload, tt.want)
	}
	for _, schema := range []string{`{`, `[]`, `true`, `{"a": 1, "a": 2}`, "{\"\xff\": 1}"} {
		_, err := parse(schema, "", "--a=1")
		wantFault(t, err, fault.Internal, "read the schema of a payload")
	}
}

func TestUsage(t *testing.T) {
	const want = `usage: pr --title STRING --base STRING [--flag VALUE]...

Opens a pull request.

  --title STRING            required. What the request is called in every list
                            of requests that anybody looks at, in one line.
  --base STRING             required; default main
  --body STRING|NULL
  --state STRING            one of open, closed, draft; default open
  --dry-run
  --max-commits INTEGER
  --score NUMBER
  --label STRING...
  --ids INTEGER...
  --matrix ARRAY...
  --author OBJECT
  --author.name STRING      required with author
  --author.admin
  --author.chief OBJECT
  --author.chief.name STRING
                            required with chief
  --author.chief.admin
  --author.chief.chief OBJECT
  --meta OBJECT
  --meta.NAME STRING
  --extra VALUE
  --to STRING...
  -n INTEGER
  --none NULL
  --json OBJECT             the whole payload, without other flags
  --help, -h                this text

--no-NAME makes a flag without a value false.
A flag with ... can be repeated, or takes a JSON array.
A value of - is read from standard input; one flag can have it.
`
	for _, args := range [][]string{{"--help"}, {"-h"}, {"-help"}, {"--title", "x", "--help"}, {"stray", "--max-commits=x", "--help"}, {"--body", "-", "--help"}} {
		got, err := arguments.Parse(arguments.Tool{Name: "pr", Schema: json.RawMessage(pull)}, args, unread{t}, 1<<20)
		if err != nil || got.Help != want || got.Payload != nil || got.ReadStdin {
			t.Errorf("%q: %+v, %v", args, got, err)
		}
	}
	_, err := parse(pull, "", "--titel", "--help")
	wantFault(t, err, fault.InvalidPayload, "unknown flag --titel")

	for _, tt := range []struct{ schema, want string }{
		{`{"required": ["query"], "properties": {"query": {"type": "string"}}, "additionalProperties": {"type": "integer"}}`, `usage: pr --query STRING [--flag VALUE]...

A tool.

  --NAME INTEGER            any other name
  --query STRING            required
  --json OBJECT             the whole payload, without other flags
  --help, -h                this text

One argument without a flag is --query.
A value of - is read from standard input; one flag can have it.
`},
		{`{"properties": {"json": {"description": "\u001b[31mred\n\ttext\u202e"}, "h": {}, "a=b": {}, "c d": {}}}`, `usage: pr [--flag VALUE]...

A tool.

  --json VALUE              [31mred text
  -h VALUE
  "a=b", in --json only VALUE
  "--c d" VALUE
  --help                    this text

A value of - is read from standard input; one flag can have it.
`},
		{`{"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"v": {}, "next": {"$ref": "#/$defs/n"}}}}}`, `usage: pr [--flag VALUE]...

A tool.

  -v VALUE
  --next OBJECT
  --next.v VALUE
  --next.next OBJECT
  --json OBJECT             the whole payload, without other flags
  --help, -h                this text

A value of - is read from standard input; one flag can have it.
`},
		{``, `usage: pr [--flag VALUE]...

A tool.

  --NAME VALUE              any other name
  --json OBJECT             the whole payload, without other flags
  --help, -h                this text

A value of - is read from standard input; one flag can have it.
`},
		{`{"required": ["` + strings.Repeat("long_", 12) + `a", "` + strings.Repeat("long_", 12) + `b"], "properties": {"` + strings.Repeat("long_", 12) + `a": {"type": "integer"}, "` + strings.Repeat("long_", 12) + `b": {"type": "integer"}}}`, `usage: pr --flag VALUE...

A tool.

  --` + strings.Repeat("long-", 12) + `a INTEGER
                            required
  --` + strings.Repeat("long-", 12) + `b INTEGER
                            required
  --json OBJECT             the whole payload, without other flags
  --help, -h                this text

A value of - is read from standard input; one flag can have it.
`},
	} {
		got, err := arguments.Parse(arguments.Tool{Name: "pr", Description: "A tool.", Schema: json.RawMessage(tt.schema)}, []string{"--help"}, nil, 0)
		if err != nil || got.Help != tt.want {
			t.Errorf("%s: %v\n%s", tt.schema, err, got.Help)
		}
	}

	// A schema that refers to itself many times over ends, and in time.
	many := `{"$defs": {"t": {"properties": {`
	for i := range 300 {
		many += fmt.Sprintf(`"p%d": {"$ref": "#/$defs/t", "description": "%s"},`, i, strings.Repeat("word ", 20))
	}
	many = strings.TrimSuffix(many, ",") + `}}}, "$ref": "#/$defs/t"}`
	got, err := parse(many, "", "--help")
	if err != nil || len(got.Help) > 32<<10 || !strings.Contains(got.Help, "and more") || !strings.Contains(got.Help, "--help") {
		t.Errorf("%d bytes, %v", len(got.Help), err)
	}
}

// TestInvolvedSchemas: a schema can refer to its parts so often that it takes
// minutes to read; then only the whole payload is taken.
func TestInvolvedSchemas(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"$ref": "#/$defs/d0", "$defs": {`)
	for i := range 1000 {
		fmt.Fprintf(&b, `"d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}], "properties": {"p%d": {}, "q": {"$ref": "#/$defs/d0"}}}, `, i, i+1, (i+2)%1000, i)
	}
	b.WriteString(`"x": {}}}`)
	_, err := parse(b.String(), "", "--p1=1"+strings.Repeat(".q", 30))
	wantFault(t, err, fault.InvalidPayload, "give the payload with --json")
	twice := `{"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {`
	for i := range 100 {
		twice += fmt.Sprintf(`"d%d": {"anyOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]}, `, i, i+1, i+1)
	}
	_, err = parse(twice+`"d100": {"enum": [1, 2]}}}`, "", "-a=1")
	wantFault(t, err, fault.InvalidPayload, "give the payload with --json")
	if got, err := parse(b.String(), "", "--json", "{}"); err != nil || string(got.Payload) != "{}" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := parse(b.String(), "", "--help"); err != nil || got.Help == "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// unread is a standard input that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("standard input is read")
	return 0, io.EOF
}

func TestStdin(t *testing.T) {
	tool := arguments.Tool{Name: "pr", Schema: json.RawMessage(pull)}
	must := []string{"--title", "T", "--base", "main"}
	for _, tt := range []struct{ flag, in, want string }{
		{"--body", "line\n\nline\n", `"body": "line\n\nline\n"`},
		{"--body", "null", `"body": "null"`},
		{"--body", "", `"body": ""`},
		{"--extra", "5", `"extra": "5"`},
		{"--max-commits", "5\n", `"maxCommits": 5`},
		{"--author", `{"name": "Ada"}` + "\n", `"author": {"name": "Ada"}`},
		{"--label", "one\ntwo", `"label": ["one\ntwo"]`},
		{"--label", "[\"one\", \"two\"]\n", `"label": ["one", "two"]`},
		{"--to", "[\"one\"]", `"to": "[\"one\"]"`},
		{"--author.name", "Ada", `"author": {"name": "Ada"}`},
	} {
		for _, args := range [][]string{{tt.flag, "-"}, {tt.flag + "=-"}, {strings.TrimPrefix(tt.flag, "--") + "=-"}} {
			got, err := arguments.Parse(tool, append(args, must...), strings.NewReader(tt.in), int64(len(tt.in)))
			if err != nil || !got.ReadStdin || !equal(t, string(got.Payload), `{"title": "T", "base": "main", `+tt.want+`}`) {
				t.Errorf("%q with %q: %+v, %v", args, tt.in, got, err)
			}
		}
	}
	_, err := arguments.Parse(tool, append(must, "--body", "-"), strings.NewReader("12345"), 4)
	wantFault(t, err, fault.InvalidPayload, "standard input, for --body, has over 4 bytes")
	_, err = arguments.Parse(tool, append(must, "--body", "-"), strings.NewReader("\xff"), 4)
	wantFault(t, err, fault.InvalidPayload, "standard input, for --body, is not UTF-8 text")
	_, err = arguments.Parse(tool, append(must, "--body", "-"), nil, 4)
	wantFault(t, err, fault.InvalidPayload, "--body is to be read from standard input, and there is none")
	_, err = arguments.Parse(tool, append(must, "--max-commits", "-"), strings.NewReader("x"), 4)
	wantFault(t, err, fault.InvalidPayload, `--max-commits wants an integer, has "x"`)
	// An error of the reader stays what it is.
	gone := errors.New("gone")
	_, err = arguments.Parse(tool, append(must, "--body", "-"), iotest.ErrReader(gone), 4)
	if f := (*fault.Error)(nil); !errors.Is(err, gone) || errors.As(err, &f) {
		t.Errorf("got %v", err)
	}
	// What cannot become a call leaves standard input alone.
	for _, args := range [][]string{{"--body", "-", "--titel"}, {"--body", "-", "stray"}, {"--json", "-", "stray"}, {"--body", "x"}, {"--body", "-", "--label", "-"}, {"--body", "-", "--ids", "x"}, {"--body", "-", "--author.admin"}} {
		_, _ = arguments.Parse(tool, append(args, must...), unread{t}, 4)
	}
}

// wantFault checks that err is a fault with that code and says that.
func wantFault(t *testing.T, err error, code fault.Code, says string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != code || !strings.Contains(f.Message, says) {
		t.Errorf("got %v, want %s: …%s…", err, code, says)
	}
}
