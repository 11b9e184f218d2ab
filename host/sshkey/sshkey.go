// Package sshkey has the keys with which the daemon itself logs in to hosts over ssh,
// and signs what git has signed, so that no process of a tool has them.
//
//   - A host that known_hosts does not have, or that shows another key, is not logged
//     in to.
//   - What is signed is a commit or a tag of git, in git's namespace: no login, and
//     nothing that another program asks for, can be made of it.
//
// It opens no connection but that to an agent: host/egress connects to hosts, and says
// to which.
package sshkey

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/regular"
)

// Set defines what a run may do over ssh: git fetches from and pushes to repositories at the
// hosts of Keys, through the daemon.
type Set struct {
	Keys []Key
	// KnownHosts is the file with the keys of hosts, as ssh has it. A host that is not
	// in it is not spoken to.
	KnownHosts string
	// Signer is the key with which the daemon signs commits and tags for the run; nil:
	// none. Its Host is empty.
	Signer *Key
	// Program is what the run executes as its ssh; empty where there is neither.
	Program string
}

// Key is a private key, or one in an agent, for one host.
type Key struct {
	// Name is the secret's.
	Name string
	// Host is a name or an address, with a port unless that is 22.
	Host string
	// PEM is the key, as ssh-keygen writes it. Without it the key is in the agent that
	// serves the socket Agent: the one that Public names, as its fingerprint
	// ("SHA256:...") or as ssh-keygen writes a public key.
	PEM           string
	Agent, Public string
}

// Open returns a signer that logs in with k, valid until done is called. From an agent it is k
// itself or nothing.
func (k *Key) Open(ctx context.Context) (_ ssh.Signer, done func(), err error) {
	done = func() {}
	if k.Public == "" {
		signer, err := ssh.ParsePrivateKey([]byte(k.PEM + "\n"))
		if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
			return nil, done, fmt.Errorf("secret %s: the key has a passphrase, and nobody is there to type it; store it without one (ssh-keygen -p), readable by toold's user only, or in an agent", k.Name)
		}
		if err != nil {
			return nil, done, fmt.Errorf("secret %s: read the private key: %w; it has to be a file of ssh-keygen", k.Name, err)
		}
		return signer, done, nil
	}
	want := k.Public
	if !strings.HasPrefix(want, "SHA256:") {
		public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(want))
		if err != nil {
			return nil, done, fmt.Errorf("secret %s: read the public key in its from: %w", k.Name, err)
		}
		want = ssh.FingerprintSHA256(public)
	}
	conn, err := (&net.Dialer{Timeout: agentTime}).DialContext(ctx, "unix", k.Agent)
	if err != nil {
		return nil, done, fmt.Errorf("secret %s: connect to the agent of toold: %w; see SSH_AUTH_SOCK in its environment", k.Name, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // whoever is asked there, nobody waits for it any more
	done = func() { stop(); conn.Close() }
	conn.SetDeadline(time.Now().Add(agentTime))
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, done, fmt.Errorf("secret %s: ask the agent of toold for its keys: %w", k.Name, err)
	}
	for _, s := range signers {
		if ssh.FingerprintSHA256(s.PublicKey()) == want {
			return s, done, nil
		}
	}
	return nil, done, fmt.Errorf("secret %s: the agent of toold does not have the key %s; add it there (ssh-add)", k.Name, want)
}

// agentTime is how long an agent may take, which may ask somebody.
const agentTime = 30 * time.Second

// For returns the key for a host at a port, nil if there is none.
func (s *Set) For(host string, port int) *Key {
	for i := range s.Keys {
		name, at := hostrule.Split(s.Keys[i].Host)
		if at == "" {
			at = "22"
		}
		if rule, named := hostrule.Match([]string{name}, host, ""); rule != "" && named && at == strconv.Itoa(port) {
			return &s.Keys[i]
		}
	}
	return nil
}

// ClientConfig returns the configuration with which the daemon logs in with signer to address,
// a host with its port, as user.
func (s *Set) ClientConfig(signer ssh.Signer, user, address string) (*ssh.ClientConfig, error) {
	// The library opens the file itself, and would wait for the other end of a pipe.
	known, err := regular.Open(s.KnownHosts)
	var check ssh.HostKeyCallback
	if err == nil {
		known.Close()
		check, err = knownhosts.New(s.KnownHosts)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.unknown(address)
	}
	if err != nil {
		return nil, fmt.Errorf("read the known host keys: %w; repair %s", err, s.KnownHosts)
	}
	// What the host is to show has to be of a kind that is known of it: it has keys
	// of several, and shows one.
	algorithms := knownAlgorithms(check, address)
	if len(algorithms) == 0 {
		return nil, s.unknown(address)
	}
	return &ssh.ClientConfig{
		User: user,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: func(hostname string, remote net.Addr, key ssh.PublicKey) error {
			err := check(hostname, remote, key)
			if mismatch, ok := errors.AsType[*knownhosts.KeyError](err); ok && len(mismatch.Want) > 0 {
				return fmt.Errorf("%s shows the key %s, which is not the one in %s: somebody may be in between; if it has a new key, replace line %d after checking it with who runs the host", address, ssh.FingerprintSHA256(key), s.KnownHosts, mismatch.Want[0].Line)
			}
			if revoked, ok := errors.AsType[*knownhosts.RevokedError](err); ok {
				return fmt.Errorf("the key of %s is revoked in line %d of %s", address, revoked.Revoked.Line, s.KnownHosts)
			}
			if err != nil {
				return fmt.Errorf("the key of %s: %w", address, err)
			}
			return nil
		},
		HostKeyAlgorithms: algorithms,
		ClientVersion:     "SSH-2.0-toold",
	}, nil
}

func (s *Set) unknown(address string) error {
	host, port, _ := net.SplitHostPort(address)
	return fmt.Errorf("the key of %s is not known; the operator adds it to %s (ssh-keyscan -p %s %s shows it, and who runs the host can say whether it is the right one)", address, s.KnownHosts, port, host)
}

// knownAlgorithms returns the algorithms of the known keys of address.
func knownAlgorithms(check ssh.HostKeyCallback, address string) (list []string) {
	// Nobody has this key, and what is said of it names those that there are.
	probe, err := ssh.NewPublicKey(ed25519.PublicKey(bytes.Repeat([]byte{1}, ed25519.PublicKeySize)))
	if err != nil {
		return nil
	}
	mismatch, ok := errors.AsType[*knownhosts.KeyError](check(address, &net.TCPAddr{IP: net.IPv4zero}, probe))
	if !ok {
		return nil
	}
	for _, known := range mismatch.Want {
		of := []string{known.Key.Type()}
		if of[0] == ssh.KeyAlgoRSA { // the same key, and better signatures
			of = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
		}
		for _, a := range of {
			if !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}
