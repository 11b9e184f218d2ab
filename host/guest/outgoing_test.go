package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
)

// asks calls a function of the component http with a service for its requests, and
// answers its data, or the error of its result.
func asks(t *testing.T, m *Module, export string, in map[string]any, service func(*HTTPRequest) (*HTTPResponse, error)) (map[string]any, string, error) {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	inv := Invocation{Export: export, Input: b}
	if service != nil {
		inv.HTTP = func(_ context.Context, r *HTTPRequest) (*HTTPResponse, error) { return service(r) }
	}
	reply, err := m.Call(context.Background(), inv)
	if err != nil {
		return nil, "", err
	}
	var r struct {
		Data  json.RawMessage
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(reply.Output, &r); err != nil {
		t.Fatal(err)
	}
	if r.Error != nil {
		return nil, r.Error.Message, nil
	}
	var data struct{ OK map[string]any }
	json.Unmarshal(r.Data, &data)
	return data.OK, "", nil
}

// A request of wasi:http is one of the call's service, as it was written, and its
// answer is the guest's.
func TestOutgoingRequests(t *testing.T) {
	m := loadComponent(t, "http", Spec{})
	var got *HTTPRequest
	service := func(r *HTTPRequest) (*HTTPResponse, error) {
		got = r
		return &HTTPResponse{Status: 201, Headers: map[string]string{"x-b": "2", "x-a": "1"}, Body: []byte(strings.Repeat("ü", 100_000))}, nil
	}
	data, failed, err := asks(t, m, "fetch", map[string]any{
		"method": "POST", "scheme": "http", "authority": "host:81", "path": "/a?b=c",
		"headers": [][]string{{"Accept", "text/plain"}, {"x", "1"}, {"X", "2"}, {"cookie", "a=b"}, {"cookie", "c=d"}}, "body": strings.Repeat("body ", 2000),
	}, service)
	if err != nil || failed != "" {
		t.Fatalf("%v %s", err, failed)
	}
	if got.Method != "POST" || got.URL != "http://host:81/a?b=c" || string(got.Body) != strings.Repeat("body ", 2000) ||
		!maps.Equal(got.Headers, map[string]string{"accept": "text/plain", "x": "1, 2", "cookie": "a=b; c=d"}) {
		t.Errorf("the service is asked %+v", got)
	}
	if data["status"] != 201.0 || data["body"] != strings.Repeat("ü", 100_000) || fmt.Sprint(data["headers"]) != "[[x-a 1] [x-b 2]]" {
		t.Errorf("the guest is answered %.300v", data)
	}
	if _, failed, err = asks(t, m, "late", map[string]any{"authority": "host", "body": "late"}, service); err != nil || failed != "" || string(got.Body) != "late" || got.Method != "POST" {
		t.Errorf("a body that comes after its request: %v %s %+v", err, failed, got)
	}
	get := map[string]any{"method": "GET", "scheme": "https", "authority": "host", "path": "?q", "headers": [][]string{}, "body": nil}
	if _, failed, err = asks(t, m, "fetch", get, service); err != nil || failed != "" || got.URL != "https://host/?q" || len(got.Body) != 0 {
		t.Errorf("get: %v %s %+v", err, failed, got)
	}
	if m.Unshared() != "" {
		t.Errorf("it has no image: %s", m.Unshared())
	}
}

// What went wrong is the error of its type, never an answer and never a trap.
func TestOutgoingFailures(t *testing.T) {
	m := loadComponent(t, "http", Spec{})
	get := map[string]any{"method": "GET", "scheme": "https", "authority": "host", "path": "/", "headers": [][]string{}, "body": nil}
	with := func(k string, v any) map[string]any {
		in := maps.Clone(get)
		in[k] = v
		return in
	}
	for _, tt := range []struct {
		in   map[string]any
		err  error
		says string
	}{
		{get, &HTTPError{HTTPDenied, "no"}, "ErrorCode::HttpRequestDenied"},
		{get, &HTTPError{HTTPRefused, "no"}, "ErrorCode::ConnectionRefused"},
		{get, &HTTPError{HTTPTimeout, "no"}, "ErrorCode::ConnectionTimeout"},
		{get, &HTTPError{HTTPUnknownHost, "no"}, "ErrorCode::DestinationNotFound"},
		{get, &HTTPError{HTTPFailed, "what happened"}, `ErrorCode::InternalError(Some("what happened"))`},
		{get, errors.New("another"), `ErrorCode::InternalError(Some("another"))`},
		{with("scheme", "ftp"), nil, "ErrorCode::HttpRequestUriInvalid"},
		{with("authority", "user:password@host"), nil, "authority"},
		{with("path", ".evil.example/"), nil, "path"},
		{with("method", "GET / HTTP/1.1\r\n"), nil, "method"},
		{with("headers", [][]string{{"host", "other"}}), nil, "Forbidden"},
		{with("headers", [][]string{{"x", "a\r\ny: b"}}), nil, "InvalidSyntax"},
		{map[string]any{"method": "POST", "scheme": "http", "authority": "host", "path": "/", "headers": [][]string{{"content-length", "5"}}, "body": "longer"}, nil, "content-length"},
	} {
		asked := false
		_, failed, err := asks(t, m, "fetch", tt.in, func(*HTTPRequest) (*HTTPResponse, error) {
			asked = true
			return &HTTPResponse{Status: 200}, tt.err
		})
		if err != nil || !strings.Contains(failed, tt.says) || asked != (tt.err != nil) {
			t.Errorf("%v: asked %v: %v %q, want %s", tt.in, asked, err, failed, tt.says)
		}
	}
	if _, failed, err := asks(t, m, "fetch", get, nil); err != nil || failed != "ErrorCode::HttpRequestDenied" {
		t.Errorf("a call without network: %v %q", err, failed)
	}
	served := func(*HTTPRequest) (*HTTPResponse, error) {
		t.Error("a request is made whose body was not finished")
		return &HTTPResponse{}, nil
	}
	if _, failed, err := asks(t, m, "unfinished", map[string]any{"authority": "host"}, served); err != nil || !strings.Contains(failed, "before it was finished") {
		t.Errorf("a body that is dropped: %v %q", err, failed)
	}
	if _, _, err := asks(t, m, "deadlock", map[string]any{"authority": "host"}, served); err == nil || !strings.Contains(err.Error(), "body it has not finished") {
		t.Errorf("an answer that cannot come: %v", err)
	}
	if _, _, err := asks(t, m, "stale", map[string]any{}, nil); err == nil || !strings.Contains(err.Error(), "not of that kind") {
		t.Errorf("a handle that was given away: %v", err)
	}
}

// Headers refuse what frames a message or is none, and an address cannot go on with what follows it.
func TestOutgoingHeaders(t *testing.T) {
	data, failed := ask(t, loadComponent(t, "http", Spec{}), "headers", "{}")
	var said []string
	if err := json.Unmarshal([]byte(data), &said); err != nil || failed != "" {
		t.Fatal(err, failed)
	}
	want := []string{
		"Err(HeaderError::Forbidden)", "Err(HeaderError::Forbidden)", "Err(HeaderError::InvalidSyntax)", "Err(HeaderError::InvalidSyntax)", "Err(HeaderError::InvalidSyntax)",
		"Ok(())", "Ok(())", "[[97], [98]] false", "Ok(())", "Ok(())", `[] [("x", [99])]`, "Err(HeaderError::Immutable)", "Some(HeaderError::Forbidden)",
		"Err(())", "Err(())", "Err(())", "Err(())", "Err(())", "Ok(())", "Err(())", "Err(())", "Err(())", "Ok(())", "Ok(())", "Err(())",
	}
	if !reflect.DeepEqual(said, want) {
		t.Errorf("they say\n%q, want\n%q", said, want)
	}
}

// What a component exchanges by requests is within its memory's limit.
func TestOutgoingMemory(t *testing.T) {
	m := loadComponent(t, "http", Spec{Memory: 4 << 20})
	get := map[string]any{"method": "GET", "scheme": "https", "authority": "host", "path": "/", "headers": [][]string{}, "body": nil}
	_, _, err := asks(t, m, "fetch", get, func(*HTTPRequest) (*HTTPResponse, error) {
		return &HTTPResponse{Status: 200, Body: make([]byte, 5<<20)}, nil
	})
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != BlocksUsed {
		t.Errorf("an answer of 5 MiB, where 4 may be: %v", err)
	}
}
