// Guest is the conformance guest of the Go SDK, and the reference for those
// of other languages. What each request does is in the documentation of
// package pdktest.
//
// It can break its own rules, one at a time: the configuration "break" names
// the one, and the suite must notice. No other guest needs that.
package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func main() {}

// broken reports whether this rule is the one to break.
func broken(rule string) bool { return pdk.Config("break") == rule }

//go:wasmexport describe
func describe() int32 {
	yes, no := true, false
	d := abi.Describe{
		Name:        "pdktest",
		Description: "the conformance guest",
		Schema:      json.RawMessage(`{"type":"object"}`),
		Annotations: &abi.Annotations{Title: "Conformance", ReadOnly: &yes, Destructive: &no},
		Wants:       []string{abi.WantRepoConfig},
	}
	switch {
	case broken("describe"):
		d.Annotations.Destructive = nil
	case broken("describe-abi"):
		d.ABI = abi.Version + 1
	}
	return pdk.Describe(d)
}

//go:wasmexport restrict
func restrict() int32 {
	if broken("unread-call") {
		return pdk.Export(func(in []byte) ([]byte, error) {
			var c abi.Call
			if json.Unmarshal(in, &c) != nil {
				return []byte(`{"effect":"allow"}`), nil
			}
			return json.Marshal(policy(&c))
		})
	}
	if broken("unknown-field") {
		return pdk.Export(func(in []byte) ([]byte, error) {
			var c abi.Call
			d := json.NewDecoder(strings.NewReader(string(in)))
			d.DisallowUnknownFields()
			if err := d.Decode(&c); err != nil {
				return nil, err
			}
			return json.Marshal(policy(&c))
		})
	}
	if broken("extra-field") {
		return pdk.Export(func(in []byte) ([]byte, error) { return []byte(`{"effect":"allow","comment":"fine"}`), nil })
	}
	return pdk.Restrict(policy)
}

func policy(c *abi.Call) *abi.Decision {
	if len(c.Args) == 0 {
		if broken("no-request") {
			return pdk.Allow()
		}
		return pdk.Deny("pdktest.none", "there is no request", "")
	}
	rest := c.Args[1:]
	switch c.Args[0] {
	case "allow":
		d := pdk.Allow()
		if broken("allow-args") {
			d.Args = []string{}
		}
		return d
	case "deny":
		if broken("deny") {
			return pdk.Allow()
		}
		d := pdk.Deny("pdktest.deny", "asked to deny", "ask to allow")
		if broken("deny-instead") {
			d.Instead = ""
		}
		return d
	case "ask":
		d := pdk.Ask("pdktest.ask", "asked to ask", rest...)
		d.Ask.Self, d.Ask.TTLMS = !broken("ask-self"), 60000
		return d
	case "rewrite":
		d := pdk.Allow()
		d.Rule = "pdktest.rewrite"
		d.Args = slices.Clone(rest)
		slices.Reverse(d.Args)
		d.Env = map[string]string{"REWRITTEN": "yes"}
		stdin := base64.StdEncoding.EncodeToString([]byte("rewritten\n"))
		yes, no := true, false
		d.StdinBase64, d.Mutating, d.Idempotent, d.Stdin, d.Shell = &stdin, &yes, &no, &no, true
		d.IdempotencyKey = "key-" + strconv.Itoa(len(rest))
		d.TimeoutMS = 1500
		d.ShellLines = slices.Clone(d.Args)
		switch {
		case broken("rewrite-args"):
			slices.Reverse(d.Args)
		case broken("rewrite-env"):
			d.Env = nil
		case broken("rewrite-false"):
			d.Idempotent = nil
		case broken("rewrite-stdin"):
			d.Stdin = nil
		case broken("rewrite-shell"):
			d.Shell = false
		case broken("rewrite-shell-lines"):
			d.ShellLines = nil
		case broken("rewrite-timeout"):
			d.TimeoutMS = 1
		case broken("rewrite-key"):
			d.IdempotencyKey = ""
		}
		return d
	case "empty":
		d := pdk.Allow()
		nothing := ""
		d.Args, d.Env, d.StdinBase64 = []string{}, map[string]string{}, &nothing
		switch {
		case broken("empty-args"):
			d.Args = nil
		case broken("empty-env"):
			d.Env = nil
		case broken("empty-stdin"):
			d.StdinBase64 = nil
		}
		return d
	case "config":
		v := pdk.Config(rest[0])
		if v == "" && !broken("config-absent") {
			v = "absent"
		}
		if broken("config") {
			v = strings.ToUpper(v)
		}
		return pdk.Deny("pdktest.config", v, "")
	case "repo":
		switch {
		case c.RepoConfig == nil || broken("repo"):
			return pdk.Deny("pdktest.repo", "none", "")
		case c.RepoConfig.Error != "" && !broken("repo-error"):
			return pdk.Deny("pdktest.repo", c.RepoConfig.Error, "")
		}
		var entries []string
		for _, e := range c.RepoConfig.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		if broken("repo-order") {
			slices.Sort(entries)
		}
		return pdk.Deny("pdktest.repo", strings.Join(entries, ";"), "")
	case "fail":
		if broken("restrict-fail") {
			return pdk.Allow()
		}
		panic("asked to fail")
	case "trap":
		if broken("restrict-trap") {
			return pdk.Allow()
		}
		panic("asked to trap")
	}
	if broken("unknown") {
		return pdk.Allow()
	}
	return pdk.Deny("pdktest.unknown", "unknown request: "+c.Args[0], "")
}

