package pdk

import (
	"encoding/json"
	"fmt"

	"github.com/toold/toold/pdk/abi"
)

// Reconcile is the body of the reconcile export of a policy or a handler: fn is
// asked about a call that is to begin, and again when it was cut off, as
// abi.Reconcile says. An error of fn, like a nil answer, is no verdict: the outcome
// stays unknown.
func Reconcile(fn func(*abi.Reconcile) (*abi.Reconciliation, error)) int32 {
	return Export(func(in []byte) ([]byte, error) {
		var q abi.Reconcile
		if err := decodeReconcile(in, &q); err != nil {
			return nil, fmt.Errorf("read reconcile: %w", err)
		}
		a, err := fn(&q)
		if err != nil {
			return nil, err
		}
		if a == nil {
			a = &abi.Reconciliation{}
		}
		return json.Marshal(a)
	})
}

// Unresolved returns that nothing certain was found out, and why.
func Unresolved(evidence string) *abi.Reconciliation {
	return &abi.Reconciliation{Verdict: abi.VerdictUnknown, Evidence: evidence}
}

// decodeReconcile reads what reconcile is asked, as decodeCall reads a Call.
func decodeReconcile(b []byte, q *abi.Reconcile) error {
	r := &callReader{b: b}
	r.whole(func(name []byte) {
		switch string(name) {
		case "call":
			q.Call = abi.Call{}
			r.call(&q.Call)
		case "env":
			q.Env = r.strings()
		case "stdin_sha256":
			q.StdinSHA256 = r.string()
		case "key":
			q.Key = r.string()
		case "before":
			q.Before = r.bool()
		case "began_ms":
			q.BeganMS = r.int()
		case "ended_ms":
			q.EndedMS = r.int()
		case "now_ms":
			q.NowMS = r.int()
		case "gone":
			q.Gone = r.bool()
		case "facts":
			q.Facts = r.raw()
		case "ran":
			q.Ran = r.ran()
		default:
			r.raw()
		}
	})
	return r.end()
}

func (r *callReader) ran() []abi.ReconcileRan {
	if r.null() {
		return nil
	}
	list := []abi.ReconcileRan{}
	r.sequence('[', ']', func() {
		var ran abi.ReconcileRan
		r.object(func(name []byte) {
			switch string(name) {
			case "args":
				ran.Args = r.strings()
			case "exit_code":
				code := r.int()
				if code != int64(int32(code)) {
					r.fail("not an exit code")
				}
				ran.ExitCode = int(code)
			case "stdout":
				ran.Stdout = r.string()
			case "stderr":
				ran.Stderr = r.string()
			case "truncated":
				ran.Truncated = r.bool()
			case "error":
				ran.Error = r.failure()
			default:
				r.raw()
			}
		})
		list = append(list, ran)
	})
	return list
}

func (r *callReader) failure() *abi.Error {
	if r.null() {
		return nil
	}
	e := &abi.Error{}
	r.object(func(name []byte) {
		switch string(name) {
		case "code":
			e.Code = r.string()
		case "message":
			e.Message = r.string()
		case "retriable":
			e.Retriable = r.bool()
		default:
			r.raw()
		}
	})
	return e
}
