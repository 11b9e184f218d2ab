// Package audit keeps the log of who ran what: one record per call, with the caller, the request, the versions of the
// tool and its policies, the policies' decisions, what ran and how it ended.
//
// The log is a folder of segments of JSON lines, 00000001.log onwards, and a file "head". Each record has the SHA-256
// of the line before it, the first of a segment that of the last line of the segment before; head holds the number and
// the hash of the last record. Verify finds every change of any of them that was made without recomputing all that
// follows, the head included. Whoever can write the folder and knows the format can rewrite the log: only a hash that
// is kept elsewhere (see Report.Hash and Verify) detects that.
//
// Log writes, and is safe for concurrent use; the caller ensures that only one process uses a folder at a time.
// Reading a log (Read, Verify) needs no daemon and may happen while one writes.
//
// The package is independent of tools: package pipeline creates the records. It masks nothing: records are written as
// given.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toold/toold/host/strictjson"
)

// Version is the version of the format that this program writes. It reads records of later versions as far as it knows
// their members.
const Version = 1

// MaxLine bounds a record, in bytes with its line break. Data of a call that exceeds it is omitted from its record,
// which says so.
const MaxLine = 256 << 10

// The types of records.
const (
	// TypeSegment is the first record of each segment.
	TypeSegment = "segment"
	// TypeBegin is a call that is about to run and may change something. It is on disk before the call begins.
	TypeBegin = "begin"
	// TypeEnd is a call that has ended, or was refused. It is the only record of a call that has no begin.
	TypeEnd = "end"
	// TypeNote is an event in the log itself.
	TypeNote = "note"
	// TypeApproval is a call whose policy requires approval, and the state of that request.
	TypeApproval = "approval"
	// TypeConfig is the configuration of the daemon from this record on.
	TypeConfig = "config"
)

// Record is one line of the log. Besides the first members, each type uses one or two of the others.
type Record struct {
	// N counts from 1 over all segments.
	N uint64 `json:"n"`
	// Prev is the hash of the previous line: its SHA-256 in hexadecimal, without the line break. In the very first
	// record it is 64 zeros.
	Prev string    `json:"prev"`
	At   time.Time `json:"at"`
	Type string    `json:"type"`
	// Lost counts the records before this one that could not be written.
	Lost uint64 `json:"lost,omitempty"`

	Segment *Segment `json:"segment,omitempty"`
	Call    *Call    `json:"call,omitempty"`
	End     *End     `json:"end,omitempty"`
	Note    *Note    `json:"note,omitempty"`
	Config  *Config  `json:"config,omitempty"`

	Approval *Approval `json:"approval,omitempty"`
}

