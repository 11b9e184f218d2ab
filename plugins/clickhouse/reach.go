package main

import (
	"encoding/json"
	"errors"
	"strings"
)

// reach is what the use of a relation touches beside rows that this server keeps.
// What is not known for certain is taken for the worse.
type reach struct {
	open    bool // it leads out of the server: to another one, to files, to programs
	changes bool // reading it changes something, as that of a queue does
	unknown bool // some of what it stands on is not shown to this user
}

func (r *reach) add(o reach) {
	r.open, r.changes, r.unknown = r.open || o.open, r.changes || o.changes, r.unknown || o.unknown
}

// world is the server's relations as far as the user sees them, and what leads from one to
// another.
type world struct {
	relations map[[2]string]*relation
	// followers are the materialized views to which an insert goes on; nil where
	// the server does not say.
	followers map[[2]string][][2]string
	// functions are those that users defined, in lower case, with their statements;
	// nil where the server does not say. One without a statement is a program.
	functions map[string]string

	reads, inserts map[*relation]reach // as far as they are known, or being found
}

// world asks the server for what the definitions of relations do not say.
func (s *server) world(relations []*relation) (*world, error) {
	w := &world{relations: map[[2]string]*relation{}, reads: map[*relation]reach{}, inserts: map[*relation]reach{}}
	for _, r := range relations {
		w.relations[[2]string{r.Database, r.Name}] = r
	}
	followers := map[[2]string][][2]string{}
	told, err := s.ask("SELECT database, name, dependencies_database, dependencies_table FROM system.tables WHERE database NOT IN "+ownDatabases+" AND length(dependencies_table) > 0 FORMAT JSONEachRow", func(line []byte) error {
		var r struct {
			Database  string   `json:"database"`
			Name      string   `json:"name"`
			Databases []string `json:"dependencies_database"`
			Tables    []string `json:"dependencies_table"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if len(r.Databases) != len(r.Tables) {
			return errors.New("the server names views without their databases")
		}
		of := [2]string{r.Database, r.Name}
		if strings.HasPrefix(r.Name, ".inner") { // of some materialized view of the database
			of[1] = ".inner"
		}
		for i := range r.Tables {
			followers[of] = append(followers[of], [2]string{r.Databases[i], r.Tables[i]})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if told == 0 {
		w.followers = followers
	}
	functions := map[string]string{}
	told, err = s.ask("SELECT name, create_query FROM system.functions WHERE origin != 'System' FORMAT JSONEachRow", func(line []byte) error {
		var f struct {
			Name  string `json:"name"`
			Query string `json:"create_query"`
		}
		err := json.Unmarshal(line, &f)
		functions[strings.ToLower(f.Name)] = f.Query
		return err
	})
	if err != nil {
		return nil, err
	}
	if told == 0 || told == unknownIdentifier { // before there were such functions
		w.functions = functions
	}
	return w, nil
}

// ask reads the rows of a statement that not every server answers to every user;
// code is why it did not.
func (s *server) ask(statement string, fn func([]byte) error) (code int, err error) {
	body, err := s.read(statement, nil)
	if err == nil {
		err = rows(body, fn)
	}
	var e *exception
	if errors.As(err, &e) && e.code != 0 && !e.unauthenticated() && !e.passing() {
		return e.code, nil
	}
	return 0, err
}

// keeps reports whether a table engine has its rows on this server.
func keeps(engine string) bool {
	switch engine {
	case "Log", "TinyLog", "StripeLog", "Memory", "Null", "Set", "Join", "EmbeddedRocksDB", "GenerateRandom":
		return true
	}
	return strings.HasSuffix(engine, "MergeTree")
}

// consumes reports whether who reads a table of that engine takes something away,
// or has a program run.
func consumes(engine string) bool {
	switch engine {
	case "Kafka", "RabbitMQ", "NATS", "FileLog", "Executable", "ExecutablePool":
		return true
	}
	return strings.HasSuffix(engine, "Queue")
}

// localTables are the table functions that make their rows.
var localTables = map[string]bool{
	"numbers": true, "numbers_mt": true, "zeros": true, "zeros_mt": true, "null": true, "values": true,
	"generaterandom": true, "generateseries": true, "generate_series": true, "view": true,
}

// systemTables are those of the database system that only make rows.
var systemTables = map[string]bool{"one": true, "numbers": true, "numbers_mt": true, "zeros": true, "zeros_mt": true}

// outward are the functions, for tables and for values, that lead out of the server
// or to what nobody can tell; some are followed by Cluster, and all that begin with
// dict read dictionaries, whose source may be anywhere.
var outward = map[string]bool{
	"url": true, "s3": true, "gcs": true, "oss": true, "cosn": true, "hdfs": true, "azureblobstorage": true, "file": true,
	"remote": true, "remotesecure": true, "cluster": true, "clusterallreplicas": true, "shardbyhash": true,
	"mysql": true, "postgresql": true, "mongodb": true, "redis": true, "sqlite": true, "odbc": true, "jdbc": true, "ytsaurus": true, "arrowflight": true,
	"iceberg": true, "icebergs3": true, "icebergazure": true, "iceberghdfs": true, "iceberglocal": true,
	"deltalake": true, "deltalakes3": true, "deltalakeazure": true, "deltalakelocal": true, "hudi": true, "paimon": true,
	"prometheusquery": true, "prometheusqueryrange": true, "timeseriesselector": true, "executable": true,
	"merge": true, "loop": true, "input": true, "viewifpermitted": true, "catboostpool": true, "catboostevaluate": true, "modelevaluate": true,
	"hascolumnintable": true, "reversednsquery": true,
}

// function is what a call of one may touch.
func (w *world) function(name string, depth int) (r reach) {
	lower := strings.ToLower(name)
	if outward[lower] || outward[strings.TrimSuffix(lower, "cluster")] || strings.HasPrefix(lower, "dict") ||
		strings.HasPrefix(name, "ai") && len(name) > 2 && name[2] >= 'A' && name[2] <= 'Z' {
		r.open = true
	}
	switch lower {
	case "executable", "generateserialid":
		r.open, r.changes = true, true
	}
	statement, defined := w.functions[lower]
	switch {
	case w.functions == nil:
		r.add(reach{open: true, unknown: true})
	case !defined:
	case statement == "" || depth > 8:
		r.add(reach{open: true, changes: true})
	default:
		r.add(w.statement(statement, "", depth+1))
	}
	return r
}

// reading is what a SELECT of r touches.
func (w *world) reading(r *relation) reach {
	if known, ok := w.reads[r]; ok {
		return known
	}
	w.reads[r] = reach{open: true, unknown: true} // for what leads back to it
	out := w.statement(r.Query, r.Database, 0)
	switch {
	case isView(r.Engine):
		out.add(w.kept(r, w.reading))
	case r.Engine == "Buffer":
		out.add(w.target(r, w.reading))
	case !keeps(r.Engine):
		out.add(reach{open: true, changes: consumes(r.Engine)})
	}
	w.reads[r] = out
	return out
}

// inserting is what an INSERT into r touches, with the materialized views that it
// goes on to.
func (w *world) inserting(r *relation) reach {
	if known, ok := w.inserts[r]; ok {
		return known
	}
	w.inserts[r] = reach{open: true, unknown: true}
	out := w.statement(r.Query, r.Database, 0)
	switch {
	case isView(r.Engine):
		out.add(w.kept(r, w.inserting))
	case r.Engine == "Buffer":
		out.add(w.target(r, w.inserting))
	case !keeps(r.Engine):
		out.add(reach{open: true})
	}
	if w.followers == nil {
		out.add(reach{open: true, unknown: true})
	}
	next := w.followers[[2]string{r.Database, r.Name}]
	if isView(r.Engine) {
		next = append(next[:len(next):len(next)], w.followers[[2]string{r.Database, ".inner"}]...)
	}
	for _, name := range next {
		if view := w.relations[name]; view != nil {
			out.add(w.inserting(view))
		} else {
			out.add(reach{open: true, unknown: true})
		}
	}
	w.inserts[r] = out
	return out
}

// kept is where a materialized view has its rows: in an engine of its own, or in the
// table that it is TO, of which follow says more.
func (w *world) kept(view *relation, follow func(*relation) reach) (out reach) {
	tokens, ok := lex(view.Query)
	if !ok {
		return reach{open: true, unknown: true}
	}
	depth := 0
	for i, t := range tokens {
		switch {
		case t.kind == punctuation && t.text == "(":
			depth++
		case t.kind == punctuation && t.text == ")":
			depth--
		case depth > 0:
		case t.word("AS"):
			return out
		case t.word("TO"):
			target, _, _ := w.named(tokens[i+1:], view.Database)
			if target == nil {
				return reach{open: true, unknown: true}
			}
			out.add(follow(target))
		case t.word("ENGINE") && i+2 < len(tokens) && tokens[i+1].text == "=" && !keeps(tokens[i+2].text):
			out.add(reach{open: true})
		}
	}
	return out
}

// target is what follow says of the table behind a Buffer.
func (w *world) target(buffer *relation, follow func(*relation) reach) reach {
	tokens, _ := lex(buffer.Query)
	for i := 0; i+6 < len(tokens); i++ {
		if tokens[i].word("Buffer") && tokens[i+1].text == "(" && tokens[i+3].text == "," {
			if r := w.relations[[2]string{tokens[i+2].text, tokens[i+4].text}]; r != nil {
				return follow(r)
			}
		}
	}
	return reach{open: true, unknown: true}
}

// named is the relation that the tokens begin with, as a statement of database
// names it; n is how many they are, and name what it is called there.
func (w *world) named(tokens []token, database string) (r *relation, name [2]string, n int) {
	if len(tokens) == 0 || !tokens[0].name() {
		return nil, name, 0
	}
	name, n = [2]string{database, tokens[0].text}, 1
	if len(tokens) > 2 && tokens[1].text == "." && tokens[2].name() {
		name, n = [2]string{tokens[0].text, tokens[2].text}, 3
	}
	return w.relations[name], name, n
}

// statement is what a statement, as the server writes it, touches. Names without a
// database are of that one.
func (w *world) statement(query, database string, depth int) (out reach) {
	tokens, ok := lex(query)
	if !ok {
		return reach{open: true, unknown: true}
	}
	at := func(i int) token {
		if i < 0 || i >= len(tokens) {
			return token{}
		}
		return tokens[i]
	}
	subqueries := map[string]bool{} // WITH name AS (SELECT …)
	for i := range tokens {
		if tokens[i].name() && at(i+1).word("AS") && at(i+2).text == "(" && (at(i+3).word("SELECT") || at(i+3).word("WITH")) {
			subqueries[tokens[i].text] = true
		}
	}
	// tables: at that depth of parentheses, what follows a comma is a table.
	tables := []bool{false}
	for i := 0; i < len(tokens); i++ {
		t, top := tokens[i], len(tables)-1
		if t.name() && at(i+1).text == "(" && at(i-1).text != "." {
			out.add(w.function(t.text, depth))
		}
		table := false
		switch {
		case t.text == "(" && t.kind == punctuation:
			tables = append(tables, false)
		case t.text == ")" && t.kind == punctuation && top > 0:
			tables = tables[:top]
		case t.text == "," && t.kind == punctuation:
			table = tables[top]
		case t.word("JOIN") && at(i-1).word("ARRAY"):
			tables[top] = false // of columns
		case t.word("FROM"), t.word("JOIN"):
			table, tables[top] = true, true
		case t.word("IN"):
			table = at(i + 1).name()
		case t.word("SELECT"), t.word("WHERE"), t.word("PREWHERE"), t.word("GROUP"), t.word("ORDER"), t.word("HAVING"), t.word("LIMIT"), t.word("UNION"), t.word("SETTINGS"), t.word("WINDOW"), t.word("QUALIFY"):
			tables[top] = false
		}
		if !table {
			continue
		}
		if at(i+1).text == "(" && at(i+1).kind == punctuation {
			if inner := at(i + 2); !inner.word("SELECT") && !inner.word("WITH") && inner.text != "(" {
				out.add(reach{open: true, unknown: true})
			}
			continue
		}
		r, name, n := w.named(tokens[i+1:], database)
		switch call := at(i+1+n).text == "(" && at(i+1+n).kind == punctuation; {
		case r != nil && (!call || isView(r.Engine)):
			out.add(w.reading(r))
		case n == 1 && call && localTables[strings.ToLower(name[1])]:
		case n == 1 && call: // some table function
			out.add(reach{open: true})
		case n == 1 && subqueries[name[1]]:
		case name[0] == "system" && systemTables[name[1]]:
		default:
			out.add(reach{open: true, unknown: true})
		}
		if n == 1 && database != "default" { // what older servers mean by it
			if r := w.relations[[2]string{"default", name[1]}]; r != nil {
				out.add(w.reading(r))
			}
		}
		if n > 1 {
			i += n - 1 // not the name of a function
		}
	}
	return out
}

// The kinds of token.
const (
	bare        = iota + 1 // a name or a keyword
	quoted                 // a name in quotes
	literal                // a string or a number
	punctuation            // one character
)

type token struct {
	kind int
	text string
}

func (t token) name() bool { return t.kind == bare || t.kind == quoted }

// word reports whether t is that keyword.
func (t token) word(keyword string) bool { return t.kind == bare && strings.EqualFold(t.text, keyword) }

// lex takes a statement apart as the server writes it. What it cannot is not ok.
func lex(s string) (list []token, ok bool) {
	part := func(c byte) bool {
		return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == '\'' || c == '"' || c == '`':
			end := endOfQuote(s, i)
			if end > len(s) || end < i+2 || s[end-1] != c {
				return nil, false
			}
			if c == '\'' {
				list = append(list, token{literal, s[i+1 : end-1]})
			} else {
				list = append(list, token{quoted, unquote(s[i:end])})
			}
			i = end
		case strings.HasPrefix(s[i:], "--"):
			n := strings.IndexByte(s[i:], '\n')
			if n < 0 {
				return list, true
			}
			i += n + 1
		case strings.HasPrefix(s[i:], "/*"):
			n := strings.Index(s[i+2:], "*/")
			if n < 0 {
				return nil, false
			}
			i += n + 4
		case part(c):
			end := i
			for end < len(s) && part(s[end]) {
				end++
			}
			kind := bare
			if c >= '0' && c <= '9' {
				kind = literal
			}
			list = append(list, token{kind, s[i:end]})
			i = end
		case strings.IndexByte("()[]{}.,;:=<>!+-*/%?|@^", c) >= 0:
			list = append(list, token{punctuation, s[i : i+1]})
			i++
		default: // here documents, and what comes after this was written
			return nil, false
		}
	}
	return list, true
}
