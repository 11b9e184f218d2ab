package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// Bounds on what one record keeps of a call, in bytes.
const (
	maxAuditArgs    = 16 << 10 // all arguments together
	maxAuditArg     = 4 << 10  // each
	maxAuditJSON    = 32 << 10 // a payload, the input of a policy, its decision
	maxAuditMember  = 1 << 10  // a member of one of these that is over
	maxAuditVars    = 64
	maxAuditEnv     = 64
	maxAuditMessage = 2 << 10

	// auditMargin is read beyond a bound before it is masked, so that no secret
	// is cut in two by it.
	auditMargin = 4 << 10
	// auditInlineSize is the size from which a record is made by its own call and
	// not by the writer of the log, so that a large one delays no other call.
	auditInlineSize = 64 << 10
)

// auditBegin writes and syncs the record that d is about to run, where that may
// change something. The error is STORE_UNAVAILABLE, or why ctx ended.
func (p *Pipeline) auditBegin(ctx context.Context, d *call.Decided, acc *account) error {
	if !d.Class.Mutating || !p.Audit.On() {
		return nil
	}
	s := p.draft(&d.Request, &d.Pinned, d, acc.caller)
	s.effect, s.replaces, s.approval = audit.EffectAllow, acc.begin, acc.approval
	size, record := s.record(func(c *audit.Call) *audit.Record {
		return &audit.Record{At: s.at, Type: audit.TypeBegin, Call: c}
	})
	n, err := p.Audit.AddSync(ctx, size, record)
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		return &fault.Error{Code: fault.StoreUnavailable, Cause: err, Message: "the audit log cannot be written, so a call that changes something is not begun; " +
			"ask the operator to check the disk space and the folder audit in the daemon's state (toold's log says why), or turn it off with audit.mode in toold.json"}
	}
	acc.begin = n
	return nil
}

// auditEnd records what came of a call.
func (p *Pipeline) auditEnd(q *call.Request, acc *account, res *wire.Result) {
	if !p.Audit.On() {
		return
	}
	in, out, attempts, programs := acc.execution.Spent()
	end := &audit.End{
		Begin: acc.begin, Status: res.Status(), ExitCode: res.ExitCode, Ran: res.Ran, Attempts: attempts,
		DurationMS: res.Duration.Milliseconds(), BytesIn: in, BytesOut: out + int64(len(res.Data)),
		FromCache: res.FromCache, Truncated: res.Truncated, Found: acc.found,
	}
	if res.FromCache {
		end.BytesOut = int64(size(res))
	}
	for _, x := range programs {
		end.Programs = append(end.Programs, audit.Program{Path: x.Path, Refused: x.Refused, Times: x.Times})
	}
	for _, c := range acc.execution.Connections() {
		end.Connections = append(end.Connections, audit.Connection{Host: c.Host, On: c.On, Rule: c.Rule, Refused: c.Refused, Failed: c.Failed, Sent: c.Sent, Received: c.Received, Times: c.Times})
	}
	s := p.draft(q, acc.pinned, acc.decided, acc.caller)
	message, toolCode := "", ""
	if e := res.Err; e != nil {
		end.Code, message, toolCode = string(e.Code), e.Message, e.ToolCode
	}
	s.setEffect(acc, res.Err)
	finish := func(r *audit.Record) *audit.Record {
		end.Message, _ = s.text(message, maxAuditMessage)
		end.ToolCode, _ = s.text(toolCode, maxSaid)
		for i := range end.Programs {
			end.Programs[i].Path, _ = s.text(end.Programs[i].Path, maxAuditArg)
		}
		for i := range end.Connections {
			c := &end.Connections[i]
			c.Host, _ = s.text(c.Host, maxAuditArg)
			c.On, _ = s.text(c.On, maxAuditArg)
			c.Rule, _ = s.text(c.Rule, maxSaid)
			c.Refused, _ = s.text(c.Refused, maxAuditArg)
			c.Failed, _ = s.text(c.Failed, maxAuditArg)
		}
		r.At, r.Type, r.End = s.at, audit.TypeEnd, end
		return r
	}
	if acc.begin != 0 { // which has the rest
		end.Execution = q.ExecutionID
		p.Audit.Add(1<<10, func() *audit.Record { return finish(&audit.Record{}) })
		return
	}
	p.Audit.Add(s.record(func(c *audit.Call) *audit.Record { return finish(&audit.Record{Call: c}) }))
}

