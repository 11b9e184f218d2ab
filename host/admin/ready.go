package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toold/toold/host/adminapi"
	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/catalog"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
)

// toolList is the status of every tool, with what its calls would be refused for.
func (d *Daemon) toolList(ctx context.Context) []adminapi.ToolStatus {
	list := []adminapi.ToolStatus{}
	store, written := d.storeError(), sync.OnceValue(func() error { return d.auditError(ctx) })
	for _, s := range append(d.Tools.List(), d.Tools.Misnamed()...) {
		t := d.toolStatus(s, false)
		d.refusing(ctx, &t, s.Mode, store, written)
		list = append(list, t)
	}
	return list
}

func (d *Daemon) toolStatus(s catalog.Status, whole bool) adminapi.ToolStatus {
	t := adminapi.ToolStatus{
		Name: s.Name, State: s.State, Description: s.Description, Kind: s.Kind, Path: s.Path,
		Policies: s.Policies, Category: s.Category, Version: s.Version, Loaded: s.Loaded,
		Reason: s.Reason, Mutating: s.Mutating, Insecure: s.Insecure,
		PolicyDigests: s.PolicyDigests, PolicySince: s.PolicySince, HandlerDigest: s.HandlerDigest, Missing: s.Missing,
	}
	switch {
	case s.User:
		t.Confinement = confine.User.String()
	case s.Executes:
		t.Confinement = d.Runner.Confinement().Level().String()
	}
	if whole {
		t.Schema = s.Schema
	}
	return t
}

// refusing has t, which loads, say what its calls are refused for. mode is that of
// its definition; store and written say what is wrong with the two that calls leave
// records in.
func (d *Daemon) refusing(ctx context.Context, t *adminapi.ToolStatus, mode string, store func(context.Context) error, written func() error) {
	if t.State == adminapi.ToolLoading {
		t.Reason = "its first version is being loaded; calls wait for it"
	}
	if t.State != adminapi.ToolOK {
		return
	}
	tool, release, err := d.Tools.Acquire(ctx, t.Name)
	if err != nil {
		return // it has changed since, and the next answer says how
	}
	defer release()
	if err := d.Pipeline.MissingSecret(tool); err != nil {
		t.State, t.Reason = adminapi.ToolRefusing, "every call is refused: "+err.Error()
		return
	}
	if t.Mutating {
		if err := written(); err != nil {
			t.State, t.Reason = adminapi.ToolRefusing, fmt.Sprintf("calls that change something are refused: the audit log cannot be written: %v; make room on the disk of %s, or see what keeps the daemon from writing there", err, d.Config().State)
			return
		}
	}
	reliability := d.Config().ModeOf(mode)
	reads, changes := call.ModeFor(reliability, false) == call.Enforce, call.ModeFor(reliability, true) == call.Enforce
	if !reads && !changes {
		return
	}
	if err := store(ctx); err != nil {
		what := "calls with an idempotency key"
		if !changes {
			what += " that only read"
		}
		t.State, t.Reason = adminapi.ToolRefusing, fmt.Sprintf("%s are refused: the store of their records does not answer: %v; see toolctl reliability status", what, err)
	}
}

// pingTime is how long a store may take to answer before it counts as one that
// does not.
const pingTime = 2 * time.Second

// storeError asks the store of records, once, when its result is first needed.
func (d *Daemon) storeError() func(context.Context) error {
	var once sync.Once
	var err error
	return func(ctx context.Context) error {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(ctx, pingTime)
			defer cancel()
			err = d.Layer.Records.Ping(ctx)
		})
		return err
	}
}

// auditError is why nothing can be written to the audit log, and calls that change
// something are refused.
func (d *Daemon) auditError(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	return d.Audit.Check(ctx)
}

// serveReady answers 200 where calls are taken and none is refused for what is wrong
// with the daemon itself; a tool that is not well is named and changes nothing, since
// the others are served. With ?tool=NAME, again for more, 200 says that these tools
// serve what is on disk.
func (d *Daemon) serveReady(w http.ResponseWriter, r *http.Request) {
	if !d.Ready() {
		fail(w, http.StatusServiceUnavailable, errors.New("this toold takes no calls now: it starts or stops"))
		return
	}
	asked := r.URL.Query()["tool"]
	status, text := http.StatusOK, new(strings.Builder)
	seen := map[string]bool{}
	for _, t := range d.toolList(r.Context()) {
		seen[t.Name] = true
		if t.State == adminapi.ToolOK {
			continue
		}
		fmt.Fprintf(text, "tool %s is %s: %s\n", t.Name, t.State, strings.ReplaceAll(t.Reason, "\n", " "))
		if slices.Contains(asked, t.Name) {
			status = http.StatusServiceUnavailable
		}
	}
	for _, name := range asked {
		if !seen[name] {
			status = http.StatusServiceUnavailable
			fmt.Fprintf(text, "there is no tool %q\n", name)
		}
	}
	if d.usesStore() {
		if err := d.storeError()(r.Context()); err != nil {
			status = http.StatusServiceUnavailable
			fmt.Fprintf(text, "the store of idempotency records does not answer: %v\n", err)
		}
	}
	if err := d.auditError(r.Context()); err != nil {
		status = http.StatusServiceUnavailable
		fmt.Fprintf(text, "the audit log cannot be written, and calls that change something are refused: %v\n", err)
	}
	if status != http.StatusOK {
		fail(w, status, errors.New(strings.TrimSpace(text.String())))
		return
	}
	w.Write([]byte("ok\n" + text.String()))
}

// usesStore reports whether calls of some tool are refused without the store.
func (d *Daemon) usesStore() bool {
	c := d.Config()
	return slices.ContainsFunc(d.Tools.List(), func(s catalog.Status) bool {
		return call.ModeFor(c.ModeOf(s.Mode), false) == call.Enforce
	})
}

// maxWait bounds how long an operator waits for a version.
const maxWait = 10 * time.Minute

// serveWait answers when a version serves, or cannot. The tool _all stands for every
// tool, for a policy of all of them.
func (d *Daemon) serveWait(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	digest := q.Get("digest")
	limit, err := time.ParseDuration(q.Get("timeout"))
	if err != nil || limit <= 0 || limit > maxWait {
		fail(w, http.StatusBadRequest, fmt.Errorf("timeout is a duration of at most %v", maxWait))
		return
	}
	if len(digest) < 8 {
		fail(w, http.StatusBadRequest, errors.New("digest has 8 characters or more of a version or a sha256"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	names := []string{r.PathValue("name")}
	if names[0] == everyTool {
		names = nil
		for _, s := range d.Tools.List() {
			names = append(names, s.Name)
		}
	}
	for _, name := range names {
		if err := d.Tools.Await(ctx, name, digest); err != nil {
			var e *fault.Error
			if !errors.As(err, &e) {
				e = fault.Errorf(fault.Internal, "%w", err)
			}
			if r.PathValue("name") == everyTool && (e.Code == fault.UnknownTool || d.refusesAll(name)) {
				continue // nothing is called under another version
			}
			answer(w, http.StatusOK, adminapi.Version{Code: string(e.Code), Message: e.Message})
			return
		}
	}
	answer(w, http.StatusOK, adminapi.Version{})
}

// refusesAll reports whether no version of the tool serves.
func (d *Daemon) refusesAll(name string) bool {
	return slices.ContainsFunc(d.Tools.List(), func(s catalog.Status) bool { return s.Name == name && s.State == catalog.StateBroken })
}

// everyTool stands for all tools, as the name of the policy file of all does.
const everyTool = "_all"
