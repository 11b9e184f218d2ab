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

	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/pdk/abi"
)

// MaxDefinition is the size of a tool.json in bytes beyond which it is not
// read. A definition is some kilobytes; the bound is there so that a wrong
// file is an error and not a load on the host.
const MaxDefinition = 1 << 20

// Bounds of what a definition may ask for. They catch slips (milliseconds for
// seconds, a unit too many), they are not what protects the host: that is the
// engine's own total.
const (
	maxTimeout     = Seconds(7 * 24 * 3600)
	maxTTL         = Seconds(366 * 24 * 3600)
	maxMemory      = Size(4 << 30) // what a 32-bit guest can address
	maxOutput      = Size(1 << 30)
	maxState       = Size(64 << 20)
	maxFuel        = int64(1e15)
	maxConcurrency = 10_000
	maxMillis      = int64(24 * 3600 * 1000)
)

// nameRule is the whole rule for a tool's name. It has no separator, no dot
// and no upper case, so that a name is always one plain path element.
var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// ValidName reports whether name may be a tool's name:
// ^[a-z0-9][a-z0-9_-]{0,63}$.
func ValidName(name string) bool {
	// The dollar of a Go expression matches at the very end only, so a
	// trailing newline is no way around the rule.
	return nameRule.MatchString(name)
}

// Definition is a tool.json: what a tool is, how it is executed and what it
// may do. ParseDefinition fills in the defaults, so that a field that the file
// does not mention holds what applies.
type Definition struct {
	// SchemaRef is where an editor finds the JSON Schema of this file. It is
	// ignored.
	SchemaRef string `json:"$schema,omitempty"`

	// Binary, Handler and WASI are three ways to execute; at most one is set.
	// With none it is handler.wasm where the folder has one, else the binary
	// of the tool's own name.
	//
	// Binary is an absolute path, or a bare name that is looked up in
	// BinaryPath. Handler is a module (.wasm) or an Extism manifest (.json),
	// WASI a WASI preview 1 command; both are paths beneath the tool's folder.
	Binary  string `json:"binary,omitempty"`
	Handler string `json:"handler,omitempty"`
	WASI    string `json:"wasi,omitempty"`

	Description string           `json:"description,omitempty"`
	Annotations *abi.Annotations `json:"annotations,omitempty"`
	// Schema is the JSON Schema of the payload, as it was written.
	// CompileSchema makes the strict form that calls are checked against.
	Schema json.RawMessage `json:"schema,omitempty"`

	// Timeout bounds one call. Default 300 s.
	Timeout Seconds `json:"timeout,omitempty"`
	// Mutating and Idempotent are the class of a call about which the policy
	// says nothing. Default false.
	Mutating   bool `json:"mutating,omitempty"`
	Idempotent bool `json:"idempotent,omitempty"`
	// Stdin says whether a call wants the caller's input where the policy
	// does not say. Default true.
	Stdin bool `json:"stdin"`
	// Policy is PolicyNone, PolicyRequired or empty.
	Policy string `json:"policy,omitempty"`
	// Entry maps the export of a module without handle.
	Entry *Entry `json:"entry,omitempty"`
	// Roots narrows the folders beneath which calls may work. Absolute.
	Roots []string `json:"roots,omitempty"`
	// User is who a binary of the tool runs as, "NAME", "UID" or "UID:GID",
	// where toold may do that; empty is toold's own user.
	User string `json:"user,omitempty"`
	// Category puts the tool into a group, for sockets that serve one.
	Category     string            `json:"category,omitempty"`
	Capabilities Capabilities      `json:"capabilities,omitzero"`
	Environment  map[string]string `json:"environment,omitempty"`
	// Secrets are by name; a guest sees the name only.
	Secrets     map[string]Secret `json:"secrets,omitempty"`
	Limits      Limits            `json:"limits"`
	Config      map[string]string `json:"config,omitempty"`
	Identity    Identity          `json:"identity,omitzero"`
	Reliability Reliability       `json:"reliability"`
	// Hash is the sha256, in hex, of files of the folder: the pinned modules
	// and setup.sh.
	Hash map[string]string `json:"hash,omitempty"`
}

