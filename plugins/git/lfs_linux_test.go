package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toold/toold/host/client"
	hostconfig "github.com/toold/toold/host/config"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// lfsPath is a real git-lfs.
func lfsPath(t *testing.T) string {
	t.Helper()
	found, err := exec.LookPath("git-lfs")
	if err != nil {
		t.Skip("there is no git-lfs here")
	}
	// One that is unpacked elsewhere is started by a script, which a tool cannot run.
	if unpacked := filepath.Join(filepath.Dir(found), "../root/usr/bin/git-lfs"); fileExists(unpacked) {
		found = unpacked
	}
	if found, err = filepath.EvalSymlinks(found); err != nil {
		t.Fatal(err)
	}
	return found
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

const lfsToken = "ghp_sesame0123456789abcdefghijklmnop"

// lfsServer keeps repositories and, by the batch protocol, their files in LFS. It
// wants a token.
type lfsServer struct {
	*httptest.Server
	// twist changes what a request for objects is answered; nil: nothing.
	twist func(action map[string]any)

	mu      sync.Mutex
	objects map[string][]byte
	asked   []string // METHOD PATH of each request but git's own
	lax     bool     // no token is wanted
}

func newLFSServer(t *testing.T, projects string) *lfsServer {
	s := &lfsServer{objects: map[string][]byte{}}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + projects, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x-access-token"}}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != lfsToken && !s.lax {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		repository, what, isLFS := strings.Cut(r.URL.Path, "/info/lfs/")
		if !isLFS {
			backend.ServeHTTP(w, r)
			return
		}
		s.serve(w, r, repository, what)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *lfsServer) serve(w http.ResponseWriter, r *http.Request, repository, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+what)
	base := s.URL + repository + "/info/lfs/"
	switch oid, isObject := strings.CutPrefix(what, "store/"); {
	case what == "objects/batch":
		var q struct {
			Operation string `json:"operation"`
			Objects   []struct {
				OID  string `json:"oid"`
				Size int    `json:"size"`
			} `json:"objects"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		objects := []any{}
		for _, o := range q.Objects {
			answer := map[string]any{"oid": o.OID, "size": o.Size}
			_, has := s.objects[o.OID]
			action := map[string]any{"href": base + "store/" + o.OID}
			switch {
			case q.Operation == "upload" && !has:
				answer["actions"] = map[string]any{"upload": action, "verify": map[string]any{"href": base + "verify"}}
			case q.Operation == "download" && has:
				answer["actions"] = map[string]any{"download": action}
			case q.Operation == "download":
				answer["error"] = map[string]any{"code": 404, "message": "there is no such object"}
			}
			if s.twist != nil {
				s.twist(action)
			}
			objects = append(objects, answer)
		}
		w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
		json.NewEncoder(w).Encode(map[string]any{"transfer": "basic", "objects": objects})
	case isObject && r.Method == "PUT":
		b, _ := io.ReadAll(r.Body)
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != oid {
			http.Error(w, "it is another object", http.StatusBadRequest)
			return
		}
		s.objects[oid] = b
	case isObject:
		w.Write(s.objects[oid])
	case what == "verify":
		var q struct {
			OID string `json:"oid"`
		}
		json.NewDecoder(r.Body).Decode(&q)
		if s.objects[q.OID] == nil {
			http.NotFound(w, r)
		}
	default:
		http.NotFound(w, r)
	}
}

// requests are those since the last time.
func (s *lfsServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.asked
	s.asked = nil
	return out
}

// lfsPlace is a daemon whose git is granted git-lfs, and a server.
type lfsPlace struct {
	*hosttest.Daemon
	t      *testing.T
	box    *box
	server *lfsServer
	roots  string
	url    string
}

func newLFSPlace(t *testing.T, programs ...string) *lfsPlace {
	needGit(t)
	lfs := lfsPath(t)
	if !confine.Confinement().Filter || os.Getenv("TOOLD_TEST_CONFINE") == "landlock" {
		t.Skip("connections are not judged here")
	}
	p := &lfsPlace{t: t, roots: tempDir(t), box: newBox(t, model(t), newRunner(t))}
	if out, err := p.box.plain("remote.git", nil, "", "config", "http.receivepack", "true"); err != nil {
		t.Fatal(out)
	}
	p.server = newLFSServer(t, p.box.ws)
	p.url = p.server.URL + "/remote.git"
	conf := tempDir(t)
	ca := filepath.Join(conf, "ca.pem")
	for name, text := range map[string]string{
		ca:                   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})),
		conf + "/.env":       "GITHUB_TOKEN=" + lfsToken + "\n",
		conf + "/toold.json": "{}",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := hostconfig.Load(conf+"/toold.json", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	c.Roots = []string{p.roots}
	p.Daemon = hosttest.Start(t, c)
	b, err := os.ReadFile("../../tools.d/git/tool.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, granted := range map[string][]string{"git": append(programs, lfs), "without": nil} {
		var def map[string]any
		if err := json.Unmarshal(b, &def); err != nil {
			t.Fatal(err)
		}
		def["environment"] = map[string]any{"GIT_SSL_CAINFO": ca, "GIT_CONFIG_NOSYSTEM": "1"}
		def["secrets"] = documented(t, p.server.URL, 1)
		capabilities := def["capabilities"].(map[string]any)
		capabilities["network"] = []string{"*", "127.0.0.1"}
		for _, program := range granted {
			capabilities["exec"] = append(capabilities["exec"].([]any), program)
		}
		def["config"] = map[string]string{"user_name": "A", "user_email": "a@example.com"}
		p.Tool(t, name, def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	}
	return p
}

// call makes a call of a tool in a folder beneath the roots.
func (p *lfsPlace) call(tool, cwd, line string) (string, *wire.Result) {
	p.t.Helper()
	var out bytes.Buffer
	res, err := client.Stream(p.t.Context(), p.Socket, &wire.Call{Tool: tool, Args: p.box.line(line), Cwd: filepath.Join(p.roots, cwd), Stream: true}, wire.Local{Stdout: &out, Stderr: &out})
	if err != nil {
		p.t.Fatal(err)
	}
	return out.String(), res
}

// must makes calls that succeed, and returns what they said.
func (p *lfsPlace) must(cwd string, lines ...string) string {
	p.t.Helper()
	said := ""
	for _, line := range lines {
		out, res := p.call("git", cwd, line)
		if res.Err != nil || res.ExitCode != 0 {
			p.t.Fatalf("git %s: %v, exit code %d: %s", line, res.Err, res.ExitCode, out)
		}
		said += out
	}
	return said
}

func (p *lfsPlace) write(name, text string) {
	p.t.Helper()
	name = filepath.Join(p.roots, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *lfsPlace) is(name, want string) {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.roots, name))
	if err != nil || string(b) != want {
		p.t.Errorf("%s is %.200q, %v; want %.100q", name, b, err, want)
	}
}

func pointer(text string) string {
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%x\nsize %d\n", sha256.Sum256([]byte(text)), len(text))
}

// TestFilesInLFS is a day with files in LFS: git stores their pointers, and a server has them,
// which only the daemon's token opens.
func TestFilesInLFS(t *testing.T) {
	p := newLFSPlace(t)
	large := strings.Repeat("large\n", 1000)
	p.must(".", "clone -q "+p.url+" one")
	if out := p.must("one", "lfs version", "lfs track *.bin"); !strings.Contains(out, "git-lfs/") {
		t.Errorf("git lfs version: %s", out)
	}
	p.write("one/a.bin", large)
	p.write("one/sub/.gitattributes", "*.dat filter=lfs diff=lfs merge=lfs -text\n")
	p.write("one/sub/b.dat", "sub\n"+large)
	p.must("one", "add .", "commit -q -m large")
	if out := p.must("one", "show HEAD:a.bin", "show HEAD:sub/b.dat"); out != pointer(large)+pointer("sub\n"+large) {
		t.Errorf("git keeps %.300q", out)
	}
	if out := p.must("one", "lfs ls-files", "status -s"); strings.Count(out, " * ") != 2 || strings.Contains(out, "M ") {
		t.Errorf("git lfs ls-files: %s", out)
	}
	p.must("one", "push -q origin main")
	if n := len(p.server.objects); n != 2 {
		t.Fatalf("the server has %d objects after a push: %q", n, p.server.requests())
	}
	if asked := strings.Join(p.server.requests(), ","); strings.Count(asked, "PUT store/") != 2 || strings.Count(asked, "POST verify") != 2 || strings.Contains(asked, "locks") {
		t.Errorf("a push asked for %s", asked)
	}
	// Another clone has them at once; what is missing comes with a checkout.
	p.must(".", "clone -q "+p.url+" two")
	p.is("two/a.bin", large)
	p.is("two/sub/b.dat", "sub\n"+large)
	p.write("one/a.bin", "second\n")
	p.must("one", "commit -q -a -m second", "push -q origin main")
	p.must("two", "fetch -q")
	p.server.requests()
	p.must("two", "checkout -q origin/main")
	p.is("two/a.bin", "second\n")
	if asked := strings.Join(p.server.requests(), ","); !strings.Contains(asked, "GET store/") {
		t.Errorf("a checkout asked for %s", asked)
	}
	p.must("two", "checkout -q main", "pull -q")
	p.is("two/a.bin", "second\n")
	// Without the objects, each subcommand that brings them.
	for _, line := range []string{"lfs pull", "lfs fetch origin main", "lfs fetch --all"} {
		if err := os.RemoveAll(filepath.Join(p.roots, "two/.git/lfs/objects")); err != nil {
			t.Fatal(err)
		}
		p.must("two", line)
		if n := len(findFiles(t, filepath.Join(p.roots, "two/.git/lfs/objects"))); n == 0 {
			t.Errorf("git %s brought nothing", line)
		}
	}
	// A push without the hook sends none, and lfs push sends them then.
	p.write("one/c.bin", "third\n")
	p.must("one", "add .", "commit -q -m third", "push -q --no-verify origin main")
	if n := len(p.server.objects); n != 3 {
		t.Errorf("push --no-verify sent files: there are %d", n)
	}
	if p.must("one", "lfs push origin main"); len(p.server.objects) != 4 {
		t.Errorf("lfs push sent none: there are %d", len(p.server.objects))
	}
	p.must("one", "lfs status", "lfs env", "lfs untrack *.bin", "lfs checkout")
	if out, err := os.ReadFile(filepath.Join(p.roots, "one/.git/config")); err != nil || bytes.Contains(out, []byte(lfsToken)) {
		t.Errorf("%s, %v", out, err)
	}
}

func findFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, path)
		}
		return nil
	})
	return files
}
