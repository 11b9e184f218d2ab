package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/toold/toold/host/client"
)

// instanceWait is how long one instance may take to respond.
const instanceWait = 5 * time.Second

// The values of instance.Health.
const (
	healthOK   = "ok"   // it serves
	healthFail = "fail" // it responds, but is not ready
	healthDead = "dead" // its admin socket exists, but nobody responds
)

// instance is one daemon that was found.
type instance struct {
	Instance string         `json:"instance"`
	Health   string         `json:"health"`
	Reason   string         `json:"reason,omitempty"`
	Version  string         `json:"version,omitempty"`
	PID      int            `json:"pid,omitempty"`
	UID      int            `json:"uid"`
	Started  time.Time      `json:"started,omitzero"`
	Running  int            `json:"running"` // calls
	Admin    string         `json:"admin"`
	Sockets  []socketStatus `json:"sockets,omitempty"`
}

// socketStatus is one socket of an instance.
type socketStatus struct {
	Path       string   `json:"path"`
	Kind       string   `json:"kind"` // "tool" or "admin"
	Mode       string   `json:"mode,omitempty"`
	Owner      string   `json:"owner,omitempty"`
	Categories []string `json:"categories,omitempty"`
	// Answers is whether somebody listens; Reason is why not, or what is wrong.
	Answers bool   `json:"answers"`
	Reason  string `json:"reason,omitempty"`
}

const instancesFound = `Instances are looked for where their admin sockets are: the one that toolctl talks to, those in
the state folders beside its own, and on Linux every socket named admin.sock that a process of this
network namespace listens on. One whose admin socket has another name and is not beside them needs --admin.`

func instancesVerb(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "instances",
		Short: "List the running daemons: sockets, versions, health",
		Long: `List the daemons of this user that run, and those that have died and left their admin
socket. The health is

  ok    it serves
  fail  it answers, and says that it is not ready
  dead  nobody answers on its admin socket

` + instancesFound,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			found := s.instances(cmd.Context())
			if asJSON {
				return s.printJSON(found)
			}
			return s.listInstances(found)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func checkInstancesVerb(s *state) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "check-instances [NAME...]",
		Short: "Exit with 0 if every instance is healthy, for monitoring",
		Long: `Check the instances that toolctl instances lists, or those named. The exit code is 0 if
all are ok and each of their sockets answers, 1 if one is not, and 127 if there is none,
or one that was named is not there.

` + instancesFound,
		RunE: func(cmd *cobra.Command, names []string) error {
			found := s.instances(cmd.Context())
			var missing []string
			if len(names) > 0 {
				for _, n := range names {
					if !slices.ContainsFunc(found, func(i instance) bool { return i.Instance == n }) {
						missing = append(missing, n)
					}
				}
				found = slices.DeleteFunc(found, func(i instance) bool { return !slices.Contains(names, i.Instance) })
			}
			if !quiet {
				if len(found) > 0 || len(missing) == 0 {
					if err := s.listInstances(found); err != nil {
						return err
					}
				}
				for _, n := range missing {
					fmt.Fprintf(s.out, "no instance %s; toold --instance %s starts it\n", oneLine(n), quote(n))
				}
			}
			if len(missing) > 0 || len(found) == 0 {
				return exitStatus(127)
			}
			for _, i := range found {
				if i.Health != healthOK || slices.ContainsFunc(i.Sockets, func(k socketStatus) bool { return !k.Answers }) {
					return exitStatus(1)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return cmd
}

func socketsVerb(s *state) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sockets",
		Short: "List the sockets of the running daemons: mode, owner, categories",
		Long: `List each socket of the instances that toolctl instances lists, who may connect, which
categories of tools it serves, and whether somebody listens.

` + instancesFound,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var sockets []socketStatus
			flush, row := s.table("INSTANCE", "KIND", "MODE", "OWNER", "SERVES", "STATE", "PATH")
			for _, i := range s.instances(cmd.Context()) {
				for _, k := range i.Sockets {
					sockets = append(sockets, k)
					serves := first(strings.Join(k.Categories, ","), "-")
					if k.Kind == "tool" && len(k.Categories) == 0 {
						serves = "all"
					}
					row(i.Instance, k.Kind, first(k.Mode, "-"), first(k.Owner, "-"), serves, first(k.Reason, "answers"), k.Path)
				}
			}
			if asJSON {
				return s.printJSON(sockets)
			}
			if len(sockets) == 0 {
				_, err := fmt.Fprintln(s.out, "no instance was found; toolctl doctor finds out why")
				return err
			}
			return flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// table prints columns. Nothing is written until flush is called.
func (s *state) table(head ...string) (flush func() error, row func(cells ...string)) {
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	row = func(cells ...string) {
		for i := range cells {
			cells[i] = oneLine(cells[i])
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row(head...)
	return w.Flush, row
}

func (s *state) listInstances(found []instance) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(s.out, "no instance was found; toolctl doctor finds out why")
		return err
	}
	flush, row := s.table("INSTANCE", "HEALTH", "VERSION", "PID", "STARTED", "CALLS", "SOCKET")
	for _, i := range found {
		at := i.Admin
		if len(i.Sockets) > 1 {
			at = i.Sockets[1].Path
		}
		health := i.Health
		if i.Reason != "" {
			health += ": " + i.Reason
		}
		for _, k := range i.Sockets {
			if i.Health == healthOK && !k.Answers {
				health += "; " + k.Path + " " + k.Reason
			}
		}
		row(i.Instance, health, first(i.Version, "-"), first(strings.TrimPrefix(strconv.Itoa(i.PID), "0"), "-"), first(when(i.Started), "-"), strconv.Itoa(i.Running), at)
	}
	return flush()
}

// instances finds daemons and queries the health of each.
func (s *state) instances(ctx context.Context) []instance {
	var found []instance
	for _, admin := range adminSockets(s.places().Admin, s.places().State) {
		found = append(found, askInstance(ctx, admin))
	}
	slices.SortFunc(found, func(a, b instance) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Admin, b.Admin))
	})
	return found
}

