// Package record creates the audit log's records of calls: it selects what of a call is kept, masks secrets in it, and
// bounds its size. Approvals show calls by the same rules.
package record

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/audit"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/session"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/host/wire"
)

// Limits on what one record keeps of a call, in bytes.
const (
	// MaxSaid limits each thing that a caller states about itself.
	MaxSaid = 1024
	// MaxArg limits an argument or a path, MaxMessage an error.
	MaxArg     = 4 << 10
	MaxMessage = 2 << 10
	maxArgs    = 16 << 10 // all arguments together
	maxJSON    = 32 << 10 // a payload, the input of a policy, its decision
	maxMember  = 1 << 10  // a member of one of these that is over its limit
	maxVars    = 64
	maxEnv     = 64

	// margin is read beyond a limit before masking, so that no secret is cut in two by it.
	margin = 4 << 10
	// inlineSize is the size from which a record is created by its own call and not by the writer of the log, so that
	// a large one delays no other call.
	inlineSize = 64 << 10
)

// Draft holds what a record of a call is created from. Nothing that it refers to changes after the call has ended; it
// is masked and written later.
type Draft struct {
	At      time.Time
	q       call.Request // of call
	call    wire.Call
	pinned  *call.Pinned
	decided *call.Decided
	caller  identity.Caller
	config  string
	Verdict

	args, env []string
	argBytes  int // of all of them
	argCount  int
	payload   json.RawMessage
	// Withheld is why nothing of the call's content can be shown, or empty.
	Withheld string
	changed  []string
	stdin    int
	mask     func(string) string // nil: nothing to mask
}

// Masker returns a function that masks the secrets of a call's tool and further ones, as execute.Executor.Masker does;
// p may be nil.
type Masker func(p *call.Pinned, further ...string) (func(string) string, error)

// New returns the draft of a call: of q, and of pinned and d as far as the call got. It copies what may change when
// the call has ended: an embedding program owns its slices. config is the digest of the configuration in force.
func New(q *call.Request, pinned *call.Pinned, d *call.Decided, caller identity.Caller, config string, masker Masker) *Draft {
	s := &Draft{At: time.Now(), pinned: pinned, decided: d, caller: caller, stdin: len(q.Stdin), config: config}
	s.call = *q.Call
	of := &s.call
	s.q = call.Request{Call: of, UID: q.UID, Peer: q.Peer, As: q.As, Inner: call.Inner{Kind: q.Kind, By: q.By}}
	var hidden []string
	if of.Token != "" {
		hidden = append(hidden, of.Token)
	}
	var err error
	switch {
	case pinned != nil:
		if s.mask, err = masker(pinned, hidden...); err != nil {
			s.Withheld = "the tool's secrets cannot be read, so nothing can be masked"
		}
	case session.IsCall(q.Tool):
		s.Withheld = "session call: only session, operation and execution are kept"
		s.payload = sessionObject(of.Payload)
	default:
		s.Withheld = "no tool is known whose secrets could be in them"
	}
	if s.mask == nil && of.Token != "" && s.Withheld != "" {
		s.mask, _ = masker(nil, of.Token)
	}
	of.Token, of.Stdin = "", nil
	of.CallerInfo = bytes.Clone(of.CallerInfo[:min(len(of.CallerInfo), MaxSaid+margin)])
	s.argCount = len(of.Args)
	for i, a := range of.Args {
		s.argBytes += len(a)
		if s.Withheld == "" && s.argBytes-len(a) < maxArgs && i < maxArgs/8 {
			s.args = append(s.args, a)
		}
	}
	if s.Withheld == "" && of.Form == wire.Envelope && of.Args == nil {
		s.payload = bytes.Clone(of.Payload)
	}
	if len(of.Env) > 0 {
		s.env = slices.Sorted(maps.Keys(of.Env))
	}
	if d != nil {
		s.changed = changed(q, d)
	}
	of.Args, of.Payload, of.Env = nil, nil, nil
	return s
}

// changed names what the policies changed in a request.
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

// Verdict is whether a call was let through, and why.
type Verdict struct {
	Effect   string // as in package audit
	Rule     string
	Approval string // the id of the approval under which it runs
	Replaces uint64 // the number of the record of its begin, if it begins again
}

