package reliability

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/idempotency"
	"github.com/toold/toold/host/identity"
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/wire"
)

// Intent is what a record keeps of a call that may be cut off: enough to find out
// how it ended. Values of variables and the input are not in it.
type Intent struct {
	// Place and Daemon identify where it ran: the state folder, and the run of the
	// daemon.
	Place  string `json:"place"`
	Daemon string `json:"daemon"`

	// Claimed reports that the call has not begun.
	Claimed bool `json:"claimed,omitempty"`

	Tool      string          `json:"tool"`
	Form      wire.Form       `json:"form,omitempty"`
	Args      []string        `json:"args,omitempty"`
	Cwd       string          `json:"cwd,omitempty"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	Env       []string        `json:"env,omitempty"`
	StdinSHA  string          `json:"stdin_sha256,omitempty"`
	Socket    string          `json:"socket,omitempty"`
	Session   string          `json:"session,omitempty"`
	Execution string          `json:"execution"`
	Began     time.Time       `json:"began"`
	// Caller is the identity of the caller and UID its user. Token reports that the
	// identity came from a token.
	Caller string `json:"caller"`
	UID    uint32 `json:"uid"`
	Token  bool   `json:"token,omitempty"`
	// Facts are what the tool's reconciler recorded before the call began.
	Facts json.RawMessage `json:"facts,omitempty"`
}

// Case is a call whose outcome is unknown.
type Case struct {
	Intent
	// Key is the caller's, or empty.
	Key string
	// Ended is when the outcome became unknown.
	Ended time.Time
	// Gone reports that nothing of the call still runs, neither on this host nor
	// where it began.
	Gone bool
	// Caller is the caller, as it is resolved now.
	Caller identity.Caller
}

// Answer is what a reconciler found out.
type Answer struct {
	Verdict  idempotency.Verdict
	Evidence string
	// Outcome is the outcome of a call that was done.
	Outcome call.Outcome
}

// Reconciler finds out how calls ended. Its functions change nothing else.
type Reconciler struct {
	// Can reports whether the tool of a call has a reconciler.
	Can func(*call.Decided) bool
	// Facts returns what to record of a call that is about to run, or nil.
	Facts func(context.Context, *call.Run) json.RawMessage
	// Look investigates a case.
	Look func(context.Context, Case) Answer
}

// reconciliation finds out, with the Reconciler, how calls ended that were cut off.
type reconciliation struct {
	Reconciler
	// place names the state folder, daemon the present run of the daemon on it.
	place, daemon string
	ending        context.Context
	log           *slog.Logger
}

// attach has the record of r's call resolved by its tool, if that can find out how
// the call ended. A call that may be repeated does not need it.
func (rc *reconciliation) attach(r *call.Run, q *idempotency.Request) {
	if rc.Can == nil || r.Mode != call.Enforce || !r.Class.Mutating || r.Class.Repeatable() || !rc.Can(&r.Decided) {
		return
	}
	q.Note = func(ctx context.Context) json.RawMessage { return rc.note(ctx, r) }
	q.Claimed, _ = json.Marshal(Intent{Place: rc.place, Daemon: rc.daemon, Tool: r.Call.Tool, Execution: r.ExecutionID, Claimed: true})
	q.Settle = rc.settler(r.Caller)
}

// note returns the Intent of r's call, which is about to run.
func (rc *reconciliation) note(ctx context.Context, r *call.Run) json.RawMessage {
	n := Intent{
		Place: rc.place, Daemon: rc.daemon, Tool: r.Call.Tool, Form: r.Form, Args: r.Call.Args, Cwd: r.Call.Cwd,
		Env: slices.Sorted(maps.Keys(r.Call.Env)), Socket: r.Socket, Session: r.Session, Execution: r.ExecutionID,
		Caller: r.Caller.ID, UID: r.UID, Token: r.Caller.HasToken(), Facts: rc.Facts(ctx, r), Began: time.Now(),
	}
	if n.Cwd == "" {
		n.Cwd = r.Cwd
	}
	if r.Form == wire.Envelope {
		n.Payload = r.Call.Payload
	}
	if len(r.Stdin) > 0 {
		sum := sha256.Sum256(r.Stdin)
		n.StdinSHA = hex.EncodeToString(sum[:])
	}
	b, err := json.Marshal(n)
	if err != nil {
		rc.log.Error("cannot record what a call is about to do", "tool", r.Tool.Name, "execution_id", r.ExecutionID, "error", err)
		return nil
	}
	return b
}

// settler returns the function that settles records for a caller, whose key proves
// that they are the caller's.
func (rc *reconciliation) settler(caller identity.Caller) func(context.Context, idempotency.Unknown) idempotency.Finding {
	return func(ctx context.Context, u idempotency.Unknown) idempotency.Finding {
		f, _ := rc.settle(ctx, caller, u)
		return f
	}
}

func (rc *reconciliation) settle(ctx context.Context, caller identity.Caller, u idempotency.Unknown) (f idempotency.Finding, a Answer) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(rc.ending, func() { cancel(context.Cause(rc.ending)) })()
	c := Case{Key: u.Label, Ended: u.EndedAt, Caller: caller}
	if err := json.Unmarshal(u.Note, &c.Intent); err != nil {
		rc.log.Error("cannot read what a call was about to do", "tool", u.Scope, "error", err)
		return f, Answer{Evidence: "what the call was about to do cannot be read"}
	}
	c.Gone = u.Ended || rc.died(&c.Intent)
	switch {
	case c.Tool == "":
		a.Evidence = "what the call was about to do is not known"
	case c.Claimed && !u.Ended && c.Gone:
		a = Answer{Verdict: idempotency.NotDone, Evidence: "its daemon ended before the call began"}
	case c.Claimed:
		a.Evidence = "the call had not begun, and it is not known whether its daemon still runs"
	default:
		a = rc.Look(ctx, c)
	}
	if a.Verdict == idempotency.Done {
		f.Result = keep(&a.Outcome)
	}
	f.Verdict = a.Verdict
	rc.log.Info("the outcome of a call was looked into", "tool", u.Scope, "execution_id", c.Execution, "verdict", VerdictName(a.Verdict), "evidence", a.Evidence)
	return f, a
}

// VerdictName returns the name of a verdict in logs and answers.
func VerdictName(v idempotency.Verdict) string {
	switch v {
	case idempotency.Done:
		return "done"
	case idempotency.NotDone:
		return "not_done"
	}
	return "unknown"
}

// died reports whether the daemon that ran n has ended with all its processes: it
// used this daemon's state folder, whose lock the supervisor of each of its processes
// holds until they have ended.
func (rc *reconciliation) died(n *Intent) bool {
	return runtime.GOOS == "linux" && rc.place != "" && n.Place == rc.place && n.Daemon != rc.daemon
}

// callerOf returns the caller of a recorded call, or an error if that could be
// another identity now.
func callerOf(n *Intent, resolve func(uid uint32) (identity.Caller, error)) (identity.Caller, error) {
	if n.Token {
		return identity.Caller{}, errors.New("the caller was identified by a token, which is not stored; have the caller use the key again")
	}
	caller, err := resolve(n.UID)
	if err == nil && caller.ID != n.Caller {
		err = errors.New("the caller has another identity now; have the caller use the key again")
	}
	return caller, err
}

// openPlace returns the name of the state folder, which it makes if there is none.
func openPlace(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	path := filepath.Join(dir, "place")
	b, err := regular.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		b = []byte(rand.Text())
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = regular.WriteFile(path, b, 0o600)
		}
	}
	if err != nil {
		return "", fmt.Errorf("name the state folder: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
