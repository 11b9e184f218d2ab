package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// queryID is the name by which the server knows the insert of an execution, in its log
// of queries and while it runs.
func queryID(c *abi.Call) string {
	if c.ExecutionID == "" {
		return ""
	}
	return "toold-" + c.ExecutionID
}

// serverTime is how long a request may take from a connection that is closed to the
// start of its query.
const serverTime = 2 * time.Minute

// reconcile says how an insert ended that was cut off, by the server's own log of
// queries (system.query_log), in which the insert has the name that it was sent with.
// It reads only: the server allows a GET no more than that.
//
// done: the log has one end of that query, and it is QueryFinish with a row written, which
// the server logs after the rows are in their table and in what the table feeds. The one
// row of an insert is one block and one part, which is there whole or not at all.
//
// not_done: the log has one end of it, and it is an exception before the query
// started, or one of the reader of the row, which comes before the row is written, or
// QueryFinish of no rows from a server that defers no inserts: that is a request whose
// head came and whose row did not. Or it has nothing of it, no query of that name runs,
// and the log has
// entries of the same user that began serverTime after the call was cut off: so the
// user's queries are logged, and the log is written out to a time at which the insert
// would have begun. The host sends nothing more of it (Gone), and the server refuses a
// second query of a name that runs.
//
// Where the insert has a deduplication token, any insert by this tool into the same
// table, by the same user and with the same token, that the log has as finished is done
// as well: of those the server keeps one row.
//
// Any other exception while the query ran is unknown, since the table may have the row and what
// it feeds may not. It is with a token too: a second insert would add no row, nothing to
// what the table feeds, and would say that all is well. So is a server without a log, or one that does not let the
// user read it.
func reconcile(q *abi.Reconcile) (*abi.Reconciliation, error) {
	if q.Before {
		return &abi.Reconciliation{}, nil
	}
	var b binding
	if err := json.Unmarshal(q.Call.Binding, &b); err != nil {
		return nil, fmt.Errorf("read the binding: %w", err)
	}
	id := queryID(&q.Call)
	if !b.Insert || id == "" {
		return pdk.Unresolved("only an insert that has a name is looked into"), nil
	}
	s, err := connect()
	if err != nil {
		return pdk.Unresolved(err.Error()), nil
	}
	var arguments map[string]json.RawMessage
	if b.Token {
		if err := json.Unmarshal(q.Call.Payload, &arguments); err != nil {
			return nil, fmt.Errorf("read the payload: %w", err)
		}
	}
	a, err := s.look(id, b.sameToken(arguments, s.user), q)
	if e, ok := errors.AsType[*exception](err); ok {
		return pdk.Unresolved("the server does not tell: " + e.text), nil
	}
	return a, err
}

// logged is what the server's log has of one query.
type logged struct {
	Finished json.Number `json:"finished"` // with a row
	Empty    json.Number `json:"empty"`    // finished, without one
	Async    json.Number `json:"async"`    // 0: the server cannot defer what an insert writes
	Refused  json.Number `json:"refused"`
	Failed   json.Number `json:"failed"`
	Unread   json.Number `json:"unread"` // of those that failed: the row could not be read
	Started  json.Number `json:"started"`
	Later    json.Number `json:"later"`
	Same     json.Number `json:"same"` // finished, with the same token
}

// unread ends the text of an exception that the reader of an insert's rows threw, as
// servers before version 20 write it. One of a view ends by naming the view, and those
// of what is computed before the row is written leave nothing written either.
const unread = "(at row 1)\n, e.what() = DB::Exception"

// sameToken is the condition on entries of the log for inserts with the token of an
// insert of arguments; empty where it has none.
func (b *binding) sameToken(arguments map[string]json.RawMessage, user string) string {
	token := b.tokenOf(arguments)
	if token == "" {
		return ""
	}
	return "user = " + sqlText(user) + " AND Settings[" + sqlText(tokenSetting) + "] = " + sqlText(token) + " AND startsWith(query, " + sqlText(b.into()) + ")"
}

