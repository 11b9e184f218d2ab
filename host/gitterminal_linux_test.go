package host_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
)

// git has colours and progress on a terminal, and neither a pager nor an editor.
func TestGitOnATerminal(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", "from"},
		{"-C", "from", "-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "the first"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = d.Root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	program := wrapperProgram(t)
	s := openScreen(t)
	s.start(d.Socket, d.Root+"/from", program, "git", "log")
	got := s.expect(`the first`)
	if code := s.ended(); code != 0 || !strings.Contains(got, "\x1b[33mcommit") {
		t.Errorf("exit code %d, %q", code, got)
	}
	s = openScreen(t)
	s.start(d.Socket, d.Root, program, "git", "clone", "--no-local", "from", "to")
	got = s.expect(`Receiving objects: 100%`)
	if code := s.ended(); code != 0 || !strings.Contains(got, "\r") {
		t.Errorf("exit code %d, %q", code, got)
	}
}

// atScreen calls git through the wrapper, at a terminal.
func (c *caller) atScreen(t *testing.T, env []string, args ...string) *screen {
	t.Helper()
	s := openScreen(t)
	s.env = append([]string{"PATH=/usr/bin:/bin", "MARKER=" + c.home + "/marker", "HOME=" + c.home}, env...)
	s.start(c.d.Socket, c.dir, c.program, "git", args...)
	return s
}

// TestGitByHand does with git at a terminal what people do with it there.
func TestGitByHand(t *testing.T) {
	needsTerminals(t)
	c := newCaller(t)
	need := func(t *testing.T, name string) string {
		t.Helper()
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("there is no %s here", name)
		}
		return path
	}
	t.Run("add -p", func(t *testing.T) {
		lines := make([]string, 40)
		for i := range lines {
			lines[i] = fmt.Sprintf("line %d\n", i)
		}
		c.write("hunks", strings.Join(lines, ""), 0o644)
		c.native("-C", c.dir, "add", "hunks")
		c.native("-C", c.dir, "commit", "-q", "-m", "hunks")
		lines[2], lines[37] = "changed above\n", "changed below\n"
		c.write("hunks", strings.Join(lines, ""), 0o644)
		s := c.atScreen(t, nil, "add", "-p")
		s.expect(`\(1/2\) Stage this hunk`)
		s.typed("n\r")
		s.expect(`\(2/2\) Stage this hunk`)
		s.typed("y\r")
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d: %q", code, s.expect(""))
		}
		if staged := c.native("-C", c.dir, "diff", "--cached"); strings.Contains(staged, "above") || !strings.Contains(staged, "+changed below") {
			t.Errorf("staged: %s", staged)
		}
		c.native("-C", c.dir, "reset", "-q", "--hard", "HEAD~1")
	})
	t.Run("rebase -i in vim", func(t *testing.T) {
		need(t, "vim")
		s := c.atScreen(t, []string{"EDITOR=vim -u NONE --cmd 'set shortmess+=F'"}, "rebase", "-i", "HEAD~2")
		s.expect(`Rebase [0-9a-f]+\.\.[0-9a-f]+ onto`)
		s.typed(":1s/pick/drop/\r:wq\r")
		s.expect(`Successfully rebased`)
		if code := s.ended(); code != 0 || c.subjects() != "three one" {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
	t.Run("commit in nano", func(t *testing.T) {
		nano := need(t, "nano")
		s := c.atScreen(t, []string{"EDITOR=" + nano}, "commit", "--allow-empty")
		s.expect(`Please enter the commit message`)
		s.typed("by nano\x18") // Ctrl-X
		s.expect(`(?i)save modified buffer`)
		s.typed("y")
		s.expect(`File Name to Write`)
		s.typed("\r")
		if code := s.ended(); code != 0 || !strings.HasPrefix(c.subjects(), "by nano ") {
			t.Errorf("exit code %d, %s: %q", code, c.subjects(), s.expect(""))
		}
	})
	t.Run("resized in less", func(t *testing.T) {
		need(t, "less")
		s := c.atScreen(t, []string{"LESS=X", "GIT_PAGER=less"}, "log")
		s.expect(`(?s)three.*\(END\)`)
		s.resize(6, 40)
		s.typed("\x0c") // less misses a signal between its prompt and its read
		s.expect(`(?s)\(END\).*commit [0-9a-f]+.*:`)
		s.typed("q")
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d: %q", code, s.expect(""))
		}
	})
	t.Run("less over 100 MB", func(t *testing.T) {
		need(t, "less")
		const lines = 100 << 20 / 64
		big := &bytes.Buffer{}
		for i := range lines {
			fmt.Fprintf(big, "%063d\n", i)
		}
		c.write("big", big.String(), 0o644)
		c.native("-C", c.dir, "add", "big")
		c.native("-C", c.dir, "commit", "-q", "-m", "big")
		show := func() *screen {
			s := c.atScreen(t, []string{"LESS=X"}, "show", "HEAD:big")
			s.expect(`0{62}9\r\n`)
			return s
		}
		s := show()
		s.typed("q") // git is ended in the middle of it, as natively
		if code := s.ended(); code != 0 && code != 141 {
			t.Errorf("exit code %d", code)
		}
		s = show()
		s.typed("G")
		s.expect(fmt.Sprintf(`%063d`, lines-1))
		s.typed("q")
		if code := s.ended(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

// A password is asked for by nobody, at a terminal or not, whatever program the caller has for it: git fails at once and says what to do.
func TestPasswordsAreNotAsked(t *testing.T) {
	needsTerminals(t)
	asked := make(chan string, 64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Authorization")
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	d := hosttest.Start(t, config.Config{})
	def := hosttest.ReadyJSON(t, "git")
	def["config"] = M{"allow_http": "true"}
	def["capabilities"].(M)["network"] = []string{strings.TrimPrefix(server.URL, "http://")}
	d.Tool(t, "git", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	marker := filepath.Join(d.Root, "marker")
	helper := filepath.Join(d.Root, "askpass")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\necho ran >> "+marker+"\necho sesame\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	repo := filepath.Join(d.Root, "repo")
	for _, args := range [][]string{{"init", "-q", repo}, {"-C", repo, "remote", "add", "origin", server.URL + "/x.git"}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	program := wrapperProgram(t)
	for _, env := range [][]string{nil, {"SSH_ASKPASS=" + helper, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=:0"}, {"GIT_ASKPASS=" + helper, "TOOL_ENV=GIT_ASKPASS"}, {"GIT_TERMINAL_PROMPT=1"}} {
		s := openScreen(t)
		s.env = append([]string{"PATH=/usr/bin:/bin"}, env...)
		s.start(d.Socket, repo, program, "git", "fetch", "origin")
		got := s.expect(`the operator gives this tool a secret with header and host(?s:.*)could not read Username|denied by rule env: (?s:.*)GIT_ASKPASS`)
		if code := s.ended(); code == 0 { // and nothing was typed
			t.Errorf("%q: exit code %d: %q", env, code, got)
		}
		cmd := exec.Command(program, "fetch", "origin")
		cmd.Args[0], cmd.Dir = "git", repo
		cmd.Env = append(slices.Clone(s.env), "TOOL_SOCKET="+d.Socket)
		out, err := cmd.CombinedOutput()
		if refused := strings.Contains(string(out), "GIT_ASKPASS"); err == nil || !refused && !strings.Contains(string(out), "the operator gives this tool a secret") {
			t.Errorf("without a terminal, %q: %v: %s", env, err, out)
		}
	}
	if b, err := os.ReadFile(marker); err == nil {
		t.Errorf("the caller's program was started: %s", b)
	}
	for len(asked) > 0 {
		if a := <-asked; a != "" {
			t.Errorf("the server was sent %q", a)
		}
	}
}

// TestSSHAsksNobody: what ssh would ask at a terminal, whether a host is the one that it
// was and for a password, is asked nobody, with a terminal or without, and the call ends.
func TestSSHAsksNobody(t *testing.T) {
	needsTerminals(t)
	if !exists("/usr/bin/ssh") {
		t.Skip("there is no ssh here")
	}
	server := hosttest.NewSSHD(t)
	d := hosttest.Start(t, config.Config{})
	def := hosttest.ReadyJSON(t, "git")
	def["capabilities"].(M)["network"] = []string{"localhost:" + server.Port}
	d.Tool(t, "git", def, map[string]string{"restricted.wasm": hosttest.Guest(t, "plugins/git")})
	repo := filepath.Join(d.Root, "repo")
	for _, args := range [][]string{{"init", "-q", repo}, {"-C", repo, "remote", "add", "origin", server.URL("shared.git")}} {
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	marker, helper := filepath.Join(d.Root, "marker"), filepath.Join(d.Root, "askpass")
	if err := os.WriteFile(helper, []byte("#!/bin/sh\necho ran >> "+marker+"\necho yes\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := wrapperProgram(t)
	for _, env := range [][]string{nil, {"SSH_ASKPASS=" + helper, "SSH_ASKPASS_REQUIRE=force", "DISPLAY=:0"}, {"SSH_ASKPASS_REQUIRE=never"}} {
		s := openScreen(t)
		s.env = append([]string{"PATH=/usr/bin:/bin"}, env...)
		s.start(d.Socket, repo, program, "git", "fetch", "origin")
		got := s.expect(`the operator gives this tool a secret with ssh_key and host(?s:.*)Could not read from remote repository`)
		if code := s.ended(); code == 0 || strings.Contains(got, "(yes/no") || strings.Contains(got, "password:") || strings.Contains(got, "passphrase") {
			t.Errorf("%q: exit code %d: %q", env, code, got)
		}
		cmd := exec.Command(program, "fetch", "origin")
		cmd.Args[0], cmd.Dir = "git", repo
		cmd.Env = append(slices.Clone(s.env), "TOOL_SOCKET="+d.Socket)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "the operator gives this tool a secret with ssh_key and host") {
			t.Errorf("without a terminal, %q: %v: %s", env, err, out)
		}
	}
	if exists(marker) {
		t.Error("the caller's askpass ran on the host")
	}
}
