package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestMain(m *testing.M) { os.Exit(hosttest.Main(m)) }

const petsDocument = `{"openapi":"3.0.3","servers":[{"url":"/v1"}],"paths":{
	"/pets":{
		"get":{"operationId":"listPets","summary":"List the pets","parameters":[{"name":"tag","in":"query","schema":{"type":"array","items":{"type":"string"}}},{"name":"limit","in":"query","schema":{"type":"integer","minimum":0,"exclusiveMinimum":true}}]},
		"post":{"operationId":"addPet","requestBody":{"required":true,"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Pet"}}}}}},
	"/pets/{id}":{"parameters":[{"$ref":"#/components/parameters/id"}],"get":{"description":"One pet"},"delete":{"operationId":"removePet","parameters":[{"name":"Authorization","in":"header","schema":{"type":"string"}}]}},
	"/odd":{"get":{"operationId":"odd","parameters":[{"$ref":"http://elsewhere/x"}]}}
	},"components":{
	"parameters":{"id":{"name":"id","in":"path","required":true,"schema":{"type":"string"}}},
	"schemas":{"Pet":{"type":"object","properties":{"name":{"type":"string"},"parent":{"$ref":"#/components/schemas/Pet"},"note":{"type":"string","nullable":true}},"required":["name"]}}}}`

// service is an HTTP service with two callers: anna may do everything, ben may
// read.
type service struct {
	*httptest.Server
	got    atomic.Value // of string: the last request that was no document
	reads  atomic.Int64 // of the document
	moved  atomic.Bool
	denied atomic.Bool
}

func newService(t *testing.T) *service {
	s := &service{}
	s.got.Store("")
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := map[string]string{"Bearer anna-canary-51": "anna", "Bearer ben-canary-52": "ben"}[r.Header.Get("Authorization")]
		if who == "" || s.denied.Load() {
			http.Error(w, "who? "+r.Header.Get("Authorization"), http.StatusUnauthorized)
			return
		}
		if r.URL.Path == "/openapi.json" {
			s.reads.Add(1)
			doc := petsDocument
			if who == "ben" {
				doc = `{"openapi":"3.1.0","servers":[{"url":"/v1"}],"paths":{"/pets":{"get":{"operationId":"listPets"}}}}`
			}
			if s.moved.Load() {
				doc = strings.ReplaceAll(doc, `"/pets"`, `"/animals"`)
			}
			io.WriteString(w, doc)
			return
		}
		if s.moved.Load() && r.URL.Path == "/v1/pets" {
			http.NotFound(w, r)
			return
		}
		b, _ := io.ReadAll(r.Body)
		s.got.Store(fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), b))
		fmt.Fprintf(w, `{"who":%q,"sent":%q}`, who, r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	return s
}

type desk struct {
	*hosttest.Daemon
	issuer *hosttest.Issuer
}

// newDesk is a daemon with the plugin, and with the policies beside it.
func newDesk(t *testing.T, s *service, policies ...string) *desk {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(hosttest.ModuleRoot(), "tools.d", "openapi", "tool.json"))
	if err != nil {
		t.Fatal(err)
	}
	var def map[string]any
	if err := json.Unmarshal(b, &def); err != nil {
		t.Fatal(err)
	}
	def["config"].(map[string]any)["document"] = s.URL + "/openapi.json"
	def["capabilities"].(map[string]any)["http"].(map[string]any)["hosts"] = []string{strings.TrimPrefix(s.URL, "http://")}
	tools := filepath.Join(t.TempDir(), "tools.d")
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	modules := map[string]string{"handler.wasm": hosttest.Guest(t, "plugins/openapi")}
	for _, p := range policies {
		modules["restricted.wasm"] = hosttest.Guest(t, p)
	}
	hosttest.WriteTool(t, tools, "openapi", def, modules)
	issuer := hosttest.NewIssuer(t)
	return &desk{hosttest.Start(t, config.Config{Tools: tools, LogLevel: "debug", Identity: config.IdentityConfig{JWKS: issuer.JWKS}}), issuer}
}

