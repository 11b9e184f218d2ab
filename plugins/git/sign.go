package main

import (
	"slices"
	"strings"
)

// Signing with a key of the daemon's: git runs a program that has the daemon sign a
// commit or a tag, in the place of ssh-keygen. No other program signs, and no other
// key: what a repository or a call says of either is overridden or refused.

// signers are the subcommands that make commits or tags.
var signers = []string{"am", "cherry-pick", "commit", "commit-tree", "merge", "pull", "rebase", "revert", "tag"}

// sign decides whether what the call makes is signed.
func (r *request) sign() error {
	if !slices.Contains(signers, r.cmd.name) || !r.mutating {
		return nil
	}
	asked := ""
	for _, it := range r.line.Items {
		if it.Flag == nil || it.Name != "--gpg-sign" && it.Name != "--sign" || r.cmd.name != "tag" && it.Name == "--sign" {
			continue
		}
		if it.HasValue && it.Value != "" {
			return refusal("flag.value", it.Name, "flag "+quote(it.Name)+" names a key, and what is signed here is signed with the operator's", "leave the key out")
		}
		asked = it.Name
	}
	if r.line.Has("--no-gpg-sign") || r.line.Has("--no-sign") {
		if asked == "" {
			return nil
		}
	}
	// What the repository wants of its commits counts, as natively.
	key := "commit.gpgsign"
	if r.cmd.name == "tag" {
		key = "tag.gpgsign"
	}
	wanted, _ := r.repo.get(key)
	all := r.signAlways || isTrue(wanted)
	switch {
	case r.signingKey == "" && asked != "":
		return refusal("flag.refused", asked, "flag "+quote(asked)+" "+signs, "leave it out; commits and tags are not signed here, unless the operator sets signing_key")
	case r.signingKey == "" && all:
		r.note(key + " is set, and nothing is signed here: the operator has set no signing_key")
	case r.signingKey != "":
		r.signs, r.signsAll = true, all
		if r.cmd.name == "commit-tree" {
			r.signsAll = false // it goes by its flag alone
		}
	}
	return nil
}

// signedRemote is why a call that signs cannot go to a folder: with the shell that
// this takes there are no secrets.
func (r *request) signedRemote() error {
	if r.signs && r.needsShell() && (r.signsAll || strings.Contains(strings.Join(r.asked, " "), "-S")) {
		return refusal("remote", "", "a call that signs gets none of the daemon's keys where it goes to a folder of this host", "git fetch, then git merge or git rebase")
	}
	return nil
}
