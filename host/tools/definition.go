package tools

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire/callbacks"
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

// nameRule matches the names that a tool may have. Without separators and dots a
// name is always a single path element.
var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// ValidName reports whether name may be a tool's name:
// ^[a-z0-9][a-z0-9_-]{0,63}$.
func ValidName(name string) bool {
	// In Go, $ matches at the end of the text only and not before a final
	// newline.
	return nameRule.MatchString(name)
}

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

// agentRule matches the name of a key in an agent.
var agentRule = regexp.MustCompile(`^(SHA256:[A-Za-z0-9+/]{43}|(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}( [ -~]*)?)$`)

// SigV4 is the service and the region that requests are signed for.
type SigV4 struct {
	Service string `json:"service"`
	Region  string `json:"region"`
}

// scopeRule matches services and regions.
var scopeRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

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

// Fault is an error in a tool.json.
type Fault struct {
	File         string
	Line, Column int // from 1; 0 if the fault concerns the file as a whole
	// Pointer is the JSON pointer of the value; empty is the whole document.
	Pointer string
	// Reason is a verb phrase that follows the pointer: "must be positive".
	Reason string
}

func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	b.WriteString(": ")
	if f.Pointer != "" {
		b.WriteString(f.Pointer)
		b.WriteByte(' ')
	}
	b.WriteString(f.Reason)
	return b.String()
}

// Faults are all errors in a tool.json, in the order of the checks. As an error it is
// never empty.
type Faults []Fault

