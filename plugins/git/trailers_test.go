package main

import (
	"testing"
	"time"

	"github.com/toold/toold/pdk/abi"
)

// TestTrailersByRace: a program that the repository names for a trailer after the
// policy has looked is not run, even where it is one of git's own, which is granted.
func TestTrailersByRace(t *testing.T) {
	needGit(t)
	b := newBox(t, model(t), newRunner(t))
	d := b.ask(testPolicy(nil), "repo", nil, b.line("interpret-trailers --trailer t={WS}/marker a.txt")...)
	if d.Effect != abi.Allow {
		t.Fatal(d.Reason)
	}
	b.append("repo/.git/config", "[trailer \"t\"]\ncmd=git-init\n")
	out, code, err := b.run(d, true, "repo", "", time.Minute)
	if err != nil || code != 0 || out != "one\ntwo\nthree\n\nt: "+b.ws+"/marker\n" {
		t.Errorf("%v, exit code %d\n%s", err, code, out)
	}
	if b.exists(b.ws + "/marker") {
		t.Error("it ran a program")
	}
	// What the policy saw of trailers counts, though git does not see the repository.
	b = newBox(t, model(t), newRunner(t))
	b.append("repo/.git/config", "[trailer \"s\"]\nkey=Signed-off-by\n[trailer]\nseparators=\":#\"\n")
	want, _ := b.plain("repo", nil, "x\n", "interpret-trailers", "--trailer", "s=A")
	if got, _, d := b.call(testPolicy(nil), true, "repo", nil, "x\n", "interpret-trailers", "--trailer", "s=A"); got != want || got != "x\n\nSigned-off-by: A\n" {
		t.Errorf("%q, want %q (%s)", got, want, d.Reason)
	}
}