// Values of Definition.Policy.
const (
	// PolicyNone confirms that a tool that once had a policy is meant to have
	// none.
	PolicyNone = "none"
	// PolicyRequired makes the tool broken for as long as it has no policy of
	// its own, so that a folder that is copied file by file, or was never
	// built, is not a tool without a policy for a while.
	PolicyRequired = "required"
)

// Seconds is a time in seconds; fractions are allowed.
type Seconds float64

// Duration is s as a duration.
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

// Entry says how a module without handle is called, so that a stock Extism
// plugin is a tool as it is.
type Entry struct {
	Export string `json:"export"`
	// Input is what the export reads: EntryCall (the whole abi.Call, the
	// default), EntryStdin (the caller's input as bytes) or EntryPayload (the
	// payload's JSON).
	Input string `json:"input,omitempty"`
	// Output is what it writes: EntryResult (an abi.Result, the default) or
	// EntryStdout (bytes that are the tool's standard output).
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
	// Exec lists absolute paths of executables, or folders of them: for a
	// module those that tool_exec may start, for a binary those that it may
	// start besides itself.
	Exec []string `json:"exec,omitempty"`
	HTTP *HTTP    `json:"http,omitempty"`
	// Files maps paths as the guest sees them to paths of the host.
	Files map[string]File `json:"files,omitempty"`
	// Env names the variables that a caller may set.
	Env []string `json:"env,omitempty"`
	// State bounds what var_set keeps for one (identity, session, tool), in
	// bytes; 0 grants none.
	State Size `json:"state,omitempty"`
	// ToolCall lets a module use the five session calls, as the session and
	// identity that called it.
	ToolCall bool `json:"tool_call,omitempty"`
}

// HTTP is where a guest's requests may go.
type HTTP struct {
	// Hosts are names ("api.example.com"), names with a port, addresses, or
	// "*.example.com" for everything beneath; "*" is every public host.
	Hosts []string `json:"hosts"`
	// Methods are in upper case; "*" is any. Default GET and HEAD.
	Methods []string `json:"methods,omitempty"`
}

// File is one path of the host that a guest may see.
type File struct {
	Path string `json:"path"`
	// Mode is "ro", the default, or "rw".
	Mode string `json:"mode,omitempty"`
}

// Secret is a value that the host adds where it is needed: as a variable of
// the binary, in a file that a variable of the binary names, or as a header of
// requests to one host.
type Secret struct {
	// From is "env:NAME", "file:PATH" (absolute) or "claim:NAME".
	From   string `json:"from"`
	Env    string `json:"env,omitempty"`
	Header string `json:"header,omitempty"`
	Host   string `json:"host,omitempty"`
	// File is the variable that names a file of one call with Content, in which
	// one mark stands for the value; with no Content it is the value alone.
	File    string `json:"file,omitempty"`
	Content string `json:"content,omitempty"`
}

// secretMark stands for the value in a Secret's Content: "{secret}" for the value
// itself, "{basic:USER}" for USER:VALUE in base64, as HTTP's Basic has it.
var secretMark = regexp.MustCompile(`\{secret\}|\{basic:[^{}:\x00-\x1f\x7f]*\}`)

// Fill is s.Content with value in the place of its mark, or value where it has no
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

// Limits bound one call, or all calls of the tool.
type Limits struct {
	// Memory is a guest's, 64MiB by default.
	Memory Size `json:"memory"`
	// Fuel is metered instructions a call, 1,000,000,000 by default.
	Fuel int64 `json:"fuel"`
	// Output is what is kept for plain answers, journals and results, 16MiB
	// by default. It does not limit streams.
	Output Size `json:"output"`
	// Stream limits what one streamed call may send; 0, the default, is no
	// limit.
	Stream Size `json:"stream,omitempty"`
	// Concurrency is how many calls execute at once, 32 by default; Queue is
	// how many more wait, 256 by default. Beyond that OVERLOADED.
	Concurrency int `json:"concurrency"`
	Queue       int `json:"queue"`
}

// Identity says which claims of a token concern the tool.
type Identity struct {
	// Claims overlay Config by name. Those in Secret do too, and are never
	// shown to the guest.
	Claims []string `json:"claims,omitempty"`
	Secret []string `json:"secret,omitempty"`
}

