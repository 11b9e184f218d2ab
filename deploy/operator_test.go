package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// section are the blocks of commands and of configuration under a heading of a page of
// the manual, in their order.
func section(t *testing.T, page, heading string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, text2, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/%s has no %q", page, heading)
	}
	text2, _, _ = strings.Cut(text2, "\n## ")
	var block strings.Builder
	for line := range strings.Lines(text2 + "\nend\n") {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			block.WriteString(code)
		} else if block.Len() > 0 && strings.TrimSpace(line) != "" {
			blocks = append(blocks, block.String())
			block.Reset()
		}
	}
	return blocks
}

// TestNewOperator does what docs/install.md says under "From a package to a container
// that pushes", to the letter, on a Debian that has systemd and nothing else: until a
// container without network and credentials has pushed to a server that wants a
// password. Only what the page leaves to its reader is filled in: the token, the
// repository and the image.
//
// The machine has no network. Debian's packages are in apt's cache, the image is an
// archive, and github.com is a server on the machine itself, with its public address.
func TestNewOperator(t *testing.T) {
	e := newEngine(t, "TOOLD_CONTAINERS", "make test-containers")
	const (
		token   = "ghp_correcthorsebatterystaple"
		address = "140.82.121.4"
		image   = "localhost/debian"
	)
	given := filepath.Join(e.dir, "given")
	output(t, "mkdir", given)
	output(t, "cp", e.pack(), filepath.Join(given, "toold_0.1.0_"+runtime.GOARCH+".deb"))
	output(t, "cp", e.program("remote"), given)
	output(t, "ln", debian(t, "debian"), filepath.Join(given, "image.tar"))

	m := startMachine(t, e, "operator", debianOffline(t, "operator", []string{"git", "podman", "acl"}, systemdPackages...), given, true, "--add-host", "github.com:"+address,
		// What podman in it needs: networks and devices of its own.
		"--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "MKNOD", "--device", "/dev/fuse")
	pid := strings.TrimSpace(m.run("inspect", "-f", "{{.State.Pid}}", m.name))
	output(t, "nsenter", "-t", pid, "-n", "ip", "address", "add", address+"/32", "dev", "lo")

	blocks := section(t, "install.md", "From a package to a container that pushes")
	filled := strings.NewReplacer(
		"…", token, "ORG/REPOSITORY", "org/a.git", "cd REPOSITORY", "cd a", " -it ", " -i ", " IMAGE ", " "+image+" ",
		"./toold_*.deb", "/debs/toold_*.deb", "apt-get install ", "apt-get install -y ",
		"toolctl tools add ", "toolctl tools add --yes ")
	began := time.Now()
	var transcript strings.Builder
	defer func() { t.Logf("transcript:\n%s", &transcript) }()
	for i, block := range blocks {
		if strings.HasPrefix(block, `"secrets": {`) {
			const file = "/etc/toold/tools.d/git/tool.json"
			definition := m.do("cat", file)
			before, after, ok := strings.Cut(definition, "  \"capabilities\": {")
			if !ok {
				t.Fatalf("%s has no capabilities:\n%s", file, definition)
			}
			edited := filepath.Join(given, "tool.json")
			if err := os.WriteFile(edited, []byte(before+block+"  \"capabilities\": {"+after), 0o644); err != nil {
				t.Fatal(err)
			}
			m.do("cp", "/debs/tool.json", file)
			fmt.Fprintf(&transcript, "(edited %s)\n%s", file, block)
			continue
		}
		script := filled.Replace(block)
		if strings.Contains(block, "podman run") {
			// What the world has and this machine lacks.
			// Groups of processes it cannot make within this machine, which is a container.
			m.sh("mkdir -p /etc/containers; printf '[containers]\\ncgroups=\"disabled\"\\n' >/etc/containers/containers.conf")
			m.do("podman", "import", "/debs/image.tar", image)
			m.sh("install -d /srv/forge/org; git init -q --bare -b main /srv/forge/org/a.git; git -C /srv/forge/org/a.git config http.receivepack true; " +
				"git init -q -b main /tmp/a; git -C /tmp/a -c user.name=A -c user.email=a@example.com commit -q --allow-empty -m one; git -C /tmp/a push -q /srv/forge/org/a.git main")
			r := m.start("/debs/remote", "/srv/forge", token, address+":443", "github.com")
			r.expect("ready")
			go func() {
				for r.lines.Scan() {
				}
				r.cmd.Wait()
			}()
			m.sh("cp /srv/forge/ca.pem /usr/local/share/ca-certificates/forge.crt; update-ca-certificates >/dev/null 2>&1; systemctl restart toold")
		}
		out, err := m.try(nil, "exec", m.name, "sh", "-ec", script)
		fmt.Fprintf(&transcript, "\n# %.0f s\n%s%s", time.Since(began).Seconds(), regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(script, "\n"), "$ ")+"\n", tail(out))
		if err != nil {
			t.Fatalf("block %d: %v", i+1, err)
		}
		if strings.Contains(out, token) {
			t.Errorf("block %d shows the token:\n%s", i+1, out)
		}
	}
	if took := time.Since(began); took > 10*time.Minute {
		t.Errorf("it took %v", took)
	}
	heads := m.sh("git -C /srv/forge/org/a.git for-each-ref --format='%(refname) %(objectname)'; git -C /tmp/a rev-parse main")
	head := heads[strings.LastIndex(strings.TrimSpace(heads), "\n")+1:]
	if !strings.Contains(heads, "refs/heads/toold "+strings.TrimSpace(head)) {
		t.Errorf("nothing was pushed: the server has\n%s", heads)
	}
}

// tail are the last lines of what a command printed.
func tail(text string) string {
	lines := slices.Collect(strings.Lines(text))
	if len(lines) > 12 {
		lines = append([]string{fmt.Sprintf("[%d lines]\n", len(lines)-12)}, lines[len(lines)-12:]...)
	}
	return strings.Join(lines, "")
}
