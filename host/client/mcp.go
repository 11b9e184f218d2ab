package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
)

// MCPCaller is the caller over MCP and its folder, for requests that do not specify them.
type MCPCaller struct {
	Token   string `json:"token,omitempty"`
	Session string `json:"session,omitempty"`
	Cwd     string `json:"cwd,omitempty"`
}

// MCP connects an MCP client to the daemon's MCP socket. It first sends the caller, then copies in both directions
// until one side ends. It returns nil when in ends. One goroutine may remain blocked in in.Read.
func MCP(ctx context.Context, path string, caller MCPCaller, in io.Reader, out io.Writer) error {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf(`%w at %s; start toold with {"path": %q, "protocol": "mcp"} in sockets of toold.json, or set TOOL_MCP_SOCKET to where it listens`, ErrNoDaemon, path, path)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("connect to the daemon: %w; have its operator admit this user to the socket, by its mode and group", err)
	case err != nil:
		return fmt.Errorf("connect to the daemon: %w", err)
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	hello, err := json.Marshal(struct {
		Version string    `json:"jsonrpc"`
		Method  string    `json:"method"`
		Params  MCPCaller `json:"params"`
	}{"2.0", "notifications/io.toold/caller", caller})
	if err != nil {
		return err
	}
	// A daemon that refuses the connection sends the reason before it closes: a failed write must not stop the
	// reading.
	sent := make(chan error, 1)
	go func() {
		_, err := nc.Write(append(hello, '\n'))
		if err == nil {
			_, err = io.Copy(onlyWriter{nc}, in)
		}
		sent <- err // before the reader sees the end of it
		if err == nil {
			nc.Close()
		}
	}()
	answers := bufio.NewReader(nc)
	// Tool sockets respond in frames, which begin with their length: no MCP client could parse that.
	if first, err := answers.Peek(1); err == nil && first[0] < ' ' && first[0] != '\n' {
		return fmt.Errorf(`%s is no socket for MCP; name the one with "protocol": "mcp" in sockets of toold.json`, path)
	}
	_, err = io.Copy(out, onlyReader{answers})
	select {
	case e := <-sent:
		if e == nil {
			return ctx.Err()
		}
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errors.New("the daemon ended the connection; see what it said, or its log, and start the client again"), err)
}

// onlyReader and onlyWriter keep io.Copy from its optimised ways of copying, which Close does not interrupt.
type onlyReader struct{ io.Reader }

type onlyWriter struct{ io.Writer }
