package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// engine is podman with a store of its own, which ends with the test.
type engine struct {
	t    *testing.T
	dir  string
	args []string
}

// newEngine skips the test unless it was asked for by a variable, as a target of make
// does: it takes minutes, root and Debian's mirror.
func newEngine(t *testing.T, variable, target string) *engine {
	if os.Getenv(variable) == "" {
		t.Skip(variable + " is not set; " + target)
	}
	for _, program := range []string{"podman", "runc", "debootstrap"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v; apt-get install podman runc debootstrap", err)
		}
	}
	// Short, as paths of sockets are.
	dir, err := os.MkdirTemp("", "toold-c")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, dir: dir, args: []string{"--log-level", "error", "--cgroup-manager", "cgroupfs", "--storage-driver", "vfs", "--runtime", "runc",
		"--root", filepath.Join(dir, "store"), "--runroot", filepath.Join(dir, "run")}}
	t.Cleanup(func() {
		e.t = t
		// One after the other: rm -a forgets one whose network another has, and lets it run.
		ids, err := e.try(nil, "ps", "-aq")
		for _, id := range append([]string{"server-0"}, strings.Fields(ids)...) {
			if _, e := e.try(nil, "rm", "--depend", "-fi", "-t", "0", id); e != nil {
				err = errors.Join(err, e)
			}
		}
		if err != nil {
			t.Error(err)
		}
		// podman forgets the shared memory of a container whose network others have.
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for line := range strings.Lines(string(mounts)) {
			if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
				syscall.Unmount(at, 0)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return e
}

// try runs podman and returns what it prints.
func (e *engine) try(stdin io.Reader, args ...string) (string, error) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "podman", slices.Concat(e.args, args)...)
	cmd.Stdin = stdin
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("podman %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (e *engine) run(args ...string) string {
	e.t.Helper()
	out, err := e.try(nil, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// output is what a program prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// images builds the images of deploy/container as their comments say. No registry is
// asked: the images that they begin with are made of Debian's packages and this machine's Go.
func (e *engine) images() {
	e.t.Helper()
	top, err := filepath.Abs("..")
	if err != nil {
		e.t.Fatal(err)
	}
	e.run("import", debian(e.t, "debian"), "docker.io/library/debian:bookworm-slim")
	file := filepath.Join(e.dir, "golang.Containerfile")
	if err := os.WriteFile(file, []byte(`FROM docker.io/library/debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends git make ca-certificates
ENV PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin GOPROXY=off GOFLAGS=-p=2
`), 0o644); err != nil {
		e.t.Fatal(err)
	}
	build := func(file, tag string, args ...string) {
		e.run(slices.Concat([]string{"build", "--network", "host", "--layers=false", "--pull=never", "-f", file, "-t", tag}, args, []string{top})...)
	}
	build(file, "docker.io/library/golang:1.26")
	var from []string
	for variable, at := range map[string]string{"GOROOT": "/usr/local/go", "GOMODCACHE": "/root/go/pkg/mod", "GOCACHE": "/root/.cache/go-build"} {
		from = append(from, "-v", output(e.t, "go", "env", variable)+":"+at)
	}
	build("container/client.Containerfile", "toold-client", from...)
	build("container/server.Containerfile", "toold-server", from...)
	e.run("rmi", "docker.io/library/golang:1.26")
}

// debian is an archive of a small Debian with further packages, which is kept for the
// next time under its name.
func debian(t *testing.T, name string, packages ...string) string {
	t.Helper()
	return debianOffline(t, name, nil, packages...)
}

// debianOffline is debian with others that apt installs without a network: they are in
// its cache.
func debianOffline(t *testing.T, name string, cached []string, packages ...string) string {
	t.Helper()
	file, err := filepath.Abs("../.cache/containers/" + name + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "root")
	output(t, "debootstrap", "--variant=minbase", "--include="+strings.Join(append(packages, "ca-certificates"), ","), "bookworm", root)
	output(t, "sh", "-c", "rm -f "+filepath.Join(root, "var/cache/apt/archives")+"/*.deb")
	if len(cached) > 0 {
		output(t, "chroot", root, "apt-get", "update")
		output(t, "chroot", append([]string{root, "apt-get", "install", "-y", "--download-only"}, cached...)...)
	}
	output(t, "tar", "-C", root, "-cf", file+".new", ".")
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

// program builds a static program of testdata.
func (e *engine) program(name string) string {
	e.t.Helper()
	path := filepath.Join(e.dir, name)
	cmd := exec.Command("go", "build", "-o", path, "./testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return path
}

// tight are the rights of every container here: those of compose.yaml and the manifests.
var tight = []string{"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
	"--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"}

const (
	password = "correct-horse-battery-staple"
	// marker is in a file that only the daemon's container has.
	marker = "the-state-of-the-daemon"
)

// server starts a daemon in a container of its own, as the instance id.
func (e *engine) server(id, network string, more ...string) {
	e.t.Helper()
	name := "server-" + id
	e.run(slices.Concat([]string{"run", "-d", "--name", name, "--network", network}, tight, []string{
		"-e", "INSTANCE_ID=" + id, "-e", "TOOL_SOCKET=/run/toold/sockets/tool-" + id + ".sock", "-e", "TOOLD_STATE_DIR=/var/lib/toold/" + id,
		"-v", "sockets-" + id + ":/run/toold/sockets", "-v", "state-" + id + ":/var/lib/toold", "-v", "workspace-" + id + ":/workspace",
	}, more, []string{"toold-server"})...)
	e.ready(name, 1)
}

// ready waits until the daemon in a container says so, which it has done n times.
func (e *engine) ready(name string, n int) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "podman", slices.Concat(e.args, []string{"logs", "-f", name})...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		e.t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); n > 0 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "ready ") {
			n--
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if n > 0 {
		e.t.Fatalf("%s does not become ready:\n%s", name, e.run("logs", name))
	}
}

func (e *engine) exec(name string, args ...string) string {
	e.t.Helper()
	return e.run(slices.Concat([]string{"exec", name}, args)...)
}

// client is the command line of a container that calls the instance id: without network,
// with the folder of sockets read-only.
func (e *engine) client(id string, args ...string) []string {
	return slices.Concat([]string{"run", "--rm", "-i", "--network", "none"}, tight, []string{
		"-e", "TOOL_SOCKET=/run/toold/sockets/tool-" + id + ".sock", "-v", "sockets-" + id + ":/run/toold/sockets:ro", "-v", "workspace-" + id + ":/workspace",
		"-v", filepath.Join(e.dir, "probe") + ":/probe:ro",
	}, args)
}

// call runs a tool in a container of the client image.
func (e *engine) call(id string, args ...string) (string, error) {
	return e.try(nil, e.client(id, slices.Concat([]string{"toold-client"}, args)...)...)
}

// TestContainers builds the images and has containers call daemons in others: one that
// works, and one that would break out.
func TestContainers(t *testing.T) {
	e := newEngine(t, "TOOLD_CONTAINERS", "make test-containers")
	e.images()
	e.program("probe")
	remote := e.program("remote")
	remotes := filepath.Join(e.dir, "remotes")
	definitions := filepath.Join(e.dir, "tools.d")
	output(t, "git", "init", "-q", "--bare", "-b", "main", filepath.Join(remotes, "a.git"))
	output(t, "git", "-C", filepath.Join(remotes, "a.git"), "config", "http.receivepack", "true")
	output(t, "chown", "-R", "65532:65532", remotes)

	// The catalogue's git, with the credential of one host.
	output(t, "mkdir", definitions)
	output(t, "../bin/toolctl", "tools", "add", "--yes", "--tools", definitions, "git")
	file := filepath.Join(definitions, "git", "tool.json")
	var definition map[string]any
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &definition)
	}
	if err != nil {
		t.Fatal(err)
	}
	definition["capabilities"].(map[string]any)["network"] = []string{"127.0.0.1:8443"}
	definition["secrets"] = map[string]any{
		"password":  map[string]any{"from": "env:GIT_PASSWORD", "header": "Authorization", "content": "Basic {basic:a}", "host": "127.0.0.1:8443"},
		"authority": map[string]any{"from": "file:/remotes/ca.pem", "tls": "ca", "host": "127.0.0.1:8443"},
	}
	if text, err = json.Marshal(definition); err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}

	// The remote is in a network of two: itself and the first daemon.
	e.run(slices.Concat([]string{"run", "-d", "--name", "remote", "--network", "none"}, tight, []string{
		"-v", remote + ":/remote:ro", "-v", remotes + ":/remotes", "--entrypoint", "/remote", "toold-server", "/remotes", password})...)
	e.server("0", "container:remote", "-e", "GIT_PASSWORD="+password, "-v", definitions+":/etc/toold/tools.d:ro", "-v", remotes+":/remotes:ro")
	e.exec("server-0", "git", "init", "-q", "-b", "main", "/workspace/a")
	e.exec("server-0", "sh", "-c", "echo "+marker+" > /var/lib/toold/marker")

	t.Run("Images", func(t *testing.T) { e.t = t; e.checkImages() })
	t.Run("Rights", func(t *testing.T) {
		e.t = t
		status := e.exec("server-0", "cat", "/proc/1/status")
		for _, want := range []string{"Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("the daemon has other rights: no %q in\n%s", want, status)
			}
		}
		if out, err := e.try(nil, "exec", "server-0", "touch", "/etc/toold/new"); err == nil || !strings.Contains(out, "Read-only file system") {
			t.Errorf("the daemon's container is writable: %v, %s", err, out)
		}
	})
	t.Run("Levels", func(t *testing.T) { e.t = t; e.checkLevels() })
	t.Run("Push", func(t *testing.T) {
		e.t = t
		in := []string{"git", "-C", "/workspace/a"}
		for _, args := range [][]string{
			{"-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "--allow-empty", "-m", "one"},
			{"push", "-q", "https://127.0.0.1:8443/a.git", "main"},
		} {
			if out, err := e.call("0", slices.Concat(in, args)...); err != nil {
				t.Fatalf("%v\n%s", err, e.run("logs", "server-0"))
			} else if strings.Contains(out, password) {
				t.Errorf("%v shows the password: %s", args, out)
			}
		}
		here, there := e.exec("server-0", "git", "-C", "/workspace/a", "rev-parse", "main"), output(t, "git", "-c", "safe.directory=*", "-C", filepath.Join(remotes, "a.git"), "rev-parse", "main")
		if strings.TrimSpace(here) != there {
			t.Errorf("the remote has %s, and not %s", there, here)
		}
		// Without the daemon's credential the remote takes nothing.
		if out, err := e.try(nil, "exec", "server-0", "git", "-c", "http.sslVerify=false", "-C", "/workspace/a", "ls-remote", "https://127.0.0.1:8443/a.git"); err == nil {
			t.Errorf("the remote asks for no password: %s", out)
		}
	})
	t.Run("Hostile", func(t *testing.T) { e.t = t; e.checkHostile() })
	t.Run("Restart", func(t *testing.T) { e.t = t; e.checkRestart() })
	t.Run("Instances", func(t *testing.T) { e.t = t; e.checkInstances() })
	t.Run("Compose", func(t *testing.T) { e.t = t; e.checkCompose() })
}

