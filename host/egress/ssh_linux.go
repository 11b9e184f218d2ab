package egress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/toold/toold/host/gitwire"
	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/sshkey"
	"github.com/toold/toold/host/sshshim"
	"github.com/toold/toold/pdk/abi"
)

// sshPatience is how long a host may take to log the daemon in, and a shim to send its
// request.
const sshPatience = 30 * time.Second

// maxSignatures is how many objects one run has signed at most.
const maxSignatures = 1000

// errTold is an error that was reported already.
var errTold = errors.New("it was reported")

// shim serves git's ssh of a run, at the other end of pair.
type shim struct {
	*run
	pair *pair
}

// serveSSH serves the shim at the other end of p.
func serveSSH(p *pair) {
	s := &shim{p.run, p}
	conn := p.local
	defer conn.Close()
	out := sshshim.NewWriter(conn)
	p.readBy(time.Now().Add(sshPatience))
	code, err := s.serve(out)
	if err != nil {
		code = sshshim.Failed
		if err != errTold {
			fmt.Fprintf(out.Stderr(), "toold: %v\n", err)
		}
	}
	out.Exit(code)
	// Unread input would turn closing the connection into a reset, which discards the
	// answer.
	conn.CloseWrite()
	conn.SetReadDeadline(time.Now().Add(drain))
	io.Copy(io.Discard, conn)
}

// signObject signs what a shim asks for.
func (s *shim) signObject(object []byte, out *sshshim.Writer) (code int, err error) {
	key := s.rules.SSH.Signer
	c := &Connection{Host: sshshim.Name, Rule: signRule, Sent: int64(len(object))}
	var armored []byte
	what := ""
	switch {
	case key == nil:
		err = errors.New("the tool has no key to sign with; add a secret with \"ssh_sign\": true to tool.json")
	case s.signatures.Add(1) > maxSignatures:
		err = fmt.Errorf("the call has had %d objects signed, and may have no more", maxSignatures)
	default:
		armored, what, err = key.Sign(object)
	}
	c.Requests = []Request{{Method: "SIGN", Path: what}}
	if err != nil {
		c.Refused, c.Requests[0].Refused = err.Error(), err.Error()
		c.Remedy = "git asks for a signature of a commit or a tag only"
	}
	s.ledger.note(c)
	if err != nil {
		return 0, errTold // by note
	}
	_, err = out.Stdout().Write(armored)
	return 0, err
}

// serve does what the shim asks for, and returns the exit code of the command.
func (s *shim) serve(out *sshshim.Writer) (code int, err error) {
	q, err := sshshim.ReadRequest(s.pair.local)
	if err != nil {
		return 0, err
	}
	if q.Sign != nil {
		return s.signObject(q.Sign, out)
	}
	e, err := gitwire.ParseExec(q.Args, q.Protocol)
	if err != nil {
		return 0, err
	}
	s.pair.readBy(time.Time{})
	if e.User == "" {
		e.User = "git"
	}
	c, key, dial := s.judgeSSH(e)
	s.ledger.note(c)
	if c.Refused != "" {
		return 0, errTold // as of every connection
	}
	traffic, client, err := s.logIn(e, c, key, dial)
	if err != nil {
		s.ledger.fail(c, err)
		if c.Refused != "" {
			return 0, errTold
		}
		return 0, err
	}
	out.OnLeft(client.Close)
	defer context.AfterFunc(s.ctx, func() { client.Close() })()
	defer client.Close()
	defer func() {
		s.ledger.mu.Lock()
		defer s.ledger.mu.Unlock()
		c.Sent, c.Received = traffic.sent.Load(), traffic.received.Load()
	}()
	return s.runGit(out, e, c, client)
}

// runGit runs what git asked for at the host, and returns its exit code there. The
// references of a push are judged before the host gets them.
func (s *shim) runGit(out *sshshim.Writer, e *gitwire.Exec, c *Connection, client *ssh.Client) (code int, err error) {
	conn := s.pair.local
	session, err := client.NewSession()
	if err != nil {
		return 0, fmt.Errorf("open a session at %s: %w", c.Target(), err)
	}
	defer session.Close()
	if e.Service == gitwire.UploadPack && e.Protocol != "" {
		session.Setenv("GIT_PROTOCOL", e.Protocol) // where the host takes it
	}
	session.Stderr = out.Stderr()
	stdin, err := session.StdinPipe()
	if err != nil {
		return 0, err
	}
	// The copy to the host ends by itself when the host has ended.
	var work sync.WaitGroup
	defer func() { conn.SetReadDeadline(time.Now()); work.Wait() }()
	if e.Service == gitwire.UploadPack {
		session.Stdout = out.Stdout()
		if err := session.Start(e.Command()); err != nil {
			return 0, fmt.Errorf("run %s at %s: %w", e.Service, c.Target(), err)
		}
		work.Go(func() {
			io.Copy(stdin, conn)
			stdin.Close()
		})
		return exitOf(session.Wait())
	}
	stdout, err := session.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := session.Start(e.Command()); err != nil {
		return 0, fmt.Errorf("run %s at %s: %w", e.Service, c.Target(), err)
	}
	err = s.push(e, stdin, stdout, out.Stdout(), &work)
	stdin.Close()
	if err != nil {
		// Without a command, nothing has happened there.
		session.Close()
		client.Close()
		work.Wait()
		return 0, err
	}
	code, err = exitOf(session.Wait())
	work.Wait()
	return code, err
}

