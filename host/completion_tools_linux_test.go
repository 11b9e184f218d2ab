package host_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
)

// completedTool is a tool with a schema.
func completedTool(t *testing.T, d *hosttest.Daemon) {
	t.Helper()
	d.Tool(t, "create_pr", M{
		"handler": "handler.wasm",
		"schema": M{"type": "object", "required": []string{"title"}, "properties": M{
			"title": M{"type": "string", "description": "what it is called"}, "base": M{"enum": []string{"main", "dev", "next one"}}, "draft": M{"type": "boolean"},
		}},
	}, map[string]string{"handler.wasm": filepath.Join(hosttest.ModuleRoot(), "tools.d/hash/handler.wasm")})
}

// completionShells are the shells that there are here, as they are started.
func completionShells() map[string][]string {
	shells := map[string][]string{}
	if bash, err := exec.LookPath("bash"); err == nil {
		shells["bash"] = []string{bash, "--norc", "--noprofile", "-i"}
	}
	if zsh, err := exec.LookPath("zsh"); err == nil {
		shells["zsh"] = []string{zsh, "-i"}
	}
	return shells
}

// zshPlaces tells a zsh that is unpacked elsewhere than it was made for where its files
// are, before it reads a line.
func zshPlaces(t *testing.T, zsh, home string) {
	unpacked := filepath.Join(filepath.Dir(zsh), "..", "root")
	if !exists(unpacked) {
		return
	}
	modules, _ := filepath.Glob(filepath.Join(unpacked, "usr/lib/*/zsh/*"))
	var functions []string
	filepath.WalkDir(filepath.Join(unpacked, "usr/share/zsh/functions"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			functions = append(functions, path)
		}
		return err
	})
	text := "module_path=(" + strings.Join(modules, " ") + ")\nfpath=(" + strings.Join(functions, " ") + ")\n"
	if err := os.WriteFile(filepath.Join(home, ".zshenv"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// wrappersOf is a folder with the wrappers of tools.
func wrappersOf(t *testing.T, tools ...string) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.Rename(wrapperProgram(t), filepath.Join(bin, "tool-client")); err != nil {
		t.Fatal(err)
	}
	for _, name := range tools {
		if err := os.Symlink("tool-client", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// TestCompletionOfTools presses Tab in real shells at terminals: flags and values of a
// tool's schema are completed.
func TestCompletionOfTools(t *testing.T) {
	needsTerminals(t)
	d := hosttest.Start(t, config.Config{})
	completedTool(t, d)
	d.Stream(t, &wire.Call{Tool: "tools.complete", Args: []string{"create_pr", ""}, Cwd: d.Root}, "") // its module is compiled now
	bin := wrappersOf(t, "create_pr", "git")
	for name, argv := range completionShells() {
		t.Run(name, func(t *testing.T) {
			s := openScreen(t)
			home := t.TempDir()
			if name == "zsh" {
				zshPlaces(t, argv[0], home)
			}
			s.env = []string{"HOME=" + home, "ZDOTDIR=" + home, "PATH=" + bin + ":/usr/bin:/bin", "TERM=dumb", "PS1=$ ", "LC_ALL=C.UTF-8", "INPUTRC=/dev/null"}
			s.start(d.Socket, d.Root, argv[0], argv[0], argv[1:]...)
			setup := map[string]string{"zsh": "autoload -Uz compinit; compinit -u; "}[name]
			s.typed(setup + `eval "$(tool-client --completion ` + name + `)"; echo load''ed` + "\r")
			s.expect(`loaded`)
			line := func(keys, want string) {
				t.Helper()
				s.typed("echo be''gin\r")
				s.expect(`begin`)
				start := time.Now()
				s.typed(keys)
				s.expect(want)
				t.Logf("%q: %v", keys, time.Since(start).Round(time.Millisecond))
				s.typed("\x15") // away with it
			}
			line("create_pr --ti\t", `create_pr --title`)
			line("create_pr --base ne\t", `create_pr --base next\\ one`)
			line("create_pr --base=de\t", `create_pr --base=dev`)
			s.typed("exit\r")
			s.ended()
		})
	}
}

// TestCompletionOfToolsInFish: fish completes them with the script for it. It asks a
// terminal what it can before it takes keys, so that it is asked without one.
func TestCompletionOfToolsInFish(t *testing.T) {
	fish, err := exec.LookPath("fish")
	if err != nil {
		t.Skip("there is no fish here")
	}
	d := hosttest.Start(t, config.Config{})
	completedTool(t, d)
	d.Stream(t, &wire.Call{Tool: "tools.complete", Args: []string{"create_pr", ""}, Cwd: d.Root}, "") // its module is compiled now
	bin := wrappersOf(t, "create_pr")
	data := fishData(fish)
	cmd := exec.Command(fish, "--no-config", "-c", "tool-client --completion fish | source\n"+fishCompletions, data)
	lines := []string{"create_pr --ti", "create_pr --base ne", "create_pr --base=de"}
	cmd.Dir, cmd.Stdin = d.Root, strings.NewReader(strings.Join(lines, "\n")+"\n")
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + bin + ":/usr/bin:/bin", "TOOL_SOCKET=" + d.Socket, "LC_ALL=C.UTF-8"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("complete: %v: %s", err, out)
	}
	got := offers(lines, string(out))
	for line, want := range map[string]string{lines[0]: "--title\trequired. what it is called", lines[1]: "next one", lines[2]: "--base=dev"} {
		if got[line] != want {
			t.Errorf("%q offers %q, want %q", line, got[line], want)
		}
	}
}

// TestCompletionOfGitInZsh: zsh's own completion of git asks the wrapper.
func TestCompletionOfGitInZsh(t *testing.T) {
	needsTerminals(t)
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("there is no zsh here")
	}
	d := hosttest.Start(t, config.Config{})
	d.Ready(t, "git")
	dir := completingRepo(t, d.Root)
	bin, home := t.TempDir(), t.TempDir()
	if err := os.Symlink(wrapperProgram(t), filepath.Join(bin, "git")); err != nil {
		t.Fatal(err)
	}
	d.Stream(t, &wire.Call{Tool: "git", Args: []string{"version"}, Cwd: dir}, "") // its policy is compiled now
	zshPlaces(t, zsh, home)
	s := openScreen(t)
	s.env = []string{"HOME=" + home, "ZDOTDIR=" + home, "PATH=" + bin + ":/usr/bin:/bin", "TERM=dumb", "PS1=$ ", "LC_ALL=C.UTF-8"}
	s.start(d.Socket, dir, zsh, zsh, "-i")
	s.typed("autoload -Uz compinit; compinit -u; echo load''ed\r")
	s.expect(`loaded`)
	for _, line := range [][2]string{{"git checko\t", `git checkout`}, {"git switch fea\t", `git switch feature`}, {"git add new.t\t", `git add new\.txt`}, {"git log --onel\t", `git log --oneline`}} {
		s.typed("echo be''gin\r")
		s.expect(`begin`)
		s.typed(line[0])
		s.expect(line[1])
		s.typed("\x15")
	}
	s.typed("exit\r")
	s.ended()
}

// TestCompleteCall: the call behind a completion runs nothing, and says nothing of tools
// without a schema, or that the caller cannot call.
func TestCompleteCall(t *testing.T) {
	d := hosttest.Start(t, config.Config{})
	ran := filepath.Join(d.Root, "ran")
	completedTool(t, d)
	// A program without a schema would run for whatever it is asked.
	d.Tool(t, "plain", M{"binary": "/usr/bin/touch"}, nil)
	client := filepath.Join(wrappersOf(t), "tool-client")
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"--complete create_pr --ba", "--base\tone of main, dev, next one\n", 0},
		{"--complete create_pr --base m", "main\n", 0},
		{"--complete plain ran", "", 0},
		{"--complete plain ran ran", "", 0},
		{"--complete nothing -x", "", 127},
		{"--completion tcsh", "", 64},
	} {
		cmd := exec.Command(client, strings.Fields(tt.args)...)
		cmd.Dir, cmd.Env = d.Root, []string{"TOOL_SOCKET=" + d.Socket}
		out, _ := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); string(out) != tt.want || code != tt.code {
			t.Errorf("%s: exit code %d: %q", tt.args, code, out)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the tool ran for a completion")
	}
}
