package main

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// TestDeduplicates is for which tables the server keeps one of two inserts.
func TestDeduplicates(t *testing.T) {
	const plain = "CREATE TABLE a.b (x String) ENGINE = MergeTree ORDER BY x SETTINGS index_granularity = 8192"
	for _, tt := range []struct {
		engine, query string
		want          bool
	}{
		{"MergeTree", plain, false},
		{"MergeTree", plain + ", non_replicated_deduplication_window = 100", true},
		{"ReplacingMergeTree", plain + ", non_replicated_deduplication_window = 100, storage_policy = 'a, b' COMMENT 'it\\'s one'", true},
		{"MergeTree", plain + ", non_replicated_deduplication_window = 0", false},
		{"MergeTree", plain + ", replicated_deduplication_window = 100", false},
		{"MergeTree", plain + " COMMENT 'x SETTINGS non_replicated_deduplication_window = 100'", false},
		{"MergeTree", "CREATE TABLE a.b (x String COMMENT ' SETTINGS non_replicated_deduplication_window = 1') ENGINE = MergeTree ORDER BY x", false},
		{"ReplicatedMergeTree", "CREATE TABLE a.b (x String) ENGINE = ReplicatedMergeTree ORDER BY x", true},
		{"ReplicatedSummingMergeTree", plain + ", replicated_deduplication_window = 0", false},
		{"SharedMergeTree", plain, true},
		{"Distributed", plain + ", non_replicated_deduplication_window = 100", false},
		{"Memory", "", false},
	} {
		if got := deduplicates(&relation{Engine: tt.engine, Query: tt.query}); got != tt.want {
			t.Errorf("%s: %s: %v", tt.engine, tt.query, got)
		}
	}
}

// TestReconcileByToken is the table of verdicts of an insert with a token: what other
// inserts with it did counts, and only of one that was given a token.
func TestReconcileByToken(t *testing.T) {
	for _, tt := range []struct {
		name, log, running, payload string
		binding                     binding
		asks                        bool
		want                        string
	}{
		{"another one with it finished", `{"started":"1","finished":"0","refused":"0","failed":"1","later":"0","same":"1"}`, "0", `{"insert_deduplication_token":"t'1"}`, binding{Token: true}, true, abi.VerdictDone},
		{"that, and this one runs", `{"started":"1","finished":"0","refused":"0","failed":"0","later":"0","same":"2"}`, "1", `{"insert_deduplication_token":"t'1"}`, binding{Token: true}, true, abi.VerdictDone},
		{"none finished, and this one failed", `{"started":"1","finished":"0","refused":"0","failed":"1","later":"9","same":"0"}`, "0", `{"insert_deduplication_token":"t'1"}`, binding{Token: true}, true, abi.VerdictUnknown},
		{"none finished, and this one was refused", `{"started":"0","finished":"0","refused":"1","failed":"0","later":"0","same":"0"}`, "0", `{"insert_deduplication_token":"t'1"}`, binding{Token: true}, true, abi.VerdictNotDone},
		{"an empty log", `{"started":null,"finished":null,"refused":null,"failed":null,"later":null,"same":null}`, "0", `{"insert_deduplication_token":"t'1"}`, binding{Token: true}, true, abi.VerdictUnknown},
		{"without one", `{"started":"1","finished":"0","refused":"0","failed":"1","later":"0"}`, "0", `{}`, binding{Token: true}, false, abi.VerdictUnknown},
		{"a column of that name", `{"started":"1","finished":"0","refused":"0","failed":"1","later":"0"}`, "0", `{"insert_deduplication_token":"t'1"}`, binding{}, false, abi.VerdictUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := &pdk.Fake{
				Config: map[string]string{"host": "db.example", "port": "8123", "user": "alice", "password": "p"},
				HTTP: func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
					if strings.Contains(r.URL, "system.processes") {
						return &pdk.HTTPResponse{Status: 200, Body: []byte(`{"n":"` + tt.running + `"}`)}, nil
					}
					u, err := url.Parse(r.URL)
					if err != nil {
						t.Fatal(err)
					}
					const alike = "user = 'alice' AND Settings['insert_deduplication_token'] = 't\\'1' AND startsWith(query, 'INSERT INTO `sales`.`orders` (') AS alike"
					if q := u.Query().Get("query"); strings.Contains(q, alike) != tt.asks || strings.Contains(q, "AS same") != tt.asks {
						t.Errorf("it asks %s", q)
					}
					return &pdk.HTTPResponse{Status: 200, Body: []byte(tt.log)}, nil
				},
			}
			tt.binding.Insert, tt.binding.Database, tt.binding.Name = true, "sales", "orders"
			b, err := json.Marshal(tt.binding)
			if err != nil {
				t.Fatal(err)
			}
			in, err := json.Marshal(abi.Reconcile{Call: abi.Call{Binding: b, ExecutionID: "x", Payload: json.RawMessage(tt.payload)}, Gone: true, BeganMS: 1, EndedMS: 2})
			if err != nil {
				t.Fatal(err)
			}
			out, err := fake.Run(func() int32 { return pdk.Reconcile(reconcile) }, in)
			var a abi.Reconciliation
			if err != nil || json.Unmarshal(out, &a) != nil || a.Verdict != tt.want {
				t.Errorf("%s, %v, want %s", out, err, tt.want)
			}
		})
	}
}