// look asks the server about the insert of the name id, and, where same is not empty,
// about those that are the same by this condition.
func (s *server) look(id, same string, q *abi.Reconcile) (*abi.Reconciliation, error) {
	// Before the log, so that a query that ends in between is in it, or is not known.
	running, err := s.number("SELECT count() AS n FROM system.processes WHERE query_id = "+sqlText(id)+" FORMAT JSONEachRow", "n")
	if err != nil {
		return nil, err
	}
	// A day earlier than it can be: dates are the server's, by its zone.
	since := "toDate(toDateTime(" + strconv.FormatInt(q.BeganMS/1000-48*3600, 10) + "))"
	isSame, sames := "", ""
	if same != "" {
		isSame, sames = ", "+same+" AS alike", ", sum(alike AND kind = 2) AS same"
	}
	body, err := s.read("SELECT sum(mine AND kind = 1) AS started, sum(mine AND kind = 2 AND rows > 0) AS finished, sum(mine AND kind = 2 AND rows = 0) AS empty, sum(mine AND kind = 3) AS refused, sum(mine AND kind = 4) AS failed, sum(mine AND kind = 4 AND rows = 0 AND torn) AS unread,"+
		" (SELECT count() FROM system.settings WHERE name = 'async_insert') AS async,"+
		" sum(NOT mine AND user = "+sqlText(s.user)+" AND query_start_time > toDateTime("+strconv.FormatInt((q.EndedMS+serverTime.Milliseconds())/1000, 10)+")) AS later"+sames+
		" FROM (SELECT query_id = "+sqlText(id)+" AS mine, CAST(type AS Int8) AS kind, user, query_start_time, written_rows AS rows, endsWith(exception, "+sqlText(unread)+") AS torn"+isSame+" FROM system.query_log WHERE event_date >= "+since+") FORMAT JSONEachRow", url.Values{})
	if err != nil {
		return nil, err
	}
	var l logged
	if err := json.Unmarshal(body, &l); err != nil {
		return nil, fmt.Errorf("read the log of queries: %w", err)
	}
	ends := count(l.Finished) + count(l.Empty) + count(l.Refused) + count(l.Failed)
	evidence := fmt.Sprintf("query %s: %s started, %s finished, %s without a row (deferring: %s), %s refused, %s failed, of which %s to read the row; %d running", id, l.Started, l.Finished, l.Empty, l.Async, l.Refused, l.Failed, l.Unread, running)
	if same != "" {
		evidence += fmt.Sprintf("; with its token %s finished", l.Same)
	}
	done := &abi.Reconciliation{Verdict: abi.VerdictDone, Evidence: evidence, Result: &abi.Result{Stdout: insertedText, Data: json.RawMessage(insertedData)}}
	switch {
	case count(l.Same) > 0:
		return done, nil
	case ends > 1 || count(l.Failed) > count(l.Unread) || running > 0:
	case count(l.Finished) == 1:
		return done, nil
	case count(l.Refused) == 1 || count(l.Unread) == 1 || count(l.Empty) == 1 && l.Async == "0":
		return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: evidence}, nil
	case ends == 0 && count(l.Started) == 0 && count(l.Later) > 0:
		return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: evidence + "; queries that came later are in the log"}, nil
	}
	return pdk.Unresolved(evidence), nil
}

func count(n json.Number) int {
	i, err := strconv.Atoi(n.String())
	if err != nil {
		return 0
	}
	return i
}

// number is the member of the one row that a statement answers.
func (s *server) number(statement, name string) (int, error) {
	body, err := s.read(statement, nil)
	if err != nil {
		return 0, err
	}
	var row map[string]json.Number
	if err := json.Unmarshal(body, &row); err != nil {
		return 0, fmt.Errorf("read the answer of the server: %w", err)
	}
	return strconv.Atoi(row[name].String())
}

// sqlText is a text in a statement. Names of executions are hexadecimal, those of users
// are the server's.
func sqlText(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(text) + "'"
}
