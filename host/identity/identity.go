// Package identity authenticates callers and resolves a tool's configuration for
// each of them.
//
// A caller is identified by a token that was signed, or encrypted, with a key of
// the configured JWKS file. Without a token, it is the uid that the kernel reports
// for the connection's peer, if the configuration admits that. Nothing else that a
// caller sends identifies it. Other packages see an identity as an ID: an HMAC
// under a key of this host, stable across restarts, that does not reveal its
// input.
//
// A caller's Effective identity for a tool is the tool's configuration overlaid by
// the claims that the tool declares. Its Fingerprint is equal for two callers
// exactly if all of that is equal. Package discovery caches by fingerprint the
// tools that a module lists for an identity.
//
// No token, password or key is stored: a verified token is cached by its digest,
// and its claims are encrypted with a key derived from the token. The package
// never logs a claim's value.
//
// The package is independent of tools, modules and sockets; package host connects
// them.
package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/toold/toold/host/fault"
)

// overflowUID is what the kernel reports for a user without a mapping in this
// namespace. Many users may share it, so it identifies none.
const overflowUID = 65534

const keyFile = "host.key"

// Caller is an authenticated caller.
type Caller struct {
	// ID is 32 hexadecimal digits. Two tokens have the same ID if issuer,
	// subject, all private claims that are not ignored and the session that they
	// are bound to are equal. A caller that is bound to a session has an ID of its
	// own: what is kept by ID is not shared with those who are not bound to it.
	ID string
	// UID is the peer's, as the kernel reports it.
	UID uint32
	// ReadOnly reports that the token restricts its bearer to reading.
	ReadOnly bool

	// claims are the token's, by name; nil without a token. It is a pointer, so
	// that %v does not print them.
	claims *claims
	// owner and session are those of Bind; empty for a caller that is not bound.
	owner, session string
}

// Bind returns c as a caller that can use this one session of its identity, and no
// other. The error is SESSION_NOT_FOUND if c is bound to another one already.
func (c Caller) Bind(session string) (Caller, error) {
	if c.session == session {
		return c, nil
	}
	if c.session != "" {
		return Caller{}, fault.Errorf(fault.SessionNotFound, "this token is bound to another session than this socket; call over another socket, or with another token")
	}
	sum := sha256.New()
	writeFields(sum, "bound", c.ID, session)
	c.owner, c.session = c.ID, session
	c.ID = hex.EncodeToString(sum.Sum(nil)[:16])
	return c, nil
}

// Session returns the id of the session that c is bound to; empty: it is not
// bound.
func (c Caller) Session() string { return c.session }

// Owner returns the ID of the identity whose sessions c uses: its own, or, for a
// bound caller, the one that it had before.
func (c Caller) Owner() string {
	if c.session == "" {
		return c.ID
	}
	return c.owner
}

// HasToken reports whether c was made from a token.
func (c Caller) HasToken() bool { return c.claims != nil }

// Current returns UNAUTHENTICATED if the token of c has expired. Resolve checks
// this too; call Current before using a Caller later than that.
func (c Caller) Current() error {
	if c.claims == nil {
		return nil
	}
	return c.claims.checkTime(time.Now())
}

// Expires returns when the token of c expires; zero without one.
func (c Caller) Expires() time.Time {
	if c.claims == nil {
		return time.Time{}
	}
	return c.claims.expires
}

// Claim returns the text of one claim: a string as it is, a number or a boolean
// as JSON. ok is false if the token has no such claim.
func (c Caller) Claim(name string) (text string, ok bool) {
	if c.claims == nil {
		return "", false
	}
	text, ok = c.claims.text[name]
	return text, ok
}

// Config configures which callers a Resolver admits. It is fixed after New.
type Config struct {
	// JWKS is the file with the keys of tokens; empty admits no token. It is
	// reloaded when it changes; if that fails, the previous keys stay valid.
	JWKS string
	// Issuer and Audience, if not empty, are required in iss and aud.
	Issuer, Audience string
	// AllowUID admits a caller without a token by the uid that the kernel
	// reports.
	AllowUID bool
	// Ignore are undeclared private claims that are ignored instead of refused.
	Ignore []string
	// Declared reports whether some tool declares a claim. Nil: none does.
	Declared func(claim string) bool
	// Logger gets reloads of the JWKS file. Nil: slog.Default.
	Logger *slog.Logger
}

