package host_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// seen is what a guest wrote as numbers, in which nothing is masked.
func seen(t *testing.T, a *answer) string {
	t.Helper()
	var b []byte
	for _, n := range strings.Fields(strings.Trim(a.Stdout, "[]")) {
		v, err := strconv.Atoi(n)
		if err != nil {
			t.Fatalf("%s", a.raw)
		}
		b = append(b, byte(v))
	}
	return string(b)
}

// A guest learns nothing of a secret from a server that repeats what it was sent,
// in whatever way that is written, compressed or cut.
func TestGuestDoesNotSeeSecrets(t *testing.T) {
	const token, password = "t0p/s3cr3t+token=of the tool", "pass-canary/w0rd+71"
	var last *http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = r
		key, auth := r.Header.Get("X-Token"), strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")
		plain, _ := base64.StdEncoding.DecodeString(auth)
		echo := strings.Join([]string{
			key, auth, string(plain), url.QueryEscape(key), url.PathEscape(key), url.QueryEscape(auth), strings.ReplaceAll(url.QueryEscape(auth), "%3D", "%3d"),
			base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString([]byte("X" + key)), base64.URLEncoding.EncodeToString([]byte("XY" + key)),
			fmt.Sprintf("%q %x %X", key, key, key), strings.ReplaceAll(auth, "/", `\/`), strings.TrimPrefix(r.Header.Get("X-Bearer"), "Bearer "),
		}, "\n")
		switch r.URL.Path {
		case "/gzip":
			if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				io.WriteString(z, echo)
				z.Close()
				return
			}
		case "/deflate":
			w.Header().Set("Content-Encoding", "deflate")
			z := zlib.NewWriter(w)
			io.WriteString(z, echo)
			z.Close()
			return
		case "/range":
			if at, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
				from, _ := strconv.Atoi(strings.TrimSuffix(at, "-"))
				w.WriteHeader(http.StatusPartialContent)
				io.WriteString(w, key[from:min(from+4, len(key))])
				return
			}
		case "/headers":
			w.Header().Set("Trailer", "X-Last")
			w.Header().Set("X-Echo", key)
			w.Header().Set("X-"+strings.TrimRight(auth, "="), "1")
			w.Header().Set("Set-Cookie", "a="+url.QueryEscape(key))
			w.Header().Set("Location", "/x?k="+url.QueryEscape(key)+"&a="+auth)
			w.WriteHeader(http.StatusNotModified)
			w.Header().Set("X-Last", key)
			return
		case "/away":
			w.Header().Set("Location", "http://"+strings.Trim(strings.ToLower(auth), "=")+".example/"+url.PathEscape(key))
			w.WriteHeader(http.StatusFound)
			return
		case "/utf16":
			for _, c := range []byte(key) {
				w.Write([]byte{c, 0})
			}
			return
		}
		io.WriteString(w, echo)
	}))
	defer srv.Close()
	name := strings.TrimPrefix(srv.URL, "http://")
	dir := t.TempDir()
	for file, text := range map[string]string{"token": token, "bearer": "Bearer b3ar3r"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "api", M{
		"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{name}}},
		"config":       M{"password": password},
		"identity":     M{"secret": []string{"password"}},
		"secrets": M{
			"token":  M{"from": "file:" + filepath.Join(dir, "token"), "header": "X-Token", "host": name},
			"bearer": M{"from": "file:" + filepath.Join(dir, "bearer"), "header": "X-Bearer", "host": name},
		},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	basic := base64.StdEncoding.EncodeToString([]byte("alice:" + password))
	hidden := []string{token, password, basic, "s3cr3t", "canary", "pass-", url.QueryEscape(token), "alice:p", "b3ar3r", "YWxpY2U6"}
	for before := range 3 {
		for _, s := range []string{token, password} {
			// All that base64 has of it, but for the characters at both ends.
			e := base64.StdEncoding.EncodeToString([]byte("ABC"[:before] + s))
			hidden = append(hidden, e[4:len(e)-4], strings.NewReplacer("+", "-", "/", "_").Replace(e[4:len(e)-4]))
		}
	}
	for path, want := range map[string]string{
		"/plain": "[secret]", "/gzip": "[secret]", "/range": "[secret]", "/headers": "[secret]", "/utf16": "[secret]",
		"/deflate": "cannot be masked", "/away": "capabilities.http.hosts",
	} {
		last = nil
		a := ask(t, d.Socket, M{"tool": "api", "cwd": d.Root, "args": []string{"see", srv.URL + path,
			"Authorization: Basic of password", "accept-encoding: gzip, deflate, br", "Range: bytes=4-"}})
		got := seen(t, a)
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s\n%s", path, got, a.raw)
		}
		for _, s := range hidden {
			if strings.Contains(strings.ToLower(got), strings.ToLower(s)) {
				t.Errorf("%s: the guest sees %q in\n%s", path, s, got)
			}
		}
		if last == nil || last.Header.Get("X-Token") != token || last.Header.Get("Authorization") != "Basic "+basic {
			t.Fatalf("%s: the server did not get the secrets: %v", path, last)
		}
		if last.Header.Get("Range") != "" || last.Header.Get("Accept-Encoding") != "gzip" {
			t.Errorf("%s: Range %q, Accept-Encoding %q", path, last.Header.Get("Range"), last.Header.Get("Accept-Encoding"))
		}
	}
}

