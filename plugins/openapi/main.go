// Plugin openapi makes tools of the operations of an HTTP service, from its
// OpenAPI document (version 3, as JSON).
//
// The document is read with the caller's own credential, so that a service that
// describes to each caller what that caller may do gives each its own tools. An
// operation by GET or HEAD is a tool that reads; every other one changes
// something. Parameters in path, query and header are properties of the
// payload by their names; a JSON body is the property "body".
//
// The configuration says where: document (its address), base (of the service;
// the document's first server, or its host, where empty), prefix (of the
// tools' names), header and scheme (how the secret api_token is sent).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/plugins/internal/offer"
)

//go:wasmexport discover
func discover() int32 { return pdk.Discover(surface) }

//go:wasmexport handle
func handle() int32 { return pdk.Handle(call) }

func main() {}

// document is what is read of an OpenAPI document.
type document struct {
	OpenAPI string `json:"openapi"`
	Servers []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components struct {
		Schemas    map[string]json.RawMessage `json:"schemas"`
		Parameters map[string]json.RawMessage `json:"parameters"`
	} `json:"components"`
}

type operation struct {
	ID          string            `json:"operationId"`
	Summary     string            `json:"summary"`
	Description string            `json:"description"`
	Parameters  []json.RawMessage `json:"parameters"`
	Body        *body             `json:"requestBody"`
	Deprecated  bool              `json:"deprecated"`
}

type param struct {
	Ref         string          `json:"$ref"`
	Name        string          `json:"name"`
	In          string          `json:"in"`
	Description string          `json:"description"`
	Required    bool            `json:"required"`
	Schema      json.RawMessage `json:"schema"`
}

