package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/plugins/internal/offer"
)

// mark is in every hostile argument, so that the server's log can be searched.
const mark = "zq9"

// hostile are texts that try to be SQL, JSON, TSV or a parameter.
var hostile = []string{
	"'); DROP TABLE sales.orders; --" + mark,
	"' OR 1=1 --" + mark,
	mark + "\\'; SELECT sleep(3); --",
	mark + "`; DROP DATABASE sales; `",
	mark + "\"; DROP DATABASE sales; \"",
	mark + "\\", mark + "\\\\'", mark + "''", "\\" + mark, "'" + mark,
	mark + "\t1\t2\n3", mark + "\r\n{\"id\":7}", mark + "\x00\x01\x1f\x7f",
	mark + "{x:String}", "{" + mark + ": String}", "param_x=" + mark,
	mark + "/* */ --", "/*" + mark, "--" + mark + "\n",
	mark + "\"}\n{\"region\":\"second row\"}", mark + "\",\"id\":\"9",
	mark + "\u2028\u2029\u00e9\U0001f600", mark + "\\N", mark + "NULL", mark + "['a','b']", mark + " FORMAT JSON",
	"1; DROP TABLE sales.orders; --" + mark, "1) UNION ALL SELECT 1 --" + mark, "0x1" + mark, "1e3" + mark, "-1" + mark,
	"2024-01-01' " + mark, "now() --" + mark, "a' = 1, 'b" + mark, "a%20" + mark + "&query=DROP%20TABLE%20sales.orders",
}

// ask lets the plugin, built for this machine, make its requests for real.
func ask(port string, u user) *pdk.Fake {
	tr := &http.Transport{DisableKeepAlives: true}
	cl := &http.Client{Transport: tr, Timeout: 30 * time.Second}
	return &pdk.Fake{
		Config: map[string]string{"host": "127.0.0.1", "port": port, "user": u.name, "password": u.password},
		HTTP: func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
			req, err := http.NewRequest(r.Method, r.URL, bytes.NewReader(r.Body))
			if err != nil {
				return nil, err
			}
			for k, v := range r.Headers {
				req.Header.Set(k, v)
			}
			resp, err := cl.Do(req)
			if err != nil {
				return nil, err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			out := &pdk.HTTPResponse{Status: resp.StatusCode, Body: body, Headers: map[string]string{}}
			for k := range resp.Header {
				out.Headers[strings.ToLower(k)] = resp.Header.Get(k)
			}
			return out, err
		},
	}
}

// everyType is a table with a column of each type that a row can have.
const everyType = `CREATE TABLE sales.every (
	s String, u8 UInt8, u64 UInt64, i32 Int32, f Float64, d Date, at DateTime, id UUID, tags Array(String),
	nums Array(Int32), n Nullable(String), e Enum8('a' = 1, 'it\'s' = 2), fixed FixedString(16), dec Decimal(10, 2)
) ENGINE = Memory`

// everyTool is the tool of that table.
func everyTool(t testing.TB, c *clickHouse) (*pdk.Fake, json.RawMessage) {
	t.Helper()
	c.admin(everyType)
	f := ask(c.port, firstUsers[1])
	s, err := f.Discover(discover, &abi.Discovery{Tool: "clickhouse"})
	if err != nil || s.Error != nil {
		t.Fatalf("discover: %v, %+v", err, s.Error)
	}
	for _, tool := range s.Tools {
		if tool.Name == "sales_every" {
			return f, tool.Binding
		}
	}
	t.Fatalf("no tool for the table in %+v", s.Tools)
	return nil, nil
}

