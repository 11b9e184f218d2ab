package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/toold/toold/host/regular"
)

const (
	maxJWKS = 1 << 20 // bytes
	maxKeys = 64
)

// keys holds the keys of one version of a JWKS file. Several may be valid at a time,
// for rotation.
type keys struct {
	generation uint64
	list       []jose.JSONWebKey
}

// candidates returns the keys that a token with this header may use, for the use
// "sig" or "enc".
func (k *keys) candidates(h header, use string) ([]jose.JSONWebKey, error) {
	var found []jose.JSONWebKey
	known := h.Kid == ""
	for _, key := range k.list {
		if h.Kid != "" && key.KeyID != h.Kid {
			continue
		}
		known = true
		if key.Use != "" && key.Use != use || key.Algorithm != "" && key.Algorithm != h.Alg || !keyMatchesAlg(key, h.Alg) {
			continue
		}
		found = append(found, key)
	}
	switch {
	case !known:
		return nil, refuse("no key of the JWKS file has its kid %s; check whether the key was removed, or not yet added", clip(h.Kid))
	case len(found) == 0:
		return nil, refuse("no key of the JWKS file with its kid is for %s", h.Alg)
	}
	return found, nil
}

// keyMatchesAlg reports whether a key has the type that alg requires: the header
// alone never selects the algorithm.
func keyMatchesAlg(k jose.JSONWebKey, alg string) bool {
	switch alg {
	case string(jose.RS256), string(jose.PS256):
		_, ok := k.Public().Key.(*rsa.PublicKey)
		return ok
	case string(jose.ES256), string(jose.ES384):
		pub, ok := k.Public().Key.(*ecdsa.PublicKey)
		return ok && (pub.Curve == elliptic.P256()) == (alg == string(jose.ES256))
	case string(jose.EdDSA):
		_, ok := k.Public().Key.(ed25519.PublicKey)
		return ok
	case string(jose.RSA_OAEP_256):
		_, ok := k.Key.(*rsa.PrivateKey)
		return ok
	case string(jose.ECDH_ES), string(jose.ECDH_ES_A256KW):
		_, ok := k.Key.(*ecdsa.PrivateKey)
		return ok
	case string(jose.DIRECT), string(jose.A256KW), string(jose.A256GCMKW):
		_, ok := k.Key.([]byte)
		return ok
	}
	return false
}

// parseKeys reads a JWKS. secret reports that it holds private or shared keys.
func parseKeys(data []byte) (list []jose.JSONWebKey, secret bool, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, false, errors.New(`not a JWKS: {"keys": […]}`)
	}
	if len(set.Keys) == 0 || len(set.Keys) > maxKeys {
		return nil, false, fmt.Errorf("it has %d keys; it must have from 1 to %d", len(set.Keys), maxKeys)
	}
	for i, raw := range set.Keys {
		var k jose.JSONWebKey
		// The library's error could quote the key.
		err := json.Unmarshal(raw, &k)
		if _, secret := k.Key.([]byte); err != nil || !secret && !k.Valid() {
			return nil, false, fmt.Errorf("key %d is malformed, or of an unsupported type", i)
		}
		switch key := k.Key.(type) {
		case []byte:
			if len(key) < 16 {
				return nil, false, fmt.Errorf("key %d is a secret of %d bytes; make one of 32", i, len(key))
			}
			secret = true
		case *rsa.PrivateKey:
			secret = true
			if key.N.BitLen() < 2048 {
				return nil, false, fmt.Errorf("key %d is RSA of %d bits; make one of 2048 or more", i, key.N.BitLen())
			}
		case *rsa.PublicKey:
			if key.N.BitLen() < 2048 {
				return nil, false, fmt.Errorf("key %d is RSA of %d bits; make one of 2048 or more", i, key.N.BitLen())
			}
		case *ecdsa.PrivateKey, ed25519.PrivateKey:
			secret = true
		}
		list = append(list, k)
	}
	return list, secret, nil
}

func readKeys(path string) ([]jose.JSONWebKey, error) {
	fail := func(err error) error {
		return fmt.Errorf("read the keys of tokens: %w; see identity.jwks in toold.json", err)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fail(err)
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxJWKS {
		return nil, fail(fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxJWKS))
	}
	data, err := regular.ReadFile(path)
	if err != nil {
		return nil, fail(err)
	}
	list, secret, err := parseKeys(data)
	if err != nil {
		return nil, fail(fmt.Errorf("%s: %w", path, err))
	}
	if secret && fi.Mode().Perm()&0o077 != 0 {
		return nil, fail(fmt.Errorf("%s holds secret keys and has mode %04o; chmod 600 %s", path, fi.Mode().Perm(), path))
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return nil, fail(fmt.Errorf("%s can be written by others than its owner (mode %04o); whoever writes there makes tokens: chmod go-w %s", path, fi.Mode().Perm(), path))
	}
	return list, nil
}

// fileVersion distinguishes versions of a file without reading it.
type fileVersion struct {
	size  int64 // -1 when there is no file
	mtime time.Time
	file  fs.FileInfo
}

// keyring holds the keys of a JWKS file and stats the file for each token: a
// removed key is invalid at once, without a signal or a watcher.
type keyring struct {
	path string
	keys atomic.Pointer[keys]

	mu   sync.Mutex                  // held while the file is reloaded
	last atomic.Pointer[fileVersion] // the version last seen
}

func statVersion(path string) (fileVersion, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return fileVersion{}, err
	}
	return fileVersion{fi.Size(), fi.ModTime(), fi}, nil
}

func (s *fileVersion) equal(o fileVersion) bool {
	if s.size != o.size || !s.mtime.Equal(o.mtime) {
		return false
	}
	return s.file == nil || os.SameFile(s.file, o.file)
}

func (r *keyring) open(path string) error {
	r.path = path
	s, err := statVersion(path)
	if err != nil {
		return fmt.Errorf("read the keys of tokens: %w; see identity.jwks in toold.json", err)
	}
	list, err := readKeys(path)
	if err != nil {
		return err
	}
	r.last.Store(&s)
	r.keys.Store(&keys{generation: 1, list: list})
	return nil
}

// current returns the valid keys, after a reload if the file has changed.
func (r *keyring) current(log *slog.Logger) *keys {
	s, err := statVersion(r.path)
	if err != nil {
		s = fileVersion{size: -1}
	}
	if r.last.Load().equal(s) {
		return r.keys.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last.Load().equal(s) {
		return r.keys.Load()
	}
	old := r.keys.Load()
	list, err := readKeys(r.path)
	r.last.Store(&s)
	if err != nil {
		log.Error("the new keys of tokens cannot be used; the previous ones stay in use", "file", r.path, "error", err)
		return old
	}
	r.keys.Store(&keys{generation: old.generation + 1, list: list})
	ids := make([]string, len(list))
	for i, k := range list {
		ids[i] = k.KeyID
	}
	log.Info("keys of tokens reloaded", "file", r.path, "kids", strings.Join(ids, " "))
	return r.keys.Load()
}