// Reliability is how calls are de-duplicated, retried and broken off.
type Reliability struct {
	// TTL is how long a result is kept for its key, 24 h by default;
	// FailedTTL how long a failure is, 30 s.
	TTL       Seconds `json:"ttl"`
	FailedTTL Seconds `json:"failed_ttl"`
	// OnDuplicate is DuplicateWait, the default, or DuplicateFail.
	OnDuplicate string `json:"on_duplicate"`
	// AutoKey decides whether mutating calls without a key get one; nil
	// leaves that to whether the tool has a schema.
	AutoKey *bool `json:"auto_key,omitempty"`
	// RetriableExits are exit codes of a binary (1 to 255) that count as a
	// failure that may be retried.
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

// Retry is exponential with full jitter.
type Retry struct {
	Max       int   `json:"max"`        // retries after the first attempt, 3
	InitialMS int64 `json:"initial_ms"` // before the first retry at most, 500
	CapMS     int64 `json:"cap_ms"`     // at most, 5000
}

// Breaker opens at Failures in a row, or at Ratio of the last Window calls.
type Breaker struct {
	Failures int     `json:"failures"` // 5
	Window   int     `json:"window"`   // 100
	Ratio    float64 `json:"ratio"`    // 0.5
	ResetMS  int64   `json:"reset_ms"` // 30000
}

// DefaultDefinition is what an empty tool.json, or none, means.
func DefaultDefinition() *Definition {
	return &Definition{
		Timeout: 300,
		Stdin:   true,
		Limits: Limits{
			Memory: 64 << 20, Fuel: 1_000_000_000, Output: 16 << 20,
			Concurrency: 32, Queue: 256,
		},
		Reliability: Reliability{
			TTL: 24 * 3600, FailedTTL: 30, OnDuplicate: DuplicateWait,
			Retry:   Retry{Max: 3, InitialMS: 500, CapMS: 5000},
			Breaker: Breaker{Failures: 5, Window: 100, Ratio: 0.5, ResetMS: 30_000},
		},
	}
}

// Fault is one thing that is wrong with a tool.json.
type Fault struct {
	File         string
	Line, Column int // from 1; 0 when the fault is of the file as a whole
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

// Faults is everything that is wrong with a tool.json, in the order of the
// checks; never empty as an error.
type Faults []Fault

// Error is the first fault and how many more there are: it has to fit a line.
func (f Faults) Error() string {
	switch len(f) {
	case 0:
		return "no fault"
	case 1:
		return f[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", f[0].Error(), len(f)-1)
}

// ParseDefinition reads a tool.json strictly: an unknown or doubled key, a
// wrong type or a value out of range is a Faults error whose entries say the
// file (as it is named here), line, column and JSON pointer. It does not look
// at any other file.
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

// checker collects what is wrong with a definition that reads well.
type checker struct {
	file   string
	data   []byte
	faults Faults
}

func (c *checker) fault(pointer, format string, args ...any) {
	line, column := position(c.data, pointer)
	c.faults = append(c.faults, Fault{File: c.file, Line: line, Column: column, Pointer: pointer, Reason: fmt.Sprintf(format, args...)})
}

// oneOf checks an enumerated string; empty is always the default.
func (c *checker) oneOf(pointer, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		c.fault(pointer, "is %q; it must be one of %s", value, strings.Join(allowed, ", "))
	}
}

// within checks a number against bounds that include both ends.
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
	if !(d.Timeout > 0) || d.Timeout > maxTimeout {
		c.fault("/timeout", "is %v; it must be more than 0 and at most %v seconds", d.Timeout, float64(maxTimeout))
	}
	c.oneOf("/policy", d.Policy, PolicyNone, PolicyRequired)
	if d.Category != "" && !ValidName(d.Category) {
		c.fault("/category", "is %q; it must match %s", d.Category, nameRule)
	}
	if d.User != "" {
		if _, err := process.LookUpUser(d.User); err != nil {
			c.fault("/user", "%v", err)
		}
	}
	for i, root := range d.Roots {
		c.absolute(fmt.Sprintf("/roots/%d", i), root)
	}
	c.capabilities(&d.Capabilities)
	c.environment(d)
	c.secrets(d)
	c.limits(&d.Limits)
	c.identity(&d.Identity)
	c.reliability(&d.Reliability)
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
		} else if w.value == definitionFile || w.value == policyFile {
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
	// variableRule is the names that every shell can set.
	variableRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// validHost reports whether h names a host, or with pattern a set of them.
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

func (c *checker) capabilities(k *Capabilities) {
	for i, p := range k.Exec {
		c.absolute(fmt.Sprintf("/capabilities/exec/%d", i), p)
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
		} else if why := neverFromCaller(name); why != "" {
			c.fault(at, "is %s, which %s; set it in environment if the tool needs a fixed value", name, why)
		}
	}
	within(c, "/capabilities/state", k.State, 0, maxState)
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

func (c *checker) secrets(d *Definition) {
	variables := map[string]string{}
	for _, name := range sortedKeys(d.Secrets) {
		s, at := d.Secrets[name], "/secrets/"+escapePointer(name)
		if !secretRule.MatchString(name) {
			c.fault(at, "has a name that does not match %s", secretRule)
		}
		kind, source, _ := strings.Cut(s.From, ":")
		switch {
		case kind == "env" && variableRule.MatchString(source):
		case kind == "file" && path.IsAbs(source) && path.Clean(source) == source && !strings.ContainsRune(source, 0):
		case kind == "claim" && validClaim(source):
		case s.From == "":
			c.fault(at, `needs from: "env:NAME", "file:/PATH" or "claim:NAME"`)
		default:
			// The value is not repeated: whoever pastes the secret itself
			// here should not find it in a log.
			c.fault(at+"/from", `must be "env:NAME", "file:/PATH" (clean and absolute) or "claim:NAME", never the secret itself`)
		}
		variable := func(at, v string) {
			if !variableRule.MatchString(v) {
				c.fault(at, "is %q; it must be the name of a variable", v)
			}
			if _, fixed := d.Environment[v]; fixed {
				c.fault(at, "is %s, which environment sets too; keep one", v)
			}
			if slices.Contains(d.Capabilities.Env, v) {
				c.fault(at, "is %s, which capabilities.env lets callers set; remove it there", v)
			}
			if other, double := variables[v]; double {
				c.fault(at, "is %s, which the secret %s sets too", v, other)
			}
			variables[v] = name
		}
		if s.Content != "" && (s.File == "" || len(secretMark.FindAllString(s.Content, -1)) != 1) {
			c.fault(at+"/content", "is what is in file: it needs file, and {secret} or {basic:USER} once, where the value goes")
		}
		switch {
		case s.Env != "" && (s.Header != "" || s.Host != ""), s.File != "" && (s.Env != "" || s.Header != "" || s.Host != ""):
			what, beside := "env", "header or host"
			if s.File != "" {
				what, beside = "file", "env, header or host"
			}
			c.fault(at, "has %s beside %s; a secret goes to one place, use two secrets for two", what, beside)
		case s.Env != "":
			variable(at+"/env", s.Env)
		case s.File != "":
			variable(at+"/file", s.File)
		case s.Header != "" && s.Host != "":
			if !headerRule.MatchString(s.Header) {
				c.fault(at+"/header", "is %q; it must be the name of a header", s.Header)
			}
			if !validHost(s.Host, false) {
				c.fault(at+"/host", "is %q; it must be one host, with a port where it is not the usual one", s.Host)
			}
		default:
			c.fault(at, "needs a place to go: env (a variable of the binary), file (a variable that names a file with it), or header and host together")
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
}

// validClaim reports whether name can be a claim's: any short text without
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
	within(c, "/reliability/breaker/failures", r.Breaker.Failures, 1, 1_000_000)
	within(c, "/reliability/breaker/window", r.Breaker.Window, 1, 100_000)
	if !(r.Breaker.Ratio > 0) || r.Breaker.Ratio > 1 {
		c.fault("/reliability/breaker/ratio", "is %v; it must be more than 0 and at most 1", r.Breaker.Ratio)
	}
	within(c, "/reliability/breaker/reset_ms", r.Breaker.ResetMS, 1, maxMillis)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