// checkImages looks at what is in the images.
func (e *engine) checkImages() {
	for image, most := range map[string]int64{"toold-client": 16 << 20, "toold-server": 1 << 30} {
		var info []struct {
			User   string
			Size   int64
			Config struct{ Env []string }
		}
		if err := json.Unmarshal([]byte(e.run("image", "inspect", image)), &info); err != nil || len(info) != 1 {
			e.t.Fatalf("inspect %s: %v", image, err)
		}
		if info[0].User != "65532:65532" || info[0].Size > most {
			e.t.Errorf("%s runs as %q and has %d bytes", image, info[0].User, info[0].Size)
		}
	}
	mounted := strings.TrimSpace(e.run("image", "mount", "toold-client"))
	defer e.run("image", "unmount", "toold-client")
	var got []string
	for line := range strings.Lines(output(e.t, "find", mounted, "!", "-type", "d", "-printf", "%P %l\n")) {
		got = append(got, strings.TrimSpace(line))
	}
	slices.Sort(got)
	want := []string{"opt/toold/bin/curl tool-client", "opt/toold/bin/gh tool-client", "opt/toold/bin/git tool-client", "opt/toold/bin/npm tool-client", "opt/toold/bin/tool-client"}
	// What the engine puts there at runtime is no concern.
	got = slices.DeleteFunc(got, func(s string) bool { return !strings.HasPrefix(s, "opt/") && !strings.HasPrefix(s, "bin") })
	if !slices.Equal(got, want) {
		e.t.Errorf("the client image has %q", got)
	}
}

