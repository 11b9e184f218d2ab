package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/plugins/internal/offer"
)

// recorded answers as a newer ClickHouse does, with grants, comments and
// parameterised views: the statements that the plugin sends, and no other.
type recorded struct {
	*httptest.Server
	mu     sync.Mutex
	grants string
	view   string   // the statement of the view orders_of; empty: it is gone
	seen   []string // "METHOD statement parameters"
}

const ordersOf = `CREATE VIEW sales.orders_of (id UInt64, region String) AS SELECT id, region FROM sales.orders WHERE region = {region:String} AND day >= {since:Date} AND n = {n:Nullable(Int64)} AND has({tags:Array(String)}, tag) -- {not:String}`

func newRecorded(t *testing.T) *recorded {
	r := &recorded{view: ordersOf, grants: "GRANT SELECT, INSERT(id, region) ON sales.* TO alice\nGRANT writer TO alice\nREVOKE SELECT ON sales.hidden FROM alice\n"}
	r.Server = httptest.NewServer(http.HandlerFunc(r.answer))
	t.Cleanup(r.Close)
	return r
}

func (r *recorded) answer(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fail := func(status, code int, text string) {
		w.Header().Set("X-ClickHouse-Exception-Code", fmt.Sprint(code))
		w.WriteHeader(status)
		fmt.Fprintf(w, "Code: %d. DB::Exception: %s", code, text)
	}
	if req.Header.Get("X-ClickHouse-User") != "alice" || req.Header.Get("X-ClickHouse-Key") != firstUsers[1].password {
		fail(http.StatusForbidden, 516, "alice: Authentication failed: password is incorrect, or there is no user with such name.")
		return
	}
	q := req.URL.Query()
	statement := q.Get("query")
	q.Del("query")
	r.seen = append(r.seen, req.Method+" "+statement+" "+q.Encode())
	from := " FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') ORDER BY database, name FORMAT JSONEachRow"
	row := func(v map[string]any) { json.NewEncoder(w).Encode(v) }
	column := func(table, name, typ string) {
		row(map[string]any{"database": "sales", "table": table, "name": name, "type": typ, "default_kind": "", "comment": "the " + name})
	}
	switch {
	case statement == "SELECT database, name, engine, create_table_query, comment"+from:
		row(map[string]any{"database": "sales", "name": "hidden", "engine": "View", "create_table_query": "CREATE VIEW sales.hidden AS SELECT 1", "comment": ""})
		row(map[string]any{"database": "sales", "name": "orders", "engine": "ReplicatedMergeTree", "create_table_query": "CREATE TABLE sales.orders (id UInt64) ENGINE = ReplicatedMergeTree ORDER BY id SETTINGS index_granularity = 8192", "comment": "Orders, one a row."})
		row(map[string]any{"database": "sales", "name": "log", "engine": "SharedMergeTree", "create_table_query": "CREATE TABLE sales.log (line String) ENGINE = SharedMergeTree ORDER BY line SETTINGS replicated_deduplication_window = 0", "comment": ""})
		if r.view != "" {
			row(map[string]any{"database": "sales", "name": "orders_of", "engine": "View", "create_table_query": r.view,
				"comment": `{"title":"Orders of a region","description":"Since a day.","parameters":{"region":"which region"},"openWorld":true}`})
		}
	case strings.HasPrefix(statement, "SELECT database, table, name, type"):
		for _, c := range [][3]string{{"orders", "id", "UInt64"}, {"orders", "region", "LowCardinality(String)"}, {"orders", "secret", "String"}, {"log", "line", "String"}, {"orders_of", "id", "UInt64"}, {"hidden", "x", "UInt8"}} {
			column(c[0], c[1], c[2])
		}
	case statement == "SHOW GRANTS":
		fmt.Fprint(w, r.grants)
	case statement == "SHOW GRANTS FOR `writer`":
		fmt.Fprintln(w, "GRANT INSERT ON sales.log TO writer")
	case strings.HasPrefix(statement, "SELECT database, name, dependencies_database"), strings.HasPrefix(statement, "SELECT name, create_query FROM system.functions"):
	case statement == "SELECT count() AS n FROM system.settings WHERE name = 'insert_deduplication_token' FORMAT JSONEachRow":
		row(map[string]any{"n": "1"})
	case strings.HasPrefix(statement, "SELECT value FROM system.settings"):
		fmt.Fprintln(w, "0")
	case strings.HasPrefix(statement, "SELECT `id` FROM `sales`.`orders_of`("):
		if r.view == "" {
			fail(http.StatusNotFound, 60, "Unknown table expression identifier 'sales.orders_of'")
			return
		}
		if q.Get("param_tags") != "" || !strings.Contains(r.view, "tags") {
			row(map[string]any{"id": q.Get("param_region")})
			return
		}
		fail(http.StatusBadRequest, 456, "Substitution `tags` is not set")
	case statement == "INSERT INTO `sales`.`orders` (`id`, `region`) FORMAT JSONEachRow":
		if !strings.Contains(r.grants, "INSERT(") {
			fail(http.StatusForbidden, 497, "alice: Not enough privileges. To execute this query, it's necessary to have the grant INSERT(id, region) ON sales.orders.")
		}
	default:
		fail(http.StatusBadRequest, 62, "Syntax error: "+statement)
	}
}

