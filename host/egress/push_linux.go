package egress

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/toold/toold/host/gitwire"
	"github.com/toold/toold/pdk/abi"
)

// maxDecoded is how much of a push whose body was compressed is kept to tell its
// length, in bytes. Git compresses what is small.
const maxDecoded = 4 << 20

// isPush reports whether out, which is not for reading, may be a push, and to what.
func isPush(out *http.Request) (repository string, ok bool) {
	if out.Method == http.MethodGet || out.Method == http.MethodHead {
		return "", false
	}
	return gitwire.PushPath(out.URL.RequestURI())
}

// mayBePush reports whether some server may treat out, which isPush does not recognize,
// as a push: servers fold cases, cut parameters off, and decode more than once, and some
// go by the type of the body.
func mayBePush(out *http.Request) bool {
	if strings.Contains(strings.ToLower(strings.Join(out.Header["Content-Type"], ",")), "git-receive-pack") {
		return true
	}
	if out.Method == http.MethodGet || out.Method == http.MethodHead {
		return false
	}
	at, _, _ := strings.Cut(out.URL.RequestURI(), "?")
	for range 4 { // more often than servers decode
		for segment := range strings.FieldsFuncSeq(at, func(c rune) bool { return c == '/' || c == '\\' }) {
			segment, _, _ = strings.Cut(segment, ";")
			segment = strings.TrimFunc(strings.ToLower(segment), func(c rune) bool { return c <= ' ' || c == '.' })
			if segment == "git-receive-pack" {
				return true
			}
		}
		decoded, err := url.PathUnescape(at)
		if err != nil || decoded == at {
			break
		}
		at = decoded
	}
	return false
}

// judgePush asks about the push to repository that out makes. What is sent on is
// what was judged, written anew, and held until then. The error of the policy is refused, that of the
// request malformed.
func (p *pair) judgePush(ctx context.Context, repository string, out *http.Request, held *holding) (refused, malformed error) {
	encodings := out.Header["Content-Encoding"]
	body := &countingReader{r: out.Body}
	decoded, err := gitwire.Decode(body, strings.Join(encodings, ", "))
	if err != nil {
		return nil, err
	}
	begin := held.reader(decoded, p.readBy)
	push, err := gitwire.ReadPush(begin)
	if err != nil {
		return nil, err // and the read deadline stays, as in sign
	}
	p.readBy(time.Time{})
	if len(push.Refs) > 0 {
		facts := &abi.Wire{
			On: abi.WirePush, Host: p.connection.Host, Port: int(p.connection.Port), Path: repository,
			Remote:      out.URL.Scheme + "://" + out.URL.Host + repository,
			PushOptions: push.Options,
		}
		for _, ref := range push.Refs {
			facts.Refs = append(facts.Refs, abi.WireRef{Name: ref.Name, Old: ref.Old, New: ref.New, Force: forced(ref)})
		}
		if err := p.run.rules.Ask(ctx, facts); err != nil {
			return err, nil
		}
	}
	head := push.Head()
	delete(out.Header, "Content-Encoding")
	switch {
	case !push.HasPack():
		var more [1]byte
		if n, _ := io.ReadFull(begin, more[:]); n > 0 {
			return nil, fmt.Errorf("read a push: something follows it, where no pack is needed")
		}
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(head)), int64(len(head))
	case len(encodings) > 0:
		rest, err := io.ReadAll(io.LimitReader(begin, maxDecoded))
		if err != nil {
			return nil, fmt.Errorf("read a push: %w", err)
		}
		head = append(head, rest...)
		out.ContentLength = int64(len(head))
		out.Body = io.NopCloser(bytes.NewReader(head))
		if len(rest) == maxDecoded {
			out.ContentLength, out.Body = -1, io.NopCloser(io.MultiReader(bytes.NewReader(head), decoded))
		}
	default:
		if out.ContentLength > 0 {
			out.ContentLength += int64(len(head)) - body.n
		}
		out.Body = io.NopCloser(io.MultiReader(bytes.NewReader(head), decoded))
	}
	p.readBy(time.Time{})
	return nil, nil
}

// forced reports whether ref loses commits; nil: that is unknown without the
// commits.
func forced(ref gitwire.Ref) *bool {
	if !ref.Created() && !ref.Deleted() {
		return nil
	}
	is := ref.Deleted()
	return &is
}

// countingReader counts the bytes that are read.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
