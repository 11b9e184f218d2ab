package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/places"
)

func doctorVerb(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems, and show which command to run next",
		Long: `Check everything that a call needs: the programs, the two sockets and their
permissions, the daemon, the kernel's features, the tools folder and every tool in
it. Each finding that is not ok ends with the command to run next.

The exit code is 1 if a check fails, or a version is still being loaded, else 0.
Warnings do not count.`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &doctor{places: s.places()}
			ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
			defer cancel()
			for _, look := range looks {
				look(ctx, d)
			}
			if asJSON {
				if err := s.printJSON(d.findings); err != nil {
					return err
				}
			} else {
				d.print(s)
			}
			for _, f := range d.findings {
				if f.Level == levelFail || f.Level == levelWait {
					return exitStatus(1)
				}
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// The levels of a finding.
const (
	levelOK   = "ok"
	levelWarn = "warn" // works, but not as well or as safely as it could
	levelFail = "FAIL" // calls fail because of it
	levelWait = "wait" // not yet in effect: what is on disk is still being loaded
)

// finding is the result of one check.
type finding struct {
	Level string `json:"level"`
	About string `json:"about"`
	Text  string `json:"text"`
	// Next is the next command to run, or, if no command helps, a sentence on what to do.
	Next string `json:"next,omitempty"`
}

// doctor holds the results so far: later checks depend on earlier ones.
type doctor struct {
	places   places.Places
	status   *adminapi.HostStatus // nil when the daemon did not answer
	findings []finding
}

// looks lists all checks, in order of dependency.
var looks = []func(context.Context, *doctor){
	lookPrograms,
	lookSocket,
	lookAdmin,
	lookKernel,
	lookFolders,
	lookTools,
}

func (d *doctor) ok(about, format string, args ...any) {
	d.findings = append(d.findings, finding{levelOK, about, fmt.Sprintf(format, args...), ""})
}

func (d *doctor) warn(about, next, format string, args ...any) {
	d.findings = append(d.findings, finding{levelWarn, about, fmt.Sprintf(format, args...), next})
}

func (d *doctor) wait(about, next, format string, args ...any) {
	d.findings = append(d.findings, finding{levelWait, about, fmt.Sprintf(format, args...), next})
}

func (d *doctor) fail(about, next, format string, args ...any) {
	d.findings = append(d.findings, finding{levelFail, about, fmt.Sprintf(format, args...), next})
}

func (d *doctor) print(s *state) {
	for _, f := range d.findings {
		fmt.Fprintf(s.out, "%-4s  %-10s  %s\n", f.Level, f.About, oneLine(f.Text))
		if f.Next != "" {
			fmt.Fprintf(s.out, "%18snext: %s\n", "", oneLine(f.Next))
		}
	}
}

func lookPrograms(_ context.Context, d *doctor) {
	for _, name := range []string{"toold", wrapper} {
		path, err := beside(name)
		switch {
		case err == nil:
			d.ok("programs", "%s", path)
		case name == "toold":
			d.warn("programs", "make build", "toold is neither beside toolctl nor on PATH; a daemon can still run elsewhere")
		default:
			d.warn("programs", "make build", "%s is neither beside toolctl nor on PATH; toolctl install needs it", name)
		}
	}
}

func lookSocket(ctx context.Context, d *doctor) {
	path := d.places.Socket
	start := "toold --socket " + quote(path)
	if !filepath.IsAbs(path) {
		d.warn("socket", "export TOOL_SOCKET=$PWD/"+quote(path), "%s is relative: it names another socket in each folder", path)
	}
	info, err := os.Lstat(path)
	lock := config.SocketLock(d.places.State, path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && locked(lock):
		d.fail("socket", "fuser "+quote(lock), "%s is gone, but the daemon that made it still runs and holds its lock: somebody removed the socket; stop that daemon and start it again", path)
		return
	case errors.Is(err, fs.ErrNotExist):
		d.fail("socket", start, "%s is not there: no daemon has made it", path)
		return
	case errors.Is(err, fs.ErrPermission):
		d.fail("socket", "ls -ld "+quote(filepath.Dir(path)), "%s cannot be reached: %s", path, places.Denied(path))
		return
	case err != nil:
		d.fail("socket", start, "%s: %v", path, err)
		return
	case info.Mode().Type() != fs.ModeSocket:
		d.fail("socket", "ls -l "+quote(path), "%s is not a socket, and toold will not replace it: move it away", path)
		return
	}
	if perm := info.Mode().Perm(); perm&0o007 != 0 {
		d.warn("socket", "chmod o= "+quote(path), "%s has mode %04o: every user of this machine may call the tools", path, perm)
	}
	// A starting daemon creates a new socket. A mount of the old socket file keeps referring to that file, on which no
	// daemon will ever listen again.
	folder := "mount its folder in its place: docker run -v HOST-FOLDER:" + quote(filepath.Dir(path)) + ":ro"
	mounted := isMount(path)
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		d.ok("socket", "%s answers", path)
		if mounted {
			d.warn("socket", folder, "%s is mounted by itself: when the daemon is restarted, nobody listens on it any more", path)
		}
	case errors.Is(err, syscall.ECONNREFUSED) && mounted:
		d.fail("socket", folder, "%s is mounted by itself, and nobody listens on it any more: its daemon was stopped or restarted", path)
	case errors.Is(err, syscall.ECONNREFUSED):
		d.fail("socket", start, "%s is stale: the daemon that made it is gone; a new one replaces it", path)
	case errors.Is(err, syscall.EACCES):
		d.fail("socket", "ls -l "+quote(path), "%s: permission denied; %s", path, places.Denied(path))
	default:
		d.fail("socket", start, "%s does not answer: %v", path, err)
	}
}

// isMount reports whether path itself is a mount point, as it is where docker was given a single file.
func isMount(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false // not Linux, so no containers
	}
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(real)
	for line := range strings.Lines(string(mounts)) {
		// Number, parent, device, root, mount point.
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == escaped {
			return true
		}
	}
	return false
}

