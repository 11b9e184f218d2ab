package wasip2

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/host/guest/component"
)

// A request is sent once the guest has submitted it and finished its body. The call
// then blocks until the response arrives: there is only one thread. The Host decides
// which requests are allowed.

// Request is an HTTP request made by a guest.
type Request struct {
	Method, URL string
	Headers     map[string]string
	Body        []byte
}

// Response is the response to a Request.
type Response struct {
	Status  int
	Headers map[string]string
	Body    []byte
}

// HTTPError is the error of a request without a response. Code is a case of wasi:http's
// error-code, or empty for internal-error, which carries Text.
type HTTPError struct{ Code, Text string }

func (e *HTTPError) Error() string { return e.Text }

// httpCodes are the cases of wasi:http's error-code, in order, with their payloads.
var httpCodes = []string{
	"DNS-timeout", "DNS-error(record{rcode: option<string>, info-code: option<u16>})", "destination-not-found", "destination-unavailable",
	"destination-IP-prohibited", "destination-IP-unroutable", "connection-refused", "connection-terminated", "connection-timeout",
	"connection-read-timeout", "connection-write-timeout", "connection-limit-reached", "TLS-protocol-error", "TLS-certificate-error",
	"TLS-alert-received(record{alert-id: option<u8>, alert-message: option<string>})", "HTTP-request-denied", "HTTP-request-length-required",
	"HTTP-request-body-size(option<u64>)", "HTTP-request-method-invalid", "HTTP-request-URI-invalid", "HTTP-request-URI-too-long",
	"HTTP-request-header-section-size(option<u32>)", "HTTP-request-header-size(option<" + fieldSize + ">)",
	"HTTP-request-trailer-section-size(option<u32>)", "HTTP-request-trailer-size(" + fieldSize + ")", "HTTP-response-incomplete",
	"HTTP-response-header-section-size(option<u32>)", "HTTP-response-header-size(" + fieldSize + ")", "HTTP-response-body-size(option<u64>)",
	"HTTP-response-trailer-section-size(option<u32>)", "HTTP-response-trailer-size(" + fieldSize + ")", "HTTP-response-transfer-coding(option<string>)",
	"HTTP-response-content-coding(option<string>)", "HTTP-response-timeout", "HTTP-upgrade-failed", "HTTP-protocol-error", "loop-detected",
	"configuration-error", "internal-error(option<string>)",
}

const fieldSize = "record{field-name: option<string>, field-size: option<u32>}"

var httpMethods = []string{"get", "head", "post", "put", "delete", "connect", "options", "trace", "patch"}

// httpFailure returns the error-code for an error. Only cases without payload and
// internal-error are used.
func httpFailure(err error) component.Case {
	if e, ok := errors.AsType[*HTTPError](err); ok && e.Code != "" {
		if i := slices.Index(httpCodes, e.Code); i >= 0 {
			return component.Case{Index: i}
		}
	}
	return component.Case{Index: len(httpCodes) - 1, Value: component.Some(err.Error())}
}

// fields are headers. They cannot be changed through an immutable handle.
type fields struct{ list []field }

type field struct {
	name  string // lower case
	value []byte
}

// mostFields is the maximum total size of the header names and values of one message,
// in bytes.
const mostFields = 128 << 10

func (f *fields) size() int {
	n := 0
	for _, x := range f.list {
		n += len(x.name) + len(x.value) + 32
	}
	return n
}

func (f *fields) get(name string) []any {
	out := []any{}
	for _, x := range f.list {
		if x.name == strings.ToLower(name) {
			out = append(out, x.value)
		}
	}
	return out
}

func (f *fields) remove(name string) {
	f.list = slices.DeleteFunc(f.list, func(x field) bool { return x.name == strings.ToLower(name) })
}

// Cases of header-error.
var (
	badSyntax = component.Bad(component.Case{Index: 0})
	forbidden = component.Bad(component.Case{Index: 1})
	immutable = component.Bad(component.Case{Index: 2})
)

// ofTheHost lists the headers that frame a message or belong to a connection; only the
// host sets them.
var ofTheHost = []string{
	"connection", "host", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
	"te", "trailer", "transfer-encoding", "upgrade",
}