var count int

//go:wasmexport handle
func handle() int32 {
	if broken("count") {
		count = len(pdk.VarGet("count"))
		pdk.VarSet("count", make([]byte, count+1))
	}
	return pdk.Handle(answer)
}

func answer(c *abi.Call) (*abi.Result, error) {
	if len(c.Args) == 0 {
		r := &abi.Result{ExitCode: 2, Stderr: "there is no request\n"}
		if broken("handle-no-request") {
			r.ExitCode = 0
		}
		return r, nil
	}
	rest := c.Args[1:]
	text := strings.Join(rest, " ")
	switch c.Args[0] {
	case "call":
		switch {
		case broken("call-payload"):
			c.Payload = nil
		case broken("call-unicode"):
			for i, a := range c.Args {
				c.Args[i] = strings.ToValidUTF8(strings.Map(func(r rune) rune {
					if r > 0xffff {
						return '?'
					}
					return r
				}, a), "?")
			}
		case broken("call-deadline"):
			c.DeadlineMS = int64(int32(c.DeadlineMS))
		}
		return data(c)
	case "stdout":
		if broken("stdout") {
			text += "\n"
		}
		return &abi.Result{Stdout: text}, nil
	case "stderr":
		if broken("stderr") {
			return &abi.Result{Stdout: text}, nil
		}
		return &abi.Result{Stderr: text}, nil
	case "exit":
		n, err := strconv.Atoi(rest[0])
		if broken("exit") {
			n = min(n, 1)
		}
		return &abi.Result{ExitCode: n}, err
	case "bytes":
		b, err := hex.DecodeString(rest[0])
		if err != nil {
			return nil, err
		}
		back := slices.Clone(b)
		slices.Reverse(back)
		r := &abi.Result{StdoutBase64: base64.StdEncoding.EncodeToString(b), StderrBase64: base64.StdEncoding.EncodeToString(back)}
		switch {
		case broken("bytes-text"):
			r = &abi.Result{Stdout: string(b), Stderr: string(back)}
		case broken("bytes-url"):
			r.StdoutBase64 = base64.URLEncoding.EncodeToString(b)
		}
		return r, nil
	case "data":
		if broken("data") {
			return &abi.Result{Stdout: string(c.Payload)}, nil
		}
		return &abi.Result{Data: c.Payload}, nil
	case "error":
		r := &abi.Result{Error: &abi.Error{Code: rest[0], Message: rest[1], Retriable: true}}
		switch {
		case broken("error"):
			return nil, errors.New(rest[1])
		case broken("error-retriable"):
			r.Error.Retriable = false
		}
		return r, nil
	case "safety":
		r := &abi.Result{Safety: &abi.Safety{ReadOnly: true, Grants: rest[0]}}
		if broken("safety") {
			r.Safety = nil
		}
		return r, nil
	case "gone":
		return &abi.Result{Gone: !broken("gone")}, nil
	case "fail":
		if broken("fail") {
			return &abi.Result{ExitCode: 1, Stderr: text}, nil
		}
		return nil, errors.New(text)
	case "trap":
		if broken("trap") {
			return &abi.Result{ExitCode: 134}, nil
		}
		panic("asked to trap")
	case "config":
		if v := pdk.Config(rest[0]); v != "" || broken("handle-config") {
			return data(map[string]any{"value": v})
		}
		return data(map[string]any{"value": nil})
	case "var-get":
		return variable(rest[0])
	case "var-set":
		if !broken("var-set") {
			pdk.VarSet(rest[0], []byte(rest[1]))
		}
		return variable(rest[0])
	case "var-delete":
		if !broken("var-delete") {
			pdk.VarSet(rest[0], nil)
		}
		return variable(rest[0])
	case "log":
		levels := []string{"debug", "info", "warn", "error"}
		level := pdk.Level(slices.Index(levels, rest[0]))
		if broken("log") {
			level = pdk.LevelInfo
		}
		pdk.Log(level, rest[1])
		return nil, nil
	case "emit":
		pieces := rest[1:]
		if broken("emit") {
			pieces = []string{strings.Join(pieces, "")}
		}
		for _, p := range pieces {
			if err := pdk.Emit(rest[0], []byte(p)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	case "recv":
		pieces := []string{}
		for {
			p, err := pdk.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, string(p))
			if broken("recv") {
				break
			}
		}
		return data(map[string]any{"pieces": pieces})
	case "http":
		return ask(rest)
	case "exec":
		return run(c, rest)
	case "tool-call":
		b, err := pdk.ToolCall(c.Payload)
		if broken("tool-call") {
			b = c.Payload
		}
		return &abi.Result{Data: b}, err
	case "length":
		b, err := base64.StdEncoding.DecodeString(c.StdinBase64)
		if broken("length") {
			b = b[:min(len(b), 65536)]
		}
		if err != nil {
			return nil, err
		}
		return data(map[string]int{"length": len(b)})
	case "large":
		n, err := strconv.Atoi(rest[0])
		if broken("large") {
			n = min(n, 65536)
		}
		return &abi.Result{Stdout: strings.Repeat("x", n)}, err
	case "count":
		count++
		return data(map[string]int{"count": count})
	}
	if broken("handle-unknown") {
		return nil, nil
	}
	return &abi.Result{ExitCode: 2, Stderr: "unknown request: " + c.Args[0] + "\n"}, nil
}

func data(v any) (*abi.Result, error) {
	b, err := json.Marshal(v)
	return &abi.Result{Data: b}, err
}

func variable(key string) (*abi.Result, error) {
	v := pdk.VarGet(key)
	if v == nil || broken("var-get") {
		return data(map[string]any{"value": nil})
	}
	return data(map[string]any{"value": string(v)})
}

func ask(rest []string) (*abi.Result, error) {
	q := &pdk.HTTPRequest{Method: rest[0], URL: rest[1], Headers: map[string]string{"X-Request": "pdktest"}, Body: []byte(rest[2])}
	switch {
	case broken("http-header"):
		q.Headers = nil
	case broken("http-body"):
		q.Body = nil
	}
	res, err := pdk.HTTP(q)
	if err != nil {
		if broken("http-error") {
			return nil, err
		}
		return data(map[string]any{"failed": true})
	}
	if broken("http-status") {
		res.Status = 200
	}
	return data(map[string]any{"status": res.Status, "reply": res.Headers["x-reply"], "body": string(res.Body)})
}

func run(c *abi.Call, rest []string) (*abi.Result, error) {
	q := &abi.ExecRequest{Path: rest[0], Args: rest[1:], Cwd: c.Cwd, Env: map[string]string{"A": "b"}, StdinBase64: base64.StdEncoding.EncodeToString([]byte("in"))}
	if broken("exec-cwd") {
		q.Cwd = ""
	}
	res, err := pdk.Exec(q)
	if err != nil {
		if broken("exec-refused") {
			return nil, err
		}
		return data(map[string]any{"refused": err.Error()})
	}
	out, err1 := base64.StdEncoding.DecodeString(res.StdoutBase64)
	errs, err2 := base64.StdEncoding.DecodeString(res.StderrBase64)
	if broken("exec-code") && res.ExitCode != 0 {
		return nil, fmt.Errorf("%s exited with %d", rest[0], res.ExitCode)
	}
	r, err3 := data(map[string]any{"exit_code": res.ExitCode, "stdout": string(out), "stderr": string(errs)})
	return r, errors.Join(err1, err2, err3)
}

//go:wasmexport discover
func discover() int32 { return pdk.Discover(surface) }

func surface(d *abi.Discovery) (*abi.Surface, error) {
	switch pdk.Config("server") {
	case "refuses":
		e := &abi.Error{Code: abi.Unauthenticated, Message: "no such user"}
		if broken("discover-refused") {
			return nil, errors.New(e.Message)
		}
		return &abi.Surface{Error: e}, nil
	case "fails":
		return nil, errors.New("the server is away")
	}
	yes := true
	s := &abi.Surface{
		Tools: []abi.SurfaceTool{
			{Name: "one", Title: "One", Description: "the first", Schema: json.RawMessage(`{"type":"object"}`),
				OutputSchema: json.RawMessage(`{"type":"object","required":["ok"]}`),
				Icons:        []abi.Icon{{Src: "https://pdktest.example/one.png", MIMEType: "image/png", Sizes: []string{"48x48", "any"}, Theme: "dark"}, {Src: "data:,"}},
				Annotations:  &abi.Annotations{ReadOnly: &yes}, Binding: json.RawMessage(`{"view":"v"}`)},
			{Name: "two", Mutating: true},
		},
		Safety: &abi.Safety{ReadOnly: d.ReadOnly, Grants: d.Tool},
		TTLMS:  60000,
	}
	if d.ReadOnly && !broken("discover-all") {
		s.Tools = s.Tools[:1]
	}
	switch {
	case broken("discover-binding"):
		s.Tools[0].Binding = nil
	case broken("discover-output"):
		s.Tools[0].OutputSchema = nil
	case broken("discover-icons"):
		s.Tools[0].Icons = s.Tools[0].Icons[:1]
	case broken("discover-theme"):
		s.Tools[0].Icons[0].Theme = ""
	case broken("discover-safety"):
		s.Safety = nil
	case broken("discover-ttl"):
		s.TTLMS = 0
	}
	return s, nil
}

//go:wasmexport classify
func classify() int32 {
	return pdk.Export(func(in []byte) ([]byte, error) {
		var e abi.Classify
		if err := json.Unmarshal(in, &e); err != nil {
			return nil, err
		}
		if len(e.Call.Args) == 0 {
			return nil, errors.New("there is no request")
		}
		stderr, err := base64.StdEncoding.DecodeString(e.Result.StderrBase64)
		if err != nil {
			return nil, err
		}
		c := abi.Classification{Failure: e.Result.ExitCode >= 2, Retriable: string(stderr) == "try again\xff"}
		switch {
		case broken("classify-failure"):
			c.Failure = true
		case broken("classify-retriable"):
			c.Retriable = false
		}
		return json.Marshal(c)
	})
}

//go:wasmexport reconcile
func reconcile() int32 { return pdk.Reconcile(ended) }

func ended(q *abi.Reconcile) (*abi.Reconciliation, error) {
	args := q.Call.Args
	if len(args) == 0 {
		return nil, errors.New("there is no request")
	}
	if q.Before && !broken("reconcile-facts") {
		facts, err := json.Marshal(map[string]string{"key": q.Key, "of": q.Call.ExecutionID})
		return &abi.Reconciliation{Facts: facts}, err
	}
	switch args[0] {
	case "run":
		if len(q.Ran) == 0 && !broken("reconcile-run") {
			return &abi.Reconciliation{Run: [][]string{args[1:], {}}}, nil
		}
		var told []string
		for _, r := range q.Ran {
			failed := "none"
			if e := r.Error; e != nil && !broken("reconcile-ran") {
				failed = fmt.Sprintf("%s:%s:%v", e.Code, e.Message, e.Retriable)
			}
			told = append(told, fmt.Sprintf("%s>%d>%s>%s>%v>%s", strings.Join(r.Args, ","), r.ExitCode, r.Stdout, r.Stderr, r.Truncated, failed))
		}
		return pdk.Unresolved(strings.Join(told, ";")), nil
	case "asked":
		if broken("reconcile-asked") {
			q.Env = nil
		}
		return pdk.Unresolved(fmt.Sprintf("%s|%s|%s|%d|%d|%d|%v", q.Key, q.StdinSHA256, strings.Join(q.Env, ","), q.BeganMS, q.EndedMS, q.NowMS, q.Gone)), nil
	case "done":
		a := &abi.Reconciliation{Verdict: abi.VerdictDone, Evidence: "it is there", Result: &abi.Result{Stdout: strings.Join(args[1:], " "), Data: q.Facts}}
		if broken("reconcile-done") {
			a.Result = nil
		}
		return a, nil
	case "not-done":
		if q.Gone || broken("reconcile-gone") {
			return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: "it is not there"}, nil
		}
		return pdk.Unresolved("it may still run"), nil
	case "fail":
		if !broken("reconcile-fail") {
			return nil, errors.New("asked to fail")
		}
	}
	return nil, nil
}

//go:wasmexport wire
func wire() int32 { return pdk.Wire(sent) }

func sent(w *abi.Wire) *abi.Decision {
	args := w.Call.Args
	if len(args) == 0 {
		panic("there is no request")
	}
	switch args[0] {
	case "allow":
		return pdk.Allow()
	case "asked":
		var refs []string
		for _, r := range w.Refs {
			force := "null"
			if r.Force != nil {
				force = strconv.FormatBool(*r.Force)
			} else if broken("wire-force") {
				force = "false"
			}
			refs = append(refs, strings.Join([]string{r.Name, r.Old, r.New, force}, ":"))
		}
		if broken("wire-options") {
			w.PushOptions = nil
		}
		told := []string{w.On, w.Host, strconv.Itoa(w.Port), w.Path, w.Method, w.Remote, strings.Join(refs, ","), strings.Join(w.PushOptions, ",")}
		return pdk.Deny("pdktest.wire", strings.Join(told, "|"), "")
	case "fail":
		if broken("wire-fail") {
			return pdk.Allow()
		}
		panic("asked to fail")
	}
	return pdk.Deny("pdktest.unknown", "unknown request: "+args[0], "")
}
