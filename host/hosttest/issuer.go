package hosttest

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer makes tokens for a daemon whose configuration names JWKS.
type Issuer struct {
	JWKS string // the file
	key  []byte
}

// NewIssuer makes an issuer with one shared key.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{JWKS: filepath.Join(t.TempDir(), "jwks.json"), key: make([]byte, 32)}
	rand.Read(i.key)
	b, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key, KeyID: "shared"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(i.JWKS, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

// Token is an encrypted token with these claims. It is good for an hour where
// they have no exp.
func (i *Issuer) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	b, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.DIRECT, Key: i.key, KeyID: "shared"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := e.Encrypt(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := obj.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return s
}
