package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

// caller is somebody with a project who calls npm through the wrapper. Its own programs
// are known by MARK, which no environment but the caller's has: what it names is written
// by scripts that run where the caller is.
type caller struct {
	*place
	t    *testing.T
	d    *hosttest.Daemon
	bin  string // npm is the wrapper, and node is there
	mark string
	env  []string
}

const registryToken = "npm_0123456789abcdefTOKEN"

// newCaller makes a caller, and a daemon whose npm has a token for its registry.
func newCaller(t *testing.T) *caller {
	t.Helper()
	p := newPlace(t)
	p.Write("token", registryToken+"\n", 0o600)
	c := &caller{place: p, t: t, bin: t.TempDir(), mark: filepath.Join(t.TempDir(), "mark")}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(c.bin, "npm"), "github.com/toold/toold/cmd/tool-client").CombinedOutput(); err != nil {
		t.Fatalf("build the wrapper: %v\n%s", err, out)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(node, filepath.Join(c.bin, "node")); err != nil {
		t.Fatal(err)
	}
	c.d = p.Daemon(c.definition())
	c.before = c.tree()
	return c
}

func (c *caller) definition() map[string]any {
	def := hosttest.ReadyJSON(c.t, "npm")
	def["binary"] = c.Program
	def["capabilities"].(map[string]any)["network"] = []string{"127.0.0.1"}
	def["config"] = map[string]any{"registry": c.good.URL, "userconfig": "variable"}
	def["secrets"] = map[string]any{"registry": map[string]any{"from": "file:" + filepath.Join(c.Dir, "token"), "file": "NPM_CONFIG_USERCONFIG", "content": "//" + c.good.Listener.Addr().String() + "/:_authToken={secret}\n"}}
	return def
}

// project writes package.json with the scripts.
func (c *caller) project(scripts map[string]string, more map[string]any) {
	c.t.Helper()
	all := map[string]any{"name": "p", "version": "1.2.3", "scripts": scripts}
	for k, v := range more {
		all[k] = v
	}
	b, err := json.Marshal(all)
	if err != nil {
		c.t.Fatal(err)
	}
	c.Write("root/work/package.json", string(b), 0o600)
}

