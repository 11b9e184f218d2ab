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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/client"
	hostconfig "github.com/toold/toold/host/config"
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
	limit  time.Duration // of calls; 0: the tool's
}

func newLFSPlace(t *testing.T, programs ...string) *lfsPlace {
	needGit(t)
	lfs := lfsPath(t)
	if !hosttest.Judged() {
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
	res, err := client.Stream(p.t.Context(), p.Socket, &wire.Call{Tool: tool, Args: p.box.line(line), Cwd: filepath.Join(p.roots, cwd), Stream: true, Timeout: p.limit}, wire.Local{Stdout: &out, Stderr: &out})
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
	if p.must("one", "lfs push --all origin main"); len(p.server.objects) != 4 {
		t.Errorf("lfs push sent none: there are %d", len(p.server.objects))
	}
	if err := os.Remove(filepath.Join(p.roots, "one/a.bin")); err != nil {
		t.Fatal(err)
	}
	p.must("one", "lfs checkout a.bin", "lfs status", "lfs env")
	p.is("one/a.bin", "second\n")
	if p.must("one", "lfs untrack *.bin"); fileExists(filepath.Join(p.roots, "one/.git/hooks/pre-push")) {
		t.Error("git-lfs has written hooks")
	}
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

// TestFilesInLFSNotGranted: where git-lfs is not granted it is said for each file,
// wherever its attributes are, and nothing is made up.
func TestFilesInLFSNotGranted(t *testing.T) {
	p := newLFSPlace(t)
	p.must(".", "clone -q "+p.url+" one")
	p.write("one/sub/.gitattributes", "*.dat filter=lfs -text\n")
	p.write("one/sub/b.dat", "sub\n")
	p.must("one", "add .", "commit -q -m large", "push -q origin main")
	out, res := p.call("without", ".", "clone -q "+p.url+" two")
	if res.ExitCode != 0 || !strings.Contains(strings.ReplaceAll(out, "\u00a0", " "), "git-lfs, which does not run here") {
		t.Errorf("a clone: %v, exit code %d: %s", res.Err, res.ExitCode, out)
	}
	p.is("two/sub/b.dat", pointer("sub\n"))
	p.write("two/sub/c.dat", "c\n")
	if out, res := p.call("without", "two", "add sub"); res.ExitCode != 0 || !strings.Contains(out, "git-lfs,") {
		t.Errorf("add: %v, exit code %d: %s", res.Err, res.ExitCode, out)
	}
	if out, res := p.call("without", "two", "lfs pull"); res.Err == nil || !strings.Contains(res.Err.Message, "capabilities.exec") {
		t.Errorf("git lfs pull: %v: %s", res.Err, out)
	}
}

// TestHostileLFS: a repository has git-lfs execute nothing, go nowhere else and show
// nothing from outside, whatever it says of LFS.
func TestHostileLFS(t *testing.T) {
	var elsewhere credentials
	visited := 0
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visited++
		elsewhere.add(r)
		http.NotFound(w, r)
	}))
	defer other.Close()
	p := newLFSPlace(t)
	p.must(".", "clone -q "+p.url+" seed")
	p.write("seed/.gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	p.write("seed/a.bin", "large\n")
	p.must("seed", "add .", "commit -q -m large", "push -q origin main")
	out := tempDir(t)
	secret := "TOPSECRET outside\n"
	for name, text := range map[string]string{out + "/secret": secret, p.roots + "/evil.sh": "#!/bin/sh\n: > " + p.roots + "/marker\n: > " + out + "/marker\n"} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	evil := p.roots + "/evil.sh"
	oid := fmt.Sprintf("%x", sha256.Sum256([]byte("large\n")))
	object := ".git/lfs/objects/" + oid[:2] + "/" + oid[2:4] + "/" + oid
	elsewhereObjects := tempDir(t)
	for _, dir := range []string{"/objects", "/lfs/objects/" + oid[:2] + "/" + oid[2:4]} {
		if err := os.MkdirAll(elsewhereObjects+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(elsewhereObjects+"/lfs/objects/"+oid[:2]+"/"+oid[2:4]+"/"+oid, []byte("TOPSEC"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, config, lfsconfig string
		prepare                 func(dir string)
		twist                   func(map[string]any)
		lines                   []string
		rule                    string // of the first line; "": it is not refused
		waits                   bool   // git-lfs waits for what is there, as long as a call may
	}{
		{name: "an extension that cleans", config: "[lfs \"extension.x\"]\nclean=" + evil + "\nsmudge=" + evil + "\npriority=0", lines: []string{"add .", "checkout -f"}, rule: "repo-config"},
		{name: "a custom transfer", config: "[lfs]\nstandalonetransferagent=x\n[lfs \"customtransfer.x\"]\npath=" + evil, lines: []string{"push origin main", "lfs push --all origin", "checkout -f"}, rule: "repo-config"},
		{name: "a custom transfer for one URL", config: "[lfs \"" + p.server.URL + "\"]\nstandalonetransferagent=x\n[lfs \"customtransfer.x\"]\npath=" + evil, lines: []string{"lfs pull"}, rule: "repo-config"},
		{name: "a filter of its own", config: "[filter \"lfs\"]\nclean=" + evil + "\nprocess=" + evil, lines: []string{"add .", "checkout -f"}, rule: "repo-config"},
		{name: "a filter with more behind it", config: "[filter \"lfs\"]\nclean=\"git-lfs clean -- %f;" + evil + "\"", lines: []string{"add ."}, rule: "repo-config"},
		{name: "a credential helper", config: "[credential]\nhelper=!" + evil, lines: []string{"lfs pull", "checkout -f"}, rule: "repo-config"},
		{name: "a server that is a folder", config: "[lfs]\nurl=file://" + out, lines: []string{"lfs fetch origin", "push origin main"}, rule: "remote"},
		{name: "a server over ssh", config: "[lfs]\nurl=ssh://-oProxyCommand=" + evil + "/x", lines: []string{"lfs pull"}, rule: "remote"},
		{name: "a server of the remote's over ssh", config: "[remote \"origin\"]\nlfsurl=ssh://-oProxyCommand=" + evil + "/x", lines: []string{"lfs pull"}, rule: "remote"},
		{name: "a way to transfer over ssh, another store, many at once", config: "[lfs]\nsshtransfer=always\nstorage=" + out + "\nconcurrenttransfers=100000", lines: []string{"lfs pull", "checkout -f"}},
		{name: "what git lfs install writes", config: "[filter \"lfs\"]\nclean=git-lfs clean -- %f\nsmudge=git-lfs smudge -- %f\nprocess=git-lfs filter-process\nrequired=true", lines: []string{"add .", "checkout -f", "lfs pull"}},
		{name: ".lfsconfig with another server", lfsconfig: "[lfs]\nurl=" + other.URL + "\npushurl=" + other.URL + "\n[remote \"origin\"]\nlfsurl=" + other.URL, lines: []string{"lfs pull", "checkout -f", "add .", "lfs push --all origin"}},
		{name: ".lfsconfig with programs", lfsconfig: "[lfs]\nurl=file://" + out + "\nstandalonetransferagent=x\n[lfs \"customtransfer.x\"]\npath=" + evil + "\n[lfs \"extension.x\"]\nclean=" + evil + "\n[credential]\nhelper=!" + evil, lines: []string{"lfs pull", "add .", "lfs push --all origin"}},
		{name: "hooks", prepare: func(dir string) {
			for _, hook := range []string{"pre-push", "post-checkout", "post-commit", "post-merge"} {
				os.MkdirAll(dir+"/.git/hooks", 0o755)
				os.Symlink(evil, dir+"/.git/hooks/"+hook)
			}
		}, lines: []string{"commit --allow-empty -m x", "push origin HEAD:refs/heads/hooked", "checkout -f"}},
		{name: "an object that is a link to the outside", prepare: func(dir string) {
			os.Remove(dir + "/" + object)
			os.Symlink(out+"/secret", dir+"/"+object)
		}, lines: []string{"checkout -f", "lfs checkout", "lfs pull"}, rule: "repo-config"},
		{name: "a folder of objects that is a link to the outside", prepare: func(dir string) {
			os.RemoveAll(dir + "/.git/lfs")
			os.Symlink(out, dir+"/.git/lfs")
		}, lines: []string{"checkout -f", "lfs pull"}, rule: "repo-config"},
		{name: "a protocol of its own", config: "[lfs]\ngitprotocol=ssh", lines: []string{"lfs pull", "checkout -f"}, rule: "repo-config"},
		{name: "an extension in a file that is included", config: "[include]\npath=more", prepare: func(dir string) {
			p.write("case/.git/more", "[lfs \"extension.x\"]\nclean="+evil+"\nsmudge="+evil)
		}, lines: []string{"add .", "checkout -f"}, rule: "repo-config"},
		{name: "a custom transfer of the working tree", config: "[extensions]\nworktreeConfig=true", prepare: func(dir string) {
			p.write("case/.git/config.worktree", "[lfs]\nstandalonetransferagent=x\n[lfs \"customtransfer.x\"]\npath="+evil)
		}, lines: []string{"lfs pull", "push origin main"}, rule: "repo-config"},
		{name: "a driver that merges, and one that shows", config: "[merge \"lfs\"]\ndriver=" + evil + "\n[diff \"lfs\"]\ntextconv=" + evil, lines: []string{"diff", "lfs pull"}, rule: "repo-config"},
		{name: "files sent along as cookies and certificates", config: "[http]\ncookieFile=" + out + "/secret\nsslCert=" + out + "/secret\nsslKey=" + out + "/secret", lines: []string{"lfs pull", "checkout -f"}, rule: "repo-config"},
		{name: "a header, a proxy and no TLS", config: "[http]\nextraHeader=X: y\nproxy=" + other.URL + "\nsslVerify=false", lines: []string{"lfs pull"}, rule: "repo-config"},
		{name: "programs that ask and connect", config: "[core]\naskPass=" + evil + "\nsshCommand=" + evil + "\ngitProxy=" + evil + "\nfsmonitor=" + evil, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull", "status", "checkout -f"}, rule: "repo-config"},
		{name: "objects of another folder", prepare: func(dir string) {
			os.RemoveAll(dir + "/.git/lfs")
			p.write("case/.git/objects/info/alternates", elsewhereObjects+"/objects\n")
		}, lines: []string{"checkout -f", "lfs pull"}, rule: "repo-config"},
		{name: "a pipe for an object", prepare: func(dir string) {
			os.Remove(dir + "/" + object)
			syscall.Mkfifo(dir+"/"+object, 0o600)
		}, lines: []string{"checkout -f", "lfs checkout", "status"}},
		{name: "a pipe for a folder of objects", prepare: func(dir string) {
			os.RemoveAll(dir + "/.git/lfs/objects")
			syscall.Mkfifo(dir+"/.git/lfs/objects", 0o600)
		}, lines: []string{"checkout -f", "lfs pull", "status"}},
		{name: "a pipe for .lfsconfig", prepare: func(dir string) { syscall.Mkfifo(dir+"/.lfsconfig", 0o600) }, lines: []string{"lfs pull", "lfs env", "status"}, waits: true},
		{name: "a link for .lfsconfig", prepare: func(dir string) { os.Symlink(out+"/secret", dir+"/.lfsconfig") }, lines: []string{"lfs env", "lfs pull"}},
		{name: "a server that asks for another request", config: "[lfs \"transfer\"]\nmaxretries=1", twist: func(a map[string]any) {
			a["header"] = map[string]string{"Host": "127.0.0.1:1", "X-HTTP-Method-Override": "DELETE", "Authorization": "Basic eDp5"}
		}, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull"}},
		{name: "a server that leads to this host", config: "[lfs \"transfer\"]\nmaxretries=1", twist: func(a map[string]any) { a["href"] = "https://169.254.169.254/latest" }, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull"}},
		{name: "a server that leads to another", config: "[lfs \"transfer\"]\nmaxretries=1", twist: func(a map[string]any) { a["href"] = other.URL + "/store" }, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull"}},
		{name: "a server that leads to a file", config: "[lfs \"transfer\"]\nmaxretries=1", twist: func(a map[string]any) { a["href"] = "file://" + out + "/secret" }, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull"}},
		{name: "a server that has no TLS", config: "[lfs \"transfer\"]\nmaxretries=1", twist: func(a map[string]any) { a["href"] = strings.Replace(a["href"].(string), "https:", "http:", 1) }, prepare: func(dir string) { os.RemoveAll(dir + "/.git/lfs") }, lines: []string{"lfs pull"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(p.roots, "case")
			defer os.RemoveAll(dir)
			p.t = t
			p.must(".", "clone -q "+p.url+" case")
			p.write("case/a.bin", "changed\n")
			config, err := os.OpenFile(dir+"/.git/config", os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(config, tt.config)
			config.Close()
			if tt.lfsconfig != "" {
				p.write("case/.lfsconfig", tt.lfsconfig+"\n")
			}
			if tt.prepare != nil {
				tt.prepare(dir)
			}
			p.server.twist = tt.twist
			defer func() { p.server.twist = nil }()
			visits := visited
			if p.limit = 0; tt.waits {
				p.limit = 2 * time.Second
				defer func() { p.limit = 0 }()
			}
			for i, line := range tt.lines {
				said, res := p.call("git", "case", line)
				if res.Err != nil {
					said += res.Err.Message
				}
				if refused := res.Err != nil && strings.Contains(res.Err.Message, "denied by rule "+tt.rule+":"); i == 0 && (tt.rule != "") != refused {
					t.Errorf("git %s: %v: %s, want rule %q", line, res.Err, said, tt.rule)
				}
				if strings.Contains(said, "TOPSECRET") || strings.Contains(said, lfsToken) {
					t.Errorf("git %s shows %s", line, said)
				}
			}
			if b, err := os.ReadFile(dir + "/a.bin"); err == nil && strings.Contains(string(b), "TOPSEC") {
				t.Error("what lies outside was checked out")
			}
			if fileExists(p.roots+"/marker") || fileExists(out+"/marker") {
				t.Error("a program of the repository ran")
				os.Remove(p.roots + "/marker")
			}
			if names := findFiles(t, out); len(names) != 1 {
				t.Errorf("there is %q outside", names)
			}
			if tt.twist == nil && visited != visits {
				t.Error("another server was asked")
			}
		})
	}
	if sent := elsewhere.all(); len(sent) > 0 {
		t.Errorf("another server was sent %q", sent)
	}
}

// TestLFSConfigChangedUnderCalls has somebody rewrite what git-lfs reads in a repository while
// calls run: neither a program of the repository runs, nor does a file of the outside come in,
// nor does the token leave.
func TestLFSConfigChangedUnderCalls(t *testing.T) {
	var elsewhere credentials
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere.add(r)
		http.NotFound(w, r)
	}))
	defer other.Close()
	p := newLFSPlace(t)
	large := "large\n"
	p.must(".", "clone -q "+p.url+" seed")
	p.write("seed/.gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	p.write("seed/a.bin", large)
	p.must("seed", "add .", "commit -q -m large", "push -q origin main")
	out := tempDir(t)
	oid := fmt.Sprintf("%x", sha256.Sum256([]byte(large)))
	evil := p.roots + "/evil.sh"
	for name, text := range map[string]string{
		// As large as the object, under the object's name in another store.
		filepath.Join(out, oid[:2], oid[2:4], oid): "TOPSEC", evil: "#!/bin/sh\n: > " + p.roots + "/marker\ncat\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := p.roots + "/case"
	p.must(".", "clone -q "+p.url+" case")
	benign, err := os.ReadFile(dir + "/.git/config")
	if err != nil {
		t.Fatal(err)
	}
	// Each is refused if the policy sees it.
	var hostile [][]byte
	for _, text := range []string{
		"[lfs \"extension.x\"]\nclean=" + evil + "\nsmudge=" + evil + "\npriority=0",
		"[lfs]\nstandalonetransferagent=x\n[lfs \"customtransfer.x\"]\npath=" + evil,
		"[filter \"lfs\"]\nclean=" + evil + "\nsmudge=" + evil + "\nprocess=" + evil,
		"[credential]\nhelper=!" + evil + "\n[core]\naskPass=" + evil + "\nsshCommand=" + evil,
		"[lfs]\nurl=" + other.URL + "\npushurl=" + other.URL + "\n[url \"" + other.URL + "/\"]\ninsteadOf=" + p.server.URL + "/",
		"[lfs]\nstorage=" + out + "\n[http]\nproxy=" + other.URL,
	} {
		hostile = append(hostile, append(slices.Clone(benign), text+"\n"...))
	}
	objects := filepath.Join(dir, ".git/lfs/objects")
	if err := os.Symlink(out, p.roots+"/linked"); err != nil {
		t.Fatal(err)
	}
	change := func(config []byte) {
		if os.WriteFile(dir+"/.git/config.tmp", config, 0o644) != nil || os.Rename(dir+"/.git/config.tmp", dir+"/.git/config") != nil {
			t.Error("the configuration could not be changed")
		}
	}
	exchange := func() {
		if err := unix.Renameat2(unix.AT_FDCWD, objects, unix.AT_FDCWD, p.roots+"/linked", unix.RENAME_EXCHANGE); err != nil {
			t.Error(err)
		}
	}
	for i := range len(hostile) + 1 { // the last is the folder of objects, which becomes a link
		for _, line := range []string{"add .", "checkout -f HEAD -- a.bin", "lfs fetch origin main", "lfs pull", "lfs push --all origin", "push origin HEAD:refs/heads/raced"} {
			p.write("case/b.bin", fmt.Sprintln("changed", i))
			p.write("case/a.bin", "changed\n")
			// When it has been read for the policy, it is changed for git.
			read := dir + "/.git/config"
			if i == len(hostile) {
				read = filepath.Join(objects, oid[:2], oid[2:4])
			}
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.InotifyAddWatch(fd, read, unix.IN_CLOSE_NOWRITE); err != nil {
				t.Fatal(err)
			}
			notify := os.NewFile(uintptr(fd), "inotify")
			changed := make(chan bool)
			go func() {
				_, err := notify.Read(make([]byte, 1<<12))
				defer func() { changed <- err == nil }()
				if err != nil {
					return // nobody has read it
				}
				if i < len(hostile) {
					change(hostile[i])
				} else {
					exchange()
				}
			}()
			said, res := p.call("git", "case", line)
			notify.Close()
			switch {
			case !<-changed:
				t.Fatalf("git %s: %s was not read", line, read)
			case i < len(hostile):
				change(benign)
			default:
				exchange()
			}
			if res.Err != nil && strings.Contains(res.Err.Message, "denied by rule") {
				t.Errorf("git %s: it was changed too early: %v", line, res.Err)
			}
			if strings.Contains(said, "TOPSEC") || strings.Contains(said, lfsToken) {
				t.Errorf("git %s shows %s", line, said)
			}
			if b, err := os.ReadFile(dir + "/a.bin"); err == nil && strings.Contains(string(b), "TOPSEC") {
				t.Errorf("git %s: what lies outside was checked out", line)
			}
		}
	}
	if fileExists(p.roots + "/marker") {
		t.Error("a program of the repository ran")
	}
	if names := findFiles(t, out); len(names) != 1 {
		t.Errorf("there is %q outside", names)
	}
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	for oid, b := range p.server.objects {
		if strings.Contains(string(b), "TOPSEC") {
			t.Errorf("what lies outside was sent, as %s", oid)
		}
	}
	if sent := elsewhere.all(); len(sent) > 0 {
		t.Errorf("another server was sent %q", sent)
	}
}

// TestLFSShim: native code in the place of git gets nothing by the programs through which
// git starts git-lfs: they are git-lfs, whatever they are called, and nobody changes them.
func TestLFSShim(t *testing.T) {
	p := newLFSPlace(t)
	lfs := lfsPath(t)
	p.Tool(t, "native", map[string]any{
		"binary": "/usr/bin/perl", "mutating": true, "stdin": false, "timeout": 60, "capabilities": map[string]any{"exec": []string{lfs, "/usr/bin/true"}},
	}, nil)
	p.write("evil.sh", "#!/bin/sh\n: > "+p.roots+"/marker\n")
	if err := os.Chmod(p.roots+"/evil.sh", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ script, want string }{
		"other names and arguments": {`for my $args (['toold', 'supervise-processes'], ['toold-ssh', 'x'], ['/x/callbacks-1/editor'], ['toold-callback'], ['toold-lfs', 'install'], ['']) { my $pid = open(my $o, '-|'); if (!$pid) { open STDERR, '>&', \*STDOUT; close STDIN; exec { "$F/toold-lfs" } @$args; print "not executed"; exit 1 } local $/; my $said = readline $o; close $o; print $said =~ /toold|not executed/ ? "bad: $said\n" : "git-lfs\n" }`,
			strings.Repeat("git-lfs\n", 6)},
		"as the hook": {`my $pid = open(my $o, '-|'); if (!$pid) { open STDERR, '>&', \*STDOUT; exec { "$F/pre-push" } 'x/pre-push' } local $/; my $said = readline $o; print $said =~ /This should be run through Git's pre-push hook/ ? "git-lfs pre-push\n" : "bad: $said"`,
			"git-lfs pre-push\n"},
		"a git-lfs of its own beside it": {`my $d = "$ENV{HOME}/f"; mkdir $d; symlink "$R/evil.sh", "$d/git-lfs"; my $n = 0; $n++ if link "$F/toold-lfs", "$d/toold-lfs"; symlink "$F/toold-lfs", "$d/pre-push"; open(my $i, '<', "$F/toold-lfs"); local $/; open(my $o, '>', "$d/copy"); print {$o} readline($i); close $o; chmod 0755, "$d/copy";
			for my $f ('git-lfs', 'toold-lfs', 'pre-push', 'copy') { print system({ "$d/$f" } $f) == -1 ? "refused\n" : "ran $f\n" } $ENV{PATH} = $d; print system({ 'git-lfs' } 'git-lfs', 'version') == 0 ? "ran\n" : "refused\n"`,
			strings.Repeat("refused\n", 5)},
		"another in its place": {`my $done = 0; for my $f ('git-lfs', 'toold-lfs', 'pre-push', '.', '..') { my $n = "$F/$f"; $done++ if rename $n, "$n.x"; $done++ if unlink $n; $done++ if rename "$R/evil.sh", $n; $done++ if open(my $o, '>>', $n); $done++ if chmod 0777, $n; $done++ if symlink "$R/evil.sh", "$n.y"; $done++ if utime 0, 0, $n } print "done: $done\n"`,
			"done: 0\n"},
	} {
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), p.Socket, &wire.Call{Tool: "native", Cwd: p.roots, Stream: true, Args: []string{"-e", `use strict; our ($F) = split /:/, $ENV{PATH}; our $R = $ARGV[0]; ` + tt.script, p.roots}}, wire.Local{Stdout: &out, Stderr: io.Discard})
		if err != nil || res.Err != nil || out.String() != tt.want {
			t.Errorf("%s: %v, %+v: %s", name, err, res, out.String())
		}
		if fileExists(p.roots + "/marker") {
			t.Errorf("%s: another program ran", name)
		}
	}
}