// draft is what a record of a call is made of. Nothing that it refers to changes
// after the call has ended; it is masked and written later.
type draft struct {
	at       time.Time
	q        *call.Request
	pinned   *call.Pinned
	decided  *call.Decided
	caller   identity.Caller
	config   string
	effect   string
	rule     string
	approval string
	replaces uint64

	args, env []string
	argBytes  int // of all of them
	argCount  int
	payload   json.RawMessage
	withheld  string
	changed   []string
	stdin     int
	mask      func(string) string // nil: nothing to mask
}

// draft copies what may change when the call has ended: an embedding program's
// slices are its own.
func (p *Pipeline) draft(q *call.Request, pinned *call.Pinned, d *call.Decided, caller identity.Caller) *draft {
	s := &draft{at: time.Now(), pinned: pinned, decided: d, caller: caller, stdin: len(q.Stdin), config: p.config.digest(p)}
	of := *q.Call
	s.q = &call.Request{Call: &of, UID: q.UID, PID: q.PID, Socket: q.Socket, Kind: q.Kind, As: q.As, By: q.By}
	var hidden []string
	if of.Token != "" {
		hidden = append(hidden, of.Token)
	}
	var err error
	switch {
	case pinned != nil:
		if s.mask, err = p.execute.Masker(pinned, hidden...); err != nil {
			s.withheld = "the tool's secrets cannot be read, so nothing can be masked"
		}
	case session.IsCall(q.Tool):
		s.withheld = "session call: only session, operation and execution are kept"
		s.payload = sessionObject(of.Payload)
	default:
		s.withheld = "no tool is known whose secrets could be in them"
	}
	if s.mask == nil && of.Token != "" && s.withheld != "" {
		s.mask, _ = p.execute.Masker(nil, of.Token)
	}
	of.Token, of.Stdin = "", nil
	of.CallerInfo = bytes.Clone(of.CallerInfo[:min(len(of.CallerInfo), maxSaid+auditMargin)])
	s.argCount = len(of.Args)
	for i, a := range of.Args {
		s.argBytes += len(a)
		if s.withheld == "" && s.argBytes-len(a) < maxAuditArgs && i < maxAuditArgs/8 {
			s.args = append(s.args, a)
		}
	}
	if s.withheld == "" && of.Form == wire.Envelope && of.Args == nil {
		s.payload = bytes.Clone(of.Payload)
	}
	s.env = slices.Sorted(maps.Keys(of.Env))
	if d != nil {
		s.changed = changed(q, d)
	}
	of.Args, of.Payload, of.Env = nil, nil, nil
	return s
}

// changed names what the policies made of a request.
func changed(q *call.Request, d *call.Decided) (list []string) {
	asked := call.Undecided(d.Pinned)
	for _, x := range []struct {
		name string
		is   bool
	}{
		{"args", !slices.Equal(d.Args, asked.Args)},
		{"env", !maps.Equal(d.Env, asked.Env)},
		{"stdin", d.Input.Fixed},
		{"stdin_wanted", d.Input.Wanted != asked.Input.Wanted},
		{"mutating", d.Class.Mutating != asked.Class.Mutating},
		{"idempotent", d.Class.Idempotent != asked.Class.Idempotent},
		{"key", d.Key != asked.Key},
		{"timeout", d.Timeout > 0},
		{"shell", d.Shell.Allowed},
	} {
		if x.is {
			list = append(list, x.name)
		}
	}
	return list
}

// setEffect sets whether the call was let through, and by which rule.
func (s *draft) setEffect(acc *account, e *fault.Error) {
	s.effect, s.approval = audit.EffectAllow, acc.approval
	if acc.decided != nil {
		s.rule = acc.decided.Rule
	}
	if acc.planned {
		s.effect = audit.EffectAsk
	}
	if acc.planned || acc.allowed || e == nil {
		return
	}
	s.effect = audit.EffectError
	if e.Code == fault.ApprovalRequired {
		s.effect = audit.EffectAsk
	}
	if e.Code == fault.Denied || e.Code == fault.Unauthenticated {
		s.effect = audit.EffectDeny
	}
	// A rule of the host's has its name in the message, as one of a policy's.
	if rest, ok := strings.CutPrefix(e.Message, "denied by rule "); ok {
		s.rule, _, _ = strings.Cut(rest, ": ")
	}
}

// record is a function that makes the record around the call of s, and how much
// that refers to. What is much is made at once.
func (s *draft) record(around func(*audit.Call) *audit.Record) (size int, record func() *audit.Record) {
	size = 2<<10 + min(s.argBytes, maxAuditArgs) + len(s.payload)
	if s.decided != nil {
		for i := range s.decided.Asked {
			a := &s.decided.Asked[i]
			size += len(a.Input) + len(a.Answer)
		}
		for _, a := range s.decided.Args {
			size += len(a)
		}
	}
	if size < auditInlineSize {
		return size, func() *audit.Record { return around(s.call()) }
	}
	r := around(s.call())
	return size, func() *audit.Record { return r }
}