func (d *desk) call(t *testing.T, token, tool, payload string) *wire.Result {
	t.Helper()
	res, err := client.Call(t.Context(), d.Socket, &wire.Call{Form: wire.Envelope, Tool: tool, ExecutionID: wire.NewExecutionID(), Payload: json.RawMessage(payload), Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func (d *desk) names(t *testing.T, token string) (names []string) {
	t.Helper()
	var l struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(d.call(t, token, "tools.list", `{}`).Data, &l); err != nil {
		t.Fatal(err)
	}
	for _, tool := range l.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// TestThroughDaemon: operations are tools, each caller has its own, and no
// credential comes back.
func TestThroughDaemon(t *testing.T) {
	s := newService(t)
	d := newDesk(t, s)
	anna := d.issuer.Token(t, map[string]any{"sub": "anna", "api_token": "anna-canary-51"})
	ben := d.issuer.Token(t, map[string]any{"sub": "ben", "api_token": "ben-canary-52"})
	if got, want := d.names(t, anna), []string{"add_pet", "get_pets_id", "list_pets", "remove_pet"}; !slices.Equal(got, want) {
		t.Errorf("anna sees %v, want %v", got, want)
	}
	if got, want := d.names(t, ben), []string{"list_pets"}; !slices.Equal(got, want) {
		t.Errorf("ben sees %v, want %v", got, want)
	}
	for _, tt := range []struct {
		token, tool, payload string
		code                 fault.Code
		got                  string
	}{
		{anna, "list_pets", `{"tag":["a&b=c","d"],"limit":2}`, "", "GET /v1/pets?limit=2&tag=a%26b%3Dc&tag=d "},
		{anna, "list_pets", `{"limit":0}`, fault.InvalidPayload, ""},
		{anna, "get_pets_id", `{"id":"a/../../admin?x#y"}`, "", "GET /v1/pets/a%2F..%2F..%2Fadmin%3Fx%23y "},
		{anna, "get_pets_id", `{"id":".."}`, fault.ToolFailed, ""},
		{anna, "add_pet", `{"body":{"name":"Rex","note":null,"parent":{"name":"Max"}}}`, "", `POST /v1/pets {"name":"Rex","note":null,"parent":{"name":"Max"}}`},
		{anna, "add_pet", `{"body":{"name":1}}`, fault.InvalidPayload, ""},
		{anna, "add_pet", `{}`, fault.InvalidPayload, ""},
		{anna, "remove_pet", `{"id":"1"}`, "", "DELETE /v1/pets/1 "},
		{anna, "remove_pet", `{"id":"1","Authorization":"Bearer x"}`, fault.InvalidPayload, ""},
		{ben, "add_pet", `{"body":{"name":"Rex"}}`, fault.UnknownTool, ""},
		{ben, "list_pets", `{}`, "", "GET /v1/pets "},
	} {
		s.got.Store("")
		r := d.call(t, tt.token, tt.tool, tt.payload)
		if code := errorCode(r); code != tt.code || s.got.Load() != tt.got {
			t.Errorf("%s %s: %v, the service got %q; want %q and %q", tt.tool, tt.payload, r.Err, s.got.Load(), tt.code, tt.got)
		}
		if strings.Contains(string(r.Data), "canary") || r.Err == nil && !strings.Contains(string(r.Data), "[secret]") {
			t.Errorf("%s: the service repeats the credential, and it comes through: %s", tt.tool, r.Data)
		}
	}
	if n := s.reads.Load(); n != 2 {
		t.Errorf("the document was read %d times", n)
	}

	// The same arguments elsewhere: one call follows.
	s.moved.Store(true)
	if r := d.call(t, anna, "list_pets", `{}`); r.Err != nil || s.got.Load() != "GET /v1/animals " {
		t.Errorf("after a move: %v, the service got %q", r.Err, s.got.Load())
	}
	s.denied.Store(true)
	if r := d.call(t, anna, "list_pets", `{}`); errorCode(r) != fault.Unauthenticated {
		t.Errorf("a credential that ended: %v", r.Err)
	}
	if logs := d.Logs(); strings.Contains(logs, "canary") {
		t.Error("a credential is in the log")
	}
}

// TestMovedIsAskedAgain: what a policy was asked about is what is called, also
// where a tool stands for something else by then.
func TestMovedIsAskedAgain(t *testing.T) {
	s := newService(t)
	d := newDesk(t, s, "host/testdata/guests/policy") // which is against /animals
	anna := d.issuer.Token(t, map[string]any{"sub": "anna", "api_token": "anna-canary-51"})
	if r := d.call(t, anna, "list_pets", `{}`); r.Err != nil || s.got.Load() != "GET /v1/pets " {
		t.Fatalf("%v, the service got %q", r.Err, s.got.Load())
	}
	s.got.Store("")
	s.moved.Store(true)
	if r := d.call(t, anna, "list_pets", `{}`); errorCode(r) != fault.Denied || s.got.Load() != "" {
		t.Errorf("after a move: %v, the service got %q", r.Err, s.got.Load())
	}
}

// TestReadOnly: what narrows a caller to reading holds for every tool.
func TestReadOnly(t *testing.T) {
	s := newService(t)
	d := newDesk(t, s)
	token := d.issuer.Token(t, map[string]any{"sub": "anna", "api_token": "anna-canary-51", "read_only": true})
	if got, want := d.names(t, token), []string{"get_pets_id", "list_pets"}; !slices.Equal(got, want) {
		t.Errorf("anna, narrowed, sees %v, want %v", got, want)
	}
	if r := d.call(t, token, "add_pet", `{"body":{"name":"Rex"}}`); errorCode(r) != fault.UnknownTool {
		t.Errorf("add_pet: %v", r.Err)
	}
}

func errorCode(r *wire.Result) fault.Code {
	if r.Err == nil {
		return ""
	}
	return r.Err.Code
}

// offered are the tools of a document.
func offered(t *testing.T, doc string) []abi.SurfaceTool {
	t.Helper()
	fake := &pdk.Fake{Config: map[string]string{"document": "http://service.test/openapi.json"}}
	fake.HTTP = func(*pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
		return &pdk.HTTPResponse{Status: 200, Body: []byte(doc)}, nil
	}
	s, err := fake.Discover(discover, &abi.Discovery{Tool: "openapi"})
	if err != nil || s.Error != nil {
		t.Fatalf("%v, %+v", err, s)
	}
	return s.Tools
}

// TestSchemasStayWhatTheyAre: a property may be named as a word of OpenAPI's, and
// what is a value is no schema.
func TestSchemasStayWhatTheyAre(t *testing.T) {
	const body = `{"type":"object","properties":{
		"nullable":{"type":"string","nullable":true},"xml":{"type":"string","xml":{"name":"x"}},"example":{"$ref":"#/components/schemas/Value"},
		"discriminator":{"type":"string","enum":["nullable"]},"externalDocs":{"type":"boolean"}},
		"default":{"xml":"as it is","$ref":"nothing"},"required":["xml"]}`
	tools := offered(t, `{"openapi":"3.0.3","paths":{"/x":{"post":{"operationId":"x","requestBody":{"content":{"application/json":{"schema":`+body+`}}}}}},
		"components":{"schemas":{"Value":{"type":"object","properties":{"xml":{"type":"integer","example":7}}}}}}`)
	var got struct {
		Properties struct{ Body json.RawMessage }
		Defs       json.RawMessage `json:"$defs"`
	}
	if len(tools) != 1 || json.Unmarshal(tools[0].Schema, &got) != nil {
		t.Fatalf("%+v", tools)
	}
	for _, tt := range []struct {
		got  json.RawMessage
		want string
	}{
		{got.Properties.Body, `{"type":"object","properties":{
			"nullable":{"type":["string","null"]},"xml":{"type":"string"},"example":{"$ref":"#/$defs/Value"},
			"discriminator":{"type":"string","enum":["nullable"]},"externalDocs":{"type":"boolean"}},
			"default":{"xml":"as it is","$ref":"nothing"},"required":["xml"]}`},
		{got.Defs, `{"Value":{"type":"object","properties":{"xml":{"type":"integer"}}}}`},
	} {
		var a, b any
		if err := json.Unmarshal([]byte(tt.want), &b); err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(tt.got, &a) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s, want %s", tt.got, tt.want)
		}
	}
}

// TestNamesFit: one operation with a name that cannot be one does not take the
// others with it.
func TestNamesFit(t *testing.T) {
	long := strings.Repeat("veryLong", 10)
	tools := offered(t, `{"openapi":"3.0.3","paths":{"/x":{"get":{"operationId":"`+long+`A"},"put":{"operationId":"`+long+`B"},"post":{"operationId":"你好"}}}}`)
	names := map[string]bool{}
	for _, tool := range tools {
		if !regexp.MustCompile(`^[a-z0-9][a-z0-9_]{0,63}$`).MatchString(tool.Name) {
			t.Errorf("the name %q", tool.Name)
		}
		names[tool.Name] = true
	}
	if len(names) != 3 {
		t.Errorf("the tools are %v", names)
	}
}

// FuzzDocument: whatever a service says of itself, there is an answer, and an
// argument stays where it belongs.
func FuzzDocument(f *testing.F) {
	f.Add(petsDocument, "a/b?c")
	f.Add(`{"openapi":"3.1.0","paths":{"/{a}{a}":{"get":{"parameters":[{"name":"a","in":"path"}]}}}}`, "..")
	f.Add(`{"openapi":"3.1.0","paths":{"":{"get":{"parameters":[{"$ref":"#/components/parameters/"}]}}}}`, "x")
	f.Fuzz(func(t *testing.T, doc, argument string) {
		fake := &pdk.Fake{Config: map[string]string{"document": "http://service.test/openapi.json"}}
		var asked string
		fake.HTTP = func(r *pdk.HTTPRequest) (*pdk.HTTPResponse, error) {
			asked = r.URL
			return &pdk.HTTPResponse{Status: 200, Body: []byte(doc)}, nil
		}
		s, err := fake.Discover(discover, &abi.Discovery{Tool: "openapi"})
		if err != nil || s.Error != nil {
			return
		}
		for _, tool := range s.Tools {
			var b binding
			if err := json.Unmarshal(tool.Binding, &b); err != nil {
				t.Fatal(err)
			}
			arguments := map[string]string{}
			for _, p := range b.Parameters {
				arguments[p.Name] = argument
			}
			payload, err := json.Marshal(arguments)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fake.Handle(handle, &abi.Call{Tool: tool.Name, Binding: tool.Binding, Payload: payload}); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(asked, b.Base) && asked != "http://service.test/openapi.json" {
				t.Fatalf("%s was asked, and the service is at %s", asked, b.Base)
			}
		}
	})
}
