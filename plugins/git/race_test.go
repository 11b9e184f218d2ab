package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
)

// TestConfigChangedUnderCalls has somebody rewrite the repository's
// configuration, attributes and hooks all the time while calls run, so that
// git reads another one than the policy has seen. The confinement then holds.
func TestConfigChangedUnderCalls(t *testing.T) {
	needGit(t)
	if s := confine.Confinement(); s.ABI == 0 {
		t.Skipf("no confinement here: %s", s.Reason)
	}
	b := newBox(t, model(t), newRunner(t))
	for name, content := range allHooks("repo/.git/hooks/") {
		b.write(name, content)
	}
	b.write("repo/.git/info/attributes", filterAttributes)
	benign, err := os.ReadFile(b.ws + "/repo/.git/config")
	if err != nil {
		t.Fatal(err)
	}
	hostile := func(run string) []byte {
		return append(slices.Clone(benign), b.words.Replace(strings.ReplaceAll(`
[core]
	fsmonitor = {RUN}
	hooksPath = .git/hooks
	editor = {RUN}
	pager = {RUN}
	sshCommand = {RUN}
	alternateRefsCommand = {RUN}
[filter "x"]
	clean = {RUN}
	smudge = {RUN}
	required = true
[diff]
	external = {RUN}
[diff "x"]
	textconv = {RUN}
	command = {RUN}
[merge "x"]
	driver = {RUN}
[gpg]
	program = {RUN}
[commit]
	gpgSign = true
[remote "origin"]
	uploadpack = {RUN}
	receivepack = {RUN}
[protocol]
	allow = always
[credential]
	helper = {RUN}
`, "{RUN}", run))...)
	}
	// A script, and, for calls that get no shell, a line of shell. Those that
	// get one run what is pinned; a filter for a pull is beyond that.
	for _, tt := range []struct {
		name, run string
		lines     []string
	}{
		{"script", "{EVIL}", wholeDay},
		{"line of shell", `"{SH}"`, append(append([]string{}, looking...), append(working, "fetch origin", "push origin main", "ls-remote origin")...)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := tree(t, b.out)
			evil := hostile(tt.run)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					text := benign
					if i%2 == 1 {
						text = evil
					}
					tmp := b.ws + "/repo/.git/config.tmp"
					os.WriteFile(tmp, text, 0o644)
					os.Rename(tmp, b.ws+"/repo/.git/config")
				}
			}()
			p := testPolicy(nil)
			calls, refused := 0, 0
			for range 20 {
				for _, line := range tt.lines {
					// What the policy sees is as it was a moment ago.
					_, _, d := b.call(p, true, "repo", nil, "", b.line(line)...)
					calls++
					if d.Effect != "allow" {
						refused++
					}
				}
			}
			close(stop)
			<-stopped
			if harm := b.harm(before, "", false); harm != "" {
				t.Error(harm)
			}
			if refused == 0 || refused == calls {
				t.Errorf("%d of %d calls refused: nothing changed under them", refused, calls)
			}
			t.Logf("%d calls, %d of them refused", calls, refused)
		})
	}
}