// Where no secret is sent, a module reads what it wants of what there is.
func TestGuestReadsRangesWithoutSecrets(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "deflate")
		io.WriteString(w, r.Header.Get("Range"))
	}))
	defer srv.Close()
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "api", M{
		"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{strings.TrimPrefix(srv.URL, "http://")}}},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	a := ask(t, d.Socket, M{"tool": "api", "cwd": d.Root, "args": []string{"see", srv.URL, "Range: bytes=4-"}})
	if got := seen(t, a); !strings.HasSuffix(got, "\n\nbytes=4-") {
		t.Errorf("%s", got)
	}
}

// What a tool prints of its secret is masked in the ways in which tools write
// credentials, and where it is cut by a kill or between the two outputs.
func TestToolDoesNotShowSecrets(t *testing.T) {
	const token = "ghp_0123456789abcdefABCDEFXYZ0987654321"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "sh", M{
		"binary": "/bin/bash", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}},
		"secrets": M{"token": M{"from": "file:" + file, "env": "TOKEN"}},
	}, nil)
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
	for script, want := range map[string]string{
		`printf 'Authorization: Basic %s' "$(printf 'x-access-token:%s' "$TOKEN" | base64 -w0)"`: "Authorization: Basic eC1hY2Nlc3MtdG9rZW46[secret]|",
		`printf '%s' "${TOKEN:0:20}"; printf '%s\n' "${TOKEN:20}" >&2`:                           "[secret]|[secret]\n",
		`printf '%s\n' "${TOKEN:0:20}"; printf '%s\n' "${TOKEN:20}" >&2`:                         "[secret]\n|[secret]\n",
		`printf '%s' "x${TOKEN:0:8}"; kill -9 $$`:                                                "x[secret]|",
		`printf '%s' "x${TOKEN:0:1}"`:                                                            "xg|",
	} {
		a := ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", script}})
		if got := a.Stdout + "|" + a.Stderr; got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
		var out, errs bytes.Buffer
		if _, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "sh", Args: []string{"-c", script}, Cwd: d.Root, Stream: true}, wire.Local{Stdout: &out, Stderr: &errs}); err != nil {
			t.Fatal(err)
		}
		if got := out.String() + "|" + errs.String(); got != want || strings.Contains(got, basic[20:]) {
			t.Errorf("streamed, %s: %q, want %q", script, got, want)
		}
	}
}

