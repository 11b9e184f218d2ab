// Package approval keeps the requests of calls that a policy lets run only once
// somebody has approved them:
//
//	pending -> approved -> used
//	pending -> denied
//	pending, approved -> expired, lapsed
//
// A request names by digest what may run, and nothing of it ever changes. Every
// change of its state is decided under one lock, written to the store's file and
// synced, and only then in force: an approval that was used is spent before
// anything runs, and stays spent however the process ends. What cannot be written
// does not happen, except that an approval whose use could not be written is spent
// all the same.
//
// A file that was damaged is set aside and nothing of it counts: what is lost is
// asked for again, and nothing runs by an approval that nobody can read. A last
// line that a crash cut off was never in force, and is dropped.
//
// The package does not know calls. Package pipeline makes the digests, asks, and
// uses approvals; who may decide is checked here, by names that it is given.
package approval

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// State is the state of a request.
type State string

const (
	Pending  State = "pending"
	Approved State = "approved" // for one run, until it expires
	Denied   State = "denied"   // asking for the same again is answered with this until it expires
	Used     State = "used"     // it has run, or nobody knows
	Expired  State = "expired"
	Lapsed   State = "lapsed" // what was to run is not what it was
)

// Operator is the decider who is the operator of the daemon.
const Operator = "operator"

// Bounds of what is kept.
const (
	// MaxPlan is the most of one request that is shown to who decides, in bytes,
	// of all its steps together. What has more cannot be approved.
	MaxPlan = 64 << 10
	// MaxSteps is how many calls one request has.
	MaxSteps = 32
	// MaxOpen is how many requests are pending or approved, MaxOpenOf how many of
	// one identity, with all that are bound to its sessions.
	MaxOpen   = 256
	MaxOpenOf = 16
	// MaxText bounds a text, a reason and a name, MaxBy how many may decide.
	MaxText = 4 << 10
	MaxBy   = 64
	// MinTTL, DefaultTTL and MaxTTL bound how long a request may be decided and used.
	MinTTL     = time.Second
	DefaultTTL = 15 * time.Minute
	MaxTTL     = 7 * 24 * time.Hour

	// maxClosed is how many requests are remembered that nothing can become of.
	maxClosed = 128
)

// Step is one call of a request.
type Step struct {
	// Digest is that of all that makes the call what it is.
	Digest string `json:"digest"`
	Tool   string `json:"tool"`
	// Source is the tool of tools.d that it is of, Version the version of that.
	Source  string `json:"source,omitempty"`
	Version string `json:"version"`
	// Plan is what is shown of it, as JSON. Secrets in it are masked.
	Plan json.RawMessage `json:"plan"`
}

// Request is one request. A copy that was handed out does not change.
type Request struct {
	ID string `json:"id"`
	// Asker is the identity that called, Owner the one whose sessions it uses, Name
	// what it is called.
	Asker string `json:"asker"`
	Owner string `json:"owner"`
	Name  string `json:"name,omitempty"`
	// Session and Execution are those of the call that asked first.
	Session   string `json:"session,omitempty"`
	Execution string `json:"execution,omitempty"`
	// By names who may decide beside the operator; Self admits the asker.
	By   []string `json:"by,omitempty"`
	Self bool     `json:"self,omitempty"`
	// Rule and Text are the policy's.
	Rule string `json:"rule,omitempty"`
	Text string `json:"text,omitempty"`
	// Batch says that the steps run one after another, as one list.
	Batch bool   `json:"batch,omitempty"`
	Steps []Step `json:"steps"`

	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`

	State State `json:"state"`
	// Decider is Operator or the ID of an identity, DeciderName what that is called,
	// Reason what it said.
	Decided     time.Time `json:"decided,omitzero"`
	Decider     string    `json:"decider,omitempty"`
	DeciderName string    `json:"decider_name,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	// UsedBy is the execution that ran by it, Began how many steps were begun, and
	// Outcome what came of the last one; empty is unknown.
	Used    time.Time `json:"used,omitzero"`
	UsedBy  string    `json:"used_by,omitempty"`
	Began   int       `json:"began,omitempty"`
	Outcome string    `json:"outcome,omitempty"`
}

// Open reports whether r can still change state.
func (r *Request) Open() bool { return r.State == Pending || r.State == Approved }

// Person is someone who views requests, or decides on them.
type Person struct {
	// Operator is whoever may use the daemon's admin socket.
	Operator bool
	// ID is an identity's, Names are what By may call it, itself included.
	ID    string
	Names []string
}

// mayDecide reports whether p may decide r.
func (p *Person) mayDecide(r *Request) bool {
	if p.Operator {
		return true
	}
	if p.ID == "" {
		return false
	}
	if p.ID == r.Asker {
		return r.Self
	}
	return slices.ContainsFunc(p.Names, func(name string) bool { return slices.Contains(r.By, name) })
}

// sees reports whether p may know of r.
func (p *Person) sees(r *Request) bool {
	return p.Operator || p.ID != "" && (p.ID == r.Asker || p.ID == r.Owner) || p.mayDecide(r)
}

// name is how p is called in records.
func (p *Person) name() string {
	if p.Operator || len(p.Names) == 0 {
		return ""
	}
	return p.Names[len(p.Names)-1]
}

