package host_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/sshshim"
)

// sshTool is a daemon whose tool git logs in at s with the daemon's key, at a level
// of confinement.
func sshTool(t *testing.T, s *hosttest.SSHD, most string, policy bool, more M) *hosttest.Daemon {
	t.Helper()
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	return sshToolOf(t, s, config.Config{ConfineMost: most, LogLevel: "info"}, policy, more)
}

// sshToolOf is sshTool of a daemon with c.
func sshToolOf(t *testing.T, s *hosttest.SSHD, c config.Config, policy bool, more M) *hosttest.Daemon {
	t.Helper()
	d := hosttest.Start(t, c)
	if err := os.WriteFile(d.KnownHosts(), []byte(s.Known), 0o600); err != nil {
		t.Fatal(err)
	}
	def := M{
		"binary": "/usr/bin/git", "mutating": true, "stdin": false, "timeout": 60,
		"environment":  M{"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_NOSYSTEM": "1"},
		"capabilities": M{"exec": []string{"/usr/bin", "/usr/lib/git-core"}, "network": []string{"localhost:" + s.Port}},
		"secrets":      M{"deploy": M{"from": "file:" + s.Key, "ssh_key": true, "host": "localhost:" + s.Port}},
	}
	for k, v := range more {
		def[k] = v
	}
	modules := map[string]string{}
	if policy {
		modules["restricted.wasm"] = hosttest.Guest(t, "host/testdata/guests/wirer")
	}
	d.Tool(t, "git", def, modules)
	return d
}

// Git clones, fetches and pushes with a key that only the daemon has.
func TestSSHKey(t *testing.T) {
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	s.Git(t, "init", "-q", "--bare", "-b", "main", "other.git")
	for _, most := range []string{"", "seccomp"} {
		d := sshTool(t, s, most, true, nil)
		git := func(dir string, args ...string) *answer {
			t.Helper()
			return ask(t, d.Socket, M{"tool": "git", "cwd": filepath.Join(d.Root, dir), "args": args})
		}
		good := func(dir string, args ...string) string {
			t.Helper()
			a := git(dir, args...)
			if a.ExitCode != 0 {
				t.Fatalf("git %s: %s\n%s", strings.Join(args, " "), a.raw, d.Logs())
			}
			return a.Stdout + a.Stderr
		}
		branch := "b-" + most
		good("", "clone", "-q", s.URL("allow.git"), "copy")
		good("copy", "commit", "-q", "--allow-empty", "-m", "first")
		good("copy", "push", "origin", "HEAD:refs/heads/"+branch)
		if got := s.Git(t, "-C", "allow.git", "log", "-1", "--format=%s", branch); got != "first" {
			t.Errorf("the server has %q", got)
		}
		good("copy", "fetch", "-q", "origin")
		if got := good("copy", "ls-remote", "origin", branch); !strings.Contains(got, "refs/heads/"+branch) {
			t.Errorf("ls-remote: %s", got)
		}
		a := git("copy", "push", s.URL("other.git"), "HEAD:refs/heads/x")
		if a.ExitCode == 0 || !strings.Contains(a.Stderr, "toold: denied by rule wirer.denied: the push to localhost:"+s.Port+filepath.Join(s.Dir, "other.git")+" of refs/heads/x: ") {
			t.Errorf("%s", a.raw)
		}
	}
}

// secretParts are the forms in which a private key could be found somewhere.
func secretParts(t *testing.T, file string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ssh.ParseRawPrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	seed := raw.(*ed25519.PrivateKey).Seed()
	lines := bytes.Split(text, []byte("\n"))
	return [][]byte{seed, []byte(hex.EncodeToString(seed)), lines[3], []byte(file)}
}

// holds reports which of parts b has.
func holds(b []byte, parts [][]byte) bool {
	return slices.ContainsFunc(parts, func(p []byte) bool { return bytes.Contains(b, p) })
}

// memoryHolds looks for parts in what the process can read of its memory.
func memoryHolds(pid int, parts [][]byte) (bool, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false, err
	}
	defer mem.Close()
	read := 0
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || mode[0] != 'r' || strings.Contains(line, "[v") {
			continue
		}
		const step, overlap = 1 << 20, 256
		for at := from; at < to; at += step {
			b := make([]byte, min(step+overlap, to-at))
			n, _ := mem.ReadAt(b, at)
			if read += n; holds(b[:n], parts) {
				return true, nil
			}
		}
	}
	if read == 0 {
		return false, errors.New("nothing of its memory can be read")
	}
	return false, nil
}

