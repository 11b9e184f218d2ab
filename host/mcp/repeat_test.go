package mcp_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/mcp"
)

// cutter passes connections on, and cuts each of them after some bytes.
func cutter(t *testing.T, network, to string, most int) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer from.Close()
				on, err := net.Dial(network, to)
				if err != nil {
					return
				}
				defer on.Close()
				from.(*net.TCPConn).SetLinger(0) // as a cable that is pulled
				var both sync.WaitGroup
				pass := func(to, from net.Conn) {
					io.CopyN(to, from, rand.Int64N(int64(most)))
					to.Close()
					from.Close()
				}
				both.Go(func() { pass(on, from) })
				both.Go(func() { pass(from, on) })
				both.Wait()
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr()
}

// errCut is why a call has to be made again.
var errCut = errors.New("the connection was cut")

// repeats is how many calls there are of each kind, TOOLD_TEST_REPEATS.
func repeats() int {
	if n, err := strconv.Atoi(os.Getenv("TOOLD_TEST_REPEATS")); err == nil {
		return n
	}
	return 40
}

// checkOnce checks that each of calls wrote its line to a file, once.
func checkOnce(t *testing.T, file string, calls, cuts int) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for line := range strings.Lines(string(b)) {
		times[strings.TrimSpace(line)]++
	}
	lost, twice := 0, 0
	for i := range calls {
		switch n := times[strconv.Itoa(i)]; {
		case n == 0:
			lost++
		case n > 1:
			twice++
		}
	}
	t.Logf("%d calls, %d cuts: %d lost, %d ran twice", calls, cuts, lost, twice)
	if lost > 0 || twice > 0 || cuts == 0 {
		t.Errorf("%d calls, %d cuts: %d lost, %d ran twice", calls, cuts, lost, twice)
	}
}

// The SDKs make their calls again over connections that are cut: each runs once, and is
// answered.
func TestRealClientsRepeat(t *testing.T) {
	dir := clients(t)
	calls := repeats()
	s := web(t, config.Config{Reliability: "all"}, map[string]object{"tee": {"binary": "tee", "mutating": true}})
	at := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/mcp")
	for _, kind := range []struct{ sdk, mode string }{{"typescript", ""}, {"python", "legacy"}, {"python", newest}} {
		name := strings.TrimSuffix(kind.sdk+"-"+kind.mode, "-")
		t.Run(name, func(t *testing.T) {
			process := startRemote(t, sdkProcess(t, dir, kind.sdk))
			file := filepath.Join(s.Root, name)
			client := &remoteClient{process, "repeats"}
			got := client.do(object{"op": "repeat", "mode": kind.mode, "token": s.Token(t, object{"sub": "alice"}), "url": "http://" + cutter(t, "tcp", at, 6000).String() + "/mcp", "calls": calls, "file": file})
			checkOnce(t, file, calls, got.Cuts)
		})
	}
}

// A client whose streams are cut makes its call again, under a new id, with the same
// key or in the same turn: each runs once, and the answer comes.
func TestRepeatedCallsRunOnce(t *testing.T) {
	calls := repeats()
	s := web(t, config.Config{Reliability: "all"}, map[string]object{"tee": {"binary": "tee", "mutating": true}})
	token := s.Token(t, object{"sub": "alice"})
	at := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/mcp")
	overHTTP := "http://" + cutter(t, "tcp", at, 3000).String() + "/mcp"
	overSocket := cutter(t, "unix", s.Config.Sockets[0].Path, 1500)

	post := func(t *testing.T, client *http.Client, body string, header map[string]string) (string, http.Header, error) {
		q, err := http.NewRequestWithContext(bound(t), "POST", overHTTP, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Host = at
		q.Header.Set("Authorization", "Bearer "+token)
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range header {
			q.Header.Set(k, v)
		}
		res, err := client.Do(q)
		if err != nil {
			return "", nil, errCut
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			return "", nil, errCut
		}
		if res.StatusCode/100 != 2 {
			return "", nil, fmt.Errorf("%d %s", res.StatusCode, b)
		}
		for line := range bytes.Lines(b) {
			if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
				return "{" + string(data), res.Header, nil
			}
		}
		if len(b) > 0 {
			return "", nil, errCut
		}
		return "", res.Header, nil
	}
	for name, make := range map[string]func(t *testing.T, id int, call string) (string, error){
		newest: func(t *testing.T, id int, call string) (string, error) {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			body, _, err := post(t, client, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id,
				strings.Replace(call, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/protocolVersion":"`+newest+`","io.modelcontextprotocol/clientCapabilities":{},`, 1)),
				map[string]string{"Mcp-Protocol-Version": newest, "Mcp-Method": "tools/call", "Mcp-Name": "tee"})
			return body, err
		},
		oldest: func(t *testing.T, id int, call string) (string, error) {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			_, header, err := post(t, client, hello, nil)
			if err != nil {
				return "", err
			}
			in := map[string]string{"Mcp-Protocol-Version": oldest, "Mcp-Session-Id": header.Get("Mcp-Session-Id")}
			if _, _, err := post(t, client, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, in); err != nil {
				return "", err
			}
			body, _, err := post(t, client, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`, id, call), in)
			return body, err
		},
		"socket": func(t *testing.T, id int, call string) (string, error) {
			nc, err := net.Dial("tcp", overSocket.String())
			if err != nil {
				return "", errCut
			}
			defer nc.Close()
			hello := strings.Replace(hello, `"id":1`, `"id":"hello"`, 1)
			caller := `{"jsonrpc":"2.0","method":"` + mcp.MethodCaller + `","params":{"token":"` + token + `"}}`
			fmt.Fprintf(nc, "%s\n%s\n%s\n"+`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":%s}`+"\n", caller, hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, id, call)
			in := bufio.NewReader(nc)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return "", errCut
				}
				if strings.Contains(line, fmt.Sprintf(`"id":%d,`, id)) {
					return line, nil
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(s.Root, name)
			cuts, next := 0, 1
			for i := range calls {
				key := fmt.Sprintf(`"io.toold/idempotencyKey":"%s-%d"`, name, i)
				if i%2 == 1 {
					key = fmt.Sprintf(`"io.toold/turn":"turn %d"`, i)
				}
				call := fmt.Sprintf(`{"name":"tee","arguments":{"args":["-a",%q],"stdin":%q},"_meta":{%s}}`, out, base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d\n", i)), key)
				for end := time.Now().Add(time.Minute); ; next++ {
					if time.Now().After(end) {
						t.Fatalf("call %d got no answer", i)
					}
					body, err := make(t, next, call)
					if errors.Is(err, errCut) {
						cuts++
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					var got struct {
						Result struct {
							IsError bool `json:"isError"`
							Meta    map[string]any
						} `json:"result"`
					}
					if err := json.Unmarshal([]byte(body), &got); err != nil {
						t.Fatalf("%v in %q", err, body)
					}
					if got.Result.IsError {
						if strings.Contains(body, `"retriable":true`) {
							continue
						}
						t.Fatalf("call %d: %s", i, body)
					}
					if !strings.Contains(body, fmt.Sprintf(`%d\n`, i)) {
						t.Fatalf("call %d was answered %s", i, body)
					}
					break
				}
			}
			checkOnce(t, out, calls, cuts)
		})
	}
}