// Record returns a function that creates the record around the call of s, and the size of what that refers to. A large
// record is created at once.
func (s *Draft) Record(around func(*audit.Call) *audit.Record) (size int, record func() *audit.Record) {
	size = 2<<10 + min(s.argBytes, maxArgs) + len(s.payload)
	if s.decided != nil {
		for i := range s.decided.Asked {
			a := &s.decided.Asked[i]
			size += len(a.Input) + len(a.Answer)
		}
		for _, a := range s.decided.Args {
			size += len(a)
		}
	}
	if size < inlineSize {
		return size, func() *audit.Record { return around(s.record()) }
	}
	r := around(s.record())
	return size, func() *audit.Record { return r }
}

// record returns s in the form of the log.
func (s *Draft) record() *audit.Call {
	q := &s.q
	c := &audit.Call{
		Execution: q.ExecutionID, Kind: cmp.Or(q.Kind, session.KindCall), Parent: q.By.ID(), Trace: q.Trace, Socket: q.Socket,
		Config: s.config, Stdin: s.stdin, Withheld: s.Withheld, Effect: s.Effect, Replaces: s.Replaces,
		Identity: audit.Identity{ID: s.caller.ID, UID: q.UID, PID: q.PID, ReadOnly: s.caller.ReadOnly},
	}
	for _, x := range []struct {
		to   *string
		text string
		most int
	}{
		{&c.Tool, q.Tool, MaxSaid}, {&c.Session, q.Session, MaxSaid}, {&c.Cwd, q.Cwd, MaxArg}, {&c.Rule, s.Rule, MaxSaid},
		{&c.TraceID, q.TraceID, MaxSaid}, {&c.CallerInfo, string(q.CallerInfo), MaxSaid},
	} {
		*x.to, _ = s.Text(x.text, x.most)
	}
	for claim, to := range map[string]*string{"sub": &c.Identity.Subject, "iss": &c.Identity.Issuer} {
		text, _ := s.caller.Claim(claim)
		*to, _ = s.Text(text, MaxSaid)
	}
	reduced := func(name string, is bool) {
		if is {
			c.Reduced = append(c.Reduced, name)
		}
	}
	var cut bool
	c.Key, cut = s.Text(q.IdempotencyKey, MaxSaid)
	reduced("key", cut)
	c.Args, cut = s.texts(s.args, s.argCount)
	if s.Withheld == "" {
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
		if s.Effect == audit.EffectAllow {
			c.Runs = s.runs(d, reduced)
		}
	}
	return c
}

// pin records which tool is called, and by whom.
func (s *Draft) pin(c *audit.Call) {
	p := s.pinned
	t := p.Tool
	c.Session, c.Version = p.Session, t.Version
	if c.Source = t.Name; t.Name == c.Tool {
		c.Source = ""
	}
	if p.Cwd != "" {
		c.Cwd, _ = s.Text(p.Cwd, MaxArg)
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
		id.Claims[name], _ = s.Text(value, MaxSaid)
	}
}

// asked returns the input and the response of one policy.
func (s *Draft) asked(a *call.Asked) audit.Asked {
	out := audit.Asked{Module: audit.Module{File: a.File, SHA256: a.Digest}, At: a.At.UTC()}
	if s.Withheld != "" { // it contains what is withheld
		out.Reduced = []string{"/"}
		return out
	}
	whole, hidden := s.HideJSON(a.Input)
	sum := sha256.Sum256(whole)
	out.InputBytes, out.InputSHA256, out.Masked = len(whole), hex.EncodeToString(sum[:]), hidden
	out.Input, out.Reduced = reduce(whole)
	for i, v := range a.Vars {
		if i == maxVars {
			out.Reduced = append(out.Reduced, "vars")
			break
		}
		x := audit.Var{Bytes: len(v.Value)}
		x.Name, _ = s.Text(v.Name, MaxSaid)
		if v.Value != nil {
			sum := sha256.Sum256(v.Value)
			x.SHA256 = hex.EncodeToString(sum[:])
		}
		out.Vars = append(out.Vars, x)
	}
	if a.Err != nil {
		out.Error, _ = s.Text(a.Err.Error(), MaxMessage)
	} else {
		var names []string
		out.Decision, names, _ = s.json(a.Answer)
		for _, n := range names {
			out.Reduced = append(out.Reduced, "decision"+n)
		}
	}
	return out
}

