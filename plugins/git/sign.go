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
	wanted, _ := r.setting(key)
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

// The flags that have signatures verified.
const (
	showSignature    = "--show-signature"
	verifySignatures = "--verify-signatures"
	verifyTag        = "--verify"
)

const (
	// sshVerifier is the program that verifies signatures of ssh keys. The operator grants it.
	sshVerifier = "/usr/bin/ssh-keygen"
	// noVerifier stands for the programs that verify others. Git says that it cannot run it.
	noVerifier = "/only/signatures-of-ssh-keys-are-verified-here"
)

// verify decides whether git may verify signatures in this call. Which keys are good is
// the operator's to say: a file that the repository names would be the work of whoever
// is to be checked.
func (r *request) verify() error {
	asked, rule := "", "flag.refused"
	for _, it := range r.line.Items {
		switch {
		case it.Flag == nil:
		case it.Name == "--format" || it.Name == "--pretty":
			if strings.Contains(it.Value, "%G") || strings.Contains(it.Value, "%(signature") {
				asked, rule = "the format asks for signatures, and that", "flag.value"
			}
		case it.Name == showSignature, it.Name == verifySignatures, it.Name == verifyTag && r.cmd.name == "tag":
			asked = "flag " + quote(it.Name)
		}
	}
	first, _, _ := strings.Cut(r.cmd.name, " ")
	if strings.HasPrefix(first, "verify-") && first != "verify-pack" {
		asked, rule = "git "+first, "subcommand"
	}
	wants := func(key string, commands ...string) bool {
		v, _ := r.setting(key)
		return isTrue(v) && slices.Contains(commands, first)
	}
	switch {
	case asked != "" && r.allowedSigners == "":
		return refusal(rule, asked, asked+" "+signs, "leave it out; the operator allows it for signatures of ssh keys with allowed_signers, the path of such a file, and "+sshVerifier+" in capabilities.exec in tools.d/git/tool.json")
	case asked != "" && r.signs && first != "tag": // which does one or the other
		return refusal(rule, asked, "signing and verifying take two programs in the place of one", "git fetch, verify what came with git verify-commit, then go on without "+verifySignatures)
	case asked != "":
		r.verifies = true
	case wants("log.showsignature", "log", "show", "whatchanged", "reflog") && !r.line.Has("--no-show-signature"):
		if r.allowedSigners == "" {
			r.note("log.showSignature is set, and nothing is verified here: the operator has set no allowed_signers")
			break
		}
		r.verifies, r.shows = true, true
	case wants("merge.verifysignatures", "merge", "pull") && !r.line.Has("--no-verify-signatures"):
		return refusal("repo-config", "", "merge.verifySignatures is set, and this call would merge without", "name --verify-signatures or --no-verify-signatures")
	}
	return nil
}
