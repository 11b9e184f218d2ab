package main

import (
	"strings"
	"testing"

	"github.com/toold/toold/pdk/abi"
)

const (
	oldObject = "1111111111111111111111111111111111111111"
	newObject = "2222222222222222222222222222222222222222"
	stranger  = "3333333333333333333333333333333333333333"
)

// pushOf is a call in a repository whose origin is url.
func pushOf(url string, args ...string) abi.Call {
	return *callOf(args, abi.ConfigEntry{Key: "core.bare", Value: "false"}, abi.ConfigEntry{Key: "remote.origin.url", Value: url})
}

// askBefore is what is known of a push of main whose other side has before.
func askBefore(t *testing.T, c abi.Call, before string) *abi.Reconciliation {
	t.Helper()
	p := testPolicy(nil)
	a, err := p.reconcile(&abi.Reconcile{Call: c, Before: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Run) == 0 {
		return a
	}
	q := &abi.Reconcile{Call: c, Before: true}
	for _, args := range a.Run {
		ran := abi.ReconcileRan{Args: args}
		switch {
		case args[0] == "ls-remote":
			ran.Stdout = before
		case args[1] == "--symbolic-full-name":
			ran.Stdout = "refs/heads/main\n"
		default:
			ran.Stdout = strings.Repeat(newObject+"\n", len(args)-1)
		}
		q.Ran = append(q.Ran, ran)
	}
	if a, err = p.reconcile(q); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestReconcileVerdicts is the table of verdicts on a push from oldObject to newObject.
func TestReconcileVerdicts(t *testing.T) {
	const main, other = "refs/heads/main", "refs/heads/other"
	line := func(object, ref string) string { return object + "\t" + ref + "\n" }
	for _, tt := range []struct {
		name, url, line string
		before, after   string
		src             string // what the source is now, for a server
		want            string
	}{
		{"pushed", "/ws/r.git", "push origin main", line(oldObject, main), line(newObject, main), "", abi.VerdictDone},
		{"a new branch, pushed", "/ws/r.git", "push origin main", "", line(newObject, main), "", abi.VerdictDone},
		{"not pushed", "/ws/r.git", "push origin main", line(oldObject, main), line(oldObject, main), "", abi.VerdictNotDone},
		{"a new branch, not pushed", "/ws/r.git", "push origin main", "", "", "", abi.VerdictNotDone},
		{"moved by somebody else", "/ws/r.git", "push origin main", line(oldObject, main), line(stranger, main), "", abi.VerdictUnknown},
		{"deleted by somebody else", "/ws/r.git", "push origin main", line(oldObject, main), "", "", abi.VerdictUnknown},
		{"made by somebody else", "/ws/r.git", "push origin main", "", line(stranger, main), "", abi.VerdictUnknown},
		{"a name that only ends alike", "/ws/r.git", "push origin main", "", line(newObject, "refs/heads/x/main"), "", abi.VerdictNotDone},
		{"one of two", "/ws/r.git", "push origin main:refs/heads/main main:refs/heads/other", "", line(newObject, main), "", abi.VerdictUnknown},
		{"two of two", "/ws/r.git", "push origin main:refs/heads/main main:refs/heads/other", "", line(newObject, main) + line(newObject, other), "", abi.VerdictDone},
		{"to a server, pushed", "https://example.com/x.git", "push origin main", line(oldObject, main), line(newObject, main), newObject, abi.VerdictDone},
		{"to a server, not pushed", "https://example.com/x.git", "push origin main", line(oldObject, main), line(oldObject, main), newObject, abi.VerdictNotDone},
		{"to a server, and the branch has moved on", "https://example.com/x.git", "push origin main", line(oldObject, main), line(oldObject, main), stranger, abi.VerdictUnknown},
		{"an upstream that is not configured", "/ws/r.git", "push -u origin main", line(oldObject, main), line(newObject, main), "", abi.VerdictUnknown},
	} {
		c := pushOf(tt.url, strings.Fields(tt.line)...)
		before := askBefore(t, c, tt.before)
		if before.Facts == nil {
			t.Errorf("%s: no facts: %+v", tt.name, before)
			continue
		}
		q := &abi.Reconcile{Call: c, Gone: true, Facts: before.Facts}
		a, err := testPolicy(nil).reconcile(q)
		if err != nil || len(a.Run) == 0 {
			t.Errorf("%s: %+v, %v", tt.name, a, err)
			continue
		}
		q.Ran = []abi.ReconcileRan{{Args: a.Run[0], Stdout: tt.after}}
		if len(a.Run) > 1 {
			q.Ran = append(q.Ran, abi.ReconcileRan{Args: a.Run[1], Stdout: tt.src + "\n"})
		}
		if a, err = testPolicy(nil).reconcile(q); err != nil || a.Verdict != tt.want {
			t.Errorf("%s: %+v, %v, want %s", tt.name, a, err, tt.want)
		}
		q.Ran[0].ExitCode = 128
		if a, err = testPolicy(nil).reconcile(q); err != nil || a.Verdict != abi.VerdictUnknown {
			t.Errorf("%s, and the remote does not answer: %+v, %v", tt.name, a, err)
		}
	}
}

// TestReconcileDeclines: of what cannot be told later nothing is written down, and
// nothing is looked into.
func TestReconcileDeclines(t *testing.T) {
	for _, tt := range []struct{ url, line string }{
		{"/ws/r.git", "push --all origin"}, {"/ws/r.git", "push --tags origin"}, {"/ws/r.git", "push --follow-tags origin main"},
		{"/ws/r.git", "push --dry-run origin main"}, {"/ws/r.git", "push --force origin main"}, {"../r.git", "push origin main"},
		{"https://me:secret@example.com/x.git", "push origin main"}, {"/ws/r.git", "commit -m x"}, {"/ws/r.git", "fetch origin"},
	} {
		if a := askBefore(t, pushOf(tt.url, strings.Fields(tt.line)...), ""); a.Facts != nil || len(a.Run) > 0 {
			t.Errorf("%s to %s: %+v", tt.line, tt.url, a)
		}
	}
	facts := askBefore(t, pushOf("https://example.com/x.git", "push", "origin", "main"), "").Facts
	moved := *callOf([]string{"push", "origin", "main"}, abi.ConfigEntry{Key: "remote.origin.url", Value: "https://example.com/x.git"},
		abi.ConfigEntry{Key: "url.https://other.example.com/.insteadof", Value: "https://example.com/"})
	if a, err := testPolicy(nil).reconcile(&abi.Reconcile{Call: moved, Facts: facts}); err != nil || a.Verdict != abi.VerdictUnknown {
		t.Errorf("a rewritten URL: %+v, %v", a, err)
	}
}
