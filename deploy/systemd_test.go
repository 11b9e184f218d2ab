// Package deploy_test checks what is in deploy/ with the programs and types
// that will read it.
package deploy_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// settings is the [Service] section of the unit, each setting with all its values.
func settings(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("systemd/toold.service")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			found[name] = append(found[name], strings.Fields(value)...)
		}
	}
	return found
}

// TestUnitKeepsConfinement checks that the unit takes nothing from the daemon
// that the confinement of tools needs: systemd-analyze would praise each of these.
func TestUnitKeepsConfinement(t *testing.T) {
	got := settings(t)
	for _, name := range []string{
		"ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname", // cover parts of /proc
		"MemoryDenyWriteExecute",          // modules are compiled to memory
		"RestrictSUIDSGID", "DynamicUser", // refuse openat2
		"PrivateUsers", "PrivateNetwork",
	} {
		if got[name] != nil {
			t.Errorf("%s=%s: see the table of docs/install.md", name, strings.Join(got[name], " "))
		}
	}
	for name, values := range map[string][]string{
		"RestrictNamespaces": {"user", "mnt", "pid", "ipc", "cgroup"},
		"SystemCallFilter": {"@system-service", "@mount", "landlock_create_ruleset", "landlock_add_rule",
			"landlock_restrict_self", "seccomp", "pidfd_open", "pidfd_getfd", "openat2"},
		"RestrictAddressFamilies":  {"AF_UNIX", "AF_INET", "AF_INET6"},
		"KillMode":                 {"mixed"}, // tools end after the daemon, not with it
		"ProtectHome":              {"tmpfs"}, // with yes nothing can cover /run/user/UID
		"RuntimeDirectoryPreserve": {"yes"},   // or containers keep a folder that is gone
		"Type":                     {"notify"},
	} {
		for _, v := range values {
			if !slices.Contains(got[name], v) {
				t.Errorf("%s lacks %s: %v", name, v, got[name])
			}
		}
	}
}

func TestUnitVerifies(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	unit, err := os.ReadFile("systemd/toold.service")
	if err != nil {
		t.Fatal(err)
	}
	// The program need not be installed for its unit to be checked.
	file := filepath.Join(t.TempDir(), "toold.service")
	text := strings.Replace(string(unit), "/usr/bin/toold", "/bin/true", 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || strings.Contains(string(out), "toold.service:") {
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=40", file).CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skip("this systemd-analyze checks no files")
	}
	if err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
	m := regexp.MustCompile(`exposure level for toold.service: ([0-9.]+)`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("no score in\n%s", out)
	}
	score, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || score > 4 {
		t.Errorf("exposure level %s, over 4", m[1])
	}
	doc, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile(`rates the unit ([0-9.]+)`).FindSubmatch(doc)
	if said == nil {
		t.Fatal("docs/install.md says no exposure level")
	}
	// Another systemd weighs settings a little differently.
	if n, err := strconv.ParseFloat(string(said[1]), 64); err != nil || math.Abs(n-score) > 0.3 {
		t.Errorf("docs/install.md says %s, systemd-analyze %s", said[1], m[1])
	}
}

// TestSocketUnits checks the units of sockets, and that they listen where the daemon of
// the service would.
func TestSocketUnits(t *testing.T) {
	environment := settings(t)["Environment"]
	for name, variable := range map[string]string{
		"toold.socket":       "TOOL_SOCKET=",
		"toold-admin.socket": "TOOLD_STATE_DIR=",
	} {
		text, err := os.ReadFile("systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		listen := regexp.MustCompile(`(?m)^ListenStream=(.*)$`).FindStringSubmatch(string(text))
		mode := "0660"
		if variable == "TOOLD_STATE_DIR=" {
			mode = "0600"
		}
		if listen == nil || !strings.Contains(string(text), "SocketMode="+mode+"\n") ||
			!slices.Contains(environment, variable+strings.TrimSuffix(listen[1], "/admin.sock")) {
			t.Errorf("%s listens on %v, with %v", name, listen, environment)
		}
		analyze, err := exec.LookPath("systemd-analyze")
		if err != nil {
			continue
		}
		dir := t.TempDir()
		unit, err := os.ReadFile("systemd/toold.service")
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"toold.service": strings.Replace(string(unit), "/usr/bin/toold", "/bin/true", 1), name: string(text)} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, name)).CombinedOutput(); err != nil || strings.Contains(string(out), name+":") {
			t.Errorf("verify %s: %v\n%s", name, err, out)
		}
	}
}
