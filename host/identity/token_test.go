package identity

import (
	"bytes"
	"compress/flate"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/toold/toold/host/fault"
)

// canary is a secret that must not leak.
const canary = "canary-7f3a-hunter2"

// issuerKeys are made once: RSA keys take a while.
var issuerKeys = func() func() map[string]any {
	made := map[string]any{}
	for _, kid := range []string{"ec-1", "ec-2", "stranger"} {
		made[kid], _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	made["rsa"], _ = rsa.GenerateKey(rand.Reader, 2048)
	made["shared"] = []byte("0123456789abcdef0123456789abcdef")
	return func() map[string]any { return made }
}()

func writeJWKS(t testing.TB, path string, kids ...string) {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, kid := range kids {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: issuerKeys()[kid], KeyID: kid})
	}
	b, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		t.Fatal(err)
	}
}

func signed(t testing.TB, kid string, alg jose.SignatureAlgorithm, claims any) string {
	t.Helper()
	b, ok := claims.([]byte)
	if !ok {
		var err error
		if b, err = json.Marshal(claims); err != nil {
			t.Fatal(err)
		}
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: issuerKeys()[kid], KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	obj, err := s.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := obj.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func encrypted(t testing.TB, kid string, alg jose.KeyAlgorithm, content []byte, zip jose.CompressionAlgorithm) string {
	t.Helper()
	key := issuerKeys()[kid]
	if k, ok := key.(*rsa.PrivateKey); ok {
		key = k.Public()
	}
	if k, ok := key.(*ecdsa.PrivateKey); ok {
		key = k.Public()
	}
	e, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: alg, Key: key, KeyID: kid}, &jose.EncrypterOptions{Compression: zip})
	if err != nil {
		t.Fatal(err)
	}
	obj, err := e.Encrypt(content)
	if err != nil {
		t.Fatal(err)
	}
	out, err := obj.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// claimsOf returns valid claims with some changed; nil removes one.
func claimsOf(change map[string]any) map[string]any {
	c := map[string]any{
		"iss": "https://issuer.test", "aud": []string{"toold"}, "sub": "alice",
		"exp": time.Now().Add(time.Hour).Unix(), "user": "alice", "password": canary,
	}
	for k, v := range change {
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	return c
}

func text(t testing.TB, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newResolver returns a resolver for tokens, and its log.
func newResolver(t testing.TB, kids ...string) (*Resolver, *bytes.Buffer, string) {
	t.Helper()
	dir := t.TempDir()
	jwks := filepath.Join(dir, "jwks.json")
	writeJWKS(t, jwks, kids...)
	var logs bytes.Buffer
	declared := map[string]bool{"user": true, "password": true, "port": true}
	r, err := New(dir, Config{
		JWKS: jwks, Issuer: "https://issuer.test", Audience: "toold", Ignore: []string{"tenant_hint"},
		Declared: func(c string) bool { return declared[c] },
		Logger:   slog.New(slog.NewTextHandler(&logs, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, &logs, jwks
}

// forge replaces the header of a token.
func forge(token, header string) string {
	_, rest, _ := strings.Cut(token, ".")
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + rest
}

func TestTokens(t *testing.T) {
	r, logs, _ := newResolver(t, "ec-1", "rsa", "shared")
	plain := text(t, claimsOf(nil))
	good := map[string]string{
		"signed ES256":            signed(t, "ec-1", jose.ES256, claimsOf(nil)),
		"signed RS256":            signed(t, "rsa", jose.RS256, claimsOf(nil)),
		"signed PS256":            signed(t, "rsa", jose.PS256, claimsOf(nil)),
		"shared key, direct":      encrypted(t, "shared", jose.DIRECT, plain, ""),
		"shared key, wrapped":     encrypted(t, "shared", jose.A256KW, plain, ""),
		"encrypted around signed": encrypted(t, "rsa", jose.RSA_OAEP_256, []byte(signed(t, "ec-1", jose.ES256, claimsOf(nil))), ""),
		"ECDH around signed":      encrypted(t, "ec-1", jose.ECDH_ES, []byte(signed(t, "ec-1", jose.ES256, claimsOf(nil))), ""),
		"ignored claim":           signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"tenant_hint": map[string]any{"a": 1}})),
		"OIDC claims":             signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"email": "a@b.c", "groups": []string{"admins"}, "scope": "everything"})),
	}
	ids := map[string]bool{}
	for name, token := range good {
		for _, heat := range []string{"cold", "warm"} {
			c, err := r.Resolve(token, 1000)
			if err != nil {
				t.Errorf("%s, %s: %v", name, heat, err)
				continue
			}
			if v, _ := c.Claim("password"); v != canary {
				t.Errorf("%s, %s: the claim password is %q", name, heat, v)
			}
			ids[c.ID] = true
		}
	}
	if len(ids) != 1 {
		t.Errorf("one identity has %d ids: %v", len(ids), ids)
	}

	var bomb bytes.Buffer
	w, _ := flate.NewWriter(&bomb, 9)
	w.Write(bytes.Repeat([]byte{'a'}, 50<<20))
	w.Close()
	goodOne := good["signed ES256"]
	deep := goodOne
	for range 4 {
		deep = encrypted(t, "shared", jose.DIRECT, []byte(deep), "")
	}
	for name, tt := range map[string]struct{ token, says string }{
		"expired":             {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"exp": time.Now().Unix() - 1})), "expired"},
		"no exp":              {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"exp": nil})), "no exp"},
		"exp is text":         {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"exp": "tomorrow"})), "exp is not a number"},
		"exp beyond time":     {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"exp": 1e300})), "exp is not a number"},
		"not yet valid":       {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"nbf": time.Now().Unix() + 60})), "not valid before"},
		"wrong issuer":        {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"iss": "https://other.test"})), "iss"},
		"wrong audience":      {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"aud": "other"})), "aud"},
		"nobody":              {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"sub": nil, "user": nil, "password": nil})), "no caller"},
		"extra claim":         {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"is_admin": true})), `"is_admin"`},
		"object claim":        {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"user": map[string]any{"a": 1}})), `"user" is an object`},
		"wrong key":           {forge(signed(t, "stranger", jose.ES256, claimsOf(nil)), `{"alg":"ES256","kid":"ec-1"}`), "signature"},
		"wrong shared key":    {forge(good["shared key, direct"], `{"alg":"dir","enc":"A256GCM","kid":"shared","cty":"x"}`), "decrypts"},
		"unknown kid":         {signed(t, "stranger", jose.ES256, claimsOf(nil)), `kid "stranger"`},
		"alg none":            {forge(goodOne, `{"alg":"none"}`), `algorithm is "none"`},
		"alg none, unsigned":  {base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(plain) + ".", `algorithm is "none"`},
		"HS256 with a key":    {signed(t, "shared", jose.HS256, claimsOf(nil)), `algorithm is "HS256"`},
		"kid of another alg":  {forge(goodOne, `{"alg":"ES256","kid":"rsa"}`), "is for ES256"},
		"alg of another key":  {forge(goodOne, `{"alg":"RS256","kid":"ec-1"}`), "is for RS256"},
		"doubled alg":         {forge(goodOne, `{"alg":"ES256","kid":"ec-1","alg":"ES256"}`), "duplicate"},
		"crit":                {forge(goodOne, `{"alg":"ES256","kid":"ec-1","crit":["b64"],"b64":false}`), "crit"},
		"RSA1_5":              {forge(good["encrypted around signed"], `{"alg":"RSA1_5","enc":"A256GCM","kid":"rsa"}`), "RSA1_5"},
		"password based":      {forge(good["shared key, wrapped"], `{"alg":"PBES2-HS256+A128KW","enc":"A256GCM","p2c":1000000000,"p2s":"AAAA"}`), "PBES2"},
		"doubled claim":       {signed(t, "ec-1", jose.ES256, []byte(`{"sub":"a","exp":9999999999,"sub":"b"}`)), "duplicate"},
		"claims no object":    {encrypted(t, "shared", jose.DIRECT, []byte(`[]`), ""), ""},
		"anyone's encryption": {encrypted(t, "rsa", jose.RSA_OAEP_256, plain, ""), "anyone can do"},
		"encrypted twice":     {encrypted(t, "shared", jose.DIRECT, []byte(encrypted(t, "shared", jose.DIRECT, plain, "")), ""), "more than once"},
		"nested deep":         {deep, "more than once"},
		"signed twice":        {signed(t, "ec-1", jose.ES256, []byte(goodOne)), "another token"},
		"oversized":           {goodOne + strings.Repeat("A", maxToken), "over 16384"},
		"compressed":          {encrypted(t, "shared", jose.DIRECT, plain, jose.DEFLATE), "compressed"},
		"compressed bomb":     {encrypted(t, "shared", jose.DIRECT, bytes.Repeat([]byte{'a'}, 8<<20), jose.DEFLATE), "compressed"},
		"bomb in the open":    {forge(goodOne, `{"alg":"dir","enc":"A256GCM","zip":"DEF"}`) + "." + base64.RawURLEncoding.EncodeToString(bomb.Bytes()[:64]) + ".AA", "compressed"},
		"JSON form":           {`{"payload":"e30","signatures":[]}`, "compact form"},
		"with Bearer":         {"Bearer " + goodOne, "base64url"},
		"padding":             {strings.Replace(goodOne, ".", "=.", 1), "base64url"},
		"no token":            {"x", "compact form"},
		"dots":                {"....", "not a JSON object"},
		"cut":                 {goodOne[:len(goodOne)-8], ""},
		"a byte more":         {goodOne + "A", ""},
	} {
		for _, heat := range []string{"cold", "warm", "after a good one"} {
			if heat == "after a good one" {
				if _, err := r.Resolve(goodOne, 1000); err != nil {
					t.Fatal(err)
				}
			}
			c, err := r.Resolve(tt.token, 1000)
			if code(err) != fault.Unauthenticated {
				t.Errorf("%s, %s: %v as %v, want UNAUTHENTICATED", name, heat, err, c.ID)
				continue
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s, %s: %v, want it to say %q", name, heat, err, tt.says)
			}
			if len(tt.token) > 40 && strings.Contains(err.Error(), tt.token[20:40]) || strings.Contains(err.Error(), canary) {
				t.Errorf("%s: the error holds a part of the token: %v", name, err)
			}
		}
	}
	if logs.Len() > 0 {
		t.Errorf("it logged: %s", logs)
	}
}

