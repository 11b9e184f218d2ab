package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/fault"
)

// maxAdminBody bounds a response, in bytes: a stored result is at most the tool's output limit, in base64.
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

// Path returns the socket's path.
func (a *Admin) Path() string { return a.path }

// Tools returns every tool of the daemon, by name.
func (a *Admin) Tools(ctx context.Context) ([]adminapi.ToolStatus, error) {
	var out []adminapi.ToolStatus
	return out, a.get(ctx, "/tools", &out)
}

// Tool returns one tool. The error is adminapi.ErrNotFound if there is none.
func (a *Admin) Tool(ctx context.Context, name string) (*adminapi.ToolStatus, error) {
	out := new(adminapi.ToolStatus)
	return out, a.get(ctx, "/tools/"+url.PathEscape(name), out)
}

// Wait waits until every call of a tool that begins is one of the version with
// digest, or for timeout. The tool _all stands for every tool. An error of the
// version has a code of package fault: TIMEOUT, TOOL_BROKEN or UNKNOWN_TOOL.
func (a *Admin) Wait(ctx context.Context, name, digest string, timeout time.Duration) error {
	q := url.Values{"digest": {digest}, "timeout": {timeout.String()}}
	out := new(adminapi.Version)
	if err := a.get(ctx, "/tools/"+url.PathEscape(name)+"/wait?"+q.Encode(), out); err != nil {
		return err
	}
	if out.Code != "" {
		return &fault.Error{Code: fault.Code(out.Code), Message: out.Message}
	}
	return nil
}

// Result returns the whole result of a finished call. The error is adminapi.ErrNotFound if the daemon no longer has
// it.
func (a *Admin) Result(ctx context.Context, executionID string) (*adminapi.StoredResult, error) {
	out := new(adminapi.StoredResult)
	return out, a.get(ctx, "/results/"+url.PathEscape(executionID), out)
}

// Status returns the status of the daemon.
func (a *Admin) Status(ctx context.Context) (*adminapi.HostStatus, error) {
	out := new(adminapi.HostStatus)
	return out, a.get(ctx, "/status", out)
}

// Dashboard returns where the daemon's page is, and its token. The error is
// adminapi.ErrNotFound if there is none.
func (a *Admin) Dashboard(ctx context.Context) (*adminapi.Dashboard, error) {
	out := new(adminapi.Dashboard)
	return out, a.get(ctx, "/dashboard", out)
}

// Upgrade replaces the daemon with binary, or with the program at the daemon's own path if binary is empty, and
// returns the status of the new daemon. within bounds the wait for running calls; if ctx ends before they have, the
// upgrade is abandoned. On error, the daemon that was asked still serves, or serves again.
func (a *Admin) Upgrade(ctx context.Context, binary string, within time.Duration) (*adminapi.HostStatus, error) {
	in, err := json.Marshal(adminapi.Upgrade{Binary: binary, Within: within.String()})
	if err != nil {
		return nil, err
	}
	var next adminapi.Upgrading
	if err := a.do(ctx, http.MethodPost, "/upgrade", bytes.NewReader(in), &next); err != nil {
		return nil, err
	}
	// From now on, Status waits until one of the two daemons responds. The old one may respond while it exits, or exit
	// during the request; its response reports whether it stays.
	s, err := a.Status(ctx)
	for again := 0; again < 100 && ctx.Err() == nil && (err != nil && leaves(err) || err == nil && s.PID != next.PID && s.UpgradeError == ""); again++ {
		s, err = a.Status(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the new daemon: %w", err)
	}
	if s.PID != next.PID {
		return nil, fmt.Errorf("the daemon serves again that was to be replaced: %s", s.UpgradeError)
	}
	return s, nil
}

// leaves reports whether err is how a daemon that is being replaced ends a request in progress: without a response.
func leaves(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// get reads one JSON response and ignores unknown fields: the daemon may be newer than its client.
func (a *Admin) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, nil, into)
}

func (a *Admin) send(ctx context.Context, method, path string, in io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://toold"+path, in)
	if err != nil {
		return nil, fmt.Errorf("ask the admin socket: %w", err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		var uerr *url.Error
		if errors.As(err, &uerr) {
			err = uerr.Err // without the placeholder URL
		}
		return nil, fmt.Errorf("ask the admin socket %s: %w", a.path, err)
	}
	return resp, nil
}

// errCutOff is the error for a stream that ended without its response.
var errCutOff = errors.New("the daemon ended the stream without an answer; watch again after the last cursor")

// lines sends a request and passes its response to take line by line, until take returns an error. io.EOF marks the
// end and is not returned.
func (a *Admin) lines(ctx context.Context, method, path string, in io.Reader, most int, take func([]byte) error) error {
	resp, err := a.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("ask the admin socket %s: %s", a.path, resp.Status)
	}
	scan := bufio.NewScanner(resp.Body)
	scan.Buffer(nil, most)
	for scan.Scan() {
		if err := take(scan.Bytes()); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
	if err := scan.Err(); err != nil {
		return fmt.Errorf("read the admin socket's answer: %w", err)
	}
	return errCutOff
}

func (a *Admin) do(ctx context.Context, method, path string, in io.Reader, into any) error {
	resp, err := a.send(ctx, method, path, in)
	if err != nil {
		return err
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
		e := &adminapi.Error{Status: resp.StatusCode}
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
