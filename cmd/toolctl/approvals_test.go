package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// The verbs against a real daemon: what is shown is every word of what runs, and
// nothing that its caller wrote is more than text.
func TestApprovalsVerb(t *testing.T) {
	t.Parallel()
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "say", map[string]any{"binary": "/bin/echo", "mutating": true, "capabilities": map[string]any{"env": []string{"API_TOKEN", "MARK"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	toolctl := func(want int, argv ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append(argv, "--admin", d.Config.Admin, "--socket", d.Config.Socket), strings.NewReader(""), &out, &errs); code != want {
			t.Fatalf("%q: code %d, %s", argv, code, errs.String())
		}
		return out.String() + errs.String()
	}
	if got := toolctl(0, "approvals", "list"); got != "no requests\n" {
		t.Errorf("%q", got)
	}
	c := &wire.Call{
		Tool: "say", Cwd: d.Root, Stdin: []byte("in\x07put"), Env: map[string]string{"API_TOKEN": "hush", "MARK": "a\nfolder      /"},
		Args: []string{"ask", `{"self":true,"text":"first\nasked by    root\nghp_0123456789abcdefghijklmn"}`, "plain", "two words", "\x1b]0;x\x07", "", "--password", "hidden", "e\u0301\u200b"},
	}
	call := func() *wire.Result {
		t.Helper()
		r, err := client.Call(t.Context(), d.Config.Socket, c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := call()
	if r.Err == nil || r.Err.Code.ExitCode() != 75 {
		t.Fatalf("%+v", r)
	}
	id := regexp.MustCompile(`approvals approve ([a-z2-7]+)`).FindStringSubmatch(r.Err.Message)[1]
	if got := toolctl(0, "approvals", "list", "--mine"); !strings.Contains(got, id+"  pending  say") {
		t.Errorf("%s", got)
	}
	shown := toolctl(0, "approvals", "show", id)
	for _, line := range []string{
		"tool         say", "binary       /bin/echo", "argument     plain", `argument     "two words"`, `argument     "\x1b]0;x\a"`, `argument     ""`,
		`argument     "e\u0301\u200b"`, `variable     MARK = "a\nfolder      /"`, `input        "in\aput"`,
		`policy says  "first"`, `policy says  "asked by    root"`, "changes      something", "rule         test.ask",
	} {
		if !strings.Contains(shown, line+"\n") {
			t.Errorf("%q is not shown", line)
		}
	}
	if strings.Contains(shown, "hush") || strings.Contains(shown, "ghp_") || strings.Contains(shown, "hidden") || strings.Count(shown, "\nfolder ") != 1 || strings.Count(shown, "\nasked by ") != 1 || strings.ContainsAny(shown, "\x1b\x07\u200b") {
		t.Errorf("%s", shown)
	}
	if got := toolctl(0, "approvals", "show", id, "--json"); !strings.Contains(got, `"yours": true`) {
		t.Errorf("%s", got)
	}
	if got := toolctl(0, "approvals", "approve", id, "--mine", "--reason", "I may"); got != id+": approved, say\n" {
		t.Errorf("%q", got)
	}
	if got := toolctl(1, "approvals", "deny", id); !strings.Contains(got, "is not decided any more") {
		t.Errorf("%q", got)
	}
	if r := call(); r.Err != nil || !strings.HasPrefix(string(r.Stdout), "plain two words") {
		t.Errorf("%+v", r)
	}
	if got := toolctl(0, "approvals", "show", id); !strings.Contains(got, "outcome      success, exit code 0\n") || !strings.Contains(got, `reason       "I may"`) {
		t.Errorf("%s", got)
	}
	if got := toolctl(0, "approvals", "list", "--closed"); !strings.Contains(got, id+"  used") {
		t.Errorf("%s", got)
	}
	if got := toolctl(1, "approvals", "show", "nosuch"); !strings.Contains(got, "there is no such request; toolctl approvals list") {
		t.Errorf("%q", got)
	}
	if got := toolctl(64, "approvals", "approve", "--mine", "nosuch"); !strings.Contains(got, "there is no such request") {
		t.Errorf("%q", got)
	}
}

// A list of calls is planned, approved once and run in its order by verbs; what ran by
// it does not run again, and a list that is another one does not run.
func TestApprovalsOfAList(t *testing.T) {
	t.Parallel()
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "ledger", map[string]any{"binary": "/bin/sh", "mutating": true, "capabilities": map[string]any{"exec": []string{"/usr/bin", "/bin"}}},
		map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/policy")})
	toolctl := func(want int, stdin string, argv ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(t.Context(), append(argv, "--admin", d.Config.Admin, "--socket", d.Config.Socket), strings.NewReader(stdin), &out, &errs); code != want {
			t.Fatalf("%q: code %d, %s%s", argv, code, out.String(), errs.String())
		}
		return out.String() + errs.String()
	}
	envelope := func(args ...string) string {
		b, err := json.Marshal(map[string]any{"toolId": "ledger", "payload": map[string]any{"args": args, "cwd": d.Root}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	add := func(line string) []string {
		return []string{"-c", `echo "$1" >> ledger; printf '\033]0;x\007'"$1"`, "sh", line}
	}
	one := envelope(append([]string{"ask", `{}`}, add("one")...)...)
	two, three := envelope(add("two")...), envelope(add("three")...)
	file := filepath.Join(t.TempDir(), "calls")
	if err := os.WriteFile(file, []byte(one+"\n"+two+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	planned := toolctl(0, "", "approvals", "plan", file)
	found := regexp.MustCompile(`approvals run ([a-z2-7]+) `).FindStringSubmatch(planned)
	if found == nil || !strings.Contains(planned, "1     ledger  yes") || !strings.Contains(planned, "2     ledger  no") {
		t.Fatalf("planned: %s", planned)
	}
	id := found[1]
	if got := toolctl(75, "", "approvals", "run", id, file); !strings.Contains(got, "APPROVAL_REQUIRED") {
		t.Errorf("not approved: %s", got)
	}
	if got := toolctl(0, "", "approvals", "show", id); !strings.Contains(got, "call         2 of 2") {
		t.Errorf("shown: %s", got)
	}
	toolctl(0, "", "approvals", "approve", id)
	if got := toolctl(0, "", "approvals", "run", id, file); !strings.Contains(got, "2 of 2: success, exit code 0") || strings.Contains(got, "\x1b") {
		t.Errorf("run: %q", got)
	}
	toolctl(75, "", "approvals", "run", id, file)

	id = regexp.MustCompile(`approvals run ([a-z2-7]+) `).FindStringSubmatch(toolctl(0, "["+one+","+two+"]", "approvals", "plan", "-"))[1]
	toolctl(0, "", "approvals", "approve", id)
	if got := toolctl(1, one+three, "approvals", "run", id, "-"); !strings.Contains(got, "APPROVAL_REQUIRED") || !strings.Contains(got, "1 of 2 calls ran well") {
		t.Errorf("another list: %s", got)
	}
	if b, err := os.ReadFile(filepath.Join(d.Root, "ledger")); err != nil || string(b) != "one\ntwo\none\n" {
		t.Errorf("the ledger has %q, %v", b, err)
	}
	if got := toolctl(0, two, "approvals", "plan", "-"); !strings.Contains(got, "none of them has to be approved") {
		t.Errorf("nothing to approve: %s", got)
	}
	if got := toolctl(64, two+"{", "approvals", "plan", "-"); !strings.Contains(got, "read call 2 of -") {
		t.Errorf("no list: %s", got)
	}
}
