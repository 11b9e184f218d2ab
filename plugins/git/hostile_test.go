package main

import (
	"maps"
	"strings"
)

// hostile is one attempt to make git run a program, write outside of the
// roots or show what lies there: by its arguments, by its environment, or by
// a repository that somebody prepared. README.md lists them.
//
// In all texts {WS} is the root, with the repository {WS}/repo (the working
// directory) and its remote {WS}/remote.git; {OUT} is a folder outside, with
// a repository {OUT}/victim; {EVIL} is an executable script beneath the root
// that makes the markers {IN} and {OUT}/marker, and {SH} the same as a line
// of shell. In args, a no-break space stands for a space within an argument.
type hostile struct {
	name string
	// Calls, one a line. Those after a refused one are made as well.
	args []string
	// rule is by which the first refused call is refused; "" is none: the
	// calls are made, and do no harm.
	rule string
	env  map[string]string
	// stdin is given to every call.
	stdin string
	// The repository: lines for .git/config, files and links (relative to
	// {WS}; a file beneath a hooks folder, or that begins with "#!", is
	// executable), and plain git calls that prepare it.
	config  string
	files   map[string]string
	links   map[string]string
	prepare []string
	cwd     string // relative to {WS}; default repo
	// tame says why plain git does no harm here without a policy: otherwise
	// the test insists that it does, so that no case is empty.
	tame string
	// confined says that the policy cannot see it, and only the confinement
	// holds it.
	confined bool
	// race is what holds the case when the repository becomes what it is here
	// only after the policy has looked: "" is what is forced and the
	// confinement; see guard.
	race guard
}

// guard is something outside of the policy that a case needs.
type guard string

const (
	// byExec: programs that are git's own, or reached through a link, run with
	// arguments of the repository's choice until each execution is judged.
	byExec guard = "execution"
	// byReading: toold's user can read what is shown.
	byReading guard = "reading"
)

const filterAttributes = "*.txt filter=x diff=x merge=x\n"

// Everyday calls that a hostile repository is tried with.
var (
	looking  = []string{"status", "diff", "log -p -2", "show", "blame a.txt", "stash list", "branch -vv", "describe --always --dirty"}
	working  = []string{"add .", "commit -m x", "checkout feature", "checkout main", "merge --no-edit feature", "reset --hard HEAD~1", "rebase feature", "stash", "cherry-pick feature", "tag -m x v9"}
	network  = []string{"fetch origin", "push origin main", "pull --no-rebase origin main", "ls-remote origin"}
	wholeDay = append(append(append([]string{}, looking...), working...), network...)
)