// checkLevels compares the confinement that a container's rights admit with what doctor
// and the documentation say of it.
func (e *engine) checkLevels() {
	doctor := func(name string) string {
		// It fails for what a container lacks on purpose, such as the wrapper.
		out, _ := e.try(nil, "exec", name, "toolctl", "doctor")
		return out
	}
	const hint = "unmask=ALL"
	// That is how it is here, and no error.
	if out := e.run("logs", "server-0"); strings.Contains(out, `"level":"ERROR"`) {
		e.t.Errorf("the daemon logs an error:\n%s", out)
	}
	if out := doctor("server-0"); !strings.Contains(out, `confined at the level "seccomp"`) || !strings.Contains(out, hint) {
		e.t.Errorf("with the rights of compose.yaml doctor says\n%s", out)
	}
	e.server("unmasked", "none", "--security-opt", hint)
	defer e.run("rm", "-f", "-t", "0", "server-unmasked")
	if out := doctor("server-unmasked"); !strings.Contains(out, `confined at the level "namespaces"`) || strings.Contains(out, hint) {
		e.t.Errorf("with a whole /proc doctor says\n%s", out)
	}
}

// checkHostile has a container try what it should not.
func (e *engine) checkHostile() {
	probe := func(args ...string) {
		e.t.Helper()
		out := e.run(e.client("0", slices.Concat([]string{"-e", "PATH=/opt/toold/bin", "--entrypoint", "/probe", "toold-client"}, args)...)...)
		if !strings.HasSuffix(out, "done\n") {
			e.t.Errorf("probe %v did not come to its end:\n%s", args, out)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "FOUND") {
				e.t.Errorf("probe %s: %s", args[0], line)
			}
		}
	}
	probe("write", "/run/toold/sockets", "/opt/toold/bin", "/")
	probe("look", password, marker)

	// The same by way of the tool, which runs beside the daemon.
	for _, args := range [][]string{
		{"hash-object", "-w", "/var/lib/toold/marker"},
		{"diff", "--no-index", "/dev/null", "/var/lib/toold/marker"},
		{"diff", "--no-index", "/dev/null", "/proc/1/environ"},
		{"diff", "--no-index", "/dev/null", "/proc/self/environ"},
		{"config", "-f", "/var/lib/toold/marker", "--list"},
		{"-c", "alias.x=!cat /var/lib/toold/marker", "x"},
		{"-c", "alias.x=!env", "x"},
		{"-c", "core.pager=cat /var/lib/toold/marker", "-p", "log"},
		{"-c", "http.extraHeader=X: y", "-c", "http.proxy=http://127.0.0.1:1", "ls-remote", "https://127.0.0.1:8443/a.git"},
		{"clone", "/remotes/a.git", "/workspace/b"},
		{"clone", "file:///var/lib/toold", "/workspace/c"},
		{"upload-pack", "/remotes/a.git"},
	} {
		out, err := e.call("0", slices.Concat([]string{"git", "-C", "/workspace/a"}, args)...)
		if strings.Contains(out, password) || strings.Contains(out, marker) {
			e.t.Errorf("git %v shows what is the daemon's: %s", args, out)
		}
		if err == nil && args[0] != "ls-remote" {
			e.t.Errorf("git %v succeeds: %s", args, out)
		}
	}
}

