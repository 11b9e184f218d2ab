// A policy of a shell for tests of the host. The fourth argument of a call says how it
// looks into it.
package main

import (
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport restrict
func restrict() int32 {
	return pdk.Restrict(func(c *abi.Call) *abi.Decision {
		d := pdk.Allow()
		d.Shell = true
		if len(c.Args) == 2 && c.Args[0] == "look" {
			no := false
			d.Args, d.Mutating = []string{"-c", c.Args[1]}, &no
		}
		return d
	})
}

//go:wasmexport reconcile
func reconcile() int32 { return pdk.Reconcile(look) }

func look(q *abi.Reconcile) (*abi.Reconciliation, error) {
	if q.Before {
		return &abi.Reconciliation{Facts: []byte(`{"facts":"of ` + q.Call.Args[4] + `"}`)}, nil
	}
	if !strings.Contains(string(q.Facts), `of `+q.Call.Args[4]+`"`) || q.Key != q.Call.Args[4] || q.BeganMS == 0 || q.EndedMS < q.BeganMS-60_000 {
		return pdk.Unresolved("the facts are " + string(q.Facts)), nil
	}
	done := &abi.Reconciliation{Verdict: abi.VerdictDone, Evidence: "it says so", Result: &abi.Result{Stdout: "found\n"}}
	switch q.Call.Args[3] {
	case "mutates":
		if len(q.Ran) == 0 {
			return &abi.Reconciliation{Run: [][]string{{"-c", "touch escaped"}}}, nil
		}
		if q.Ran[0].Error != nil {
			return pdk.Unresolved("refused: " + q.Ran[0].Error.Message), nil
		}
		return done, nil
	case "never-enough":
		return &abi.Reconciliation{Run: [][]string{{"look", "true"}}}, nil
	case "nonsense":
		return &abi.Reconciliation{Verdict: "perhaps"}, nil
	case "failed":
		done.Result.ExitCode = 1
		return done, nil
	case "trap":
		panic("a reconciler that panics")
	case "not-done":
		return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: "nothing is there"}, nil
	case "looks":
		if len(q.Ran) == 0 {
			return &abi.Reconciliation{Run: [][]string{{"look", "ls"}}}, nil
		}
		done.Result.Stdout = q.Ran[0].Stdout
		done.Evidence = "ls answers " + q.Ran[0].Stdout
	}
	return done, nil
}

func main() {}
