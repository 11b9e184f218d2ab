// Package egress is the network of the binaries that toold runs: each of their
// connections is made by the daemon, to a host that their tool is granted, or not
// at all.
//
// A Session belongs to one run. The supervisor of the run passes it each socket
// that a process of the run connects, with the address that was read from
// that process once. The Session judges the address by the Rules, dials the host
// itself, connects the process's socket to a listener of its own that takes this
// one connection, and copies bytes both ways. So the daemon is the only thing
// that a process of the run is ever connected to, and what it wrote into its
// memory meanwhile does not matter.
//
// Names: a run has no UDP. Its resolver is configured to ask over TCP, and whatever name
// server it connects to, the Session answers: each name has an address in
// 198.18.0.0/15 that stands for it in this run, and a connection to that address
// is one to the name. The name of a host that is not granted is never looked up.
//
// TLS is passed through. What begins as TLS must begin with a ClientHello that
// names, in its server name, the host that was connected to; otherwise the
// connection is reset. Other bytes, and a second ClientHello, are not checked.
//
// Requests to the hosts of Rules.HTTP are read: TLS with these ends here, each request
// is parsed, judged, given its credential, and written anew to the host that the
// connection was made to. The process never has the credential.
//
// What it does not do: it does not see inside other TLS, and so not the Host header
// there; it does not control what a host does with what it is sent.
package egress

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/host/sshkey"
	"github.com/toold/toold/host/trust"
	"github.com/toold/toold/pdk/abi"
)

// unixPrefix begins a grant of a Unix socket.
const unixPrefix = "unix:"

// UnixTarget returns the Connection.Target of the Unix socket at path.
func UnixTarget(path string) string { return unixPrefix + path }

// Rules define where a run may connect to. The zero value allows nothing.
type Rules struct {
	// Hosts are as in hostrule.Match.
	Hosts []string
	// Sockets are paths of Unix sockets.
	Sockets []string
	// SSH is what git may do over ssh without a key of its own.
	SSH sshkey.Set
	// Ask decides about what is seen on a connection, before any of it is sent on
	// and before a credential is added: facts has all but the call. Its error is
	// why it is refused, in words for the caller, who got them already. It is called
	// by several goroutines. Nil allows all.
	Ask func(ctx context.Context, facts *abi.Wire) error
	// HTTP is what is done with requests that are read; nil: none are.
	HTTP *HTTP
}

// HTTP defines the hosts whose requests are intercepted, and how. TLS with such a host ends
// here: the process speaks it with this package, and this package with the host.
type HTTP struct {
	// Authority issues the certificates that processes see.
	Authority *trust.Authority
	// Hosts are as in hostrule.Match. Of them, the requests to those of Unread are not read.
	Hosts, Unread []string
	// Credentials are added to requests.
	Credentials []Credential
	// TLS is how a host is verified, and what it is shown; an error refuses the
	// connection.
	TLS func(host string, port uint16) (*tls.Config, error)
	// MaskText and MaskBody hide credentials in what hosts answer. Neither
	// changes the length of a body.
	MaskText func(string) string
	MaskBody func(io.Reader) io.Reader
	// Masks are the two for one request with a further credential, its signature.
	// Nil where no Credential signs.
	Masks func(further string) (func(string) string, func(io.Reader) io.Reader)
}

// Credential is a header that is set on requests to one host, replacing any that they have of
// that name, or what signs them.
type Credential struct {
	// Host is a name or an address, with a port if only that one is meant.
	Host          string
	Header, Value string
	// Sign signs them; nil: they get the header.
	Sign *sigv4.Signer
	// Plain sends it without TLS too.
	Plain bool
}

// reads reports whether requests to host are intercepted.
func (h *HTTP) reads(host string, port uint16) bool {
	if h == nil {
		return false
	}
	at := strconv.Itoa(int(port))
	rule, _ := hostrule.Match(h.Hosts, host, at)
	unread, _ := hostrule.Match(h.Unread, host, at)
	return rule != "" && unread == ""
}

// credentials returns those of host.
func (h *HTTP) credentials(host string, port uint16) (list []Credential) {
	for _, c := range h.Credentials {
		if _, named := hostrule.Match([]string{c.Host}, host, strconv.Itoa(int(port))); named {
			list = append(list, c)
		}
	}
	return list
}

// ParseRules reads the grants of capabilities.network: hosts, and Unix sockets as
// "unix:PATH".
func ParseRules(grants []string) Rules {
	var r Rules
	for _, g := range grants {
		if path, ok := strings.CutPrefix(g, unixPrefix); ok {
			r.Sockets = append(r.Sockets, path)
		} else {
			r.Hosts = append(r.Hosts, g)
		}
	}
	return r
}

// Connection is a connection that a run attempted, and its outcome.
type Connection struct {
	// Host is what was wanted: a name, an address, or "unix:PATH". Port is 0 for
	// the last.
	Host string `json:"host"`
	Port uint16 `json:"port,omitempty"`
	// Rule is the grant that allowed it.
	Rule string `json:"rule,omitempty"`
	// Refused is why no rule allows it; empty: one does.
	Refused string `json:"refused,omitempty"`
	// Remedy is what to write where, to allow the connection; empty: grant its
	// host.
	Remedy string `json:"-"`
	// Failed is why an allowed one was not made.
	Failed string `json:"failed,omitempty"`
	// Sent and Received are the bytes that went to the host and came from it.
	Sent     int64 `json:"sent,omitempty"`
	Received int64 `json:"received,omitempty"`
	// Requests are the first of those that were read, and MoreRequests is how many
	// there were beyond.
	Requests     []Request `json:"requests,omitempty"`
	MoreRequests int       `json:"more_requests,omitempty"`
	// Times is how many connections this one stands for, if it stands for those
	// that are not kept by name: then Host is Others. 0 is one.
	Times int `json:"times,omitempty"`

	notKept bool
}

// Others is the Connection.Host that stands for several. No host is written like this:
// without a port, there is a path.
const Others = "others"

// Request is an intercepted request and its outcome.
type Request struct {
	Method string `json:"method"`
	// Path is without the query.
	Path string `json:"path"`
	// Status is what was answered.
	Status int `json:"status,omitempty"`
	// Refused is why it was not passed on; empty: it was.
	Refused string `json:"refused,omitempty"`
}

// maxPath is how much is kept of a request's path, in bytes.
const maxPath = 512

// sameHeader reports whether some server treats a and b as the same header: those behind CGI
// and similar interfaces do not distinguish - from _, and some not from any other punctuation.
func sameHeader(a, b string) bool { return sigv4.Plain(a) == sigv4.Plain(b) }

func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// Target returns Host with its port.
func (c *Connection) Target() string {
	if c.Port == 0 {
		return c.Host
	}
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// Advice returns one line for people about a refused connection: what was refused,
// why, and what to write where.
func (c *Connection) Advice() string {
	if c.Remedy != "" {
		return fmt.Sprintf("the connection to %s is refused: %s; %s", c.Target(), c.Refused, c.Remedy)
	}
	if c.Refused == "" {
		for _, r := range c.Requests {
			if r.Refused != "" {
				return fmt.Sprintf("%s %s of %s is refused: %s", r.Method, r.Path, c.Target(), r.Refused)
			}
		}
		return fmt.Sprintf("the connection to %s failed: %s", c.Target(), c.Failed)
	}
	return fmt.Sprintf("the connection to %s is refused: %s; add %q to capabilities.network in tool.json if the tool is meant to reach it", c.Target(), c.Refused, c.Target())
}