// tree are the processes beneath this one, with what they execute.
func tree(t *testing.T) map[int]string {
	t.Helper()
	parents := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		var state string
		var parent int
		fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &parent)
		parents[pid] = parent
	}
	beneath := map[int]string{}
	for pid := range parents {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == os.Getpid() {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				beneath[pid] = strings.ReplaceAll(string(line), "\x00", " ")
				break
			}
		}
	}
	return beneath
}

// While git pushes, none of the processes that it takes has the key, and no file keeps
// it.
func TestSSHKeyStays(t *testing.T) {
	s := hosttest.NewSSHD(t)
	parts := secretParts(t, s.Key)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	gate := s.Dir + "/gate"
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	// The server waits, in the middle of the push, until the test has looked.
	if err := os.WriteFile(s.Dir+"/allow.git/hooks/pre-receive", []byte("#!/bin/sh\necho began > "+gate+"\nread x < "+gate+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, most := range []string{"", "seccomp"} {
		d := sshTool(t, s, most, true, nil)
		git := func(dir string, args ...string) *answer {
			return ask(t, d.Socket, M{"tool": "git", "cwd": filepath.Join(d.Root, dir), "args": args})
		}
		git("", "init", "-q", "-b", "main", "work")
		git("work", "commit", "-q", "--allow-empty", "-m", "first")
		pushed := make(chan *answer, 1)
		go func() { pushed <- git("work", "push", s.URL("allow.git"), "HEAD:refs/heads/stays-"+most) }()
		if b, err := os.ReadFile(gate); err != nil || string(b) != "began\n" {
			t.Fatalf("%q, %v", b, err)
		}
		seen := ""
		for pid, line := range tree(t) {
			seen += line + "\n"
			for _, name := range []string{"environ", "cmdline"} {
				if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)); err == nil && holds(b, parts) {
					t.Errorf("%s of %s has the key", name, line)
				}
			}
			found, err := memoryHolds(pid, parts[:3]) // the daemon's supervisors know which files to hide
			if found {
				t.Errorf("the memory of %s has the key", line)
			}
			if err != nil && strings.Contains(line, "push") {
				t.Logf("the memory of %s: %v", line, err)
				if os.Getuid() == 0 {
					t.Fail()
				}
			}
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			for _, fd := range fds {
				if to, _ := os.Readlink(fd); to == s.Key {
					t.Errorf("%s has the key open", line)
				}
				if st, err := os.Stat(fd); err == nil && st.Mode().IsRegular() && st.Size() < 1<<20 {
					if b, err := os.ReadFile(fd); err == nil && holds(b, parts[:3]) {
						t.Errorf("a file that %s has open holds the key", line)
					}
				}
			}
		}
		for _, want := range []string{"/ssh/toold-ssh ", "git push"} {
			if !strings.Contains(seen, want) {
				t.Errorf("%s was not looked at: %s", want, seen)
			}
		}
		// It could be found: this process, whose daemon pushes, has it.
		if found, err := memoryHolds(os.Getpid(), parts[:1]); !found {
			t.Errorf("the key is nowhere: %v", err)
		}
		if err := os.WriteFile(gate, []byte("go on\n"), 0); err != nil {
			t.Fatal(err)
		}
		if a := <-pushed; a.ExitCode != 0 {
			t.Errorf("%s", a.raw)
		}
		for _, dir := range []string{d.Root, d.Config.State} {
			filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					if b, err := os.ReadFile(path); err == nil && holds(b, parts[:3]) {
						t.Errorf("%s has the key", path)
					}
				}
				return nil
			})
		}
	}
}