// Resolver resolves a token or a peer uid to a Caller. It is safe for concurrent
// use.
type Resolver struct {
	key     []byte
	cfg     Config
	keyring keyring
	tokens  *otter.Cache[digest, *cachedToken]
}

// New reads the JWKS file and the host's key from the folder state, or creates the
// key with mode 0600. Files with secret keys that others can read are refused.
func New(state string, cfg Config) (*Resolver, error) {
	key, err := loadKey(filepath.Join(state, keyFile))
	if err != nil {
		return nil, err
	}
	return (&Resolver{key: key}).With(cfg)
}

// With returns a Resolver with the same host key and another configuration. It
// does not share the token cache of r.
func (r *Resolver) With(cfg Config) (*Resolver, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Declared == nil {
		cfg.Declared = func(string) bool { return false }
	}
	next := &Resolver{key: r.key, cfg: cfg, tokens: otter.Must(&otter.Options[digest, *cachedToken]{
		MaximumSize: maxTokens, Executor: func(fn func()) { fn() }, // no goroutines of its own
	})}
	if cfg.JWKS != "" {
		if err := next.keyring.open(cfg.JWKS); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// Resolve returns the caller of a token or, if token is empty, of a peer uid.
// Errors are *fault.Error UNAUTHENTICATED and never contain the token.
func (r *Resolver) Resolve(token string, uid uint32) (Caller, error) {
	if token != "" {
		if r.cfg.JWKS == "" {
			return Caller{}, fault.Errorf(fault.Unauthenticated, "this toold takes no tokens; unset TOOL_TOKEN and TOOL_TOKEN_FILE")
		}
		c, err := r.resolveToken(token)
		if err != nil {
			return Caller{}, err
		}
		c.UID = uid
		return c, nil
	}
	if !r.cfg.AllowUID {
		return Caller{}, fault.Errorf(fault.Unauthenticated, "a caller without a token is not admitted; ask the operator for one, or for identity.allow_uid")
	}
	if uid == overflowUID {
		return Caller{}, fault.Errorf(fault.Unauthenticated, "uid 65534 stands for any user without a mapping and is not admitted; run the container with a mapped user")
	}
	m := hmac.New(sha256.New, r.key)
	fmt.Fprintf(m, "uid\x00%d", uid)
	return Caller{ID: hex.EncodeToString(m.Sum(nil)[:16]), UID: uid}, nil
}

func loadKey(path string) ([]byte, error) {
	for {
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			key := make([]byte, 32)
			rand.Read(key)
			// Write a temporary file and link it, so that concurrent starts
			// end with one complete key.
			tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
			if err != nil {
				return nil, fmt.Errorf("make the host key: %w", err)
			}
			defer os.Remove(tmp.Name())
			_, werr := tmp.Write(key)
			if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
				return nil, fmt.Errorf("make the host key: %w", err)
			}
			if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("make the host key: %w", err)
			}
			os.Remove(tmp.Name())
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w; it must be a regular file, not a link", err)
		}
		defer f.Close()
		fi, err := f.Stat() // of the open file, not the path
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("read the host key: %s is %v; `chmod 600 %s` if nobody else has read it, else remove it", path, fi.Mode(), path)
		}
		if s, ok := fi.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 && !isTempLink(path, fi) {
			return nil, fmt.Errorf("read the host key: %s has %d names (hard links), and whoever reads it by another one can tell who calls; remove them if nobody has read it, else remove it", path, s.Nlink)
		}
		key, err := io.ReadAll(io.LimitReader(f, 64))
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if len(key) != 32 {
			return nil, fmt.Errorf("read the host key: %s has %d bytes and not 32; restore it from a backup, or remove it to make a new one; earlier sessions and records are then no longer found", path, len(key))
		}
		return key, nil
	}
}

// isTempLink reports whether the other name of the host's key is the temporary one
// of a concurrent or interrupted start.
func isTempLink(path string, key fs.FileInfo) bool {
	others, _ := os.ReadDir(filepath.Dir(path))
	return slices.ContainsFunc(others, func(other fs.DirEntry) bool {
		fi, err := other.Info()
		return strings.HasPrefix(other.Name(), ".key-") && err == nil && os.SameFile(fi, key)
	})
}