// TestOneText: only the canonical text of a token is accepted, signed or encrypted,
// whatever decoders ignore.
func TestOneText(t *testing.T) {
	r, _, _ := newResolver(t, "ec-1", "shared", "rsa")
	outer := map[string]string{
		"signed":          signed(t, "ec-1", jose.ES256, claimsOf(nil)),
		"shared":          encrypted(t, "shared", jose.DIRECT, text(t, claimsOf(nil)), ""),
		"wrapped":         encrypted(t, "shared", jose.A256KW, text(t, claimsOf(nil)), ""),
		"around a signed": encrypted(t, "rsa", jose.RSA_OAEP_256, []byte(signed(t, "ec-1", jose.ES256, claimsOf(nil))), ""),
	}
	refused := func(what, token string) {
		t.Helper()
		if _, err := r.Resolve(token, 1000); code(err) != fault.Unauthenticated {
			t.Errorf("%s: %v, want UNAUTHENTICATED", what, err)
		}
		if in := r.Inspect(token); in.Error == "" || in.Verified {
			t.Errorf("%s: inspected as %+v", what, in)
		}
	}
	for name, token := range outer {
		if _, err := r.Resolve(token, 1000); err != nil {
			t.Fatal(err)
		}
		dots := []int{0, len(token), 1, len(token) - 1}
		for i, c := range token {
			if c == '.' {
				dots = append(dots, i, i+1, i+2)
			}
		}
		for _, extra := range []string{"\n", "\r", "\r\n", " ", "\t", "=", "\x00", "\v", "\u00a0", "\ufeff", "+", "\""} {
			for _, at := range dots {
				refused(fmt.Sprintf("%s with %q at %d", name, extra, at), token[:at]+extra+token[at:])
			}
			if name == "signed" {
				for _, at := range dots {
					refused(fmt.Sprintf("within an encryption, with %q at %d", extra, at), encrypted(t, "shared", jose.DIRECT, []byte(token[:at]+extra+token[at:]), ""))
				}
			}
		}
		// Non-zero trailing bits.
		parts := strings.Split(token, ".")
		for i, s := range parts {
			if len(s)%4 == 0 {
				continue
			}
			const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
			last := strings.IndexByte(alphabet, s[len(s)-1])
			twin := slices.Clone(parts)
			twin[i] = s[:len(s)-1] + alphabet[last+1:last+2]
			refused(fmt.Sprintf("%s with other bits at the end of part %d", name, i+1), strings.Join(twin, "."))
		}
	}
}

