package tools

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// MaxDefinition is the maximum size of a tool.json, in bytes. Definitions have a few
// kilobytes; the limit turns a wrong file into an error.
const MaxDefinition = 1 << 20

// Limits of what a definition may ask for. They catch mistakes, such as milliseconds
// in place of seconds. They do not protect the host; the engine's limit of all
// instances together does.
const (
	maxTimeout       = Seconds(7 * 24 * 3600)
	maxTTL           = Seconds(366 * 24 * 3600)
	maxMemory        = Size(4 << 30) // what a 32-bit guest can address
	maxCompileTime   = Seconds(3600)
	maxCompileMemory = Size(64 << 30)
	maxCompileModule = Size(256 << 20)
	maxOutput        = Size(1 << 30)
	maxState         = Size(64 << 20)
	maxFuel          = int64(1e15)
	maxConcurrency   = 10_000
	maxMillis        = int64(24 * 3600 * 1000)
)

// Definition is a tool.json: what a tool is, how it is executed and what it
// may do. ParseDefinition fills in the defaults, so that fields that are not in the
// file hold the values that apply.
type Definition struct {
	// SchemaRef tells an editor where the JSON Schema of this file is. toold
	// ignores it.
	SchemaRef string `json:"$schema,omitempty"`

	// Binary, Handler and WASI are alternatives; at most one is set. If none is,
	// the tool executes handler.wasm if its folder has one, else the binary of
	// the tool's own name.
	//
	// Binary is an absolute path, or a bare name that is looked up in
	// BinaryPath. Handler is a module (.wasm) or an Extism manifest (.json),
	// WASI a WASI preview 1 command; both are paths beneath the tool's folder.
	Binary  string `json:"binary,omitempty"`
	Handler string `json:"handler,omitempty"`
	WASI    string `json:"wasi,omitempty"`

	Description string           `json:"description,omitempty"`
	Annotations *abi.Annotations `json:"annotations,omitempty"`
	// Schema is the JSON Schema of the payload, as it was written. Calls are
	// checked against what CompileSchema makes of it.
	Schema json.RawMessage `json:"schema,omitempty"`
	// OutputSchema is the JSON Schema of the data that the handler returns. A call
	// whose data does not match fails.
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`

	// Timeout limits the duration of a call. Default 300 s.
	Timeout Seconds `json:"timeout,omitempty"`
	// Mutating and Idempotent classify calls that the policy does not classify.
	// Default false.
	Mutating   bool `json:"mutating,omitempty"`
	Idempotent bool `json:"idempotent,omitempty"`
	// Stdin reports whether a call reads the caller's input, unless the policy
	// decides. Default true.
	Stdin bool `json:"stdin"`
	// Terminal gives a binary a terminal of its own if its caller has one. Default
	// false.
	Terminal bool `json:"terminal,omitempty"`
	// TerminalOutput selects which control sequences reach the caller's terminal:
	// TerminalDisplay, which is the default, or TerminalAll.
	TerminalOutput string `json:"terminal_output,omitempty"`
	// Callbacks are the kinds of programs that a call of a binary may ask its caller
	// to run: callbacks.Kinds. A policy selects among those that the caller offers.
	Callbacks []string `json:"callbacks,omitempty"`
	// Policy is PolicyNone, PolicyRequired or empty.
	Policy string `json:"policy,omitempty"`
	// Entry describes the export to call of a module without handle.
	Entry *Entry `json:"entry,omitempty"`
	// Roots restricts the folders that calls may work in. Absolute.
	Roots []string `json:"roots,omitempty"`
	// User is the user that the tool's binaries run as, "NAME", "UID" or
	// "UID:GID"; empty is toold's own user. It requires that toold may change
	// users.
	User string `json:"user,omitempty"`
	// Category is the group of the tool, for sockets that serve some groups only.
	Category     string            `json:"category,omitempty"`
	Capabilities Capabilities      `json:"capabilities,omitzero"`
	Environment  map[string]string `json:"environment,omitempty"`
	// EnvironmentSeen has the variables that the program would use if it inherited
	// the caller's environment, each with what to do instead, which may be empty. A
	// name that ends with * is a prefix. Policies see which of them the caller has
	// set, and an allowed call notes that they have no effect.
	EnvironmentSeen map[string]string `json:"environment_seen,omitempty"`
	// Secrets maps names to secrets. A guest sees the names only.
	Secrets     map[string]Secret `json:"secrets,omitempty"`
	Limits      Limits            `json:"limits"`
	Config      map[string]string `json:"config,omitempty"`
	Identity    Identity          `json:"identity,omitzero"`
	Discovery   Discovery         `json:"discovery,omitzero"`
	Reliability Reliability       `json:"reliability"`
	// Reconcile finds out how a call of a binary ended; nil if only an export
	// reconcile of a policy can.
	Reconcile *Reconcile `json:"reconcile,omitempty"`
	// On lists the names of the events that a module is run for. It cannot be called
	// otherwise then.
	On []string `json:"on,omitempty"`
	// Hash maps files of the folder, modules or setup.sh, to their sha256 in hex.
	// A file with another sum breaks the tool.
	Hash map[string]string `json:"hash,omitempty"`
}

// Reconcile is a command of the tool's binary that changes nothing and reports by its
// exit code how a call with an unknown outcome ended.
type Reconcile struct {
	// Args are its arguments; {key} and {execution_id} are those of the call.
	Args []string `json:"args"`
	// Done and NotDone are exit codes; any other leaves the outcome unknown. The
	// output of the command is the result of a call that was done.
	Done    []int `json:"done,omitempty"`
	NotDone []int `json:"not_done,omitempty"`
}

// Values of Definition.TerminalOutput.
const (
	TerminalDisplay = "display"
	TerminalAll     = "all"
)

// Values of Definition.Policy.
const (
	// PolicyNone confirms that a tool that once had a policy has none on purpose.
	PolicyNone = "none"
	// PolicyRequired makes the tool broken while it has no policy of its own, so that
	// a folder that is incomplete or was never built does not serve without a policy.
	PolicyRequired = "required"
)

// Seconds is a time in seconds; fractions are allowed.
type Seconds float64

// Duration converts s.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// Size is a number of bytes. In a file it is an integer, or a string with one
// of the units B, KiB, MiB and GiB: "64MiB".
type Size int64

// UnmarshalJSON reads an integer or a string with a unit.
func (s *Size) UnmarshalJSON(b []byte) error {
	text := string(b)
	factor := int64(1)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		for _, unit := range [...]struct {
			suffix string
			factor int64
		}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}} {
			if t, ok := strings.CutSuffix(text, unit.suffix); ok {
				text, factor = strings.TrimSuffix(t, " "), unit.factor
				break
			}
		}
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor || strings.HasPrefix(text, "+") {
		return errors.New(`must be a number of bytes, or a string with a unit (B, KiB, MiB, GiB) such as "64MiB"`)
	}
	*s = Size(n * factor)
	return nil
}

// MarshalJSON writes the form with the largest unit that divides s.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

func (s Size) String() string {
	switch {
	case s != 0 && s%(1<<30) == 0:
		return strconv.FormatInt(int64(s>>30), 10) + "GiB"
	case s != 0 && s%(1<<20) == 0:
		return strconv.FormatInt(int64(s>>20), 10) + "MiB"
	case s != 0 && s%(1<<10) == 0:
		return strconv.FormatInt(int64(s>>10), 10) + "KiB"
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Entry describes how to call a module without handle, such as a stock Extism plugin.
type Entry struct {
	Export string `json:"export"`
	// Input is what the export reads: EntryCall (the whole abi.Call, the default),
	// EntryStdin (the bytes of the caller's input) or EntryPayload (the JSON of the
	// payload).
	Input string `json:"input,omitempty"`
	// Output is what it writes: EntryResult (an abi.Result, the default) or
	// EntryStdout (the bytes of the tool's standard output).
	Output string `json:"output,omitempty"`
}

// Values of Entry.Input and Entry.Output.
const (
	EntryCall    = "call"
	EntryStdin   = "stdin"
	EntryPayload = "payload"
	EntryResult  = "result"
	EntryStdout  = "stdout"
)

// Capabilities are what a tool may do beyond computing. All are denied by
// default.
type Capabilities struct {
	// Exec lists absolute paths of executables, or of folders of executables: those
	// that a module may start with tool_exec, or that a binary may start in
	// addition to itself.
	Exec []string `json:"exec,omitempty"`
	// Network lists the hosts that a binary may connect to, in the form of
	// HTTP.Hosts, and Unix sockets as "unix:/PATH".
	Network []string `json:"network,omitempty"`
	// Unread lists hosts of Network whose connections are passed through, though a
	// policy judges what goes over the network: those whose clients pin a
	// certificate, and those that use another protocol than HTTP.
	Unread []string `json:"unread,omitempty"`
	HTTP   *HTTP    `json:"http,omitempty"`
	// Files maps paths of the guest to paths of the host.
	Files map[string]File `json:"files,omitempty"`
	// Env lists the variables that a caller may set.
	Env []string `json:"env,omitempty"`
	// State limits the bytes that var_set keeps for each identity, session and
	// tool; 0 grants none.
	State Size `json:"state,omitempty"`
	// ToolCall lets a module make calls, with the session and identity of its
	// caller.
	ToolCall ToolCalls `json:"tool_call,omitempty"`
}

// HTTP restricts the requests of a guest.
type HTTP struct {
	// Hosts are names ("api.example.com"), names with a port, addresses, or
	// "*.example.com" for everything beneath; "*" is every public host.
	Hosts []string `json:"hosts"`
	// Methods are in upper case; "*" is any. Default GET and HEAD.
	Methods []string `json:"methods,omitempty"`
	// TLS sets how the certificate of each host is checked. A CA, a client
	// certificate and its key are in Definition.Secrets.
	TLS map[string]HostTLS `json:"tls,omitempty"`
}

// HostTLS is how the certificate of one host is checked.
type HostTLS struct {
	// ServerName is the name that it must have; the default is the host.
	ServerName string `json:"server_name,omitempty"`
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool `json:"insecure_skip_verify,omitempty"`
}

// File is a path of the host that a guest may use.
type File struct {
	Path string `json:"path"`
	// Mode is "ro", the default, or "rw".
	Mode string `json:"mode,omitempty"`
}

// Secret is a value that the host supplies: in a variable of a binary, in a file that
// a variable of a binary names, in a header of the
// requests to one host, or in TLS with that host.
type Secret struct {
	// From is "env:NAME", "file:PATH" (absolute) or "claim:NAME"; for an SSHKey also
	// "agent:KEY", see InAgent.
	From   string `json:"from"`
	Env    string `json:"env,omitempty"`
	Header string `json:"header,omitempty"`
	Host   string `json:"host,omitempty"`
	// TLS is its use in connections to Host, in PEM: TLSCA, TLSCert or TLSKey.
	TLS string `json:"tls,omitempty"`
	// InsecureHTTP allows a binary to send Header to Host without TLS too.
	InsecureHTTP bool `json:"insecure_http,omitempty"`
	// File is the variable that holds the path of a file with Content, which exists
	// for one call. A mark in Content, for a file or a header, stands for the value;
	// the default of Content is the value alone.
	File    string `json:"file,omitempty"`
	Content string `json:"content,omitempty"`
	// SSHKey marks a private key with which the host itself logs in to Host over ssh,
	// for the git of a binary, which never gets the key.
	SSHKey bool `json:"ssh_key,omitempty"`
	// SigV4 marks a key with which the host signs the requests of a binary to Host:
	// "ACCESS_KEY:SECRET_KEY", or "ACCESS_KEY:SECRET_KEY:SESSION_TOKEN".
	SigV4 *SigV4 `json:"sigv4,omitempty"`
	// SSHSign marks a private key with which the host itself signs commits and tags
	// for the git of a binary, which never gets the key.
	SSHSign bool `json:"ssh_sign,omitempty"`
}

// InAgent returns the public part of an SSHKey that is in the agent of the daemon:
// its fingerprint as "SHA256:...", or as ssh-keygen writes public keys.
func (s Secret) InAgent() (public string, ok bool) { return strings.CutPrefix(s.From, "agent:") }

// SigV4 is the service and the region that requests are signed for.
type SigV4 struct {
	Service string `json:"service"`
	Region  string `json:"region"`
}

// secretMark matches the marks in a Secret's Content: "{secret}" stands for the value,
// "{basic:USER}" for USER:VALUE in base64, as in HTTP's Basic authentication.
var secretMark = regexp.MustCompile(`\{secret\}|\{basic:[^{}:\x00-\x1f\x7f]*\}`)

// Values of Secret.TLS.
const (
	TLSCA   = "ca"   // the authorities that may have issued the host's certificate, and no others
	TLSCert = "cert" // the client certificate, with its intermediate certificates
	TLSKey  = "key"  // the key of the client certificate
)

// Fill returns s.Content with its mark replaced by value, or value if there is no
// content.
func (s Secret) Fill(value string) string {
	if s.Content == "" {
		return value
	}
	return secretMark.ReplaceAllStringFunc(s.Content, func(mark string) string {
		if user, basic := strings.CutPrefix(strings.TrimSuffix(mark, "}"), "{basic:"); basic {
			return base64.StdEncoding.EncodeToString([]byte(user + ":" + value))
		}
		return value
	})
}

// Limits are the limits of a call, or of all calls of the tool.
type Limits struct {
	// Memory limits the memory of a guest. Default 64MiB.
	Memory Size `json:"memory"`
	// Fuel is the number of metered instructions of a call. Default
	// 20,000,000,000, about three seconds of one core.
	Fuel int64 `json:"fuel"`
	// Output is how much is kept for plain answers, journals and results. Default
	// 16MiB. It does not limit streams.
	Output Size `json:"output"`
	// Stream is how much a streamed call may send. Default 0, which is no limit.
	Stream Size `json:"stream,omitempty"`
	// Concurrency is how many calls execute at once, default 32; Queue is how many
	// more wait, default 256. Further calls are OVERLOADED.
	Concurrency int `json:"concurrency"`
	Queue       int `json:"queue"`
	// Compile limits the compilation of the tool's modules, except its policies.
	Compile Compile `json:"compile,omitzero"`
}

// Compile has the limits of compiling; 0 means a limit that depends on the size of
// the module.
type Compile struct {
	Time   Seconds `json:"time,omitempty"` // of one core
	Memory Size    `json:"memory,omitempty"`
	Module Size    `json:"module,omitempty"` // of code and data
}

// Limits converts c.
func (c Compile) Limits() guest.CompileLimits {
	return guest.CompileLimits{Time: c.Time.Duration(), Memory: int64(c.Memory), Module: int64(c.Module)}
}

// Identity lists the claims of a token that configure the tool.
type Identity struct {
	// Claims override Config by name. Those in Secret do as well, and are never
	// shown to the guest.
	Claims []string `json:"claims,omitempty"`
	Secret []string `json:"secret,omitempty"`
}

// Discovery configures the cache of the tools that a module lists.
type Discovery struct {
	// TTL is how long those of one identity are fresh, from 1 s to a day; 0 means the
	// time that the module sets, else the host's.
	TTL Seconds `json:"ttl,omitempty"`
}

// Reliability configures deduplication, retries and the circuit breaker.
type Reliability struct {
	// TTL is how long a result is kept for its key, default 24 h; FailedTTL how
	// long a failure is, default 30 s.
	TTL       Seconds `json:"ttl"`
	FailedTTL Seconds `json:"failed_ttl"`
	// OnDuplicate is DuplicateWait, the default, or DuplicateFail.
	OnDuplicate string `json:"on_duplicate"`
	// AutoKey is whether mutating calls without a key get one. nil: they do if the
	// tool has a schema.
	AutoKey *bool `json:"auto_key,omitempty"`
	// RetriableExits are the exit codes of a binary (1 to 255) that are failures
	// and may be retried.
	RetriableExits []int   `json:"retriable_exits,omitempty"`
	Retry          Retry   `json:"retry"`
	Breaker        Breaker `json:"breaker"`
	// Mode is "off", "shadow", "read-only" or "all"; empty is the host's.
	Mode string `json:"mode,omitempty"`
}

// Values of Reliability.OnDuplicate.
const (
	DuplicateWait = "wait"
	DuplicateFail = "fail"
)

// Retry configures retries, with exponential backoff and full jitter.
type Retry struct {
	Max       int   `json:"max"`        // retries after the first attempt, 3
	InitialMS int64 `json:"initial_ms"` // before the first retry at most, 500
	CapMS     int64 `json:"cap_ms"`     // at most, 5000
	// Budget bounds the retries of all calls of an upstream together.
	Budget RetryBudget `json:"budget"`
}

// RetryBudget is what all calls of one upstream may retry together: Share of a
// retry for each call, and Burst that are saved up.
type RetryBudget struct {
	Share float64 `json:"share"` // 0.1
	Burst int     `json:"burst"` // 10
}

// Breaker configures the circuit breaker. It opens after Failures consecutive
// failures, or when Ratio of the last Window calls failed.
type Breaker struct {
	Failures int     `json:"failures"` // 5
	Window   int     `json:"window"`   // 100
	Ratio    float64 `json:"ratio"`    // 0.5
	ResetMS  int64   `json:"reset_ms"` // 30000
	// FailureThreshold and ResetTimeoutMS are other names of Failures and
	// ResetMS, HalfOpenConcurrency of what is always 1. They are 0 once read.
	FailureThreshold    int   `json:"failure_threshold,omitempty"`
	ResetTimeoutMS      int64 `json:"reset_timeout_ms,omitempty"`
	HalfOpenConcurrency int   `json:"half_open_concurrency,omitempty"`
}

// UnmarshalJSON reads a breaker by either name of each setting. What is not named
// keeps its value.
func (b *Breaker) UnmarshalJSON(data []byte) error {
	type plain Breaker
	if err := strictjson.Unmarshal(data, (*plain)(b)); err != nil {
		return err
	}
	named := map[string]bool{}
	if err := strictjson.Members(data, func(name, _ []byte) { named[string(name)] = true }); err != nil {
		return err
	}
	if named["failure_threshold"] {
		if named["failures"] && b.Failures != b.FailureThreshold {
			return fmt.Errorf("has failures %d and failure_threshold %d, which are the same setting; keep one", b.Failures, b.FailureThreshold)
		}
		b.Failures = b.FailureThreshold
	}
	if named["reset_timeout_ms"] {
		if named["reset_ms"] && b.ResetMS != b.ResetTimeoutMS {
			return fmt.Errorf("has reset_ms %d and reset_timeout_ms %d, which are the same setting; keep one", b.ResetMS, b.ResetTimeoutMS)
		}
		b.ResetMS = b.ResetTimeoutMS
	}
	if named["half_open_concurrency"] && b.HalfOpenConcurrency != 1 {
		return fmt.Errorf("has half_open_concurrency %d; a breaker lets one call at a time find out whether its upstream works again, so that what is down is not asked by many: make it 1, or leave it out", b.HalfOpenConcurrency)
	}
	b.FailureThreshold, b.ResetTimeoutMS, b.HalfOpenConcurrency = 0, 0, 0
	return nil
}

// DefaultDefinition returns the meaning of an empty tool.json, or of none.
func DefaultDefinition() *Definition {
	return &Definition{
		Timeout: 300,
		Stdin:   true,
		Limits: Limits{
			Memory: 64 << 20, Fuel: 20_000_000_000, Output: 16 << 20,
			Concurrency: 32, Queue: 256,
		},
		Reliability: Reliability{
			TTL: 24 * 3600, FailedTTL: 30, OnDuplicate: DuplicateWait,
			Retry:   Retry{Max: 3, InitialMS: 500, CapMS: 5000, Budget: RetryBudget{Share: 0.1, Burst: 10}},
			Breaker: Breaker{Failures: 5, Window: 100, Ratio: 0.5, ResetMS: 30_000},
		},
	}
}

// Seen returns what to do instead of setting the variable name, and whether
// EnvironmentSeen has it. The longest entry counts.
func (d *Definition) Seen(name string) (instead string, ok bool) {
	if instead, ok = d.EnvironmentSeen[name]; ok {
		return instead, true
	}
	longest := 0
	for pattern, text := range d.EnvironmentSeen {
		prefix, all := strings.CutSuffix(pattern, "*")
		if all && strings.HasPrefix(name, prefix) && len(pattern) > longest {
			longest, instead, ok = len(pattern), text, true
		}
	}
	return instead, ok
}