func (r *recorded) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *recorded) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[len(r.seen)-1]
}

// TestRecorded is what 18.16 cannot do: grants, comments and parameterised
// views.
func TestRecorded(t *testing.T) {
	r := newRecorded(t)
	u, _ := url.Parse(r.URL)
	d := newDesk(t, u.Port())
	alice := d.token(t, firstUsers[1], nil)
	wantNames(t, "granted", d.names(t, alice), "sales_log", "sales_orders", "sales_orders_of")
	for _, tool := range d.list(t, alice).Tools {
		properties := fmt.Sprint(tool.Schema["properties"])
		switch tool.Name {
		case "sales_orders_of":
			if tool.Title != "Orders of a region" || !strings.HasPrefix(tool.Description, "Since a day.") || tool.Annotations["open_world"] != true {
				t.Errorf("the comment is not taken: %+v", tool)
			}
			if fmt.Sprint(tool.Schema["required"]) != "[region since n tags]" || !strings.Contains(properties, "which region") || strings.Contains(properties, "not") {
				t.Errorf("the parameters are %v", tool.Schema)
			}
		case "sales_log":
			if strings.Contains(properties, tokenSetting) {
				t.Errorf("a token where the server keeps both inserts: %+v", tool)
			}
		case "sales_orders":
			if !strings.Contains(properties, tokenSetting) || strings.Contains(fmt.Sprint(tool.Schema["required"]), tokenSetting) {
				t.Errorf("no token: %+v", tool)
			}
			if strings.Contains(properties, "secret") || tool.Description != "Orders, one a row." || !strings.Contains(properties, "the id") {
				t.Errorf("columns without a grant, or no comment: %+v", tool)
			}
		}
	}

	for _, tt := range []struct{ region, param string }{
		{"north", "north"}, {"' OR 1=1 --", `\' OR 1=1 --`}, {"a\\\tb\n", `a\\\tb\n`}, {"&query=DROP TABLE x", "&query=DROP TABLE x"}, {`\N`, `\\N`}, {"{a:String}", "{a:String}"},
	} {
		res := d.call(t, alice, "sales_orders_of", map[string]any{"region": tt.region, "since": "2024-01-02", "n": nil, "tags": []string{"it's", `\`}})
		wantCode(t, tt.region, res, "")
		want := "GET SELECT `id` FROM `sales`.`orders_of`(region = {region:String}, since = {since:Date}, n = {n:Nullable(Int64)}, tags = {tags:Array(String)}) LIMIT 1001 FORMAT JSONEachRow " +
			url.Values{"param_region": {tt.param}, "param_since": {"2024-01-02"}, "param_n": {`\N`}, "param_tags": {`['it\'s','\\']`}}.Encode()
		if got := r.last(); got != want {
			t.Errorf("%q: the server got\n%s, want\n%s", tt.region, got, want)
		}
	}
	wantCode(t, "a parameter is missing", d.call(t, alice, "sales_orders_of", map[string]any{"region": "x"}), fault.InvalidPayload)

	row := map[string]any{"id": 1, "region": "north"}
	wantCode(t, "granted", d.call(t, alice, "sales_orders", row), "")
	if got := r.last(); strings.Contains(got, "dedup") {
		t.Errorf("without a token the server got %s", got)
	}
	wantCode(t, "with a token", d.call(t, alice, "sales_orders", map[string]any{"id": 1, "region": "north", tokenSetting: "t&1'"}), "")
	if got := r.last(); !strings.Contains(got, "insert_deduplicate=1&insert_deduplication_token=t%261%27&query_id=toold-") {
		t.Errorf("with a token the server got %s", got)
	}
	wantCode(t, "no token", d.call(t, alice, "sales_orders", map[string]any{"id": 1, "region": "north", tokenSetting: "a b"}), fault.InvalidPayload)
	wantCode(t, "an empty token", d.call(t, alice, "sales_orders", map[string]any{"id": 1, "region": "north", tokenSetting: ""}), fault.InvalidPayload)
	wantCode(t, "a column without a grant", d.call(t, alice, "sales_orders", map[string]any{"id": 1, "region": "x", "secret": "y"}), fault.InvalidPayload)

	r.change(func() { r.grants = "GRANT SELECT ON sales.* TO alice\n" })
	wantCode(t, "a grant that was taken away", d.call(t, alice, "sales_orders", row), fault.UnknownTool)
	wantNames(t, "then", d.names(t, alice), "sales_hidden", "sales_orders_of")

	r.change(func() { r.view = strings.Replace(ordersOf, "region = {region:String}", "1", 1) })
	arguments := map[string]any{"region": "x", "since": "2024-01-02", "n": 1, "tags": []string{}}
	// The server takes what is too much: the caller hears of it with the next
	// listing.
	wantCode(t, "a parameter that went away", d.call(t, alice, "sales_orders_of", arguments), "")
	r.change(func() { r.view = "" })
	wantCode(t, "a view that went away", d.call(t, alice, "sales_orders_of", arguments), fault.UnknownTool)
	wantNames(t, "at last", d.names(t, alice), "sales_hidden")
	wantNames(t, "another password", d.names(t, d.token(t, user{name: "alice", password: "wrong-canary-1"}, nil)), "missing: UNAUTHENTICATED")
}

func TestGrants(t *testing.T) {
	orders := &relation{Database: "d", Name: "t", columns: []column{{Name: "a"}, {Name: "b`c"}}}
	for text, want := range map[string]string{
		"GRANT SELECT ON *.* TO u":                                 "",
		"GRANT INSERT ON *.* TO u":                                 "a b`c",
		"GRANT ALL ON d.* TO u WITH GRANT OPTION":                  "a b`c",
		"GRANT ALL PRIVILEGES ON `d`.`t` TO u":                     "a b`c",
		"GRANT SELECT(a), INSERT(a) ON d.t TO u":                   "a",
		"GRANT INSERT(`b\\`c`) ON d.t TO u":                        "b`c",
		"GRANT INSERT ON e.* TO u":                                 "",
		"GRANT INSERT ON d.t2 TO u":                                "",
		"GRANT INSERT ON d.* TO u\nREVOKE INSERT ON d.t FROM u":    "",
		"REVOKE INSERT(a) ON d.t FROM u\nGRANT INSERT ON *.* TO u": "b`c",
		"GRANT INSERT ON d*.* TO u":                                "a b`c",
		"GRANT nonsense":                                           "",
		"GRANT INSERT ON d.t":                                      "",
		"":                                                         "",
	} {
		r := &rights{grants: []grant{}}
		if err := (&server{}).grants(r, text, 8); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		var got []string
		allowed := r.columns("INSERT", orders)
		for _, c := range orders.columns {
			if allowed[c.Name] {
				got = append(got, c.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %v, want %q", text, got, want)
		}
	}
}

func TestIdentifier(t *testing.T) {
	for name, want := range map[string]string{"a": "`a`", "a`; DROP": "`a\\`; DROP`", `a\`: "`a\\\\`", "": "``"} {
		if got := identifier(name); got != want {
			t.Errorf("%q is %s, want %s", name, got, want)
		}
	}
}

func TestToolName(t *testing.T) {
	for text, want := range map[string]string{
		"sales.byRegion": "sales_by_region", "Sales.Über Sicht": "sales_ber_sicht", "wh sales.v1": "wh_sales_v1", "A__b..c": "a_b_c", "HTTPLog": "httplog",
		strings.Repeat("x", 70): strings.Repeat("x", 54) + "_",
	} {
		if got := offer.ToolName(text); got != want && !(len(text) > 64 && strings.HasPrefix(got, want) && len(got) <= 64) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	if offer.ToolName(strings.Repeat("x", 70)) == offer.ToolName(strings.Repeat("x", 71)) {
		t.Error("two long names are one")
	}
}