type body struct {
	Required bool `json:"required"`
	Content  map[string]struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"content"`
}

// binding is what a tool stands for.
type binding struct {
	Method     string  `json:"method"`
	Base       string  `json:"base"`
	Path       string  `json:"path"`
	Parameters []place `json:"parameters,omitempty"`
	Body       bool    `json:"body,omitempty"`
}

type place struct {
	Name string `json:"name"`
	In   string `json:"in"`
}

// methods are those of operations, in the order of the tools.
var methods = []string{"get", "head", "post", "put", "patch", "delete"}

// credential is the header that every request carries; the host fills in the
// secret.
func credential() map[string]string {
	h := map[string]string{"Accept": "application/json"}
	if token := pdk.Config("api_token"); token != "" {
		name, scheme := pdk.Config("header"), pdk.Config("scheme")
		if name == "" {
			name, scheme = "Authorization", "Bearer"
		}
		h[name] = strings.TrimSpace(scheme + " " + token)
	}
	return h
}

func failed(code, message string, retriable bool) *abi.Error {
	return &abi.Error{Code: code, Message: message, Retriable: retriable}
}

func surface(d *abi.Discovery) (*abi.Surface, error) {
	at := pdk.Config("document")
	resp, err := pdk.HTTP(&pdk.HTTPRequest{URL: at, Headers: credential()})
	switch {
	case err != nil:
		return &abi.Surface{Error: failed("UNREACHABLE", err.Error(), true)}, nil
	case resp.Status == 401 || resp.Status == 403:
		return &abi.Surface{Error: failed(abi.Unauthenticated, "the service answers "+strconv.Itoa(resp.Status)+" to this identity", false)}, nil
	case resp.Status != 200:
		return &abi.Surface{Error: failed("NO_DOCUMENT", "the OpenAPI document is answered with "+strconv.Itoa(resp.Status), resp.Status >= 500)}, nil
	}
	var doc document
	if err := json.Unmarshal(resp.Body, &doc); err != nil || !strings.HasPrefix(doc.OpenAPI, "3.") {
		return nil, errors.New("the document is not an OpenAPI 3 document in JSON")
	}
	base, err := baseOf(&doc, at)
	if err != nil {
		return nil, err
	}
	out := &abi.Surface{Safety: &abi.Safety{ReadOnly: d.ReadOnly}}
	named := map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		var shared []json.RawMessage
		if raw, ok := doc.Paths[path]["parameters"]; ok {
			if err := json.Unmarshal(raw, &shared); err != nil {
				return nil, fmt.Errorf("the parameters of %s are malformed", path)
			}
		}
		for _, method := range methods {
			raw, ok := doc.Paths[path][method]
			if !ok {
				continue
			}
			what := strings.ToUpper(method) + " " + path
			t, err := doc.tool(base, method, path, raw, shared)
			if err != nil {
				pdk.Log(pdk.LevelWarn, what+" is left out: "+err.Error())
				continue
			}
			if d.ReadOnly && t.Mutating {
				continue
			}
			if other, double := named[t.Name]; double {
				return nil, fmt.Errorf("%s and %s would both be the tool %s; give them an operationId", other, what, t.Name)
			}
			named[t.Name] = what
			out.Tools = append(out.Tools, *t)
		}
	}
	return out, nil
}

// baseOf is where the operations are.
func baseOf(doc *document, at string) (string, error) {
	base := pdk.Config("base")
	if base == "" && len(doc.Servers) > 0 {
		base = doc.Servers[0].URL
	}
	from, err := url.Parse(at)
	if err != nil {
		return "", errors.New("document is not an address")
	}
	to, err := from.Parse(base)
	if err != nil || to.Host == "" || to.User != nil {
		return "", errors.New("the address of the service is malformed; give base in the configuration")
	}
	if base == "" {
		to.Path = ""
	}
	to.RawQuery, to.Fragment = "", ""
	return strings.TrimSuffix(to.String(), "/"), nil
}

func (doc *document) tool(base, method, path string, raw json.RawMessage, shared []json.RawMessage) (*abi.SurfaceTool, error) {
	var op operation
	if err := json.Unmarshal(raw, &op); err != nil {
		return nil, errors.New("it is malformed")
	}
	b := binding{Method: strings.ToUpper(method), Base: base, Path: path}
	properties, required := map[string]any{}, []string{}
	add := func(name string, schema json.RawMessage, text string, must bool) error {
		if _, double := properties[name]; double {
			return fmt.Errorf("two of its parameters are called %s", name)
		}
		var s any = map[string]any{}
		if len(schema) > 0 {
			if err := json.Unmarshal(schema, &s); err != nil {
				return err
			}
		}
		if m, ok := s.(map[string]any); ok && text != "" && m["$ref"] == nil {
			m["description"] = text
		}
		properties[name] = s
		if must {
			required = append(required, name)
		}
		return nil
	}
	parameters, err := doc.parameters(op.Parameters, shared)
	if err != nil {
		return nil, err
	}
	for _, p := range parameters {
		if err := add(p.Name, p.Schema, p.Description, p.Required || p.In == "path"); err != nil {
			return nil, err
		}
		b.Parameters = append(b.Parameters, place{p.Name, p.In})
	}
	if op.Body != nil {
		media, ok := op.Body.Content["application/json"]
		if !ok {
			return nil, errors.New("its body is not JSON")
		}
		if err := add("body", media.Schema, "", op.Body.Required); err != nil {
			return nil, err
		}
		b.Body = true
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	if err := doc.define(schema); err != nil {
		return nil, err
	}
	s, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	bound, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	name := op.ID
	if name == "" {
		name = method + " " + path
	}
	text := op.Description
	if text == "" {
		text = op.Summary
	}
	if op.Deprecated {
		text = strings.TrimSpace("Deprecated. " + text)
	}
	reads := method == "get" || method == "head"
	again := reads || method == "put" || method == "delete"
	destroys, open := !reads, true
	return &abi.SurfaceTool{
		Name: offer.ToolName(pdk.Config("prefix") + name), Title: offer.Clip(op.Summary, 200), Description: offer.Clip(text, 4000),
		Schema: s, Binding: bound, Mutating: !reads,
		Annotations: &abi.Annotations{ReadOnly: &reads, Destructive: &destroys, Idempotent: &again, OpenWorld: &open},
	}, nil
}

// mayBeSet reports whether a caller may give a header: not one that says who
// it is, or that the host sets.
func mayBeSet(name string) bool {
	for _, no := range []string{"authorization", "cookie", "proxy-authorization", "accept", "content-type", "host", pdk.Config("header")} {
		if strings.EqualFold(name, no) {
			return false
		}
	}
	return true
}

func (doc *document) parameter(raw json.RawMessage) (p param, err error) {
	if err := json.Unmarshal(raw, &p); err != nil {
		return p, errors.New("a parameter is malformed")
	}
	if name, ok := strings.CutPrefix(p.Ref, "#/components/parameters/"); ok {
		p = param{}
		if err := json.Unmarshal(doc.Components.Parameters[name], &p); err != nil {
			return p, fmt.Errorf("the parameter %s is not defined", name)
		}
	}
	if p.Name == "" || p.Ref != "" || !slices.Contains([]string{"path", "query", "header", "cookie"}, p.In) {
		return p, errors.New("a parameter has no name or no place")
	}
	return p, nil
}

// parameters returns those that a call may set. An operation's own win over the shared
// ones of its path.
func (doc *document) parameters(own, shared []json.RawMessage) (list []param, err error) {
	seen := map[place]bool{}
	for _, raw := range slices.Concat(own, shared) {
		p, err := doc.parameter(raw)
		if err != nil {
			return nil, err
		}
		at := place{p.Name, p.In}
		if seen[at] || p.In == "cookie" {
			continue
		}
		seen[at] = true
		if p.In != "header" || mayBeSet(p.Name) {
			list = append(list, p)
		}
	}
	return list, nil
}

// define puts the schemas that schema refers to beside it, and makes the
// references lead there.
func (doc *document) define(schema map[string]any) error {
	defs := map[string]any{}
	var visit func(v any) error
	// named visits schemas by name, where no name is a word of JSON Schema.
	named := func(v any) error {
		m, _ := v.(map[string]any)
		for _, x := range m {
			if err := visit(x); err != nil {
				return err
			}
		}
		return nil
	}
	visit = func(v any) error {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				if err := visit(x); err != nil {
					return err
				}
			}
		case map[string]any:
			ref, _ := v["$ref"].(string)
			name, ours := strings.CutPrefix(ref, "#/components/schemas/")
			if ref != "" && !ours {
				return fmt.Errorf("it refers to %s", offer.Clip(ref, 100))
			}
			if ours {
				v["$ref"] = "#/$defs/" + name
				if _, known := defs[name]; known {
					break
				}
				var s any
				if err := json.Unmarshal(doc.Components.Schemas[name], &s); err != nil {
					return fmt.Errorf("the schema %s is not defined", name)
				}
				defs[name] = s
				if err := visit(s); err != nil {
					return err
				}
			}
			translate(v)
			for key, x := range v {
				below := visit
				switch key {
				case "properties", "patternProperties", "dependentSchemas", "$defs":
					below = named
				case "default", "const", "enum", "examples": // values, not schemas
					continue
				}
				if err := below(x); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := named(schema["properties"]); err != nil {
		return err
	}
	if len(defs) > 0 {
		schema["$defs"] = defs
	}
	return nil
}

// translate rewrites what OpenAPI has in a schema and JSON Schema has not.
func translate(v map[string]any) {
	if v["nullable"] == true {
		if t, ok := v["type"].(string); ok {
			v["type"] = []any{t, "null"}
		}
	}
	for _, own := range []string{"nullable", "example", "xml", "discriminator", "externalDocs"} {
		delete(v, own)
	}
	for _, limit := range []string{"exclusiveMinimum", "exclusiveMaximum"} {
		if on, ok := v[limit].(bool); ok { // as version 3.0 writes it
			delete(v, limit)
			if bound := strings.ToLower(limit[9:]); on && v[bound] != nil {
				v[limit] = v[bound]
				delete(v, bound)
			}
		}
	}
}

func call(c *abi.Call) (*abi.Result, error) {
	if len(c.Binding) == 0 {
		return nil, errors.New("openapi itself is not a tool; tools.list names the tools that it provides")
	}
	var b binding
	if err := json.Unmarshal(c.Binding, &b); err != nil {
		return nil, fmt.Errorf("read the binding: %w", err)
	}
	var arguments map[string]json.RawMessage
	if err := json.Unmarshal(c.Payload, &arguments); err != nil {
		return nil, fmt.Errorf("read the payload: %w", err)
	}
	r, err := request(&b, arguments)
	if err != nil {
		return &abi.Result{Error: failed("BAD_ARGUMENT", err.Error(), false)}, nil
	}
	resp, err := pdk.HTTP(r)
	if err != nil {
		return &abi.Result{Error: failed("UNREACHABLE", err.Error(), b.Method == "GET")}, nil
	}
	return answer(&b, resp), nil
}

// request is the request of an operation. Each argument is one segment of the
// path, one value of the query, one header or the body; none can become
// another part.
func request(b *binding, arguments map[string]json.RawMessage) (*pdk.HTTPRequest, error) {
	r := &pdk.HTTPRequest{Method: b.Method, Headers: credential()}
	path, query := b.Path, url.Values{}
	for _, p := range b.Parameters {
		raw, ok := arguments[p.Name]
		if !ok {
			continue
		}
		texts, err := textsOf(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		switch one := strings.Join(texts, ","); p.In {
		case "path":
			if one == "" || one == "." || one == ".." {
				return nil, fmt.Errorf("%s is %q, which is not a path segment", p.Name, one)
			}
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(one))
		case "query":
			query[p.Name] = texts
		case "header":
			if strings.ContainsFunc(one, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				return nil, fmt.Errorf("%s has control characters, and is a header", p.Name)
			}
			r.Headers[p.Name] = one
		}
	}
	r.URL = b.Base + path
	if len(query) > 0 {
		r.URL += "?" + query.Encode()
	}
	if body, ok := arguments["body"]; ok && b.Body {
		r.Body, r.Headers["Content-Type"] = body, "application/json"
	}
	return r, nil
}

// textsOf is an argument as a URL or a header has it.
func textsOf(raw json.RawMessage) ([]string, error) {
	switch raw = bytes.TrimSpace(raw); raw[0] {
	case '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return []string{s}, err
	case '[':
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, err
		}
		var all []string
		for _, item := range items {
			t, err := textsOf(item)
			if err != nil {
				return nil, err
			}
			all = append(all, t...)
		}
		return all, nil
	case '{':
		return nil, errors.New("an object can only be in the body")
	}
	return []string{string(raw)}, nil
}

func answer(b *binding, resp *pdk.HTTPResponse) *abi.Result {
	r := &abi.Result{Stdout: string(resp.Body)}
	if json.Valid(resp.Body) {
		r.Data = resp.Body
	}
	status := strconv.Itoa(resp.Status)
	switch {
	case resp.Status < 300:
	case resp.Status == 401:
		r.Error = failed(abi.Unauthenticated, "the service answers 401 to this identity", false)
	case resp.Status == 404 || resp.Status == 405 || resp.Status == 410 || resp.Status == 501:
		// A thing that is not there, or an operation that is not: only one that
		// takes no part of its path from the caller is surely the latter.
		r.Gone = resp.Status != 404 || !strings.Contains(b.Path, "{")
		r.Error = failed("HTTP_"+status, "the service answers "+status+": "+offer.Clip(string(resp.Body), 300), false)
	default:
		r.Error = failed("HTTP_"+status, "the service answers "+status+": "+offer.Clip(string(resp.Body), 300), resp.Status == 429 || resp.Status >= 502 && resp.Status <= 504)
	}
	return r
}
