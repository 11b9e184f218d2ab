package host_test

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// needJudged skips where the connections of binaries are not judged, or a program is
// missing.
func needJudged(t *testing.T, programs ...string) (paths []string) {
	t.Helper()
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("there is no %s here", name)
		}
		paths = append(paths, path)
	}
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	return paths
}

// secretFile writes a secret to a file of its own.
func secretFile(t *testing.T, value string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// authorityFile writes the certificate of a test server to a file, for the daemon to
// trust.
func authorityFile(t *testing.T, s *hosttest.Site) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, certificateOf(s), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// certificateOf is the certificate of a test server, in PEM.
func certificateOf(s *hosttest.Site) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// leaks looks for words in what every process that this one has started holds:
// arguments, environment, memory, and files that are open. It returns where it found
// them.
func leaks(words ...string) (found map[string][]string) {
	parents := map[int]int{}
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range all {
		b, _ := os.ReadFile(file)
		_, rest, _ := strings.Cut(string(b), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	found = map[string][]string{}
	look := func(where string, text []byte) {
		for _, w := range words {
			if bytes.Contains(text, []byte(w)) {
				found[w] = append(found[w], where)
			}
		}
	}
	for pid := range parents {
		above := parents[pid]
		for above > 1 && above != os.Getpid() {
			above = parents[above]
		}
		if above != os.Getpid() {
			continue
		}
		dir := "/proc/" + strconv.Itoa(pid)
		for _, name := range []string{"/environ", "/cmdline"} {
			b, _ := os.ReadFile(dir + name)
			look(dir+name, b)
		}
		open, _ := filepath.Glob(dir + "/fd/*")
		for _, fd := range open {
			if info, err := os.Stat(fd); err == nil && info.Mode().IsRegular() && info.Size() < 64<<20 {
				b, _ := os.ReadFile(fd)
				look(fd, b)
			}
		}
		mem, err1 := os.Open(dir + "/mem")
		pages, err2 := os.Open(dir + "/pagemap")
		if err1 != nil || err2 != nil {
			continue
		}
		maps, _ := os.ReadFile(dir + "/maps")
		for line := range strings.Lines(string(maps)) {
			var from, to int64
			var mode string
			if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n == 3 && strings.HasPrefix(mode, "rw") {
				look(dir+"/mem", written(mem, pages, from, to))
			}
		}
		pages.Close()
		mem.Close()
	}
	return found
}

// written is the memory from an address to another, without pages that are not there.
func written(mem, pages *os.File, from, to int64) (text []byte) {
	const page, chunk = 4096, 1 << 20
	for ; from < to; from += chunk {
		there := make([]byte, min(chunk, to-from)/page*8)
		n, _ := pages.ReadAt(there, from/page*8)
		for i := 0; i+8 <= n; i += 8 {
			if there[i+7]&0xc0 == 0 { // neither present nor swapped out
				continue
			}
			text = append(text, make([]byte, page)...)
			mem.ReadAt(text[len(text)-page:], from+int64(i/8*page))
		}
	}
	return text
}

// watched is a server's handler that looks for the credential in the processes that
// ask, while they wait, and in files afterwards. It sees what they do hold: songbird.
type watched struct {
	t       *testing.T
	secrets []string
	seen    atomic.Bool
}

const songbird = "songbird-0123456789"

func (s *watched) handler(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		found := leaks(append([]string{songbird}, s.secrets...)...)
		for _, secret := range s.secrets {
			if len(found[secret]) > 0 {
				s.t.Errorf("%s %s: the credential is in %v", r.Method, r.URL.Path, found[secret])
			}
		}
		if len(found[songbird]) > 0 {
			s.seen.Store(true)
		}
		h(w, r)
	}
}

// files looks into all files under dirs.
func (s *watched) files(dirs ...string) {
	s.t.Helper()
	if !s.seen.Load() {
		s.t.Error("nothing was seen of the processes")
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, secret := range s.secrets {
				if bytes.Contains(text, []byte(secret)) {
					s.t.Errorf("%s holds the credential", path)
				}
			}
			return err
		})
		if err != nil {
			s.t.Error(err)
		}
	}
}