// sameFile reports whether two paths refer to the same file, or are equal.
func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return a == b || err1 == nil && err2 == nil && os.SameFile(x, y)
}

// locked reports whether a running daemon holds the lock next to its socket.
func locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func lookAdmin(ctx context.Context, d *doctor) {
	path := d.places.Admin
	status, err := client.NewAdmin(path).Status(ctx)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		d.fail("daemon", "toold --admin "+quote(path), "its admin socket %s is not there: no daemon runs with this state folder", path)
		return
	case errors.Is(err, fs.ErrPermission):
		d.fail("daemon", "ls -l "+quote(path), "only the daemon's own user may use %s; this is uid %d", path, os.Getuid())
		return
	case errors.Is(err, syscall.ECONNREFUSED):
		d.fail("daemon", "toold --admin "+quote(path), "it is gone: nobody listens on %s", path)
		return
	default:
		d.fail("daemon", "curl --unix-socket "+quote(path)+" http://toold/readyz", "it does not say how it is: %v", err)
		return
	}
	d.status = status
	d.ok("daemon", "toold %s, pid %d, instance %s, %d calls since %s", status.Version, status.PID, status.Instance,
		status.Calls, status.Started.Local().Format("2006-01-02 15:04:05"))
	if own := version(); status.Version != own {
		d.warn("daemon", "toold --version; toolctl --version", "it is version %s, toolctl is %s", status.Version, own)
	}
	if !sameFile(status.Socket, d.places.Socket) {
		d.warn("daemon", "export TOOL_SOCKET="+quote(status.Socket), "it listens on %s, not on the socket looked at here", status.Socket)
	}
	if status.UID == 0 {
		d.warn("daemon", "run it as a user of its own: User= of deploy/systemd/toold.service, or setpriv --reuid toold",
			"it runs as root: whoever gets out of a tool's confinement has the whole machine; only tools with a user of their own need that")
	}
	if status.SharedSession {
		d.warn("sessions", `"explicit_sessions": true in toold.json, and a session for each container: toolctl session new`,
			"callers of one user that name no session share the default one: its jobs, state and limits")
	}
	if status.ConfigError != "" {
		d.fail("daemon", "fix "+quote(status.Config)+" and run: kill -HUP "+fmt.Sprint(status.PID),
			"its last reload was refused and the configuration before it stands: %s", status.ConfigError)
	}
	if status.UpgradeError != "" {
		d.warn("daemon", "repair the new program and run: toolctl upgrade", "its last upgrade failed and the program before it serves: %s", status.UpgradeError)
	}
	if status.AuditError != "" {
		d.fail("audit", "df "+quote(status.State), "the audit log cannot be written, and calls that change something are refused: %s", status.AuditError)
	}
}

