package egress

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/mask"
	"github.com/toold/toold/host/sigv4"
	"github.com/toold/toold/pdk/abi"
)

const (
	contentHash     = "X-Amz-Content-Sha256"
	emptyHash       = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// verify is what is wrong with the signature of r with body, by the specification.
func verify(r *http.Request, body []byte, key, secret, token, service, region string) error {
	fields := map[string]string{}
	kind, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for part := range strings.SplitSeq(rest, ", ") {
		name, value, _ := strings.Cut(part, "=")
		fields[name] = value
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if kind != "AWS4-HMAC-SHA256" || err != nil || time.Since(at).Abs() > time.Minute {
		return fmt.Errorf("%s at %s: %v", kind, date, err)
	}
	scope := date[:8] + "/" + region + "/" + service + "/aws4_request"
	if fields["Credential"] != key+"/"+scope {
		return fmt.Errorf("the credential is %s", fields["Credential"])
	}
	var canonical strings.Builder
	path, query, _ := strings.Cut(r.RequestURI, "?")
	if service != "s3" {
		path = strings.ReplaceAll(path, "%", "%25")
	}
	fmt.Fprintf(&canonical, "%s\n%s\n", r.Method, path)
	var pairs []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair != "" {
			name, value, _ := strings.Cut(pair, "=")
			pairs = append(pairs, name+"="+value)
		}
	}
	slices.Sort(pairs)
	fmt.Fprintf(&canonical, "%s\n", strings.Join(pairs, "&"))
	signed := strings.Split(fields["SignedHeaders"], ";")
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") && !slices.Contains(signed, lower) {
			return fmt.Errorf("%s is not signed", name)
		}
	}
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		fmt.Fprintf(&canonical, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	said := r.Header.Get("X-Amz-Content-Sha256")
	if sum := sha256.Sum256(body); said != hex.EncodeToString(sum[:]) && !(service == "s3" && r.TLS != nil && strings.Contains(said, "UNSIGNED-PAYLOAD")) {
		return fmt.Errorf("the body is said to be %s", said)
	}
	fmt.Fprintf(&canonical, "\n%s\n%s", fields["SignedHeaders"], said)
	mac := func(key []byte, text string) []byte {
		h := hmac.New(sha256.New, key)
		io.WriteString(h, text)
		return h.Sum(nil)
	}
	sum := sha256.Sum256([]byte(canonical.String()))
	k := mac(mac(mac(mac([]byte("AWS4"+secret), date[:8]), region), service), "aws4_request")
	if want := hex.EncodeToString(mac(k, "AWS4-HMAC-SHA256\n"+date+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))); fields["Signature"] != want {
		return fmt.Errorf("the signature is %s, and would be %s of %q", fields["Signature"], want, canonical.String())
	}
	if r.Header.Get("X-Amz-Security-Token") != token {
		return fmt.Errorf("the token is %q", r.Header.Get("X-Amz-Security-Token"))
	}
	return nil
}

