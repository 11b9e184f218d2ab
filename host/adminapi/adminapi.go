// Package adminapi is the JSON of the admin socket: what the daemon answers an
// operator's program. The operations are those of http.ServeMux patterns in
// package host/admin; package host/client asks them.
package adminapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/toold/toold/host/wire"
)

// The states a tool can be in, as ToolStatus.State says them.
const (
	ToolOK      = "ok"      // the version on disk serves
	ToolStale   = "stale"   // the version on disk does not load; an older one serves
	ToolBroken  = "broken"  // nothing loads; every call is refused with TOOL_BROKEN
	ToolLoading = "loading" // it is being read for the first time; calls wait for it
	ToolAbsent  = "absent"  // it loads, but its binary is not on this host: TOOL_NOT_INSTALLED
)

// ToolStatus is one tool, as GET /tools (an array, by name) and GET
// /tools/{name} of the admin socket answer it.
type ToolStatus struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Description string `json:"description,omitempty"`
	// Kind is how it executes: "binary", "handler" (an Extism module) or
	// "wasi" (a WASI command).
	Kind string `json:"kind,omitempty"`
	// Path is the binary or module that runs.
	Path string `json:"path,omitempty"`
	// Policies are the policy modules asked before each call, in order.
	Policies []string `json:"policies,omitempty"`
	Category string   `json:"category,omitempty"`
	// Version is the digest of the generation that serves, empty when none.
	Version string `json:"version,omitempty"`
	// Loaded is when that generation began to serve.
	Loaded time.Time `json:"loaded,omitzero"`
	// Reason says what is wrong in every state but ToolOK, and ends with
	// what to do.
	Reason string `json:"reason,omitempty"`
	// Confinement is the level at which its binaries run, empty for one that
	// runs none.
	Confinement string `json:"confinement,omitempty"`
	// Mutating is the class that tool.json gives; a policy may answer
	// otherwise for one call.
	Mutating bool `json:"mutating,omitempty"`
	// Schema is the JSON Schema of an envelope call's payload. Only
	// /tools/{name} fills it in.
	Schema json.RawMessage `json:"schema,omitempty"`
}

// HostStatus is what GET /status of the admin socket answers.
type HostStatus struct {
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"`
	Socket   string    `json:"socket"`
	Tools    string    `json:"tools"`
	// Restricted is the folder of fallback policies, empty when there is none.
	Restricted string   `json:"restricted,omitempty"`
	State      string   `json:"state"`
	Roots      []string `json:"roots"`
	Config     string   `json:"config,omitempty"`
	// ConfigError says why the last reload was refused; the configuration
	// before it still stands.
	ConfigError string `json:"config_error,omitempty"`
	Reliability string `json:"reliability"`
	Store       string `json:"store"`
	// Connections and Running count what is open and what runs now.
	Connections int   `json:"connections"`
	Running     int   `json:"running"`
	Calls       int64 `json:"calls"`
	// Landlock is the ABI version of the kernel's Landlock, 0 without it.
	Landlock int `json:"landlock"`
	// Confinement is the level that tools without a user of their own run at,
	// and Raise what would raise it.
	Confinement string   `json:"confinement,omitempty"`
	Raise       []string `json:"raise,omitempty"`
	// Lost names what this kernel does not give, one sentence each.
	Lost []string `json:"lost,omitempty"`
	// Linked are files of the daemon's own that have a further name, by which a
	// tool can read them.
	Linked []LinkedFile `json:"linked,omitempty"`
}

// LinkedFile is a file with more than one name (hard link). Where it is Refused,
// nothing that needs it, and no binary, runs.
type LinkedFile struct {
	Path    string `json:"path"`
	Refused bool   `json:"refused,omitempty"`
}

// StoredResult is a call's whole result, as GET /results/{execution id}
// answers it. Bytes are base64, as encoding/json writes them.
type StoredResult struct {
	ExecutionID string          `json:"execution_id"`
	Tool        string          `json:"tool"`
	Status      string          `json:"status"`
	ExitCode    int             `json:"exit_code"`
	Code        string          `json:"code,omitempty"`
	Error       string          `json:"error,omitempty"`
	Stdout      []byte          `json:"stdout,omitempty"`
	Stderr      []byte          `json:"stderr,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	// Truncated says that even this is not the whole: the tool's limit on
	// kept output was reached.
	Truncated  bool      `json:"truncated,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	DurationMS int64     `json:"duration_ms"`
	// Usage is what its modules took; nil where none ran.
	Usage *wire.Usage `json:"usage,omitempty"`
}

// Error is the body of every admin answer that is not 2xx.
type Error struct {
	// Status is the HTTP status; it is not in the body.
	Status  int    `json:"-"`
	Message string `json:"error"`
}

