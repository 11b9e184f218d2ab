package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
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

// AdminError is the body of every admin answer that is not 2xx.
type AdminError struct {
	// Status is the HTTP status; it is not in the body.
	Status  int    `json:"-"`
	Message string `json:"error"`
}

func (e *AdminError) Error() string { return e.Message }

// ErrNotFound is what errors.Is finds in the error of a name or an id that
// the daemon does not know.
var ErrNotFound = errors.New("not found")

// Is makes an AdminError with status 404 an ErrNotFound.
func (e *AdminError) Is(target error) bool {
	return target == ErrNotFound && e.Status == http.StatusNotFound
}

// maxAdminBody bounds an answer that is read: a stored result is at most the
// tool's output limit, in base64.
const maxAdminBody = 256 << 20

// Admin speaks to a daemon's admin socket. It is safe for concurrent use and
// keeps no connection open between calls.
type Admin struct {
	path string
	http http.Client
}

// NewAdmin returns an Admin for the socket at path. Nothing is dialed yet.
func NewAdmin(path string) *Admin {
	a := &Admin{path: path}
	a.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
	}
	return a
}

// Path is the socket's.
func (a *Admin) Path() string { return a.path }

// Tools lists every tool that the daemon has, by name.
func (a *Admin) Tools(ctx context.Context) ([]ToolStatus, error) {
	var out []ToolStatus
	return out, a.get(ctx, "/tools", &out)
}

// Tool describes one tool. Its error is ErrNotFound when there is none.
func (a *Admin) Tool(ctx context.Context, name string) (*ToolStatus, error) {
	out := new(ToolStatus)
	return out, a.get(ctx, "/tools/"+url.PathEscape(name), out)
}

// Result is the whole result of a finished call, while the daemon keeps it.
// Its error is ErrNotFound when it does not.
func (a *Admin) Result(ctx context.Context, executionID string) (*StoredResult, error) {
	out := new(StoredResult)
	return out, a.get(ctx, "/results/"+url.PathEscape(executionID), out)
}

// Status describes the daemon.
func (a *Admin) Status(ctx context.Context) (*HostStatus, error) {
	out := new(HostStatus)
	return out, a.get(ctx, "/status", out)
}

// get reads one JSON answer. Fields it does not know are ignored: the daemon
// may be newer than its client.
func (a *Admin) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, nil, into)
}

func (a *Admin) do(ctx context.Context, method, path string, in io.Reader, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://toold"+path, in)
	if err != nil {
		return fmt.Errorf("ask the admin socket: %w", err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		var uerr *url.Error
		if errors.As(err, &uerr) {
			err = uerr.Err // the URL is made up; it would only confuse
		}
		return fmt.Errorf("ask the admin socket %s: %w", a.path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminBody+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the admin socket's answer: %w", err)
	case len(body) > maxAdminBody:
		return fmt.Errorf("read the admin socket's answer: it is over %d bytes", maxAdminBody)
	}
	if resp.StatusCode/100 != 2 {
		e := &AdminError{Status: resp.StatusCode}
		if json.Unmarshal(body, e) != nil || e.Message == "" {
			e.Message = strings.TrimSpace(resp.Status + ": " + string(body))
		}
		return e
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the admin socket's answer to %s: %w", path, err)
	}
	return nil
}
