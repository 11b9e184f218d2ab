package hosttest

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// SSHD is a server of OpenSSH's, for one user and one key.
type SSHD struct {
	// User and Port are where to log in, at localhost. Key is the file with the
	// private key for it, Known the line that known_hosts has of the server.
	User, Port, Key, Known string
	// Dir is a folder of the server's, for repositories.
	Dir string
}

// NewSSHD starts a server that serves until the test ends, as the user of the test. It
// skips the test if there is no such program.
func NewSSHD(t testing.TB) *SSHD {
	t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd = "/usr/sbin/sshd"
	}
	for _, program := range []string{sshd, "/usr/bin/git", "/usr/bin/ssh-keygen"} {
		if _, err := os.Stat(program); err != nil {
			t.Skip(err)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 { // what the service does
		check(os.MkdirAll("/run/sshd", 0o755))
	}
	who, err := user.Current()
	check(err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	s := &SSHD{User: who.Username, Port: port, Dir: t.TempDir()}
	secret := t.TempDir()
	s.Key = filepath.Join(secret, "key")
	for _, file := range []string{s.Dir + "/host", s.Key} {
		if out, err := exec.Command("/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	public, err := os.ReadFile(s.Key + ".pub")
	check(err)
	check(os.WriteFile(s.Dir+"/authorized", public, 0o600))
	host, err := os.ReadFile(s.Dir + "/host.pub")
	check(err)
	s.Known = "[localhost]:" + port + " " + strings.TrimSpace(string(host)) + "\n"
	check(os.WriteFile(s.Dir+"/config", []byte("Port "+port+"\nListenAddress 127.0.0.1\nHostKey "+s.Dir+"/host\nAuthorizedKeysFile "+s.Dir+"/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\nAcceptEnv GIT_PROTOCOL\nPrintMotd no\nMaxStartups 100\n"), 0o600))
	args := []string{sshd, "-D", "-e", "-f", s.Dir + "/config"}
	if _, err := user.Lookup("sshd"); err != nil && os.Getuid() == 0 {
		// As root it needs that user, which the installation of its package creates. It gets
		// one in a mount namespace of its own.
		users, err := os.ReadFile("/etc/passwd")
		check(err)
		check(os.WriteFile(s.Dir+"/passwd", append(users, "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"...), 0o644))
		args = append([]string{"unshare", "-m", "/bin/sh", "-c", `mount --bind "$0" /etc/passwd && exec "$@"`, s.Dir + "/passwd"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	stderr, err := cmd.StderrPipe()
	check(err)
	check(cmd.Start())
	said := bufio.NewScanner(stderr)
	serves, first := false, ""
	for !serves && said.Scan() {
		t.Log(said.Text())
		serves, first = strings.Contains(said.Text(), "listening on"), first+said.Text()
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for said.Scan() {
		}
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-drained; cmd.Wait() })
	switch {
	case !serves && strings.Contains(first, "unshare failed"):
		t.Skip("no view of files of its own can be made here: " + first)
	case !serves:
		t.Fatalf("sshd does not start: %s", first)
	}
	return s
}

// URL is that of the repository at path, in Dir.
func (s *SSHD) URL(path string) string {
	return "ssh://" + s.User + "@localhost:" + s.Port + filepath.Join(s.Dir, path)
}

// Git runs git in Dir, as the server's operator would, and returns what it writes.
func (s *SSHD) Git(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("/usr/bin/git", args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+s.Dir, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
