package fetch

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/toold/toold/host/guest"
)

func TestHostMatch(t *testing.T) {
	g := &Grant{Hosts: []string{"API.example.com", "*.wild.example", "only.example:8443", "[::1]:80"}}
	for u, want := range map[string][2]bool{
		"https://api.example.com/x":   {true, true},
		"https://api.example.com./x":  {true, true},
		"https://xapi.example.com/":   {},
		"https://a.wild.example/":     {true, false},
		"https://a.b.wild.example/":   {true, false},
		"https://wild.example/":       {},
		"https://evilwild.example/":   {},
		"https://only.example:8443/":  {true, true},
		"https://only.example/":       {},
		"http://[::1]/":               {true, true},
		"https://api.example.com.ev/": {},
	} {
		p, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if ok, named := g.hostMatch(p); ok != want[0] || named != want[1] {
			t.Errorf("%s: %v, %v, want %v", u, ok, named, want)
		}
	}
}

// A guest reaches what is granted, nothing else, on every hop.
func TestFetch(t *testing.T) {
	const token = "t0ken-of-the-first-host"
	var other *httptest.Server
	seen := map[string]string{}
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen["first "+r.URL.Path] = r.Header.Get("Authorization")
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/landed", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/trace":
			io.WriteString(w, r.Header.Get("Traceparent")+" "+r.Host)
		case "/big":
			w.Write(make([]byte, maxBody+1))
		default:
			w.Header().Set("X-Two", "a")
			w.Header().Add("X-Two", "b")
			w.WriteHeader(418)
			fmt.Fprintf(w, "%s %s", r.Method, r.URL.Path)
		}
	}))
	defer first.Close()
	other = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen["other "+r.URL.Path] = r.Header.Get("Authorization")
	}))
	defer other.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

	g := &Grant{Hosts: []string{host(first)}, Secrets: []Secret{{Host: host(first), Header: "Authorization", Value: token}}}
	get := func(g *Grant, r guest.HTTPRequest) (*guest.HTTPResponse, error) {
		resp, _, err := Do(t.Context(), g, &r, "00-1-2-03")
		return resp, err
	}

	resp, err := get(g, guest.HTTPRequest{URL: first.URL + "/x", Headers: map[string]string{"authorization": "forged", "Host": "evil"}})
	if err != nil || resp.Status != 418 || string(resp.Body) != "GET /x" || resp.Headers["x-two"] != "a, b" {
		t.Errorf("plain: %+v, %v", resp, err)
	}
	if seen["first /x"] != token {
		t.Errorf("the secret's header arrives as %q", seen["first /x"])
	}
	if resp, err := get(g, guest.HTTPRequest{URL: first.URL + "/trace", Headers: map[string]string{"Host": "evil"}}); err != nil || string(resp.Body) != "00-1-2-03 "+host(first) {
		t.Errorf("trace: %+v, %v", resp, err)
	}
	// A host alone means https: nothing of the secret goes out in the clear.
	clear := &Grant{Hosts: []string{"127.0.0.1"}, Secrets: []Secret{{Host: "127.0.0.1", Header: "Authorization", Value: token}}}
	if _, err := get(clear, guest.HTTPRequest{URL: first.URL + "/clear"}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "use https") || strings.Contains(err.Error(), token) {
		t.Errorf("a secret in the clear: %v", err)
	}
	if _, asked := seen["first /clear"]; asked {
		t.Error("a secret in the clear: the host was asked")
	}
	for name, try := range map[string]guest.HTTPRequest{
		"host not granted":   {URL: other.URL},
		"method not granted": {URL: first.URL, Method: "POST"},
		"scheme":             {URL: "file:///etc/passwd"},
		"user in the URL":    {URL: strings.Replace(first.URL, "http://", "http://u:p@", 1)},
		"redirect away":      {URL: first.URL + "/away"},
	} {
		if _, err := get(g, try); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	if _, was := seen["other /landed"]; was {
		t.Error("a redirect to a host that is not granted was followed")
	}
	for name, try := range map[string]guest.HTTPRequest{
		"redirects without end": {URL: first.URL + "/loop"},
		"body too large":        {URL: first.URL + "/big"},
		"malformed":             {URL: "http://\x7f"},
		"nobody there":          {URL: "http://" + unusedAddr(t)},
	} {
		g := &Grant{Hosts: append([]string{"127.0.0.1"}, g.Hosts...), Secrets: g.Secrets}
		if _, err := get(g, try); err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), token) {
			t.Errorf("%s: the error holds the secret: %v", name, err)
		}
	}

	// The redirect is followed where the second host is granted, without the
	// first one's secret, also when the guest set the same header itself.
	both := &Grant{Hosts: []string{host(first), host(other)}, Secrets: g.Secrets}
	if _, err := get(both, guest.HTTPRequest{URL: first.URL + "/away", Headers: map[string]string{"Authorization": "x"}}); err != nil {
		t.Error(err)
	}
	if got, was := seen["other /landed"]; !was || got != "" {
		t.Errorf("the other host saw %q, reached %v", got, was)
	}
}

