package main

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
	"github.com/toold/toold/pdk/argv"
)

// release is what npm publish is about to publish.
type release struct {
	Name      string `json:"name"`
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
	// There says that the registry had the version before.
	There bool `json:"there,omitempty"`
}

func (f *release) spec() string { return f.Name + "@" + f.Version }

// serverTime is how long a registry may still work on a request that it got, and may
// answer what it knew before: npm's own lets caches keep a package for five minutes.
const serverTime = 10 * time.Minute

// reconcile says how npm publish ended that was cut off. Before the call it packs the
// project, as npm publish does, for name, version and integrity, and looks whether the
// registry has the version. A registry takes each version once, whole, with its tag, and
// never again.
//
// done: the version is there, and was not, with the integrity that was packed.
//
// not_done: it was there before, so that the call was refused and will be; or it is not
// there serverTime after the call ended. Should it appear all the same, the repeated call
// is refused by the registry and publishes nothing twice.
//
// Anything else, another integrity, is unknown: somebody else was there, or the files
// changed meanwhile.
func (p *policy) reconcile(q *abi.Reconcile) (*abi.Reconciliation, error) {
	if q.Before {
		return p.releaseFacts(q)
	}
	if len(q.Facts) == 0 {
		return pdk.Unresolved("only npm publish --ignore-scripts, of the project in the working folder, is looked into"), nil
	}
	var f release
	if err := json.Unmarshal(q.Facts, &f); err != nil {
		return nil, err
	}
	if f.There {
		return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: f.spec() + " was published before the call, and a registry takes a version once"}, nil
	}
	if len(q.Ran) == 0 {
		return &abi.Reconciliation{Run: [][]string{f.view()}}, nil
	}
	integrity, there, why := viewOf(&f, &q.Ran[0])
	switch {
	case why != "":
		return pdk.Unresolved(why), nil
	case there && integrity != f.Integrity:
		return pdk.Unresolved(f.spec() + " is there with integrity " + integrity + ", and the call was to publish " + f.Integrity), nil
	case there:
		return &abi.Reconciliation{Verdict: abi.VerdictDone, Evidence: f.spec() + " is there, and was not before, with the integrity of the call: " + integrity, Result: &abi.Result{Stdout: "+ " + f.spec() + "\n"}}, nil
	case q.NowMS-q.EndedMS < serverTime.Milliseconds():
		return pdk.Unresolved(f.spec() + " is not there, and may still come until " + time.UnixMilli(q.EndedMS).Add(serverTime).UTC().Format(time.RFC3339)), nil
	}
	return &abi.Reconciliation{Verdict: abi.VerdictNotDone, Evidence: f.spec() + " is not there"}, nil
}

// releaseFacts reads what npm publish is about to do. Of other commands there are none,
// and none where scripts or several workspaces decide what is packed.
func (p *policy) releaseFacts(q *abi.Reconcile) (*abi.Reconciliation, error) {
	none := &abi.Reconciliation{}
	line, err := grammar.Parse(q.Call.Args, argv.Scope{Cwd: q.Call.Cwd, Roots: q.Call.Roots})
	if err != nil {
		return none, nil
	}
	name, _, ops, err := p.command(line)
	if err != nil || name != "publish" || len(ops) > 0 || !ignoresScripts(line) || rehearses(line) || line.Has("--workspace") || line.Has("--workspaces") {
		return none, nil
	}
	pack := []string{"pack", "--dry-run", "--json", "--ignore-scripts"}
	if len(q.Ran) == 0 {
		return &abi.Reconciliation{Run: [][]string{pack}}, nil
	}
	f, err := packed(&q.Ran[0])
	if err != nil {
		return nil, err
	}
	if len(q.Ran) == 1 {
		return &abi.Reconciliation{Run: [][]string{f.view()}}, nil
	}
	var why string
	if _, f.There, why = viewOf(f, &q.Ran[1]); why != "" {
		return nil, errors.New(why)
	}
	b, err := json.Marshal(f)
	return &abi.Reconciliation{Facts: b}, err
}

func (f *release) view() []string {
	return []string{"view", "--json", "--prefer-online", "--", f.spec(), "name", "version", "dist.integrity"}
}

// packed reads what npm pack --json says of the one package. The list of its files, which
// comes last, may be cut off.
func packed(ran *abi.ReconcileRan) (*release, error) {
	switch {
	case ran.Error != nil:
		return nil, errors.New("npm pack: " + ran.Error.Message)
	case ran.ExitCode != 0:
		return nil, errors.New("npm pack failed: " + strings.TrimSpace(ran.Stderr))
	}
	said := map[string]string{}
	in := json.NewDecoder(strings.NewReader(ran.Stdout))
	first, _ := in.Token()
	object, _ := in.Token()
	if first != json.Delim('[') || object != json.Delim('{') {
		return nil, errors.New("npm pack answers no list of packages")
	}
	for len(said) < 3 && in.More() {
		name, err := in.Token()
		if err != nil {
			break
		}
		var value json.RawMessage
		if in.Decode(&value) != nil {
			break
		}
		var text string
		if key, _ := name.(string); (key == "name" || key == "version" || key == "integrity") && json.Unmarshal(value, &text) == nil {
			said[key] = text
		}
	}
	f := &release{Name: said["name"], Version: said["version"], Integrity: said["integrity"]}
	if !packageName(f.Name) || f.Version == "" || !version(f.Version) || !strings.HasPrefix(f.Integrity, "sha512-") {
		return nil, errors.New("npm pack names no package, version and integrity")
	}
	return f, nil
}

// viewOf reads what npm view says of a release: its integrity, and whether it is there;
// or why that is not known.
func viewOf(f *release, ran *abi.ReconcileRan) (integrity string, there bool, why string) {
	var said struct {
		Name      string `json:"name"`
		Version   string `json:"version"`
		Integrity string `json:"dist.integrity"`
		Error     *struct {
			Code    string `json:"code"`
			Summary string `json:"summary"`
		} `json:"error"`
	}
	switch {
	case ran.Error != nil:
		return "", false, "npm view: " + ran.Error.Message
	case ran.Truncated:
		return "", false, "npm view answers too much"
	}
	if ran.ExitCode == 0 && strings.TrimSpace(ran.Stdout) == "" {
		return "", false, "" // as older npm says that the package has no such version
	}
	if err := json.Unmarshal([]byte(ran.Stdout), &said); err != nil {
		return "", false, "npm view answers no JSON: " + err.Error()
	}
	switch {
	case said.Error != nil && said.Error.Code == "E404":
		return "", false, ""
	case said.Error != nil:
		return "", false, "npm view: " + said.Error.Code + " " + said.Error.Summary
	case ran.ExitCode != 0:
		return "", false, "npm view failed: " + strings.TrimSpace(ran.Stderr)
	case said.Name != f.Name || said.Version != f.Version:
		return "", false, "npm view answers about another version"
	}
	return said.Integrity, true, ""
}
