// Package adminapi defines the JSON types of the admin socket. Package host serves
// them, package host/client requests them.
package adminapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/toold/toold/host/wire"
)

// The values of ToolStatus.State.
const (
	ToolOK      = "ok"      // the version on disk is in use
	ToolStale   = "stale"   // the version on disk does not load; an older one is in use
	ToolBroken  = "broken"  // no version loads; every call is refused with TOOL_BROKEN
	ToolLoading = "loading" // the first load is running; calls wait for it
	ToolAbsent  = "absent"  // it loads, but its binary is not on this host: TOOL_NOT_INSTALLED

	// ToolUpdating: the version on disk is being compiled; an older one is in use.
	ToolUpdating = "updating"
	// ToolRefusing: it loads, and all or some calls are refused for the want of
	// something else: a secret, or the store of idempotency records.
	ToolRefusing = "refusing"
)

// ToolStatus is one tool: the answer of GET /tools/{name}, and of GET /tools (an
// array, by name).
type ToolStatus struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Description string `json:"description,omitempty"`
	// Kind is "binary", "handler" (an Extism module) or "wasi" (a WASI command).
	Kind string `json:"kind,omitempty"`
	// Path is the binary or module that runs.
	Path string `json:"path,omitempty"`
	// Policies are the policy modules of each call, in order.
	Policies []string `json:"policies,omitempty"`
	// PolicyDigests are the sha256 of Policies, in hex, and PolicySince is from
	// when on each of them was asked in every call of the tool that began.
	PolicyDigests []string    `json:"policy_digests,omitempty"`
	PolicySince   []time.Time `json:"policy_since,omitempty"`
	// HandlerDigest is the sha256 of the module that runs, in hex.
	HandlerDigest string `json:"handler_digest,omitempty"`
	// Missing are the imports that a stock plugin does not get, each with what to do:
	// a call that calls one fails.
	Missing  []string `json:"missing,omitempty"`
	Category string   `json:"category,omitempty"`
	// Version is the digest of the version in use, empty for none.
	Version string `json:"version,omitempty"`
	// Loaded is when that version was swapped in.
	Loaded time.Time `json:"loaded,omitzero"`
	// Reason describes the problem in every state but ToolOK, and ends with
	// what to do.
	Reason string `json:"reason,omitempty"`
	// Confinement is the level at which its binaries run, empty if it has none.
	Confinement string `json:"confinement,omitempty"`
	// Insecure are the hosts, sorted, whose certificates nobody checks in the
	// tool's requests.
	Insecure []string `json:"insecure,omitempty"`
	// Mutating is the class in tool.json; a policy may override it for a call.
	Mutating bool `json:"mutating,omitempty"`
	// Schema is the JSON Schema of an envelope call's payload. Only
	// /tools/{name} fills it in.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Rights are what its definition gives it. Only /tools/{name} fills it in.
	Rights *ToolRights `json:"rights,omitempty"`
}

// ToolRights are what the definition of a tool gives it beside running: its
// capabilities as they are written, and the names of secrets and variables.
type ToolRights struct {
	Capabilities json.RawMessage `json:"capabilities,omitempty"`
	Secrets      []string        `json:"secrets,omitempty"`
	Environment  []string        `json:"environment,omitempty"`
	Roots        []string        `json:"roots,omitempty"`
	User         string          `json:"user,omitempty"`
	Callbacks    []string        `json:"callbacks,omitempty"`
	Terminal     bool            `json:"terminal,omitempty"`
	On           []string        `json:"on,omitempty"`
}

// Dashboard is the answer of GET /dashboard: the page is at Path on Address, or on the
// operator's socket if Address is empty, and needs Token over TCP.
type Dashboard struct {
	Address string `json:"address,omitempty"`
	Path    string `json:"path"`
	Token   string `json:"token"`
}

// URL returns the address for a browser: the token is in the fragment, which browsers do not
// send. It is empty on the operator's socket.
func (d *Dashboard) URL() string {
	if d.Address == "" {
		return ""
	}
	return "http://" + d.Address + d.Path + "#token=" + d.Token
}

