package identity

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/strictjson"
)

// maxToken is the largest token that is read, in bytes. Tokens with a few claims have
// one to two thousand.
const maxToken = 16 << 10

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

func clipUnquoted(s string) string {
	q := clip(s)
	return q[1 : len(q)-1]
}