// Error returns the first fault and the number of further ones, in one line.
func (f Faults) Error() string {
	switch len(f) {
	case 0:
		return "no fault"
	case 1:
		return f[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", f[0].Error(), len(f)-1)
}

// ParseDefinition parses a tool.json strictly: an unknown or duplicate key, a wrong
// type or a value out of range is a Faults error, with file (as it is named here),
// line, column and JSON pointer. It reads no other file.
func ParseDefinition(file string, data []byte) (*Definition, error) {
	d := DefaultDefinition()
	if len(data) > MaxDefinition {
		return nil, Faults{{File: file, Reason: fmt.Sprintf("is %d bytes, more than the %d that a definition may have", len(data), MaxDefinition)}}
	}
	if err := strictjson.Unmarshal(data, d); err != nil {
		var f *strictjson.Fault
		if errors.As(err, &f) {
			return nil, Faults{{File: file, Line: f.Line, Column: f.Column, Pointer: f.Pointer, Reason: f.Reason}}
		}
		return nil, Faults{{File: file, Reason: err.Error()}}
	}
	c := &checker{file: file, data: data}
	c.definition(d)
	if len(c.faults) > 0 {
		return nil, c.faults
	}
	return d, nil
}

// checker collects the faults of a definition that is well-formed.
type checker struct {
	file   string
	data   []byte
	faults Faults
}

func (c *checker) fault(pointer, format string, args ...any) {
	line, column := position(c.data, pointer)
	c.faults = append(c.faults, Fault{File: c.file, Line: line, Column: column, Pointer: pointer, Reason: fmt.Sprintf(format, args...)})
}

// oneOf checks that value is empty, which is the default, or one of allowed.
func (c *checker) oneOf(pointer, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		c.fault(pointer, "is %q; it must be one of %s", value, strings.Join(allowed, ", "))
	}
}

// within checks that value is from low to high.
func within[N int | int64 | Size | Seconds](c *checker, pointer string, value, low, high N) {
	if value < low || value > high || value != value {
		c.fault(pointer, "is %v; it must be from %v to %v", value, low, high)
	}
}

func (c *checker) definition(d *Definition) {
	c.execution(d)
	if len(d.Description) > 4096 {
		c.fault("/description", "is longer than 4096 bytes")
	}
	if d.Schema != nil {
		if _, err := CompileSchema(d.Schema); err != nil {
			c.fault("/schema", "%v", err)
		}
	}
	if d.OutputSchema != nil {
		if _, err := CompileSchema(d.OutputSchema); err != nil {
			c.fault("/output_schema", "%v", err)
		}
		if d.Binary != "" || d.WASI != "" {
			c.fault("/output_schema", "is of what a handler answers as data, and this is a program, which answers none")
		}
	}
	if !(d.Timeout > 0) || d.Timeout > maxTimeout {
		c.fault("/timeout", "is %v; it must be more than 0 and at most %v seconds", d.Timeout, float64(maxTimeout))
	}
	c.oneOf("/terminal_output", d.TerminalOutput, TerminalDisplay, TerminalAll)
	c.oneOf("/policy", d.Policy, PolicyNone, PolicyRequired)
	if d.Category != "" && !ValidName(d.Category) {
		c.fault("/category", "is %q; it must match %s", d.Category, nameRule)
	}
	if d.User != "" {
		if _, err := confine.LookUpUser(d.User); err != nil {
			c.fault("/user", "%v", err)
		}
	}
	for i, root := range d.Roots {
		c.absolute(fmt.Sprintf("/roots/%d", i), root)
	}
	c.capabilities(&d.Capabilities, d.Policy)
	c.environment(d)
	c.environmentSeen(d)
	c.callbacks(d)
	c.secrets(d)
	c.limits(&d.Limits)
	c.identity(&d.Identity)
	c.discovery(d)
	c.reliability(&d.Reliability)
	c.reconcile(d)
	c.on(d)
	for _, name := range sortedKeys(d.Hash) {
		at := "/hash/" + escapePointer(name)
		if !filepath.IsLocal(name) || name == "." {
			c.fault(at, "names %q; it must name a file of the tool's folder", name)
		}
		if b, err := hex.DecodeString(d.Hash[name]); err != nil || len(b) != 32 || strings.ToLower(d.Hash[name]) != d.Hash[name] {
			c.fault(at, "must be a sha256 as 64 lower-case hexadecimal digits (sha256sum prints one)")
		}
	}
}

func (c *checker) execution(d *Definition) {
	var set []string
	for _, w := range [...]struct{ field, value string }{{"binary", d.Binary}, {"handler", d.Handler}, {"wasi", d.WASI}} {
		if has(c.data, "/"+w.field) {
			set = append(set, w.field)
			if w.value == "" {
				c.fault("/"+w.field, "is empty; leave the field out for the default")
			}
		}
	}
	if len(set) > 1 {
		c.fault("/"+set[1], "cannot stand beside %s: a tool is executed in one way, keep one of binary, handler and wasi", set[0])
	}
	if b := d.Binary; b != "" {
		switch {
		case strings.ContainsRune(b, 0):
			c.fault("/binary", "holds a zero byte")
		case strings.ContainsRune(b, '/') && (!path.IsAbs(b) || path.Clean(b) != b):
			c.fault("/binary", "is %q; it must be a clean absolute path, or a bare name that is looked up in %s", b, BinaryPath)
		case b == "/" || b == "." || b == "..":
			c.fault("/binary", "is %q, which is a folder", b)
		}
	}
	for _, w := range [...]struct {
		field, value string
		ext          []string
	}{{"handler", d.Handler, []string{".wasm", ".json"}}, {"wasi", d.WASI, []string{".wasm"}}} {
		if w.value == "" {
			continue
		}
		if !filepath.IsLocal(w.value) || path.Clean(w.value) != w.value {
			c.fault("/"+w.field, "is %q; it must be a clean path beneath the tool's folder", w.value)
		} else if !slices.Contains(w.ext, path.Ext(w.value)) {
			c.fault("/"+w.field, "is %q; it must end in %s", w.value, strings.Join(w.ext, " or "))
		} else if w.value == DefinitionFile || w.value == PolicyFile {
			c.fault("/"+w.field, "is %q, which has a meaning of its own in a tool's folder; give the module another name", w.value)
		}
	}
	if e := d.Entry; e != nil {
		if e.Export == "" {
			c.fault("/entry", "needs export, the name of the function that is the tool")
		}
		c.oneOf("/entry/input", e.Input, EntryCall, EntryStdin, EntryPayload)
		c.oneOf("/entry/output", e.Output, EntryResult, EntryStdout)
		if e.Input == "" {
			e.Input = EntryCall
		}
		if e.Output == "" {
			e.Output = EntryResult
		}
		if d.Binary != "" || d.WASI != "" {
			c.fault("/entry", "is for a handler; a binary or wasi program has no exports that are called")
		}
	}
}

func (c *checker) absolute(pointer, p string) bool {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		c.fault(pointer, "is %q; it must be a clean absolute path", p)
		return false
	}
	return true
}

