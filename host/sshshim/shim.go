// Package sshshim is the ssh of a run: a program that has no key and asks the daemon
// for what git wants of ssh, and the protocol between the two.
//
// A shim sends one Request and then what git writes; the daemon answers with what the
// host sends, on two streams, and with the exit code. The package decides nothing: what
// may be asked for, and of which host, host/egress judges. What a shim sends is read
// with a bound.
package sshshim

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/toold/toold/host/sshkey"
)

// Name is the name of the file that is this program as the ssh of a run.
const Name = "toold-ssh"

// Service is where a run finds the daemon's ssh: an address among those that stand for
// names (host/names), which stands for none.
var Service = netip.AddrPortFrom(netip.MustParseAddr("198.19.255.254"), 22)

// Request is the request of a shim: what git passed to it.
type Request struct {
	Args     []string `json:"args"`
	Protocol string   `json:"protocol,omitempty"`
	// Sign is a commit or a tag to be signed; nil: it is a command.
	Sign []byte `json:"sign,omitempty"`
}

// maxRequest bounds one, in bytes.
const maxRequest = 256 << 10

// What a shim is answered with: frames of a kind, a length in four bytes, and data.
const (
	frameOut  = 'o' // for the standard output
	frameErr  = 'e' // for the standard error
	frameExit = 'x' // one byte, the exit code; the last frame
)

// maxObject bounds what is read of an object to be signed, in bytes; the daemon says
// that it is too long.
const maxObject = 16 << 20

// maxFrame bounds the data of one.
const maxFrame = 32 << 10

// Failed is the exit code of ssh for what is not the command's.
const Failed = 255

// Is reports whether this process is the ssh of a run. The name of the program decides, which
// no argument changes: what can be executed as this does nothing else.
func Is() bool {
	if exe, err := os.Readlink("/proc/self/exe"); err == nil {
		return filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == Name
	}
	return len(os.Args) > 0 && filepath.Base(os.Args[0]) == Name
}

// Run runs that process: it asks the daemon to do what git wants of ssh, and returns the exit
// code. It has no key, and knows no more than git does.
func Run() int {
	run := func() (int, error) {
		return ask(Request{Args: os.Args[1:], Protocol: os.Getenv("GIT_PROTOCOL")}, os.Stdin, os.Stdout, os.Stderr)
	}
	if len(os.Args) > 1 && os.Args[1] == "-Y" {
		run = func() (int, error) { return signShim(os.Args[1:], os.Stderr) }
	}
	code, err := run()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		return Failed
	}
	return code
}

// signShim asks the daemon to sign what git would have ssh-keygen sign, and writes the
// signature where git looks for it. The daemon decides on key and namespace.
func signShim(args []string, stderr io.Writer) (int, error) {
	if len(args) < 5 || args[1] != "sign" || args[2] != "-n" || args[3] != sshkey.Namespace {
		return 0, errors.New("only what git signs can be signed here; signatures are verified where the keys of signers are known")
	}
	file := args[len(args)-1]
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	object, err := io.ReadAll(io.LimitReader(f, maxObject+1))
	if err != nil {
		return 0, err
	}
	var signature bytes.Buffer
	code, err := ask(Request{Sign: object}, strings.NewReader(""), &signature, stderr)
	if err != nil || code != 0 {
		return code, err
	}
	return 0, os.WriteFile(file+".sig", signature.Bytes(), 0o600)
}

func ask(q Request, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	conn, err := net.Dial("tcp", Service.String())
	if err != nil {
		return 0, fmt.Errorf("reach the daemon: %w; it holds the key, and listens where connections of tools are confined: see toolctl doctor", err)
	}
	defer conn.Close()
	request, err := json.Marshal(q)
	if err != nil {
		return 0, err
	}
	if len(request) > maxRequest {
		return 0, fmt.Errorf("the command has over %d bytes", maxRequest)
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(request))), request...)); err != nil {
		return 0, fmt.Errorf("ask the daemon: %w", err)
	}
	go func() {
		io.Copy(conn, stdin)
		conn.(*net.TCPConn).CloseWrite()
	}()
	for buf := make([]byte, maxFrame); ; {
		var head [5]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return 0, fmt.Errorf("the daemon has ended the connection: %w", err)
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n > maxFrame {
			return 0, errors.New("the daemon is of another version")
		}
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return 0, fmt.Errorf("the daemon has ended the connection: %w", err)
		}
		var err error
		switch {
		case head[0] == frameOut:
			_, err = stdout.Write(buf[:n])
		case head[0] == frameErr:
			_, err = stderr.Write(buf[:n])
		case head[0] == frameExit && n == 1:
			return int(buf[0]), nil
		default:
			return 0, errors.New("the daemon is of another version")
		}
		if err != nil {
			return 0, err
		}
	}
}