// HostStatus is the answer of GET /status.
type HostStatus struct {
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	UID      int       `json:"uid"`
	Instance string    `json:"instance"`
	Started  time.Time `json:"started"`
	Socket   string    `json:"socket"`
	// Sockets are the further ones.
	Sockets []SocketStatus `json:"sockets,omitempty"`
	Tools   string         `json:"tools"`
	// Restricted is the folder of fallback policies, empty when there is none.
	Restricted string   `json:"restricted,omitempty"`
	State      string   `json:"state"`
	Roots      []string `json:"roots"`
	Config     string   `json:"config,omitempty"`
	// ConfigError is why the last reload failed; the previous configuration is
	// still in effect.
	ConfigError string `json:"config_error,omitempty"`
	// UpgradeError is why the last upgrade failed after this daemon had given its
	// place away; it has taken it back.
	UpgradeError string `json:"upgrade_error,omitempty"`
	// AuditError is why the audit log cannot be written, and calls that change something
	// are refused.
	AuditError  string `json:"audit_error,omitempty"`
	Reliability string `json:"reliability"`
	Store       string `json:"store"`
	// Connections and Running count open connections and running calls.
	Connections int   `json:"connections"`
	Running     int   `json:"running"`
	Calls       int64 `json:"calls"`
	// Landlock is the ABI version of the kernel's Landlock, 0 without it.
	Landlock int `json:"landlock"`
	// Confinement is the level of tools without their own user, and Raise what
	// would raise it.
	Confinement string   `json:"confinement,omitempty"`
	Raise       []string `json:"raise,omitempty"`
	// Lost describes protections that this kernel lacks, one sentence each.
	Lost []string `json:"lost,omitempty"`
	// Linked are the daemon's files with a second hard link, through which a
	// tool can read them.
	Linked []LinkedFile `json:"linked,omitempty"`
	// Exposed are the files with secrets that every user of the host can read, or that
	// others than their owner can write.
	Exposed []string `json:"exposed,omitempty"`
	// SharedSession says that callers of one identity that name no session share its
	// default session on some socket.
	SharedSession bool `json:"shared_session,omitempty"`
}

// Upgrade is the request to replace the daemon with another program: Binary, or the one at the
// path from which it was started. Within bounds how long running calls may take to end.
type Upgrade struct {
	Binary string `json:"binary,omitempty"`
	Within string `json:"within,omitempty"`
}

// Upgrading names the process that is about to become the daemon.
type Upgrading struct {
	PID int `json:"pid"`
}

// SocketStatus is one further socket. Without Categories it serves all tools.
type SocketStatus struct {
	Path       string   `json:"path"`
	Roots      []string `json:"roots,omitempty"`
	Categories []string `json:"categories,omitempty"`
}

// Serves reports whether tools of that category are called there.
func (s *SocketStatus) Serves(category string) bool {
	return len(s.Categories) == 0 || slices.Contains(s.Categories, category)
}

// Version is the answer of GET /tools/{name}/wait.
type Version struct {
	// Code is empty when the version serves, and else why it does not: TIMEOUT,
	// TOOL_BROKEN or UNKNOWN_TOOL. Message says more.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// LinkedFile is a file with more than one hard link. If it is Refused, nothing that
// needs it, and no binary, runs.
type LinkedFile struct {
	Path    string `json:"path"`
	Refused bool   `json:"refused,omitempty"`
}

// StoredResult is a call's whole result: the answer of GET /results/{execution id}.
// Bytes are base64, as in encoding/json.
type StoredResult struct {
	ExecutionID string          `json:"execution_id"`
	Tool        string          `json:"tool"`
	Status      string          `json:"status"`
	ExitCode    int             `json:"exit_code"`
	Code        string          `json:"code,omitempty"`
	ToolCode    string          `json:"tool_code,omitempty"`
	Error       string          `json:"error,omitempty"`
	Stdout      []byte          `json:"stdout,omitempty"`
	Stderr      []byte          `json:"stderr,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	// Truncated reports that the output exceeded the tool's limit on kept
	// output.
	Truncated  bool      `json:"truncated,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	DurationMS int64     `json:"duration_ms"`
	// Usage is the resource usage of its modules; nil if none ran.
	Usage *wire.Usage `json:"usage,omitempty"`
}

// Error is the body of every admin answer that is not 2xx.
type Error struct {
	// Status is the HTTP status; it is not in the body.
	Status  int    `json:"-"`
	Message string `json:"error"`
}

func (e *Error) Error() string { return e.Message }

// ErrNotFound matches the error of an unknown name or id, for errors.Is.
var ErrNotFound = errors.New("not found")

// Is reports whether e has status 404 and target is ErrNotFound.
func (e *Error) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound
}