// call is s as the log has it.
func (s *draft) call() *audit.Call {
	q := s.q
	c := &audit.Call{
		Execution: q.ExecutionID, Kind: cmp.Or(q.Kind, session.KindCall), Parent: q.By.ID(), Trace: q.Trace, Socket: q.Socket,
		Config: s.config, Stdin: s.stdin, Withheld: s.withheld, Effect: s.effect, Replaces: s.replaces,
		Identity: audit.Identity{ID: s.caller.ID, UID: q.UID, PID: q.PID, ReadOnly: s.caller.ReadOnly},
	}
	for _, x := range []struct {
		to   *string
		text string
		most int
	}{
		{&c.Tool, q.Tool, maxSaid}, {&c.Session, q.Session, maxSaid}, {&c.Cwd, q.Cwd, maxAuditArg}, {&c.Rule, s.rule, maxSaid},
		{&c.TraceID, q.TraceID, maxSaid}, {&c.CallerInfo, string(q.CallerInfo), maxSaid},
	} {
		*x.to, _ = s.text(x.text, x.most)
	}
	for claim, to := range map[string]*string{"sub": &c.Identity.Subject, "iss": &c.Identity.Issuer} {
		text, _ := s.caller.Claim(claim)
		*to, _ = s.text(text, maxSaid)
	}
	reduced := func(name string, is bool) {
		if is {
			c.Reduced = append(c.Reduced, name)
		}
	}
	var cut bool
	c.Key, cut = s.text(q.IdempotencyKey, maxSaid)
	reduced("key", cut)
	c.Args, cut = s.texts(s.args, s.argCount)
	if s.withheld == "" {
		reduced("args", cut)
	} else {
		c.Key, c.ArgCount, c.ArgBytes = "", s.argCount, s.argBytes
	}
	if len(s.payload) > 0 {
		var names []string
		c.Payload, names, _ = s.json(s.payload)
		for _, n := range names {
			reduced("payload"+n, true)
		}
	}
	c.Env = s.names(s.env, "env", reduced)
	if s.pinned != nil {
		s.pin(c)
	}
	if d := s.decided; d != nil {
		for i := range d.Asked {
			c.Asked = append(c.Asked, s.asked(&d.Asked[i]))
		}
		if s.effect == audit.EffectAllow {
			c.Runs = s.runs(d, reduced)
		}
	}
	return c
}

// pin says which tool it is, and who calls it.
func (s *draft) pin(c *audit.Call) {
	p := s.pinned
	t := p.Tool
	c.Session, c.Version = p.Session, t.Version
	if c.Source = t.Name; t.Name == c.Tool {
		c.Source = ""
	}
	if p.Cwd != "" {
		c.Cwd, _ = s.text(p.Cwd, maxAuditArg)
	}
	for i, file := range t.PolicyFiles {
		c.Policies = append(c.Policies, audit.Module{File: file, SHA256: t.PolicyDigests[i]})
	}
	c.Runner = &audit.Module{File: t.HandlerFile, SHA256: t.HandlerDigest}
	if t.Kind == tools.Binary {
		c.Runner = &audit.Module{File: t.Binary}
	}
	id := &c.Identity
	id.ReadOnly = p.ReadOnly()
	for name, value := range p.Effective.Shown {
		if id.Claims == nil {
			id.Claims = map[string]string{}
		}
		id.Claims[name], _ = s.text(value, maxSaid)
	}
}

// asked is what one policy was asked and answered.
func (s *draft) asked(a *call.Asked) audit.Asked {
	out := audit.Asked{Module: audit.Module{File: a.File, SHA256: a.Digest}, At: a.At.UTC()}
	if s.withheld != "" { // it holds what that is about
		out.Reduced = []string{"/"}
		return out
	}
	whole, hidden := s.hide(a.Input)
	sum := sha256.Sum256(whole)
	out.InputBytes, out.InputSHA256, out.Masked = len(whole), hex.EncodeToString(sum[:]), hidden
	out.Input, out.Reduced = reduce(whole)
	for i, v := range a.Vars {
		if i == maxAuditVars {
			out.Reduced = append(out.Reduced, "vars")
			break
		}
		x := audit.Var{Bytes: len(v.Value)}
		x.Name, _ = s.text(v.Name, maxSaid)
		if v.Value != nil {
			sum := sha256.Sum256(v.Value)
			x.SHA256 = hex.EncodeToString(sum[:])
		}
		out.Vars = append(out.Vars, x)
	}
	if a.Err != nil {
		out.Error, _ = s.text(a.Err.Error(), maxAuditMessage)
	} else {
		var names []string
		out.Decision, names, _ = s.json(a.Answer)
		for _, n := range names {
			out.Reduced = append(out.Reduced, "decision"+n)
		}
	}
	return out
}