// adminSockets returns the sockets of possible daemons, without duplicates. It omits sockets that belong to neither
// this user nor root: their responses cannot be trusted.
func adminSockets(own, state string) []string {
	paths := []string{own}
	beside, _ := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(state)), "*", "admin.sock"))
	paths = append(paths, beside...)
	if runtime.GOOS == "linux" {
		// Number, references, protocol, flags, type, state, inode, path.
		text, _ := os.ReadFile("/proc/net/unix")
		for line := range strings.Lines(string(text)) {
			if at := strings.Index(line, "/"); at >= 0 && filepath.Base(strings.TrimSuffix(line[at:], "\n")) == "admin.sock" {
				paths = append(paths, strings.TrimSuffix(line[at:], "\n"))
			}
		}
	}
	var seen []os.FileInfo
	return slices.DeleteFunc(paths, func(path string) bool {
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != fs.ModeSocket || slices.ContainsFunc(seen, func(i os.FileInfo) bool { return os.SameFile(i, info) }) {
			return true
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if path != own && (!ok || owner.Uid != 0 && int(owner.Uid) != os.Getuid()) {
			return true
		}
		seen = append(seen, info)
		return false
	})
}

// escapeGlob returns a pattern that matches only dir.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// askInstance queries the health of the daemon behind an admin socket.
func askInstance(ctx context.Context, admin string) instance {
	ctx, cancel := context.WithTimeout(ctx, instanceWait)
	defer cancel()
	i := instance{Instance: filepath.Base(filepath.Dir(admin)), Health: healthOK, Admin: admin, UID: -1}
	status, err := client.NewAdmin(admin).Status(ctx)
	if err != nil {
		i.Health, i.Reason = healthDead, err.Error()
		if errors.Is(err, syscall.ECONNREFUSED) {
			i.Reason = "nobody listens"
		}
		i.Sockets = []socketStatus{askSocket(ctx, admin, "admin", nil)}
		return i
	}
	i.Instance, i.Version, i.PID, i.UID, i.Started, i.Running = status.Instance, status.Version, status.PID, status.UID, status.Started, status.Running
	if err := ready(ctx, admin); err != nil {
		i.Health, i.Reason = healthFail, err.Error()
	}
	i.Sockets = []socketStatus{askSocket(ctx, admin, "admin", nil), askSocket(ctx, status.Socket, "tool", nil)}
	for _, k := range status.Sockets {
		i.Sockets = append(i.Sockets, askSocket(ctx, k.Path, "tool", k.Categories))
	}
	return i
}

// ready asks a daemon whether it is serving.
func ready(ctx context.Context, admin string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://toold/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New("it is not ready, /readyz answers " + resp.Status)
	}
	return nil
}

// askSocket reports who may connect to a socket, and whether somebody listens.
func askSocket(ctx context.Context, path, kind string, categories []string) socketStatus {
	k := socketStatus{Path: path, Kind: kind, Categories: categories}
	info, err := os.Lstat(path)
	if err != nil {
		k.Reason = "is gone"
		if !errors.Is(err, fs.ErrNotExist) {
			k.Reason = err.Error()
		}
		return k
	}
	k.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
	if o, ok := info.Sys().(*syscall.Stat_t); ok {
		k.Owner = strconv.Itoa(int(o.Uid)) + ":" + strconv.Itoa(int(o.Gid))
		if u, err := user.LookupId(strconv.Itoa(int(o.Uid))); err == nil {
			k.Owner = u.Username + k.Owner[strings.Index(k.Owner, ":"):]
		}
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		k.Reason = "nobody listens"
		if !errors.Is(err, syscall.ECONNREFUSED) {
			k.Reason = err.Error()
		}
		return k
	}
	conn.Close()
	k.Answers = true
	if info.Mode().Perm()&0o007 != 0 {
		k.Reason = "answers every user"
	}
	return k
}