// checkRestart has a container call that was there before its daemon was.
func (e *engine) checkRestart() {
	cmd := exec.Command("podman", slices.Concat(e.args, e.client("0", "-e", "PATH=/opt/toold/bin", "--entrypoint", "/probe", "-w", "/workspace/a", "toold-client", "call", "git", "log", "-1", "--format=%s"))...)
	in, err := cmd.StdinPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	expect := func(when, want string) {
		e.t.Helper()
		if !lines.Scan() || lines.Text() != want {
			e.t.Errorf("%s: %q, want %q; %s", when, lines.Text(), want, errs.String())
		}
	}
	expect("the container", "ready")
	ask := func(when string) {
		e.t.Helper()
		io.WriteString(in, "\n")
		expect(when, `"one" <nil>`)
	}
	ask("before")
	for i, how := range []string{"stop", "kill"} {
		e.run(how, "server-0")
		e.run("wait", "server-0")
		e.run("start", "server-0")
		e.ready("server-0", i+2)
		ask("after podman " + how)
	}
	in.Close()
	expect("its end", "done")
	if err := cmd.Wait(); err != nil {
		e.t.Errorf("%v; %s", err, errs.String())
	}
}

// checkInstances runs a second daemon, which has nothing to do with the first.
func (e *engine) checkInstances() {
	e.server("1", "none")
	for id, other := range map[string]string{"0": "1", "1": "0"} {
		out := e.exec("server-"+id, "toolctl", "instances")
		if !strings.Contains(out, "tool-"+id+".sock") || strings.Contains(out, "tool-"+other+".sock") {
			e.t.Errorf("instance %s sees\n%s", id, out)
		}
		// The socket of the other is nowhere in its own container.
		args := e.client(id, "-e", "TOOL_SOCKET=/run/toold/sockets/tool-"+other+".sock", "toold-client", "git", "--version")
		if out, err := e.try(nil, args...); err == nil || !strings.Contains(out, "tool-"+other+".sock") {
			e.t.Errorf("a container of %s calls %s: %v, %s", id, other, err, out)
		}
	}
	if out, err := e.call("1", "git", "-C", "/workspace/a", "log"); err == nil {
		e.t.Errorf("instance 1 has the workspace of 0: %s", out)
	}
	if out, err := e.call("1", "git", "ls-remote", "https://127.0.0.1:8443/a.git"); err == nil || strings.Contains(out, password) {
		e.t.Errorf("instance 1 reaches the remote of 0: %v, %s", err, out)
	}
	if out, err := e.call("1", "git", "init", "-q", "/workspace/only-1"); err != nil {
		e.t.Errorf("instance 1 does not serve: %s", out)
	}
	if out, err := e.try(nil, "exec", "server-0", "ls", "/workspace/only-1"); err == nil {
		e.t.Errorf("instance 0 has the workspace of 1: %s", out)
	}
}

