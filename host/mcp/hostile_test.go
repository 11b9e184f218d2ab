package mcp_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/mcp"
)

// rawClient says what it wants on a connection of the socket.
type rawClient struct {
	net.Conn
	t  testing.TB
	in *bufio.Reader
}

func (c *rawClient) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// ask makes a request, and returns its answer.
func (c *rawClient) ask(id int, method, params string) (answer struct {
	ID     int             `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
	line, err := c.in.ReadBytes('\n')
	if err := errors.Join(err, json.Unmarshal(line, &answer)); err != nil || answer.ID != id {
		c.t.Fatalf("%s %s is answered %q, %v", method, params, line, err)
	}
	return answer
}

// A client that answers what it was not asked, and one that speaks several versions of
// the protocol on one connection, is answered request by request, and gets nothing more.
func TestClientThatChangesItsMind(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	for _, sessions := range []bool{true, false} {
		nc := dial(t, path, mcp.Caller{Cwd: d.Root}).Writer.(net.Conn)
		changeMind(t, &rawClient{nc, t, bufio.NewReader(nc)}, sessions)
	}
}

// changeMind has c begin in a version with sessions, or without, and go on in both.
func changeMind(t *testing.T, c *rawClient, sessions bool) {
	const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`
	const start = `{"protocolVersion":"` + oldest + `","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}`
	const call = `"name":"echo","arguments":{"args":["hello"]}`
	answers := func(extra int) {
		t.Helper()
		c.say(`{"jsonrpc":"2.0","id":99,"result":{"action":"accept","content":{}}}`)
		c.say(`{"jsonrpc":"2.0","id":"never","error":{"code":1,"message":"no"}}`)
		c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12345}}`)
		c.say(`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"x"}}`)
		if got := c.ask(extra, "tools/call", `{`+call+`,"requestState":"guessed","inputResponses":{"input":{"action":"accept","content":{"input":"x"}}},`+modern+`}`); got.Error == nil || got.Error.Code != -32602 {
			t.Errorf("an answer to nothing: %s, %+v", got.Result, got.Error)
		}
		if got := c.ask(extra+1, "tools/call", `{`+call+`,"requestState":"guessed","inputResponses":{"io.toold/approval":{"action":"accept"}},`+modern+`}`); !strings.Contains(string(got.Result), "INVALID_PAYLOAD") {
			t.Errorf("an approval of nothing: %s, %+v", got.Result, got.Error)
		}
	}
	if got := c.ask(1, "tools/list", `{}`); got.Error == nil {
		t.Errorf("a request of no version: %s", got.Result)
	}
	if sessions {
		if got := c.ask(2, "initialize", start); got.Error != nil {
			t.Fatal(got.Error)
		}
		c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	} else if got := c.ask(2, "tools/list", `{`+modern+`}`); !strings.Contains(string(got.Result), `"resultType"`) {
		t.Fatalf("%s, %+v", got.Result, got.Error)
	}
	answers(10)
	for id := 20; id < 24; id++ {
		params, newer := `{`+call+`}`, !sessions
		if id%2 == 0 {
			params, newer = `{`+call+`,`+modern+`}`, true
		}
		if got := c.ask(id, "tools/call", params); !strings.Contains(string(got.Result), `hello\n`) || strings.Contains(string(got.Result), `"resultType"`) != newer {
			t.Errorf("%s: %s, %+v", params, got.Result, got.Error)
		}
	}
	// There is one handshake, and it is the first thing that is said or none.
	for id, params := range []string{start, strings.Replace(start, oldest, newest, 1), `{"protocolVersion":"` + oldest + `",` + modern + `}`} {
		if got := c.ask(30+id, "initialize", params); got.Error == nil {
			t.Errorf("another handshake: %s", got.Result)
		}
	}
	answers(40)
	if got := c.ask(50, "tools/call", `{`+call+`}`); !strings.Contains(string(got.Result), `hello\n`) {
		t.Errorf("in the end: %s, %+v", got.Result, got.Error)
	}
}

// A second identity that knows all names of the first one's finds nothing by them: pages,
// sessions, searches and tokens are its own.
func TestSecondIdentity(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"tee": {"binary": "tee"}}, surface(t))
	alice, bob := s.Token(t, object{"sub": "alice", "user": "alice"}), s.Token(t, object{"sub": "bob", "user": "bob"})
	nc := dial(t, s.Config.Sockets[0].Path, mcp.Caller{Token: bob, Cwd: s.Root}).Writer.(net.Conn)
	c := &rawClient{nc, t, bufio.NewReader(nc)}
	meta := func(more string) string {
		return `"_meta":{` + more + `"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	made := connect(t, s.Config.Sockets[0].Path, mcp.Caller{Token: alice, Cwd: s.Root}, nil)
	file := filepath.Join(s.Root, "out")
	if r := invoke(t, made, "tee", object{"args": []string{file}}); r.IsError {
		t.Fatal(text(r))
	}
	id := 0
	said := func(method, params string) string {
		t.Helper()
		id++
		got := c.ask(id, method, params)
		if got.Error != nil {
			return got.Error.Message
		}
		return string(got.Result)
	}
	for _, cursor := range []string{"user_alice", "user_alicd", "", "t", "zzzz", "\\u0000", strings.Repeat("z", 60<<10)} {
		for _, limit := range []string{"", `"io.toold/limit":2,`, `"io.toold/query":"alice",`} {
			if got := said("tools/list", `{"cursor":"`+cursor+`",`+meta(limit)+`}`); strings.Contains(got, "user_alice") {
				t.Errorf("the page after %.20q: %s", cursor, got)
			}
		}
	}
	for _, query := range []string{"alice", "user_alice", "ALICE", "user_", "_", strings.Repeat("u ", 512), `\") || true || (\"`, "\\u0130\\u0000", `.*`} {
		b, err := json.Marshal(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := said("tools/call", `{"name":"tools_search","arguments":{"query":`+string(b)+`,"limit":50},`+meta("")+`}`); strings.Contains(got, `"user_alice"`) {
			t.Errorf("a search for %.20q: %s", query, got)
		}
	}
	for what, more := range map[string]string{
		"a token for another server":    `"io.toold/token":"` + s.Token(t, object{"sub": "alice", "user": "alice", "aud": "https://other.example"}) + `x",`,
		"a token that is none":          `"io.toold/token":"x.y.z",`,
		"no token, where one was given": `"io.toold/token":7,`,
		"a session of nobody":           `"io.toold/session":"guessed",`,
	} {
		if got := said("tools/call", `{"name":"tee","arguments":{"args":["`+file+`"]},`+meta(more)+`}`); !strings.Contains(got, `"isError":true`) {
			t.Errorf("%s: %s", what, got)
		}
	}
	// Neither sees what the other one runs, by whatever key or turn it names.
	key := `"io.toold/idempotencyKey":"theirs",`
	if got := said("tools/call", `{"name":"user_alice","arguments":{},`+meta(key)+`}`); !strings.Contains(got, "UNKNOWN_TOOL") {
		t.Errorf("a tool of the other's: %s", got)
	}
}

// In one turn of an agent a change is made once, and what only reads is made anew: it has
// to see the change.
func TestTurn(t *testing.T) {
	d, path := daemon(t, config.Config{Reliability: "all"}, map[string]object{"cat": {"binary": "cat"}, "tee": {"binary": "tee", "mutating": true}})
	s := connect(t, path, mcp.Caller{Cwd: d.Root}, nil)
	file := filepath.Join(d.Root, "file")
	call := func(tool, arg, turn, in string) *sdk.CallToolResult {
		t.Helper()
		args := []string{arg}
		if tool == "tee" {
			args = []string{"-a", arg}
		}
		r, err := s.CallTool(bound(t), &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/turn": turn}, Name: tool,
			Arguments: object{"args": args, "stdin": base64.StdEncoding.EncodeToString([]byte(in))}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := ""
	for _, turn := range []string{"one", "two"} {
		want += "x"
		for again := range 2 {
			if r := call("tee", file, turn, "x"); r.IsError || (r.Meta["io.toold/fromCache"] == true) != (again == 1) {
				t.Errorf("the change in turn %s: %q, %v", turn, text(r), r.Meta)
			}
			if r := call("cat", file, turn, ""); text(r) != want || r.Meta["io.toold/fromCache"] != nil {
				t.Errorf("read in turn %s: %q, %v, want %q", turn, text(r), r.Meta, want)
			}
		}
	}
	for _, turn := range []any{"", strings.Repeat("x", 257), 7, nil} {
		r, err := s.CallTool(bound(t), &sdk.CallToolParams{Meta: sdk.Meta{"io.toold/turn": turn}, Name: "tee", Arguments: object{"args": []string{file}}})
		if err != nil || !r.IsError || !strings.Contains(text(r), "INVALID_ENVELOPE") {
			t.Errorf("turn %v: %v, %v", turn, r, err)
		}
	}
}

// A request is answered under its own id, or refused: an id that is cut to another one
// would have one request answered for another.
func TestIDs(t *testing.T) {
	d, path := daemon(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	nc := begin(t, path, d.Root)
	in := bufio.NewReader(nc)
	read := func() string {
		t.Helper()
		line, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	read() // of the handshake
	for id, want := range map[string]string{
		`7`: `"id":7,"result"`, `"7"`: `"id":"7","result"`, `-1`: `"id":-1,"result"`, `9007199254740991`: `"id":9007199254740991,"result"`, `""`: `"id":"","result"`,
		`9007199254740993`: `"id":9007199254740993,"error"`, `-9007199254740993`: `"id":-9007199254740993,"error"`, `1.5`: `"id":1.5,"error"`, `1e2`: `"id":1e2,"error"`, `1e400`: `"id":1e400,"error"`, `9223372036854775808`: `"id":9223372036854775808,"error"`,
		`null`: `"id":null,"error"`, `true`: `"id":null,"error"`, `{"a":1}`: `"id":null,"error"`, `[7]`: `"id":null,"error"`,
	} {
		if _, err := io.WriteString(nc, `{"jsonrpc":"2.0","id": `+id+` ,"method":"ping"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := read(); !strings.Contains(got, want) {
			t.Errorf("id %s is answered %s", id, got)
		}
	}
	// None of these ends the connection.
	call := `{"jsonrpc":"2.0","id":70,"method":"tools/call","params":{"name":"echo","arguments":{"args":["hello"]}}}`
	for _, bad := range []string{
		`{"jsonrpc":"2.0","id":71,"method":"ping","params":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + `}`,
		`{"jsonrpc":"2.0","id":71,"method":"tools/call","params":{"name":"echo","arguments":` + strings.Repeat(`{"a":`, 50_000) + `1` + strings.Repeat(`}`, 50_000) + `}}`,
		`{"jsonrpc":"1.0","id":71,"method":"ping"}`, `{"id":71,"method":"ping"}`, `{"jsonrpc":"2.0","id":71,"method":7}`,
		`[{"jsonrpc":"2.0","id":71,"method":"ping"}]`,
	} {
		if _, err := io.WriteString(nc, bad+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := read(); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"isError":true`) {
			t.Errorf("%.60s is answered %s", bad, got)
		}
	}
	if _, err := io.WriteString(nc, call+"\n"); err != nil {
		t.Fatal(err)
	}
	if got := read(); !strings.Contains(got, `"id":70,"result"`) || !strings.Contains(got, `hello\n`) {
		t.Errorf("in the end: %s", got)
	}
}

// What the daemon does not offer, and more of what it does than one client may have, is
// refused with what is the matter.
func TestRefusedRequests(t *testing.T) {
	s := web(t, config.Config{}, map[string]object{"echo": {"binary": "echo"}})
	token := s.Token(t, object{"sub": "alice"})
	nc := dial(t, s.Config.Sockets[0].Path, mcp.Caller{Token: token, Cwd: s.Root}).Writer.(net.Conn)
	c := &rawClient{nc, t, bufio.NewReader(nc)}
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + newest + `","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
	for id, method := range []string{"prompts/list", "prompts/get", "resources/list", "resources/read", "resources/templates/list", "completion/complete", "nothing/like/it"} {
		params := `{"name":"x","uri":"x:y","ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"x","value":"y"},` + meta + `}`
		if got := c.ask(id+1, method, params); got.Error == nil || got.Error.Code != -32601 {
			t.Errorf("%s: %s, %+v", method, got.Result, got.Error)
		}
	}
	for id, params := range []string{`{` + meta + `}`, `{"taskId":"",` + meta + `}`, `{"taskId":"guessed",` + meta + `}`} {
		if got := c.ask(20+id, "tasks/get", params); got.Error == nil || got.Error.Code != -32602 {
			t.Errorf("tasks/get %s: %s, %+v", params, got.Result, got.Error)
		}
	}
	// Over HTTP what routes a request is told the same task as who answers it.
	header := map[string]string{"Mcp-Protocol-Version": newest, "Mcp-Method": "tasks/get", "Mcp-Name": "another"}
	if status, _, body := s.ask(t, "POST", "/mcp", token, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"one",`+meta+`}}`, header); !strings.Contains(body, "another task") && status/100 != 4 {
		t.Errorf("another task in the header: %d %s", status, body)
	}
	for what, header := range map[string]map[string]string{
		"a page of this server, says the browser": {"Sec-Fetch-Site": "same-origin"}, "no page": {"Sec-Fetch-Site": "none"},
	} {
		if status, _, body := s.ask(t, "POST", "/mcp", token, hello, header); status != 200 {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	port := s.url[strings.LastIndex(s.url, ":")+1 : strings.LastIndex(s.url, "/")]
	for _, origin := range []string{"ftp://127.0.0.1:" + port, "http://[", "127.0.0.1:" + port, "http://127.0.0.1.evil.example:" + port, "http://user@evil.example:" + port} {
		if status, _, body := s.ask(t, "POST", "/mcp", token, hello, map[string]string{"Origin": origin}); status != 403 {
			t.Errorf("origin %s: %d %s", origin, status, body)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}