// runs is what runs of d.
func (s *draft) runs(d *call.Decided, reduced func(string, bool)) *audit.Runs {
	r := &audit.Runs{
		Changed: s.changed, Stdin: len(d.Input.Bytes), Mutating: d.Class.Mutating, Idempotent: d.Class.Idempotent,
		TimeoutMS: d.Timeout.Milliseconds(), Shell: d.Shell.Allowed, Approval: s.approval,
	}
	var cut bool
	if s.withheld != "" {
		reduced("runs", true)
		return r
	}
	if slices.Contains(s.changed, "args") {
		r.Args, cut = s.texts(d.Args, len(d.Args))
		reduced("runs.args", cut)
	}
	if slices.Contains(s.changed, "env") {
		r.Env = s.names(slices.Sorted(maps.Keys(d.Env)), "runs.env", reduced)
	}
	if slices.Contains(s.changed, "key") {
		r.Key, cut = s.text(d.Key, maxSaid)
		reduced("runs.key", cut)
	}
	r.ShellLines, cut = s.texts(d.Shell.Lines, len(d.Shell.Lines))
	reduced("runs.shell_lines", cut)
	return r
}

// text is a text with what is secret in it masked, up to so many bytes.
func (s *draft) text(t string, most int) (_ string, cut bool) {
	if len(t) > most+auditMargin {
		t = t[:most+auditMargin]
	}
	if t = hideShapes(t); s.mask != nil {
		t = s.mask(t)
	}
	if len(t) <= most {
		return t, false
	}
	return brief(t, most), true
}

// hideText is a text, whole, with what is secret in it masked.
func (s *draft) hideText(t string) string {
	if t = hideShapes(t); s.mask != nil {
		t = s.mask(t)
	}
	return t
}

// names is a list of names, masked, up to a bound.
func (s *draft) names(list []string, member string, reduced func(string, bool)) (out []string) {
	reduced(member, len(list) > maxAuditEnv)
	for _, name := range list[:min(len(list), maxAuditEnv)] {
		name, _ = s.text(name, maxSaid)
		out = append(out, name)
	}
	return out
}

// sessionObject is what a call about a session says of its object: which session,
// which operation, which execution or job.
func sessionObject(payload json.RawMessage) json.RawMessage {
	var asked struct {
		ID        string `json:"id,omitempty"`
		Op        string `json:"op,omitempty"`
		Execution string `json:"execution,omitempty"`
	}
	json.Unmarshal(payload, &asked) // what it is not is refused, and the record says so
	for _, x := range []*string{&asked.ID, &asked.Op, &asked.Execution} {
		*x = brief(*x, 64)
	}
	b, _ := json.Marshal(asked) // of three strings
	return b
}

// texts is text for a list of count of which these are the first.
func (s *draft) texts(list []string, count int) (out []string, cut bool) {
	cut, left := len(list) < count, maxAuditArgs
	for i, t := range list {
		if left <= 0 {
			return out, true
		}
		t, shorter := s.text(t, min(maxAuditArg, left))
		if i > 0 && isSecretFlag(list[i-1]) {
			t = mask.Placeholder
		}
		cut = cut || shorter
		left -= len(t) + 8
		out = append(out, t)
	}
	return out, cut
}

// json is a JSON text with what is secret in it masked and its large members
// replaced, and the pointers to these.
func (s *draft) json(b []byte) (_ json.RawMessage, reduced []string, hidden bool) {
	b, hidden = s.hide(b)
	out, reduced := reduce(b)
	return out, reduced, hidden
}

// hide is a JSON text with what is secret in it masked.
func (s *draft) hide(b []byte) (_ []byte, hidden bool) {
	if s.mask == nil && !mayHoldShape(b) && !bytes.Contains(b, []byte(`"env":`)) {
		return b, false
	}
	out, hidden, err := mask.Texts(b, func(t mask.JSONText) string {
		if t.Text != "" && secretName.MatchString(t.Member) || isSecretFlag(t.Before) {
			return mask.Placeholder
		}
		u := hideShapes(t.Text)
		if s.mask != nil {
			u = s.mask(u)
		}
		return u
	})
	if err != nil {
		return b, false // which reduce leaves out
	}
	return out, hidden
}

