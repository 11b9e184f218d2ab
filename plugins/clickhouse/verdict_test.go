package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// TestReconcileVerdicts is the table of verdicts, by what the server's log has.
func TestReconcileVerdicts(t *testing.T) {
	for _, tt := range []struct {
		name, log string
		running   string
		fails     bool
		want      string
	}{
		{"one end, and it is the finish", `{"started":"1","finished":"1","refused":"0","failed":"0","later":"0"}`, "0", false, abi.VerdictDone},
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