// Approval is the new state of a request for approval.
type Approval struct {
	ID string `json:"id"`
	// State is pending, approved, denied, used, expired or lapsed. Began counts the calls that were started under it,
	// Outcome is the outcome of the last one.
	State   string `json:"state"`
	Began   int    `json:"began,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	// Asker is the identity that called, Decider is "operator" or an identity, and the names are those by which a
	// policy may refer to them.
	Asker       string `json:"asker"`
	AskerName   string `json:"asker_name,omitempty"`
	Decider     string `json:"decider,omitempty"`
	DeciderName string `json:"decider_name,omitempty"`
	Reason      string `json:"reason,omitempty"`
	// Execution is the execution that first requested it, UsedBy the one that runs.
	Execution string `json:"execution,omitempty"`
	UsedBy    string `json:"used_by,omitempty"`
	Session   string `json:"session,omitempty"`
	Rule      string `json:"rule,omitempty"`
	// Tools and Digests are those of the calls, in order.
	Tools   []string `json:"tools"`
	Digests []string `json:"digests"`
}

// Segment is the content of the first record of a segment.
type Segment struct {
	Version int    `json:"version"`
	Number  uint64 `json:"number"`
}

// The kinds of a Note.
const (
	// NoteOpened: a daemon opened the log, and nothing was wrong except
	// possibly an incomplete last record.
	NoteOpened = "opened"
	// NoteMissing: records that the head names, or the head itself, were missing
	// when the log was opened.
	NoteMissing = "missing"
	// NotePruned: the segments before First were removed because of their age or the size limit.
	NotePruned = "pruned"
	// NoteOff and NoteOn: an operator turned the log off, or on again. NoteOn with a Text: writing failed, and works
	// again.
	NoteOff = "off"
	NoteOn  = "on"
	// NoteClosed: the daemon was stopped.
	NoteClosed = "closed"
)

// Note is an event in the log itself.
type Note struct {
	Kind string `json:"kind"`
	Text string `json:"text,omitempty"`
	// CutBytes and CutSHA256 describe an incomplete last record that was cut off.
	CutBytes  int64  `json:"cut_bytes,omitempty"`
	CutSHA256 string `json:"cut_sha256,omitempty"`
	// If records are missing, HeadN is the last record that the head names, and Synced the last that the head reports
	// as on disk. Restarted means that the machine was rebooted since.
	HeadN     uint64 `json:"head_n,omitempty"`
	Synced    uint64 `json:"synced,omitempty"`
	Restarted bool   `json:"restarted,omitempty"`
	// First is the first remaining segment, and Hash the Prev of its first record.
	First uint64 `json:"first,omitempty"`
	Hash  string `json:"hash,omitempty"`
}

// Config is a configuration of the daemon, without anything that may be secret.
type Config struct {
	Digest  string          `json:"digest"`
	File    string          `json:"file,omitempty"`
	Version string          `json:"version,omitempty"` // the daemon's version
	Values  json.RawMessage `json:"values"`
}

// The effects of a Call.
const (
	EffectAllow = "allow"
	EffectDeny  = "deny"
	// EffectAsk: it needs approval, and did not get it.
	EffectAsk = "ask"
	// EffectError: the call was refused or failed before a decision.
	EffectError = "error"
)

// Call is what is known of a call before it runs. Everything that its caller wrote is masked and bounded.
type Call struct {
	Execution string `json:"execution"`
	Session   string `json:"session,omitempty"`
	Kind      string `json:"kind,omitempty"`
	// Parent is the execution id of the call in which a module requested this one.
	Parent string `json:"parent,omitempty"`
	Trace  string `json:"trace,omitempty"`
	// TraceID and CallerInfo are the caller's claims about itself.
	TraceID    string   `json:"trace_id,omitempty"`
	CallerInfo string   `json:"caller_info,omitempty"`
	Identity   Identity `json:"identity"`
	// Socket is the daemon's socket that the call used; empty is the first.
	Socket string `json:"socket,omitempty"`

	// Tool is the name in the call, Source the tool of tools.d that provides it, if that has another name.
	Tool     string   `json:"tool"`
	Source   string   `json:"source,omitempty"`
	Version  string   `json:"version,omitempty"`
	Policies []Module `json:"policies,omitempty"`
	// Runner is the module or the binary that runs; the digest of a binary is unknown.
	Runner *Module `json:"runner,omitempty"`
	// Config is the digest of the configuration in force: see TypeConfig.
	Config string `json:"config,omitempty"`

	Args    []string        `json:"args,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// Stdin is how many bytes of input came with the request.
	Stdin int      `json:"stdin,omitempty"`
	Env   []string `json:"env,omitempty"` // names
	Cwd   string   `json:"cwd,omitempty"`
	Key   string   `json:"key,omitempty"`
	// Withheld is why Args and Payload are omitted; only their count and size are
	// kept then.
	Withheld string `json:"withheld,omitempty"`
	ArgCount int    `json:"arg_count,omitempty"`
	ArgBytes int    `json:"arg_bytes,omitempty"`
	// Reduced names the members that are incomplete.
	Reduced []string `json:"reduced,omitempty"`

	Effect string `json:"effect"`
	Rule   string `json:"rule,omitempty"`
	// Asked holds the input and the response of each policy, in order.
	Asked []Asked `json:"asked,omitempty"`
	// Runs is what runs, for a call that was allowed.
	Runs *Runs `json:"runs,omitempty"`
	// Replaces is the number of an earlier begin of the same call, which now runs differently: the tool that a module
	// provides had moved.
	Replaces uint64 `json:"replaces,omitempty"`
}