func (e *Error) Error() string { return e.Message }

// ErrNotFound is what errors.Is finds in the error of a name or an id that
// the daemon does not know.
var ErrNotFound = errors.New("not found")

// Is makes an Error with status 404 an ErrNotFound.
func (e *Error) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound
}

// Identity is what one tool brings for one identity, as GET /identities (an
// array, by tool) and GET /identities/{fingerprint} answer it.
type Identity struct {
	Fingerprint string `json:"fingerprint"`
	Tool        string `json:"tool"`
	// Version is that of the tool.
	Version string `json:"version"`
	// Claims are those that overlay the tool's configuration, without the
	// secret ones.
	Claims map[string]string `json:"claims,omitempty"`
	// State is "fresh", "stale" (a refresh failed, the old tools serve), "old"
	// (the next use refreshes), "refused" or "empty".
	State string `json:"state"`
	// Reason says why it is stale or refused.
	Reason   string `json:"reason,omitempty"`
	ReadOnly bool   `json:"read_only"`
	// Tools is how many the identity sees; Names, which only
	// /identities/{fingerprint} fills in, are theirs.
	Tools int       `json:"tools"`
	Names []string  `json:"names,omitempty"`
	Made  time.Time `json:"made,omitzero"`
	Until time.Time `json:"until,omitzero"` // fresh, or refused
	Used  time.Time `json:"used"`
}

// Refreshed is what POST /identities/refresh answers.
type Refreshed struct {
	// Identities is for how many the next use discovers anew.
	Identities int `json:"identities"`
}

// BreakerStatus is one circuit breaker, as GET /circuit-breakers answers it
// (an array, by tool).
type BreakerStatus struct {
	Tool string `json:"tool"`
	// Identity is the opaque name of the identity that the breaker is for;
	// empty for a tool that is the same for all.
	Identity string `json:"identity,omitempty"`
	// State is "closed", "open" or "half_open".
	State string `json:"state"`
	// Shadow says that it only watches: it refuses no call.
	Shadow bool `json:"shadow,omitempty"`
	// Row counts the failures in a row; Failed of the last Counted outcomes
	// are failures. All are 0 unless it is closed.
	Row     int `json:"row"`
	Failed  int `json:"failed"`
	Counted int `json:"counted"`
	// RetryAfterMS is how long an open one refuses yet.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// ResetBreakers is what POST /circuit-breakers/{tool}/reset answers.
type ResetBreakers struct {
	// Reset counts the breakers of the tool that are closed now.
	Reset int `json:"reset"`
}

// IdempotencyRecord is one record, as GET /idempotency?tool=&key=&limit=
// answers it (an array, those claimed last first).
type IdempotencyRecord struct {
	Tool string `json:"tool"`
	// Key is the stored one, into which the caller is folded; Label is what
	// the caller gave, empty for an automatic key.
	Key   string `json:"key"`
	Label string `json:"label,omitempty"`
	// Status is "PENDING", "COMPLETED" or "FAILED"; an unknown outcome is
	// FAILED with the code OUTCOME_UNKNOWN in Error.
	Status    string          `json:"status"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
	ExpiresAt time.Time       `json:"expiresAt"`
	ClaimedAt time.Time       `json:"claimedAt"`
	EndedAt   time.Time       `json:"endedAt,omitzero"`
	Fence     int64           `json:"fence"`
	// Digest and Size are of a result that was too large to keep.
	Digest string `json:"digest,omitempty"`
	Size   int    `json:"size,omitempty"`
}

// FlushedRecords is what DELETE /idempotency?tool=&key= answers.
type FlushedRecords struct {
	// Flushed records are gone: their keys run again. Running ones stay.
	Flushed int `json:"flushed"`
	Running int `json:"running"`
}

// ReliabilityStatus is what GET /reliability answers.
type ReliabilityStatus struct {
	// Mode is the daemon's: "off", "shadow", "read-only" or "all".
	Mode string `json:"mode"`
	// Store is the kind of the store; Survives says what it keeps through
	// which failure; StoreError why it does not answer now.
	Store      string            `json:"store"`
	Survives   string            `json:"survives"`
	StoreError string            `json:"store_error,omitempty"`
	Tools      []ToolReliability `json:"tools"`
	// Events counts what happened to records since the daemon started.
	Events map[string]uint64 `json:"events"`
}

// ToolReliability is the layer as one tool has it.
type ToolReliability struct {
	Tool string `json:"tool"`
	// Mode is in force; Own says that it is the tool's own.
	Mode string `json:"mode"`
	Own  bool   `json:"own,omitempty"`
	// Mutating is the class where the policy does not say.
	Mutating bool `json:"mutating,omitempty"`
	// Open counts the breakers of the tool that refuse calls now.
	Open int `json:"open,omitempty"`
}
