// Package abi holds the types that guests, the host and its clients share:
// what a policy is asked, what it answers, and what a tool returns.
//
// All of them travel as JSON through the Extism input and output of a guest
// export. Names are snake_case. The host reads every answer of a guest
// strictly: an unknown field, a duplicate key or a wrong type is an error of
// the guest (TOOL_BROKEN for a policy, which therefore denies).
//
// The package imports the standard library only and builds for wasip1, so a
// guest can link it.
package abi

import "encoding/json"

// Version is the version of the guest interface that this host speaks. A
// module whose describe export returns a greater number is refused by name.
const Version = 1

// Describe is what the optional describe export returns, once a version of a
// module. It takes no input.
type Describe struct {
	// ABI is the version of this interface the module was written for.
	ABI         int             `json:"abi"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Annotations *Annotations    `json:"annotations,omitempty"`
	// Wants names further context that a policy needs in its Call and that
	// costs the host something to get. Known: "repo_config".
	Wants []string `json:"wants,omitempty"`
}

// WantRepoConfig asks for Call.RepoConfig.
const WantRepoConfig = "repo_config"

// WantHTTP means that a policy judges the HTTP requests of the tool's binary. The host
// reads those to every host that it may connect to wherever a policy has the export
// wire, with this or without.
const WantHTTP = "http"

// Annotations describe a tool. They inform; they never grant.
type Annotations struct {
	Title       string `json:"title,omitempty"`
	ReadOnly    *bool  `json:"read_only,omitempty"`
	Destructive *bool  `json:"destructive,omitempty"`
	Idempotent  *bool  `json:"idempotent,omitempty"`
	OpenWorld   *bool  `json:"open_world,omitempty"`
}

// Call is what restrict, handle and classify are asked.
type Call struct {
	Tool string   `json:"tool"`
	Args []string `json:"args,omitempty"`
	// Cwd is an absolute path beneath one of Roots, symlinks resolved.
	Cwd string `json:"cwd,omitempty"`
	// Roots are the folders beneath which this call may work.
	Roots []string `json:"roots,omitempty"`
	// Payload is the object of an envelope call.
	Payload json.RawMessage `json:"payload,omitempty"`
	// StdinBase64 is the input that came with the request itself. Streamed
	// input is not in it: a handler reads that with tool_recv.
	StdinBase64 string `json:"stdin_base64,omitempty"`
	// Env holds the variables that the caller set and the tool admits.
	Env map[string]string `json:"env,omitempty"`
	// EnvSeen has the names, sorted, of further variables that the caller has and
	// that do not reach the tool, as far as its tool.json names them in
	// environment_seen and the caller's wrapper sends names.
	EnvSeen     []string `json:"env_seen,omitempty"`
	ExecutionID string   `json:"execution_id,omitempty"`
	// Attempt counts from 1.
	Attempt int    `json:"attempt,omitempty"`
	Session string `json:"session,omitempty"`
	// Caller is an opaque name of who calls: stable for one identity, never
	// something the caller wrote.
	Caller   string          `json:"caller,omitempty"`
	ReadOnly bool            `json:"read_only,omitempty"`
	Binding  json.RawMessage `json:"binding,omitempty"`
	// DeadlineMS is how many milliseconds the call has left.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
	// RepoConfig is the configuration that the git repository around Cwd
	// contains, in file order, if the policy's describe requests it.
	RepoConfig *RepoConfig `json:"repo_config,omitempty"`
	// Callbacks are the programs that the caller would run for the call in its own
	// place, as far as the tool.json lets the tool ask for them; nil: none.
	Callbacks *Callbacks `json:"callbacks,omitempty"`
}

// Callbacks are what a policy can have a call ask of its caller.
type Callbacks struct {
	// Kinds are among "editor", "sequence-editor", "pager", "hooks" and "scripts".
	Kinds []string `json:"kinds"`
	// Folder is where each Callback of the Decision will be a program, by its Name.
	Folder string `json:"folder"`
}

// Callback is a program that the caller runs where the tool starts Folder/Name.
type Callback struct {
	// Kind is one of Callbacks.Kinds.
	Kind string `json:"kind"`
	// Name is that of the file that the tool starts: letters, digits and -.
	Name string `json:"name"`
	// Path is the program of a hook, absolute and beneath the roots. The caller
	// chooses its own editor and pager.
	Path string `json:"path,omitempty"`
}

// RepoConfig is the configuration of one git repository.
type RepoConfig struct {
	// Entries are in the order git reads them. Keys are as `git config
	// --list` prints them: section and name in lower case, subsection as
	// written.
	Entries []ConfigEntry `json:"entries,omitempty"`
	// Submodules are those of all submodules that the repository keeps: git
	// looks into them by itself, in status and elsewhere.
	Submodules []ConfigEntry `json:"submodules,omitempty"`
	// State is what else the repository keeps that git acts on: the value is
	// what the file named by the key holds, from the git directory on. HEAD is
	// always there when there is a repository; an operation that was begun has
	// files in rebase-merge, rebase-apply and sequencer, and remotes of old
	// have theirs in remotes and branches.
	State []ConfigEntry `json:"state,omitempty"`
	// Remotes are the entries of all repositories beneath the roots that the
	// configuration's remotes, or the call's own arguments, name by a path.
	Remotes []ConfigEntry `json:"remotes,omitempty"`
	// RemoteError is why one of them cannot be trusted; a policy should then
	// deny what goes to a remote that is a path.
	RemoteError string `json:"remote_error,omitempty"`
	// Modules are the entries of .gitmodules, where Args name submodule.
	Modules []ConfigEntry `json:"modules,omitempty"`
	// Dir is the folder in which git works, links resolved: Cwd, or where the
	// call's leading -C lead. It and the next two are given where Args begin
	// with -C, --git-dir or --work-tree, and what was read is then the
	// repository that these name.
	Dir string `json:"dir,omitempty"`
	// GitDir is what --git-dir names, links resolved.
	GitDir string `json:"git_dir,omitempty"`
	// WorkTree is what --work-tree names, or core.worktree where that is set,
	// links resolved.
	WorkTree string `json:"work_tree,omitempty"`
	// Hooks are the names of the hooks that git would run in this repository, left
	// out where the subcommand only looks (status, log);
	// RemoteHooks those of Remotes. If core.hooksPath leads out of the roots,
	// they are all that git has; if it leads elsewhere at all, those in the
	// repository's own folder are there as "hooks/NAME".
	Hooks       []string `json:"hooks,omitempty"`
	RemoteHooks []string `json:"remote_hooks,omitempty"`
	// HooksDir is the folder in which Hooks lie, links resolved; empty where that is
	// not beneath the roots.
	HooksDir string `json:"hooks_dir,omitempty"`
	// Bare is the git directory that was found, if it is Dir itself or a folder
	// above and not a .git within one: git treats it as one without a working tree.
	Bare string `json:"bare,omitempty"`
	// Error is why the configuration could not be read; a policy should
	// then deny what depends on it.
	Error string `json:"error,omitempty"`
}

