package identity

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

const (
	// maxToken is the largest token that is read, in bytes. Tokens with a few
	// claims have one to two thousand.
	maxToken = 16 << 10
	// maxTokens is how many verified tokens are cached.
	maxTokens = 10_000
)

// The allowed algorithms are fixed: a token cannot select one that its key is not
// for. Signatures are asymmetric only. Anyone can encrypt for a public key, so
// such a token must contain a signed one.
var (
	signatures   = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.ES384, jose.EdDSA}
	secretKeys   = []jose.KeyAlgorithm{jose.DIRECT, jose.A256KW, jose.A256GCMKW}
	publicKeys   = []jose.KeyAlgorithm{jose.RSA_OAEP_256, jose.ECDH_ES, jose.ECDH_ES_A256KW}
	encryptions  = []jose.ContentEncryption{jose.A128GCM, jose.A256GCM, jose.A128CBC_HS256, jose.A256CBC_HS512}
	keyWrappings = slices.Concat(secretKeys, publicKeys)
)

func refuse(format string, a ...any) *fault.Error {
	return fault.Errorf(fault.Unauthenticated, "the token is refused: "+format, a...)
}

// header holds the members of a token's protected header that are checked before
// any key is used.
type header struct {
	Alg  string
	Enc  string
	Kid  string
	Typ  string
	Cty  string
	Zip  json.RawMessage
	Crit json.RawMessage
}

// readHeader reads and checks the header of a compact token. encrypted reports a
// JWE.
func readHeader(token string) (h header, encrypted bool, err error) {
	if len(token) > maxToken {
		return h, false, refuse("it is over %d bytes", maxToken)
	}
	switch strings.Count(token, ".") {
	case 2:
	case 4:
		encrypted = true
	default:
		return h, false, refuse("it is neither a signed nor an encrypted JWT; give the token alone, in compact form, without \"Bearer\"")
	}
	segments, err := readSegments(token)
	if err != nil {
		return h, false, err
	}
	raw := segments[0]
	// With a duplicate name, a library could read another value than this code.
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(raw, &members); err != nil {
		return h, false, refuse("its header is not a JSON object without duplicate names")
	}
	for name, to := range map[string]*string{"alg": &h.Alg, "enc": &h.Enc, "kid": &h.Kid, "typ": &h.Typ, "cty": &h.Cty} {
		if v, ok := members[name]; ok {
			if err := strictjson.Unmarshal(v, to); err != nil {
				return h, false, refuse("%s in its header is not a string", name)
			}
		}
	}
	h.Zip, h.Crit = members["zip"], members["crit"]
	switch {
	case h.Zip != nil:
		return h, false, refuse("it is compressed; issue it without zip")
	case h.Crit != nil:
		return h, false, refuse("its header asks for extensions (crit), and none is supported")
	case encrypted && !slices.Contains(keyWrappings, jose.KeyAlgorithm(h.Alg)):
		return h, false, refuse("its key algorithm is %s; use one of %s", clip(h.Alg), joinNames(keyWrappings))
	case encrypted && !slices.Contains(encryptions, jose.ContentEncryption(h.Enc)):
		return h, false, refuse("its encryption is %s; use one of %s", clip(h.Enc), joinNames(encryptions))
	case !encrypted && !slices.Contains(signatures, jose.SignatureAlgorithm(h.Alg)):
		return h, false, refuse("its algorithm is %s; use one of %s", clip(h.Alg), joinNames(signatures))
	}
	return h, encrypted, nil
}

// readSegments decodes the segments of a compact token. It accepts only canonical
// base64url: decoders ignore line breaks and trailing bits, so that different
// texts would be the same token.
func readSegments(token string) (segments [][]byte, err error) {
	for i, s := range strings.Split(token, ".") {
		if j := strings.IndexFunc(s, func(r rune) bool { return !isBase64URL(r) }); j >= 0 {
			return nil, refuse("byte %d of its part %d is %+q, which is not base64url; give the token alone, without a line break or a space around it", j, i+1, s[j])
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(s)
		if err != nil {
			return nil, refuse("its part %d is not base64url; was it cut?", i+1)
		}
		segments = append(segments, b)
	}
	return segments, nil
}

func isBase64URL(r rune) bool {
	return 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '_'
}

// clip quotes and shortens untrusted text.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.QuoteToASCII(s)
}