var hostiles = []hostile{
	// Flags before the subcommand.
	{name: "-c core.sshCommand", args: []string{"-c core.sshCommand={EVIL} ls-remote ssh://localhost/x"}, rule: "global-flag"},
	{name: "-c alias", args: []string{"-c alias.x=!{EVIL} x"}, rule: "global-flag"},
	{name: "-c core.fsmonitor", args: []string{"-c core.fsmonitor={EVIL} status"}, rule: "global-flag"},
	{name: "-c joined to its value", args: []string{"-ccore.fsmonitor={EVIL} status"}, rule: "global-flag", tame: "git wants the value apart"},
	{name: "-c with a key in capitals", args: []string{"-c CORE.FSMonitor={EVIL} status"}, rule: "global-flag"},
	{name: "--config-env", args: []string{"--config-env=core.fsmonitor=TERM status"}, env: map[string]string{"TERM": "{EVIL}"}, rule: "global-flag"},
	{name: "--exec-path", args: []string{"--exec-path={WS}/bin evil"}, files: map[string]string{"bin/git-evil": "#!/bin/sh\n{SH}\n"}, rule: "global-flag"},
	{name: "--git-dir outside", args: []string{"--git-dir={OUT}/victim/.git log", "--git-dir {OUT}/victim/.git log"}, rule: "path.outside"},
	{name: "--git-dir through a link to the outside", args: []string{"--git-dir=../lead/.git log", "--git-dir=../lead log"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "--git-dir of a file that names the outside", args: []string{"--git-dir=../lead/.git log"}, files: map[string]string{"lead/.git": "gitdir: {OUT}/victim/.git\n"}, rule: "repo-config", race: byReading},
	{name: "--git-dir of a repository that runs programs", args: []string{"--git-dir=../other/.git --work-tree=. diff HEAD", "--git-dir ../other/.git --work-tree . status"},
		prepare: []string{"clone -q {WS}/remote.git ../other", "-C ../other config core.fsmonitor {EVIL}", "-C ../other config diff.external {EVIL}"}, rule: "repo-config"},
	{name: "--git-dir of a bare repository with a command", args: []string{"--git-dir=../remote.git --work-tree=. diff main"},
		prepare: []string{"--git-dir=../remote.git config diff.external {EVIL}"}, rule: "repo-config"},
	{name: "-C outside", args: []string{"-C {OUT}/victim log"}, rule: "path.outside"},
	{name: "-C into a repository with a command that is forced off", args: []string{"-C ../other status", "-C .. -C other status"}, prepare: []string{"init -q ../other", "-C ../other config core.fsmonitor {EVIL}"}},
	{name: "-C into a repository with a command", args: []string{"-C ../other add .", "-C .. -C other add ."}, prepare: []string{"init -q ../other", "-C ../other config filter.x.clean {EVIL}"}, files: map[string]string{"other/.gitattributes": "* filter=x\n", "other/n.txt": "n\n"}, rule: "repo-config"},
	{name: "-C through a link to the outside", args: []string{"-C ../lead log", "-C ../lead/.git log", "-C .. -C lead log"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "-C through a link and out", args: []string{"-C ../lead/../victim log"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config"},
	{name: "-C into the working tree of a repository outside", args: []string{"-C ../lead log"}, files: map[string]string{"lead/.git": "gitdir: {OUT}/victim/.git\n"}, rule: "repo-config", race: byReading},
	{name: "--work-tree outside", args: []string{"--work-tree={OUT} checkout -f", "--work-tree {OUT} checkout -f"}, rule: "path.outside"},
	{name: "--work-tree through a link to the outside", args: []string{"--work-tree=../lead checkout -f"}, links: map[string]string{"lead": "{OUT}"}, rule: "repo-config"},
	{name: "a path that counts from a working tree elsewhere", args: []string{"--git-dir=../.git --work-tree=../../t commit --allow-empty -F ../../out/secret.txt", "--git-dir=../.git log -1"}, cwd: "repo/deep",
		files: map[string]string{"repo/deep/x": "", "t/x": ""}, rule: "cwd"},
	{name: "a path that counts from a core.worktree elsewhere", args: []string{"commit --allow-empty -F ../../out/secret.txt", "log -1"}, cwd: "repo/deep", config: "[core]worktree=../../t",
		files: map[string]string{"repo/deep/x": "", "t/x": ""}, rule: "cwd", race: byReading},
	{name: "--paginate", args: []string{"-c core.pager={EVIL} -p log"}, rule: "global-flag", tame: "there is no terminal"},
	{name: "--bare", args: []string{"--bare status"}, rule: "global-flag", tame: "it is refused whatever it would do"},

	// Programs named by flags.
	{name: "fetch --upload-pack", args: []string{"fetch --upload-pack={EVIL} origin"}, rule: "flag.refused"},
	{name: "fetch --upload-pack, abbreviated", args: []string{"fetch --upl={EVIL} origin"}, rule: "flag.unknown"},
	{name: "fetch --upload-pack, value apart", args: []string{"fetch origin --upload-pack {EVIL}"}, rule: "flag.refused"},
	{name: "push --receive-pack", args: []string{"push --receive-pack={EVIL} origin main"}, rule: "flag.refused"},
	{name: "push --exec", args: []string{"push --exec={EVIL} origin main"}, rule: "flag.refused"},
	{name: "ls-remote --exec", args: []string{"ls-remote --exec={EVIL} origin"}, rule: "flag.refused"},
	{name: "pull --upload-pack", args: []string{"pull --upload-pack={EVIL} origin main"}, rule: "flag.refused"},
	{name: "clone -u", args: []string{"clone -u {EVIL} {WS}/remote.git x"}, rule: "flag.refused"},
	{name: "clone -u in a cluster, joined", args: []string{"clone -qu{EVIL} file://{WS}/remote.git x"}, rule: "flag.refused"},
	{name: "clone --upload-pack, abbreviated", args: []string{"clone --upload={EVIL} file://{WS}/remote.git x"}, rule: "flag.unknown"},
	{name: "clone --config", args: []string{"clone -c core.hooksPath={WS}/hooks {WS}/remote.git x"}, files: map[string]string{"hooks/post-checkout": "#!/bin/sh\n{SH}\n"}, rule: "flag.value"},
	{name: "clone --template", args: []string{"clone --template={WS}/t {WS}/remote.git x"}, files: map[string]string{"t/hooks/post-checkout": "#!/bin/sh\n{SH}\n"}, rule: "flag.refused"},
	{name: "rebase --exec", args: []string{"rebase --exec={EVIL} HEAD~1"}, rule: "flag.refused"},
	{name: "rebase -x", args: []string{"rebase -x {EVIL} HEAD~1"}, rule: "flag.refused"},
	{name: "rebase -ix", args: []string{"rebase -ix {EVIL} HEAD~1"}, rule: "flag.refused", tame: "there is no editor"},
	{name: "grep -O", args: []string{"grep -O{EVIL} one"}, rule: "flag.refused"},
	{name: "grep --open-files-in-pager", args: []string{"grep --open-files-in-pager={EVIL} one"}, rule: "flag.refused"},
	{name: "grep --open, abbreviated", args: []string{"grep --open={EVIL} one"}, rule: "flag.unknown"},
	{name: "bisect run", args: []string{"bisect start HEAD HEAD~2", "bisect run {EVIL}"}, rule: "subcommand"},
	{name: "difftool", args: []string{"difftool -y -x {EVIL} HEAD~1"}, rule: "subcommand"},
	{name: "filter-branch", args: []string{"filter-branch -f --msg-filter {EVIL} HEAD"}, rule: "subcommand"},
	{name: "submodule foreach", args: []string{"submodule foreach {EVIL}"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub"}, rule: "subcommand"},
	{name: "archive --exec", args: []string{"archive --remote={WS}/remote.git --exec={EVIL} HEAD"}, rule: "flag.refused"},
	{name: "hook run", args: []string{"hook run pre-commit"}, files: map[string]string{"repo/.git/hooks/pre-commit": "#!/bin/sh\n{SH}\n"}, rule: "subcommand"},
	{name: "for-each-repo", args: []string{"for-each-repo --config=x.y {EVIL}"}, rule: "subcommand", tame: "it runs git only"},
	{name: "remote-ext", args: []string{"remote-ext origin {EVIL}"}, stdin: "connect git-upload-pack\n\n", rule: "subcommand"},
	{name: "a program of the repository as a subcommand", args: []string{"evil"}, files: map[string]string{"bin/git-evil": "#!/bin/sh\n{SH}\n"}, rule: "subcommand", tame: "the folder is not in PATH"},
	{name: "add --patch with a filter for the display", args: []string{"add -p"}, stdin: "n\n", config: "[color]ui=always\n[interactive]diffFilter={EVIL}", files: map[string]string{"repo/a.txt": "changed\n"}, rule: "repo-config", tame: "there is no terminal"},
	{name: "commit --template", args: []string{"commit -e -t {OUT}/secret.txt"}, rule: "path.outside", tame: "git takes no unchanged template"},

	// Transports.
	{name: "ext::", args: []string{"-c protocol.ext.allow=always clone ext::{EVIL} x"}, rule: "global-flag"},
	{name: "ext:: that the repository allows", args: []string{"fetch ext::{EVIL}", "clone ext::{EVIL} x"}, config: "[protocol \"ext\"]allow=always", rule: "remote"},
	{name: "ext:: as a remote", args: []string{"fetch evil", "fetch --all", "push evil main"}, config: "[protocol \"ext\"]allow=always\n[remote \"evil\"]url=ext::{EVIL}\nfetch=+refs/heads/*:refs/remotes/evil/*", rule: "remote"},
	{name: "ext:: by insteadOf", args: []string{"fetch origin"}, config: "[protocol \"ext\"]allow=always\n[url \"ext::{EVIL} \"]insteadOf={WS}", rule: "remote"},
	{name: "ext:: in .git/remotes", args: []string{"fetch old"}, config: "[protocol \"ext\"]allow=always", files: map[string]string{"repo/.git/remotes/old": "URL: ext::{EVIL}\n"}, rule: "remote"},
	{name: "ext:: in .git/branches", args: []string{"fetch old"}, config: "[protocol \"ext\"]allow=always", files: map[string]string{"repo/.git/branches/old": "ext::{EVIL}\n"}, rule: "remote"},
	{name: "ext:: as the remote of a branch", args: []string{"pull"}, config: "[protocol \"ext\"]allow=always\n[branch \"main\"]remote=ext::{EVIL}\nmerge=refs/heads/main", rule: "remote"},
	{name: "ext:: as pushurl", args: []string{"push origin main"}, config: "[protocol \"ext\"]allow=always\n[remote \"origin\"]pushurl=ext::{EVIL}", rule: "remote"},
	{name: "ext:: by a promisor, for an object that is missing", args: []string{"show HEAD:a.txt", "checkout -f"}, config: "[core]repositoryFormatVersion=1\n[extensions]partialClone=evil\n[remote \"evil\"]url=ext::{EVIL}\npromisor=true\n[protocol \"ext\"]allow=always",
		prepare: []string{"!rm\u00a0.git/objects/pack/*"}, rule: "repo-config"},
	{name: "ssh with a flag as the host", args: []string{"clone ssh://-oProxyCommand={EVIL}/x y"}, rule: "remote", tame: "git refuses it since 2.14"},
	{name: "ssh with an encoded flag as the host", args: []string{"ls-remote ssh://%2doProxyCommand={EVIL}/x"}, rule: "remote", tame: "git refuses it since 2.14"},
	{name: "a clone of a folder outside", args: []string{"clone {OUT}/victim x", "-C x log"}, rule: "remote.outside"},
	{name: "a clone of a URL of a folder outside", args: []string{"clone file://{OUT}/victim x", "-C x log"}, rule: "remote.outside"},
	{name: "a clone of an encoded folder outside", args: []string{"clone file://{WS}/%2e%2e/out/victim x", "-C x log"}, rule: "remote"},
	{name: "a clone with dots", args: []string{"clone {WS}/../out/victim x", "-C x log"}, rule: "remote.outside"},
	{name: "a remote outside", args: []string{"fetch v main", "log FETCH_HEAD"}, config: "[remote \"v\"]url={OUT}/victim", rule: "remote.outside"},
	{name: "a remote outside, relative", args: []string{"fetch v main", "log FETCH_HEAD"}, config: "[remote \"v\"]url=../../out/victim", rule: "remote.outside"},
	{name: "a push outside", args: []string{"push {OUT}/victim main:new"}, rule: "remote.outside"},
	{name: "core.gitProxy", args: []string{"fetch git://localhost/x"}, config: "[core]gitProxy={EVIL}", rule: "remote"},

	// Writing and reading outside.
	{name: "diff --output", args: []string{"diff --output={OUT}/new HEAD~1"}, rule: "flag.refused"},
	{name: "log --output", args: []string{"log -p --output={OUT}/new"}, rule: "flag.refused"},
	{name: "log --output, abbreviated", args: []string{"log -p --outp={OUT}/new"}, rule: "flag.abbreviated", tame: "git 2.39 does not abbreviate it"},
	{name: "format-patch -o", args: []string{"format-patch -o {OUT} -1"}, rule: "path.outside"},
	{name: "archive -o", args: []string{"archive -o {OUT}/new.tar HEAD"}, rule: "path.outside"},
	{name: "bundle create", args: []string{"bundle create {OUT}/new HEAD"}, rule: "path.outside"},
	{name: "fast-import --export-marks", args: []string{"fast-import --export-marks={OUT}/new"}, rule: "subcommand"},
	{name: "checkout-index --prefix", args: []string{"checkout-index --prefix={OUT}/ -a"}, rule: "flag.refused"},
	{name: "mailinfo", args: []string{"mailinfo {OUT}/new {OUT}/patch"}, stdin: "From: x\nSubject: y\n\nz\n", rule: "path.outside"},
	{name: "pack-objects", args: []string{"pack-objects {OUT}/new"}, stdin: "HEAD\n", rule: "subcommand", tame: "it wants object names"},
	{name: "init outside", args: []string{"init {OUT}/new"}, rule: "path.outside"},
	{name: "init --separate-git-dir", args: []string{"init --separate-git-dir={OUT}/new x"}, rule: "flag.refused"},
	{name: "init --template of a folder outside", args: []string{"init --template={OUT} x"}, rule: "flag.refused"},
	{name: "clone outside", args: []string{"clone {WS}/remote.git {OUT}/new"}, rule: "path.outside"},
	{name: "clone --separate-git-dir", args: []string{"clone --separate-git-dir={OUT}/new {WS}/remote.git x"}, rule: "flag.refused"},
	{name: "clone --reference", args: []string{"clone --reference={OUT}/victim {WS}/remote.git x", "-C x show {VICTIM}"}, rule: "flag.refused"},
	{name: "worktree add outside", args: []string{"worktree add {OUT}/new"}, rule: "path.outside"},
	{name: "config --file", args: []string{"config --file={OUT}/new a.b c"}, rule: "path.outside"},
	{name: "config -f of a file outside", args: []string{"config -f {OUT}/secret.cfg --list"}, files: map[string]string{"../out/secret.cfg": "[a]b=TOPSECRET\n"}, rule: "path.outside"},
	{name: "config --global", args: []string{"config --global core.fsmonitor {EVIL}", "status"}, rule: "config.host"},
	{name: "config of a variable that runs a program", args: []string{"config core.fsmonitor {EVIL}", "status"}, rule: "config.key"},
	{name: "config of an alias", args: []string{"config alias.x !{EVIL}", "x"}, rule: "config.key"},
	{name: "config of a filter, beside what may be set", args: []string{"config filter.user.clean {EVIL}", "add ."}, files: map[string]string{"repo/.gitattributes": "* filter=user\n", "repo/n.txt": "n\n"}, rule: "config.key"},
	{name: "diff --no-index", args: []string{"diff --no-index /dev/null {OUT}/secret.txt", "diff --no-index a.txt ../../out/secret.txt"}, rule: "flag.refused"},
	{name: "diff of paths outside", args: []string{"diff /dev/null {OUT}/secret.txt"}, rule: "path.outside"},
	{name: "grep --no-index", args: []string{"grep --no-index TOP {OUT}"}, rule: "flag.refused", tame: "git stays in the tree even so"},
	{name: "blame --contents", args: []string{"blame --contents {OUT}/secret.txt a.txt"}, rule: "flag.refused"},
	{name: "blame --ignore-revs-file", args: []string{"blame --ignore-revs-file={OUT}/secret.txt a.txt"}, rule: "path.outside"},
	{name: "commit -F of a file outside", args: []string{"commit --allow-empty -F {OUT}/secret.txt", "log -1"}, rule: "path.outside"},
	{name: "commit -F of a file outside, joined", args: []string{"commit --allow-empty -F../../out/secret.txt", "log -1"}, rule: "path.outside"},
	{name: "tag -F of a file outside", args: []string{"tag -F {OUT}/secret.txt v", "show v"}, rule: "path.outside"},
	{name: "merge -F of a file outside", args: []string{"merge --no-ff -F {OUT}/secret.txt feature", "log -1"}, rule: "path.outside"},
	{name: "notes -F", args: []string{"notes add -F {OUT}/secret.txt", "log -1"}, rule: "path.outside"},
	{name: "add --pathspec-from-file outside", args: []string{"add --pathspec-from-file={OUT}/secret.txt"}, rule: "path.outside"},
	{name: "hash-object of a file outside", args: []string{"hash-object -w {OUT}/secret.txt", "cat-file -p {SECRET}"}, rule: "path.outside"},
	{name: "apply", args: []string{"apply --unsafe-paths --directory=.. {WS}/patch"}, files: map[string]string{"patch": "--- /dev/null\n+++ b/../out/new\n@@ -0,0 +1 @@\n+x\n"}, rule: "flag.refused"},
	{name: "upload-pack of a repository outside", args: []string{"upload-pack --advertise-refs {OUT}/victim"}, rule: "subcommand", tame: "it shows names of branches"},
	{name: "credential fill", args: []string{"-c credential.helper=!{EVIL} credential fill"}, stdin: "protocol=https\nhost=example.com\n\n", rule: "global-flag"},

	// Variables.
	{name: "GIT_SSH_COMMAND", args: []string{"ls-remote ssh://localhost/x"}, env: map[string]string{"GIT_SSH_COMMAND": "{EVIL}"}, rule: "env"},
	{name: "GIT_EXTERNAL_DIFF", args: []string{"diff HEAD~1"}, env: map[string]string{"GIT_EXTERNAL_DIFF": "{EVIL}"}, rule: "env"},
	{name: "GIT_EDITOR", args: []string{"commit --allow-empty"}, env: map[string]string{"GIT_EDITOR": "{EVIL}"}, rule: "editor"},
	{name: "GIT_SEQUENCE_EDITOR", args: []string{"rebase -i HEAD~1"}, env: map[string]string{"GIT_SEQUENCE_EDITOR": "{EVIL}"}, rule: "editor"},
	{name: "GIT_DIR", args: []string{"log"}, env: map[string]string{"GIT_DIR": "{OUT}/victim/.git"}, rule: "path.outside"},
	{name: "GIT_DIR through a link to the outside", args: []string{"log"}, env: map[string]string{"GIT_DIR": "{WS}/lead/.git"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "GIT_DIR of a repository that runs programs", args: []string{"diff HEAD"}, env: map[string]string{"GIT_DIR": "{WS}/other/.git", "GIT_WORK_TREE": "{WS}/repo"}, prepare: []string{"clone -q {WS}/remote.git ../other", "-C ../other config diff.external {EVIL}"}, files: map[string]string{"repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "GIT_WORK_TREE outside", args: []string{"checkout -f"}, env: map[string]string{"GIT_WORK_TREE": "{OUT}"}, rule: "path.outside"},
	{name: "GIT_INDEX_FILE, relative", args: []string{"add ."}, env: map[string]string{"GIT_INDEX_FILE": "../../out/new"}, rule: "env"},
	{name: "GIT_INDEX_FILE beneath a link to the outside", args: []string{"add ."}, env: map[string]string{"GIT_INDEX_FILE": "{WS}/link/new"}, links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "GIT_LITERAL_PATHSPECS for a comparison outside of any repository", args: []string{"diff link/secret.txt x"}, env: map[string]string{"GIT_LITERAL_PATHSPECS": "1"}, cwd: "bare", files: map[string]string{"bare/x": "x\n"}, links: map[string]string{"bare/link": "{OUT}"}, rule: "repository"},
	{name: "a bare repository with commands", args: []string{"diff main~1 main", "log -p -1", "fetch {WS}/repo main", "gc -q"}, cwd: "b.git", prepare: []string{"clone -q --bare {WS}/remote.git ../b.git", "--git-dir=../b.git config core.fsmonitor {EVIL}", "--git-dir=../b.git config diff.external {EVIL}"}, rule: "repo-config"},
	{name: "a bare repository with hooks", args: []string{"branch new main", "update-ref refs/heads/x main", "pack-refs --all", "fetch {WS}/repo main"}, cwd: "b.git", prepare: []string{"clone -q --bare {WS}/remote.git ../b.git"}, files: allHooks("b.git/hooks/")},
	{name: "a bare repository with a working tree outside", args: []string{"checkout -f main", "reset --hard"}, cwd: "b.git", prepare: []string{"clone -q --bare {WS}/remote.git ../b.git", "--git-dir=../b.git config core.bare false", "--git-dir=../b.git config core.worktree {OUT}/tree"}, files: map[string]string{"../out/tree/x": "x\n"}, rule: "repo-config"},
	{name: "a bare repository whose objects are outside", args: []string{"show {VICTIM}"}, cwd: "b.git", prepare: []string{"clone -q --bare {WS}/remote.git ../b.git", "!mv\u00a0../b.git/objects/pack\u00a0../b.git/p;ln\u00a0-s\u00a0{OUT}/victim/.git/objects/pack\u00a0../b.git/objects/pack"}, rule: "repo-config", race: byReading},
	{name: "GIT_TRACE", args: []string{"status"}, env: map[string]string{"GIT_TRACE": "{OUT}/new"}, rule: "env"},
	{name: "GIT_TRACE2_EVENT", args: []string{"status"}, env: map[string]string{"GIT_TRACE2_EVENT": "{OUT}/new"}, rule: "env"},
	{name: "GIT_CONFIG_COUNT", args: []string{"status"}, env: map[string]string{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "{EVIL}"}, rule: "env"},
	{name: "GIT_CONFIG_GLOBAL", args: []string{"status"}, env: map[string]string{"GIT_CONFIG_GLOBAL": "{WS}/c"}, files: map[string]string{"c": "[core]fsmonitor={EVIL}\n"}, rule: "env"},
	{name: "GIT_EXEC_PATH", args: []string{"evil"}, env: map[string]string{"GIT_EXEC_PATH": "{WS}/bin"}, files: map[string]string{"bin/git-evil": "#!/bin/sh\n{SH}\n"}, rule: "env"},
	{name: "GIT_INDEX_FILE", args: []string{"add ."}, env: map[string]string{"GIT_INDEX_FILE": "{OUT}/new"}, rule: "env"},
	{name: "GIT_OBJECT_DIRECTORY", args: []string{"commit --allow-empty -m x"}, env: map[string]string{"GIT_OBJECT_DIRECTORY": "{OUT}/victim/.git/objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": "{WS}/repo/.git/objects"}, rule: "env"},
	{name: "GIT_ALTERNATE_OBJECT_DIRECTORIES", args: []string{"show {VICTIM}"}, env: map[string]string{"GIT_ALTERNATE_OBJECT_DIRECTORIES": "{OUT}/victim/.git/objects"}, rule: "env"},
	{name: "GIT_TEMPLATE_DIR", args: []string{"init x"}, env: map[string]string{"GIT_TEMPLATE_DIR": "{OUT}"}, rule: "env"},
	{name: "PATH", args: []string{"evil"}, env: map[string]string{"PATH": "{WS}/bin:/usr/bin:/bin"}, files: map[string]string{"bin/git-evil": "#!/bin/sh\n{SH}\n"}, rule: "env"},

	// Repositories whose configuration runs programs.
	{name: "core.fsmonitor", args: looking, config: "[core]fsmonitor={EVIL}"},
	{name: "core.fsmonitor, in an include", args: looking, config: "[include]path=more", files: map[string]string{"repo/.git/more": "[core]fsmonitor={EVIL}\n"}},
	{name: "core.fsmonitor, in config.worktree", args: looking, config: "[extensions]worktreeConfig=true", files: map[string]string{"repo/.git/config.worktree": "[core]fsmonitor={EVIL}\n"}},
	{name: "core.fsmonitor, in a bare repository that is tracked as files", args: []string{"status"}, cwd: "repo/inner", rule: "",
		files: map[string]string{"repo/inner/HEAD": "ref: refs/heads/main\n", "repo/inner/config": "[core]repositoryFormatVersion=0\nbare=false\nworktree=..\nfsmonitor={EVIL}\n", "repo/inner/objects/x": "", "repo/inner/refs/x": ""}},
	{name: "hooks", args: wholeDay, files: allHooks("repo/.git/hooks/")},
	{name: "core.hooksPath", args: wholeDay, config: "[core]hooksPath=../hooks", files: allHooks("hooks/")},
	{name: "filter clean", args: wholeDay, config: "[filter \"x\"]clean={EVIL}", files: map[string]string{"repo/.gitattributes": filterAttributes, "repo/n.txt": "n\n"}, rule: "repo-config"},
	{name: "filter clean, in info/attributes and an includeIf", args: wholeDay, config: "[includeIf \"onbranch:main\"]path=more", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/n.txt": "n\n", "repo/.git/more": "[filter \"x\"]clean={EVIL}\n"}, rule: "repo-config"},
	{name: "filter smudge", args: wholeDay, config: "[filter \"x\"]smudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "filter process", args: wholeDay, config: "[filter \"x\"]process={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "filter clean by upper-case section", args: wholeDay, config: "[FILTER \"x\"]CLEAN={EVIL}", files: map[string]string{"repo/.gitattributes": filterAttributes, "repo/n.txt": "n\n"}, rule: "repo-config"},
	{name: "diff.external", args: wholeDay, config: "[diff]external={EVIL}", files: map[string]string{"repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "diff driver", args: wholeDay, config: "[diff \"x\"]command={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "textconv", args: wholeDay, config: "[diff \"x\"]textconv={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "merge driver", args: []string{"merge --no-edit conflict"}, config: "[merge \"x\"]driver={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "merge driver for rebase and cherry-pick", args: []string{"cherry-pick conflict", "rebase conflict"}, config: "[merge \"x\"]driver={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "core.editor", args: []string{"commit --allow-empty", "commit --amend", "rebase -i HEAD~1", "merge --no-ff feature", "revert HEAD", "tag -a v9"}, config: "[core]editor={EVIL}", rule: "editor"},
	{name: "core.editor, for messages that are kept", args: []string{"commit --amend", "rebase -i --autosquash HEAD~1", "merge --no-ff --no-edit feature", "revert HEAD", "notes add -m x", "commit --squash HEAD~1"}, config: "[core]editor={EVIL}"},
	{name: "sequence.editor", args: []string{"rebase -i --autosquash HEAD~1"}, config: "[sequence]editor={EVIL}", rule: "editor"},
	{name: "sequence.editor of a pull", args: []string{"pull {WS}/remote.git feature"}, config: "[sequence]editor={EVIL}\n[pull]rebase=interactive", rule: "editor"},
	{name: "core.pager and pager.*", args: looking, config: "[core]pager={EVIL}\n[pager]log={EVIL}\nstatus={EVIL}\n", tame: "there is no terminal"},
	{name: "core.sshCommand", args: []string{"fetch origin", "ls-remote origin"}, config: "[core]sshCommand={EVIL}\n[remote \"origin\"]url=ssh://127.0.0.1:1/x\n", prepare: []string{"config --unset-all remote.origin.url"}},
	{name: "remote.*.uploadpack", args: network, config: "[remote \"origin\"]uploadpack={EVIL}", rule: "repo-config"},
	{name: "remote.*.uploadpack as a line of shell", args: network, config: "[remote \"origin\"]uploadpack={SH};git-upload-pack", rule: "repo-config"},
	{name: "remote.*.receivepack", args: []string{"push origin main"}, config: "[remote \"origin\"]receivepack={EVIL}", rule: "repo-config"},
	{name: "remote.*.vcs", args: []string{"fetch origin"}, config: "[protocol \"ext\"]allow=always\n[remote \"origin\"]vcs=ext\nurl={EVIL}", prepare: []string{"config --unset-all remote.origin.url"}, rule: "repo-config"},
	{name: "a remote whose name is configuration", args: []string{"fetch --all", "push o=x main"}, config: "[remote \"origin.uploadpack={EVIL}\nx\"]url={WS}/remote.git", rule: "repo-config", tame: "git refuses the line break"},
	{name: "a remote whose name is a variable", args: []string{"fetch origin.uploadpack={EVIL};x", "push origin.receivepack={EVIL};x main", "fetch --all"}, config: "[remote \"origin.uploadpack={EVIL};x\"]url={WS}/remote.git\n[remote \"origin.receivepack={EVIL};x\"]url={WS}/remote.git", rule: "repo-config", tame: "it takes a policy that writes the name into -c"},
	{name: "gpg.program", args: []string{"commit --allow-empty -m x", "tag -m x v9", "log -1"}, config: "[gpg]program={EVIL}\n[commit]gpgSign=true\n[tag]gpgSign=true"},
	{name: "gpg.ssh.program and its key command", args: []string{"commit --allow-empty -m x"}, config: "[gpg]format=ssh\n[gpg \"ssh\"]defaultKeyCommand={EVIL}\nprogram={EVIL}\n[commit]gpgSign=true", rule: "repo-config"},
	{name: "%G in a format", args: []string{"log --format=%G?"}, config: "[gpg]program={EVIL}", prepare: []string{"!git\u00a0cat-file\u00a0commit\u00a0HEAD|sed\u00a0's/^committer.*/&\\ngpgsig\u00a0-----BEGIN\u00a0PGP\u00a0SIGNATURE-----\\n\u00a0x\\n\u00a0-----END\u00a0PGP\u00a0SIGNATURE-----/'|git\u00a0hash-object\u00a0-t\u00a0commit\u00a0-w\u00a0--stdin|xargs\u00a0git\u00a0reset\u00a0-q"}, rule: "flag.value"},
	{name: "%G in a format of the repository", args: []string{"log", "log --pretty=p", "show"}, config: "[gpg]program={EVIL}\n[format]pretty=%G?\n[pretty]p=%G?\n[log]showSignature=true", prepare: []string{"!git\u00a0cat-file\u00a0commit\u00a0HEAD|sed\u00a0's/^committer.*/&\\ngpgsig\u00a0-----BEGIN\u00a0PGP\u00a0SIGNATURE-----\\n\u00a0x\\n\u00a0-----END\u00a0PGP\u00a0SIGNATURE-----/'|git\u00a0hash-object\u00a0-t\u00a0commit\u00a0-w\u00a0--stdin|xargs\u00a0git\u00a0reset\u00a0-q"}},
	{name: "core.alternateRefsCommand", args: []string{"fetch origin", "push origin main"}, config: "[core]alternateRefsCommand={EVIL}", files: map[string]string{"repo/.git/objects/info/alternates": "{WS}/remote.git/objects\n"}, prepare: []string{"commit -q --allow-empty -m y", "push -q origin HEAD:y", "reset -q --hard HEAD~1"}, rule: "repo-config"},
	{name: "trailer command", args: []string{"commit --allow-empty -m x --trailer t=v"}, config: "[trailer \"t\"]cmd={EVIL}", rule: "repo-config"},
	{name: "credential helper", args: []string{"fetch https://127.0.0.1:1/x"}, config: "[credential]helper=!{EVIL}", rule: "repo-config", tame: "nobody asks for a password"},
	{name: "http.proxy and sslVerify", args: []string{"fetch https://127.0.0.1:1/x"}, config: "[http]proxy=http://127.0.0.1:2\nsslVerify=false", rule: "repo-config", tame: "it would only be overheard"},
	{name: "an alias of the repository", args: []string{"x"}, config: "[alias]x=!{EVIL}", rule: "alias"},
	{name: "an alias in the place of a subcommand", args: looking, config: "[alias]status=!{EVIL}\ndiff=!{EVIL}", rule: "repo-config", tame: "git's own come first"},
	{name: "an alias that leads to a program by way of another", args: []string{"x"}, config: "[alias]x=y --all\ny=!{EVIL}", rule: "alias"},
	{name: "an alias with configuration", args: []string{"x"}, config: "[alias]x=-c core.fsmonitor={EVIL} status", rule: "global-flag"},
	{name: "an alias that runs a program by a flag", args: []string{"x"}, config: "[alias]x=ls-remote --upload-pack={EVIL} origin", rule: "flag.refused"},
	{name: "an alias into a repository outside", args: []string{"x"}, config: "[alias]x=--git-dir={OUT}/victim/.git log", rule: "path.outside", tame: "git lets no alias do that"},
	{name: "an alias for a remote that is a link to the outside", args: []string{"x", "log FETCH_HEAD"}, config: "[alias]x=fetch {WS}/lead main", links: map[string]string{"lead": "{OUT}/victim"}, rule: "alias"},
	{name: "help in a viewer of the repository", args: []string{"help commit", "commit --help", "--help commit", "help"}, config: "[help]format=man\n[man]viewer=x\n[man \"x\"]cmd={EVIL}"},
	{name: "tar.*.command", args: []string{"archive --format=tgz HEAD", "archive -o x.tar.gz HEAD", "archive -o x.tgz HEAD"}, config: "[tar \"tgz\"]command={EVIL}\n[tar \"tar.gz\"]command={EVIL}", rule: "repo-config"},
	{name: "tar.*.command of a format of the repository", args: []string{"archive -o x.y HEAD"}, config: "[tar \"y\"]command={EVIL}", rule: "repo-config"},
	{name: "a filter in an archive", args: []string{"archive HEAD"}, config: "[filter \"x\"]smudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "a signature in an archive", args: []string{"archive HEAD"}, config: "[gpg]program={EVIL}", tame: "git verifies none there", prepare: []string{"!echo\u00a0'$Format:%G?$'>a.txt;echo\u00a0'a.txt\u00a0export-subst'>.gitattributes;git\u00a0add\u00a0.;git\u00a0commit\u00a0-q\u00a0-m\u00a0s",
		"!git\u00a0cat-file\u00a0commit\u00a0HEAD|sed\u00a0's/^committer.*/&\\ngpgsig\u00a0-----BEGIN\u00a0PGP\u00a0SIGNATURE-----\\n\u00a0x\\n\u00a0-----END\u00a0PGP\u00a0SIGNATURE-----/'|git\u00a0hash-object\u00a0-t\u00a0commit\u00a0-w\u00a0--stdin|xargs\u00a0git\u00a0reset\u00a0-q"}},
	{name: "a filter of hash-object", args: []string{"hash-object -w a.txt", "hash-object --path=a.txt --stdin"}, config: "[filter \"x\"]clean={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "a filter of apply", args: []string{"apply ../p", "apply --index ../p"}, config: "[filter \"x\"]clean={EVIL}\nsmudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "p": patchOfA}, rule: "repo-config"},
	{name: "a merge driver of apply and am", args: []string{"apply -3 ../p", "am -3 ../m"}, config: "[merge \"x\"]driver={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "p": patchOfA, "m": mailOfA},
		prepare: []string{"!git\u00a0diff\u00a0main~1\u00a0conflict\u00a0-\u00a0a.txt>../p||true", "!git\u00a0format-patch\u00a0-q\u00a0--stdout\u00a0-1\u00a0conflict>../real"}, rule: "repo-config", tame: "the patch applies without a merge"},
	{name: "hooks of am", args: []string{"am ../m"}, files: merged(allHooks("repo/.git/hooks/"), map[string]string{"m": mailOfA})},
	{name: "apply into a folder outside", args: []string{"apply --directory=../../out ../p"}, files: map[string]string{"p": patchOfA}, rule: "flag.value", tame: "git refuses it as well"},
	{name: "apply through a link", args: []string{"apply ../p"}, files: map[string]string{"p": "--- /dev/null\n+++ b/l/new\n@@ -0,0 +1 @@\n+x\n"}, links: map[string]string{"repo/l": "{OUT}"}, tame: "git refuses it as well"},
	{name: "apply --build-fake-ancestor", args: []string{"apply --build-fake-ancestor={OUT}/new ../p"}, files: map[string]string{"p": patchOfA}, rule: "flag.refused", tame: "it wants names of objects"},
	{name: "options of apply in the state of am", args: []string{"am --continue", "am --skip"}, prepare: []string{"!git\u00a0format-patch\u00a0-q\u00a0--stdout\u00a0-1\u00a0conflict>../m;git\u00a0am\u00a0-q\u00a0../m||true",
		"!echo\u00a0\"'--directory=../../out'\u00a0'--unsafe-paths'\">.git/rebase-apply/apply-opt"}, rule: "repo-state", tame: "it takes a further patch"},
	{name: "format.outputDirectory", args: []string{"format-patch -1"}, config: "[format]outputDirectory={OUT}/new", rule: "repo-config"},
	{name: "format.signatureFile", args: []string{"format-patch --stdout -1"}, config: "[format]signatureFile={OUT}/secret.txt", rule: "repo-config", race: byReading},
	{name: "format-patch with programs for differences", args: []string{"format-patch --stdout -1"}, config: "[diff]external={EVIL}\n[diff \"x\"]textconv={EVIL}\ncommand={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config", tame: "git runs none there"},
	{name: "add --patch with an editor", args: []string{"add -p"}, stdin: "e\n", config: "[core]editor={EVIL}", files: map[string]string{"repo/a.txt": "changed\n"}},
	{name: "-p with programs for differences and filters", args: []string{"add -p", "checkout -p", "stash -p", "reset -p HEAD~1", "commit -p -m x"}, stdin: "y\ny\ny\n", config: "[diff]external={EVIL}\n[filter \"x\"]clean={EVIL}\nsmudge={SH};cat\n[diff \"x\"]command={EVIL}",
		files: map[string]string{"repo/a.txt": "changed\n", "repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "-p with hooks", args: []string{"add -p", "commit -p -m x", "checkout -p HEAD~1"}, stdin: "y\ny\ny\n", files: merged(allHooks("repo/.git/hooks/"), map[string]string{"repo/a.txt": "changed\n"})},
	{name: "sparse-checkout with a filter", args: []string{"sparse-checkout disable"}, prepare: []string{"status", "sparse-checkout set --no-cone x"}, config: "[filter \"x\"]smudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "bisect with hooks", args: []string{"bisect start HEAD HEAD~2", "bisect good", "bisect reset"}, files: allHooks("repo/.git/hooks/"), rule: "hook"},
	{name: "bisect with hooks, and core.hooksPath elsewhere", args: []string{"bisect start HEAD HEAD~2", "bisect good", "bisect reset"}, config: "[core]hooksPath=/dev/null", files: allHooks("repo/.git/hooks/"), rule: "hook"},
	{name: "bisect with other hooks", args: []string{"bisect start HEAD HEAD~2", "bisect good", "bisect reset"}, files: except("repo/.git/hooks/reference-transaction", allHooks("repo/.git/hooks/"))},
	{name: "hooks of rarer commands", args: []string{"notes add -m x", "notes remove", "sparse-checkout set --no-cone one.txt", "sparse-checkout disable", "apply --index ../p", "format-patch -1", "archive -o x.tar HEAD", "hash-object -w a.txt", "fsck --lost-found", "reset -q --hard", "submodule init",
		"submodule status", "submodule update --init", "submodule deinit -f --all", "worktree add ../w2", "worktree remove ../w2"}, files: merged(allHooks("repo/.git/hooks/"), map[string]string{"p": patchOfA})},
	{name: "bisect with a filter", args: []string{"bisect start HEAD HEAD~2", "bisect good", "bisect reset"}, config: "[filter \"x\"]smudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "where a bisection began, as a flag", args: []string{"bisect reset"}, files: map[string]string{"repo/.git/BISECT_START": "--pathspec-from-file={OUT}/secret.txt\n"}, rule: "repo-state", race: byReading},
	{name: "bisect visualize", args: []string{"bisect start HEAD HEAD~2", "bisect view"}, rule: "subcommand", tame: "there is no screen"},
	{name: "notes with an editor", args: []string{"notes add", "notes edit"}, config: "[core]editor={EVIL}", rule: "editor"},
	{name: "notes of a misleading name", args: []string{"notes --ref=../../../out/x add -m x"}, rule: "flag.value", tame: "git refuses it as well"},
	{name: "notes shown by a program", args: []string{"notes add -m x", "notes show", "log -1"}, config: "[diff \"x\"]textconv={EVIL}\n[core]pager={EVIL}", files: map[string]string{"repo/.git/info/attributes": "* diff=x\n"}, rule: "repo-config", tame: "notes have no attributes, and there is no terminal"},
	{name: "fsck.skipList", args: []string{"fsck"}, config: "[fsck]skipList={OUT}/secret.txt", rule: "repo-config", race: byReading},
	{name: "strategies of the repository", args: []string{"pull --no-rebase origin feature"}, config: "[pull]twohead=evil\n[branch \"main\"]mergeOptions=--strategy=evil", files: map[string]string{"bin/git-merge-evil": "#!/bin/sh\n{SH}\n"}, rule: "repo-config", tame: "the folder is not in PATH"},
	{name: "submodule update", args: []string{"submodule update"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config submodule.sub.update !{EVIL}", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1"}, rule: "remote"},
	{name: "submodule update that runs a command", args: []string{"submodule update -N", "submodule update --init -N"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config submodule.sub.update !{EVIL}", "config submodule.sub.url https://127.0.0.1:1/x",
		"-C sub config remote.origin.url https://127.0.0.1:1/x", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1"}, rule: "repo-config"},
	{name: "submodule update with hooks", args: []string{"submodule update -N -f"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config submodule.sub.url https://127.0.0.1:1/x",
		"-C sub config remote.origin.url https://127.0.0.1:1/x", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1"}, files: allHooks("repo/.git/modules/sub/hooks/")},
	{name: "submodule update with a filter", args: []string{"submodule update -N -f"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config submodule.sub.url https://127.0.0.1:1/x",
		"-C sub config remote.origin.url https://127.0.0.1:1/x", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1", "-C sub config filter.x.smudge {SH};cat", "!echo\u00a0'*\u00a0filter=x'>.git/modules/sub/info/attributes"}, rule: "repo-config"},
	{name: "submodule update with a helper and a command for ssh", args: []string{"submodule update"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config submodule.sub.url ssh://127.0.0.1:1/x",
		"-C sub config remote.origin.url ssh://127.0.0.1:1/x", "-C sub config core.sshCommand {EVIL}", "!cd\u00a0sub;git\u00a0commit\u00a0-q\u00a0--allow-empty\u00a0-m\u00a0y;cd\u00a0..;git\u00a0add\u00a0sub;git\u00a0commit\u00a0-q\u00a0-m\u00a0y;cd\u00a0sub;git\u00a0reset\u00a0-q\u00a0--hard\u00a0HEAD~1;git\u00a0reflog\u00a0expire\u00a0--expire=all\u00a0--all;git\u00a0prune"}},
	{name: "a submodule whose remote is ext::", args: []string{"submodule update", "-C sub fetch"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "config protocol.ext.allow always", "config submodule.sub.url https://127.0.0.1:1/x",
		"-C sub config protocol.ext.allow always", "-C sub config remote.origin.url ext::{EVIL}", "!cd\u00a0sub;git\u00a0commit\u00a0-q\u00a0--allow-empty\u00a0-m\u00a0y;cd\u00a0..;git\u00a0add\u00a0sub;git\u00a0commit\u00a0-q\u00a0-m\u00a0y;cd\u00a0sub;git\u00a0reset\u00a0-q\u00a0--hard\u00a0HEAD~1;git\u00a0reflog\u00a0expire\u00a0--expire=all\u00a0--all;git\u00a0prune"}, rule: "remote"},
	{name: "a new submodule at ext::", args: []string{"submodule add ext::{EVIL} new", "submodule update --init"}, config: "[protocol \"ext\"]allow=always", rule: "remote", tame: "git clones by the user's own configuration"},
	{name: ".gitmodules that name ext::", args: []string{"submodule update --init", "submodule init", "submodule update"}, config: "[protocol \"ext\"]allow=always", prepare: []string{"update-index --add --cacheinfo 160000,{VICTIM},sub"},
		files: map[string]string{"repo/.gitmodules": "[submodule \"sub\"]\npath=sub\nurl=ext::{EVIL}\n"}, rule: "remote", tame: "git clones by the user's own configuration"},
	{name: "clone --recurse-submodules of .gitmodules that name ext::", args: []string{"clone --recurse-submodules {WS}/remote.git {WS}/again", "-C {WS}/new submodule update --init --recursive"}, prepare: []string{published("[submodule \"sub\"]\npath=sub\nurl=ext::{EVIL}\n"), "clone -q {WS}/remote.git {WS}/new"}, rule: "remote", tame: "git clones by the user's own configuration"},
	{name: "clone --recurse-submodules of .gitmodules that name a flag", args: []string{"clone --recursive {WS}/remote.git {WS}/again", "-C {WS}/new submodule update --init"}, prepare: []string{published("[submodule \"sub\"]\npath=sub\nurl=-u{EVIL}\n"), "clone -q {WS}/remote.git {WS}/new"}, rule: "remote", tame: "git takes no such URL since 2.19.1"},
	{name: "clone --recurse-submodules of a name that leads out", args: []string{"clone --recurse-submodules {WS}/remote.git {WS}/again", "-C {WS}/new submodule update --init", "-C {WS}/new status"}, prepare: []string{published("[submodule \"../../../../out/x\"]\npath=sub\nurl=https://127.0.0.1:1/x\n"), "clone -q {WS}/remote.git {WS}/new"}, tame: "git takes no such name since 2.17.1"},
	{name: "clone --recurse-submodules of .gitmodules with a command", args: []string{"clone --recurse-submodules {WS}/remote.git {WS}/again", "-C {WS}/new submodule update --init -N"}, prepare: []string{published("[submodule \"sub\"]\npath=sub\nurl=https://127.0.0.1:1/x\nupdate=!{EVIL}\n"), "clone -q {WS}/remote.git {WS}/new"}, tame: "git takes no command from there since 2.20.2"},
	{name: "clone --recurse-submodules of a folder outside", args: []string{"clone --recurse-submodules {WS}/remote.git {WS}/again", "-C {WS}/new submodule update --init", "-C {WS}/new/sub log"}, prepare: []string{published("[submodule \"sub\"]\npath=sub\nurl={OUT}/victim\n"), "clone -q {WS}/remote.git {WS}/new"}, rule: "remote.outside", tame: "git clones submodules from folders by the user's own configuration since 2.38.1"},
	{name: "submodule foreach without a submodule", args: []string{"submodule foreach {EVIL}", "submodule foreach --recursive {SH}"}, tame: "there is nowhere to run it"},
	{name: "submodule foreach with a submodule that is not checked out", args: []string{"submodule foreach {EVIL}"}, prepare: []string{"update-index --add --cacheinfo 160000,{VICTIM},sub"}, files: map[string]string{"repo/.gitmodules": "[submodule \"sub\"]\npath=sub\nurl=https://127.0.0.1:1/x\n"}, rule: "subcommand", tame: "there is nowhere to run it"},
	{name: "fsmonitor of a submodule", args: wholeDay, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "-C sub config core.fsmonitor {EVIL}"}},
	{name: "filter of a submodule", args: wholeDay, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "-C sub config filter.x.clean {EVIL}", "!echo\u00a0'*\u00a0filter=x'>.git/modules/sub/info/attributes", "!touch\u00a0-d\u00a02001-01-01\u00a0sub/a.txt"}, rule: "repo-config"},
	{name: "filter of a repository within the repository", args: []string{"status", "add .", "commit -m x"}, prepare: []string{"clone -q {WS}/remote.git sub", "add sub", "commit -q -m sub", "-C sub config filter.x.clean {EVIL}", "!echo\u00a0'*\u00a0filter=x'>sub/.git/info/attributes", "!touch\u00a0-d\u00a02001-01-01\u00a0sub/a.txt"}, confined: true},
	{name: "diff.submodule", args: []string{"diff"}, config: "[diff]submodule=diff", prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1", "-C sub config diff.external {EVIL}"}, rule: "repo-config"},
	{name: "status.submoduleSummary", args: []string{"status"}, config: "[status]submoduleSummary=true", prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "!git\u00a0-C\u00a0sub\u00a0checkout\u00a0-q\u00a0HEAD~1", "-C sub config core.fsmonitor {EVIL}"}},

	// Commands of scripts and editors.
	{name: "differences of plumbing with programs", args: []string{"diff-tree -p HEAD", "diff-files -p", "diff-index -p HEAD", "whatchanged -p -2", "annotate a.txt"}, config: "[diff]external={EVIL}\n[diff \"x\"]textconv={EVIL}\ncommand={EVIL}",
		files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "range-diff with programs for differences", args: []string{"range-diff main~1..main main~1..conflict"}, config: "[diff]external={EVIL}\n[diff \"x\"]textconv={EVIL}\ncommand={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "the working tree by plumbing, with a filter", args: []string{"checkout-index -f -a", "read-tree -m -u HEAD~1", "update-index --add n.txt", "update-index --really-refresh", "stash create"}, config: "[filter \"x\"]clean={EVIL}\nsmudge={SH};cat",
		files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/n.txt": "n\n"}, rule: "repo-config"},
	{name: "plumbing with hooks", args: []string{"update-ref refs/heads/new HEAD", "symbolic-ref HEAD refs/heads/new", "read-tree HEAD", "update-index --refresh", "pack-refs --all", "gc -q", "commit-tree HEAD^{tree} -m x", "stash create", "worktree lock ../w", "merge-tree main conflict", "bundle create ../b HEAD",
		"remote set-head origin main", "write-tree", "checkout-index -f -a"}, files: allHooks("repo/.git/hooks/")},
	{name: "merge-tree with a driver", args: []string{"merge-tree --write-tree main conflict"}, config: "[merge \"x\"]driver={SH}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, prepare: []string{"!echo\u00a0other>a.txt;git\u00a0commit\u00a0-q\u00a0-a\u00a0-m\u00a0other"}, rule: "repo-config"},
	{name: "merge-file of a file outside", args: []string{"merge-file -p a.txt a.txt {OUT}/secret.txt"}, rule: "path.outside"},
	{name: "bundle beneath a link to the outside", args: []string{"bundle create {WS}/link/new HEAD"}, links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "mailinfo beneath a link to the outside", args: []string{"mailinfo {WS}/link/new {WS}/link/patch"}, stdin: "From: x\nSubject: y\n\nz\n", links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "fast-export --export-marks", args: []string{"fast-export --export-marks={OUT}/new HEAD"}, rule: "path.outside"},
	{name: "a trailer command of interpret-trailers", args: []string{"interpret-trailers --trailer t=v a.txt", "interpret-trailers a.txt"}, config: "[trailer \"t\"]cmd={EVIL}", rule: "repo-config"},
	{name: "update-index --fsmonitor", args: []string{"update-index --fsmonitor", "status"}, config: "[core]fsmonitor={EVIL}", rule: "flag.refused"},
	{name: "read-tree --index-output", args: []string{"read-tree --index-output={OUT}/new HEAD"}, rule: "flag.refused"},
	{name: "update-ref of a file of git's", args: []string{"update-ref config HEAD", "update-ref ../x HEAD"}, rule: "operand", tame: "git refuses it as well"},
	{name: "gc with a program that names objects", args: []string{"gc -q"}, config: "[gc]recentObjectsHook={EVIL}", rule: "repo-config", tame: "this git does not know it"},
	{name: "verify-pack of a file outside", args: []string{"verify-pack -v {OUT}/victim/.git/objects/pack/x.idx"}, rule: "path.outside", tame: "it shows names of objects"},
	{name: "config --file of the repository's own", args: []string{"config -f .git/config core.fsmonitor {EVIL}", "status"}, rule: "config.key"},
	{name: "config --file of .gitmodules with a program", args: []string{"config -f .gitmodules submodule.x.update !{EVIL}"}, rule: "config.key", tame: "git submodule takes no command from there"},
	{name: "config of an alias that runs a program, by a second line", args: []string{"config alias.x log\n[core]fsmonitor={EVIL}", "status"}, rule: "", tame: "git quotes the value"},
	{name: "worktree move outside", args: []string{"worktree add -q ../w feature", "worktree move ../w {OUT}/new"}, rule: "path.outside"},
	{name: "commit-tree -F of a file outside", args: []string{"commit-tree HEAD^{tree} -F {OUT}/secret.txt"}, rule: "path.outside", tame: "it shows the name of a commit"},
	{name: "remotes that are asked, with a program on the other side", args: []string{"remote show origin", "remote update", "remote prune origin", "remote set-head origin -a"}, config: "[remote \"origin\"]uploadpack={EVIL}", rule: "repo-config", race: byExec},
	{name: "remotes that are asked, with a line of shell on the other side", args: []string{"remote show origin", "remote update", "remote prune origin", "remote set-head origin -a"}, config: "[remote \"origin\"]uploadpack={SH};git-upload-pack", rule: "repo-config", race: byExec},
	{name: "a remote outside that is asked", args: []string{"remote show v", "remote update v", "log --all"}, config: "[remote \"v\"]url={OUT}/victim\nfetch=+refs/heads/*:refs/v/*", rule: "remote.outside"},
	{name: "submodule set-url to a program", args: []string{"submodule set-url sub ext::{EVIL}", "submodule update"}, config: "[protocol \"ext\"]allow=always", prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub"}, rule: "remote", tame: "the submodule is there already"},
	{name: "a menu with programs for differences and filters", args: []string{"add -i", "commit --interactive -m x", "clean -i"}, stdin: "6\n\n1\n\n5\n1\n\ny\n7\n", config: "[diff]external={EVIL}\n[filter \"x\"]clean={EVIL}\n[diff \"x\"]command={EVIL}",
		files: map[string]string{"repo/a.txt": "changed\n", "repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "a menu with hooks, an editor and a pager", args: []string{"add -i", "commit --interactive -m x"}, stdin: "5\n1\n\ne\n7\n", config: "[core]editor={EVIL}\npager={EVIL}", files: merged(allHooks("repo/.git/hooks/"), map[string]string{"repo/a.txt": "changed\n"})},
	{name: "--paginate with a pager of the repository", args: []string{"--paginate status", "-p log"}, config: "[core]pager={EVIL}\n[pager]status={EVIL}", tame: "there is no terminal"},
	{name: "an editor of the repository for what is edited", args: []string{"commit --allow-empty -e -m x", "branch --edit-description", "tag -e -m x v9", "notes edit", "config -e"}, config: "[core]editor={EVIL}", rule: "flag.refused"},

	// Repositories that lead outside.
	{name: "core.worktree", args: []string{"checkout -f", "reset --hard"}, config: "[core]worktree={OUT}/tree", files: map[string]string{"../out/tree/x": "x\n"}, rule: "repo-config"},
	{name: "core.worktree, relative", args: []string{"checkout -f", "reset --hard"}, config: "[core]worktree=../../../out/tree", files: map[string]string{"../out/tree/x": "x\n"}, rule: "repo-config"},
	{name: ".git that leads outside", args: []string{"log"}, cwd: "lead", files: map[string]string{"lead/.git": "gitdir: {OUT}/victim/.git\n"}, rule: "repo-config"},
	{name: ".git that is a link to the outside", args: []string{"log"}, cwd: "lead", files: map[string]string{"lead/x": ""}, links: map[string]string{"lead/.git": "{OUT}/victim/.git"}, rule: "repo-config"},
	{name: "commondir outside", args: []string{"log main"}, cwd: "lead", files: map[string]string{"lead/.git/HEAD": "ref: refs/heads/main\n", "lead/.git/commondir": "{OUT}/victim/.git\n"}, rule: "repo-config"},
	{name: "alternates outside", args: []string{"show {VICTIM}"}, files: map[string]string{"repo/.git/objects/info/alternates": "{OUT}/victim/.git/objects\n"}, rule: "repo-config", race: byReading},
	{name: "a repository above the root", args: []string{"log"}, cwd: "sub", files: map[string]string{"sub/x": ""}, prepare: []string{"!cp\u00a0-r\u00a0{OUT}/victim/.git\u00a0{WS}/../.git"}},
	{name: "include outside", args: []string{"config --list"}, config: "[include]path={OUT}/secret.cfg", files: map[string]string{"../out/secret.cfg": "[a]b=TOPSECRET\n"}, rule: "repo-config"},
	{name: "blame.ignoreRevsFile outside", args: []string{"blame a.txt"}, config: "[blame]ignoreRevsFile={OUT}/secret.txt", rule: "repo-config", race: byReading},
	{name: "fsck.skipList outside", args: []string{"fetch origin", "pull origin main"}, config: "[fetch]fsckObjects=true\n[fetch \"fsck\"]skipList={OUT}/secret.txt", prepare: []string{"!cd\u00a0{WS};git\u00a0clone\u00a0-q\u00a0remote.git\u00a0other;cd\u00a0other;git\u00a0commit\u00a0-q\u00a0--allow-empty\u00a0-m\u00a0y;git\u00a0push\u00a0-q\u00a0origin\u00a0HEAD:y"}, rule: "repo-config", race: byReading},
	{name: "init.templateDir of the repository", args: []string{"init"}, config: "[init]templateDir={OUT}", tame: "init reads the user's own configuration only"},
	{name: "clone beneath a link to the outside", args: []string{"clone {WS}/remote.git {WS}/link/new"}, links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "init beneath a link to the outside", args: []string{"init {WS}/link/new"}, links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "worktree add beneath a link to the outside", args: []string{"worktree add ../link/new"}, links: map[string]string{"link": "{OUT}"}, confined: true},
	{name: "reflog that is a link to the outside", args: []string{"commit --allow-empty -m x"}, prepare: []string{"!ln\u00a0-sf\u00a0{OUT}/log\u00a0.git/logs/HEAD"}, files: map[string]string{"../out/log": ""}, rule: "repo-config"},
	{name: "message that is a link to the outside", args: []string{"commit --allow-empty --no-edit", "log -1"}, links: map[string]string{"repo/.git/MERGE_MSG": "{OUT}/secret.txt"}, rule: "repo-config", race: byReading},
	{name: "references that are a link to the outside", args: []string{"branch x"}, prepare: []string{"!mv\u00a0.git/refs/heads\u00a0{OUT}/heads;ln\u00a0-s\u00a0{OUT}/heads\u00a0.git/refs/heads"}, rule: "repo-config"},
	{name: "a rebase that was prepared", args: []string{"rebase --continue"}, prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", "!echo\u00a0'exec\u00a0{SH}'>.git/rebase-merge/git-rebase-todo"}, rule: "repo-state"},

	// What was begun, and how it is to go on.
	{name: "a strategy of a prepared rebase", args: []string{"rebase --continue"}, prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", alien,
		"!echo\u00a0pick\u00a0picked>.git/rebase-merge/git-rebase-todo;echo\u00a0x/git>.git/rebase-merge/strategy;echo\u00a0'\u00a0--git-dir={WS}/evil.git'>.git/rebase-merge/strategy_opts"}, rule: "repo-state", race: byExec},
	{name: "a strategy of a prepared cherry-pick", args: []string{"cherry-pick --continue"}, prepare: []string{alien, "!git\u00a0cherry-pick\u00a0conflict\u00a0picked;git\u00a0checkout\u00a0-q\u00a0--theirs\u00a0a.txt;git\u00a0add\u00a0a.txt",
		"!printf\u00a0'[options]\\n\\tstrategy\u00a0=\u00a0x/git\\n\\tstrategy-option\u00a0=\u00a0git-dir={WS}/evil.git\\n'>.git/sequencer/opts"}, rule: "repo-state", race: byExec},
	{name: "an exec line with its short name, behind a tab", args: []string{"rebase --continue", "rebase --skip"}, prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", "!printf\u00a0'\u00a0\\tx\\t{SH}\\n'>.git/rebase-merge/git-rebase-todo"}, rule: "repo-state"},
	{name: "an exec line without a space", args: []string{"rebase --continue"}, prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", "!printf\u00a0'noop\\nexec\\t{SH}\\n'>.git/rebase-merge/git-rebase-todo"}, rule: "repo-state"},
	{name: "signing in a prepared rebase", args: []string{"rebase --continue"}, config: "[gpg]program={EVIL}", prepare: []string{"-c sequence.editor=true rebase -q -i --exec=false HEAD~1", "!echo\u00a0-S>.git/rebase-merge/gpg_sign_opt;echo\u00a0pick\u00a0conflict>.git/rebase-merge/git-rebase-todo;git\u00a0reset\u00a0-q\u00a0--hard\u00a0conflict~1;git\u00a0commit\u00a0-q\u00a0--allow-empty\u00a0-m\u00a0y"}, rule: "repo-state"},
	{name: "a list of conflicts that leads outside", args: []string{"rerere", "merge --no-edit conflict", "status"}, config: "[rerere]enabled=true", prepare: []string{"!printf\u00a0'0123456789012345678901234567890123456789\\t../../out/secret.txt\\0'>.git/MERGE_RR"}, rule: "subcommand", tame: "the file outside has no conflict"},
	{name: "a remote in .git/remotes beside one without a URL", args: []string{"push origin main"}, config: "[remote \"origin\"]pushurl={WS}/remote.git", prepare: []string{"config --unset-all remote.origin.url"}, files: map[string]string{"repo/.git/remotes/origin": "URL: ext::{EVIL}\nPush: +refs/heads/main:refs/heads/main\n"}, rule: "remote", tame: "the protocol is not allowed by default"},
	{name: "a trailer command, without a trailer of its name", args: []string{"commit --allow-empty -m x --trailer other=v"}, config: "[trailer \"t\"]command={EVIL}", rule: "repo-config"},
	{name: "a trailer key that runs a granted program", args: []string{"commit --allow-empty -m x --trailer t={WS}/marker"}, config: "[trailer \"t\"]cmd=git init -q", rule: "repo-config"},
	{name: "alias of a strategy", args: []string{"merge --no-edit feature"}, config: "[branch \"main\"]mergeOptions=--strategy=zz\n[alias]merge-zz=!{EVIL}", rule: "repo-config", tame: "git knows its strategies by the files of its own folder"},
	{name: "pull.twohead with an alias", args: []string{"merge --no-edit conflict"}, config: "[pull]twohead=zz\n[alias]merge-zz=!{EVIL}", rule: "repo-config", tame: "git knows its strategies by the files of its own folder"},
	{name: "merge.default", args: []string{"merge --no-edit conflict"}, config: "[merge]default=zz\n[merge \"zz\"]driver={EVIL}", rule: "repo-config"},
	{name: "a filter that is a granted program", args: []string{"add ."}, config: "[filter \"x\"]clean=git init -q {WS}/marker", files: map[string]string{"repo/.gitattributes": filterAttributes, "repo/n.txt": "n\n"}, rule: "repo-config"},
	{name: "textconv in the differences of a commit", args: []string{"status -v -v", "commit -a -v -m x"}, config: "[diff \"x\"]textconv={EVIL}", files: map[string]string{"repo/.git/info/attributes": filterAttributes, "repo/a.txt": "changed\n"}, rule: "repo-config"},
	{name: "a merge driver that is a line of shell", args: []string{"merge --no-edit conflict", "cherry-pick conflict"}, config: "[merge \"x\"]driver={SH}", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config"},
	{name: "a merge driver in a pull, which has a shell", args: []string{"pull --no-rebase {WS}/remote.git conflict"}, config: "[merge \"x\"]driver={SH}", prepare: []string{"push -q {WS}/remote.git conflict"}, files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config", race: byExec},
	{name: "a filter in a pull, which has a shell", args: []string{"pull --no-rebase {WS}/remote.git feature"}, config: "[filter \"x\"]smudge={SH};cat", files: map[string]string{"repo/.git/info/attributes": filterAttributes}, rule: "repo-config", race: byExec},
	{name: "uploadpack of a remote in fetch --all, which has a shell", args: []string{"fetch --all"}, config: "[remote \"second\"]url={WS}/remote.git\nuploadpack={SH};git-upload-pack", rule: "repo-config", race: byExec},
	{name: "an alternate's command, as a line of shell", args: []string{"fetch origin"}, config: "[core]alternateRefsCommand={SH};:", files: map[string]string{"repo/.git/objects/info/alternates": "{WS}/remote.git/objects\n"}, prepare: []string{"commit -q --allow-empty -m y", "push -q origin HEAD:y", "reset -q --hard HEAD~1"}, rule: "repo-config"},

	// What lies outside, through links and other repositories.
	{name: "packs that are links to the outside", args: []string{"show {VICTIM}"}, prepare: []string{"!for\u00a0f\u00a0in\u00a0{OUT}/victim/.git/objects/pack/*;do\u00a0ln\u00a0-s\u00a0$f\u00a0.git/objects/pack/;done"}, rule: "repo-config", race: byReading},
	{name: "the folder of packs is a link to the outside", args: []string{"show {VICTIM}"}, prepare: []string{"!mv\u00a0.git/objects/pack\u00a0.git/p;ln\u00a0-s\u00a0{OUT}/victim/.git/objects/pack\u00a0.git/objects/pack"}, rule: "repo-config", race: byReading},
	{name: "a folder of objects is a link to the outside", args: []string{"cat-file -p {LOOSE}"}, prepare: []string{"!cd\u00a0{OUT}/victim;echo\u00a0TOPSECRET\u00a0loose>n;id=$(git\u00a0hash-object\u00a0-w\u00a0n);d=$(echo\u00a0$id|cut\u00a0-c1-2);cd\u00a0{WS}/repo;rm\u00a0-rf\u00a0.git/objects/$d;ln\u00a0-s\u00a0{OUT}/victim/.git/objects/$d\u00a0.git/objects/$d"}, rule: "repo-config", race: byReading},
	{name: "objects that are a link to the outside", args: []string{"show {VICTIM}"}, prepare: []string{"!mv\u00a0.git/objects\u00a0.git/o;ln\u00a0-s\u00a0{OUT}/victim/.git/objects\u00a0.git/objects"}, rule: "repo-config", race: byReading},
	{name: "an alternate whose packs are links to the outside", args: []string{"show {VICTIM}"}, files: map[string]string{"repo/.git/objects/info/alternates": "{WS}/pool\n", "pool/x": ""}, links: map[string]string{"pool/pack": "{OUT}/victim/.git/objects/pack"}, rule: "repo-config", race: byReading},
	{name: "a remote that is a link to the outside", args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "a remote whose .git is a link to the outside", args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, files: map[string]string{"lead/x": ""}, links: map[string]string{"lead/.git": "{OUT}/victim/.git"}, rule: "repo-config", race: byReading},
	{name: "a remote that is a file which names the outside", args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, files: map[string]string{"lead/.git": "gitdir: {OUT}/victim/.git\n"}, rule: "repo-config", race: byReading},
	{name: "a remote whose commondir is outside", args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, files: map[string]string{"lead/HEAD": "ref: refs/heads/main\n", "lead/commondir": "{OUT}/victim/.git\n"}, rule: "repo-config", race: byReading},
	{name: "a remote with alternates outside", args: []string{"fetch {WS}/lead main", "log FETCH_HEAD"}, prepare: []string{"init -q --bare -b main {WS}/lead", "!echo\u00a0{OUT}/victim/.git/objects>{WS}/lead/objects/info/alternates;mkdir\u00a0-p\u00a0{WS}/lead/refs/heads;echo\u00a0{VICTIM}>{WS}/lead/refs/heads/main"}, rule: "repo-config", race: byReading},
	{name: "a clone of a link to the outside", args: []string{"clone {WS}/lead x", "-C x log"}, links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "a configured remote that is a link to the outside", args: []string{"fetch v main", "log FETCH_HEAD"}, config: "[remote \"v\"]url={WS}/lead", links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "insteadOf that leads to a link to the outside", args: []string{"fetch v main", "log FETCH_HEAD"}, config: "[remote \"v\"]url={WS}/remote.git\n[url \"{WS}/lead\"]insteadOf={WS}/remote.git", links: map[string]string{"lead": "{OUT}/victim"}, rule: "repo-config", race: byReading},
	{name: "a group of remotes, one of them outside", args: []string{"fetch origin", "log --all"}, config: "[remotes]origin=v w\n[remote \"v\"]url={OUT}/victim\nfetch=+refs/heads/*:refs/v/*\n[remote \"w\"]url={WS}/remote.git", rule: "repo-config", race: byReading},
	{name: "fsck.skipList of the remote", args: []string{"push origin main:new"}, prepare: []string{"commit -q --allow-empty -m y", "--git-dir={WS}/remote.git config receive.fsckObjects true", "--git-dir={WS}/remote.git config receive.fsck.skipList {OUT}/secret.txt"}, rule: "repo-config", race: byReading},
	{name: "filters of the remote", args: []string{"push {WS}/tree HEAD~1:refs/heads/main"}, prepare: []string{"clone -q {WS}/remote.git {WS}/tree", "-C {WS}/tree reset -q --hard HEAD~2", "-C {WS}/tree config receive.denyCurrentBranch updateInstead", "-C {WS}/tree config filter.x.smudge {SH};cat", "!echo\u00a0'*\u00a0filter=x'>{WS}/tree/.git/info/attributes"}, rule: "repo-config"},
	{name: "diff of a link, outside of any repository", args: []string{"diff link/secret.txt x"}, cwd: "bare", files: map[string]string{"bare/x": "x\n"}, links: map[string]string{"bare/link": "{OUT}"}, rule: "repository"},
	{name: "a resolution of conflicts that is a link to the outside", args: []string{"merge --no-edit feature", "log -1"}, config: "[rerere]enabled=true", files: map[string]string{"repo/.git/rr-cache/x/preimage": ""}, links: map[string]string{"repo/.git/rr-cache/x/postimage": "{OUT}/secret.txt"}, rule: "repo-config", tame: "it takes a conflict of that name"},
	{name: "references deep down that are a link to the outside", args: []string{"branch team/x"}, prepare: []string{"!mkdir\u00a0{OUT}/team;ln\u00a0-s\u00a0{OUT}/team\u00a0.git/refs/heads/team"}, rule: "repo-config"},
	{name: "a reflog deep down that is a link to the outside", args: []string{"commit --allow-empty -m x"}, prepare: []string{"!ln\u00a0-sf\u00a0{OUT}/log\u00a0.git/logs/refs/heads/main"}, files: map[string]string{"../out/log": ""}, rule: "repo-config"},
	{name: "sharedindex that is a link to the outside", args: []string{"status"}, links: map[string]string{"repo/.git/sharedindex.x": "{OUT}/secret.txt"}, rule: "repo-config", tame: "the index names none"},
	{name: "a submodule's objects outside", args: []string{"diff --submodule=log", "status"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "!echo\u00a0{OUT}/victim/.git/objects>.git/modules/sub/objects/info/alternates;echo\u00a0{VICTIM}>.git/modules/sub/HEAD"}, rule: "repo-config", race: byReading},
	{name: "textconv of a submodule", args: []string{"diff", "status -v"}, prepare: []string{"-c protocol.file.allow=always submodule --quiet add {WS}/remote.git sub", "commit -q -m sub", "-C sub config diff.x.textconv {EVIL}", "-C sub config diff.external {EVIL}", "!echo\u00a0changed>>sub/a.txt"}, rule: "repo-config", tame: "git shows a submodule's commits only"},

	// The other side of a remote beneath the roots.
	{name: "hooks of the remote", args: []string{"push origin main:new", "fetch origin", "push origin main"}, files: allHooks("remote.git/hooks/")},
	{name: "core.hooksPath of the remote", args: []string{"push origin main:new"}, files: allHooks("hooks/"), prepare: []string{"--git-dir={WS}/remote.git config core.hooksPath {WS}/hooks"}},
	{name: "core.fsmonitor and packObjectsHook of the remote", args: []string{"clone {WS}/remote.git {WS}/new", "fetch origin", "push origin main:new"}, prepare: []string{"--git-dir={WS}/remote.git config core.fsmonitor {EVIL}", "--git-dir={WS}/remote.git config uploadpack.packObjectsHook {EVIL}"}, tame: "git believes the hook only from the user's own configuration", rule: "repo-config"},
	{name: "core.alternateRefsCommand of the remote", args: []string{"push origin main:new"}, prepare: []string{"--git-dir={WS}/remote.git config core.alternateRefsCommand {SH}", "!git\u00a0clone\u00a0-q\u00a0--bare\u00a0{WS}/remote.git\u00a0{WS}/pool.git;echo\u00a0{WS}/pool.git/objects>{WS}/remote.git/objects/info/alternates"}, rule: "repo-config"},
	{name: "a remote that checks out what it gets", args: []string{"push {WS}/tree HEAD~1:refs/heads/main"}, prepare: []string{"clone -q {WS}/remote.git {WS}/tree", "-C {WS}/tree reset -q --hard HEAD~2", "-C {WS}/tree config receive.denyCurrentBranch updateInstead", "-C {WS}/tree config filter.x.smudge {SH};cat", "!echo\u00a0'*\u00a0filter=x'>{WS}/tree/.git/info/attributes"}, rule: "repo-config"},
}

const patchOfA = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n two\n three\n+four\n"

const mailOfA = "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\nFrom: A <a@example.com>\nDate: Mon, 5 Jan 2026 09:00:00 +0000\nSubject: [PATCH] four\n\n---\n" + patchOfA + "-- \n2\n"

func except(name string, files map[string]string) map[string]string {
	delete(files, name)
	return files
}

func merged(a, b map[string]string) map[string]string {
	maps.Copy(a, b)
	return a
}

// allHooks are all hooks of git, each making the markers.
func allHooks(dir string) map[string]string {
	files := make(map[string]string)
	for _, name := range []string{"applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-rebase",
		"post-checkout", "post-merge", "pre-push", "pre-receive", "update", "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc", "post-rewrite",
		"fsmonitor-watchman", "post-index-change", "sendemail-validate"} {
		files[dir+name] = "#!/bin/sh\n{SH}\n"
	}
	return files
}

// published has the remote's main branch hold this .gitmodules, and a submodule in sub.
func published(modules string) string {
	return "!" + strings.ReplaceAll("set -e; printf '%s' '"+modules+"' >.gitmodules; git add .gitmodules; git update-index --add --cacheinfo 160000,{VICTIM},sub; git commit -q -m sub; git push -q origin HEAD:main", " ", "\u00a0")
}

// alien prepares the commit picked, and git-merge-x as a link to the folder of
// git: to merge picked with the strategy x/git and the option
// git-dir=evil.git runs git with the name of a commit as its subcommand, which
// is an alias there.
var alien = "!" + strings.ReplaceAll(`set -e
git init -q --bare {WS}/evil.git
ln -s /usr/bin git-merge-x
here=$(git rev-parse HEAD)
git checkout -q --detach HEAD~1
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	git commit -q --allow-empty -m base$i
	base=$(git rev-parse HEAD)
	case $base in [a-f]*) break ;; esac
done
echo x > picked.txt; git add picked.txt; git commit -q -m picked
git tag picked
git checkout -q --detach $here
git --git-dir={WS}/evil.git config alias.$base "shortlog --output={WS}/marker"`, " ", "\u00a0")