// Identity is the discovered tools of one module for one identity: the answer of
// GET /identities/{fingerprint}, and of GET /identities (an array, by tool).
type Identity struct {
	Fingerprint string `json:"fingerprint"`
	Tool        string `json:"tool"`
	// Version is that of the tool.
	Version string `json:"version"`
	// Claims are those that overlay the tool's configuration, without the
	// secret ones.
	Claims map[string]string `json:"claims,omitempty"`
	// State is "fresh", "stale" (a refresh failed, the old tools are in use),
	// "old" (the next use refreshes), "refused" or "empty".
	State string `json:"state"`
	// Reason is why it is stale or refused.
	Reason   string `json:"reason,omitempty"`
	ReadOnly bool   `json:"read_only"`
	// Tools is the number of tools that the identity sees; Names, which only
	// /identities/{fingerprint} fills in, are their names.
	Tools int       `json:"tools"`
	Names []string  `json:"names,omitempty"`
	Made  time.Time `json:"made,omitzero"`
	Until time.Time `json:"until,omitzero"` // fresh, or refused
	Used  time.Time `json:"used"`
}

// Refreshed is the answer of POST /identities/refresh.
type Refreshed struct {
	// Identities is the number of invalidated identities.
	Identities int `json:"identities"`
}

// BreakerStatus is one circuit breaker. GET /circuit-breakers answers an array, by
// tool.
type BreakerStatus struct {
	Tool string `json:"tool"`
	// Identity is the opaque name of the breaker's identity; empty for a tool
	// without identities.
	Identity string `json:"identity,omitempty"`
	// State is "closed", "open" or "half_open".
	State string `json:"state"`
	// Shadow reports that it only counts and refuses no call.
	Shadow bool `json:"shadow,omitempty"`
	// Row is the number of consecutive failures; Failed of the last Counted
	// outcomes are failures. All are 0 unless it is closed.
	Row     int `json:"row"`
	Failed  int `json:"failed"`
	Counted int `json:"counted"`
	// RetryAfterMS is how long an open one still refuses calls.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// ResetBreakers is the answer of POST /circuit-breakers/{tool}/reset.
type ResetBreakers struct {
	// Reset is the number of breakers that were closed.
	Reset int `json:"reset"`
}

// IdempotencyRecord is one record. GET /idempotency?tool=&key=&limit= answers an
// array, newest claim first.
type IdempotencyRecord struct {
	Tool string `json:"tool"`
	// Key is the stored one, which includes the caller; Label is the key as the
	// caller sent it, empty for an automatic key.
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
	// Digest and Size are of a result that was too large to store.
	Digest string `json:"digest,omitempty"`
	Size   int    `json:"size,omitempty"`
}

// ReconciledRecords is the answer of POST /idempotency/reconcile?tool=&key=.
type ReconciledRecords struct {
	// Unknown records of the key had an unknown outcome.
	Unknown int                 `json:"unknown"`
	Found   []ReconciledCall    `json:"found"`
	Now     []IdempotencyRecord `json:"now"`
}

// ReconciledCall is what was found out about one call.
type ReconciledCall struct {
	Key       string `json:"key"`
	Execution string `json:"execution,omitempty"`
	// Verdict is "done": its result is answered from now on; "not_done": its key is
	// free; or "unknown".
	Verdict  string `json:"verdict"`
	Evidence string `json:"evidence,omitempty"`
}

// FlushedRecords is the answer of DELETE /idempotency?tool=&key=.
type FlushedRecords struct {
	// Flushed records were removed: their keys run again. Running ones stay.
	Flushed int `json:"flushed"`
	Running int `json:"running"`
}

// ReliabilityStatus is the answer of GET /reliability.
type ReliabilityStatus struct {
	// Mode is the daemon's: "off", "shadow", "read-only" or "all".
	Mode string `json:"mode"`
	// Store is the kind of the store; Survives describes the failures that its
	// records survive; StoreError is why it is not available now.
	Store      string            `json:"store"`
	Survives   string            `json:"survives"`
	StoreError string            `json:"store_error,omitempty"`
	Tools      []ToolReliability `json:"tools"`
	// Events counts what happened to records since the daemon started.
	Events map[string]uint64 `json:"events"`
}

// ToolReliability is the reliability layer of one tool.
type ToolReliability struct {
	Tool string `json:"tool"`
	// Mode is the effective mode; Own reports that tool.json sets it.
	Mode string `json:"mode"`
	Own  bool   `json:"own,omitempty"`
	// Mutating is the class of calls if the policy does not set it.
	Mutating bool `json:"mutating,omitempty"`
	// Open is the number of the tool's open breakers.
	Open int `json:"open,omitempty"`
}

// Approval is a request for approval: the answer of GET /approvals/{id} and of POST
// /approvals/{id}/approve and /deny, whose body is an ApprovalReason. GET /approvals returns an
// array, oldest first, in which steps have no plan. The calls approval.show, approve and deny
// on a tool socket return one, too, and approval.list returns {"approvals": [...]}.
type Approval struct {
	ID string `json:"id"`
	// State is pending, approved, denied, used, expired or lapsed.
	State string `json:"state"`
	// Asker is the identity that called, AskerName what a policy may call it.
	Asker     string `json:"asker"`
	AskerName string `json:"asker_name,omitempty"`
	Session   string `json:"session,omitempty"`
	Execution string `json:"execution,omitempty"`
	// By are those who may decide beside the operator, Self admits the asker.
	By   []string `json:"by,omitempty"`
	Self bool     `json:"self,omitempty"`
	// Yours reports that whoever asks may decide.
	Yours bool `json:"yours,omitempty"`
	// Rule and Text are the policy's.
	Rule string `json:"rule,omitempty"`
	Text string `json:"text,omitempty"`
	// Batch says that the steps run one after another.
	Batch   bool           `json:"batch,omitempty"`
	Steps   []ApprovalStep `json:"steps"`
	Made    time.Time      `json:"made"`
	Expires time.Time      `json:"expires"`
	// Decider is "operator" or an identity.
	Decided     time.Time `json:"decided,omitzero"`
	Decider     string    `json:"decider,omitempty"`
	DeciderName string    `json:"decider_name,omitempty"`
	Reason      string    `json:"reason,omitempty"`
	// UsedBy is the execution that runs by it, Began how many steps were begun, and
	// Outcome what came of the last one; empty is unknown.
	Used    time.Time `json:"used,omitzero"`
	UsedBy  string    `json:"used_by,omitempty"`
	Began   int       `json:"began,omitempty"`
	Outcome string    `json:"outcome,omitempty"`
}

// ApprovalStep is one call of an Approval.
type ApprovalStep struct {
	Tool    string `json:"tool"`
	Source  string `json:"source,omitempty"`
	Version string `json:"version"`
	// Digest is that of all that makes the call what it is.
	Digest string `json:"digest"`
	// Plan is what would run, an ApprovalPlan.
	Plan json.RawMessage `json:"plan,omitempty"`
}

// ApprovalPlan is what the person who decides sees of a call. Secrets in what the caller wrote
// are masked, and the rest is data: whoever shows it escapes what is not printable.
type ApprovalPlan struct {
	Args     []string          `json:"args,omitempty"`
	Payload  json.RawMessage   `json:"payload,omitempty"`
	Cwd      string            `json:"cwd,omitempty"`
	Folder   string            `json:"folder,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Stdin    string            `json:"stdin,omitempty"`
	StdinB64 []byte            `json:"stdin_base64,omitempty"`
	Binary   string            `json:"binary,omitempty"`
	Policies []string          `json:"policies,omitempty"`
	Mutating bool              `json:"mutating"`
	Shell    bool              `json:"shell,omitempty"`
	Lines    []string          `json:"shell_lines,omitempty"`
	Timeout  int64             `json:"timeout_ms,omitempty"`
	// Callbacks are the programs that the caller runs for the call. What these add,
	// as an editor does, nobody has reviewed.
	Callbacks []ApprovalCallback `json:"callbacks,omitempty"`
}

// ApprovalCallback is a program that the caller runs for a call.
type ApprovalCallback struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Path string `json:"path,omitempty"`
}

// ApprovalReason is the body of a decision.
type ApprovalReason struct {
	Reason string `json:"reason,omitempty"`
}
