package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/toold/toold/host/fault"
)

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

// writeFields writes texts with their lengths, so that different lists give
// different bytes.
func writeFields(w interface{ Write([]byte) (int, error) }, texts ...string) {
	for _, t := range texts {
		w.Write(strconv.AppendInt(nil, int64(len(t)), 10))
		w.Write([]byte{':'})
		w.Write([]byte(t))
	}
}