// git over https with a token that only the daemon has: cloning, fetching and
// pushing work, and no process of git has the token.
func TestGitWithoutToken(t *testing.T) {
	git := needJudged(t, "git")[0]
	const token = "ghp_sesame0123456789abcdefghijklmnop"
	repos := t.TempDir()
	for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", repos + "/remote.git"}, {"-C", repos + "/remote.git", "config", "http.receivepack", "true"}} {
		if out, err := exec.Command(git, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x-access-token"}}
	watch := &watched{t: t, secrets: []string{token, base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))}}
	server := hosttest.NewSite(t, "127.0.0.1:0", &tls.Config{}, watch.handler(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "x-access-token" || password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	host := "127.0.0.1:" + server.Port()
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "git", M{
		"binary":       git,
		"capabilities": M{"exec": []string{git, "/usr/lib/git-core"}, "network": []string{host}},
		"environment":  M{"GIT_TERMINAL_PROMPT": "0", "CANARY": songbird},
		"secrets": M{
			"token": M{"from": "file:" + secretFile(t, token), "header": "Authorization", "host": host, "content": "Basic {basic:x-access-token}"},
			"ca":    M{"from": "file:" + authorityFile(t, server), "tls": "ca", "host": host},
		},
	}, nil)
	said := ""
	run := func(cwd, line string) *wire.Result {
		t.Helper()
		var out bytes.Buffer
		res, err := client.Stream(t.Context(), d.Socket, &wire.Call{Tool: "git", Args: strings.Fields(line), Cwd: filepath.Join(d.Root, cwd), Stream: true}, wire.Local{Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		said += out.String()
		if res.Err != nil || res.ExitCode != 0 {
			t.Errorf("git %s: %v, exit code %d: %s", line, res.Err, res.ExitCode, out.String())
		}
		return res
	}
	run(".", "clone -q "+server.URL+"/remote.git new")
	if err := os.WriteFile(d.Root+"/new/file", bytes.Repeat([]byte("all of it\n"), 1<<18), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"add .", "-c user.name=A -c user.email=a@example.com commit -q -m first", "push -q origin HEAD:main", "fetch origin", "ls-remote origin"} {
		run("new", line)
	}
	if out, err := exec.Command(git, "-C", repos+"/remote.git", "log", "-1", "--format=%s", "main").Output(); err != nil || strings.TrimSpace(string(out)) != "first" {
		t.Errorf("the push did not arrive: %q, %v", out, err)
	}
	if strings.Contains(said, token) {
		t.Errorf("the token is shown: %s", said)
	}
	watch.files(d.Root, d.Config.State)
	var journal []byte
	filepath.WalkDir(filepath.Join(d.Config.State, "sessions"), func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			b, _ := os.ReadFile(path)
			journal = append(journal, b...)
		}
		return nil
	})
	if !bytes.Contains(journal, []byte(`{"host":"`+host+`","on":"POST /remote.git/git-receive-pack: 200"`)) {
		t.Errorf("the journal does not tell of the push: %s", journal)
	}
}

// curl, gh and npm use a credential that they do not have, and are not shown it by a
// server that repeats it.
func TestProgramsWithoutCredentials(t *testing.T) {
	const token = "ghp_sesame0123456789abcdefghijklmnop"
	for name, tt := range map[string]struct {
		env  M
		exec []string
		args []string
		want string
	}{
		"curl": {nil, nil, []string{"-sS", "-i", "-H", "Authorization: Bearer mine", "URL/echo"}, "you are Bearer *"},
		"gh":   {M{"GH_HOST": "HOST", "GH_ENTERPRISE_TOKEN": "the daemon's", "GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1"}, nil, []string{"api", "user", "--jq", ".login"}, "somebody\n"},
		"npm":  {M{"npm_config_registry": "URL/", "npm_config_update_notifier": "false"}, []string{"/usr/bin/node", "/usr/bin/env", "/usr/lib/node_modules/npm"}, []string{"view", "dep", "version"}, "1.2.3\n"},
	} {
		t.Run(name, func(t *testing.T) {
			program := needJudged(t, name)[0]
			watch := &watched{t: t, secrets: []string{token}}
			server := hosttest.NewSite(t, "127.0.0.1:0", &tls.Config{}, watch.handler(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Echo", r.Header.Get("Authorization"))
				switch {
				case r.Header.Get("Authorization") != "Bearer "+token:
					w.WriteHeader(http.StatusUnauthorized)
				case r.URL.Path == "/api/v3/user":
					w.Header().Set("Content-Type", "application/json")
					io.WriteString(w, `{"login":"somebody"}`)
				case r.URL.Path == "/dep":
					io.WriteString(w, `{"name":"dep","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"dep","version":"1.2.3","dist":{"tarball":"https://`+r.Host+`/dep.tgz"}}}}`)
				default:
					io.WriteString(w, "you are "+r.Header.Get("Authorization")+"\n")
				}
			}))
			host := "127.0.0.1:" + server.Port()
			dir, err := os.MkdirTemp("/tmp", "toold-credentials")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			os.Chmod(dir, 0o755)
			d := hosttest.Start(t, config.Config{Roots: []string{dir}})
			env := M{"CANARY": songbird}
			expand := strings.NewReplacer("URL", server.URL, "HOST", host)
			for k, v := range tt.env {
				env[k] = expand.Replace(v.(string))
			}
			granted := tt.exec
			// Where scripts/test has installed it, it is a script that starts it.
			if b, err := os.ReadFile(program); err == nil && bytes.HasPrefix(b, []byte("#!/bin/sh\n")) {
				_, rest, _ := strings.Cut(string(b), " exec ")
				granted = append(granted, strings.Fields(rest)[0], "/bin/sh")
			}
			user := ""
			if name == "curl" && os.Geteuid() == 0 && os.Getenv("TOOLD_TEST_CONFINE") == "" { // who reads what it is to trust, too
				user = "12345:12345"
			}
			d.Tool(t, name, M{
				"binary":       program,
				"user":         user,
				"capabilities": M{"network": []string{host}, "exec": granted},
				"environment":  env,
				"secrets": M{
					"token": M{"from": "file:" + secretFile(t, token), "header": "Authorization", "host": host, "content": "Bearer {secret}"},
					"ca":    M{"from": "file:" + authorityFile(t, server), "tls": "ca", "host": host},
				},
			}, nil)
			var args []string
			for _, a := range tt.args {
				args = append(args, expand.Replace(a))
			}
			a := ask(t, d.Socket, M{"tool": name, "cwd": d.Root, "args": args})
			if a.ExitCode != 0 || !strings.Contains(a.Stdout, tt.want) || bytes.Contains(a.raw, []byte(token)) {
				t.Errorf("%s", a.raw)
			}
			watch.files(d.Root, d.Config.State)
		})
	}
}