var (
	// ErrNotFound: there is no such request for this person.
	ErrNotFound = errors.New("there is no such request")
	// ErrNotAllowed: this person sees the request and may not decide it.
	ErrNotAllowed = errors.New("not yours to decide")
	// ErrState: the request is past that.
	ErrState = errors.New("it is decided already")
	// ErrFull: too many requests are open.
	ErrFull = errors.New("too many requests are open")
	// ErrUnavailable: the store's file cannot be written.
	ErrUnavailable = errors.New("the store of approvals cannot be written")
	// ErrEnding: nobody waits any more.
	ErrEnding = errors.New("the daemon stops")
	// ErrInvalid: no such request can be.
	ErrInvalid = errors.New("this cannot be asked for")
)

// change is a change of a request's state, as the file has it.
type change struct {
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	State State     `json:"state"`
	// Decider, DeciderName and Reason go with Approved and Denied, Reason with
	// Lapsed as well.
	Decider     string `json:"decider,omitempty"`
	DeciderName string `json:"decider_name,omitempty"`
	Reason      string `json:"reason,omitempty"`
	// Execution goes with Used, and Began says that so many steps were begun.
	Execution string `json:"execution,omitempty"`
	Began     int    `json:"began,omitempty"`
	Outcome   string `json:"outcome,omitempty"`
}

// after is r once c has happened. The error is ErrState where it cannot. It is the
// one place that says what may follow what, for what is asked of a store and for
// what its file says.
func (r Request) after(c *change) (Request, error) {
	wrong := fmt.Errorf("%w: it is %s", ErrState, r.State)
	switch c.State {
	case Approved, Denied:
		if r.State != Pending || c.Decider == "" {
			return r, wrong
		}
		r.Decided, r.Decider, r.DeciderName, r.Reason = c.At, c.Decider, c.DeciderName, c.Reason
	case Expired, Lapsed:
		if !r.Open() && !(r.State == Denied && c.State == Expired) {
			return r, wrong
		}
		if c.State == Lapsed {
			r.Reason = c.Reason
		}
	case Used:
		switch {
		case r.State == Approved && c.Execution != "" && c.Began == 1:
			r.Used, r.UsedBy, r.Began = c.At, c.Execution, 1
		case r.State == Used && c.Began == r.Began+1 && c.Began <= len(r.Steps) && c.Execution == r.UsedBy:
			r.Began, r.Outcome = c.Began, ""
		case r.State == Used && c.Began == 0 && c.Outcome != "" && r.Outcome == "" && c.Execution == r.UsedBy:
			r.Outcome = c.Outcome
		default:
			return r, wrong
		}
	default:
		return r, fmt.Errorf("%w: there is no state %.32q", ErrState, c.State)
	}
	r.State = c.State
	return r, nil
}

// check reports why r cannot be a new request.
func (r *Request) check() error {
	size := 0
	for i := range r.Steps {
		s := &r.Steps[i]
		if len(s.Digest) != 64 || s.Tool == "" || !json.Valid(s.Plan) {
			return fmt.Errorf("%w: step %d says not what runs", ErrInvalid, i+1)
		}
		size += len(s.Plan) + len(s.Tool) + len(s.Source) + len(s.Version)
	}
	ttl := r.Expires.Sub(r.Made)
	switch {
	case r.ID == "" || len(r.ID) > 64 || r.Asker == "" || r.Owner == "":
		return fmt.Errorf("%w: nobody asks", ErrInvalid)
	case len(r.Steps) == 0 || len(r.Steps) > MaxSteps || len(r.Steps) > 1 && !r.Batch:
		return fmt.Errorf("%w: it has %d calls, and %d are the most", ErrInvalid, len(r.Steps), MaxSteps)
	case size > MaxPlan:
		return fmt.Errorf("%w: what is to run has %d bytes, and more than %d cannot be reviewed", ErrInvalid, size, MaxPlan)
	case len(r.Text) > MaxText || len(r.Rule) > MaxText || len(r.By) > MaxBy || slices.ContainsFunc(r.By, func(n string) bool { return n == "" || len(n) > MaxText }):
		return fmt.Errorf("%w: a text has more than %d bytes, or more than %d may decide", ErrInvalid, MaxText, MaxBy)
	case ttl < MinTTL || ttl > MaxTTL:
		return fmt.Errorf("%w: %v is not a valid time limit for a decision; use %v to %v", ErrInvalid, ttl, MinTTL, MaxTTL)
	case r.State != Pending || r.Decider != "" || r.UsedBy != "" || r.Began != 0:
		return fmt.Errorf("%w: a request begins as pending", ErrInvalid)
	}
	return nil
}

// key is that of what r is about: the digest of its one call, or of its list.
func (r *Request) key() string {
	if !r.Batch {
		return r.Steps[0].Digest
	}
	var b strings.Builder
	b.WriteString("batch")
	for i := range r.Steps {
		b.WriteString(" " + r.Steps[i].Digest)
	}
	return b.String()
}

var idText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newID returns a random name. It gives no right.
func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return idText.EncodeToString(b[:])
}