// npm calls npm through the wrapper, and returns both outputs and the exit code.
func (c *caller) npm(stdin string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	cmd := exec.Command(filepath.Join(c.bin, "npm"), args...)
	cmd.Dir = c.Cwd
	cmd.Env = append([]string{"PATH=" + c.bin + ":/bin", "TOOL_SOCKET=" + c.d.Socket, "MARK=" + c.mark, "HOME=" + c.Dir + "/caller"}, c.env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// marks are the lines that scripts wrote where the caller is, since it was called last.
func (c *caller) marks() string {
	b, err := os.ReadFile(c.mark)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	os.Remove(c.mark)
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; ")
}

// TestScriptsRunWithTheCaller: scripts of the project have its streams, its exit code,
// its folder and what npm says of the package, as natively.
func TestScriptsRunWithTheCaller(t *testing.T) {
	c := newCaller(t)
	c.Write("root/work/node_modules/.bin/own", "#!/bin/sh\necho own program\n", 0o755)
	c.project(map[string]string{
		"test":  `own; echo "$npm_lifecycle_event $npm_package_name@$npm_package_version $npm_command $(pwd) $npm_package_config_x $INIT_CWD"; echo err >&2; exit 7`,
		"input": "cat", "pretest": "echo pre; echo pre $npm_lifecycle_event >> $MARK", "posttest": "echo post >> $MARK",
		"args": `node -p 'process.argv.slice(1).join("|")' --`,
		"here": `echo $npm_execpath $npm_node_execpath $NODE $HOME`,
	}, map[string]any{"config": map[string]string{"x": "configured"}})
	out, errs, code := c.npm("", "test")
	if want := "own program\ntest p@1.2.3 test " + c.Cwd + " configured " + c.Cwd + "\n"; code != 7 || !strings.Contains(out, "pre\n") || !strings.Contains(out, want) || !strings.Contains(errs, "err\n") {
		t.Errorf("test: exit code %d: %s%s", code, out, errs)
	}
	if got := c.marks(); got != "pre pretest" {
		t.Errorf("scripts that ran: %q", got)
	}
	big := strings.Repeat("some input\n", 80_000)
	if out, errs, code := c.npm(big, "run", "--silent", "input"); code != 0 || out != big {
		t.Errorf("input: exit code %d, %d bytes: %.300s", code, len(out), errs)
	}
	// What no script reads is left to whoever reads next.
	rest := exec.Command("sh", "-c", "npm run --silent here > /dev/null; cat")
	rest.Dir, rest.Env, rest.Stdin = c.Cwd, []string{"PATH=" + c.bin + ":/bin", "TOOL_SOCKET=" + c.d.Socket}, strings.NewReader("rest\n")
	if left, err := rest.Output(); err != nil || string(left) != "rest\n" {
		t.Errorf("the input that no script reads: %q, %v", left, err)
	}
	if out, errs, code := c.npm("", "run", "--silent", "args", "--", "a b", "$(id)", "'q'", "--x"); code != 0 || out != "a b|$(id)|'q'|--x\n" {
		t.Errorf("args: exit code %d: %s%s", code, out, errs)
	}
	node := filepath.Join(c.bin, "node")
	if out, errs, code := c.npm("", "run", "--silent", "here"); code != 0 || out != filepath.Join(c.bin, "npm")+" "+node+" "+node+" "+c.Dir+"/caller\n" {
		t.Errorf("here: exit code %d: %s%s", code, out, errs)
	}
	if _, errs, code := c.npm("", "run", "nothing"); code != 1 || !strings.Contains(errs, `Missing script: "nothing"`) {
		t.Errorf("a script that there is not: exit code %d: %s", code, errs)
	}
	if h := c.harm(); h != "" {
		t.Error(h)
	}
}

// TestLifecycleScripts: what an install runs, of the project and of its packages, runs
// with the caller, in the package's folder, and its failure is the install's.
func TestLifecycleScripts(t *testing.T) {
	c := newCaller(t)
	c.place.good.Answer(registryOf(map[string]string{"postinstall": `echo dep $npm_lifecycle_event $npm_package_name $(basename $(pwd)) >> $MARK`}))
	scripts := map[string]string{}
	for _, event := range []string{"preinstall", "install", "postinstall", "prepare"} {
		scripts[event] = `echo $npm_lifecycle_event >> $MARK`
	}
	c.project(scripts, map[string]any{"dependencies": map[string]string{"dep": "^1.0.0"}})
	out, errs, code := c.npm("", "install", "--no-audit")
	if got := c.marks(); code != 0 || got != "dep postinstall dep dep; preinstall; install; postinstall; prepare" || strings.Contains(errs, "no script") {
		t.Errorf("install: exit code %d, scripts %q: %s%s", code, got, out, errs)
	}
	if out, errs, code := c.npm("", "rebuild", "dep"); code != 0 || c.marks() != "dep postinstall dep dep" {
		t.Errorf("rebuild: exit code %d: %s%s", code, out, errs)
	}
	if out, errs, code := c.npm("", "ci", "--no-audit", "--ignore-scripts"); code != 0 || c.marks() != "" || strings.Contains(errs, "no script") {
		t.Errorf("ci --ignore-scripts: exit code %d: %s%s", code, out, errs)
	}
	// The project's own wish counts as natively.
	c.Write("root/work/.npmrc", "ignore-scripts=true\n", 0o600)
	if out, errs, code := c.npm("", "ci", "--no-audit"); code != 0 || c.marks() != "" {
		t.Errorf("ci with ignore-scripts in .npmrc: exit code %d: %s%s", code, out, errs)
	}
	os.Remove(filepath.Join(c.Cwd, ".npmrc"))
	c.place.good.Answer(registryOf(map[string]string{"install": `echo cannot build >&2; exit 3`}))
	if out, errs, code := c.npm("", "install", "failing", "--no-audit"); code != 3 || !strings.Contains(errs, "cannot build") {
		t.Errorf("a package whose script fails: exit code %d: %s%s", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(c.Cwd, "node_modules", "failing")); err == nil {
		t.Error("a package whose script failed is installed")
	}
	// Without a caller that runs scripts, it is said.
	res := c.Call(c.d, "npm", "ci", "--no-audit")
	if res.Err != nil || res.ExitCode != 0 || c.marks() != "" || !strings.Contains(c.Stderr, "npm: note: no script of the project or its packages is run") {
		t.Errorf("ci without a wrapper: %v, exit code %d: %s", res.Err, res.ExitCode, c.Stderr)
	}
	if res := c.Call(c.d, "npm", "test"); res.Err == nil || res.ExitCode != 126 || !strings.Contains(res.Err.Message, "call npm through the wrapper") {
		t.Errorf("npm test without a wrapper: %v", res.Err)
	}
	c.env = []string{"PATH=" + t.TempDir()} // where there is no node
	if _, errs, code := c.npm("", "test"); code != 126 || !strings.Contains(errs, "call npm through the wrapper, where node is") {
		t.Errorf("npm test where there is no node: exit code %d: %s", code, errs)
	}
}

// TestNestedScripts: a script that calls npm calls the wrapper, whose scripts run with
// the caller as well.
func TestNestedScripts(t *testing.T) {
	c := newCaller(t)
	c.project(map[string]string{
		"outer": "npm run --silent middle && echo outer", "middle": `"$npm_execpath" run --silent inner; echo middle $?`,
		"inner":   "echo inner $npm_lifecycle_event $INIT_CWD; exit 4",
		"prepare": "npm run --silent ls", "ls": "npm ls --json | head -c 1; echo; echo prepared >> $MARK",
	}, nil)
	if out, errs, code := c.npm("", "run", "--silent", "outer"); code != 0 || out != "inner inner "+c.Cwd+"\nmiddle 4\nouter\n" {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if out, errs, code := c.npm("", "install", "--no-audit"); code != 0 || c.marks() != "prepared" {
		t.Errorf("install: exit code %d: %s%s", code, out, errs)
	}
}

// TestHostileScripts: a script of a package does what its caller could do anyway. On the
// host it runs nothing, and it learns nothing of what npm there has.
func TestHostileScripts(t *testing.T) {
	c := newCaller(t)
	onHost := filepath.Join(c.Dir, "on-host")
	evil := `if [ -n "$MARK" ]; then { echo ran; env; cat "$NPM_CONFIG_USERCONFIG" "$npm_config_userconfig" 2>&1; } >> "$MARK"; else echo host > ` + onHost + `; fi; env`
	c.place.good.Answer(registryOf(map[string]string{"preinstall": evil, "install": evil, "postinstall": evil, "prepare": evil}))
	for _, file := range []string{"evil-sh", "evil-git", "evil-gyp"} {
		c.Write("root/work/"+file, "#!/bin/sh\n"+evil+"\n", 0o755)
	}
	c.Write("root/work/evil.js", `require("fs").writeFileSync(process.env.MARK ? process.env.MARK : `+"`"+onHost+"`"+`, "node")`, 0o600)
	c.project(map[string]string{"test": evil, "preinstall": evil, "start": "", "stop": "  "}, map[string]any{"dependencies": map[string]string{"dep": "^1.0.0"}})
	for name, rc := range map[string]string{
		"a shell of the project":       "script-shell=" + c.Cwd + "/evil-sh\n",
		"a shell beneath the roots":    "script-shell=./evil-sh\nshell=./evil-sh\n",
		"programs of the project":      "git=" + c.Cwd + "/evil-git\nnode-gyp=" + c.Cwd + "/evil-gyp\ninit-module=" + c.Cwd + "/evil.js\n",
		"options of node":              "node-options=--require " + c.Cwd + "/evil.js\n",
		"the token as an option":       "tag=${NPM_CONFIG_USERCONFIG}\nuser-agent=${NPM_CONFIG_USERCONFIG} ${npm_config_userconfig}\n",
		"scripts in the foreground":    "foreground-scripts=true\nignore-scripts=false\n",
		"another folder for the whole": "prefix=" + c.Dir + "/outside\nlocal-prefix=" + c.Dir + "/outside\n",
	} {
		t.Run(name, func(t *testing.T) {
			c.Write("root/work/.npmrc", rc, 0o600)
			os.RemoveAll(filepath.Join(c.Cwd, "node_modules"))
			out, errs, _ := c.npm("", "install", "--no-audit")
			ran := c.marks()
			if !strings.HasPrefix(ran, "ran; ") {
				t.Errorf("no script ran where the caller is: %q: %s%s", ran, out, errs)
			}
			out2, errs2, _ := c.npm("", "test")
			said := out + errs + out2 + errs2 + ran + c.marks()
			for what, text := range map[string]string{"the token": registryToken, "the state folder": c.d.Config.State, "the home of the tool": "HOME=" + filepath.Join(c.d.Config.State, "")} {
				if strings.Contains(said, text) {
					t.Errorf("a script knows %s: %s", what, said)
				}
			}
			if _, err := os.Stat(onHost); err == nil {
				t.Error("a script ran on the host")
				os.Remove(onHost)
			}
			if h := c.harm(); h != "" {
				t.Error(h)
			}
		})
	}
}

// TestPolicyRefusesScripts: an operator whose definition has no scripts among its
// callbacks has none.
func TestPolicyRefusesScripts(t *testing.T) {
	c := newCaller(t)
	c.project(map[string]string{"prepare": "echo x >> $MARK", "test": "echo x >> $MARK"}, nil)
	def := c.definition()
	delete(def, "callbacks")
	c.Tool(c.d, "npm", def)
	if out, errs, code := c.npm("", "install", "--no-audit"); code != 0 || c.marks() != "" || !strings.Contains(errs, "npm: note: no script of the project") {
		t.Errorf("install: exit code %d: %s%s", code, out, errs)
	}
	if _, errs, code := c.npm("", "test"); code != 126 || c.marks() != "" {
		t.Errorf("test: exit code %d: %s", code, errs)
	}
}

// TestNestedScriptsWithoutPlaces: a call within a call that finds no place among the
// tool's is refused, and does not wait for its own caller.
func TestNestedScriptsWithoutPlaces(t *testing.T) {
	c := newCaller(t)
	c.project(map[string]string{"outer": "npm run --silent inner || echo refused $?", "inner": "echo inner"}, nil)
	def := c.definition()
	def["limits"] = map[string]any{"concurrency": 1}
	c.Tool(c.d, "npm", def)
	if out, errs, code := c.npm("", "run", "--silent", "outer"); code != 0 || out != "refused 75\n" {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