// What programs are told to trust is shared by the calls of a tool: none of them can
// change it, at any level, nor list what others are told.
func TestTrustIsReadOnly(t *testing.T) {
	needJudged(t, "dd", "chmod")
	for _, most := range []string{"", "seccomp"} {
		d := hosttest.Start(t, config.Config{ConfineMost: most})
		d.Tool(t, "script", M{
			"binary":       "/bin/sh",
			"capabilities": M{"network": []string{"localhost:443"}, "exec": []string{"/usr/bin"}},
			"secrets":      M{"token": M{"from": "file:" + secretFile(t, "sesame-0123456789"), "header": "Authorization", "host": "localhost:443"}},
		}, nil)
		run := func(script string) *answer {
			return ask(t, d.Socket, M{"tool": "script", "cwd": d.Root, "args": []string{"-c", script}})
		}
		a := run(`echo $SSL_CERT_FILE; cksum $SSL_CERT_FILE`)
		file, sum, _ := strings.Cut(a.Stdout, "\n")
		before, err := os.ReadFile(file)
		if err != nil || sum == "" {
			t.Fatalf("%v: %s", err, a.raw)
		}
		dir := filepath.Dir(file)
		for _, script := range []string{
			"echo x >>" + file, "echo x >" + file, "chmod 666 " + file, "rm -f " + file + "; cat /etc/hostname > " + file, "mv " + file + " .",
			"cp /etc/hostname " + dir + "/new", "ls " + filepath.Dir(dir), "ln " + file + " mine && echo x >> mine", "truncate -s 0 " + file, "touch -d 2001-01-01 " + file,
		} {
			if a := run(script); a.ExitCode == 0 && !strings.HasPrefix(script, "ls ") {
				t.Errorf("%q: %s", script, a.raw)
			} else if strings.HasPrefix(script, "ls ") && strings.Contains(a.Stdout, "\n") && most == "seccomp" {
				t.Errorf("%q: %s", script, a.raw)
			}
		}
		b, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(b, before) {
			t.Errorf("%q: it is changed: %v", most, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o444 || info.ModTime().Year() < 2020 {
			t.Errorf("%q: %v, %v", most, info, err)
		}
		if a := run(`cksum $SSL_CERT_FILE`); a.Stdout != sum {
			t.Errorf("%q: another is told of something else", most)
		}
	}
}

// curl asks a service whose requests are signed, with a key that only the daemon has.
func TestRequestsAreSigned(t *testing.T) {
	program := needJudged(t, "curl")[0]
	const key, token = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzEBYaDExampleSessionToken"
	watch := &watched{t: t, secrets: []string{key, token}}
	server := hosttest.NewSite(t, "127.0.0.1:0", &tls.Config{}, watch.handler(func(w http.ResponseWriter, r *http.Request) {
		said := r.Header.Get("Authorization")
		if !strings.HasPrefix(said, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") || !strings.Contains(said, "/eu-central-1/s3/aws4_request, SignedHeaders=host;") || r.Header.Get("X-Amz-Security-Token") != token {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprintf(w, "you are %s %s\n", said, r.Header.Get("X-Amz-Security-Token"))
	}))
	host := "127.0.0.1:" + server.Port()
	d := hosttest.Start(t, config.Config{})
	d.Tool(t, "curl", M{
		"binary":       program,
		"capabilities": M{"network": []string{host}},
		"environment":  M{"CANARY": songbird},
		"secrets": M{
			"aws": M{"from": "file:" + secretFile(t, "AKIDEXAMPLE:"+key+":"+token), "sigv4": M{"service": "s3", "region": "eu-central-1"}, "host": host},
			"ca":  M{"from": "file:" + authorityFile(t, server), "tls": "ca", "host": host},
		},
	}, nil)
	if err := os.WriteFile(d.Root+"/file", []byte("all of it"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := ask(t, d.Socket, M{"tool": "curl", "cwd": d.Root, "args": []string{"-sS", "--fail", "-T", "file", server.URL + "/bucket/"}})
	_, signature, _ := strings.Cut(a.Stdout, "Signature=")
	if a.ExitCode != 0 || !strings.HasPrefix(signature, "****") || bytes.Contains(a.raw, []byte(token)) {
		t.Errorf("%s", a.raw)
	}
	watch.files(d.Root, d.Config.State)
	// A value that is no key is said so before anybody calls.
	d.Tool(t, "broken", M{
		"binary": program, "capabilities": M{"network": []string{host}},
		"secrets": M{"aws": M{"from": "file:" + secretFile(t, "no-key"), "sigv4": M{"service": "s3", "region": "eu-central-1"}, "host": host}},
	}, nil)
	if a := ask(t, d.Socket, M{"tool": "broken", "cwd": d.Root, "args": []string{}}); !strings.Contains(string(a.Error), `secret aws of tool broken: it must be`) {
		t.Errorf("%s", a.raw)
	}
}

// A push over https to a host that no secret names is judged as well, with a password
// that git has itself, unless the operator has the host's connections passed through.
func TestPushWithoutSecretIsJudged(t *testing.T) {
	git := needJudged(t, "git")[0]
	repos := t.TempDir()
	for _, name := range []string{"allow.git", "other.git"} {
		for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", repos + "/" + name}, {"-C", repos + "/" + name, "config", "http.receivepack", "true"}} {
			if out, err := exec.Command(git, args...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	backend := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=me"}}
	server := hosttest.NewSite(t, "127.0.0.1:0", &tls.Config{}, func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "mine" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	})
	host := "127.0.0.1:" + server.Port()
	for _, unread := range []bool{false, true} {
		d := hosttest.Start(t, config.Config{})
		capabilities := M{"exec": []string{git, "/usr/lib/git-core"}, "network": []string{host}}
		if unread {
			capabilities["unread"] = []string{host}
		}
		d.Tool(t, "git", M{
			"binary": git, "capabilities": capabilities, "mutating": true,
			"environment": M{"GIT_TERMINAL_PROMPT": "0", "GIT_SSL_CAINFO": authorityFile(t, server), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"},
		}, map[string]string{"restricted.wasm": hosttest.Guest(t, "host/testdata/guests/wirer")})
		run := func(args ...string) *answer {
			return ask(t, d.Socket, M{"tool": "git", "cwd": d.Root, "args": args})
		}
		url := func(name string) string { return "https://me:mine@" + host + "/" + name }
		for _, args := range [][]string{{"init", "-q"}, {"commit", "-q", "--allow-empty", "-m", "first"}, {"push", "-q", url("allow.git"), fmt.Sprint("HEAD:refs/heads/b-", unread)}} {
			if a := run(args...); a.ExitCode != 0 {
				t.Fatalf("git %v: %s", args, a.raw)
			}
		}
		a := run("push", url("other.git"), "HEAD:main")
		at, _ := exec.Command(git, "-C", repos+"/other.git", "rev-parse", "-q", "--verify", "main").Output()
		if refused := strings.Contains(a.Stderr, "denied by rule wirer.denied") && len(at) == 0; refused == unread || (a.ExitCode == 0) != unread {
			t.Errorf("unread %v: main is %q: %s", unread, at, a.raw)
		}
	}
}