// TestWarmToken: a cached token saves work, but skips no check.
func TestWarmToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, jwks := newResolver(t, "ec-1")
		declared := true
		r.cfg.Declared = func(string) bool { return declared }
		token := signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"nbf": time.Now().Unix()}))
		must := func(what string, want bool) {
			t.Helper()
			if _, err := r.Resolve(token, 1000); (err == nil) != want {
				t.Errorf("%s: %v", what, err)
			}
		}
		must("cold", true)
		if n := r.tokens.EstimatedSize(); n != 1 {
			t.Errorf("%d tokens are remembered", n)
		}
		must("warm", true)
		declared = false
		must("warm, when the claim's tool is gone", false)
		declared = true
		must("and back", true)
		time.Sleep(time.Hour - time.Second)
		must("warm, a second before exp", true)
		job, _ := r.Resolve(token, 1000)
		if err := job.Current(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := job.Current(); code(err) != fault.Unauthenticated {
			t.Errorf("what was begun before exp goes on after it: %v", err)
		}
		must("warm, at exp", false)
		if n := r.tokens.EstimatedSize(); n != 0 {
			t.Errorf("%d tokens are remembered after exp", n)
		}
		token = signed(t, "ec-1", jose.ES256, claimsOf(nil))
		must("a new token", true)
		writeJWKS(t, jwks, "ec-2")
		must("warm, after its key was rotated out", false)
	})
}