// runs returns what runs of d.
func (s *Draft) runs(d *call.Decided, reduced func(string, bool)) *audit.Runs {
	r := &audit.Runs{
		Changed: s.changed, Stdin: len(d.Input.Bytes), Mutating: d.Class.Mutating, Idempotent: d.Class.Idempotent,
		TimeoutMS: d.Timeout.Milliseconds(), Shell: d.Shell.Allowed, Approval: s.Approval,
	}
	var cut bool
	if s.Withheld != "" {
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
		r.Key, cut = s.Text(d.Key, MaxSaid)
		reduced("runs.key", cut)
	}
	r.ShellLines, cut = s.texts(d.Shell.Lines, len(d.Shell.Lines))
	reduced("runs.shell_lines", cut)
	return r
}

// Text masks secrets in a text, and cuts it to at most most bytes.
func (s *Draft) Text(t string, most int) (_ string, cut bool) {
	if len(t) > most+margin {
		t = t[:most+margin]
	}
	if t = HideShapes(t); s.mask != nil {
		t = s.mask(t)
	}
	if len(t) <= most {
		return t, false
	}
	return Brief(t, most), true
}

// HideText masks secrets in a text, without cutting it.
func (s *Draft) HideText(t string) string {
	if t = HideShapes(t); s.mask != nil {
		t = s.mask(t)
	}
	return t
}

// names masks a list of names, up to a limit.
func (s *Draft) names(list []string, member string, reduced func(string, bool)) (out []string) {
	reduced(member, len(list) > maxEnv)
	for _, name := range list[:min(len(list), maxEnv)] {
		name, _ = s.Text(name, MaxSaid)
		out = append(out, name)
	}
	return out
}

// sessionObject returns what a session call says about its object: which session, which operation, which execution or
// job.
func sessionObject(payload json.RawMessage) json.RawMessage {
	var asked struct {
		ID        string `json:"id,omitempty"`
		Op        string `json:"op,omitempty"`
		Execution string `json:"execution,omitempty"`
	}
	json.Unmarshal(payload, &asked) // anything else is refused, and the record says so
	for _, x := range []*string{&asked.ID, &asked.Op, &asked.Execution} {
		*x = Brief(*x, 64)
	}
	b, _ := json.Marshal(asked) // of three strings
	return b
}

// texts applies Text to the items of a list of count, of which list has the first.
func (s *Draft) texts(list []string, count int) (out []string, cut bool) {
	cut, left := len(list) < count, maxArgs
	for i, t := range list {
		if left <= 0 {
			return out, true
		}
		t, shorter := s.Text(t, min(MaxArg, left))
		if i > 0 && IsSecretFlag(list[i-1]) {
			t = mask.Placeholder
		}
		cut = cut || shorter
		left -= len(t) + 8
		out = append(out, t)
	}
	return out, cut
}

// json masks secrets in a JSON text and replaces its large members; it returns the pointers to these.
func (s *Draft) json(b []byte) (_ json.RawMessage, reduced []string, hidden bool) {
	b, hidden = s.HideJSON(b)
	out, reduced := reduce(b)
	return out, reduced, hidden
}

// HideJSON masks secrets in a JSON text.
func (s *Draft) HideJSON(b []byte) (_ []byte, hidden bool) {
	if s.mask == nil && holdsNone(b) {
		return b, false
	}
	out, hidden, err := mask.Texts(b, func(t mask.JSONText) string {
		if t.Text != "" && IsSecretName(t.Member) || IsSecretFlag(t.Before) {
			return mask.Placeholder
		}
		u := HideShapes(t.Text)
		if s.mask != nil {
			u = s.mask(u)
		}
		return u
	})
	if err != nil {
		return b, false // which reduce omits
	}
	return out, hidden
}

// reduce replaces the largest members of an object by their length and digest, until it has at most maxJSON bytes; nil
// if b is not an object.
func reduce(b []byte) (json.RawMessage, []string) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) <= maxJSON && json.Valid(b) {
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
		if total <= maxJSON || len(value) < maxMember {
			break
		}
		sum := sha256.Sum256(value)
		members[name] = json.RawMessage(`{"bytes":` + strconv.Itoa(len(value)) + `,"sha256":"` + hex.EncodeToString(sum[:]) + `"}`)
		total += len(members[name]) - len(value)
		reduced = append(reduced, "/"+Brief(name, MaxSaid))
	}
	if total > maxJSON {
		return nil, []string{"/"}
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil, []string{"/"}
	}
	return out, reduced
}

// AppendVar records a result of var_get, as far as a record may hold it.
func AppendVar(list []call.Var, name string, value []byte) []call.Var {
	if len(list) > maxVars {
		return list
	}
	return append(list, call.Var{Name: name, Value: value})
}

// Brief returns the first most bytes of a text that may be arbitrarily long.
func Brief(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
