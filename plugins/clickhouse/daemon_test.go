package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

// desk is a daemon with the shipped clickhouse tool in front of a server.
type desk struct {
	*hosttest.Daemon
	issuer *hosttest.Issuer
	port   string
	tools  string // folder
}

func newDesk(t testing.TB, port string) *desk {
	t.Helper()
	issuer := hosttest.NewIssuer(t)
	d := &desk{issuer: issuer, port: port, tools: filepath.Join(t.TempDir(), "tools.d")}
	if err := os.Mkdir(d.tools, 0o755); err != nil {
		t.Fatal(err)
	}
	d.install(t, nil)
	d.Daemon = hosttest.Start(t, config.Config{Tools: d.tools, LogLevel: "debug", Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	return d
}

// install writes the shipped tool, for the server of the test.
func (d *desk) install(t testing.TB, config map[string]string) {
	t.Helper()
	def := hosttest.ReadyJSON(t, "clickhouse")
	c := def["config"].(map[string]any)
	c["host"], c["port"] = "127.0.0.1", d.port
	for k, v := range config {
		c[k] = v
	}
	def["capabilities"].(map[string]any)["http"].(map[string]any)["hosts"] = []string{"127.0.0.1:" + d.port}
	hosttest.WriteTool(t, d.tools, "clickhouse", def, map[string]string{"handler.wasm": hosttest.Guest(t, "plugins/clickhouse")})
}

// token is one of a user of ClickHouse. more are further claims.
func (d *desk) token(t testing.TB, u user, more map[string]any) string {
	claims := map[string]any{"sub": u.name, "user": u.name, "password": u.password}
	maps.Copy(claims, more)
	return d.issuer.Token(t, claims)
}

func (d *desk) call(t testing.TB, token, tool string, payload any) *wire.Result {
	t.Helper()
	p, ok := payload.(json.RawMessage)
	if !ok {
		var err error
		if p, err = json.Marshal(payload); err != nil {
			t.Fatal(err)
		}
	}
	res, err := client.Call(t.Context(), d.Socket, &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: wire.NewExecutionID(), Payload: p, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

type listing struct {
	Tools []struct {
		Name, Title, Description, Source string
		Schema                           map[string]any
		Annotations                      map[string]any
		Mutating                         bool
	}
	Missing []struct{ Source, Code, Message string }
}

func (d *desk) list(t testing.TB, token string) listing {
	t.Helper()
	var l listing
	res := d.call(t, token, "tools.list", struct{}{})
	if res.Err != nil {
		t.Fatalf("tools.list: %v", res.Err)
	}
	if err := json.Unmarshal(res.Data, &l); err != nil {
		t.Fatal(err)
	}
	return l
}

func (d *desk) names(t testing.TB, token string) []string {
	t.Helper()
	l := d.list(t, token)
	var names []string
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	for _, m := range l.Missing {
		names = append(names, "missing: "+m.Code)
	}
	return names
}

func wantNames(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: tools %v, want %v", what, got, want)
	}
}

func wantCode(t *testing.T, what string, r *wire.Result, code fault.Code) {
	t.Helper()
	switch {
	case code == "" && r.Err != nil:
		t.Errorf("%s: %v", what, r.Err)
	case code != "" && (r.Err == nil || r.Err.Code != code):
		t.Errorf("%s: %v (%s), want %s", what, r.Err, r.Data, code)
	}
}

// TestIdentities is what identity.md promises, against a real server.
func TestIdentities(t *testing.T) {
	c := startClickHouse(t)
	order := map[string]any{
		"id": 1, "region": "north", "amount": 2.5, "day": "2024-05-06", "at": "2024-05-06T07:08:09Z",
		"u": "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "tags": []string{"x"}, "e": "a", "f": "abc", "small": -1,
	}

	t.Run("each sees its own, in either order", func(t *testing.T) {
		for _, first := range []int{1, 2} {
			d := newDesk(t, c.port)
			alice, bob := d.token(t, firstUsers[1], nil), d.token(t, firstUsers[2], nil)
			for _, who := range []int{first, 3 - first} {
				if who == 1 {
					wantNames(t, "alice", d.names(t, alice), "sales_by_region", "sales_orders")
				} else {
					wantNames(t, "bob", d.names(t, bob), "ops_up")
				}
			}
			hidden, none := d.call(t, bob, "sales_by_region", struct{}{}), d.call(t, bob, "sales_by_regio_", struct{}{})
			wantCode(t, "bob calls what alice sees", hidden, fault.UnknownTool)
			if strings.Replace(hidden.Err.Message, "sales_by_region", "NAME", 1) != strings.Replace(none.Err.Message, "sales_by_regio_", "NAME", 1) {
				t.Errorf("a hidden tool is told from none: %q, %q", hidden.Err.Message, none.Err.Message)
			}
			wantCode(t, "alice calls what bob sees", d.call(t, alice, "ops_up", struct{}{}), fault.UnknownTool)
			wantCode(t, "the module by its own name", d.call(t, alice, "clickhouse", struct{}{}), fault.UnknownTool)
			wantCode(t, "nobody", d.call(t, "", "ops_up", struct{}{}), fault.Unauthenticated)
			r := d.call(t, bob, "ops_up", struct{}{})
			if wantCode(t, "bob", r, ""); string(r.Data) != `{"rows":[{"name":"web-1"}],"truncated":false}` {
				t.Errorf("bob reads %s", r.Data)
			}
			r = d.call(t, alice, "sales_orders", order)
			if wantCode(t, "alice", r, ""); string(r.Data) != `{"inserted":1}` {
				t.Errorf("alice writes %s", r.Data)
			}
		}
		if got := c.admin("SELECT at, toString(u), tags, n FROM sales.orders LIMIT 1 FORMAT JSONEachRow"); !strings.Contains(got, `"tags":["x"],"n":null`) {
			t.Errorf("the row is %s", got)
		}
		if got := c.admin("SELECT toUInt32(at) FROM sales.orders LIMIT 1"); got != "1714979289\n" {
			t.Errorf("the time is %s", got)
		}
	})

	t.Run("what the tools say", func(t *testing.T) {
		d := newDesk(t, c.port)
		for _, tool := range d.list(t, d.token(t, firstUsers[1], nil)).Tools {
			yes := tool.Name == "sales_orders"
			if tool.Mutating != yes || tool.Annotations["read_only"] == yes || tool.Annotations["destructive"] != yes || tool.Annotations["open_world"] != false || tool.Schema["additionalProperties"] != false {
				t.Errorf("%s: %+v", tool.Name, tool)
			}
			if tool.Source != "clickhouse" {
				t.Errorf("%s comes from %q", tool.Name, tool.Source)
			}
		}
		before := len(d.Logs())
		d.install(t, map[string]string{"prefix": "wh "})
		d.AwaitLog(t, before, `"msg":"tool swapped"`, `"tool":"clickhouse"`)
		if names := d.names(t, d.token(t, firstUsers[1], nil)); !slices.Equal(names, []string{"wh_sales_by_region", "wh_sales_orders"}) {
			t.Errorf("with a prefix the tools are %q", names)
		}
	})

	t.Run("what leads out of the server", func(t *testing.T) {
		d := newDesk(t, c.port)
		for _, s := range []string{
			"CREATE TABLE sales.ext (a String) ENGINE = URL('http://127.0.0.1:1/x', 'CSV')",
			"CREATE VIEW sales.far AS SELECT * FROM sales.ext",
			"CREATE VIEW sales.farther AS SELECT * FROM sales.far",
			"CREATE VIEW sales.fetched AS SELECT * FROM url('http://127.0.0.1:1/x', 'CSV', 'a String')",
			"CREATE VIEW sales.joined AS SELECT id FROM sales.orders ANY LEFT JOIN (SELECT a, toUInt64(1) AS id FROM sales.ext) USING id",
			"CREATE VIEW sales.arrays AS SELECT id, tag FROM sales.orders ARRAY JOIN tags AS tag",
			"CREATE VIEW sales.quoting AS SELECT 'FROM url(1)' AS x, number FROM numbers(3)",
			"CREATE VIEW sales.others AS SELECT name FROM ops.hosts", // which alice does not see
			"CREATE TABLE sales.plain (a String) ENGINE = Log",
			"CREATE TABLE sales.watched (a String) ENGINE = Memory",
			"CREATE MATERIALIZED VIEW sales.sends TO sales.ext AS SELECT a FROM sales.watched",
			"CREATE TABLE sales.watched_too (a String) ENGINE = Memory",
			"CREATE MATERIALIZED VIEW sales.stores ENGINE = MergeTree ORDER BY a AS SELECT a FROM sales.watched_too",
			"CREATE TABLE sales.buffer (a String) ENGINE = Buffer(sales, plain, 1, 10, 100, 1, 10, 1000, 10000)",
			"CREATE TABLE sales.buffer_out (a String) ENGINE = Buffer(sales, watched, 1, 10, 100, 1, 10, 1000, 10000)",
		} {
			c.admin(s)
		}
		defer func() {
			for _, name := range []string{"buffer_out", "buffer", "stores", "watched_too", "sends", "watched", "plain", "others", "quoting", "arrays", "joined", "fetched", "farther", "far", "ext"} {
				c.admin("DROP TABLE sales." + name)
			}
		}()
		got := map[string]string{}
		for _, tool := range d.list(t, d.token(t, firstUsers[1], nil)).Tools {
			got[strings.TrimPrefix(tool.Name, "sales_")] = fmt.Sprint(tool.Annotations["open_world"], " ", tool.Annotations["read_only"])
		}
		if want := map[string]string{
			"by_region": "false true", "arrays": "false true", "quoting": "false true", "stores": "false true",
			"far": "true true", "farther": "true true", "fetched": "true true", "joined": "true true", "sends": "true true",
			"others": "true <nil>",
			"orders": "false false", "plain": "false false", "watched": "true false", "watched_too": "false false", "buffer": "false false", "buffer_out": "true false",
		}; !maps.Equal(got, want) {
			t.Errorf("open_world and read_only are\n%v, want\n%v", got, want)
		}
	})

	t.Run("a bad payload", func(t *testing.T) {
		d := newDesk(t, c.port)
		alice := d.token(t, firstUsers[1], nil)
		wantCode(t, "an argument that a view has not", d.call(t, alice, "sales_by_region", map[string]any{"x": 1}), fault.InvalidPayload)
		for name, bad := range map[string]any{"small": 128, "e": "c", "u": "x", "day": "yesterday", "f": "abcd", "id": -1, "tags": "x", "region": 1} {
			p := maps.Clone(order)
			p[name] = bad
			wantCode(t, name, d.call(t, alice, "sales_orders", p), fault.InvalidPayload)
		}
	})

	t.Run("read-only by claim", func(t *testing.T) {
		d := newDesk(t, c.port)
		token := d.token(t, firstUsers[1], map[string]any{"read_only": true})
		wantNames(t, "alice, narrowed", d.names(t, token), "sales_by_region")
		wantCode(t, "alice, narrowed", d.call(t, token, "sales_orders", order), fault.UnknownTool)
	})

	t.Run("a view dropped and renamed", func(t *testing.T) {
		d := newDesk(t, c.port)
		c.admin("CREATE VIEW sales.gone AS SELECT 1 AS one")
		c.admin("CREATE VIEW sales.old AS SELECT 1 AS one")
		alice := d.token(t, firstUsers[1], nil)
		wantNames(t, "before", d.names(t, alice), "sales_by_region", "sales_gone", "sales_old", "sales_orders")
		c.admin("DROP TABLE sales.gone")
		c.admin("RENAME TABLE sales.old TO sales.fresh")
		wantNames(t, "kept", d.names(t, alice), "sales_by_region", "sales_gone", "sales_old", "sales_orders")
		wantCode(t, "dropped", d.call(t, alice, "sales_gone", struct{}{}), fault.UnknownTool)
		wantNames(t, "after", d.names(t, alice), "sales_by_region", "sales_fresh", "sales_orders")
		wantCode(t, "renamed", d.call(t, alice, "sales_old", struct{}{}), fault.UnknownTool)
		wantCode(t, "new name", d.call(t, alice, "sales_fresh", struct{}{}), "")
		c.admin("DROP TABLE sales.fresh")
	})

	t.Run("columns changed", func(t *testing.T) {
		d := newDesk(t, c.port)
		c.admin("CREATE VIEW sales.v AS SELECT 1 AS one")
		c.admin("CREATE TABLE sales.log (a String, b String) ENGINE = MergeTree ORDER BY a")
		alice := d.token(t, firstUsers[1], nil)
		wantCode(t, "before", d.call(t, alice, "sales_v", struct{}{}), "")
		wantCode(t, "before", d.call(t, alice, "sales_log", map[string]any{"a": "1", "b": "2"}), "")
		c.admin("DROP TABLE sales.v")
		c.admin("CREATE VIEW sales.v AS SELECT 2 AS two")
		// The arguments are the same: one call sees the new columns.
		r := d.call(t, alice, "sales_v", struct{}{})
		if wantCode(t, "a view with other columns", r, ""); !strings.Contains(string(r.Data), `{"two":2}`) {
			t.Errorf("it reads %s", r.Data)
		}
		c.admin("ALTER TABLE sales.log DROP COLUMN b")
		// Here they are not: the caller is told.
		wantCode(t, "a table with other columns", d.call(t, alice, "sales_log", map[string]any{"a": "1", "b": "2"}), fault.InvalidPayload)
		wantCode(t, "as it is now", d.call(t, alice, "sales_log", map[string]any{"a": "3"}), "")
		if got := c.admin("SELECT count() FROM sales.log"); got != "2\n" {
			t.Errorf("%s rows were written, want 2", got)
		}
		c.admin("DROP TABLE sales.v")
		c.admin("DROP TABLE sales.log")
	})

	t.Run("made read-only", func(t *testing.T) {
		d := newDesk(t, c.port)
		alice := d.token(t, firstUsers[1], nil)
		wantNames(t, "before", d.names(t, alice), "sales_by_region", "sales_orders")
		now := slices.Clone(firstUsers)
		now[1].profile = "reader"
		c.users(now)
		defer c.users(firstUsers)
		r := d.call(t, alice, "sales_orders", order)
		if wantCode(t, "the first write", r, fault.ToolFailed); !strings.Contains(r.Err.Message, "READ_ONLY") {
			t.Errorf("%v", r.Err)
		}
		wantNames(t, "after", d.names(t, alice), "sales_by_region")
		wantCode(t, "the second write", d.call(t, alice, "sales_orders", order), fault.UnknownTool)
	})

	t.Run("a password changed", func(t *testing.T) {
		d := newDesk(t, c.port)
		alice := d.token(t, firstUsers[1], nil)
		wantCode(t, "before", d.call(t, alice, "sales_by_region", struct{}{}), "")
		now := slices.Clone(firstUsers)
		now[1].password = "alice-canary-second"
		c.users(now)
		defer c.users(firstUsers)
		wantCode(t, "the old password", d.call(t, alice, "sales_by_region", struct{}{}), fault.Unauthenticated)
		before := strings.Count(d.Logs(), "surface refused")
		r := d.call(t, alice, "sales_by_region", struct{}{})
		if wantCode(t, "the old password, again", r, fault.UnknownTool); !strings.Contains(r.Err.Message, "refuses this identity") {
			t.Errorf("%v", r.Err)
		}
		if logs := d.Logs(); strings.Count(logs, "surface refused") != before+1 || !strings.Contains(logs, `"remembered":true`) {
			t.Error("the refusal was not remembered")
		}
		wantNames(t, "the old password", d.names(t, alice), "missing: UNAUTHENTICATED")
		wantCode(t, "the new password", d.call(t, d.token(t, now[1], nil), "sales_by_region", struct{}{}), "")
	})

	t.Run("the server stopped and started", func(t *testing.T) {
		d := newDesk(t, c.port)
		alice, bob := d.token(t, firstUsers[1], nil), d.token(t, firstUsers[2], nil)
		wantCode(t, "before", d.call(t, alice, "sales_by_region", struct{}{}), "")
		c.stop()
		r := d.call(t, alice, "sales_by_region", struct{}{})
		if wantCode(t, "a call of a known tool", r, fault.ToolFailed); r.Err == nil || !r.Err.Retriable() {
			t.Errorf("it may not be tried again: %v", r.Err)
		}
		wantNames(t, "known tools", d.names(t, alice), "sales_by_region", "sales_orders")
		wantNames(t, "tools of somebody new", d.names(t, bob), "missing: TOOL_FAILED")
		if r := d.call(t, bob, "ops_up", struct{}{}); r.Err == nil || !r.Err.Retriable() {
			t.Errorf("a call of somebody new: %v", r.Err)
		}
		c.start()
		wantCode(t, "after", d.call(t, alice, "sales_by_region", struct{}{}), "")
		wantNames(t, "after", d.names(t, bob), "ops_up")
	})

	t.Run("a wrong password is remembered, a name collides", func(t *testing.T) {
		d := newDesk(t, c.port)
		stranger := d.token(t, user{name: "mallory", password: "mallory-canary-1"}, nil)
		wantNames(t, "a stranger", d.names(t, stranger), "missing: UNAUTHENTICATED")
		c.admin("CREATE VIEW sales.by_region AS SELECT 1 AS one")
		defer c.admin("DROP TABLE sales.by_region")
		l := d.list(t, d.token(t, firstUsers[1], nil))
		if len(l.Missing) != 1 || !strings.Contains(l.Missing[0].Message, "sales.byRegion and sales.by_region would both be") {
			t.Errorf("%+v", l)
		}
	})

	t.Run("two tokens of one identity, one discovery", func(t *testing.T) {
		d := newDesk(t, c.port)
		for i := range 3 {
			d.names(t, d.token(t, firstUsers[1], map[string]any{"jti": i, "iat": 1 + i}))
		}
		if n := strings.Count(d.Logs(), `"msg":"surface miss"`); n != 1 {
			t.Errorf("%d discoveries", n)
		}
		d.names(t, d.token(t, firstUsers[1], map[string]any{"database": "sales"}))
		if n := strings.Count(d.Logs(), `"msg":"surface miss"`); n != 2 {
			t.Errorf("another database: %d discoveries", n)
		}
	})
}
