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
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
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
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/strictjson"
)

// overflowUID is what the kernel reports for a user without a mapping in this
// namespace. Many users may share it, so it identifies none.
const overflowUID = 65534

const (
	keyFile   = "host.key"
	keyIDFile = "host.key.id" // tells which key keyFile has to be
)

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

func audience(raw json.RawMessage, want string) bool {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one == want
	}
	var many []string
	return json.Unmarshal(raw, &many) == nil && slices.Contains(many, want)
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

// maxTokens is how many verified tokens are cached.
const maxTokens = 10_000

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

// loadKey reads the host's key, or makes one in a folder that had none. Beside it is
// keyIDFile, by which a key that is missing or was replaced is noticed: with another one
// every caller has another ID, and a call with an idempotency key that has run runs again.
func loadKey(path string) ([]byte, error) {
	idPath := filepath.Join(filepath.Dir(path), keyIDFile)
	id, err := regular.ReadFile(idPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what is known of the host key: %w", err)
	}
	key, err := readKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		if id != nil {
			return nil, fmt.Errorf("the host key %s is missing, and sessions, records and homes are found by it: without it, calls that have run would run again; restore it from a backup, or remove %s to start without them", path, idPath)
		}
		if err = makeKey(path); err == nil {
			key, err = readKey(path)
		}
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(key)
	want := hex.EncodeToString(sum[:16])
	switch {
	case id == nil:
		// The key is on the disk first.
		if err := errors.Join(regular.SyncDir(filepath.Dir(path)), regular.Replace(idPath, []byte(want+"\n"))); err != nil {
			return nil, fmt.Errorf("record which host key this is: %w", err)
		}
	case strings.TrimSpace(string(id)) != want:
		return nil, fmt.Errorf("the host key %s is another one than before, and sessions, records and homes are found by it: with this one, calls that have run would run again; restore the earlier one from a backup, or remove %s to go on with this one", path, idPath)
	}
	return key, nil
}

// makeKey makes a key where there is none. It writes a temporary file and links it, so
// that concurrent starts end with one complete key.
func makeKey(path string) error {
	key := make([]byte, 32)
	rand.Read(key)
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return fmt.Errorf("make the host key: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, werr := tmp.Write(key)
	if err := errors.Join(werr, tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("make the host key: %w", err)
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the host key: %w", err)
	}
	return nil
}

// readKey reads a key that nobody else can read.
func readKey(path string) ([]byte, error) {
	f, err := regular.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) {
		err = fmt.Errorf("%w; put the file itself there instead of a link", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the host key: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat() // of the open file, not the path
	if err != nil {
		return nil, fmt.Errorf("read the host key: %w", err)
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("read the host key: %s is %v; `chmod 600 %s` if nobody else has read it, else remove it and %s, with which callers get new IDs", path, fi.Mode(), path, keyIDFile)
	}
	if s, ok := fi.Sys().(*syscall.Stat_t); ok && s.Nlink > 1 && !isTempLink(path, fi) {
		return nil, fmt.Errorf("read the host key: %s has %d names (hard links), and whoever reads it by another one can tell who calls; remove them if nobody has read it, else remove it and %s", path, s.Nlink, keyIDFile)
	}
	key, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return nil, fmt.Errorf("read the host key: %w", err)
	}
	if len(key) != 32 {
		return nil, fmt.Errorf("read the host key: %s has %d bytes and not 32; restore it from a backup, or remove it and %s to make a new one; earlier sessions and records are then no longer found", path, len(key), keyIDFile)
	}
	return key, nil
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