// TestNothingKept: the contents of a resolver do not reveal a claim.
func TestNothingKept(t *testing.T) {
	r, _, _ := newResolver(t, "shared")
	token := encrypted(t, "shared", jose.DIRECT, text(t, claimsOf(nil)), "")
	if _, err := r.Resolve(token, 1000); err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, m := range r.tokens.All() {
		n++
		for what, b := range map[string][]byte{"name": name[:], "value": m.sealed} {
			for _, secret := range []string{canary, "alice", token[len(token)-20:]} {
				if bytes.Contains(b, []byte(secret)) {
					t.Errorf("the %s of what is remembered holds %q", what, secret)
				}
			}
		}
	}
	if n != 1 {
		t.Fatalf("%d tokens are remembered", n)
	}
	// Another token does not decrypt it.
	_, other, err := r.cacheKey(token + "A")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.tokens.All() {
		if b, err := other.Open(nil, nil, m.sealed, nil); err == nil {
			t.Errorf("another token opens it: %s", b)
		}
	}
}

// TestRotation: two keys are valid at a time, a new file takes effect at once, and
// an invalid one leaves the previous keys valid.
func TestRotation(t *testing.T) {
	r, logs, jwks := newResolver(t, "ec-1")
	one := signed(t, "ec-1", jose.ES256, claimsOf(nil))
	two := signed(t, "ec-2", jose.ES256, claimsOf(nil))
	want := func(when string, first, second bool) {
		t.Helper()
		for token, want := range map[string]bool{one: first, two: second} {
			if _, err := r.Resolve(token, 1); (err == nil) != want {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	want("before", true, false)
	writeJWKS(t, jwks, "ec-1", "ec-2")
	want("both", true, true)
	if err := os.WriteFile(jwks, []byte(`{"keys":[`), 0o600); err != nil {
		t.Fatal(err)
	}
	want("half a file", true, true)
	if err := os.Remove(jwks); err != nil {
		t.Fatal(err)
	}
	want("no file", true, true)
	writeJWKS(t, jwks, "ec-2")
	want("after", false, true)
	if err := os.Chmod(jwks, 0o644); err != nil {
		t.Fatal(err)
	}
	if s := logs.String(); strings.Count(s, "cannot be used") != 2 || strings.Count(s, "reloaded") != 2 {
		t.Errorf("it logged: %s", s)
	}
	if strings.Contains(logs.String(), `"d"`) {
		t.Errorf("a key is in the log: %s", logs)
	}
}

func TestBadJWKS(t *testing.T) {
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		text, says string
		mode       os.FileMode
	}{
		"no JSON":          {"keys", "not a JWKS", 0o600},
		"empty":            {`{"keys":[]}`, "0 keys", 0o600},
		"unknown kind":     {`{"keys":[{"kty":"XYZ"}]}`, "key 0", 0o600},
		"short secret":     {`{"keys":[{"kty":"oct","k":"AAAA"}]}`, "secret of 3 bytes", 0o600},
		"secret for all":   {`{"keys":[{"kty":"oct","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}`, "chmod 600", 0o644},
		"others can write": {`{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`, "go-w", 0o622},
		"point elsewhere":  {`{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"}]}`, "key 0", 0o600},
	} {
		path := filepath.Join(dir, "jwks.json")
		os.Remove(path)
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := New(dir, Config{JWKS: path})
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "MDEyMzQ1") {
			t.Errorf("%s: the error holds the key: %v", name, err)
		}
	}
	if _, err := New(dir, Config{JWKS: filepath.Join(dir, "none")}); err == nil {
		t.Error("a JWKS file that is not there was taken")
	}
}

// TestInspect: Inspect shows the error, and no private claim.
func TestInspect(t *testing.T) {
	r, _, _ := newResolver(t, "ec-1", "shared")
	for name, tt := range map[string]struct {
		token    string
		verified bool
		err      string
	}{
		"good":     {signed(t, "ec-1", jose.ES256, claimsOf(nil)), true, ""},
		"shared":   {encrypted(t, "shared", jose.DIRECT, text(t, claimsOf(nil)), ""), true, ""},
		"expired":  {signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"exp": 1})), true, "expired"},
		"stranger": {signed(t, "stranger", jose.ES256, claimsOf(nil)), false, "kid"},
		"rubbish":  {"rubbish", false, "neither"},
	} {
		in := r.Inspect(tt.token)
		if in.Verified != tt.verified || tt.err == "" && (in.Error != "" || in.Caller == "") || !strings.Contains(in.Error, tt.err) {
			t.Errorf("%s: %+v", name, in)
		}
		if b := fmt.Sprintf("%+v", in); strings.Contains(b, canary) || strings.Contains(b, "password:alice") {
			t.Errorf("%s: it shows a private claim: %s", name, b)
		}
		if name != "rubbish" && (in.Claims["sub"] != "alice" || in.Claims["password"] != "(hidden)") {
			t.Errorf("%s: %v", name, in.Claims)
		}
	}
}