// What a program sends without a signature, or with one of its own, has that of the
// daemon; what cannot be signed for sure is not sent.
func TestSigned(t *testing.T) {
	const key, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	for name, tt := range map[string]struct {
		service string
		plain   bool
		token   string
		send    string
		want    string // of what arrives; or, if refused, the status
		payload string
	}{
		"s3":                  {"s3", false, "", "GET /bucket/?prefix=b&list-type=2&x=a+b&e HTTP/1.1\r\n\r\n", "/bucket/?e=&list-type=2&prefix=b&x=a%20b", emptyHash},
		"token":               {"s3", false, "FwoGZXIvYXdzEBYaDExampleSessionToken", "GET / HTTP/1.1\r\n\r\n", "/", emptyHash},
		"names":               {"s3", false, "", "GET /bucket/a+b%2Fc!(1)%c3%bc/%41//x HTTP/1.1\r\n\r\n", "/bucket/a%2Bb%2Fc%21%281%29%C3%BC/A//x", emptyHash},
		"names elsewhere":     {"execute-api", false, "", "GET /a+b%2Fc!(1)%c3%bc/%41 HTTP/1.1\r\n\r\n", "/a%2Bb%2Fc%21%281%29%C3%BC/A", emptyHash},
		"its own":             {"s3", false, "", "GET / HTTP/1.1\r\nAuthorization: AWS4-HMAC-SHA256 Credential=mine\r\nX-Amz-Date: 20200101T000000Z\r\nX-Amz-Security-Token: mine\r\nx_amz_date: mine\r\nX_Amz_Acl: public\r\nX.Amz.Acl: public\r\nX-Amz-Content-Sha256: mine\r\n\r\n", "/", emptyHash},
		"put":                 {"s3", false, "", "PUT /k HTTP/1.1\r\nContent-Type: text/plain\r\nx-amz-acl: private\r\nContent-Length: 4\r\n\r\nbody", "/k", unsignedPayload},
		"range":               {"s3", false, "", "GET /k HTTP/1.1\r\nRange: bytes=0-1\r\n\r\n", "/k", emptyHash},
		"put with a checksum": {"s3", false, "", "PUT /k HTTP/1.1\r\nContent-Encoding: aws-chunked\r\nX-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nX-Amz-Trailer: x-amz-checksum-crc32\r\nContent-Length: 4\r\n\r\nbody", "/k", unsignedTrailer},
		"put without TLS":     {"s3", true, "", "PUT /k HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody", "/k", "hash"},
		"a post":              {"dynamodb", false, "", "POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\nContent-Length: 4\r\n\r\nbody", "/", "hash"},
		"a post in chunks":    {"dynamodb", false, "", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n", "/", "hash"},
		"an empty post":       {"sts", false, "", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "/", "hash"},
		"presigned":           {"s3", false, "", "GET /?X-Amz-Signature=0 HTTP/1.1\r\n\r\n", "400", ""},
		"presigned, old":      {"s3", false, "", "GET /?AWSAccessKeyId=x&Expires=1 HTTP/1.1\r\n\r\n", "400", ""},
		"chunks signed":       {"s3", false, "", "PUT /k HTTP/1.1\r\nX-Amz-Content-Sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD\r\nContent-Length: 4\r\n\r\nbody", "400", ""},
		"chunks not said":     {"s3", false, "", "PUT /k HTTP/1.1\r\nContent-Encoding: gzip, AWS-chunked\r\nContent-Length: 4\r\n\r\nbody", "400", ""},
		"chunks without TLS":  {"s3", true, "", "PUT /k HTTP/1.1\r\nX-Amz-Content-Sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nContent-Length: 4\r\n\r\nbody", "400", ""},
		"two readings":        {"s3", false, "", "GET /?a=1;b=2 HTTP/1.1\r\n\r\n", "400", ""},
		"bad escape":          {"s3", false, "", "GET /?a=%zz HTTP/1.1\r\n\r\n", "400", ""},
		"too much":            {"dynamodb", false, "", fmt.Sprintf("POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", maxHeld+1, strings.Repeat("x", maxHeld+1)), "413", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var bad error
			var got *http.Request
			u := newUpstream(t, !tt.plain, nil)
			u.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if bad = verify(r, b, key, secret, tt.token, tt.service, "eu-central-1"); err != nil {
					bad = err
				}
				got = r
				// As AWS does where a signature is wrong.
				fmt.Fprintf(w, "<SignatureProvided>%s</SignatureProvided><Token>%s</Token>", r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
			})
			var judged []string
			value := key + ":" + secret
			if tt.token != "" {
				value += ":" + tt.token
			}
			s, _, connect, roots := reading(t, u, func(r *Rules) {
				sign, err := sigv4.New(tt.service, "eu-central-1", value)
				if err != nil {
					t.Fatal(err)
				}
				h := r.HTTP
				h.Credentials = []Credential{{Host: h.Hosts[0], Sign: sign, Plain: tt.plain}}
				hidden := [][]byte{[]byte(secret), []byte(tt.token)}
				h.MaskBody = mask.Covering(hidden)
				h.Masks = func(further string) (func(string) string, func(io.Reader) io.Reader) {
					all := append(slices.Clone(hidden), []byte(further))
					return func(text string) string { return string(mask.New(all).Bytes([]byte(text))) }, mask.Covering(all)
				}
				r.Ask = func(_ context.Context, facts *abi.Wire) error {
					judged = append(judged, facts.Method+" "+facts.Path)
					return nil
				}
			})
			defer s.Close()
			raw, errno := connect(u.address())
			if errno != 0 {
				t.Fatal(errno)
			}
			defer raw.Close()
			c := io.ReadWriter(raw)
			if !tt.plain {
				raw.Close()
				c = dial(t, u, connect, roots)
			}
			defer c.(io.Closer).Close()
			line, rest, _ := strings.Cut(tt.send, "\r\n")
			go fmt.Fprintf(c, "%s\r\nHost: localhost:%d\r\n%s", line, u.address().Port(), rest)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			if tt.payload == "" {
				if fmt.Sprint(resp.StatusCode) != tt.want || got != nil {
					t.Errorf("answered %s %s, want %s", resp.Status, b, tt.want)
				}
				return
			}
			if resp.StatusCode != 200 || bad != nil || got == nil {
				t.Fatalf("%s %s: %v", resp.Status, b, bad)
			}
			if got.RequestURI != tt.want || !slices.Equal(judged, []string{got.Method + " " + tt.want}) {
				t.Errorf("sent %s, judged %q, want %s", got.RequestURI, judged, tt.want)
			}
			if said := got.Header.Get(contentHash); said != tt.payload && tt.payload != "hash" {
				t.Errorf("the body is said to be %s, want %s", said, tt.payload)
			}
			if got.Header.Get("X_amz_acl") != "" || got.Header.Get("X.amz.acl") != "" || name == "range" && got.Header.Get("Range") == "" {
				t.Errorf("%v", got.Header)
			}
			_, signature, _ := strings.Cut(got.Header.Get("Authorization"), "Signature=")
			if strings.Contains(string(b), signature) || tt.token != "" && strings.Contains(string(b), tt.token) || !strings.Contains(string(b), "*****") {
				t.Errorf("the program is shown %s", b)
			}
		})
	}
}