// tryEverywhere puts one text into each column by itself, without what the
// host's check of the schema would refuse of it.
func tryEverywhere(t testing.TB, f *pdk.Fake, binding json.RawMessage, text string) {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"s", "u8", "u64", "i32", "f", "d", "at", "id", "n", "e", "fixed", "dec", "tags", "nums"} {
		value := string(quoted)
		if column == "tags" || column == "nums" {
			value = "[" + value + "]"
		}
		r, err := f.Handle(handle, &abi.Call{Tool: "sales_every", Binding: binding, Payload: json.RawMessage(fmt.Sprintf(`{%q:%s}`, column, value))})
		if err != nil {
			continue // no date-time
		}
		if r.Gone || r.Error != nil && r.Error.Retriable {
			t.Fatalf("%s = %q: %+v", column, text, r)
		}
		if (column == "s" || column == "n" || column == "tags") && r.Error != nil {
			t.Fatalf("%s = %q: %v", column, text, r.Error)
		}
	}
}

// known reports whether the plugin may have sent a statement.
func known(statement string) bool {
	switch statement = strings.TrimSpace(statement); statement {
	case "SELECT database, name, engine, create_table_query FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') ORDER BY database, name FORMAT JSONEachRow",
		"SELECT database, name, engine, create_table_query, comment FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') ORDER BY database, name FORMAT JSONEachRow",
		"SELECT database, table, name, type, default_kind, comment FROM system.columns WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') FORMAT JSONEachRow",
		"SELECT database, name, dependencies_database, dependencies_table FROM system.tables WHERE database NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema') AND length(dependencies_table) > 0 FORMAT JSONEachRow",
		"SELECT name, create_query FROM system.functions WHERE origin != 'System' FORMAT JSONEachRow",
		"SELECT value FROM system.settings WHERE name = 'readonly' FORMAT TSV",
		"SHOW GRANTS":
		return true
	}
	column, ok := strings.CutPrefix(statement, "INSERT INTO `sales`.`every` (`")
	if ok {
		column, ok = strings.CutSuffix(column, "`) FORMAT JSONEachRow")
	}
	return ok && len(column) <= 5 && strings.Trim(column, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// checkLog reads the server's own log: alice has sent these statements and no
// other, and no argument is in one of them.
func checkLog(t testing.TB, c *clickHouse) {
	t.Helper()
	c.admin("SYSTEM FLUSH LOGS")
	log := c.admin("SELECT DISTINCT query FROM system.query_log WHERE user = 'alice' FORMAT JSONEachRow")
	n := 0
	for line := range strings.Lines(log) {
		var q struct{ Query string }
		if err := json.Unmarshal([]byte(line), &q); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		n++
		if !known(q.Query) || strings.Contains(q.Query, mark) {
			t.Errorf("the server was told to run %q", q.Query)
		}
	}
	if n < 4 {
		t.Errorf("the log has %d statements: %s", n, log)
	}
}

// TestArgumentsAreValues: whatever an argument is, in every type, the server
// sees the same statement and gets back out what was put in.
func TestArgumentsAreValues(t *testing.T) {
	c := startClickHouse(t)
	f, binding := everyTool(t, c)
	for _, text := range hostile {
		tryEverywhere(t, f, binding, text)
	}
	checkLog(t, c)
	stored := map[string]int{}
	for line := range strings.Lines(c.admin("SELECT s, n, tags FROM sales.every FORMAT JSONEachRow")) {
		var r struct {
			S    string
			N    *string
			Tags []string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		stored["s "+r.S]++
		if r.N != nil {
			stored["n "+*r.N]++
		}
		for _, s := range r.Tags {
			stored["tags "+s]++
		}
	}
	for _, text := range hostile {
		for _, column := range []string{"s", "n", "tags"} {
			if stored[column+" "+text] != 1 {
				t.Errorf("%s = %q is there %d times", column, text, stored[column+" "+text])
			}
		}
	}
	if got := c.admin("SELECT count() FROM system.tables WHERE database = 'sales'"); got != "3\n" {
		t.Errorf("sales has %s tables", got)
	}
}

// TestValues: good values of each type come back as they went.
func TestValues(t *testing.T) {
	c := startClickHouse(t)
	f, binding := everyTool(t, c)
	r, err := f.Handle(handle, &abi.Call{Tool: "sales_every", Binding: binding, Payload: json.RawMessage(`{
		"s":"é","u8":255,"u64":18446744073709551615,"i32":-2147483648,"f":1e-3,"d":"1999-12-31","at":"1970-01-02T02:00:00+02:00",
		"id":"61f0c404-5cb3-11e7-907b-a6006ad3dba0","tags":["a","b'"],"nums":[1,-2],"n":null,"e":"it's","fixed":"0123456789abcdef","dec":"-1.25"}`)})
	if err != nil || r.Error != nil {
		t.Fatalf("%v, %+v", err, r.Error)
	}
	got := c.admin("SELECT s, u8, u64, i32, f, d, toUInt32(at) AS at, toString(id) AS id, tags, nums, n, e, fixed, toString(dec) AS dec FROM sales.every FORMAT JSONEachRow")
	want := `{"s":"é","u8":255,"u64":"18446744073709551615","i32":-2147483648,"f":0.001,"d":"1999-12-31","at":86400,"id":"61f0c404-5cb3-11e7-907b-a6006ad3dba0","tags":["a","b'"],"nums":[1,-2],"n":null,"e":"it's","fixed":"0123456789abcdef","dec":"-1.25"}` + "\n"
	if got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// FuzzArguments is TestArgumentsAreValues for texts that nobody thought of.
func FuzzArguments(f *testing.F) {
	for _, s := range hostile {
		f.Add(strings.ReplaceAll(s, mark, ""))
	}
	c := startClickHouse(f)
	tool, binding := everyTool(f, c)
	n := 0
	f.Cleanup(func() { c.t = f; checkLog(f, c) })
	f.Fuzz(func(t *testing.T, text string) {
		c.t = t
		text = strings.ToValidUTF8(text, "") // as the host sees to
		tryEverywhere(t, tool, binding, mark+text)
		if n++; n%100 == 0 {
			checkLog(t, c)
			c.admin("DROP TABLE sales.every")
			c.admin(everyType)
		}
	})
}

func TestParameters(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1": "",
		"CREATE VIEW v AS SELECT * FROM t WHERE a = {a:String} AND b = {b: Array(UInt8)} AND {a:String} = ''": "a String;b Array(UInt8);",
		"SELECT '{a:String}', \"{b:String}\", `{c:String}` -- {d:String}\n/* {e:String} */ WHERE {f:Int8}":    "f Int8;",
		"SELECT 'it\\'s {a:String}' , 'it''s {b:String}', {c:UUID}":                                           "c UUID;",
		"SELECT {t:Identifier}, {1a:String}, {:String}, {a}, {a:":                                             "",
		"SELECT '": "", "SELECT /* {a:String}": "", "-- {a:String}": "",
	} {
		var got strings.Builder
		for _, p := range parameters(text) {
			fmt.Fprintf(&got, "%s %s;", p.Name, p.Type)
		}
		if got.String() != want {
			t.Errorf("%s: %q, want %q", text, got.String(), want)
		}
	}
}

// FuzzStatement: what a server says of its views and grants is read without a
// panic.
func FuzzStatement(f *testing.F) {
	for _, s := range []string{"SELECT {a:String} '", "GRANT SELECT, INSERT(a, `b)`) ON `d.b`.* TO u", "REVOKE INSERT ON *.* FROM u", "GRANT r TO u", "Enum8('a' = 1, 'it\\'s' = 2)", "Array(Nullable(LowCardinality(String)))"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parameters(s)
		schemaOf(s)
		if g, _, ok := readGrant(s); ok && g.privileges != nil {
			(&rights{grants: []grant{g}}).may("INSERT", &relation{Database: "d", Name: "t", columns: []column{{Name: "a"}}})
		}
		if name := offer.ToolName(s); !regexp.MustCompile(`^[a-z0-9][a-z0-9_]{0,63}$`).MatchString(name) {
			t.Errorf("%q is called %q", s, name)
		}
	})
}