func joinNames[S ~string](names []S) string {
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(n))
	}
	return b.String()
}

// openToken verifies or decrypts a token and returns the text of its claims.
func openToken(keys *keys, token string) ([]byte, error) {
	h, encrypted, err := readHeader(token)
	if err != nil {
		return nil, err
	}
	if !encrypted {
		return verify(keys, h, token)
	}
	inner, err := decrypt(keys, h, token)
	if err != nil {
		return nil, err
	}
	if !looksSigned(inner) {
		if !slices.Contains(secretKeys, jose.KeyAlgorithm(h.Alg)) {
			return nil, refuse("it is encrypted for a public key, which anyone can do, and holds no signed token; sign it first, or encrypt it with a shared key (dir, A256KW)")
		}
		return inner, nil
	}
	text := string(inner)
	h, encrypted, err = readHeader(text)
	if err != nil {
		return nil, fmt.Errorf("within the encryption: %w", err)
	}
	if encrypted {
		return nil, refuse("it is encrypted more than once")
	}
	claims, err := verify(keys, h, text)
	if err != nil {
		return nil, err
	}
	return claims, nil
}

// looksSigned reports whether the content of an encrypted token is another token
// instead of an object of claims.
func looksSigned(content []byte) bool {
	t := bytes.TrimLeft(content, " \t\r\n")
	return len(t) > 0 && t[0] != '{'
}

func verify(keys *keys, h header, token string) ([]byte, error) {
	sig, err := jose.ParseSignedCompact(token, signatures)
	if err != nil {
		return nil, refuse("it is malformed")
	}
	found, err := keys.candidates(h, "sig")
	if err != nil {
		return nil, err
	}
	for _, k := range found {
		if claims, err := sig.Verify(k.Public()); err == nil {
			if looksSigned(claims) {
				return nil, refuse("it contains another token instead of claims")
			}
			return claims, nil
		}
	}
	return nil, refuse("its signature is not that of a key of the JWKS file")
}

func decrypt(keys *keys, h header, token string) ([]byte, error) {
	enc, err := jose.ParseEncryptedCompact(token, keyWrappings, encryptions)
	if err != nil {
		return nil, refuse("it is malformed")
	}
	found, err := keys.candidates(h, "enc")
	if err != nil {
		return nil, err
	}
	for _, k := range found {
		if plain, err := enc.Decrypt(k); err == nil {
			return plain, nil
		}
	}
	return nil, refuse("no key of the JWKS file decrypts it")
}

// claims are the claims of a token.
type claims struct {
	// text has the scalar claims.
	text map[string]string
	// private are the sorted names of the claims that no standard registers.
	private   []string
	id        string // see Caller.ID
	expires   time.Time
	notBefore time.Time // zero without nbf
}

