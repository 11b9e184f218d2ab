package compat

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
)

// guestComponents is where components are that the tests of host/guest have.
const guestComponents = "../guest/testdata/components/"

// A component's requests are bound by what binds a module's: hosts, methods and
// private addresses, secrets that the host adds, and answers in which they are
// masked. What is not granted is an error of its own type.
func TestComponentRequests(t *testing.T) {
	const token = "s3cret-t0ken-of-the-test"
	site := hosttest.NewSite(t, "127.0.0.1:0", nil, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Got", r.Header.Get("X-Token"))
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://example.com/", http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Own")+" "+r.Header.Get("X-Token")+" "+string(b))
	})
	here := "127.0.0.1:" + site.Port()
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	module := map[string]string{"handler.wasm": guestComponents + "http.wasm"}
	entry := M{"export": "fetch"}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "granted", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{here}, "methods": []string{"GET", "POST"}}},
		"secrets": M{"token": M{"from": "file:" + secret, "header": "X-Token", "host": here}}}, module)
	d.Tool(t, "reading", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{here}}}}, module)
	d.Tool(t, "public", M{"entry": entry, "capabilities": M{"http": M{"hosts": []string{"*"}, "methods": []string{"*"}}}}, module)
	d.Tool(t, "none", M{"entry": entry}, module)
	payload := func(method, authority, path string, body any) M {
		return M{"method": method, "scheme": "http", "authority": authority, "path": path, "headers": [][]string{{"x-own", "mine"}, {"X-Token", "forged"}}, "body": body}
	}
	res := do(t, d, "granted", payload("POST", here, "/a?b", "text"))
	var data struct {
		OK struct {
			Status  int
			Headers [][2]string
			Body    string
		}
	}
	if res.Err != nil || json.Unmarshal(res.Data, &data) != nil || data.OK.Status != http.StatusTeapot || !strings.HasPrefix(data.OK.Body, "POST /a?b mine ") || !strings.HasSuffix(data.OK.Body, " text") {
		t.Errorf("granted: %s %v", res.Data, res.Err)
	}
	if strings.Contains(string(res.Data), token) || strings.Contains(data.OK.Body, "forged") {
		t.Errorf("the guest sees the secret, or sends its own: %s", res.Data)
	}
	asked := len(site.Asked())
	const denied = "ErrorCode::HttpRequestDenied"
	for name, tt := range map[string]struct {
		tool    string
		payload M
	}{
		"another host":             {"granted", payload("GET", "localhost:"+site.Port(), "/", nil)},
		"another port":             {"granted", payload("GET", "127.0.0.1:1", "/", nil)},
		"another method":           {"granted", payload("DELETE", here, "/", nil)},
		"no method but to read":    {"reading", payload("POST", here, "/", "text")},
		"an address of this host":  {"public", payload("GET", here, "/", nil)},
		"a name of this host":      {"public", payload("GET", "localhost:"+site.Port(), "/", nil)},
		"a tool without a network": {"none", payload("GET", here, "/", nil)},
	} {
		if res := do(t, d, tt.tool, tt.payload); res.Err == nil || res.Err.Code != fault.ToolFailed || res.Err.Message != denied {
			t.Errorf("%s: %s %v", name, res.Data, res.Err)
		}
	}
	if n := len(site.Asked()); n != asked {
		t.Errorf("the server was asked %d times for what is denied", n-asked)
	}
	if res := do(t, d, "granted", payload("GET", here, "/away", nil)); res.Err == nil || res.Err.Message != denied {
		t.Errorf("a redirect to what is not granted: %s %v", res.Data, res.Err)
	}
	site.Close()
	if res := do(t, d, "granted", payload("GET", here, "/", nil)); res.Err == nil || res.Err.Message != "ErrorCode::ConnectionRefused" {
		t.Errorf("nobody there: %s %v", res.Data, res.Err)
	}
}