func lookFolders(_ context.Context, d *doctor) {
	if d.status == nil {
		return
	}
	for _, root := range d.status.Roots {
		info, err := os.Stat(root)
		switch {
		case err != nil:
			d.fail("roots", "mkdir -p "+quote(root), "%s: %v; calls from beneath it are refused", root, errors.Unwrap(err))
		case !info.IsDir():
			d.fail("roots", "ls -ld "+quote(root), "%s is not a folder; calls from beneath it are refused", root)
		default:
			d.ok("roots", "%s", root)
			d.lookOwner(root, info)
		}
		if rel, err := filepath.Rel(root, d.status.State); err == nil && filepath.IsLocal(rel) {
			d.warn("roots", "restart toold with a --state elsewhere", "%s lies beneath %s: a tool reads and writes what is the daemon's own", d.status.State, root)
		}
	}
	for _, f := range d.status.Linked {
		next := "cp -p " + quote(f.Path) + " " + quote(f.Path+".new") + " && mv " + quote(f.Path+".new") + " " + quote(f.Path)
		if f.Refused {
			d.fail("files", next, "%s has more than one name (hard links): a tool could read the secret by another one, so that no binary is run", f.Path)
		} else {
			d.warn("files", next, "%s has more than one name (hard links): a tool can read it by another one", f.Path)
		}
	}
	for _, file := range d.status.Exposed {
		d.warn("files", "chmod o-rwx,g-w "+quote(file), "%s has secrets, and others than its owner can read or change it", file)
	}
	for _, dir := range []string{d.status.Tools, d.status.Restricted} {
		if dir == "" {
			continue
		}
		clean := true
		// The folder and those of its tools: write access to one decides what runs.
		paths := []string{dir}
		if sub, err := filepath.Glob(filepath.Join(dir, "*")); err == nil {
			paths = append(paths, sub...)
		}
		for _, p := range paths {
			info, err := os.Stat(p)
			if err != nil {
				clean = false
				d.fail("folders", "ls -l "+quote(p), "%s: %v", p, errors.Unwrap(err))
			} else if info.Mode().Perm()&0o022 != 0 {
				clean = false
				d.fail("folders", "chmod go-w "+quote(p), "%s has mode %04o: others than its owner decide what runs", p, info.Mode().Perm())
			}
		}
		if clean {
			d.ok("folders", "%s", dir)
		}
	}
}

// lookOwner reports files of root that belong to another user than the daemon's: what a tool creates there belongs to
// the daemon's user, and what it changes must be writable by that user.
func (d *doctor) lookOwner(root string, info os.FileInfo) {
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == d.status.UID || d.status.UID == 0 && owner.Uid == 0 {
		return
	}
	if n, err := unix.Getxattr(root, "system.posix_acl_default", nil); err == nil && n > 0 {
		return
	}
	rules := func(uid uint32) string { return fmt.Sprintf("-m u:%d:rwX -m d:u:%d:rwX", uid, uid) }
	d.warn("roots", "setfacl -R "+rules(uint32(d.status.UID))+" "+rules(owner.Uid)+" "+quote(root),
		"%s belongs to uid %d, and toold runs as uid %d: each may lack permission for the files that the other makes; give both with a default ACL, or run toold with uid %d",
		root, owner.Uid, d.status.UID, owner.Uid)
}

