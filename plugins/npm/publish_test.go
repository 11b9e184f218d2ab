package main

import (
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/pdk/abi"
)

// publishing is a registry that takes versions, each once, from who has the token.
type publishing struct {
	mu sync.Mutex
	// versions are the manifests by name and version; puts counts requests that publish.
	versions map[string]map[string]json.RawMessage
	puts     int
	// before is called when a request to publish has come, and after when it has been
	// served; false from either cuts the connection.
	before, after func(spec string) bool
	refused       []string
}

func (r *publishing) serve(w http.ResponseWriter, q *http.Request) {
	name := strings.TrimPrefix(q.URL.Path, "/")
	switch q.Method {
	case http.MethodGet:
		r.mu.Lock()
		defer r.mu.Unlock()
		versions := r.versions[name]
		if len(versions) == 0 {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"error":"not found"}`)
			return
		}
		latest := ""
		for v := range versions {
			latest = max(latest, v)
		}
		json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": latest}, "versions": versions})
	case http.MethodPut:
		var doc struct {
			Versions    map[string]json.RawMessage
			Attachments map[string]struct{ Data []byte } `json:"_attachments"`
		}
		if q.Header.Get("Authorization") != "Bearer "+registryToken {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if err := json.NewDecoder(q.Body).Decode(&doc); err != nil || len(doc.Versions) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for version, manifest := range doc.Versions {
			spec := name + "@" + version
			r.mu.Lock()
			before, after := r.before, r.after
			r.mu.Unlock()
			if before != nil && !before(spec) {
				panic(http.ErrAbortHandler)
			}
			r.mu.Lock()
			r.puts++
			there := r.versions[name][version] != nil
			if r.versions[name] == nil {
				r.versions[name] = map[string]json.RawMessage{}
			}
			if !there {
				r.versions[name][version] = manifest
			} else {
				r.refused = append(r.refused, spec)
			}
			r.mu.Unlock()
			if after != nil && !after(spec) {
				panic(http.ErrAbortHandler)
			}
			if there {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprintf(w, `{"error":"You cannot publish over the previously published versions: %s."}`, version)
				return
			}
			io.WriteString(w, `{"ok":true}`)
		}
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (r *publishing) has(name, version string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.versions[name][version] != nil
}

// publisher is a caller whose npm may publish "p" and what is in @s.
func publisher(t *testing.T) (*caller, *publishing) {
	c, r := newCaller(t), &publishing{versions: map[string]map[string]json.RawMessage{}}
	c.good.Answer(r.serve)
	c.Tool(c.d, "npm", c.publishes())
	return c, r
}

// publishes is the definition of an npm that may publish, whose requests the policy judges.
func (c *caller) publishes() map[string]any {
	if !hosttest.Judged() {
		c.t.Skip("requests are not judged here")
	}
	def := c.definition()
	site := c.good.Listener.Addr().String()
	def["capabilities"].(map[string]any)["network"] = []string{site}
	def["config"] = map[string]any{"registry": c.good.URL, "userconfig": "host", "publish": "p @s/*"}
	def["secrets"] = map[string]any{"registry": map[string]any{"from": "file:" + filepath.Join(c.Dir, "token"), "header": "Authorization", "content": "Bearer {secret}", "host": site, "insecure_http": true}}
	def["reliability"] = map[string]any{"mode": "all"}
	return def
}

// TestPublish: what the operator lists is published, with the scripts that prepare it,
// and nothing else is, whatever package.json says.
func TestPublish(t *testing.T) {
	c, r := publisher(t)
	c.project(map[string]string{"prepack": "echo built > built.txt; echo prepack >> $MARK", "postpublish": "echo postpublish >> $MARK"}, nil)
	out, errs, code := c.npm("", "publish")
	if code != 0 || !r.has("p", "1.2.3") || c.marks() != "prepack; postpublish" || !strings.HasSuffix(out, "+ p@1.2.3\n") || !strings.Contains(errs, "built.txt") {
		t.Fatalf("publish: exit code %d: %s%s", code, out, errs)
	}
	if out, errs, code := c.npm("", "publish"); code != 1 || !strings.Contains(errs, "previously published") {
		t.Errorf("the same version again: exit code %d: %s%s", code, out, errs)
	}
	if out, errs, code := c.npm("", "view", "p@1.2.3", "version"); code != 0 || out != "1.2.3\n" {
		t.Errorf("view: exit code %d: %s%s", code, out, errs)
	}
	for _, tt := range []struct {
		name string
		more map[string]any
		npm  string
		want string
	}{
		{"another name", map[string]any{"name": "other"}, "publish", "denied by rule npm.publish"},
		{"another scope", map[string]any{"name": "@other/p"}, "publish", "denied by rule npm.publish"},
		{"a scope that is like it", map[string]any{"name": "@s.x/p"}, "publish", "denied by rule npm.publish"},
		{"another registry", map[string]any{"version": "2.0.0", "publishConfig": map[string]string{"registry": c.evil.URL}}, "publish --dry-run", ""},
		{"a registry of its scope", map[string]any{"name": "@s/p", "publishConfig": map[string]string{"@s:registry": c.evil.URL}}, "publish", "ENEEDAUTH"},
		{"a shell", map[string]any{"name": "other", "publishConfig": map[string]any{"script-shell": c.Cwd + "/evil-sh", "scriptShell": c.Cwd + "/evil-sh", "ignore-scripts": false}, "scripts": map[string]string{"prepack": "true", "postpack": "true"}}, "publish", "denied by rule npm.publish"},
		{"by force", nil, "publish --force", "denied by rule npm.flag.refused"},
	} {
		c.project(nil, tt.more)
		out, errs, code := c.npm("", strings.Fields(tt.npm)...)
		if tt.want != "" && code == 0 || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: exit code %d: %s%s", tt.name, code, out, errs)
		}
	}
	if asked := c.evil.Asked(); len(asked) > 0 {
		t.Errorf("the evil registry was asked: %q", asked)
	}
	if h := c.Harm(); h != "" {
		t.Error(h)
	}
	c.project(nil, map[string]any{"name": "@s/p"})
	if out, errs, code := c.npm("", "publish", "--access", "public", "--tag", "next"); code != 0 || !r.has("@s/p", "1.2.3") {
		t.Errorf("a package of the scope: exit code %d: %s%s", code, out, errs)
	}
	if len(r.versions) != 2 || r.puts != 2 {
		t.Errorf("%d packages by %d requests", len(r.versions), r.puts)
	}
	// No scripts: no package without those that prepare it, unless the caller means it.
	if res := c.Call(c.d, "npm", "publish"); res.Err == nil || res.Err.Code != fault.Denied || !strings.Contains(res.Err.Message, "--ignore-scripts") {
		t.Errorf("publish without a wrapper: %v", res.Err)
	}
}

// TestWireOfPublish: only the one request of npm publish is more than a look.
func TestWireOfPublish(t *testing.T) {
	p := testPolicy(t, map[string]string{"userconfig": "host", "publish": "p @s/*", "registry": "https://npm.example/a/", "scopes": "@s=https://other.example/"})
	for _, tt := range []struct {
		args, host, path string
		ok               bool
	}{
		{"--x=y publish --tag=z", "npm.example", "/a/p", true},
		{"publish", "other.example", "/@s%2fp", true},
		{"publish", "npm.example", "/a/@s%2fp", true},
		{"install --tag=publish", "npm.example", "/a/p", false},
		{"install publish", "npm.example", "/a/p", false},
		{"publish", "npm.example", "/p", false},
		{"publish", "npm.example", "/a/p/-rev/1", false},
		{"publish", "npm.example", "/a/p?x", false},
		{"publish", "npm.example", "/a/q", false},
		{"publish", "npm.example", "/a/@s/p", false},
		{"publish", "npm.example", "/a/@s%2Fp", false},
		{"publish", "npm.example", "/a/@s%2fp%2fx", false},
		{"publish", "npm.example", "/a/@s%2f..", false},
		{"publish", "npm.example", "/a/-/package/p/dist-tags/latest", false},
		{"publish", "npm.example", "/a/-/user/org.couchdb.user:x", false},
		{"publish", "evil.example", "/a/p", false},
	} {
		w := &abi.Wire{On: abi.WireHTTP, Method: "PUT", Host: tt.host, Port: 443, Path: tt.path}
		w.Call.Args = strings.Fields(tt.args)
		if d := p.wire(w); (d.Effect == abi.Allow) != tt.ok {
			t.Errorf("%s: PUT %s%s: %s by %s", tt.args, tt.host, tt.path, d.Effect, d.Rule)
		}
	}
	for _, conf := range []map[string]string{{"publish": "p"}, {"publish": "p", "userconfig": "variable"}, {"publish": "*", "userconfig": "host"}, {"publish": "@s/", "userconfig": "host"}, {"publish": "p/*", "userconfig": "host"}} {
		if _, err := newPolicy(func(k string) string { return conf[k] }); err == nil {
			t.Errorf("%v is no error", conf)
		}
	}
}

func integrityOf(b []byte) string {
	sum := sha512.Sum512(b)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// TestPublishVerdicts: what is concluded from what npm says.
func TestPublishVerdicts(t *testing.T) {
	p := testPolicy(t, map[string]string{"userconfig": "host", "publish": "p"})
	ours, theirs := integrityOf([]byte("ours")), integrityOf([]byte("theirs"))
	facts := fmt.Sprintf(`{"name":"p","version":"1.0.0","integrity":%q`, ours)
	view := func(integrity string) abi.ReconcileRan {
		return abi.ReconcileRan{Stdout: fmt.Sprintf(`{"name":"p","version":"1.0.0","dist.integrity":%q}`, integrity)}
	}
	missing := abi.ReconcileRan{ExitCode: 1, Stdout: `{"error":{"code":"E404","summary":"No match found for version 1.0.0"}}`}
	later := serverTime.Milliseconds()
	for _, tt := range []struct {
		name, facts string
		ran         abi.ReconcileRan
		after       int64
		want        string
	}{
		{"published", facts + "}", view(ours), 0, abi.VerdictDone},
		{"by somebody else", facts + "}", view(theirs), later, abi.VerdictUnknown},
		{"without an integrity", facts + "}", view(""), later, abi.VerdictUnknown},
		{"not there yet", facts + "}", missing, later - 1, abi.VerdictUnknown},
		{"never there", facts + "}", missing, later, abi.VerdictNotDone},
		{"never there, says an old npm", facts + "}", abi.ReconcileRan{}, later, abi.VerdictNotDone},
		{"there before", facts + `,"there":true}`, view(ours), 0, abi.VerdictNotDone},
		{"another version", facts + "}", abi.ReconcileRan{Stdout: strings.Replace(view(ours).Stdout, "1.0.0", "1.0.1", 1)}, later, abi.VerdictUnknown},
		{"several", facts + "}", abi.ReconcileRan{Stdout: `[{"name":"p","version":"1.0.0"}]`}, later, abi.VerdictUnknown},
		{"no answer", facts + "}", abi.ReconcileRan{ExitCode: 1, Stdout: `{"error":{"code":"ECONNREFUSED"}}`}, later, abi.VerdictUnknown},
		{"no access", facts + "}", abi.ReconcileRan{ExitCode: 1, Stdout: `{"error":{"code":"E401"}}`}, later, abi.VerdictUnknown},
		{"killed", facts + "}", abi.ReconcileRan{ExitCode: 137}, later, abi.VerdictUnknown},
		{"a failure of toold", facts + "}", abi.ReconcileRan{Error: &abi.Error{Message: "x"}}, later, abi.VerdictUnknown},
		{"too much", facts + "}", abi.ReconcileRan{Truncated: true}, later, abi.VerdictUnknown},
	} {
		q := &abi.Reconcile{Facts: json.RawMessage(tt.facts), Ran: []abi.ReconcileRan{tt.ran}, NowMS: 1e12 + tt.after, EndedMS: 1e12}
		a, err := p.reconcile(q)
		if err != nil || a.Verdict != tt.want && !(tt.want == abi.VerdictUnknown && a.Verdict == "") || a.Evidence == "" {
			t.Errorf("%s: %+v, %v, want %s", tt.name, a, err, tt.want)
		}
	}
	if a, err := p.reconcile(&abi.Reconcile{}); err != nil || a.Verdict == abi.VerdictDone || a.Verdict == abi.VerdictNotDone {
		t.Errorf("without facts: %+v, %v", a, err)
	}
	for args, looks := range map[string]bool{
		"publish --ignore-scripts": true, "publish --tag x --ignore-scripts": true, "publish": false, "publish --ignore-scripts=false": false, "publish --ignore-scripts --dry-run": false,
		"publish --ignore-scripts -w a": false, "publish --ignore-scripts --workspaces": false, "install --ignore-scripts": false, "ci": false,
	} {
		a, err := p.reconcile(&abi.Reconcile{Before: true, Call: *call(strings.Fields(args)...)})
		if err != nil || (len(a.Run) == 1) != looks || a.Facts != nil {
			t.Errorf("before %s: %+v, %v", args, a, err)
		}
	}
}

// TestPublishResolves cuts npm publish off, before the registry has the version and
// after, by ending npm, by the caller's leave, and by killing the daemon: each key answers
// in the end with what the registry has, and no version is sent twice to be published
// that was published.
func TestPublishResolves(t *testing.T) {
	c := newCaller(t)
	r := &publishing{versions: map[string]map[string]json.RawMessage{}}
	c.good.Answer(r.serve)
	d := hosttest.StartProcess(t, config.Config{Roots: []string{c.Root}, LogLevel: "info"})
	hosttest.WriteTool(t, d.Tools, "npm", c.publishes(), map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/npm")})
	version := 0
	publish := func(local wire.Local) (*wire.Result, string, error) {
		var out strings.Builder
		local.Stdout, local.Stderr = &out, io.Discard
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "npm", Args: []string{"publish", "--ignore-scripts"}, Cwd: c.Cwd, IdempotencyKey: fmt.Sprint("key", version)}, local)
		return res, out.String(), err
	}
	done, notDone := 0, 0
	for _, how := range []string{"npm ended, published", "npm ended, not published", "daemon killed, published", "daemon killed, not published"} {
		version++
		v := fmt.Sprintf("1.0.%d", version)
		c.project(nil, map[string]any{"version": v})
		published, kills := strings.HasSuffix(how, ", published"), strings.HasPrefix(how, "daemon")
		reached, release := make(chan bool), make(chan bool)
		hold := func(string) bool { close(reached); <-release; return false }
		r.before, r.after = nil, nil
		if published {
			r.after = hold
		} else {
			r.before = hold
		}
		signals := make(chan os.Signal, 1)
		cut := make(chan error, 1)
		go func() {
			res, out, err := publish(wire.Local{Signals: signals})
			if err == nil && res.Err == nil && res.ExitCode == 0 {
				cut <- fmt.Errorf("it was not cut off: %+v: %s", res, out)
				return
			}
			cut <- nil
		}()
		select {
		case <-reached:
		case err := <-cut:
			t.Fatalf("%s: it ended before it was cut off: %v: %s", how, err, d.Logs())
		}
		if kills {
			d.Kill()
		} else {
			signals <- syscall.SIGKILL
			signals <- syscall.SIGTERM
		}
		if err := <-cut; err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		close(release)
		r.mu.Lock()
		r.before, r.after = nil, nil
		r.mu.Unlock()
		if kills {
			d.Start()
		}
		res, out, err := publish(wire.Local{})
		if published {
			if err != nil || res.Err != nil || !res.FromCache || out != "+ p@"+v+"\n" {
				t.Fatalf("%s: %+v, %v: %s", how, res, err, out)
			}
			done++
			continue
		}
		if err != nil || res.Err == nil || res.Err.Code != fault.OutcomeUnknown || r.has("p", v) {
			t.Fatalf("%s, while the registry may still work on it: %+v, %v: %s", how, res, err, out)
		}
		d.Kill()
		d.AgeRecords(serverTime + time.Second)
		d.Start()
		if res, out, err := publish(wire.Local{}); err != nil || res.Err != nil || res.ExitCode != 0 || res.FromCache || !strings.HasSuffix(out, "+ p@"+v+"\n") || !r.has("p", v) {
			t.Fatalf("%s, afterwards: %+v, %v: %s", how, res, err, out)
		}
		notDone++
	}
	// A connection that is cut is npm's to report. It asks once, so that its word is never
	// that somebody else has published the version that it has just published itself.
	for _, published := range []bool{true, false} {
		version++
		v := fmt.Sprintf("1.0.%d", version)
		c.project(nil, map[string]any{"version": v})
		cut := func(string) bool { return false }
		r.mu.Lock()
		if r.before, r.after = nil, cut; !published {
			r.before, r.after = cut, nil
		}
		puts := r.puts
		r.mu.Unlock()
		for range 2 {
			res, out, err := publish(wire.Local{})
			if err != nil || res.Err == nil && res.ExitCode == 0 || strings.Contains(out, "+ p@") {
				t.Errorf("a cut connection, published %v: %+v, %v: %s", published, res, err, out)
			}
		}
		r.mu.Lock()
		r.before, r.after = nil, nil
		puts = r.puts - puts
		r.mu.Unlock()
		if puts > 1 || r.has("p", v) != published {
			t.Errorf("a cut connection, published %v: %d requests, and it is there: %v", published, puts, r.has("p", v))
		}
		if published {
			continue
		}
		version++ // the key
		if res, out, err := publish(wire.Local{}); err != nil || res.Err != nil || res.ExitCode != 0 || !r.has("p", v) {
			t.Errorf("after a cut connection, with a new key: %+v, %v: %s", res, err, out)
		}
		version--
	}
	if len(r.versions["p"]) != version || r.puts != version || len(r.refused) > 0 {
		t.Errorf("%d of %d versions, by %d requests, of which %q were refused", len(r.versions["p"]), version, r.puts, r.refused)
	}
	t.Logf("%d cut off: %d found done, %d found not done", version, done, notDone)
}

// TestPublicationsCutOff cuts npm publish off in every way, at every point of its request:
// many packages, beside each other. TOOLD_KILLS is how many.
func TestPublicationsCutOff(t *testing.T) {
	c := newCaller(t)
	var mu sync.Mutex
	times := map[string]int{} // guarded by mu, as is the next: requests that published, or would have
	manifests := map[string]json.RawMessage{}
	name := func(n int) string { return fmt.Sprintf("@s/p%d", n) }
	folder := func(n int) string { return filepath.Join(c.Root, fmt.Sprintf("p%d", n)) }
	d := hosttest.StartProcess(t, config.Config{Roots: []string{c.Root}, LogLevel: "info"})
	def := c.publishes()
	def["reliability"].(map[string]any)["breaker"] = map[string]any{"failures": 100_000, "window": 1000, "ratio": 1}
	def["limits"] = map[string]any{"concurrency": 16}
	hosttest.WriteTool(t, d.Tools, "npm", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/npm")})
	cuts := &hosttest.Cuts{
		Process: d, Total: hosttest.Kills(t, 3), Wave: 8, Patience: serverTime,
		Ways: []string{hosttest.CutDaemon, hosttest.CutSignal, hosttest.CutProcess, hosttest.CutCaller, hosttest.CutDaemon, hosttest.CutTime, hosttest.CutConnection},
		Call: func(n int) *wire.Call {
			c.Write(filepath.Join(folder(n), "package.json"), fmt.Sprintf(`{"name":%q,"version":"1.0.0"}`, name(n)), 0o600)
			return &wire.Call{Tool: "npm", Args: []string{"publish", "--ignore-scripts"}, Cwd: folder(n), IdempotencyKey: fmt.Sprint("key", n)}
		},
		Want: func(n int) string { return "+ " + name(n) + "@1.0.0\n" },
		Times: func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return times[name(n)]
		},
		Kill: func(n int) {
			if err := hosttest.KillProcesses("node", func(_, cwd string) bool { return cwd == folder(n) }); err != nil {
				t.Error(err)
			}
		},
	}
	c.good.Answer(func(w http.ResponseWriter, q *http.Request) {
		of := strings.TrimPrefix(q.URL.Path, "/")
		if q.Method == http.MethodGet {
			mu.Lock()
			defer mu.Unlock()
			if manifests[of] == nil {
				w.WriteHeader(http.StatusNotFound)
				io.WriteString(w, `{"error":"not found"}`)
				return
			}
			json.NewEncoder(w).Encode(map[string]any{"name": of, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]json.RawMessage{"1.0.0": manifests[of]}})
			return
		}
		var n int
		if _, err := fmt.Sscanf(of, "@s/p%d", &n); err != nil || q.Method != http.MethodPut {
			t.Errorf("%s %s", q.Method, q.URL.Path)
		}
		cuts.Serve(w, q, n, func(body io.Reader) (int, []byte, error) {
			var doc struct{ Versions map[string]json.RawMessage }
			b, err := io.ReadAll(body)
			if err == nil {
				err = json.Unmarshal(b, &doc)
			}
			if err != nil {
				return 0, nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			times[of]++
			if manifests[of] != nil {
				return http.StatusForbidden, []byte(`{"error":"You cannot publish over the previously published versions: 1.0.0."}`), nil
			}
			manifests[of] = doc.Versions["1.0.0"]
			return http.StatusOK, []byte(`{"ok":true}`), nil
		})
	})
	cuts.Run(t)
}
