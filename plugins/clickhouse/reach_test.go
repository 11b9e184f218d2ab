package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// described is a newer server that has relations of which a test says all. deny
// are statements, by how they begin, that it does not answer.
func described(t testing.TB, relations []relation, functions map[string]string, followers map[string]string, deny ...string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		statement := r.URL.Query().Get("query")
		row := func(v any) { json.NewEncoder(w).Encode(v) }
		for _, d := range deny {
			if strings.HasPrefix(statement, d) {
				w.Header().Set("X-ClickHouse-Exception-Code", "497")
				w.WriteHeader(http.StatusForbidden)
				return
			}
		}
		switch {
		case strings.HasPrefix(statement, "SELECT database, name, engine, create_table_query, comment"):
			for _, r := range relations {
				row(r)
			}
		case strings.HasPrefix(statement, "SELECT database, table, name, type"):
			for _, r := range relations {
				row(column{Database: r.Database, Table: r.Name, Name: "a", Type: "String"})
			}
		case strings.HasPrefix(statement, "SELECT database, name, dependencies_database"):
			for of, by := range followers {
				row(map[string]any{"database": "d", "name": of, "dependencies_database": []string{"d"}, "dependencies_table": []string{by}})
			}
		case strings.HasPrefix(statement, "SELECT name, create_query FROM system.functions"):
			for name, query := range functions {
				row(map[string]any{"name": name, "create_query": query})
			}
		case statement == "SHOW GRANTS":
			fmt.Fprintln(w, "GRANT ALL ON *.* TO alice")
		case strings.HasPrefix(statement, "SELECT value FROM system.settings"):
			fmt.Fprintln(w, "0")
		}
	}))
	t.Cleanup(s.Close)
	u, _ := url.Parse(s.URL)
	return u.Port()
}

// hints are what the tools of a server say: open_world, read_only, mutating.
func hints(t testing.TB, port string, more map[string]any) map[string]string {
	t.Helper()
	d := newDesk(t, port)
	l := d.list(t, d.token(t, firstUsers[1], more))
	if len(l.Missing) > 0 {
		t.Fatalf("%+v", l.Missing)
	}
	got := map[string]string{}
	for _, tool := range l.Tools {
		got[strings.TrimPrefix(tool.Name, "d_")] = fmt.Sprint(tool.Annotations["open_world"], " ", tool.Annotations["read_only"], " ", tool.Mutating)
	}
	d.Stop(t)
	return got
}

