package hosttest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// unprivileged is the user "daemon", which exists everywhere and owns nothing. It is
// not the user "nobody", whose calls the daemon refuses.
const unprivileged = 1

// Unprivileged runs the tests of this binary that match the pattern run again, as
// a user without any privilege, where this process is root; else this is how they
// have run already, and t is skipped. Each test that is named must pass and must
// not be skipped, subtests included.
//
// The user can neither read a checkout in root's home nor use root's build cache:
// what is named in need, files and folders by their path from the module's root,
// is copied, and guests are built beforehand. A test that needs more fails.
func Unprivileged(t *testing.T, run string, need, guests []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("an ordinary user runs these tests as they are")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// Short, as it begins the paths of sockets.
	dir, err := os.MkdirTemp("", "toold")
	must(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	top, pkg := ModuleRoot(), packageDir
	rel, err := filepath.Rel(top, pkg)
	must(err)
	src := filepath.Join(dir, "src")
	must(os.MkdirAll(filepath.Join(src, rel), 0o755))
	for _, name := range append([]string{"go.mod"}, need...) {
		to := filepath.Join(src, name)
		must(os.MkdirAll(filepath.Dir(to), 0o755))
		// Not os.CopyFS, which would follow no link and keep no mode.
		out, err := exec.Command("cp", "-RL", filepath.Join(top, name), filepath.Dir(to)).CombinedOutput()
		if err != nil {
			t.Fatalf("copy %s: %v\n%s", name, err, out)
		}
	}
	must(copyCompiled(compiled(top), compiled(src)))
	built := filepath.Join(dir, "guests")
	must(os.Mkdir(built, 0o755))
	for _, guest := range guests {
		b, err := os.ReadFile(Guest(t, guest))
		must(err)
		must(os.WriteFile(filepath.Join(built, guestFile(guest)), b, 0o644))
	}
	home, tmp := filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	for _, name := range []string{home, tmp} {
		must(os.Mkdir(name, 0o700))
	}
	// The folder that the go command builds in is closed to others.
	program := filepath.Join(dir, "test")
	self, err := os.ReadFile("/proc/self/exe")
	must(err)
	must(os.WriteFile(program, self, 0o755))
	if raceEnabled {
		must(buildPlain())
		path, err := plainPath()
		must(err)
		plain, err := os.ReadFile(path)
		must(err)
		must(os.WriteFile(program+".plain", plain, 0o755))
	}
	out, err := exec.Command("chown", "-R", "1:1", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must(os.Chmod(dir, 0o755))

	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", run, "-test.timeout=10m")
	cmd.Dir = filepath.Join(src, rel)
	cmd.Env = append(os.Environ(), guestsVar+"="+built, "HOME="+home, "TMPDIR="+tmp, "XDG_RUNTIME_DIR=", "GOFLAGS=-mod=mod", "GOCACHE="+home+"/cache", "GOPATH="+home+"/go")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}, Pdeathsig: syscall.SIGKILL}
	out, err = cmd.CombinedOutput()
	text := string(out)
	if err != nil || !strings.Contains(text, "--- PASS: ") || strings.Contains(text, "--- SKIP: ") && !raceEnabled {
		t.Errorf("as user %d: %v\n%s", unprivileged, err, text)
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "--- ") {
			t.Log(strings.TrimSpace(line))
		}
	}
	t.Logf("%d tests and subtests passed as user %d", strings.Count(text, "--- PASS: "), unprivileged)
}

// copyCompiled copies a folder of compiled modules that daemons use meanwhile, who
// remove what they have renamed or no longer need.
func copyCompiled(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
}
