package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

// server is where one identity's statements go.
type server struct {
	base      string
	user, key string
}

// exception is what the server answered in place of a result. Code 0 is no
// answer at all.
type exception struct {
	code int
	text string
}

func (e *exception) Error() string { return e.text }

// Codes of ClickHouse that mean something here.
const (
	notFoundColumn    = 10
	noSuchColumn      = 16
	unknownIdentifier = 47
	unknownTable      = 60
	syntaxError       = 62
	unknownDatabase   = 81
	readonly          = 164
	databaseDenied    = 291
	unknownParameter  = 456
	accessDenied      = 497
)

// unauthenticated: the server does not know the user, or not like this.
func (e *exception) unauthenticated() bool {
	switch e.code {
	case 192, 193, 194, 195, 516:
		return true
	}
	return false
}

// gone: what a binding names is not there any more, or not for this user, or
// not in this shape. Nothing was done then.
func (e *exception) gone() bool {
	switch e.code {
	case notFoundColumn, noSuchColumn, unknownIdentifier, unknownTable, unknownDatabase, databaseDenied, unknownParameter, accessDenied:
		return true
	}
	return false
}

// passing: the same may succeed later.
func (e *exception) passing() bool {
	switch e.code {
	case 0, 159, 202, 209, 210, 241, 242, 252, 319, 999:
		return true
	}
	return false
}

var errNobody = errors.New("no ClickHouse user is known for this identity; call with a token that has the claim user")

// connect reads the configuration.
func connect() (*server, error) {
	protocol, host, port := pdk.Config("protocol"), pdk.Config("host"), pdk.Config("port")
	if protocol == "" {
		protocol = "http"
	}
	if protocol != "http" && protocol != "https" {
		return nil, fmt.Errorf("protocol is %q; use http or https", protocol)
	}
	if host == "" || strings.ContainsFunc(host, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:", r))
	}) {
		return nil, errors.New("host is not a host name or address")
	}
	if strings.ContainsRune(host, ':') {
		host = "[" + host + "]"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return nil, errors.New("port is not a number from 1 to 65535")
	}
	s := &server{base: protocol + "://" + host + ":" + port + "/", user: pdk.Config("user"), key: pdk.Config("password")}
	if s.user == "" {
		return nil, errNobody
	}
	return s, nil
}

// read runs a statement that changes nothing: the server itself allows a GET
// no more than that. Parameters are bound by the server.
func (s *server) read(statement string, parameters url.Values) ([]byte, error) {
	q := url.Values{"query": {statement}}
	for name, v := range parameters {
		q[name] = v
	}
	return s.do(&pdk.HTTPRequest{Method: "GET", URL: s.base + "?" + q.Encode()})
}

// write runs a statement with data.
func (s *server) write(statement string, data []byte, settings url.Values) ([]byte, error) {
	q := url.Values{"query": {statement}}
	maps.Copy(q, settings)
	return s.do(&pdk.HTTPRequest{Method: "POST", URL: s.base + "?" + q.Encode(), Body: data})
}

func (s *server) do(r *pdk.HTTPRequest) ([]byte, error) {
	r.Headers = map[string]string{"X-ClickHouse-User": s.user, "X-ClickHouse-Key": s.key}
	resp, err := pdk.HTTP(r)
	if err != nil {
		return nil, &exception{text: err.Error()}
	}
	if resp.Status == 200 && resp.Headers["x-clickhouse-exception-code"] == "" {
		return resp.Body, nil
	}
	e := readException(resp.Body)
	if n, err := strconv.Atoi(resp.Headers["x-clickhouse-exception-code"]); err == nil {
		e.code = n
	}
	switch {
	case e.code != 0:
	case resp.Status == 401 || resp.Status == 403:
		e.code = 516
	case resp.Status < 500:
		e.code = -1
	}
	return nil, e
}

// readException reads "Code: 60, e.displayText() = DB::Exception: …".
func readException(body []byte) *exception {
	text := strings.TrimSpace(string(body[:min(len(body), 2000)]))
	e := &exception{text: text}
	if rest, ok := strings.CutPrefix(text, "Code: "); ok {
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		e.code, _ = strconv.Atoi(digits)
		if _, after, ok := strings.Cut(rest, "DB::Exception: "); ok {
			e.text = after
		}
		e.text = strings.TrimSuffix(e.text, ", e.what() = DB::Exception")
	}
	if e.text == "" {
		e.text = "the server answered without a word"
	}
	return e
}

// asError is how a failure is told to the caller.
func asError(err error) *abi.Error {
	var e *exception
	if !errors.As(err, &e) {
		return &abi.Error{Code: "BAD_CONFIGURATION", Message: err.Error()}
	}
	out := &abi.Error{Code: "CLICKHOUSE_" + strconv.Itoa(e.code), Message: e.text, Retriable: e.passing()}
	switch {
	case e.unauthenticated():
		out.Code = abi.Unauthenticated
	case e.code == 0:
		out.Code = "UNREACHABLE"
	case e.code == readonly:
		out.Code = "READ_ONLY"
	}
	return out
}

// identifier quotes a name.
func identifier(name string) string {
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(name) + "`"
}

func identifiers(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = identifier(n)
	}
	return strings.Join(quoted, ", ")
}
