package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/toold/toold/host/hostrule"
)

// Gate is what all runs share.
type Gate struct {
	open  atomic.Int64
	large atomic.Int64 // buffers of pair.pass
	held  atomic.Int64 // bytes that are in memory before they are sent on
}

// run holds what the connections of one run share.
type run struct {
	gate  *Gate
	rules Rules
	ctx   context.Context // until the run is over
	// rest ends drain after ctx, or with Session.Close: what the run has sent is
	// delivered until then.
	rest context.Context
	work sync.WaitGroup

	held       atomic.Int64 // as in Gate
	signatures atomic.Int32 // how many were asked for
	ledger     ledger
	leaves     sync.Map // host to *tls.Certificate
}

// maxKept bounds how many connections of a run are kept by name, of those that
// were allowed and of those that were refused.
const maxKept = 64

// ledger holds the outcomes of the connections of a run.
type ledger struct {
	refused func(Connection) // or nil

	mu             sync.Mutex // guards what follows, and each Connection
	kept           []*Connection
	others         Connection // the allowed ones that are not kept
	allowed, stops int
	told           map[string]bool // targets that were reported
}

// note keeps c, and reports it if it was refused.
func (l *ledger) note(c *Connection) {
	l.mu.Lock()
	n := &l.allowed
	if c.Refused != "" {
		n = &l.stops
	}
	// What was signed is always kept; maxSignatures bounds that.
	if *n++; *n <= maxKept || c.Rule == signRule && c.Refused == "" {
		l.kept = append(l.kept, c)
	} else {
		c.notKept = true
	}
	told := *c
	l.mu.Unlock()
	l.tell(told)
}

// tell reports c if it was refused, each target once: programs try
// again.
func (l *ledger) tell(c Connection) {
	if c.Refused != "" {
		l.tellOnce(c.Target(), c)
	}
}

// tellOnce reports c, once for each subject.
func (l *ledger) tellOnce(subject string, c Connection) {
	if l.refused == nil {
		return
	}
	l.mu.Lock()
	again := l.told[subject] || len(l.told) >= maxKept
	if !again {
		l.told[subject] = true
	}
	l.mu.Unlock()
	if !again {
		l.refused(c)
	}
}

// fail records why c, which was allowed, was not made.
func (l *ledger) fail(c *Connection, err error) {
	if c == nil {
		return
	}
	if refused, ok := errors.AsType[*notPublicError](err); ok {
		l.refuse(c, refused.Error())
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Failed = err.Error()
}

// failed is fail for a connection that was made and could not be used, and reports it
// to the caller.
func (l *ledger) failed(c *Connection, err error) {
	l.fail(c, err)
	l.mu.Lock()
	told := *c
	l.mu.Unlock()
	told.Requests = nil
	if told.Refused == "" {
		l.tellOnce(told.Target()+" failed", told)
	}
}

// refuse turns c, which was allowed so far, into a refused one.
func (l *ledger) refuse(c *Connection, why string) {
	l.mu.Lock()
	c.Refused, c.Rule = why, ""
	l.allowed--
	l.stops++
	told := *c
	l.mu.Unlock()
	l.tell(told)
}

// forget adds what c carried to others, if it is not kept.
func (l *ledger) forget(c *Connection) {
	if c == nil || !c.notKept {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others.Sent += c.Sent
	l.others.Received += c.Received
	l.others.MoreRequests += len(c.Requests) + c.MoreRequests
}

// list returns the connections: the first of each kind and, as Others, the rest, and
// how many there were.
func (l *ledger) list() (list []Connection, allowed, refused int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.kept {
		list = append(list, *c)
		n := &allowed
		if c.Refused != "" {
			n = &refused
		}
		*n++
	}
	if l.others.Times = l.allowed - allowed; l.others.Times > 0 {
		list = append(list, l.others)
	}
	if n := l.stops - refused; n > 0 {
		list = append(list, Connection{Host: Others, Refused: "there are more than are kept by name", Times: n})
	}
	return list, l.allowed, l.stops
}

// signRule is the rule of what is signed, as it is in the journal.
const signRule = "ssh_sign"

type notPublicError struct {
	host string
	addr netip.Addr
}

func (e *notPublicError) Error() string {
	if e.host == e.addr.String() {
		return "it is not a public address, and capabilities.network does not name it"
	}
	return fmt.Sprintf("%s leads to %s, which is not a public address, and capabilities.network does not name the host itself", e.host, e.addr)
}

// dialTime is how long a host may take to answer.
const dialTime = 30 * time.Second

// dialer returns a function that dials host, which is c's or its address.
func dialer(host string, c *Connection, named bool) func(context.Context) (*net.TCPConn, error) {
	return func(ctx context.Context) (*net.TCPConn, error) {
		d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err == nil && !named && !hostrule.Public(ap.Addr()) {
				err = &notPublicError{c.Host, ap.Addr()}
			}
			return err
		}}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(c.Port))))
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	}
}

// why returns what the rules allow, as the reason of a refusal.
func (r *Rules) why() string {
	if len(r.Hosts) == 0 {
		return "capabilities.network grants no host"
	}
	return "capabilities.network grants only " + strings.Join(r.Hosts, ", ")
}