// readClaims reads and checks the claims of a verified token, except for their
// validity in time.
func (r *Resolver) readClaims(text []byte) (*claims, error) {
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(text, &members); err != nil {
		return nil, refuse("its claims are not a JSON object without duplicate names")
	}
	c := &claims{text: make(map[string]string, len(members))}
	nested := map[string]bool{}
	for name, raw := range members {
		switch raw[0] {
		case '"':
			var s string
			if err := strictjson.Unmarshal(raw, &s); err != nil {
				return nil, refuse("its claim %s is malformed", clip(name))
			}
			c.text[name] = s
		case '{', '[':
			nested[name] = true
		case 'n': // null counts as absent
			continue
		default:
			c.text[name] = string(raw)
		}
		if !registered[name] {
			c.private = append(c.private, name)
		}
	}
	slices.Sort(c.private)
	if raw, ok := members[sessionClaim]; ok { // also null, which would bind nothing
		if s := c.text[sessionClaim]; raw[0] != '"' || s == "" || s == "default" {
			return nil, refuse("its claim %s is not the id of a session that was made with toolctl session new", sessionClaim)
		}
	}
	var err error
	if c.expires, err = parseDate(members, "exp"); err != nil {
		return nil, err
	}
	if c.expires.IsZero() {
		return nil, refuse("it has no exp; a token must expire")
	}
	if c.notBefore, err = parseDate(members, "nbf"); err != nil {
		return nil, err
	}
	if _, err := parseDate(members, "iat"); err != nil {
		return nil, err
	}
	for _, name := range [...]string{"iss", "sub"} {
		if raw, ok := members[name]; ok && raw[0] != '"' {
			return nil, refuse("its %s is not a string", name)
		}
	}
	issuer, subject := c.text["iss"], c.text["sub"]
	if r.cfg.Issuer != "" && issuer != r.cfg.Issuer {
		return nil, refuse("its iss is not the issuer that this toold expects")
	}
	if r.cfg.Audience != "" && !audience(members["aud"], r.cfg.Audience) {
		return nil, refuse("its aud does not name this toold")
	}
	if err := r.checkDeclared(c); err != nil { // before any error about a claim's value
		return nil, err
	}
	for _, name := range c.private {
		if nested[name] && !slices.Contains(r.cfg.Ignore, name) {
			return nil, refuse("its claim %s is an object or an array; tools take strings, numbers and booleans", clip(name))
		}
	}
	counted := slices.DeleteFunc(slices.Clone(c.private), func(n string) bool { return slices.Contains(r.cfg.Ignore, n) })
	if subject == "" && len(counted) == 0 {
		return nil, refuse("it identifies no caller: it has no sub and no claim that a tool declares")
	}
	// Registered claims that a tool declares are in its fingerprint, not here:
	// an identity does not change with, say, an e-mail address.
	m := hmac.New(sha256.New, r.key)
	writeFields(m, "token", issuer, subject)
	for _, name := range counted {
		writeFields(m, name, c.text[name])
	}
	c.id = hex.EncodeToString(m.Sum(nil)[:16])
	return c, nil
}

// writeFields writes texts with their lengths, so that different lists give
// different bytes.
func writeFields(w interface{ Write([]byte) (int, error) }, texts ...string) {
	for _, t := range texts {
		w.Write(strconv.AppendInt(nil, int64(len(t)), 10))
		w.Write([]byte{':'})
		w.Write([]byte(t))
	}
}

// checkDeclared refuses private claims that no tool declares now: their issuer
// meant them to have an effect, and they would have none.
func (r *Resolver) checkDeclared(c *claims) error {
	for _, name := range c.private {
		if name == readOnly || r.cfg.Declared(name) || slices.Contains(r.cfg.Ignore, name) {
			continue
		}
		return refuse("no tool declares its claim %s; leave it out, declare it in identity of a tool.json, or ignore it with identity.ignore_claims in toold.json", clip(name))
	}
	return nil
}