// A handle becomes its value in a header of a request to the host that the
// guest asked, and nowhere else.
func TestFetchHandles(t *testing.T) {
	const handle, value = "secret:0123456789abcdef", "pass-canary-word"
	seen := map[string]http.Header{}
	note := func(w http.ResponseWriter, r *http.Request) {
		seen[r.Host+r.URL.Path] = r.Header.Clone()
		switch r.URL.Path {
		case "/near":
			http.Redirect(w, r, "/landed", http.StatusFound)
		case "/far":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		}
	}
	first, second := httptest.NewServer(http.HandlerFunc(note)), httptest.NewServer(http.HandlerFunc(note))
	defer first.Close()
	defer second.Close()
	host := func(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }
	g := &Grant{Hosts: []string{host(first), host(second)}, Handles: []Handle{{Handle: handle, Value: value}}}
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	headers := map[string]string{"X-Key": handle, "X-Bearer": "Bearer " + handle, "Authorization": basic("alice:" + handle), "X-Plain": "plain"}
	for path, lands := range map[string]string{
		"/x": host(first) + "/x", "/near": host(first) + "/landed", "/far?to=" + url.QueryEscape(second.URL+"/away"): host(second) + "/away",
	} {
		if _, _, err := Do(t.Context(), g, &guest.HTTPRequest{URL: first.URL + path, Headers: headers}, ""); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		h := seen[lands]
		want := map[string]string{"X-Key": value, "X-Bearer": "Bearer " + value, "Authorization": basic("alice:" + value), "X-Plain": "plain"}
		if strings.HasPrefix(lands, host(second)) {
			want = map[string]string{"X-Key": "", "X-Bearer": "", "Authorization": "", "X-Plain": "plain"}
		}
		for name, v := range want {
			if h.Get(name) != v {
				t.Errorf("%s: %s arrives as %q, want %q", path, name, h.Get(name), v)
			}
		}
	}
	// What is the operator's goes to hosts that the operator named.
	_, port, _ := net.SplitHostPort(host(first))
	named := &Grant{Hosts: []string{"127.0.0.1"}, Handles: []Handle{{Handle: handle, Value: value, NamedOnly: true}}}
	if _, _, err := Do(t.Context(), named, &guest.HTTPRequest{URL: "http://127.0.0.1:" + port + "/named", Headers: headers}, ""); err != nil || seen[host(first)+"/named"].Get("X-Key") != value {
		t.Errorf("named: %v, %v", err, seen[host(first)+"/named"])
	}
	if _, found, err := (&Grant{Handles: named.Handles}).fill(handle, false); !found || !errors.Is(err, ErrRefused) {
		t.Errorf("a host behind a wildcard: %v", err)
	}
	// Nor does one in what a caller says of its trace stand for anything.
	traced := &Grant{Hosts: g.Hosts, Handles: g.Handles, TraceID: handle}
	if _, _, err := Do(t.Context(), traced, &guest.HTTPRequest{URL: first.URL + "/traced", Headers: headers}, ""); err != nil || seen[host(first)+"/traced"].Get("X-Trace-Id") != handle {
		t.Errorf("traced: %v, %v", err, seen[host(first)+"/traced"])
	}
	bad := &Grant{Hosts: g.Hosts, Handles: []Handle{{Handle: handle, Value: "a\r\nX-Evil: 1"}}}
	if _, _, err := Do(t.Context(), bad, &guest.HTTPRequest{URL: first.URL + "/split", Headers: headers}, ""); err == nil || strings.Contains(err.Error(), "Evil") {
		t.Errorf("a value with a line break: %v", err)
	}
}

// A name covered only by a wildcard does not open addresses of this machine.
func TestFetchRefusesLoopbackBehindWildcard(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	// "0.0.1" is what "*.0.0.1" covers in "127.0.0.1": granted, not named.
	g := &Grant{Hosts: []string{"*.0.0.1"}}
	if _, _, err := Do(t.Context(), g, &guest.HTTPRequest{URL: "http://127.0.0.1:" + port}, ""); !errors.Is(err, ErrRefused) {
		t.Errorf("loopback behind a wildcard: %v", err)
	}
}

func unusedAddr(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
