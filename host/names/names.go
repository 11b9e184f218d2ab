// Package names is the name server of one run: it answers each name of a host with an
// address that stands for it in this run, so that a connection to the address is one to
// the name. host/egress hands it the connections of resolvers, and asks which name an
// address stands for.
//
// A name is looked up where the run may connect to it, and to find out whether it is
// there alone: no address of it is told to anybody. The name of a host that is not
// granted is never looked up.
package names

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/toold/toold/host/hostrule"
)

const (
	// maxNames bounds the names that one run looks up.
	maxNames = 4096
	// LookupTime bounds one lookup.
	LookupTime = 10 * time.Second
	// ttl is how long a process may keep an answer, in seconds: an address stands
	// for its name as long as the run.
	ttl = 600
)

// standIns is the range of the addresses that stand for names. It is for
// benchmarks of network devices, and so no public address.
var standIns = netip.MustParsePrefix("198.18.0.0/15")

// Server holds the addresses that stand for names in one run. The zero value has none, and
// resolves no names.
type Server struct {
	// Hosts are those that the run may connect to, as in hostrule.Match.
	Hosts []string

	mu     sync.Mutex
	byName map[string]netip.Addr
	byAddr map[netip.Addr]string
}

// Of returns the name for which addr stands.
func (n *Server) Of(addr netip.Addr) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.byAddr[addr]
	return name, ok
}

// addr returns the address that stands for name. There is none if there are too many.
func (n *Server) addr(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	if len(n.byName) >= maxNames {
		return netip.Addr{}, false
	}
	if n.byName == nil {
		n.byName, n.byAddr = map[string]netip.Addr{}, map[netip.Addr]string{}
	}
	first := standIns.Addr().As4()
	b := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(first[:])+1+uint32(len(n.byName)))
	a := netip.AddrFrom4([4]byte(b))
	n.byName[name], n.byAddr[a] = a, name
	return a, true
}

// Serve answers the queries on a connection of the run until that ends or sends something else.
func (n *Server) Serve(ctx context.Context, conn io.ReadWriter) {
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, err := n.Answer(ctx, query)
		if err != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// Answer answers one DNS message.
func (n *Server) Answer(ctx context.Context, query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil, errors.New("it is not a query")
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	code, addr := dnsmessage.RCodeSuccess, netip.Addr{}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	switch {
	case head.OpCode != 0 || q.Class != dnsmessage.ClassINET:
		code = dnsmessage.RCodeNotImplemented
	case !isHost(name):
		code = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA:
		code = n.lookUp(ctx, name)
		if code == dnsmessage.RCodeSuccess && q.Type == dnsmessage.TypeA {
			var ok bool
			if addr, ok = n.addr(name); !ok {
				code = dnsmessage.RCodeServerFailure
			}
		}
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true, RCode: code})
	b.EnableCompression()
	if err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers()); err != nil {
		return nil, err
	}
	if addr.IsValid() {
		if err := b.AResource(dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: ttl}, dnsmessage.AResource{A: addr.As4()}); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// lookUp reports whether name exists, if the run may connect to it on some port. Any other name
// seems to exist: connecting to it tells what is not granted.
func (n *Server) lookUp(ctx context.Context, name string) dnsmessage.RCode {
	granted := false
	for _, h := range n.Hosts {
		host, port := hostrule.Split(h)
		rule, _ := hostrule.Match([]string{host}, name, port)
		granted = granted || rule != ""
	}
	if !granted {
		return dnsmessage.RCodeSuccess
	}
	ctx, cancel := context.WithTimeout(ctx, LookupTime)
	defer cancel()
	_, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return dnsmessage.RCodeNameError
	}
	if err != nil {
		return dnsmessage.RCodeServerFailure
	}
	return dnsmessage.RCodeSuccess
}

// isHost reports whether name may be that of a host.
func isHost(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range label {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	// An address in text is no name.
	_, err := netip.ParseAddr(name)
	return err != nil
}