// push sends on to stdin what is pushed, once it may be, and to out what the host says on
// stdout, of which some of work copies what is no reference. What is in memory for the
// policy is counted until the commands are sent on.
func (s *shim) push(e *gitwire.Exec, stdin io.Writer, stdout io.Reader, out io.Writer, work *sync.WaitGroup) error {
	held := &holding{run: s.run}
	defer held.end()
	has, err := gitwire.ReadAdvertised(hostReader{held, stdout}, out)
	if err != nil {
		return err
	}
	work.Go(func() { io.Copy(out, stdout) })
	// Before git sends anything, hooks run, for any time.
	var first [1]byte
	if _, err := io.ReadFull(s.pair.local, first[:]); err != nil {
		return errTold // git has left: it refuses what it finds there, and reports that itself
	}
	push, err := gitwire.ReadPush(held.reader(io.MultiReader(bytes.NewReader(first[:]), s.pair.local), s.pair.readBy))
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errTold // as above
	}
	if err == nil {
		err = push.Check(has)
	}
	if err != nil {
		return fmt.Errorf("the push to %s is refused: %w", e.URL(), err)
	}
	s.pair.readBy(time.Time{})
	facts := PushFacts(push)
	facts.Host, facts.Port, facts.Path, facts.Remote = e.Host, e.Port, e.Path, e.URL()
	if s.rules.Ask != nil && len(facts.Refs) > 0 && s.rules.Ask(s.ctx, facts) != nil { // a push of nothing changes nothing
		return errTold
	}
	if _, err := stdin.Write(push.Head()); err != nil {
		return nil // the host has ended, and reports why
	}
	pack := push.HasPack()
	held.end()
	if pack {
		io.Copy(stdin, s.pair.local)
	}
	return nil
}

// PushFacts returns the facts of p for a policy.
func PushFacts(p *gitwire.Push) *abi.Wire {
	facts := &abi.Wire{On: abi.WirePush, PushOptions: p.Options}
	for _, ref := range p.Refs {
		r := abi.WireRef{Name: ref.Name, Old: ref.Old, New: ref.New}
		switch {
		case ref.Deleted() || !ref.Created() && strings.HasPrefix(ref.Name, "refs/tags/"):
			r.Force = new(bool)
			*r.Force = true // a tag never moves forward
		case ref.Created():
			r.Force = new(bool)
		}
		facts.Refs = append(facts.Refs, r)
	}
	return facts
}

// judgeSSH determines whether the rules allow e, and with which key.
func (s *shim) judgeSSH(e *gitwire.Exec) (c *Connection, key *sshkey.Key, dial func(context.Context) (*net.TCPConn, error)) {
	c = &Connection{Host: e.Host, Port: uint16(e.Port)}
	rule, named := hostrule.Match(s.rules.Hosts, e.Host, strconv.Itoa(e.Port))
	if rule == "" {
		c.Refused = s.rules.why()
		return c, nil, nil
	}
	if key = s.rules.SSH.For(e.Host, e.Port); key == nil {
		var hosts []string
		for _, k := range s.rules.SSH.Keys {
			hosts = append(hosts, k.Host)
		}
		c.Refused = "the tool has a key for ssh to " + strings.Join(hosts, ", ") + " only"
		host := c.Target() // as it is written in a secret
		if c.Port == 22 {
			host = c.Host
		}
		c.Remedy = fmt.Sprintf(`add a secret with "ssh_key": true and "host": %q to secrets in tool.json if it is meant to have one there`, host)
		return c, nil, nil
	}
	c.Rule = rule
	return c, key, dialer(e.Host, c, named)
}

// logIn connects to the host of c and logs in there.
func (s *shim) logIn(e *gitwire.Exec, c *Connection, key *sshkey.Key, dial func(context.Context) (*net.TCPConn, error)) (*traffic, *ssh.Client, error) {
	address := c.Target()
	signer, done, err := key.Open(s.ctx)
	defer done()
	if err != nil {
		return nil, nil, err
	}
	config, err := s.rules.SSH.ClientConfig(signer, e.User, address)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, sshPatience)
	defer cancel()
	conn, err := dial(ctx)
	if err != nil {
		if _, refused := errors.AsType[*notPublicError](err); refused {
			return nil, nil, err
		}
		return nil, nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	traffic := new(traffic)
	over, channels, requests, err := ssh.NewClientConn(&counted{conn, traffic}, address, config)
	if !stop() && err == nil {
		over.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		if text := err.Error(); strings.Contains(text, "unable to authenticate") {
			public := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
			err = fmt.Errorf("%s does not let %s in with the key of the secret %s; add %s to the keys of that account", address, e.User, key.Name, public)
		}
		return nil, nil, fmt.Errorf("ssh to %s: %w", address, err)
	}
	return traffic, ssh.NewClient(over, channels, requests), nil
}

// exitOf returns the exit code of a command that ended with err.
func exitOf(err error) (int, error) {
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		if exit.Signal() != "" {
			return sshshim.Failed, nil
		}
		return exit.ExitStatus(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("the host has ended the connection: %w", err)
	}
	return 0, nil
}