// TestReconcileVerdicts is the table of verdicts, by what the server's log has.
func TestReconcileVerdicts(t *testing.T) {
	for _, tt := range []struct {
		name, log string
		running   string
		fails     bool
		want      string
	}{
		{"one end, and it is the finish", `{"started":"1","finished":"1","refused":"0","failed":"0","later":"0"}`, "0", false, abi.VerdictDone},
		{"finished without a row", `{"started":"1","finished":"0","empty":"1","refused":"0","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"finished without a row, and the server may defer", `{"started":"1","finished":"0","empty":"1","async":"1","refused":"0","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"finished without a row, and the server defers nothing", `{"started":"1","finished":"0","empty":"1","async":"0","refused":"0","failed":"0","later":"0"}`, "0", false, abi.VerdictNotDone},
		{"that, and a query of the name runs", `{"started":"1","finished":"0","empty":"1","async":"0","refused":"0","failed":"0","later":"0"}`, "1", false, abi.VerdictUnknown},
		{"an end without a beginning, and without a row", `{"started":"0","finished":"0","empty":"1","refused":"0","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"finished without a row and with one", `{"started":"2","finished":"1","empty":"1","refused":"0","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"the row could not be read", `{"started":"1","finished":"0","refused":"0","failed":"1","unread":"1","later":"0"}`, "0", false, abi.VerdictNotDone},
		{"that, and a query of the name runs", `{"started":"1","finished":"0","refused":"0","failed":"1","unread":"1","later":"0"}`, "1", false, abi.VerdictUnknown},
		{"that, and failed another time", `{"started":"2","finished":"0","refused":"0","failed":"2","unread":"1","later":"0"}`, "0", false, abi.VerdictUnknown},
		{"that, and finished another time", `{"started":"2","finished":"1","refused":"0","failed":"1","unread":"1","later":"0"}`, "0", false, abi.VerdictUnknown},
		{"refused before it started", `{"started":"0","finished":"0","refused":"1","failed":"0","later":"0"}`, "0", false, abi.VerdictNotDone},
		{"refused, and a query of the name runs", `{"started":"0","finished":"0","refused":"1","failed":"0","later":"0"}`, "1", false, abi.VerdictUnknown},
		{"refused, and finished another time", `{"started":"1","finished":"1","refused":"1","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"refused twice", `{"started":"0","finished":"0","refused":"2","failed":"0","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"an exception while it ran", `{"started":"1","finished":"0","refused":"0","failed":"1","later":"9"}`, "0", false, abi.VerdictUnknown},
		{"nothing of it, and later queries", `{"started":"0","finished":"0","refused":"0","failed":"0","later":"3"}`, "0", false, abi.VerdictNotDone},
		{"nothing of it, later queries, and it runs", `{"started":"0","finished":"0","refused":"0","failed":"0","later":"3"}`, "1", false, abi.VerdictUnknown},
		{"nothing of it, and nothing later", `{"started":"0","finished":"0","refused":"0","failed":"0","later":"0"}`, "0", false, abi.VerdictUnknown},
		{"it started, and later queries", `{"started":"1","finished":"0","refused":"0","failed":"0","later":"3"}`, "0", false, abi.VerdictUnknown},
		{"an empty log", `{"started":null,"finished":null,"refused":null,"failed":null,"later":null}`, "0", false, abi.VerdictUnknown},
		{"a log that cannot be read", "", "0", true, abi.VerdictUnknown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := &pdk.Fake{
				Config: map[string]string{"host": "db.example", "port": "8123", "user": "alice", "password": "p"},
				HTTP: func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
					if r.Method != "GET" {
						t.Errorf("a look by %s", r.Method)
					}
					switch {
					case strings.Contains(r.URL, "system.processes"):
						return &pdk.HTTPResponse{Status: 200, Body: []byte(`{"n":"` + tt.running + `"}`)}, nil
					case tt.fails:
						return &pdk.HTTPResponse{Status: 404, Headers: map[string]string{"x-clickhouse-exception-code": "497"}, Body: []byte("Code: 497. Not enough privileges")}, nil
					}
					return &pdk.HTTPResponse{Status: 200, Body: []byte(tt.log)}, nil
				},
			}
			b, err := json.Marshal(binding{Insert: true})
			if err != nil {
				t.Fatal(err)
			}
			in, err := json.Marshal(abi.Reconcile{Call: abi.Call{Binding: b, ExecutionID: "x"}, Gone: true, BeganMS: 1, EndedMS: 2})
			if err != nil {
				t.Fatal(err)
			}
			out, err := fake.Run(func() int32 { return pdk.Reconcile(reconcile) }, in)
			var a abi.Reconciliation
			if err != nil || json.Unmarshal(out, &a) != nil || a.Verdict != tt.want {
				t.Errorf("%s, %v, want %s", out, err, tt.want)
			}
		})
	}
}
