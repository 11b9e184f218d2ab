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
	"github.com/toold/toold/host/wire"
)

// Intent is what a record keeps of a call that may be cut off: enough to find out
// how it ended. Values of variables and the input are not in it.
type Intent struct {
	// Place and Daemon say where it ran: on which state folder, and in which life
	// of its daemon.
	Place  string `json:"place"`
	Daemon string `json:"daemon"`

	// Claimed says that the call has not begun.
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
	// Caller is who called, UID the user, and Token says that a token told.
	Caller string `json:"caller"`
	UID    uint32 `json:"uid"`
	Token  bool   `json:"token,omitempty"`
	// Facts are what the tool's reconciler wrote down before the call began.
	Facts json.RawMessage `json:"facts,omitempty"`
}

// Case is a call whose outcome is unknown.
type Case struct {
	Intent
	// Key is the caller's, or empty.
	Key string
	// Ended is when the outcome became unknown.
	Ended time.Time
	// Gone reports that nothing of the call runs on this host any longer, nor on
	// that where it began.
	Gone bool
	// Caller is who made the call, as it is known now.
	Caller identity.Caller
}

// Answer is what a reconciler found out.
type Answer struct {
	Verdict  idempotency.Verdict
	Evidence string
	// Outcome is that of a call that was done.
	Outcome call.Outcome
}

// Reconciler finds out how calls ended. Neither function may change anything but what
// it writes down.
type Reconciler struct {
	// Can reports whether the tool of a call has one.
	Can func(*call.Decided) bool
	// Facts are those of a call that is about to run, or nil.
	Facts func(context.Context, *call.Run) json.RawMessage
	// Look looks into a case.
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

// note is the Intent of r's call, which is about to run.
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
		rc.log.Error("what a call is about to do cannot be written down", "tool", r.Tool.Name, "execution_id", r.ExecutionID, "error", err)
		return nil
	}
	return b
}

// settler looks into records for a caller. Its key proves that they are the caller's.
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
		rc.log.Error("what a call was about to do cannot be read", "tool", u.Scope, "error", err)
		return f, Answer{Evidence: "what the call was about to do cannot be read"}
	}
	c.Gone = u.Ended || rc.died(&c.Intent)
	switch {
	case c.Tool == "":
		a.Evidence = "what the call was about to do is not known"
	case c.Claimed && !u.Ended && c.Gone:
		a = Answer{Verdict: idempotency.NotDone, Evidence: "its daemon ended before the call began"}
	case c.Claimed:
		a.Evidence = "the call had not begun, and nobody knows whether its daemon still runs"
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

// VerdictName is how a verdict is written.
func VerdictName(v idempotency.Verdict) string {
	switch v {
	case idempotency.Done:
		return "done"
	case idempotency.NotDone:
		return "not_done"
	}
	return "unknown"
}

// died reports whether the daemon that ran n is gone with all that it ran: it had this
// daemon's state folder, whose lock each of its processes' supervisors kept until
// all of them were gone.
func (rc *reconciliation) died(n *Intent) bool {
	return runtime.GOOS == "linux" && rc.place != "" && n.Place == rc.place && n.Daemon != rc.daemon
}

// callerOf is who made the call of a record, so that nothing is done as somebody
// else.
func callerOf(n *Intent, resolve func(uid uint32) (identity.Caller, error)) (identity.Caller, error) {
	if n.Token {
		return identity.Caller{}, errors.New("a token said who called, and it is not kept; have the caller use the key again")
	}
	caller, err := resolve(n.UID)
	if err == nil && caller.ID != n.Caller {
		err = errors.New("its caller is known by another name now; have the caller use the key again")
	}
	return caller, err
}

// openPlace reads, or makes, the name of the state folder.
func openPlace(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	path := filepath.Join(dir, "place")
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		b = []byte(rand.Text())
		if err = os.MkdirAll(dir, 0o700); err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
	}
	if err != nil {
		return "", fmt.Errorf("name the state folder: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