func lookTools(ctx context.Context, d *doctor) {
	if d.status == nil {
		return
	}
	tools, err := client.NewAdmin(d.places.Admin).Tools(ctx)
	if err != nil {
		d.fail("tools", "toolctl tools", "the daemon does not list them: %v", err)
		return
	}
	fine, loading := 0, 0
	for _, t := range tools {
		next := "toolctl tools " + t.Name
		switch t.State {
		case adminapi.ToolOK:
			fine++
		case adminapi.ToolLoading:
			loading++
			d.wait("tools", next, "%s: its first version is being loaded; calls wait for it", t.Name)
		case adminapi.ToolUpdating:
			fine++
			d.wait("tools", next, "%s: %s", t.Name, t.Reason)
		case adminapi.ToolRefusing:
			d.fail("tools", next, "%s: %s", t.Name, t.Reason)
		case adminapi.ToolStale:
			d.warn("tools", next, "%s: an older version serves, since the one on disk does not load: %s", t.Name, t.Reason)
		case adminapi.ToolAbsent:
			d.warn("tools", next, "%s: its binary is not on this host: %s", t.Name, t.Reason)
		default:
			d.fail("tools", next, "%s: every call is refused: %s", t.Name, t.Reason)
		}
		for _, host := range t.Insecure {
			d.warn("tools", "give "+host+` a secret with "tls": "ca" in tool.json and remove insecure_skip_verify`,
				"%s: nobody checks the certificate of %s: who is between can read and change all that goes there, secrets with it", t.Name, host)
		}
	}
	levels := map[string][]string{}
	for _, t := range tools {
		if t.Confinement != "" {
			levels[t.Confinement] = append(levels[t.Confinement], t.Name)
		}
	}
	for _, level := range slices.Sorted(maps.Keys(levels)) {
		d.ok("tools", "confined at the level %q: %s", level, strings.Join(levels[level], ", "))
	}
	switch {
	case len(tools) == 0:
		d.warn("tools", "ls "+quote(d.status.Tools), "there are none: a tool is a folder with a tool.json or a handler.wasm")
	case loading > 0:
		d.ok("tools", "%d of %d ready, %d loading", fine, len(tools), loading)
	case fine > 0:
		d.ok("tools", "%d of %d ready", fine, len(tools))
	}
}

// quote quotes s as one shell word.
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("+,-./:=@_%", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// released is the version of a release, which the linker sets.
var released string

// version is what this program was built from.
func version() string {
	if released != "" {
		return released
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

// lookKernel reports what the kernel under the daemon supports. Only the daemon can tell: it may run in another
// container, under other rules.
func lookKernel(_ context.Context, d *doctor) {
	if d.status == nil {
		return
	}
	if d.status.Landlock > 0 {
		d.ok("kernel", "tools are confined at the level %q, Landlock version %d", d.status.Confinement, d.status.Landlock)
	} else if runtime.GOOS == "linux" {
		d.warn("kernel", "cat /sys/kernel/security/lsm", "no Landlock: a hostile repository's configuration is refused by policy only; boot with lsm=landlock,... on Linux 5.19 or newer")
	}
	for _, lost := range d.status.Lost {
		d.warn("kernel", "uname -r", "%s", lost)
	}
	for _, reason := range d.status.Raise {
		next := "the levels of confinement in docs/security.md"
		if strings.Contains(reason, "mount /proc: ") { // parts of it are masked, as in containers
			next = "start the daemon's container with --security-opt unmask=ALL (podman) or systempaths=unconfined (docker)"
		}
		d.warn("kernel", next, "more confinement is possible: %s", reason)
	}
}