// What is refused says what to do, and the ssh of a run does what git needs and nothing
// else.
func TestSSHKeyRefusals(t *testing.T) {
	s := hosttest.NewSSHD(t)
	other := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	at := "localhost:" + s.Port
	caps := M{"exec": []string{"/usr/bin", "/usr/lib/git-core", "/bin/sh"}, "network": []string{"localhost", "127.0.0.1"}}
	locked := filepath.Join(t.TempDir(), "locked")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "words", "-f", locked).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	nonsense := filepath.Join(t.TempDir(), "nonsense")
	if err := os.WriteFile(nonsense, []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := sshTool(t, s, "", false, M{"capabilities": caps})
	key := func(file, host string) M {
		return M{"deploy": M{"from": "file:" + file, "ssh_key": true, "host": host}}
	}
	for name, more := range map[string]M{
		"stranger": {"secrets": key(other.Key, at)},
		"locked":   {"secrets": key(locked, at)},
		"nonsense": {"secrets": key(nonsense, at)},
		"closed":   {"capabilities": M{"exec": caps["exec"], "network": []string{"example.com"}}},
		"other":    {"secrets": key(s.Key, "localhost:"+other.Port)},
		"sh":       {"binary": "/bin/sh"},
		"keyless":  {"binary": "/bin/sh", "secrets": M{}},
	} {
		def := M{
			"binary": "/usr/bin/git", "mutating": true, "stdin": false, "timeout": 60, "capabilities": caps, "secrets": key(s.Key, at),
		}
		for k, v := range more {
			def[k] = v
		}
		d.Tool(t, name, def, nil)
	}
	good := s.Known
	wrong := strings.Replace(other.Known, ":"+other.Port, ":"+s.Port, 1)
	for _, tt := range []struct{ name, tool, known, want string }{
		{"all is well", "git", good, ""},
		{"no file", "git", "-", "the key of " + at + " is not known; the operator adds it to " + d.KnownHosts()},
		{"another host's", "git", other.Known, "the key of " + at + " is not known"},
		{"another key", "git", wrong, "which is not the one in " + d.KnownHosts()},
		{"a revoked key", "git", good + "@revoked * " + strings.SplitN(good, " ", 2)[1], "is revoked"},
		{"no line of known_hosts", "git", "nonsense\n", "repair " + d.KnownHosts()},
		{"a key that the host does not let in", "stranger", good, at + " does not let " + s.User + " in with the key of the secret deploy; add ssh-ed25519 "},
		{"a key with a passphrase", "locked", good, "secret deploy: the key has a passphrase"},
		{"no key", "nonsense", good, "secret deploy: read the private key"},
		{"a host that is not granted", "closed", good, "the connection to " + at + ` is refused: capabilities.network grants only example.com; add "` + at + `" to capabilities.network`},
		{"a host without a key", "other", good, `add a secret with "ssh_key": true and "host": "` + at + `" to secrets in tool.json`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			os.Remove(d.KnownHosts())
			if tt.known != "-" {
				if err := os.WriteFile(d.KnownHosts(), []byte(tt.known), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			a := ask(t, d.Socket, M{"tool": tt.tool, "cwd": d.Root, "args": []string{"ls-remote", s.URL("allow.git")}})
			if (a.ExitCode == 0) != (tt.want == "") || !strings.Contains(a.Stderr, tt.want) {
				t.Errorf("%s", a.raw)
			}
		})
	}
	if err := os.WriteFile(d.KnownHosts(), []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	target := s.User + "@localhost"
	for _, args := range []string{
		target, target + " id", "-N " + target, "-L 1:localhost:2 " + target, "-W localhost:22 " + target, "-o ProxyCommand=id " + target + " \"git-upload-pack 'x'\"",
		target + " \"git-upload-pack 'x'; id\"", "--version", "--config x", "supervise-processes", "",
	} {
		a := ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", `exec "$GIT_SSH_COMMAND" -p ` + s.Port + " " + args}})
		if a.ExitCode != 255 || !strings.Contains(a.Stderr, "read what git asks of ssh") || a.Stdout != "" {
			t.Errorf("ssh %s: %s", args, a.raw)
		}
	}
	// A push that no git would make is refused before the server has any of it.
	s.Git(t, "init", "-q", "-b", "main", "seed")
	s.Git(t, "-C", "seed", "commit", "-q", "--allow-empty", "-m", "one")
	s.Git(t, "-C", "seed", "push", "-q", "../allow.git", "main", "main:other")
	id := s.Git(t, "-C", "seed", "rev-parse", "main")
	zeros := strings.Repeat("0", 40)
	line := func(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
	const caps0 = "\x00 report-status"
	for text, want := range map[string]string{
		line(zeros+" "+id+" refs/heads/main"+caps0) + "0000":                                                "the push says that refs/heads/main is at " + zeros + ", and the server has it at " + id,
		line(strings.Repeat("1", 40)+" "+zeros+" refs/heads/main"+caps0) + "0000":                           "and the server has it at " + id,
		line(id+" "+zeros+" refs/heads/main"+caps0+" later") + "0000":                                       `the capability "later"`,
		line(id+" "+zeros+" refs/heads/other"+caps0) + line(id+" "+zeros+" refs/heads/main\x00x") + "0000":  "whose name is not one that git takes",
		line("push-cert"+caps0+"\n") + line("certificate version 0.1\n") + line("push-cert-end\n") + "0000": "a signed push",
		"hello": `a line whose length is "hell"`,
	} {
		if err := os.WriteFile(filepath.Join(d.Root, "crafted"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a := ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", `exec "$GIT_SSH_COMMAND" -p ` + s.Port + " " + target + ` "git-receive-pack '` + s.Dir + `/allow.git'" < crafted`}})
		if a.ExitCode != 255 || !strings.Contains(a.Stderr, "toold: the push to "+s.URL("allow.git")+" is refused: ") || !strings.Contains(a.Stderr, want) {
			t.Errorf("%q: %s", text, a.raw)
		}
		if got := s.Git(t, "-C", "allow.git", "rev-parse", "main", "other"); got != id+"\n"+id {
			t.Errorf("%q: the server has %s", text, got)
		}
	}
	// Under another name it is nothing else, and a tool without keys has none of it.
	a := ask(t, d.Socket, M{"tool": "sh", "cwd": d.Root, "args": []string{"-c", `unset GIT_SSH_COMMAND; exec ` + filepath.Join(d.Config.State, "ssh", sshshim.Name) + ` supervise-processes`}})
	if a.ExitCode != 255 {
		t.Errorf("%s", a.raw)
	}
	a = ask(t, d.Socket, M{"tool": "keyless", "cwd": d.Root, "args": []string{"-c", `echo "ssh=$GIT_SSH_COMMAND"; ` + filepath.Join(d.Config.State, "ssh", sshshim.Name) + ` x`}})
	if a.Stdout != "ssh=\n" || a.ExitCode != 126 && a.ExitCode != 127 {
		t.Errorf("%s", a.raw)
	}
}

// Git fetches with a key of the daemon's agent, the one that is named and no other, and
// cannot reach the agent itself.
func TestSSHKeyInAgent(t *testing.T) {
	needJudged(t, "ssh-agent", "ssh-add", "ssh-keygen")
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := dir + "/socket"
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	said, err := agent.StdoutPipe() // when it says something, it listens
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { agent.Process.Kill(); agent.Wait() })
	t.Cleanup(stop)
	if _, err := said.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	sh := func(line string) string {
		t.Helper()
		cmd := exec.Command("/bin/sh", "-c", line)
		cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	other := filepath.Join(dir, "other")
	sh("ssh-keygen -q -t ed25519 -N '' -f " + other + " && ssh-add -q " + other + " && cp " + s.Key + " " + dir + "/key && chmod 600 " + dir + "/key && ssh-add -q " + dir + "/key")
	fingerprint := strings.Fields(sh("ssh-keygen -l -f " + dir + "/key"))[1]
	public := sh("ssh-keygen -y -f " + dir + "/key")
	wrong := strings.Fields(sh("ssh-keygen -l -f " + other))[1]
	missing := "SHA256:" + strings.Repeat("A", 43)
	daemon := func(most, key string) *hosttest.Daemon {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/.env", []byte("SSH_AUTH_SOCK="+socket+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config.Config{File: dir + "/toold.json", ConfineMost: most, LogLevel: "info"}
		return sshToolOf(t, s, c, false, M{"secrets": M{"deploy": M{"from": "agent:" + key, "ssh_key": true, "host": "localhost:" + s.Port}}})
	}
	for key, want := range map[string]string{fingerprint: "", public: "", wrong: "does not let", missing: "secret deploy: the agent of toold does not have the key " + missing} {
		d := daemon("", key)
		a := ask(t, d.Socket, M{"tool": "git", "cwd": d.Root, "args": []string{"ls-remote", s.URL("allow.git")}})
		if (a.ExitCode == 0) != (want == "") || !strings.Contains(a.Stderr, want) {
			t.Errorf("%.30s: %s", key, a.raw)
		}
	}
	d := daemon("seccomp", fingerprint)
	add, _ := exec.LookPath("ssh-add")
	d.Tool(t, "script", M{"binary": "/bin/sh", "capabilities": M{"exec": []string{add}}}, nil)
	if a := ask(t, d.Socket, M{"tool": "script", "cwd": d.Root, "args": []string{"-c", "SSH_AUTH_SOCK=" + socket + " " + add + " -l"}}); a.ExitCode == 0 || !strings.Contains(a.Stderr, "unix:"+socket+" is refused") {
		t.Errorf("%s", a.raw)
	}
	stop()
	if a := ask(t, d.Socket, M{"tool": "git", "cwd": d.Root, "args": []string{"ls-remote", s.URL("allow.git")}}); a.ExitCode == 0 || !strings.Contains(a.Stderr, "connect to the agent of toold") {
		t.Errorf("%s", a.raw)
	}
}

// What a run asked of a host over ssh ends with its call, however that ends and whatever of
// the run wants to stay, even if the host goes on.
func TestSSHEndsWithItsCall(t *testing.T) {
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "-b", "main", "seed")
	s.Git(t, "-C", "seed", "commit", "-q", "--allow-empty", "-m", "one")
	s.Git(t, "clone", "-q", "--bare", "seed", "allow.git")
	gate := s.Dir + "/gate"
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, most := range []string{"", "seccomp"} {
		d := sshTool(t, s, most, false, M{"binary": "/bin/sh", "capabilities": M{"exec": []string{"/usr/bin", "/usr/lib/git-core", "/bin/sh"}, "network": []string{"localhost:" + s.Port}}})
		answer := filepath.Join(d.Root, "answer")
		if err := os.WriteFile(s.Dir+"/allow.git/hooks/pre-receive", []byte("#!/bin/sh\necho hook > "+answer+"\nread x < "+gate+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		shim := func(service string) string {
			return fmt.Sprintf(`sleep 1000 | "$GIT_SSH_COMMAND" -p %s %s@localhost "%s '"'%s/allow.git'"'" > answer`, s.Port, s.User, service, s.Dir)
		}
		for name, asks := range map[string]string{
			"a fetch": shim("git-upload-pack"), "a push": shim("git-receive-pack"),
			"a push that a hook of the host holds up": "git init -q; git commit -q --allow-empty -m x; git push -q " + s.URL("allow.git") + " HEAD:refs/heads/b$$",
		} {
			// The process has a session of its own, ignores signals, and never ends its input.
			stays := `setsid sh -c 'trap "" HUP INT TERM PIPE; ` + asks + `' > log 2>&1 &
				until [ -s answer ]; do sleep 0.01; done; echo ready; `
			for how, more := range map[string]M{"by itself": {}, "by a signal": {"args": []string{"-c", stays + "kill -9 $$"}}, "by its timeout": {"args": []string{"-c", stays + "sleep 1000"}, "timeout_ms": 3000}} {
				if how == "by its timeout" && most != "" {
					continue // it takes three seconds
				}
				os.Remove(answer)
				q := M{"tool": "git", "cwd": d.Root, "args": []string{"-c", stays}}
				maps.Copy(q, more)
				if a := ask(t, d.Socket, q); !strings.Contains(string(a.raw), "ready") {
					b, _ := os.ReadFile(d.Root + "/log")
					t.Fatalf("%s %s: %s\n%s", name, how, a.raw, b)
				}
				for pid, line := range tree(t) {
					if strings.Contains(line, sshshim.Name) || strings.Contains(line, "sleep 1000") || strings.Contains(line, "git push") {
						t.Errorf("%s, ended %s: %d stays: %s", name, how, pid, line)
					}
				}
				until(t, "the connection of "+name+" has ended", func() bool {
					for _, line := range tree(t) {
						if strings.Contains(line, "@notty") {
							return false
						}
					}
					return true
				})
				if strings.Contains(name, "hook") {
					if err := os.WriteFile(gate, []byte("go on\n"), 0); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}