func TestReadOnlyClaim(t *testing.T) {
	r, _, _ := newResolver(t, "ec-1")
	for value, want := range map[any]bool{true: true, false: false, "true": true, "false": false, 1: true, 0: false, "yes": true} {
		c, err := r.Resolve(signed(t, "ec-1", jose.ES256, claimsOf(map[string]any{"read_only": value})), 1)
		if err != nil || c.ReadOnly != want {
			t.Errorf("read_only %v: %v, %v", value, c.ReadOnly, err)
		}
	}
}

// FuzzToken: any token gives a result or UNAUTHENTICATED, the same with a cold and
// a warm cache, and no error contains the token.
func FuzzToken(f *testing.F) {
	r, _, _ := newResolver(f, "ec-1", "rsa", "shared")
	good := signed(f, "ec-1", jose.ES256, claimsOf(nil))
	whole := encrypted(f, "shared", jose.DIRECT, text(f, claimsOf(nil)), "")
	around := encrypted(f, "rsa", jose.RSA_OAEP_256, []byte(good), "")
	for _, s := range []string{
		good, whole, around,
		"....", "..", "e30.e30.", forge(good, `{"alg":"none"}`), forge(good, `{"alg":"ES256","kid":["a"]}`),
		forge(good, `{"alg":"ECDH-ES","enc":"A256GCM","epk":{}}`) + ".A.A",
	} {
		f.Add(s)
	}
	f.Add(whole + "\n")
	f.Fuzz(func(t *testing.T, token string) {
		_, cold := r.Resolve(token, 1)
		_, warm := r.Resolve(token, 1)
		if (cold == nil) != (warm == nil) {
			t.Fatalf("cold %v, warm %v", cold, warm)
		}
		if cold == nil {
			for s := range strings.SplitSeq(token, ".") {
				if b, err := base64.RawURLEncoding.DecodeString(s); err != nil || base64.RawURLEncoding.EncodeToString(b) != s {
					t.Fatalf("%q is taken, and nobody can have issued it so", token)
				}
			}
			return
		}
		if code(cold) != fault.Unauthenticated {
			t.Fatalf("%v", cold)
		}
		if len(token) > 100 && strings.Contains(cold.Error(), token[len(token)-60:]) {
			t.Fatalf("the error holds the token: %v", cold)
		}
		r.Inspect(token)
	})
}

// FuzzClaims: correctly signed claims may still be malformed.
func FuzzClaims(f *testing.F) {
	r, _, _ := newResolver(f, "shared")
	for _, s := range []string{`{}`, `null`, `{"exp":1e400}`, `{"exp":-1}`, `{"exp":9999999999,"sub":"a","aud":"toold","iss":"https://issuer.test"}`, `{"exp":null}`, `[1]`, `{"exp":1,"nbf":{}}`, `{"iss":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, claims []byte) {
		c, err := r.readClaims(claims)
		if err == nil && (c.expires.IsZero() || c.id == "") {
			t.Fatalf("%q was taken as %+v", claims, c)
		}
		if err != nil && code(err) != fault.Unauthenticated {
			t.Fatalf("%q: %v", claims, err)
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	r, _, _ := newResolver(b, "shared", "ec-1")
	r.cfg.AllowUID = true
	for name, token := range map[string]string{
		"uid": "", "signed": signed(b, "ec-1", jose.ES256, claimsOf(nil)),
		"encrypted": encrypted(b, "shared", jose.A256KW, text(b, claimsOf(nil)), ""),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := r.Resolve(token, 1000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
