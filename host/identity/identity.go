// Package identity says who a call comes from, and what that makes of a tool.
//
// Who calls is what a token says that was signed, or encrypted, with a key of
// the configured JWKS file. Without a token, it is the uid which the kernel
// reports for the peer of the connection, where the configuration admits it.
// Nothing else that a caller writes is ever part of who it is. What other parts
// see of an identity is an ID: an HMAC under a key of this host, stable across
// restarts, that tells nothing about what it was made from.
//
// What a caller is to one tool is its Effective identity: the tool's
// configuration under the claims that the tool declares, with a Fingerprint
// that is equal for two callers exactly when all of that is. Surfaces keeps, by
// fingerprint, the tools that a module makes for an identity.
//
// No token, password or key is kept: a token that was verified once is
// remembered by its digest, and its claims are sealed with a key that only the
// token itself gives. The package never logs a claim's value.
//
// The package knows no tools, modules or sockets; package pipeline brings these
// together.
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

// overflowUID is what the kernel reports for a user that has no mapping in
// this namespace: it could be anybody, so it is nobody.
const overflowUID = 65534

const keyFile = "host.key"

// Caller is who a call comes from.
type Caller struct {
	// ID is 32 hexadecimal digits. Two tokens have the same when issuer,
	// subject and every claim that counts are the same.
	ID string
	// UID is the peer's, as the kernel reports it.
	UID uint32
	// ReadOnly says that the token narrows its bearer to reading.
	ReadOnly bool

	// claims are the token's, by name; nil without a token. A pointer, so that
	// nothing prints them by accident.
	claims *claims
}

// HasToken reports whether c was made from a token.
func (c Caller) HasToken() bool { return c.claims != nil }

// Current is UNAUTHENTICATED when the token of c counts no more. Resolve has
// asked; who uses a Caller later than that asks again.
func (c Caller) Current() error {
	if c.claims == nil {
		return nil
	}
	return c.claims.current(time.Now())
}

// Claim is the text of one claim: a string as it is, a number or a boolean as
// JSON writes it. ok is false where the token has no such claim.
func (c Caller) Claim(name string) (text string, ok bool) {
	if c.claims == nil {
		return "", false
	}
	text, ok = c.claims.text[name]
	return text, ok
}

// Config says whom a Resolver admits. It does not change after New.
type Config struct {
	// JWKS is the file with the keys of tokens; empty admits no token. It is
	// read again when it changes; while the new one cannot be used, the keys
	// of the old one stand.
	JWKS string
	// Issuer and Audience, where not empty, are what a token must say in iss
	// and aud.
	Issuer, Audience string
	// AllowUID admits a caller without a token by the uid that the kernel
	// reports.
	AllowUID bool
	// Ignore are private claims that no tool declares and that are passed
	// over, in place of being refused.
	Ignore []string
	// Declared reports whether some tool declares a claim. Nil: none does.
	Declared func(claim string) bool
	// Logger hears when the JWKS file was read again. Nil: slog.Default.
	Logger *slog.Logger
}

// Resolver turns what a connection brings into a Caller. It is safe for
// concurrent use.
type Resolver struct {
	key   []byte
	cfg   Config
	ring  keyring
	known *otter.Cache[digest, *remembered]
}

// New reads the host's key from the folder state, or makes one there with
// mode 0600, and the JWKS file. A file with secret keys that others can read is
// refused.
func New(state string, cfg Config) (*Resolver, error) {
	key, err := loadKey(filepath.Join(state, keyFile))
	if err != nil {
		return nil, err
	}
	return (&Resolver{key: key}).With(cfg)
}

// With is a Resolver of the same host under another configuration. It
// remembers no token of r.
func (r *Resolver) With(cfg Config) (*Resolver, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Declared == nil {
		cfg.Declared = func(string) bool { return false }
	}
	next := &Resolver{key: r.key, cfg: cfg, known: otter.Must(&otter.Options[digest, *remembered]{
		MaximumSize: maxTokens, Executor: func(fn func()) { fn() }, // no goroutines of its own
	})}
	if cfg.JWKS != "" {
		if err := next.ring.open(cfg.JWKS); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// Resolve says who calls. Errors are *fault.Error UNAUTHENTICATED and never
// hold the token.
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
			// Written whole beside it and linked into place, so that two
			// starts at once end with one key and never with half of one.
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
			return nil, fmt.Errorf("read the host key: %w; it must be a file of its own, no link", err)
		}
		defer f.Close()
		fi, err := f.Stat() // of what is read
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("read the host key: %s is %v; `chmod 600 %s` if nobody else has read it, else remove it", path, fi.Mode(), path)
		}
		if s, ok := fi.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 && !beingMade(path, fi) {
			return nil, fmt.Errorf("read the host key: %s has %d names (hard links), and whoever reads it by another one can tell who calls; remove them if nobody has read it, else remove it", path, s.Nlink)
		}
		key, err := io.ReadAll(io.LimitReader(f, 64))
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if len(key) != 32 {
			return nil, fmt.Errorf("read the host key: %s has %d bytes and not 32; remove it to make a new one", path, len(key))
		}
		return key, nil
	}
}

// beingMade reports whether the other name of the host's key is the one under
// which another start is making it, or was when it was killed.
func beingMade(path string, key fs.FileInfo) bool {
	others, _ := os.ReadDir(filepath.Dir(path))
	return slices.ContainsFunc(others, func(other fs.DirEntry) bool {
		fi, err := other.Info()
		return strings.HasPrefix(other.Name(), ".key-") && err == nil && os.SameFile(fi, key)
	})
}