// add adds a header, or returns the error result.
func (f *fields) add(s *State, name string, value []byte) (component.Case, bool) {
	token := func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}
	if name == "" || strings.ContainsFunc(name, token) || slices.ContainsFunc(value, func(b byte) bool { return b < ' ' && b != '\t' || b == 0x7f }) {
		return badSyntax, false
	}
	name = strings.ToLower(name)
	if slices.Contains(ofTheHost, name) {
		return forbidden, false
	}
	s.Host.Hold(uint64(len(name) + len(value) + 32))
	f.list = append(f.list, field{name, value})
	if f.size() > mostFields {
		trap("has headers of more than %d bytes", mostFields)
	}
	return component.OK, true
}

func (f *fields) clone(s *State) *fields {
	s.Host.Hold(uint64(f.size()))
	return &fields{slices.Clone(f.list)}
}

// outgoing is a request that has not been sent.
type outgoing struct {
	headers           *fields
	method            component.Case
	scheme            component.Case // option
	authority, path   component.Case // options
	body              *outgoingBody  // nil until the guest asks for it
	handed, attempted bool
	answer            future
}

type outgoingBody struct {
	request  *outgoing
	bytes    []byte
	written  bool // its stream was taken
	finished bool
}

// future is a pending response.
type future struct {
	ready, taken bool
	response     *Response
	err          error
}

// incoming is a received response.
type incoming struct {
	response *Response
	headers  *fields
	consumed bool
}

type incomingBody struct {
	bytes []byte
	taken bool
}

// methodName returns the method as it is sent.
func methodName(c component.Case) string {
	if c.Index < len(httpMethods) {
		return strings.ToUpper(httpMethods[c.Index])
	}
	return c.Value.(string)
}

// url returns the URL of the request.
func (o *outgoing) url() (string, error) {
	scheme := "https"
	if o.scheme.Index == 1 {
		switch c := o.scheme.Value.(component.Case); c.Index {
		case 0:
			scheme = "http"
		case 2:
			return "", &HTTPError{"HTTP-request-URI-invalid", ""}
		}
	}
	if o.authority.Index == 0 {
		return "", &HTTPError{"HTTP-request-URI-invalid", ""}
	}
	path := "/"
	if o.path.Index == 1 {
		path = o.path.Value.(string)
	}
	return scheme + "://" + o.authority.Value.(string) + path, nil
}

// send sends the request once it is complete.
func (o *outgoing) send(s *State) {
	if !o.handed || o.attempted || o.body != nil && !o.body.finished {
		return
	}
	o.attempted = true
	o.answer.ready = true
	o.answer.response, o.answer.err = func() (*Response, error) {
		to, err := o.url()
		if err != nil {
			return nil, err
		}
		r := &Request{Method: methodName(o.method), URL: to, Headers: map[string]string{}}
		for _, x := range o.headers.list {
			if v, ok := r.Headers[x.name]; ok {
				sep := ", "
				if x.name == "cookie" {
					sep = "; "
				}
				r.Headers[x.name] = v + sep + string(x.value)
			} else {
				r.Headers[x.name] = string(x.value)
			}
		}
		if o.body != nil {
			r.Body = o.body.bytes
		}
		s.step()
		resp, err := s.Host.HTTP(r)
		if err == nil {
			s.Host.Hold(uint64(len(resp.Body)))
			s.Host.Charge(uint64(len(resp.Body)))
		}
		return resp, err
	}()
}

