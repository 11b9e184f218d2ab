// Package identity says who a call comes from.
//
// Without a token, that is the uid which the kernel reports for the peer of
// the connection, where the configuration admits it. Nothing that a caller
// writes is ever part of who it is. What other parts see of an identity is an
// ID: an HMAC under a key of this host, stable across restarts, that tells
// nothing about what it was made from.
package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/wire"
)

// overflowUID is what the kernel reports for a user that has no mapping in
// this namespace: it could be anybody, so it is nobody.
const overflowUID = 65534

const keyFile = "host.key"

// Caller is who a call comes from.
type Caller struct {
	// ID is 32 hexadecimal digits.
	ID string
	// UID is the peer's, as the kernel reports it.
	UID uint32
}

// Resolver turns what a connection brings into a Caller. It is safe for
// concurrent use.
type Resolver struct {
	key      []byte
	allowUID bool
}

// New reads the host's key from the folder state, or makes one there with
// mode 0600. A key that others can read is refused.
func New(state string, allowUID bool) (*Resolver, error) {
	key, err := loadKey(filepath.Join(state, keyFile))
	if err != nil {
		return nil, err
	}
	return &Resolver{key: key, allowUID: allowUID}, nil
}

// WithUID is r with another rule for callers without a token.
func (r *Resolver) WithUID(allow bool) *Resolver {
	return &Resolver{key: r.key, allowUID: allow}
}

// Resolve says who calls. Errors are *wire.Error UNAUTHENTICATED and never
// hold the token.
func (r *Resolver) Resolve(token string, uid uint32) (Caller, error) {
	if token != "" {
		return Caller{}, wire.Errorf(wire.Unauthenticated, "this toold takes no tokens; unset TOOL_TOKEN and TOOL_TOKEN_FILE")
	}
	if !r.allowUID {
		return Caller{}, wire.Errorf(wire.Unauthenticated, "a caller without a token is not admitted; ask the operator for one, or for identity.allow_uid")
	}
	if uid == overflowUID {
		return Caller{}, wire.Errorf(wire.Unauthenticated, "uid 65534 stands for any user without a mapping and is not admitted; run the container with a mapped user")
	}
	m := hmac.New(sha256.New, r.key)
	fmt.Fprintf(m, "uid\x00%d", uid)
	return Caller{ID: hex.EncodeToString(m.Sum(nil)[:16]), UID: uid}, nil
}

func loadKey(path string) ([]byte, error) {
	for {
		fi, err := os.Lstat(path)
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
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("read the host key: %s is %v; `chmod 600 %s` if nobody else has read it, else remove it", path, fi.Mode(), path)
		}
		key, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the host key: %w", err)
		}
		if len(key) != 32 {
			return nil, fmt.Errorf("read the host key: %s has %d bytes and not 32; remove it to make a new one", path, len(key))
		}
		return key, nil
	}
}
