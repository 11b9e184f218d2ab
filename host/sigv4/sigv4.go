// Package sigv4 signs HTTP requests as AWS has it, so that what is signed is what was
// judged: Prepare writes a request in the one form in which a service reads it, its
// caller judges that, and Sign refuses where the signature would be of another one. The
// arithmetic is that of AWS's own library.
package sigv4

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	contentHash     = "X-Amz-Content-Sha256"
	emptyHash       = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	// unsignedTrailer is for bodies in chunks that are not signed, with a checksum
	// behind them.
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// Signer signs requests with AWS Signature Version 4. It is safe for concurrent use.
type Signer struct {
	Service, Region string
	credentials     aws.Credentials
	signer          *v4.Signer
}

// New returns a Signer for a service in a region. value is "ACCESS_KEY:SECRET_KEY" or
// "ACCESS_KEY:SECRET_KEY:SESSION_TOKEN". Errors do not repeat it.
func New(service, region, value string) (*Signer, error) {
	key, rest, _ := strings.Cut(value, ":")
	secret, token, _ := strings.Cut(rest, ":")
	if len(key) < 3 || secret == "" || strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' }) || strings.ContainsAny(key, "/,=") {
		return nil, errors.New(`it must be "ACCESS_KEY:SECRET_KEY", or "ACCESS_KEY:SECRET_KEY:SESSION_TOKEN", on one line`)
	}
	return &Signer{service, region, aws.Credentials{AccessKeyID: key, SecretAccessKey: secret, SessionToken: token}, v4.NewSigner(func(o *v4.SignerOptions) {
		// What is escaped in a path of S3 is so once.
		o.DisableURIPathEscaping = service == "s3"
	})}, nil
}

// SendsToken reports whether requests contain the token of a session, which is a secret; the
// keys are not sent.
func (s *Signer) SendsToken() bool { return s.credentials.SessionToken != "" }

// signedHeaders are those of a signature that a process may have made itself, with
// what only makes sense with one.
var signedHeaders = []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256", "X-Amz-Region-Set", "X-Amz-S3session-Token", "Date"}

// presigned are the names of parameters, in lower case, that are a signature.
var presigned = []string{"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature", "x-amz-security-token", "awsaccesskeyid", "signature"}

// Plain returns the name of a header as read by servers that ignore case and treat all
// punctuation alike, since they turn names into variables.
func Plain(name string) string {
	return strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(name))
}

// Prepare converts out, which is not judged yet, to the one form in which it can be signed, or
// returns why that is impossible. payload replaces the hash of its body; if it is empty, the
// body is hashed.
func (s *Signer) Prepare(out *http.Request) (payload, why string) {
	query, err := url.ParseQuery(out.URL.RawQuery)
	if err != nil {
		return "", "its query can be read in more than one way, and so not be signed"
	}
	for name := range query {
		if slices.Contains(presigned, strings.ToLower(name)) {
			return "", "its query has a signature (" + strings.ToLower(name) + "), and toold signs it; have the program sign nothing, as aws --no-sign-request does"
		}
	}
	declared := out.Header.Get(contentHash)
	for name := range out.Header {
		if slices.ContainsFunc(signedHeaders, func(other string) bool { return Plain(name) == Plain(other) }) {
			delete(out.Header, name)
		}
	}
	streamed := strings.HasPrefix(declared, "STREAMING-") || strings.Contains(strings.ToLower(strings.Join(out.Header["Content-Encoding"], ",")), "aws-chunked")
	// What proves the body is only left out where TLS does, and the service takes it.
	unsigned := s.Service == "s3" && out.URL.Scheme == "https"
	switch {
	case streamed && (declared != unsignedTrailer || !unsigned):
		return "", "its body is in chunks that are signed one by one, which toold does not do; have the program sign nothing, as aws --no-sign-request does"
	case streamed:
		payload = unsignedTrailer
	case out.Body == http.NoBody:
		payload = emptyHash
	case unsigned:
		payload = unsignedPayload
	}
	// What AWS names has to be signed, also to a server that reads more as that.
	for name := range out.Header {
		if strings.HasPrefix(Plain(name), "x-amz-") && !strings.HasPrefix(strings.ToLower(name), "x-amz-") {
			delete(out.Header, name)
		}
	}
	out.URL.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	out.URL.ForceQuery = false
	if out.URL.Path, out.URL.RawPath, err = canonicalPath(out.URL.EscapedPath()); err != nil {
		return "", "its path cannot be read"
	}
	usual := map[string]string{"http": ":80", "https": ":443"}[out.URL.Scheme]
	out.Host = strings.TrimSuffix(out.Host, usual)
	out.URL.Host = out.Host
	return payload, ""
}

// canonicalPath returns a path with its segments escaped as AWS does, with no segment added or
// removed.
func canonicalPath(escaped string) (path, raw string, err error) {
	segments := strings.Split(escaped, "/")
	for i, segment := range segments {
		plain, err := url.PathUnescape(segment)
		if err != nil {
			return "", "", err
		}
		segments[i] = escapeAll(plain)
	}
	raw = strings.Join(segments, "/")
	path, err = url.PathUnescape(raw)
	return path, raw, err
}

// escapeAll escapes all but the unreserved characters of RFC 3986.
func escapeAll(s string) string {
	var b strings.Builder
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}

// Sign adds a signature to out, as Prepare left it. It covers what the host must be able to
// rely on: method, path, query, Host, the body's type and what AWS prescribes.
func (s *Signer) Sign(out *http.Request, payload string, now time.Time) (signature string, err error) {
	signed := &http.Request{Method: out.Method, URL: out.URL, Host: out.Host, Header: http.Header{contentHash: {payload}}}
	for name, list := range out.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") || lower == "content-type" || lower == "content-md5" {
			signed.Header[name] = list
		}
	}
	before := *out.URL
	if err := s.signer.SignHTTP(out.Context(), s.credentials, signed, payload, s.Service, s.Region, now); err != nil {
		return "", err
	}
	if *out.URL != before || signed.Host != out.Host {
		return "", errors.New("it would be sent as another one than was judged")
	}
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", contentHash} {
		if list, ok := signed.Header[name]; ok {
			out.Header[name] = list
		}
	}
	_, signature, _ = strings.Cut(signed.Header.Get("Authorization"), "Signature=")
	return signature, nil
}