// Identity is the caller.
type Identity struct {
	// ID is the opaque name used by sessions, policies and the daemon's log.
	ID      string `json:"id,omitempty"`
	Subject string `json:"subject,omitempty"`
	Issuer  string `json:"issuer,omitempty"`
	UID     uint32 `json:"uid"`
	// PID is 0 if unknown.
	PID      int               `json:"pid,omitempty"`
	ReadOnly bool              `json:"read_only,omitempty"`
	Claims   map[string]string `json:"claims,omitempty"` // as passed to the tool
}

// Module is a file that decides or runs.
type Module struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256,omitempty"`
}

// Asked is the input and the response of one policy.
type Asked struct {
	Module
	At time.Time `json:"at"`
	// Input is the input of its export restrict. InputBytes is its length, and InputSHA256 its digest, both with
	// secrets masked; Masked means that there were some, Reduced names the members that are incomplete.
	Input       json.RawMessage `json:"input,omitempty"`
	InputBytes  int             `json:"input_bytes,omitempty"`
	InputSHA256 string          `json:"input_sha256,omitempty"`
	Masked      bool            `json:"masked,omitempty"`
	Reduced     []string        `json:"reduced,omitempty"`
	// Vars are the results of var_get, in order.
	Vars []Var `json:"vars,omitempty"`
	// Decision is its response, Error is why that was not a decision.
	Decision json.RawMessage `json:"decision,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// Var is one result of var_get. SHA256 is empty if there was no such variable.
type Var struct {
	Name   string `json:"name"`
	Bytes  int    `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Runs is exactly what runs. Changed names what the policies changed in the request: args, env, stdin, stdin_wanted,
// mutating, idempotent, key, timeout, shell.
type Runs struct {
	Changed []string `json:"changed,omitempty"`
	// Args are only set if they differ from those of the call.
	Args       []string `json:"args,omitempty"`
	Env        []string `json:"env,omitempty"` // names
	Stdin      int      `json:"stdin,omitempty"`
	Mutating   bool     `json:"mutating"`
	Idempotent bool     `json:"idempotent,omitempty"`
	Key        string   `json:"key,omitempty"`
	TimeoutMS  int64    `json:"timeout_ms,omitempty"`
	Shell      bool     `json:"shell,omitempty"`
	ShellLines []string `json:"shell_lines,omitempty"`
	// Approval is the id of the request under which it runs.
	Approval string `json:"approval,omitempty"`
}

// End is the outcome of a call.
type End struct {
	// Begin is the number of the call's begin; 0 if it has none.
	Begin     uint64 `json:"begin,omitempty"`
	Execution string `json:"execution,omitempty"`
	Status    string `json:"status"`
	Code      string `json:"code,omitempty"`
	// ToolCode is the tool's own code for a failure.
	ToolCode string `json:"tool_code,omitempty"`
	Message  string `json:"message,omitempty"`
	ExitCode int    `json:"exit_code"`
	// Ran means that the tool itself produced the result.
	Ran        bool  `json:"ran,omitempty"`
	Attempts   int   `json:"attempts,omitempty"`
	DurationMS int64 `json:"duration_ms"`
	BytesIn    int64 `json:"bytes_in,omitempty"`
	BytesOut   int64 `json:"bytes_out,omitempty"`
	FromCache  bool  `json:"from_cache,omitempty"`
	Truncated  bool  `json:"truncated,omitempty"`
	// Programs are those that a binary executed, or was refused.
	Programs []Program `json:"programs,omitempty"`
	// Connections are those that a binary made, or was refused.
	Connections []Connection `json:"connections,omitempty"`
	// Found is the result of a reconciliation of another call.
	Found *Found `json:"found,omitempty"`
}

// Connection is a host with the number of connections made or refused, and the bytes sent to and received from it; or,
// if On is set, what was to be sent there, and a policy's decision on that with its rule.
type Connection struct {
	Host     string `json:"host"`
	On       string `json:"on,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Refused  string `json:"refused,omitempty"`
	Failed   string `json:"failed,omitempty"`
	Sent     int64  `json:"sent,omitempty"`
	Received int64  `json:"received,omitempty"`
	Times    int    `json:"times"`
}

// Found is the verdict on an execution whose outcome was unknown: done, not_done or unknown, and its evidence.
type Found struct {
	Of       string `json:"of"`
	Verdict  string `json:"verdict"`
	Evidence string `json:"evidence,omitempty"`
}

// Program is a program with the number of times that it was executed, or refused.
type Program struct {
	Path    string `json:"path"`
	Refused string `json:"refused,omitempty"`
	Times   int    `json:"times"`
}

// hash is the hash of one line, without its line break.
type hash [sha256.Size]byte

func (h hash) String() string { return hex.EncodeToString(h[:]) }

func hashOf(line []byte) hash { return sha256.Sum256(bytes.TrimSuffix(line, []byte("\n"))) }

// encode appends r as a line to b.
func (r *Record) encode(b *bytes.Buffer) error {
	from := b.Len()
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	err := e.Encode(r)
	if err == nil && b.Len()-from <= MaxLine {
		return nil
	}
	b.Truncate(from)
	if err == nil {
		err = errTooLong
	}
	return err
}

var errTooLong = errors.New("the record is too long")

// fit shrinks r, one part at a time, until encode accepts it.
func (r *Record) fit(b *bytes.Buffer) error {
	err := r.encode(b)
	if !errors.Is(err, errTooLong) {
		return err
	}
	var steps []func()
	if c := r.Call; c != nil {
		small := *c
		small.Reduced = append([]string{}, c.Reduced...)
		r.Call = &small
		drop := func(name string, f func()) {
			steps = append(steps, func() { f(); small.Reduced = append(small.Reduced, name) })
		}
		drop("asked", func() {
			small.Asked = append([]Asked{}, c.Asked...)
			for i := range small.Asked {
				small.Asked[i].Input, small.Asked[i].Vars = nil, nil
			}
		})
		drop("asked.decision", func() {
			for i := range small.Asked {
				small.Asked[i].Decision, small.Asked[i].Error = nil, ""
			}
		})
		drop("payload", func() { small.Payload = nil })
		drop("runs", func() {
			if c.Runs != nil {
				small.Runs = &Runs{Mutating: c.Runs.Mutating, Idempotent: c.Runs.Idempotent, Changed: c.Runs.Changed, Shell: c.Runs.Shell}
			}
		})
		drop("args", func() { small.Args, small.Env, small.Identity.Claims = nil, nil, nil })
	}
	if e := r.End; e != nil {
		steps = append(steps, func() { small := *e; small.Programs, small.Connections, small.Message = nil, nil, ""; r.End = &small })
	}
	for _, step := range steps {
		step()
		if err = r.encode(b); !errors.Is(err, errTooLong) {
			return err
		}
	}
	return err
}

// decode parses one line, without its line break.
func decode(line []byte) (*Record, error) {
	var r Record
	if err := strictjson.UnmarshalLenient(line, &r); err != nil {
		return nil, err
	}
	if r.N == 0 || r.Type == "" || len(r.Prev) != 2*sha256.Size {
		return nil, fmt.Errorf("valid JSON, but not an audit record")
	}
	return &r, nil
}