// ConfigEntry is one line of a RepoConfig. A key without "=" has the value
// "true", as git's booleans read it.
type ConfigEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Effects of a Decision. Anything else denies.
const (
	Allow = "allow"
	Deny  = "deny"
	// Ask lets the call run once it was approved. Ask of the Decision names who
	// may approve it.
	Ask = "ask"
)

// Approval is what a policy asks for. It is a part of what is approved: if the
// policy asks for anything else when the call is about to run, the approval does not
// count.
type Approval struct {
	// By names who may approve beside the operator: "sub:NAME" is the subject of a
	// token, "uid:NUMBER" a user who calls without one, 32 hexadecimal digits are
	// the ID of an identity. Empty: the operator alone.
	By []string `json:"by,omitempty"`
	// Self lets the caller approve it, too.
	Self bool `json:"self,omitempty"`
	// TTLMS is how many milliseconds the call can be approved and run after it was
	// asked for: 0 is 15 minutes, the least is a second, the most are 7 days.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Text is shown to who decides, as the policy's word: what the call would do,
	// and to what. Facts that have to hold when it runs belong here, such as the
	// commit that would be pushed.
	Text string `json:"text,omitempty"`
}

// Decision is what restrict returns.
type Decision struct {
	Effect string `json:"effect"`
	// Rule names the rule that decided, for logs and for the caller.
	Rule string `json:"rule,omitempty"`
	// Reason says why, Instead what to do instead; both are shown to the
	// caller of a denied call.
	Reason  string `json:"reason,omitempty"`
	Instead string `json:"instead,omitempty"`

	// Ask says who may approve the call. It goes with the effect Ask alone.
	Ask *Approval `json:"ask,omitempty"`

	// What follows counts only when Effect is Allow or Ask. What runs is exactly
	// this, never re-read from the request. A nil Args, Env or StdinBase64
	// leaves what was asked.
	Args        []string          `json:"args,omitzero"`
	Env         map[string]string `json:"env,omitzero"`
	StdinBase64 *string           `json:"stdin_base64,omitempty"`
	// Mutating and Idempotent override the class that tool.json gives.
	Mutating       *bool  `json:"mutating,omitempty"`
	Idempotent     *bool  `json:"idempotent,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
	// TimeoutMS narrows the tool's timeout; it never widens it.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Stdin reports whether this call reads the caller's input.
	Stdin *bool `json:"stdin,omitempty"`
	// Shell means that this call cannot do without the shell that tool.json
	// lists in capabilities.exec (git runs one for a remote that is a path).
	// A shell is withheld from every other call; a call that gets it runs
	// without the tool's secrets.
	Shell bool `json:"shell,omitempty"`
	// ShellLines are, with Shell, the only command lines that the shell is
	// given with -c: what runs must be one of them, or one of them followed by
	// a space and words in single quotes. Empty: any line.
	ShellLines []string `json:"shell_lines,omitempty"`
	// Notes are written to the call's standard error before the tool runs, a line
	// each: what will not be as the caller expects.
	Notes []string `json:"notes,omitempty"`
	// Callbacks are the programs that the call may ask its caller to run; nil leaves
	// those of policies before this one, or none. If several policies name some,
	// those that all name remain.
	Callbacks []Callback `json:"callbacks,omitzero"`
}

// Result is what handle returns.
type Result struct {
	ExitCode int `json:"exit_code"`
	// Stdout and Stderr are text; the _base64 forms carry any bytes and win
	// when both are given.
	Stdout       string          `json:"stdout,omitempty"`
	Stderr       string          `json:"stderr,omitempty"`
	StdoutBase64 string          `json:"stdout_base64,omitempty"`
	StderrBase64 string          `json:"stderr_base64,omitempty"`
	Data         json.RawMessage `json:"data,omitempty"`
	Error        *Error          `json:"error,omitempty"`
	// Gone means that what Binding names is no longer there, and that nothing
	// was done. The host then rediscovers the identity's tools, and calls once
	// more if this one is still among them with the same schema.
	Gone bool `json:"gone,omitempty"`
	// Safety is what the call found out about the identity's grants, if
	// anything. The host rediscovers the tools if it differs from the
	// Surface's.
	Safety *Safety `json:"safety,omitempty"`
}

// Discovery is what discover is asked: which tools this module brings for one
// identity. The configuration (config_get) has the identity; all that have the same
// configuration share the answer.
type Discovery struct {
	// Tool is the module's own name.
	Tool string `json:"tool"`
	// ReadOnly means that the identity may only read; tools that change
	// something would not be shown.
	ReadOnly bool `json:"read_only,omitempty"`
	// DeadlineMS is how many milliseconds the discovery has left.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
}

// Surface is what discover returns.
type Surface struct {
	Tools []SurfaceTool `json:"tools"`
	// Safety is what the identity may do, as reported by the module's server.
	Safety *Safety `json:"safety,omitempty"`
	// TTLMS is how many milliseconds the surface is fresh; the host's default
	// is 15 minutes, its bounds are a second and a day.
	TTLMS int64 `json:"ttl_ms,omitempty"`
	// Error is why there is no surface. With the code Unauthenticated the
	// host remembers it for a minute.
	Error *Error `json:"error,omitempty"`
}

// Unauthenticated is the Error.Code with which a module reports that its server
// rejects the identity, or its password.
const Unauthenticated = "UNAUTHENTICATED"

// SurfaceTool is one tool of a Surface.
type SurfaceTool struct {
	// Name matches ^[a-z0-9][a-z0-9_-]{0,63}$, and no other tool has it.
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Schema is the JSON Schema of the payload.
	Schema json.RawMessage `json:"schema,omitempty"`
	// OutputSchema is the JSON Schema of Result.Data where a call succeeds. Data that
	// is something else makes the call fail.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	// Icons are for people who choose a tool. The host does not load them.
	Icons []Icon `json:"icons,omitempty"`
	// Annotations inform. Only Mutating determines whether a tool changes
	// something.
	Annotations *Annotations `json:"annotations,omitempty"`
	// Mutating means that a call changes something. A tool without it can make
	// GET and HEAD requests only.
	Mutating bool `json:"mutating,omitempty"`
	// Binding comes back with each call of the tool. The caller never sees it.
	Binding json.RawMessage `json:"binding,omitempty"`
}

// Icon is a picture of a tool.
type Icon struct {
	// Src is an https: or data: URL.
	Src      string `json:"src"`
	MIMEType string `json:"mime_type,omitempty"`
	// Sizes are such as "48x48" or "any".
	Sizes []string `json:"sizes,omitempty"`
	// Theme is "light" or "dark" where the icon is for that background.
	Theme string `json:"theme,omitempty"`
}

// Safety is what an identity may do.
type Safety struct {
	ReadOnly bool `json:"read_only,omitempty"`
	// Grants is any text that changes when the grants do.
	Grants string `json:"grants,omitempty"`
}

// Classify is what the optional classify export of a policy is asked when a
// binary has ended. Of Result it has the exit code and the ends of both
// outputs, as far as the host kept them.
type Classify struct {
	Call   Call   `json:"call"`
	Result Result `json:"result"`
}

// Classification is what classify returns. A binary's exit code is its answer;
// here a policy can classify it instead: as a failure of what the tool works with.
type Classification struct {
	// Failure counts against the tool's circuit breaker.
	Failure bool `json:"failure,omitempty"`
	// Retriable means, of a failure, that the same call may succeed when made
	// again.
	Retriable bool `json:"retriable,omitempty"`
}

// Verdicts of a Reconciliation. Anything else is VerdictUnknown.
const (
	VerdictDone    = "done"
	VerdictNotDone = "not_done"
	VerdictUnknown = "unknown"
)

// Reconcile is what the optional reconcile export of a policy or a handler is
// asked about a call that changes something and has an idempotency key: before the
// call begins, which facts it needs to determine later how the call ended, and, when the
// call was cut off, how it ended. It must change nothing: requests are GET and
// HEAD only, and the module can neither run binaries itself, nor call tools, nor
// set variables. Through Reconciliation.Run it has the tool's own binary run.
type Reconcile struct {
	// Call is as its caller made it, but that the values of Env and the input
	// are left out.
	Call Call `json:"call"`
	// Env are the names of the variables that the caller set, and StdinSHA256 is
	// the digest, in hexadecimal, of the input that came with the request.
	Env         []string `json:"env,omitempty"`
	StdinSHA256 string   `json:"stdin_sha256,omitempty"`
	// Key is the idempotency key as the caller wrote it; empty for one that was
	// made of the payload.
	Key string `json:"key,omitempty"`
	// Before means that the call has not begun: the answer is Facts.
	Before bool `json:"before,omitempty"`
	// BeganMS is when the call began, EndedMS when it was cut off or found to have
	// been, and NowMS is now: in milliseconds since 1970, by the host's clock or
	// that of its store of records.
	BeganMS int64 `json:"began_ms,omitempty"`
	EndedMS int64 `json:"ended_ms,omitempty"`
	NowMS   int64 `json:"now_ms,omitempty"`
	// Gone means that no process and no request of the call is left on the host
	// that ran it. What a server does that got the request is not in it.
	// If it is false, the host treats VerdictNotDone as VerdictUnknown.
	Gone bool `json:"gone,omitempty"`
	// Facts are what this export answered before the call began.
	Facts json.RawMessage `json:"facts,omitempty"`
	// Ran is what came of the commands of Reconciliation.Run, in their order.
	Ran []ReconcileRan `json:"ran,omitempty"`
}

// ReconcileRan is one command that ran for a reconcile export.
type ReconcileRan struct {
	Args     []string `json:"args"`
	ExitCode int      `json:"exit_code"`
	Stdout   string   `json:"stdout,omitempty"`
	Stderr   string   `json:"stderr,omitempty"`
	// Truncated means that not all of the output is here.
	Truncated bool `json:"truncated,omitempty"`
	// Error is why it did not run, or not to its end.
	Error *Error `json:"error,omitempty"`
}

// Reconciliation is what reconcile returns.
type Reconciliation struct {
	// Run are argument lists to run the tool's binary with, after which the
	// export is asked again. They go the way of every call, through restrict, as
	// a caller who may only read: what is not classed as not mutating is refused.
	Run [][]string `json:"run,omitempty"`
	// Facts answer Before: any JSON up to 16 KiB. Without them the host keeps no
	// facts, and asks later all the same.
	Facts json.RawMessage `json:"facts,omitempty"`
	// Verdict is VerdictDone only if the call has done all that it was to do,
	// VerdictNotDone only if it has done nothing and never will.
	Verdict string `json:"verdict,omitempty"`
	// Evidence is what the verdict is based on, for people.
	Evidence string `json:"evidence,omitempty"`
	// Result is that of a call that was done, as it is replayed.
	Result *Result `json:"result,omitempty"`
}

// What a Wire is about, in its On.
const (
	WirePush = "git-push"
	WireHTTP = "http"
)

// Wire is what the optional wire export of a policy is asked about what a binary of
// an allowed call is about to send, before any of it leaves the host and before the
// host adds a credential. It is answered with a Decision of Effect, Rule, Reason and
// Instead; other fields are refused, since nothing can be changed here. The export
// may only look, as reconcile may, and is asked by several connections at once. It
// is of the same version of the module as the restrict export that decided the call.
type Wire struct {
	// On is WirePush or WireHTTP. A policy should deny unknown ones.
	On string `json:"on"`
	// Host is the name or address that was connected to, in lower case, and Port
	// its port.
	Host string `json:"host"`
	Port int    `json:"port"`
	// Path is that of the repository as the server is asked for it, or of the
	// request, with its query.
	Path string `json:"path"`
	// Method is that of an HTTP request.
	Method string `json:"method,omitempty"`
	// Remote is the URL of the repository that is pushed to, Refs is what becomes
	// of it, and PushOptions is what is passed to the hooks there.
	Remote      string    `json:"remote,omitempty"`
	Refs        []WireRef `json:"refs,omitempty"`
	PushOptions []string  `json:"push_options,omitempty"`
	// Call is the call as it was decided, without RepoConfig and StdinBase64.
	Call Call `json:"call"`
}

// WireRef is one reference that a push changes.
type WireRef struct {
	// Name is the whole name: refs/heads/main.
	Name string `json:"name"`
	// Old and New are object names in hexadecimal, all zeros for none: Old of a
	// reference that is created, New of one that is deleted.
	Old string `json:"old"`
	New string `json:"new"`
	// Force is true for a deletion and for an update that drops commits, false
	// for a new reference and for a fast-forward, and null if the host cannot
	// determine it, which a policy should treat as true.
	Force *bool `json:"force"`
}

// Error is a tool's own failure.
type Error struct {
	// Code is the tool's own, for programs: UPPER_SNAKE_CASE.
	Code      string `json:"code,omitempty"`
	Message   string `json:"message"`
	Retriable bool   `json:"retriable,omitempty"`
}

// ExecRequest is the input of the host function tool_exec.
type ExecRequest struct {
	// Path must be one of the paths in capabilities.exec.
	Path        string            `json:"path"`
	Args        []string          `json:"args,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	StdinBase64 string            `json:"stdin_base64,omitempty"`
}

// ExecResult is what tool_exec returns. Error is set, and the rest empty,
// when nothing ran.
type ExecResult struct {
	ExitCode     int    `json:"exit_code"`
	StdoutBase64 string `json:"stdout_base64,omitempty"`
	StderrBase64 string `json:"stderr_base64,omitempty"`
	Truncated    bool   `json:"truncated,omitempty"`
	Error        *Error `json:"error,omitempty"`
}

// EmitRequest is the input of the host function tool_emit.
type EmitRequest struct {
	// Stream is "stdout", "stderr" or "progress"; the data of progress is
	// one JSON value.
	Stream     string `json:"stream"`
	DataBase64 string `json:"data_base64,omitempty"`
}

// EmitResult is what tool_emit returns. Error is set when the caller has
// left; a handler should then stop.
type EmitResult struct {
	Error *Error `json:"error,omitempty"`
}

// RecvResult is what tool_recv returns; tool_recv takes no input (offset 0).
type RecvResult struct {
	// DataBase64 is the next piece of the caller's input, or one message
	// that steers the call.
	DataBase64 string `json:"data_base64,omitempty"`
	EOF        bool   `json:"eof,omitempty"`
	Error      *Error `json:"error,omitempty"`
}
