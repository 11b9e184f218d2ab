package catalog

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// The states of a tool, in Status.State and on the admin socket.
const (
	StateOK      = "ok"      // the version on disk serves
	StateStale   = "stale"   // the version on disk does not load; an older one serves
	StateBroken  = "broken"  // nothing loads: TOOL_BROKEN
	StateAbsent  = "absent"  // it loads, but its binary is not on this host: TOOL_NOT_INSTALLED
	StateLoading = "loading" // a first version is being loaded; calls wait for it

	// StateUpdating: the version on disk is being compiled; an older one serves
	// until then.
	StateUpdating = "updating"
)

// Status is one tool in List. The fields that describe the tool are those of the
// generation that serves, and empty if none does.
type Status struct {
	Name        string
	State       string
	Description string
	Kind        string
	// Path is the binary or module that runs. Policies are the policy modules,
	// in the order in which they are asked.
	Path     string
	Policies []string
	Category string
	Version  string
	// PolicyDigests are the sha256 of Policies, in hex, and PolicySince is from
	// when on each of them is asked in every call that begins. HandlerDigest is
	// that of the module.
	PolicyDigests []string
	PolicySince   []time.Time
	HandlerDigest string
	Mutating      bool
	// Mode is the tool's own reliability.mode, or empty.
	Mode string
	// Executes reports whether the tool runs binaries, User whether it runs them
	// as a user of its own.
	Executes, User bool
	// Insecure are the hosts, sorted, whose certificates it does not check.
	Insecure []string
	// Missing are the imports that a stock plugin does not get, each with what to
	// do: a call that calls one fails.
	Missing []string
	// Schema is the JSON Schema of the payload, as its author wrote it.
	Schema json.RawMessage
	// Title is its name for people, where it has one.
	Title string
	// Annotations is what tool.json or the module declares of it, nil if nothing.
	Annotations *abi.Annotations
	// Output is the schema of the data that it answers, where it says so.
	Output json.RawMessage
	// Loaded is when the generation began to serve, Calls the number of calls
	// that hold it.
	Loaded time.Time
	Calls  int
	// Reason is what is wrong, in every state but StateOK and StateLoading; it
	// ends with what to do. Failing is when that began.
	Reason  string
	Failing time.Time
}

// Serving reports whether a call would reach the tool.
func (s Status) Serving() bool {
	return s.State == StateOK || s.State == StateStale || s.State == StateUpdating
}

// List returns the status of every tool, sorted by name.
func (c *Catalog) List() []Status {
	c.mu.Lock()
	list := make([]Status, 0, len(c.tools))
	serving := make(map[string]*generation, len(c.tools))
	for _, e := range c.tools {
		s := Status{Name: e.name, State: StateLoading, Failing: e.failure.since}
		switch {
		case e.current != nil:
			s.State, s.Loaded, s.Calls = StateOK, e.current.loaded, e.current.refs
			serving[e.name] = e.current
			s.PolicySince = e.current.since
			switch {
			case !e.compiling.IsZero():
				s.State = StateUpdating
				s.Reason = fmt.Sprintf("a new version is being compiled since %s, and the one before it serves until then; toolctl tools wait %s DIGEST waits for it", e.compiling.Format(time.TimeOnly), e.name)
			case e.stale != nil:
				s.State, s.Reason = StateStale, e.stale.Message
			}
		case e.err != nil:
			s.State, s.Reason = StateBroken, e.err.Message
		}
		list = append(list, s)
	}
	c.mu.Unlock()
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	for i := range list {
		s := &list[i]
		g := serving[s.Name]
		if g == nil {
			continue
		}
		t := &g.tool
		if found, err := g.installed(); err == nil {
			t = found
		} else if s.State == StateOK {
			s.State, s.Reason = StateAbsent, err.Message
		}
		s.Description, s.Kind, s.Path, s.Policies = t.Description, string(t.Kind), t.Binary, t.PolicyFiles
		if t.Kind != tools.Binary {
			s.Path = t.HandlerFile
		}
		s.PolicyDigests, s.HandlerDigest = t.PolicyDigests, t.HandlerDigest
		s.Category, s.Version, s.Mutating, s.Schema, s.Output = t.Def.Category, t.Version, t.Def.Mutating, t.SchemaSource, t.OutputSource
		if t.Annotations != nil {
			s.Title, s.Annotations = t.Annotations.Title, t.Annotations
		}
		s.Mode, s.Missing = t.Def.Reliability.Mode, t.Missing
		s.Executes, s.User = t.Kind == tools.Binary || len(t.Def.Capabilities.Exec) > 0, t.User != nil
		if h := t.Def.Capabilities.HTTP; h != nil {
			for _, host := range slices.Sorted(maps.Keys(h.TLS)) {
				if h.TLS[host].InsecureSkipVerify {
					s.Insecure = append(s.Insecure, host)
				}
			}
		}
	}
	return list
}

// Misnamed returns entries of tools.d that would be tools under another name or in a folder: as
// broken, with what to do. None of them is listed or called.
func (c *Catalog) Misnamed() []Status {
	_, others, _ := toolNames(c.cfg.Dir) // reconcileAll logs the error
	var list []Status
	for _, m := range others {
		list = append(list, Status{Name: m.name, State: StateBroken, Reason: m.why})
	}
	return list
}

// Serving are the tools that serve, in no order, at one moment. None of them is pinned: only
// what they declare may be read.
type Serving []*tools.Tool

// Serving returns the tools that serve now.
func (c *Catalog) Serving() Serving {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := make(Serving, 0, len(c.tools))
	for _, e := range c.tools {
		if e.current != nil {
			s = append(s, &e.current.tool)
		}
	}
	return s
}

// DeclaresClaim reports whether one of them uses the claim name of a token, in identity
// or as the source of a secret.
func (s Serving) DeclaresClaim(name string) bool {
	for _, t := range s {
		if slices.Contains(t.Def.Identity.Claims, name) || slices.Contains(t.Def.Identity.Secret, name) {
			return true
		}
		for _, secret := range t.Def.Secrets {
			if secret.From == "claim:"+name {
				return true
			}
		}
	}
	return false
}

// SecretFiles returns the files, sorted, from which they read secrets.
func (s Serving) SecretFiles() []string {
	return s.files(func(s tools.Secret) bool { return !isCertificate(s) })
}

// CertificateFiles returns the files, sorted, with the authorities and certificates
// that modules of them are given for TLS.
func (s Serving) CertificateFiles() []string { return s.files(isCertificate) }

// isCertificate reports whether s may be read by others.
func isCertificate(s tools.Secret) bool { return s.TLS == tools.TLSCA || s.TLS == tools.TLSCert }

// files returns the files, sorted, of those secrets which match.
func (s Serving) files(match func(tools.Secret) bool) []string {
	var files []string
	for _, t := range s {
		for _, secret := range t.Def.Secrets {
			if file, ok := strings.CutPrefix(secret.From, "file:"); ok && match(secret) {
				files = append(files, file)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Discovering returns the names, sorted, of those that offer further tools for each
// identity.
func (s Serving) Discovering() []string {
	var names []string
	for _, t := range s {
		if t.Discovers {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Listening returns the tools that are run with events, by name, and the events that they
// request.
func (s Serving) Listening() map[string][]string {
	listening := map[string][]string{}
	for _, t := range s {
		if len(t.Def.On) > 0 {
			listening[t.Name] = t.Def.On
		}
	}
	return listening
}