// TestHints: what a tool says of itself is found from what it stands on, and a comment
// makes it say less and never more.
func TestHints(t *testing.T) {
	view := func(name, query, comment string) relation {
		return relation{Database: "d", Name: name, Engine: "View", Query: "CREATE VIEW d." + name + " (`a` String) AS " + query, Comment: comment}
	}
	table := func(name, engine, rest, comment string) relation {
		return relation{Database: "d", Name: name, Engine: engine, Query: "CREATE TABLE d." + name + " (`a` String" + rest + ") ENGINE = " + engine, Comment: comment}
	}
	relations := []relation{
		table("rows", "MergeTree", "", ""), table("queue", "Kafka", "", ""), table("bucket", "S3", "", ""), table("mirror", "MySQL", "", ""), table("all", "Distributed", "", ""),
		{Database: "default", Name: "bucket2", Engine: "S3", Query: "CREATE TABLE default.bucket2 (`a` String) ENGINE = S3"},
		table("bucket2", "MergeTree", "", ""), // which older servers do not mean by that name
		view("plain", "SELECT a FROM d.rows", ""),
		view("queued", "SELECT a FROM d.queue", ""), view("bucketed", "SELECT a FROM d.bucket", ""), view("mirrored", "SELECT a FROM d.`mirror`", ""),
		view("comma", "SELECT r.a FROM d.rows AS r, d.bucket AS b WHERE r.a = b.a", ""),
		view("comma_hidden", "SELECT r.a FROM d.rows AS r , e.nobody_sees AS b", ""),
		view("inlist", "SELECT a FROM d.rows WHERE a IN d.bucket", ""),
		view("bare_name", "SELECT a FROM bucket2", ""),
		view("nested", "SELECT a FROM (SELECT a FROM (SELECT a FROM s3('http://x/y', 'CSV')))", ""),
		view("with_it", "WITH x AS (SELECT a FROM d.rows) SELECT a FROM x", ""),
		view("with_out", "WITH x AS (SELECT a FROM d.bucket) SELECT a FROM x", ""),
		view("shouting", "SELECT a FROM S3CLUSTER('c', 'http://x/y')", ""),
		view("new_function", "SELECT a FROM somethingNew('x')", ""),
		view("program", "SELECT a FROM executable('x.sh', 'TSV', 'a String')", ""),
		view("dictionary", "SELECT dictGet('d.x', 'a', a) AS a FROM d.rows", ""),
		view("of_a_file", "SELECT file('x') AS a FROM d.rows", ""),
		view("own_function", "SELECT lookup(a) AS a FROM d.rows", ""),
		view("own_program", "SELECT runIt(a) AS a FROM d.rows", ""),
		view("own_plain", "SELECT twice(a) AS a FROM d.rows", ""),
		view("quoted", "SELECT 'x FROM d.bucket' AS `s3`, \"url\" FROM d.rows -- FROM d.bucket", ""),
		view("here_document", "SELECT $x$'$x$ AS a FROM d.bucket", ""),
		view("which", "SELECT a FROM {t:Identifier}", ""),
		view("parametrised", "SELECT a FROM d.bucket_of(x = 1)", ""),
		view("bucket_of", "SELECT a FROM d.bucket WHERE a = {x:String}", ""),
		view("counted", "SELECT generateSerialID('x') AS a FROM system.one", ""),
		view("of_the_system", "SELECT a FROM system.zookeeper", ""),
		view("round", "SELECT a FROM d.round_again", ""), view("round_again", "SELECT a FROM d.round", ""),
		view("says_closed", "SELECT a FROM d.bucket", `{"openWorld": false, "readOnly": true}`),
		view("says_reads", "SELECT a FROM d.queue", `{"openWorld": false, "readOnly": true}`),
		view("says_open", "SELECT a FROM d.rows", `{"openWorld": true}`),
		view("says_changes", "SELECT a FROM d.rows", `{"readOnly": false}`),
		table("writes", "MergeTree", "", `{"readOnly": true, "openWorld": false}`),
		table("writes_open", "MergeTree", "", `{"openWorld": true}`),
		table("looks_up", "MergeTree", ", `b` String DEFAULT dictGet('x', 'y', a)", ""),
		table("goes_on", "MergeTree", "", `{"openWorld": false}`), table("goes_on_hidden", "MergeTree", "", ""),
		{Database: "d", Name: "onward", Engine: "MaterializedView", Query: "CREATE MATERIALIZED VIEW d.onward TO d.bucket (`a` String) AS SELECT a FROM d.goes_on"},
		{Database: "d", Name: "inside", Engine: "MaterializedView", Query: "CREATE MATERIALIZED VIEW d.inside (`a` String DEFAULT CAST(1 AS String)) ENGINE = NATS AS SELECT a FROM d.rows"},
	}
	functions := map[string]string{
		"lookup": "CREATE FUNCTION lookup AS (x) -> dictGet('d', 'a', x)", "runIt": "", "twice": "CREATE FUNCTION twice AS (x) -> concat(x, x)",
	}
	followers := map[string]string{"goes_on": "onward", "goes_on_hidden": "nobody_sees", "rows": "inside"}
	got := hints(t, described(t, relations, functions, followers), nil)
	want := map[string]string{
		"plain": "false true false", "with_it": "false true false", "own_plain": "false true false", "quoted": "false true false",
		"queued": "true false true", "bucketed": "true true false", "mirrored": "true true false", "comma": "true true false", "inlist": "true true false",
		"comma_hidden": "true <nil> false", "bare_name": "true true false", "bucket2": "false false true", "nested": "true true false", "with_out": "true true false",
		"shouting": "true true false", "new_function": "true true false", "program": "true false true", "dictionary": "true true false", "of_a_file": "true true false",
		"own_function": "true true false", "own_program": "true false true", "here_document": "true <nil> false", "which": "true <nil> false",
		"parametrised": "true true false", "bucket_of": "true true false", "counted": "true false true", "of_the_system": "true <nil> false",
		"round": "true <nil> false", "round_again": "true <nil> false",
		"says_closed": "true true false", "says_reads": "true false true", "says_open": "true true false", "says_changes": "false false true",
		"writes": "false false true", "writes_open": "true false true", "looks_up": "true false true", "goes_on": "true false true", "goes_on_hidden": "true false true",
		"onward": "true true false", "inside": "true true false", "rows": "true false true", "all": "true false true",
	}
	for name := range maps.Keys(want) {
		if got[name] != want[name] {
			t.Errorf("%s: open_world, read_only and mutating are %q, want %q", name, got[name], want[name])
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("further tools: %v", got)
	}

	// A view that changes something is none of a caller's who may only read.
	got = hints(t, described(t, relations, functions, followers), map[string]any{"read_only": true})
	if got["plain"] == "" || got["queued"] != "" || got["says_changes"] != "" || got["writes"] != "" {
		t.Errorf("to a caller who may only read: %v", got)
	}

	// A server that does not say what follows, or which functions there are.
	few := []relation{table("rows", "MergeTree", "", ""), view("plain", "SELECT a FROM d.rows", ""), view("calls", "SELECT lower(a) AS a FROM d.rows", "")}
	got = hints(t, described(t, few, nil, nil, "SELECT database, name, dependencies"), nil)
	if got["rows"] != "true false true" || got["plain"] != "false true false" {
		t.Errorf("nothing is said of what follows: %v", got)
	}
	got = hints(t, described(t, few, nil, nil, "SELECT name, create_query"), nil)
	if got["calls"] != "true <nil> false" || got["plain"] != "false true false" {
		t.Errorf("nothing is said of functions: %v", got)
	}
}

// FuzzReach: whatever a server says of a relation is taken apart to its end.
func FuzzReach(f *testing.F) {
	for _, s := range []string{
		ordersOf, "CREATE VIEW d.v (`a` String) AS SELECT a FROM d.rows AS r, url('x')", "FROM", "FROM (", "IN", "FROM a.", "FROM a.b(", "'", "`a", "))((", "WITH x AS (SELECT 1) SELECT * FROM x",
		"CREATE MATERIALIZED VIEW d.m TO d.t AS SELECT 1", "ENGINE = Buffer(a, b,", "TO", "ENGINE =", "\\'", "''\\",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		w := &world{relations: map[[2]string]*relation{}, reads: map[*relation]reach{}, inserts: map[*relation]reach{}, functions: map[string]string{}}
		for _, engine := range []string{"View", "MaterializedView", "Buffer", "MergeTree"} {
			r := &relation{Database: "d", Name: engine, Engine: engine, Query: query}
			w.relations[[2]string{"d", engine}] = r
		}
		for _, r := range w.relations {
			w.reading(r)
			w.inserting(r)
		}
	})
}