// length returns the value of the request's content-length header, or -1.
func (o *outgoing) length() int64 {
	for _, x := range o.headers.list {
		if x.name == "content-length" {
			if n, err := strconv.ParseInt(string(x.value), 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// take removes an owned handle and returns its content, so that the host owns it again.
func (s *State) take(v any, kinds ...kind) handle {
	h := s.get(v, kinds...)
	out := *h
	*h = handle{}
	s.free = append(s.free, v.(uint32))
	return out
}

func httpFuncs() []Func {
	const (
		types   = "wasi:http/types"
		at      = types + "/"
		headers = "own<" + at + "fields>"
		unfit   = "variant{invalid-syntax, forbidden, immutable}"
		self    = "self: borrow<" + at
	)
	var (
		codes   = "variant{" + strings.Join(httpCodes, ", ") + "}"
		method  = "variant{" + strings.Join(httpMethods, ", ") + ", other(string)}"
		scheme  = "option<variant{HTTP, HTTPS, other(string)}>"
		refused = component.Bad(nil)
	)
	of := func(s *State, v any) *fields { return s.get(v, httpFields, fixedFields).web.(*fields) }
	changed := func(do func(s *State, f *fields, args []any) any) func(s *State, args []any) any {
		return func(s *State, args []any) any {
			h := s.get(args[0], httpFields, fixedFields)
			if h.kind == fixedFields {
				return immutable
			}
			return do(s, h.web.(*fields), args)
		}
	}
	request := func(do func(o *outgoing, args []any) any) func(s *State, args []any) any {
		return func(s *State, args []any) any { return do(s.get(args[0], outgoingRequest).web.(*outgoing), args) }
	}
	// The three timeout options have no effect: the host sets its own limits on
	// requests.
	option := func(i int) func(s *State, args []any) any {
		return func(s *State, args []any) any { return s.get(args[0], requestOptions).web.(*[3]component.Case)[i] }
	}
	setOption := func(i int) func(s *State, args []any) any {
		return func(s *State, args []any) any {
			s.get(args[0], requestOptions).web.(*[3]component.Case)[i] = args[1].(component.Case)
			return component.OK
		}
	}
	fs := []Func{
		{types, "[constructor]fields", "func() -> " + headers, func(s *State, _ []any) any {
			return s.add(handle{kind: httpFields, web: &fields{}})
		}},
		{types, "[static]fields.from-list", "func(entries: list<tuple<string, list<u8>>>) -> result<" + headers + ", " + unfit + ">", func(s *State, args []any) any {
			f := &fields{}
			for _, e := range args[0].([]any) {
				pair := e.([]any)
				if why, ok := f.add(s, pair[0].(string), pair[1].([]byte)); !ok {
					return why
				}
			}
			return component.Good(s.add(handle{kind: httpFields, web: f}))
		}},
		{types, "[method]fields.get", "func(" + self + "fields>, name: string) -> list<list<u8>>", func(s *State, args []any) any {
			return of(s, args[0]).get(args[1].(string))
		}},
		{types, "[method]fields.has", "func(" + self + "fields>, name: string) -> bool", func(s *State, args []any) any {
			return len(of(s, args[0]).get(args[1].(string))) > 0
		}},
		{types, "[method]fields.set", "func(" + self + "fields>, name: string, value: list<list<u8>>) -> result<_, " + unfit + ">", changed(func(s *State, f *fields, args []any) any {
			next := &fields{slices.Clone(f.list)}
			next.remove(args[1].(string))
			for _, v := range args[2].([]any) {
				if why, ok := next.add(s, args[1].(string), v.([]byte)); !ok {
					return why
				}
			}
			*f = *next
			return component.OK
		})},
		{types, "[method]fields.delete", "func(" + self + "fields>, name: string) -> result<_, " + unfit + ">", changed(func(s *State, f *fields, args []any) any {
			f.remove(args[1].(string))
			return component.OK
		})},
		{types, "[method]fields.append", "func(" + self + "fields>, name: string, value: list<u8>) -> result<_, " + unfit + ">", changed(func(s *State, f *fields, args []any) any {
			why, _ := f.add(s, args[1].(string), args[2].([]byte))
			return why
		})},
		{types, "[method]fields.entries", "func(" + self + "fields>) -> list<tuple<string, list<u8>>>", func(s *State, args []any) any {
			out := []any{}
			for _, x := range of(s, args[0]).list {
				out = append(out, []any{x.name, x.value})
			}
			return out
		}},
		{types, "[method]fields.clone", "func(" + self + "fields>) -> " + headers, func(s *State, args []any) any {
			return s.add(handle{kind: httpFields, web: of(s, args[0]).clone(s)})
		}},

		{types, "[constructor]outgoing-request", "func(headers: " + headers + ") -> own<" + at + "outgoing-request>", func(s *State, args []any) any {
			f := s.take(args[0], httpFields, fixedFields).web.(*fields)
			return s.add(handle{kind: outgoingRequest, web: &outgoing{headers: f}})
		}},
		{types, "[method]outgoing-request.body", "func(" + self + "outgoing-request>) -> result<own<" + at + "outgoing-body>>", func(s *State, args []any) any {
			o := s.get(args[0], outgoingRequest).web.(*outgoing)
			if o.body != nil {
				return refused
			}
			o.body = &outgoingBody{request: o}
			return component.Good(s.add(handle{kind: httpOutgoingBody, web: o.body}))
		}},
		{types, "[method]outgoing-request.method", "func(" + self + "outgoing-request>) -> " + method, request(func(o *outgoing, _ []any) any { return o.method })},
		{types, "[method]outgoing-request.set-method", "func(" + self + "outgoing-request>, method: " + method + ") -> result", request(func(o *outgoing, args []any) any {
			m := args[1].(component.Case)
			if name := methodName(m); name == "" || strings.ContainsFunc(name, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-' && r != '_' }) {
				return refused
			}
			o.method = m
			return component.OK
		})},
		{types, "[method]outgoing-request.path-with-query", "func(" + self + "outgoing-request>) -> option<string>", request(func(o *outgoing, _ []any) any { return o.path })},
		{types, "[method]outgoing-request.set-path-with-query", "func(" + self + "outgoing-request>, path-with-query: option<string>) -> result", request(func(o *outgoing, args []any) any {
			p := args[1].(component.Case)
			if p.Index == 1 {
				text := p.Value.(string)
				if strings.HasPrefix(text, "?") || text == "" {
					text = "/" + text
				}
				// Without a leading slash, the path would extend the host name.
				if text[0] != '/' || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == '#' || r == 0x7f }) {
					return refused
				}
				p = component.Some(text)
			}
			o.path = p
			return component.OK
		})},
		{types, "[method]outgoing-request.scheme", "func(" + self + "outgoing-request>) -> " + scheme, request(func(o *outgoing, _ []any) any { return o.scheme })},
		{types, "[method]outgoing-request.set-scheme", "func(" + self + "outgoing-request>, scheme: " + scheme + ") -> result", request(func(o *outgoing, args []any) any {
			o.scheme = args[1].(component.Case)
			return component.OK
		})},
		{types, "[method]outgoing-request.authority", "func(" + self + "outgoing-request>) -> option<string>", request(func(o *outgoing, _ []any) any { return o.authority })},
		{types, "[method]outgoing-request.set-authority", "func(" + self + "outgoing-request>, authority: option<string>) -> result", request(func(o *outgoing, args []any) any {
			a := args[1].(component.Case)
			if a.Index == 1 {
				text := a.Value.(string)
				if u, err := url.Parse("http://" + text); err != nil || u.Host != text || u.User != nil || text == "" {
					return refused
				}
			}
			o.authority = a
			return component.OK
		})},
		{types, "[method]outgoing-request.headers", "func(" + self + "outgoing-request>) -> " + headers, func(s *State, args []any) any {
			return s.add(handle{kind: fixedFields, web: s.get(args[0], outgoingRequest).web.(*outgoing).headers})
		}},

		{types, "[constructor]request-options", "func() -> own<" + at + "request-options>", func(s *State, _ []any) any {
			return s.add(handle{kind: requestOptions, web: &[3]component.Case{}})
		}},
	}
	for i, name := range []string{"connect-timeout", "first-byte-timeout", "between-bytes-timeout"} {
		fs = append(fs,
			Func{types, "[method]request-options." + name, "func(" + self + "request-options>) -> option<u64>", option(i)},
			Func{types, "[method]request-options.set-" + name, "func(" + self + "request-options>, duration: option<u64>) -> result", setOption(i)})
	}
	return append(fs, []Func{
		{types, "[method]outgoing-body.write", "func(" + self + "outgoing-body>) -> result<own<output-stream>>", func(s *State, args []any) any {
			b := s.get(args[0], httpOutgoingBody).web.(*outgoingBody)
			if b.written {
				return refused
			}
			b.written = true
			return component.Good(s.add(handle{kind: bodyOutput, web: b}))
		}},
		{types, "[static]outgoing-body.finish", "func(this: own<" + at + "outgoing-body>, trailers: option<" + headers + ">) -> result<_, " + codes + ">", func(s *State, args []any) any {
			b := s.take(args[0], httpOutgoingBody).web.(*outgoingBody)
			if t := args[1].(component.Case); t.Index == 1 {
				if f := s.take(t.Value, httpFields, fixedFields).web.(*fields); len(f.list) > 0 {
					b.request.fail(&HTTPError{"", "this host sends no trailers"})
				}
			}
			if n := b.request.length(); n >= 0 && n != int64(len(b.bytes)) {
				b.request.fail(&HTTPError{"", "the body is not as long as its content-length says"})
			}
			if err := b.request.answer.err; err != nil {
				return component.Bad(httpFailure(err))
			}
			b.finished = true
			b.request.send(s)
			return component.OK
		}},

		{"wasi:http/outgoing-handler", "handle", "func(request: own<" + at + "outgoing-request>, options: option<own<" + at + "request-options>>) -> result<own<" + at + "future-incoming-response>, " + codes + ">",
			func(s *State, args []any) any {
				o := s.take(args[0], outgoingRequest).web.(*outgoing)
				if t := args[1].(component.Case); t.Index == 1 {
					s.take(t.Value, requestOptions)
				}
				o.handed = true
				o.send(s)
				return component.Good(s.add(handle{kind: futureResponse, web: o}))
			}},
		{types, "[method]future-incoming-response.subscribe", "func(" + self + "future-incoming-response>) -> own<pollable>", func(s *State, args []any) any {
			return s.add(handle{kind: pollable, web: s.get(args[0], futureResponse).web})
		}},
		{types, "[method]future-incoming-response.get", "func(" + self + "future-incoming-response>) -> option<result<result<own<" + at + "incoming-response>, " + codes + ">>>", func(s *State, args []any) any {
			a := &s.get(args[0], futureResponse).web.(*outgoing).answer
			switch {
			case !a.ready:
				return component.None
			case a.taken:
				return component.Some(component.Bad(nil))
			}
			a.taken = true
			if a.err != nil {
				return component.Some(component.Good(component.Bad(httpFailure(a.err))))
			}
			in := &incoming{response: a.response, headers: &fields{}}
			for _, name := range slices.Sorted(func(yield func(string) bool) {
				for name := range a.response.Headers {
					if !yield(name) {
						return
					}
				}
			}) {
				in.headers.list = append(in.headers.list, field{strings.ToLower(name), []byte(a.response.Headers[name])})
			}
			s.Host.Hold(uint64(in.headers.size()))
			return component.Some(component.Good(component.Good(s.add(handle{kind: incomingResponse, web: in}))))
		}},
		{types, "[method]incoming-response.status", "func(" + self + "incoming-response>) -> u16", func(s *State, args []any) any {
			return uint64(uint16(s.get(args[0], incomingResponse).web.(*incoming).response.Status))
		}},
		{types, "[method]incoming-response.headers", "func(" + self + "incoming-response>) -> " + headers, func(s *State, args []any) any {
			return s.add(handle{kind: fixedFields, web: s.get(args[0], incomingResponse).web.(*incoming).headers})
		}},
		{types, "[method]incoming-response.consume", "func(" + self + "incoming-response>) -> result<own<" + at + "incoming-body>>", func(s *State, args []any) any {
			in := s.get(args[0], incomingResponse).web.(*incoming)
			if in.consumed {
				return refused
			}
			in.consumed = true
			return component.Good(s.add(handle{kind: httpIncomingBody, web: &incomingBody{bytes: in.response.Body}}))
		}},
		{types, "[method]incoming-body.stream", "func(" + self + "incoming-body>) -> result<own<input-stream>>", func(s *State, args []any) any {
			b := s.get(args[0], httpIncomingBody).web.(*incomingBody)
			if b.taken {
				return refused
			}
			b.taken = true
			return component.Good(s.add(handle{kind: bodyInput, web: b}))
		}},
		{types, "[static]incoming-body.finish", "func(this: own<" + at + "incoming-body>) -> own<" + at + "future-trailers>", func(s *State, args []any) any {
			s.take(args[0], httpIncomingBody)
			return s.add(handle{kind: futureTrailers})
		}},
		{types, "[method]future-trailers.subscribe", "func(" + self + "future-trailers>) -> own<pollable>", func(s *State, args []any) any {
			s.get(args[0], futureTrailers)
			return s.add(handle{kind: pollable})
		}},
		{types, "[method]future-trailers.get", "func(" + self + "future-trailers>) -> option<result<result<option<" + headers + ">, " + codes + ">>>", func(s *State, args []any) any {
			h := s.get(args[0], futureTrailers)
			if h.n++; h.n > 1 {
				return component.Some(component.Bad(nil))
			}
			return component.Some(component.Good(component.Good(component.None)))
		}},
		{types, "http-error-code", "func(err: borrow<io-error>) -> option<" + codes + ">", func(s *State, args []any) any {
			s.get(args[0], failed)
			return component.None
		}},
	}...)
}

// fail sets an error as the response of a request that is never sent.
func (o *outgoing) fail(err error) {
	if !o.attempted {
		o.attempted = true
		o.answer = future{ready: true, err: err}
	}
}