// checkCompose runs compose.yaml for two instances with podman-compose, which PyPI has.
// Their daemons have no network: that takes more of the machine than podman.
func (e *engine) checkCompose() {
	program, err := exec.LookPath("podman-compose")
	if err != nil {
		e.t.Fatal("podman-compose is not installed; pip install podman-compose")
	}
	podman, err := exec.LookPath("podman")
	if err != nil {
		e.t.Fatal(err)
	}
	host, bin := filepath.Join(e.dir, "host"), filepath.Join(e.dir, "bin")
	output(e.t, "../bin/toolctl", "setup", "--client", "../bin/tool-client", "--only", "git", host)
	output(e.t, "../bin/toolctl", "tools", "add", "--yes", "--tools", filepath.Join(host, "tools/tools.d"), "git")
	output(e.t, "mkdir", bin)
	offline := filepath.Join(e.dir, "offline.yaml")
	for path, text := range map[string]string{
		filepath.Join(bin, "podman"): "#!/bin/sh\nexec " + podman + " " + strings.Join(e.args, " ") + " \"$@\"\n",
		offline:                      "services:\n  server: {network_mode: none}\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			e.t.Fatal(err)
		}
	}
	for _, id := range []string{"6", "7"} {
		compose := func(args ...string) {
			e.t.Helper()
			cmd := exec.Command(program, append([]string{"-f", "container/compose.yaml", "-f", offline}, args...)...)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TOOLD_DIR="+host, "INSTANCE_ID="+id)
			if out, err := cmd.CombinedOutput(); err != nil {
				e.t.Fatalf("podman-compose %v: %v\n%s", args, err, out)
			}
		}
		compose("up", "-d")
		// It may have come before its daemon was healthy, for which podman needs systemd.
		e.ready("toold-"+id+"_server_1", 1)
		e.run("healthcheck", "run", "toold-"+id+"_server_1")
		if out := e.run("start", "-a", "toold-"+id+"_client_1"); !strings.HasPrefix(out, "git version ") {
			e.t.Errorf("the client of instance %s prints %q", id, out)
		}
		if out := e.exec("toold-"+id+"_server_1", "toolctl", "instances"); !strings.Contains(out, "tool-"+id+".sock") {
			e.t.Errorf("instance %s is\n%s", id, out)
		}
		defer compose("down", "-v")
	}
}