// reduce is an object with its largest members replaced by how long they are and
// their digest, until it has at most maxAuditJSON bytes; nil for what is no
// object.
func reduce(b []byte) (json.RawMessage, []string) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) <= maxAuditJSON && json.Valid(b) {
		return b, nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(b, &members) != nil {
		return nil, []string{"/"}
	}
	var reduced []string
	total := len(b)
	for _, name := range slices.SortedFunc(maps.Keys(members), func(x, y string) int { return len(members[y]) - len(members[x]) }) {
		value := members[name]
		if total <= maxAuditJSON || len(value) < maxAuditMember {
			break
		}
		sum := sha256.Sum256(value)
		members[name] = json.RawMessage(`{"bytes":` + strconv.Itoa(len(value)) + `,"sha256":"` + hex.EncodeToString(sum[:]) + `"}`)
		total += len(members[name]) - len(value)
		reduced = append(reduced, "/"+brief(name, maxSaid))
	}
	if total > maxAuditJSON {
		return nil, []string{"/"}
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil, []string{"/"}
	}
	return out, reduced
}

// What looks like a secret that its caller wrote itself, and that the daemon does
// not know: a token of JSON Web Signature or Encryption, those of well-known
// services, a password in a URL, the value of a header that authorizes. It is
// found as it is, and not in other encodings.
var (
	shapes = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){2,4}|` +
		`\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})`)
	urlSecret    = regexp.MustCompile(`(?i)\b(https?://)[^/?#\s"'@]+@|([a-z][a-z0-9+.-]*://[^/?#\s"'@:]*):[^/?#\s"'@]+@`)
	headerSecret = regexp.MustCompile(`(?i)\b(authorization|proxy-authorization|cookie|x-api-key|private-token|x-auth-token)(\s*[:=]\s*)[^\r\n]+`)
	secretName   = regexp.MustCompile(`(?i)(token|secret|passw|credential|api_?key|private_?key)`)
)

func hideShapes(t string) string {
	if !mayHoldShape([]byte(t)) {
		return t
	}
	t = shapes.ReplaceAllString(t, mask.Placeholder)
	t = urlSecret.ReplaceAllStringFunc(t, func(m string) string {
		scheme, rest, _ := strings.Cut(m, "://")
		if user, _, named := strings.Cut(rest, ":"); named && !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
			return scheme + "://" + user + ":" + mask.Placeholder + "@"
		}
		return scheme + "://" + mask.Placeholder + "@"
	})
	return headerSecret.ReplaceAllString(t, "${1}${2}"+mask.Placeholder)
}

// mayHoldShape is a quick look for what hideShapes replaces: most texts have none.
func mayHoldShape(b []byte) bool {
	for _, mark := range shapeMarks {
		if bytes.Contains(b, mark) {
			return true
		}
	}
	return false
}

var shapeMarks = [][]byte{
	[]byte("eyJ"), []byte("://"), []byte("gh"), []byte("glpat-"), []byte("npm_"), []byte("xox"), []byte("sk-"), []byte("AKIA"),
	[]byte("uthorization"), []byte("UTHORIZATION"), []byte("ookie"), []byte("OOKIE"), []byte("oken"), []byte("OKEN"),
	[]byte("ey"), []byte("EY"), []byte("ecret"), []byte("ECRET"), []byte("assw"), []byte("ASSW"), []byte("redential"), []byte("REDENTIAL"),
}

// isSecretFlag reports whether the word after arg is a secret by its name.
func isSecretFlag(arg string) bool {
	return strings.HasPrefix(arg, "--") && !strings.Contains(arg, "=") && len(arg) < 64 && secretName.MatchString(arg)
}

// appendVar keeps what var_get answered, as far as a record may hold it.
func appendVar(list []call.Var, name string, value []byte) []call.Var {
	if len(list) > maxAuditVars {
		return list
	}
	return append(list, call.Var{Name: name, Value: value})
}

// digestedConfig remembers the digest of the configuration in force.
type digestedConfig struct {
	last atomic.Pointer[digested]
}

type digested struct {
	of  *config.Config
	sum string
}

// digest is that of p's configuration in force. The log is told of it when it is
// another than before.
func (c *digestedConfig) digest(p *Pipeline) string {
	now := p.Config()
	was := c.last.Load()
	if was != nil && was.of == now {
		return was.sum
	}
	text, err := now.Public()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	next := &digested{now, hex.EncodeToString(sum[:])}
	if c.last.CompareAndSwap(was, next) {
		p.Audit.Add(len(text), func() *audit.Record {
			return &audit.Record{At: time.Now(), Type: audit.TypeConfig, Config: &audit.Config{Digest: next.sum, File: now.File, Values: text}}
		})
	}
	return next.sum
}