// The id of one caller's execution is no other caller's, while it runs, as a job,
// and as long as its answer is kept.
func TestExecutionIDIsOfOneCaller(t *testing.T) {
	issuer := hosttest.NewIssuer(t)
	d := hosttest.Start(t, config.Config{Identity: config.IdentityConfig{JWKS: issuer.JWKS}})
	d.Tool(t, "echo", M{"binary": "/bin/echo"}, nil)
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	alice, bob := issuer.Token(t, M{"sub": "alice"}), issuer.Token(t, M{"sub": "bob"})
	call := func(token, id, tool string, more M) *answer {
		t.Helper()
		payload := M{"args": []string{}, "cwd": d.Root}
		q := M{"toolId": tool, "executionId": id, "payload": payload, "token": token}
		for k, v := range more {
			if k == "args" {
				payload[k] = v
			} else {
				q[k] = v
			}
		}
		return ask(t, d.Socket, q)
	}
	refused := func(what string, a *answer) {
		t.Helper()
		if !strings.Contains(string(a.Error), "INVALID_ENVELOPE") || !strings.Contains(string(a.Error), "/executionId") {
			t.Errorf("%s: %s", what, a.raw)
		}
	}
	admin := client.NewAdmin(d.Admin)
	kept := func(id, want string) {
		t.Helper()
		if r, err := admin.Result(t.Context(), id); err != nil || string(r.Stdout)+string(r.Data) == "" || !strings.Contains(string(r.Stdout)+string(r.Data), want) {
			t.Errorf("the operator is given %+v, %v", r, err)
		}
	}

	id := newExecution()
	if a := call(alice, id, "echo", M{"args": []string{"of alice"}}); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	refused("kept", call(bob, id, "echo", M{"args": []string{"of bob"}}))
	refused("kept, in the background", call(bob, id, "echo", M{"background": true}))
	refused("kept, as a prompt", call(bob, id, "session.prompt", M{}))
	kept(id, "of alice")
	if a := call(alice, id, "echo", M{"args": []string{"again of alice"}}); a.Status != "success" {
		t.Errorf("her own again: %s", a.raw)
	}
	kept(id, "again of alice")
	plain := ask(t, d.Socket, M{"tool": "echo", "args": []string{"plain"}, "cwd": d.Root, "token": alice})
	refused("of a call in the plain form", call(bob, plain.ID, "echo", nil))

	// One that runs: it reads until its caller ends the input.
	id = newExecution()
	in, feed := io.Pipe()
	done := make(chan *wire.Result, 1)
	var out bytes.Buffer
	started := make(chan struct{})
	go func() {
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{
			Form: wire.Envelope, Tool: "cat", ExecutionID: id, Payload: []byte(`{"args": [], "cwd": "` + d.Root + `"}`), Token: alice, Stream: true,
		}, wire.Local{Stdin: in, Stdout: io.MultiWriter(&out, &once{c: started}), Stderr: io.Discard})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	io.WriteString(feed, "begun\n")
	<-started
	refused("running", call(bob, id, "echo", nil))
	a := ask(t, d.Socket, M{"toolId": "session.abort", "executionId": newExecution(), "payload": M{"execution": id}, "token": bob})
	if !strings.Contains(string(a.Data), `"aborted":[]`) {
		t.Errorf("bob aborts it: %s", a.raw)
	}
	a = ask(t, d.Socket, M{"toolId": "session.steer", "executionId": newExecution(), "payload": M{"execution": id, "text": "x"}, "token": bob})
	if !strings.Contains(string(a.Error), "NOT_RUNNING") {
		t.Errorf("bob steers it: %s", a.raw)
	}
	feed.Close()
	if res := <-done; res == nil || res.Err != nil || out.String() != "begun\n" {
		t.Errorf("%+v, %q", res, out.String())
	}

	// A job, also when it is over and nothing is kept but itself.
	id = newExecution()
	if a := call(alice, id, "echo", M{"background": true}); a.Status != "success" {
		t.Fatalf("%s", a.raw)
	}
	until(t, "the job is done", func() bool {
		a := ask(t, d.Socket, M{"toolId": "session.query", "executionId": newExecution(), "token": alice, "payload": M{"selector": "jobs.exists(j, j.state == 'done')"}})
		return strings.Contains(string(a.Data), "true")
	})
	refused("a job", call(bob, id, "echo", M{"background": true}))
}