// checkTime checks exp and nbf.
func (c *claims) checkTime(now time.Time) error {
	if !now.Before(c.expires) {
		return refuse("it expired at %s; get a new one", c.expires.UTC().Format(time.RFC3339))
	}
	if now.Before(c.notBefore) {
		return refuse("it is not valid before %s; check the clocks", c.notBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// parseDate reads a NumericDate; zero if there is none.
func parseDate(members map[string]json.RawMessage, name string) (time.Time, error) {
	raw, ok := members[name]
	if !ok {
		return time.Time{}, nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 0 || f > 253402300799 { // the last second that RFC 3339 can express
		return time.Time{}, refuse("its %s is not a number of seconds since 1970", name)
	}
	f = min(f, 9223372036) // the last second in int64 nanoseconds, in 2262
	sec := int64(f)
	return time.Unix(sec, int64((f-float64(sec))*1e9)), nil
}

func audience(raw json.RawMessage, want string) bool {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one == want
	}
	var many []string
	return json.Unmarshal(raw, &many) == nil && slices.Contains(many, want)
}

// readOnly is the claim that restricts its bearer to reading. No tool needs to
// declare it.
const readOnly = "read_only"

// sessionClaim is the claim that binds its bearer to one session of the identity
// that the other claims are. No tool needs to declare it.
const sessionClaim = "toold_session"

// isReadOnly reports whether the text of a read_only claim or setting means true.
// Only "false", "0" and "" mean false.
func isReadOnly(text string, present bool) bool {
	return present && text != "false" && text != "0" && text != ""
}

// registered are the claims of RFC 7519, OpenID Connect Core, RFC 9068 and RFC
// 8693. A tool may declare one of them.
var registered = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(`
		iss sub aud exp nbf iat jti
		name given_name family_name middle_name nickname preferred_username profile picture website email
		email_verified gender birthdate zoneinfo locale phone_number phone_number_verified address updated_at
		azp nonce auth_time at_hash c_hash s_hash acr amr sid
		client_id scope roles groups entitlements
		act may_act`) {
		m[name] = true
	}
	m[sessionClaim] = true // the identity does not depend on it
	return m
}()

type digest = [sha256.Size]byte

// cachedToken is a verified token. Its claims are encrypted with a key derived from
// the token, so that reading the daemon's memory without the token does not reveal
// them.
type cachedToken struct {
	keyGeneration uint64 // the generation of keys that verified it
	sealed        []byte
}

// cacheKey derives a token's name in the cache and the cipher of its claims.
func (r *Resolver) cacheKey(token string) (digest, cipher.AEAD, error) {
	// One half of the HMAC does not reveal the other.
	m := hmac.New(sha512.New, r.key)
	writeFields(m, "remember", token)
	sum := m.Sum(nil)
	block, err := aes.NewCipher(sum[sha256.Size:])
	if err != nil {
		return digest{}, nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return digest(sum[:sha256.Size]), aead, err
}

func (r *Resolver) resolveToken(token string) (Caller, error) {
	if len(token) > maxToken { // before hashing it
		return Caller{}, refuse("it is over %d bytes", maxToken)
	}
	keys := r.keyring.current(r.cfg.Logger)
	name, aead, err := r.cacheKey(token)
	if err != nil {
		return Caller{}, fault.Errorf(fault.Internal, "remember a token: %w", err)
	}
	if m, ok := r.tokens.GetIfPresent(name); ok && m.keyGeneration == keys.generation {
		if kept, err := aead.Open(nil, nil, m.sealed, nil); err == nil {
			c := unpackClaims(string(kept))
			// Checks of the token and the configuration alone are cached;
			// declared claims and time are checked again.
			if err := r.checkUse(c); err != nil {
				r.tokens.Invalidate(name)
				return Caller{}, err
			}
			return c.caller(), nil
		}
	}
	text, err := openToken(keys, token)
	if err != nil {
		var e *fault.Error
		if errors.As(err, &e) {
			return Caller{}, e
		}
		return Caller{}, refuse("it is malformed")
	}
	c, err := r.readClaims(text)
	if err == nil {
		err = r.checkUse(c)
	}
	if err != nil {
		return Caller{}, err
	}
	r.tokens.Set(name, &cachedToken{keys.generation, aead.Seal(nil, nil, c.pack(), nil)})
	return c.caller(), nil
}

// checkUse makes the checks that every use of a token needs.
func (r *Resolver) checkUse(c *claims) error {
	if err := r.checkDeclared(c); err != nil {
		return err
	}
	return c.checkTime(time.Now())
}

func (c *claims) caller() Caller {
	v, ok := c.text[readOnly]
	caller := Caller{ID: c.id, ReadOnly: isReadOnly(v, ok), claims: c}
	if s := c.text[sessionClaim]; s != "" {
		caller, _ = caller.Bind(s) // it is not bound yet
	}
	return caller
}

// pack encodes the claims compactly.
func (c *claims) pack() []byte {
	var b bytes.Buffer
	number := func(n int64) { b.Write(binary.LittleEndian.AppendUint64(nil, uint64(n))) }
	write := func(s string) { number(int64(len(s))); b.WriteString(s) }
	number(c.expires.UnixNano())
	number(0)
	if !c.notBefore.IsZero() {
		binary.LittleEndian.PutUint64(b.Bytes()[8:], uint64(c.notBefore.UnixNano()))
	}
	write(c.id)
	number(int64(len(c.private)))
	for _, name := range c.private {
		write(name)
	}
	number(int64(len(c.text)))
	for name, text := range c.text {
		write(name)
		write(text)
	}
	return b.Bytes()
}

// unpackClaims decodes the output of pack, which was authenticated by the cipher.
func unpackClaims(s string) *claims {
	number := func() int64 {
		var b [8]byte
		copy(b[:], s)
		s = s[8:]
		return int64(binary.LittleEndian.Uint64(b[:]))
	}
	read := func() (text string) {
		n := number()
		text, s = s[:n], s[n:]
		return text
	}
	c := &claims{expires: time.Unix(0, number())}
	if after := number(); after != 0 {
		c.notBefore = time.Unix(0, after)
	}
	c.id = read()
	c.private = make([]string, number())
	for i := range c.private {
		c.private[i] = read()
	}
	n := number()
	c.text = make(map[string]string, n)
	for range n {
		name := read()
		c.text[name] = read()
	}
	return c
}

// Inspection is what `toolctl token inspect` shows of a token: everything except
// the values of private claims.
type Inspection struct {
	Alg string `json:"alg,omitempty"`
	Enc string `json:"enc,omitempty"`
	Kid string `json:"kid,omitempty"`
	Typ string `json:"typ,omitempty"`
	// Encrypted reports a JWE.
	Encrypted bool `json:"encrypted"`
	// Verified reports that a key of the JWKS file verified or decrypted it.
	// Otherwise the fields below are unauthenticated.
	Verified bool `json:"verified"`
	// Claims has the values of visibleClaims, and "(hidden)" for others.
	Claims map[string]string `json:"claims,omitempty"`
	// Caller is the Caller.ID of an accepted token.
	Caller   string `json:"caller,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Error is why a call with the token would be refused.
	Error string `json:"error,omitempty"`
}

// visibleClaims are the claims whose values are not secret and help debugging.
var visibleClaims = []string{"iss", "sub", "aud", "exp", "nbf", "iat", "jti", readOnly, sessionClaim}

// Inspect checks a token as Resolve does and describes it. It caches nothing.
func (r *Resolver) Inspect(token string) Inspection {
	var in Inspection
	h, encrypted, err := readHeader(token)
	in.Alg, in.Enc, in.Kid, in.Typ, in.Encrypted = clipUnquoted(h.Alg), clipUnquoted(h.Enc), clipUnquoted(h.Kid), clipUnquoted(h.Typ), encrypted
	var text []byte
	if err == nil && r.cfg.JWKS == "" {
		err = fault.Errorf(fault.Unauthenticated, "this toold takes no tokens: identity.jwks is not set in toold.json")
	} else if err == nil {
		text, err = openToken(r.keyring.current(r.cfg.Logger), token)
	}
	in.Verified = err == nil
	if parts := strings.Split(token, "."); text == nil && len(parts) == 3 && len(token) <= maxToken {
		text, _ = base64.RawURLEncoding.DecodeString(parts[1])
	}
	var members map[string]json.RawMessage
	if strictjson.Unmarshal(text, &members) == nil {
		in.Claims = map[string]string{}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			in.Claims[clipUnquoted(name)] = "(hidden)"
			if slices.Contains(visibleClaims, name) {
				in.Claims[name] = clipUnquoted(strings.Trim(string(members[name]), `"`))
			}
		}
		for _, name := range [...]string{"exp", "nbf", "iat"} {
			if t, err := parseDate(members, name); err == nil && !t.IsZero() {
				in.Claims[name] = t.UTC().Format(time.RFC3339)
			}
		}
	}
	if err == nil {
		var c *claims
		if c, err = r.readClaims(text); err == nil {
			err = r.checkUse(c)
		}
		if err == nil {
			in.Caller, in.ReadOnly = c.caller().ID, c.caller().ReadOnly
		}
	}
	if err != nil {
		in.Error = err.Error()
	}
	return in
}

func clipUnquoted(s string) string {
	q := clip(s)
	return q[1 : len(q)-1]
}