var (
	methodRule = regexp.MustCompile(`^[A-Z]{1,16}$`)
	hostRule   = regexp.MustCompile(`^(?i)(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.?(:[0-9]{1,5})?$`)
	headerRule = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)
	secretRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	// variableRule matches the names that every shell can set.
	variableRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// validHost reports whether h is a host, or with pattern a pattern of hosts.
func validHost(h string, pattern bool) bool {
	if h == "*" {
		return pattern
	}
	if strings.HasPrefix(h, "*.") && !pattern {
		return false
	}
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	if a, err := netip.ParseAddrPort(h); err == nil {
		return a.Port() != 0
	}
	if !hostRule.MatchString(h) || len(h) > 255 {
		return false
	}
	if i := strings.LastIndexByte(h, ':'); i >= 0 {
		n, err := strconv.Atoi(h[i+1:])
		return err == nil && n > 0 && n < 1<<16
	}
	return true
}

func (c *checker) capabilities(k *Capabilities, policy string) {
	for i, p := range k.Exec {
		c.absolute(fmt.Sprintf("/capabilities/exec/%d", i), p)
	}
	for i, host := range k.Network {
		at := fmt.Sprintf("/capabilities/network/%d", i)
		if socket, ok := strings.CutPrefix(host, "unix:"); ok {
			c.absolute(at, socket)
		} else if !validHost(host, true) {
			c.fault(at, `is %q; it must be a host, a host:port, an address, "*.example.com", "*" or "unix:/path"`, host)
		}
	}
	if h := k.HTTP; h != nil {
		if len(h.Hosts) == 0 {
			c.fault("/capabilities/http", `needs hosts, the list of hosts that requests may go to; leave http out to grant none`)
		}
		for i, host := range h.Hosts {
			if !validHost(host, true) {
				c.fault(fmt.Sprintf("/capabilities/http/hosts/%d", i), `is %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, host)
			}
		}
		for i, m := range h.Methods {
			if m != "*" && !methodRule.MatchString(m) {
				c.fault(fmt.Sprintf("/capabilities/http/methods/%d", i), `is %q; it must be a method in upper case such as "GET", or "*"`, m)
			}
		}
		if len(h.Methods) == 0 {
			h.Methods = []string{"GET", "HEAD"}
		}
	}
	for _, guest := range sortedKeys(k.Files) {
		f, at := k.Files[guest], "/capabilities/files/"+escapePointer(guest)
		c.absolute(at, guest)
		c.absolute(at+"/path", f.Path)
		c.oneOf(at+"/mode", f.Mode, "ro", "rw")
		if f.Mode == "" {
			f.Mode = "ro"
			k.Files[guest] = f
		}
	}
	for i, name := range k.Env {
		at := fmt.Sprintf("/capabilities/env/%d", i)
		if !variableRule.MatchString(name) {
			c.fault(at, "is %q; it must be the name of a variable", name)
		} else if why := neverFromCaller(name); why != "" && !(policy == PolicyRequired && slices.Contains(judged, name)) {
			c.fault(at, "is %s, which %s; set it in environment if the tool needs a fixed value", name, why)
		}
	}
	within(c, "/capabilities/state", k.State, 0, maxState)
	c.toolCalls(k.ToolCall)
}

func (c *checker) environment(d *Definition) {
	for _, name := range sortedKeys(d.Environment) {
		at := "/environment/" + escapePointer(name)
		if !variableRule.MatchString(name) {
			c.fault(at, "is not the name of a variable")
		}
		if strings.ContainsRune(d.Environment[name], 0) {
			c.fault(at, "holds a zero byte")
		}
		if slices.Contains(d.Capabilities.Env, name) {
			c.fault(at, "is fixed here and open to callers in capabilities.env; keep one")
		}
	}
}

func (c *checker) callbacks(d *Definition) {
	for i, kind := range d.Callbacks {
		if !slices.Contains(callbacks.Kinds(), kind) {
			c.fault(fmt.Sprintf("/callbacks/%d", i), "is none of %s", strings.Join(callbacks.Kinds(), ", "))
		}
	}
}

func (c *checker) environmentSeen(d *Definition) {
	for _, name := range sortedKeys(d.EnvironmentSeen) {
		at := "/environment_seen/" + escapePointer(name)
		if !variableRule.MatchString(strings.TrimSuffix(name, "*")) {
			c.fault(at, "is not the name of a variable, nor its beginning and a *")
		}
		if strings.ContainsFunc(d.EnvironmentSeen[name], unicode.IsControl) {
			c.fault(at, "holds a control character; it is what to do instead, in a few words")
		}
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

func (c *checker) secrets(d *Definition) {
	places := secretPlaces{checker: c, definition: d, variables: map[string]string{}, keys: map[string]string{}}
	for _, name := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[name], "/secrets/"+escapePointer(name)
		if !secretRule.MatchString(name) {
			c.fault(at, "has a name that does not match %s", secretRule)
		}
		c.secretSource(at, s)
		if s.Content != "" && (s.File == "" && s.Header == "" || len(secretMark.FindAllString(s.Content, -1)) != 1) {
			c.fault(at+"/content", "is what is in file or header: it needs one of them, and {secret} or {basic:USER} once, where the value goes")
		}
		if s.Header != "" && strings.ContainsFunc(s.Content, unicode.IsControl) {
			c.fault(at+"/content", "holds a line break or another control character, and cannot stand in a header")
		}
		if s.InsecureHTTP && (s.Header == "" && s.SigV4 == nil || d.WASI != "" || d.Handler != "") {
			c.fault(at+"/insecure_http", "is for the header or signature of a binary's requests; name the port in host to have a handler send it without TLS, and remove this otherwise")
		}
		places.check(name, at, s)
	}
	c.tls(d)
	c.unread(d)
}

// secretSource checks where a secret comes from.
func (c *checker) secretSource(at string, s Secret) {
	kind, source, _ := strings.Cut(s.From, ":")
	switch {
	case kind == "env" && variableRule.MatchString(source):
	case kind == "file" && path.IsAbs(source) && path.Clean(source) == source && !strings.ContainsRune(source, 0):
	case kind == "claim" && validClaim(source):
	case kind == "agent" && s.SSHKey && agentRule.MatchString(source):
	case kind == "agent":
		c.fault(at+"/from", `is for a secret with ssh_key, and needs a key: "agent:SHA256:FINGERPRINT" as ssh-add -l shows it, or "agent:" and a line of ssh-add -L`)
	case s.From == "":
		c.fault(at, `needs from: "env:NAME", "file:/PATH" or "claim:NAME"`)
	default:
		// The value is not repeated: it may be the secret itself, pasted here
		// by mistake, which must not appear in a log.
		c.fault(at+"/from", `must be "env:NAME", "file:/PATH" (clean and absolute) or "claim:NAME", never the secret itself`)
	}
}

// secretPlaces checks where the secrets of one definition go: each to one place,
// which no other has.
type secretPlaces struct {
	*checker
	definition *Definition
	// The names of the secrets that have it already, by variable and by host.
	variables, keys map[string]string
	signer          string
}

func (c *secretPlaces) check(name, at string, s Secret) {
	d := c.definition
	switch {
	case s.SigV4 != nil && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != "" || s.SSHKey || s.SSHSign):
		c.fault(at, "has sigv4 beside env, header, file, tls or ssh_key; a secret goes to one place, use two secrets for two")
	case s.SigV4 != nil:
		c.sigV4(d, at, name, s)
	case s.SSHSign && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != "" || s.SSHKey || s.Host != ""):
		c.fault(at, "has ssh_sign beside env, header, file, tls, ssh_key or host; a secret goes to one place, use two secrets for two")
	case s.SSHSign:
		c.sshSign(name, at)
	case s.SSHKey && (s.Env != "" || s.Header != "" || s.File != "" || s.TLS != ""):
		c.fault(at, "has ssh_key beside env, header, file or tls; a secret goes to one place, use two secrets for two")
	case s.SSHKey:
		c.sshKey(name, at, s)
	case s.TLS != "" && (s.Env != "" || s.Header != "" || s.File != ""):
		c.fault(at, "has tls beside env, header or file; a secret goes to one place, use two secrets for two")
	case s.TLS != "":
		c.oneOf(at+"/tls", s.TLS, TLSCA, TLSCert, TLSKey)
		c.oneHost(at, s)
		if d.WASI != "" {
			c.fault(at+"/tls", "is for requests, and a wasi program makes none")
		}
	case s.File != "" && (s.Env != "" || s.Header != "" || s.Host != ""):
		c.fault(at, "has file beside env, header or host; a secret goes to one place, use two secrets for two")
	case s.Env != "" && (s.Header != "" || s.Host != ""):
		c.fault(at, "has env beside header or host; a secret goes to one place, use two secrets for two")
	case s.Env != "":
		c.variable(name, at+"/env", s.Env)
	case s.File != "":
		c.variable(name, at+"/file", s.File)
	case s.Header != "" && s.Host != "":
		if !headerRule.MatchString(s.Header) {
			c.fault(at+"/header", "is %q; it must be the name of a header", s.Header)
		}
		c.oneHost(at, s)
	default:
		c.fault(at, "needs a place to go: env (a variable of the binary), file (a variable that names a file with it), or header and host together, or tls and host, or ssh_key and host, or sigv4 and host, or ssh_sign")
	}
}

func (c *secretPlaces) variable(name, at, v string) {
	if !variableRule.MatchString(v) {
		c.fault(at, "is %q; it must be the name of a variable", v)
	}
	if _, fixed := c.definition.Environment[v]; fixed {
		c.fault(at, "is %s, which environment sets too; keep one", v)
	}
	if slices.Contains(c.definition.Capabilities.Env, v) {
		c.fault(at, "is %s, which capabilities.env lets callers set; remove it there", v)
	}
	if other, double := c.variables[v]; double {
		c.fault(at, "is %s, which the secret %s sets too", v, other)
	}
	c.variables[v] = name
}

func (c *secretPlaces) oneHost(at string, s Secret) {
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port where it is not the usual one", s.Host)
	}
}

func (c *secretPlaces) sshSign(name, at string) {
	if c.definition.Handler != "" || c.definition.WASI != "" {
		c.fault(at+"/ssh_sign", "is for the git of a binary; a handler or wasi program has none")
	}
	if c.signer != "" {
		c.fault(at+"/ssh_sign", "is true for the secret %s already; keep one", c.signer)
	}
	c.signer = name
}

func (c *secretPlaces) sshKey(name, at string, s Secret) {
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port unless that is 22", s.Host)
	}
	if c.definition.Handler != "" || c.definition.WASI != "" {
		c.fault(at+"/ssh_key", "is for the git of a binary; a handler or wasi program has no ssh")
	}
	key := strings.ToLower(s.Host)
	if n, port := hostrule.Split(key); port == "22" {
		key = n
	}
	if other, double := c.keys[key]; double {
		c.fault(at+"/host", "is %s, for which the secret %s is a key already; keep one", s.Host, other)
	}
	c.keys[key] = name
}

// unread checks the hosts whose requests are not read.
func (c *checker) unread(d *Definition) {
	for i, host := range d.Capabilities.Unread {
		at := fmt.Sprintf("/capabilities/unread/%d", i)
		name, port := hostrule.Split(host)
		if !validHost(host, true) {
			c.fault(at, `is %q; it must be a host, a host:port, an address, "*.example.com" or "*"`, host)
		} else if d.Handler != "" || d.WASI != "" {
			c.fault(at, "is for the connections of a binary; a handler or wasi program has none")
		} else if !grantsHost(d.Capabilities.Network, host) {
			c.fault(at, "has no effect: capabilities.network does not grant %s", host)
		}
		for _, secret := range sortedKeys(d.Secrets) {
			s := d.Secrets[secret]
			if n, p := hostrule.Split(s.Host); s.Host != "" && !s.SSHKey && (grantsHost([]string{host}, s.Host) || n == name && (p == "" || port == "" || p == port)) {
				c.fault(at, "is %s, and the secret %s is for requests to %s, which have to be read; name other hosts", host, secret, s.Host)
			}
		}
	}
}

// sigV4 checks the secret s, whose name is name, that signs requests.
func (c *checker) sigV4(d *Definition, at, name string, s Secret) {
	if !scopeRule.MatchString(s.SigV4.Service) {
		c.fault(at+"/sigv4/service", "is %q; it must be the name of a service as it is in signatures, such as s3 or sts", s.SigV4.Service)
	}
	if !scopeRule.MatchString(s.SigV4.Region) {
		c.fault(at+"/sigv4/region", "is %q; it must be a region, such as us-east-1", s.SigV4.Region)
	}
	if !validHost(s.Host, false) {
		c.fault(at+"/host", "is %q; it must be one host, with a port where it is not the usual one", s.Host)
	}
	if d.Handler != "" || d.WASI != "" {
		c.fault(at+"/sigv4", "is for the requests of a binary; those of a handler or wasi program are not signed")
	}
	// Which of two counts nobody could tell.
	host, port := hostrule.Split(s.Host)
	for _, other := range sortedKeys(d.Secrets) {
		o := d.Secrets[other]
		if other == name || o.SigV4 == nil && !strings.EqualFold(o.Header, "Authorization") {
			continue
		}
		if h, p := hostrule.Split(o.Host); h == host && (p == port || p == "" || port == "") {
			c.fault(at+"/host", "is %s, whose requests the secret %s authorizes already; keep one", s.Host, other)
		}
	}
}

// tls checks that what counts for TLS with a host is whole, and said once.
func (c *checker) tls(d *Definition) {
	kinds := map[string]map[string]string{} // host, kind -> pointer of the secret
	hosts := map[string]string{}            // host -> pointer of what names it
	name := func(at, host string) {
		host = strings.ToLower(host)
		if _, known := hosts[host]; known || !validHost(host, false) {
			return
		}
		n, port := hostrule.Split(host)
		for _, other := range sortedKeys(hosts) {
			if m, p := hostrule.Split(other); m == n && (p == port || p == "" || port == "") {
				c.fault(at, "is for %s, and %s is for %s: connections to it would have both; write the host in one way", host, hosts[other], other)
			}
		}
		hosts[host] = at
	}
	for _, secret := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[secret], "/secrets/"+escapePointer(secret)
		if s.TLS == "" {
			continue
		}
		name(at+"/host", s.Host)
		of := kinds[strings.ToLower(s.Host)]
		if of == nil {
			of = map[string]string{}
			kinds[strings.ToLower(s.Host)] = of
		}
		if other, double := of[s.TLS]; double {
			c.fault(at+"/tls", "is the %s of %s, which %s is already; put several certificates into one file", s.TLS, s.Host, other)
		}
		of[s.TLS] = at
	}
	for _, host := range sortedKeys(kinds) {
		cert, key := kinds[host][TLSCert], kinds[host][TLSKey]
		switch {
		case cert != "" && key == "":
			c.fault(cert+"/tls", `is a certificate for %s without its key; add a secret with "tls": "key"`, host)
		case key != "" && cert == "":
			c.fault(key+"/tls", `is a key for %s without its certificate; add a secret with "tls": "cert"`, host)
		}
	}
	if d.Capabilities.HTTP == nil {
		return
	}
	for _, host := range sortedKeys(d.Capabilities.HTTP.TLS) {
		t, at := d.Capabilities.HTTP.TLS[host], "/capabilities/http/tls/"+escapePointer(host)
		if !validHost(host, false) {
			c.fault(at, "is for %q; it must be one host, with a port where it is not the usual one", host)
		}
		name(at, host)
		if t.ServerName != "" && (strings.Contains(t.ServerName, ":") || !validHost(t.ServerName, false)) {
			c.fault(at+"/server_name", "is %q; it must be the name of a host", t.ServerName)
		}
		if ca := kinds[strings.ToLower(host)][TLSCA]; t.InsecureSkipVerify && (ca != "" || t.ServerName != "") {
			c.fault(at+"/insecure_skip_verify", "takes any certificate, so that a ca and server_name count for nothing; keep one")
		}
	}
}

func (c *checker) limits(l *Limits) {
	within(c, "/limits/memory", l.Memory, 64<<10, maxMemory)
	within(c, "/limits/fuel", l.Fuel, 1, maxFuel)
	within(c, "/limits/output", l.Output, 1, maxOutput)
	if l.Stream < 0 {
		c.fault("/limits/stream", "is negative; 0 is no limit")
	}
	within(c, "/limits/concurrency", l.Concurrency, 1, maxConcurrency)
	within(c, "/limits/queue", l.Queue, 0, maxConcurrency)
	if t := l.Compile.Time; t != 0 {
		within(c, "/limits/compile/time", t, 1, maxCompileTime)
	}
	if m := l.Compile.Memory; m != 0 {
		within(c, "/limits/compile/memory", m, 64<<20, maxCompileMemory)
	}
	if m := l.Compile.Module; m != 0 {
		within(c, "/limits/compile/module", m, 1<<10, maxCompileModule)
	}
}

// validClaim reports whether name may be the name of a claim: a short text without
// control characters.
func validClaim(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func (c *checker) identity(id *Identity) {
	for _, list := range [...]struct {
		at    string
		names []string
	}{{"/identity/claims", id.Claims}, {"/identity/secret", id.Secret}} {
		for i, name := range list.names {
			at := fmt.Sprintf("%s/%d", list.at, i)
			if !validClaim(name) {
				c.fault(at, "is %q; it must be the name of a claim", name)
			}
			if slices.Contains(list.names[:i], name) {
				c.fault(at, "is %s, which the list has already", name)
			}
		}
	}
}

func (c *checker) discovery(d *Definition) {
	if has(c.data, "/discovery/ttl") {
		within(c, "/discovery/ttl", d.Discovery.TTL, 1, 24*3600)
	}
	if d.Discovery.TTL != 0 && (d.Binary != "" || d.WASI != "") {
		c.fault("/discovery", "is for a handler; a binary or wasi program brings no tools")
	}
}

func (c *checker) reliability(r *Reliability) {
	if !(r.TTL > 0) || r.TTL > maxTTL {
		c.fault("/reliability/ttl", "is %v; it must be more than 0 and at most %v seconds", r.TTL, float64(maxTTL))
	}
	within(c, "/reliability/failed_ttl", r.FailedTTL, 0, maxTTL)
	if r.OnDuplicate == "" {
		r.OnDuplicate = DuplicateWait
	}
	c.oneOf("/reliability/on_duplicate", r.OnDuplicate, DuplicateWait, DuplicateFail)
	c.oneOf("/reliability/mode", r.Mode, "off", "shadow", "read-only", "all")
	for i, code := range r.RetriableExits {
		within(c, fmt.Sprintf("/reliability/retriable_exits/%d", i), code, 1, 255)
	}
	within(c, "/reliability/retry/max", r.Retry.Max, 0, 100)
	within(c, "/reliability/retry/initial_ms", r.Retry.InitialMS, 1, maxMillis)
	within(c, "/reliability/retry/cap_ms", r.Retry.CapMS, 1, maxMillis)
	if r.Retry.CapMS < r.Retry.InitialMS {
		c.fault("/reliability/retry", "has cap_ms %d below initial_ms %d", r.Retry.CapMS, r.Retry.InitialMS)
	}
	if s := r.Retry.Budget.Share; !(s > 0) || s > 1 {
		c.fault("/reliability/retry/budget/share", "is %v; it must be more than 0 and at most 1", s)
	}
	within(c, "/reliability/retry/budget/burst", r.Retry.Budget.Burst, 1, 1_000_000)
	within(c, "/reliability/breaker/failures", r.Breaker.Failures, 1, 1_000_000)
	within(c, "/reliability/breaker/window", r.Breaker.Window, 1, 100_000)
	if !(r.Breaker.Ratio > 0) || r.Breaker.Ratio > 1 {
		c.fault("/reliability/breaker/ratio", "is %v; it must be more than 0 and at most 1", r.Breaker.Ratio)
	}
	within(c, "/reliability/breaker/reset_ms", r.Breaker.ResetMS, 1, maxMillis)
}

func (c *checker) reconcile(d *Definition) {
	r := d.Reconcile
	if r == nil {
		return
	}
	if d.Binary == "" {
		c.fault("/reconcile", "is for a binary; a module exports reconcile")
	}
	if len(r.Args) == 0 {
		c.fault("/reconcile/args", "is empty; it is what the binary is run with")
	}
	if len(r.Done)+len(r.NotDone) == 0 {
		c.fault("/reconcile", "has no exit codes; name those of done, not_done or both")
	}
	for i, code := range r.Done {
		within(c, fmt.Sprintf("/reconcile/done/%d", i), code, 0, 255)
	}
	for i, code := range r.NotDone {
		within(c, fmt.Sprintf("/reconcile/not_done/%d", i), code, 0, 255)
		if slices.Contains(r.Done, code) {
			c.fault(fmt.Sprintf("/reconcile/not_done/%d", i), "is %d, which is in done too", code)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