// once closes c at the first write.
type once struct {
	c    chan struct{}
	done bool
}

func (o *once) Write(p []byte) (int, error) {
	if !o.done {
		o.done = true
		close(o.c)
	}
	return len(p), nil
}

// A secret that a tool could read by another name of its file is not used, and no
// binary runs meanwhile; the daemon's configuration is warned of.
func TestHardLinksToSecrets(t *testing.T) {
	const token = "t0p-s3cr3t-token-of-a-file"
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := func(string) (string, bool) { return "", false }
	file, toold, env := write("token", token+"\n"), write("toold.json", "{}"), write(".env", "X=y\n")
	c, err := config.Load(toold, none)
	if err != nil {
		t.Fatal(err)
	}
	link := func(path, to string) {
		t.Helper()
		if err := os.Link(path, to); err != nil {
			t.Fatal(err)
		}
	}
	link(toold, filepath.Join(dir, "other.json"))
	d := hosttest.Start(t, c)
	if !strings.Contains(d.Logs(), "more than one name") || !strings.Contains(d.Logs(), toold) {
		t.Error("the log does not warn of toold.json")
	}
	d.Tool(t, "holder", M{"binary": "/usr/bin/env", "secrets": M{"token": M{"from": "file:" + file, "env": "TOKEN"}}}, nil)
	d.Tool(t, "cat", M{"binary": "/bin/cat"}, nil)
	d.Tool(t, "api", M{
		"capabilities": M{"exec": []string{"/bin/echo"}, "state": 1024, "http": M{"hosts": []string{"nowhere.example"}}},
		"secrets":      M{"token": M{"from": "file:" + file, "header": "X-Token", "host": "nowhere.example"}},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	d.Tool(t, "runner", M{
		"capabilities": M{"exec": []string{"/bin/cat"}, "state": 1024, "http": M{"hosts": []string{"nowhere.example"}}},
	}, map[string]string{"handler.wasm": hosttest.Guest(t, handlerPkg)})
	waitState(t, d, "holder", "ok")
	waitState(t, d, "api", "ok")
	other := filepath.Join(d.Root, "innocent")
	for _, linked := range []bool{false, true, false} {
		if linked {
			link(file, other)
		} else {
			os.Remove(other)
		}
		for _, call := range []M{
			{"tool": "holder", "args": []string{}, "cwd": d.Root},
			{"tool": "cat", "args": []string{other}, "cwd": d.Root},
			{"tool": "api", "args": []string{"exec", "/bin/echo", "hi"}, "cwd": d.Root},
		} {
			a := ask(t, d.Socket, call)
			if got := a.Code == "TOOL_BROKEN" && strings.Contains(a.message(), file) && strings.Contains(a.message(), "mv "+file+".new"); got != linked {
				t.Errorf("linked %v: %v: %s", linked, call["tool"], a.raw)
			}
			if strings.Contains(string(a.raw), token) {
				t.Errorf("%v shows it: %s", call["tool"], a.raw)
			}
		}
	}
	link(file, other)
	a := ask(t, d.Socket, M{"tool": "runner", "args": []string{"exec", "/bin/cat", other}, "cwd": d.Root})
	if a.ExitCode == 0 || !strings.Contains(a.message(), file) || strings.Contains(string(a.raw), token) {
		t.Errorf("a binary that a module runs: %s", a.raw)
	}
	os.Remove(other)
	link(env, other)
	a = ask(t, d.Socket, M{"tool": "cat", "args": []string{other}, "cwd": d.Root})
	if a.Code != "TOOL_BROKEN" || !strings.Contains(a.message(), env) {
		t.Errorf("a link to .env while it runs: %s", a.raw)
	}
	next, err := config.Load(toold, none)
	if err == nil {
		err = next.Complete(none)
	}
	if err == nil || !strings.Contains(err.Error(), env) || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("a link to .env when it is read: %v", err)
	}
}

// A secret in a file is there for its call: no other call reads it, and nothing of
// it is left.
func TestSecretInFile(t *testing.T) {
	const token = "t0p-s3cr3t-token-in-a-file"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{})
	exec := M{"exec": []string{"/usr/bin", "/bin"}}
	d.Tool(t, "holder", M{"binary": "/bin/bash", "capabilities": exec, "secrets": M{
		"whole": M{"from": "file:" + file, "file": "WHOLE"}, "line": M{"from": "file:" + file, "file": "LINE", "content": "key={secret};\n"},
	}}, nil)
	d.Tool(t, "other", M{"binary": "/bin/bash", "capabilities": exec}, nil)
	sh := func(tool, script string) *answer {
		return ask(t, d.Socket, M{"tool": tool, "cwd": d.Root, "args": []string{"-c", script}})
	}
	a := sh("holder", `cat "$WHOLE" "$LINE"; stat -c %a "$LINE" "${LINE%/*}"; wc -c < "$WHOLE"; echo "$LINE" > path; cp "$LINE" copy; cat copy`)
	if a.Stdout != "[secret]key=[secret];\n600\n700\n26\nkey=[secret];\n" {
		t.Errorf("its own: %s", a.raw)
	}
	path, err := os.ReadFile(filepath.Join(d.Root, "path"))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(string(path))
	if _, err := os.Stat(name); err == nil {
		t.Error("it is left")
	}
	if confine.Confinement().ABI == 0 {
		t.Skip("there is no Landlock here")
	}
	// While it is there: the one call waits for the other at a pipe.
	if err := syscall.Mkfifo(filepath.Join(d.Root, "gate"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan *answer, 1)
	go func() { done <- sh("holder", `echo "$LINE" > gate; read -r x < gate; cat "$LINE"`) }()
	a = sh("other", `read -r name < gate; cat "$name" 2>&1; ls "${name%/*}" 2>&1; echo go > gate`)
	if strings.Contains(a.Stdout, token) || strings.Contains(a.Stdout, "key=") || strings.Count(a.Stdout, "Permission denied")+strings.Count(a.Stdout, "No such file") != 2 {
		t.Errorf("another tool: %s", a.raw)
	}
	if a := <-done; a.Stdout != "key=[secret];\n" {
		t.Errorf("its own: %s", a.raw)
	}
	if left, _ := os.ReadDir(filepath.Join(d.Config.State, "secrets")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if err := os.WriteFile(file, []byte("two\nlines-of-a-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := sh("holder", "true"); a.Code != "TOOL_BROKEN" || !strings.Contains(a.message(), "line break") {
		t.Errorf("lines in content: %s", a.raw)
	}
}

// A call cannot have the daemon keep the folder with its secrets, nor keep a daemon from
// starting by what it leaves there.
func TestSecretFolderIsRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("sesame-open-the-door\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "holder", M{"binary": "/bin/bash", "capabilities": M{"exec": []string{"/usr/bin", "/bin"}}, "secrets": M{"key": M{"from": "file:" + file, "file": "KEY"}}}, nil)
	a := ask(t, d.Socket, M{"tool": "holder", "cwd": d.Root, "args": []string{"-c", `
		cd "${KEY%/*}" && mkdir -p a/b && cp "$KEY" a/b && mkfifo a/c && ln -s / a/d && chmod 0 a/b a . && echo closed`}})
	if a.Stdout != "closed\n" {
		t.Fatal(a.raw)
	}
	if left, err := os.ReadDir(filepath.Join(d.Config.State, "secrets")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
