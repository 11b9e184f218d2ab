package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toold/toold/host/form"
	"github.com/toold/toold/host/hostrule"
	"github.com/toold/toold/host/sigv4"
)

// rewrite returns the request that is sent to the host instead of r, or why none is, with the
// status for that refusal.
func rewrite(c *Connection, secure bool, credentials []Credential, r *http.Request) (out *http.Request, status int, why string) {
	scheme, usual := "http", uint16(80)
	if secure {
		scheme, usual = "https", 443
	}
	name, port := hostrule.Split(r.Host)
	switch {
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace || strings.EqualFold(r.Method, "TRACK"):
		return nil, http.StatusMethodNotAllowed, "this method is not passed on"
	case r.URL.IsAbs() || r.URL.Host != "" || r.URL.User != nil || !strings.HasPrefix(r.RequestURI, "/"):
		return nil, http.StatusBadRequest, "its target is not a path"
	case name != c.Host || port == "" && c.Port != usual || port != "" && port != strconv.Itoa(int(c.Port)):
		return nil, http.StatusMisdirectedRequest, fmt.Sprintf("its Host is %q, and the connection was made to %s", clip(r.Host, maxPath), c.Target())
	case hasDots(r.URL.Path):
		return nil, http.StatusBadRequest, "its path has . or .. in it, which servers read in more than one way"
	}
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "h2c") { // that may be ignored
		return nil, http.StatusForbidden, fmt.Sprintf("it asks for another protocol, %q, in which requests could not be read", clip(upgrade, maxPath))
	}
	host := c.Host
	if port != "" {
		host = net.JoinHostPort(c.Host, port)
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	out = r.WithContext(r.Context())
	target := *r.URL
	target.Scheme, target.Host, target.Fragment = scheme, host, ""
	out.URL, out.Host, out.RequestURI = &target, host, ""
	out.Header, out.Trailer, out.Close = r.Header.Clone(), nil, false
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	forThisHop(out.Header)
	if len(credentials) > 0 {
		for name := range out.Header {
			for _, credential := range credentials {
				if credential.Header != "" && sameHeader(name, credential.Header) {
					delete(out.Header, name)
				}
			}
		}
		// Encoded answers, and answers in parts, could contain a credential that would
		// not be found.
		out.Header["Accept-Encoding"] = []string{"identity"}
		if s := signerOf(credentials); s == nil || s.SendsToken() { // a signature alone sends no secret
			delete(out.Header, "Range")
			delete(out.Header, "If-Range")
		}
	}
	if _, said := out.Header["User-Agent"]; !said {
		out.Header["User-Agent"] = nil // instead of that of net/http
	}
	return out, 0, ""
}

// forThisHop removes the hop-by-hop headers from h.
func forThisHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		delete(h, name)
	}
}

// hasDots reports whether a decoded path has a segment . or .., or one that servers may take
// for such.
func hasDots(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment, _, _ = strings.Cut(segment, ";"); segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// signerOf returns the signer of the requests, nil if they are not signed.
func signerOf(credentials []Credential) *sigv4.Signer {
	for _, c := range credentials {
		if c.Sign != nil {
			return c.Sign
		}
	}
	return nil
}

// sign signs out, as sigv4.Signer.Prepare left it with payload. A body that is to be hashed
// is in memory until the host has it. If why is not empty, the request is refused.
func (p *pair) sign(s *sigv4.Signer, out *http.Request, payload string) (signature string, status int, why string) {
	if payload == "" {
		h := &holding{run: p.run}
		body, err := h.hold(out.Body, p.readBy)
		if err != nil {
			h.end()
			// The read deadline stays: the rest of the body is not waited for.
			switch status := heldStatus(err); {
			case status != 0:
				return "", status, err.Error()
			case errors.Is(err, form.ErrOverridden):
				return "", http.StatusBadRequest, err.Error()
			}
			return "", http.StatusBadRequest, "its body has no end"
		}
		p.readBy(time.Time{})
		payload = body.hash
		if out.ContentLength, out.Body = body.size, body; body.size == 0 {
			h.end()
			out.Body = http.NoBody
		}
	}
	signature, err := s.Sign(out, payload, time.Now())
	if err != nil {
		out.Body.Close()
		return "", http.StatusBadGateway, "it cannot be signed: " + err.Error()
	}
	return signature, 0, ""
}

// signed signs the request, if there is a signer, and returns the maskers for its answer.
func (p *pair) signed(by *sigv4.Signer, out *http.Request, payload string) (hide masks, status int, why string) {
	h := p.run.rules.HTTP
	hide = masks{h.MaskText, h.MaskBody}
	if by == nil {
		return hide, 0, ""
	}
	signature, status, why := p.sign(by, out, payload)
	if why == "" && h.Masks != nil { // whoever sees it could send the request again
		hide.text, hide.body = h.Masks(signature)
	}
	return hide, status, why
}

// masks hide credentials; either may be nil.
type masks struct {
	text func(string) string
	body func(io.Reader) io.Reader
}

func (m masks) mask(text string) string {
	if m.text != nil {
		return m.text(text)
	}
	return text
}

func (m masks) header(h http.Header) http.Header {
	masked := make(http.Header, len(h))
	for name, list := range h {
		for _, v := range list {
			name := m.mask(name)
			masked[name] = append(masked[name], m.mask(v))
		}
	}
	return masked
}
