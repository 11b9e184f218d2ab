package host_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/toold/toold/host/callback"
	"github.com/toold/toold/host/client"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/hosttest"
	"github.com/toold/toold/host/wire"
	"github.com/toold/toold/host/wire/callbacks"
)

// callee is a caller that notes what it is asked to run.
type callee struct {
	mu      sync.Mutex // guards what follows
	asked   []callbacks.Request
	inputs  []string
	ended   int
	program func(*callbacks.Program) // unless nil, runs for each but an editor
}

func (c *callee) run(cb *callbacks.Program) (int, error) {
	c.mu.Lock()
	c.asked = append(c.asked, cb.Request)
	c.mu.Unlock()
	input := ""
	if c.program != nil {
		c.program(cb)
	} else if cb.Kind == callbacks.Hooks || cb.Kind == callbacks.Scripts || cb.Kind == callbacks.Pager {
		b, _ := io.ReadAll(cb.Stdin)
		input = string(b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inputs, c.ended = append(c.inputs, input), c.ended+1
	return 7, nil
}

// kinds are what was asked for, in order.
func (c *callee) kinds() string {
	var list []string
	for _, q := range c.asked {
		list = append(list, strings.TrimSpace(q.Kind+" "+q.Path+strings.Join(q.Args, " ")))
	}
	return strings.Join(list, ", ")
}

// attacker is a tool whose program is what somebody has made of git: native code that
// speaks with the relay of its run as it likes.
type attacker struct {
	*hosttest.Daemon
	t    testing.TB
	hook string
}

const promisedSecret = "sesame-0123456789abcdefg" // of a length that base64 has no rest of

func newAttacker(t testing.TB, most string) *attacker {
	d := hosttest.Start(t, config.Config{ConfineMost: most})
	a := &attacker{d, t, d.Root + "/hooks/pre-commit"}
	secret := filepath.Join(t.TempDir(), "secret")
	for file, text := range map[string]string{
		secret: promisedSecret, a.hook: "#!/bin/sh\ntouch " + d.Root + "/ran\n", d.Root + "/inside/file": "", d.Root + "/outside": "",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(d.Root + "/outside")
	if err := os.Symlink("/etc", d.Root+"/outside"); err != nil {
		t.Fatal(err)
	}
	for name, kinds := range map[string][]string{"attacker": callbacks.Kinds(), "narrow": {"pager"}} {
		d.Tool(t, name, M{
			"binary": "/usr/bin/perl", "mutating": true, "stdin": false, "timeout": 60, "callbacks": kinds,
			"secrets": M{"token": M{"from": "file:" + secret, "env": "TOKEN"}}, "capabilities": M{"exec": []string{"/usr/bin/true"}},
		}, map[string]string{"restricted.wasm": hosttest.Guest(t, policyPkg)})
	}
	return a
}

// asks are the callbacks that the policy of a call names.
func (a *attacker) asks() string {
	b, err := json.Marshal([]M{
		{"kind": "editor", "name": "editor"}, {"kind": "pager", "name": "pager"}, {"kind": "scripts", "name": "scripts"}, {"kind": "hooks", "name": "pre-commit", "path": a.hook},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

// call runs script with the words that follow, for a caller that offers all kinds, and
// returns its output, the standard one first.
func (a *attacker) call(c *callee, script string, words ...string) (string, *wire.Result) {
	a.t.Helper()
	var out, errs strings.Builder
	res, err := client.Stream(a.t.Context(), a.Socket, &wire.Call{
		Tool: "attacker", Cwd: a.Root, Stream: true, Callbacks: callbacks.Kinds(), Args: append([]string{"callbacks", a.asks(), "-e", relayWords + script}, words...),
	}, wire.Local{Stdout: &out, Stderr: &errs, Callback: c.run})
	if err != nil {
		a.t.Fatal(err)
	}
	return out.String() + errs.String(), res
}

// relayWords is what scripts begin with. ask has a relay do what a message says, and
// returns its frames, each as its kind and what it holds.
const relayWords = `use strict; use Socket; $| = 1; $SIG{PIPE} = 'IGNORE'; our ($F, $R) = @ENV{'FOLDER', 'ROOT'};
sub dial { socket(my $s, PF_UNIX, SOCK_STREAM, 0) or return undef; connect($s, pack_sockaddr_un($_[0] // "$F/socket")) or return undef; $s }
sub frame { pack("aN", $_[0], $_[2] // length $_[1]) . $_[1] }
sub put { my ($s, $b) = @_; while (length $b) { my $n = syswrite($s, $b) or return; substr($b, 0, $n, '') } }
sub answer { my $all = ''; while (sysread($_[0], my $b, 65536)) { $all .= $b } my $o = ''; while (length $all >= 5) { my ($k, $n) = unpack("aN", $all); my $p = substr($all, 5, $n); $p = ord $p if $k eq 'x'; $o .= "$k $p\n"; $all = substr($all, 5 + $n) } $o }
sub text { my $x = shift; $x =~ s/([\x00-\x1f"\\])/sprintf "\\u%04x", ord $1/ge; "\"$x\"" }
sub message { my ($name, $args, $cwd, $env) = @_; '{"name":' . text($name) . ',"args":[' . join(',', map { text($_) } @$args) . '],"cwd":' . text($cwd // $R) . ',"env":{' . join(',', map { text($_) . ':' . text($env->{$_}) } sort keys %$env) . '}}' }
sub ask { my $s = dial() or return "no connection: " . ($!+0) . "\n"; put($s, frame('b', $_[0]) . frame('e', '')); answer($s) }
sub try { print "$_[0]: ", join(' ', split /\n/, $_[1]), "\n" }
`

// TestPromisesOfCallbacks attacks what docs/security.md promises of programs of the
// caller: whatever runs as the tool, the caller runs what its policy named, in the form
// that git would have, and nobody else's call has it run anything.
func TestPromisesOfCallbacks(t *testing.T) {
	levels := []string{"", "seccomp"}
	if os.Getenv("TOOLD_TEST_CONFINE") != "" {
		levels = levels[:1]
	}
	loader := `(/.*: refused\n)$`
	if !hosttest.Judged() { // which the daemon warns of
		loader = `/lib64/ld-.*: ran \d+\n`
	}
	for _, most := range levels {
		a := newAttacker(t, most)
		for _, tt := range []struct {
			promise, name, script string
			want                  string // a pattern of what the script says
			asked                 string // what the caller is asked for: "": nothing
			also                  func(*testing.T, *callee)
		}{
			{promise: "which program", name: "one that was not named", script: `try(1, ask(message('pre-push', []))); try(2, ask(message('sequence-editor', ["$R/inside/file"]))); try(3, ask(message('../pre-commit', [])))`,
				want: `^(\d: ! the call may ask for no such program\n){3}$`},
			{promise: "which program", name: "a path, a kind, a name beside the name", script: `my $m = message('pre-commit', []); for my $more ('"path":"/bin/sh"', '"kind":"scripts"', '"name":"scripts"', '"args":["-c","id"]') { (my $x = $m) =~ s/^\{/{$more,/; try(1, ask($x)) }`,
				want: `^(1: ! not the first frame of a shim\n){4}$`},
			{promise: "which program", name: "a second program on a connection", script: `my $s = dial(); put($s, frame('b', message('pager', [])) . frame('i', 'x') . frame('b', message('scripts', ['-c', 'id'])) . frame('e', '')); answer($s); print "over\n"`,
				want: `^over\n$`, asked: "pager"},
			{promise: "which program", name: "a hook whose file is another now", script: `unlink "$R/hooks/pre-commit"; symlink '/bin/sh', "$R/hooks/pre-commit"; try(1, ask(message('pre-commit', ['-c', 'id'])))`,
				want: `^1: x 7\n$`, asked: "hooks " + a.hook + "-c id"},
			{promise: "an editor's one file", name: "flags and other files", script: `my $n = 0; for my $args (['-c', "$R/inside/file"], ["$R/inside/file", "$R/inside/file"], [], ['/etc/passwd'], ["$R/../x"], ["$R/outside/passwd"], ["$R/inside/../../x"], ['/proc/self/cwd/inside/file'], ["$R"]) { try($n++, ask(message('editor', $args))) }`,
				want: `^(\d: ! (an editor is given one file|the file .* is not beneath the roots)\n){9}$`},
			{promise: "an editor's one file", name: "what looks like a command is a path", script: `try(1, ask(message('editor', ['+!touch x']))); try(2, ask(message('editor', ['-c'])))`,
				want: `^1: x 7\n2: x 7\n$`, asked: "editor " + a.Root + "/+!touch x, editor " + a.Root + "/-c"},
			{promise: "an editor's one file", name: "a pager with arguments", script: `try(1, ask(message('pager', ['+!id']))); try(2, ask(message('pager', [''])))`,
				want: `^(\d: ! a pager is given no arguments\n){2}$`},
			{promise: "a folder under the roots", name: "other folders", script: `for my $d ('/', '/etc', "$R/..", "$R/outside", "$R/nothing", "/proc/self/cwd", '.', '') { try(1, ask(message('pre-commit', [], $d))) }`,
				want: `^(1: ! the folder ".*" is not beneath the roots\n){8}$`},
			{promise: "variables of a list", name: "what names programs, or leads out", script: `try(1, ask(message('pre-commit', [], undef, {GIT_SSH_COMMAND => 'x', GIT_EXEC_PATH => $R, GIT_CONFIG_COUNT => 1, LD_PRELOAD => "$R/x", PATH => $R, BASH_ENV => "$R/x", ENV => "$R/x", HOME => $R, GIT_EDITOR => 'vi', GIT_DIR => '/etc', GIT_WORK_TREE => "$R/outside", GIT_INDEX_FILE => "../x", GIT_PREFIX => "$R/outside/x", GIT_OBJECT_DIRECTORY => "/proc/self/root/etc"})))`,
				want: `^1: x 7\n$`, asked: "hooks " + a.hook, also: func(t *testing.T, c *callee) {
					if len(c.asked) == 1 && len(c.asked[0].Env) > 0 {
						t.Errorf("the hook gets %q", c.asked[0].Env)
					}
				}},
			{promise: "variables of a list", name: "npm's own, and the host's", script: `try(1, ask(message('scripts', ['-c', 'x'], undef, {PATH => "/usr/bin:$R/outside:relative:$R/inside", NODE_OPTIONS => "--require $R/x", NODE => "$R/x", npm_execpath => "$R/x", npm_config_userconfig => "$R/x", "npm_package_a=b" => 'x', HOME => $R, BASH_ENV => "$R/x", INIT_CWD => "$R/.."})))`,
				want: `^1: x 7\n$`, asked: "scripts x", also: func(t *testing.T, c *callee) {
					if len(c.asked) == 1 && fmt.Sprint(c.asked[0].Env) != "map[PATH:"+a.Root+"/inside]" {
						t.Errorf("the script gets %q", c.asked[0].Env)
					}
				}},
			{promise: "read strictly", name: "lying lengths", script: `for my $b (frame('b', '', 0xffffffff), frame('b', 'x' x 100, 0x80000000), frame('b', '{}', 1), frame('b', 'x' x 65537), "b\0\0", '', frame('x', "\0"), frame('i', 'x'), frame('b', message('pager', [('x') x 20000])), frame('b', "\xff" . message('pager', [])), frame('b', message('pager', []) . 'x')) { my $s = dial(); put($s, $b); shutdown($s, 1); try(1, answer($s)) }`,
				want: `^(1: (! .*)?\n){11}$`},
			{promise: "read strictly", name: "10,000 frames", script: `my $s = dial(); put($s, frame('b', message('pre-commit', []))); put($s, frame('i', $_ % 2 ? 'x' : '') x 100) for 1 .. 100; put($s, frame('e', '')); try(1, answer($s))`,
				want: `^1: x 7\n$`, asked: "hooks " + a.hook, also: func(t *testing.T, c *callee) {
					if want := strings.Repeat("x", 5000); c.inputs[0] != want {
						t.Errorf("its input has %d bytes", len(c.inputs[0]))
					}
				}},
			{promise: "read strictly", name: "a frame over the limit", script: `my $s = dial(); put($s, frame('b', message('pre-commit', [])) . frame('i', 'x' x 65537) . frame('e', '')); try(1, answer($s))`,
				want: `^1: (! .*)?\n$`, asked: "hooks " + a.hook},
			{promise: "read strictly", name: "connections that say nothing", script: `my @s; for (1 .. 64) { push @s, dial() } print "over\n"`, want: `^over\n$`},
			{promise: "limited", name: "more programs than a call may", script: `my $last; for (1 .. 4096) { $last = ask('{}'); last if $last =~ /^no / } try(1, $last); try(2, ask(message('pager', [])))`,
				want: fmt.Sprintf(`^1: ! the call may ask for no such program\n2: ! the call has had its caller run %d programs`, callback.MaxPrograms)},
			{promise: "secrets are masked", name: "in arguments, variables, scripts and input", script: `use MIME::Base64; my $t = $ENV{TOKEN}; my $b = encode_base64($t, '');
				try(1, ask(message('pre-commit', ["a$t", $b], undef, {GIT_REFLOG_ACTION => "x $t", GIT_AUTHOR_NAME => unpack('H*', $t)}))); try(2, ask(message('scripts', ['-c', "echo $t $b"], undef, {npm_package_x => $t})));
				for my $name ('pager', 'pre-commit') { my $s = dial(); put($s, frame('b', message($name, []))); put($s, frame('i', $_)) for split //, "<$t><$b>"; put($s, frame('e', '')); try(3, answer($s)) }`,
				want: `^1: x 7\n2: x 7\n3: x 7\n3: x 7\n$`, asked: "hooks " + a.hook + "a[secret] [secret], scripts echo [secret] [secret], pager, hooks " + a.hook, also: func(t *testing.T, c *callee) {
					if got := c.inputs[2] + c.inputs[3]; got != strings.Repeat("<[secret]><[secret]>", 2) {
						t.Errorf("the input is %q", got)
					}
				}},
			{promise: "the host executes none", name: "the hook itself, a copy of a shim, a link to it", script: `sub run { my $r = system { $_[0] } @_; print "$_[0]: ", $r == -1 ? "refused" : "ran $r", "\n" } open(my $in, '<', "$F/editor"); local $/; open(my $out, '>', "$R/copy"); print {$out} readline($in); close $out; chmod 0755, "$R/copy"; symlink "$F/editor", "$R/callbacks-x"; link "$F/editor", "$R/hard"; mkdir "$R/callbacks-1"; symlink "$R/hooks/pre-commit", "$R/callbacks-1/editor";
				run("$R/hooks/pre-commit"); run("$R/copy"); run("$R/hard"); run("$R/callbacks-1/editor"); run('/bin/sh', '-c', "touch $R/ran"); run('/lib64/ld-linux-x86-64.so.2', "$R/hooks/pre-commit")`,
				want: `^(/.*: refused\n){5}` + loader},
			{promise: "all that a shim does", name: "by other names and arguments", script: `for my $args (['toold', 'supervise-processes'], ["$F/nothing"], ["$R/callbacks-1/editor"], ['toold-ssh', 'x'], ['']) { print system({ "$F/editor" } @$args) >> 8, "\n" }`,
				want: `^(127\n){5}toold`},
		} {
			t.Run(strings.TrimPrefix(most+" ", " ")+tt.promise+": "+tt.name, func(t *testing.T) {
				a.t = t
				c := &callee{}
				said, res := a.call(c, tt.script)
				if res.Err != nil || !regexp.MustCompile(tt.want).MatchString(said) {
					t.Errorf("%v, exit code %d: %s", res.Err, res.ExitCode, said)
				}
				if got := c.kinds(); got != tt.asked {
					t.Errorf("the caller was asked for %q, not %q", got, tt.asked)
				} else if tt.also != nil {
					tt.also(t, c)
				}
				b, err := json.Marshal(c.asked)
				if seen := said + string(b) + strings.Join(c.inputs, ""); err != nil || strings.Contains(seen, promisedSecret) || strings.Contains(seen, base64.StdEncoding.EncodeToString([]byte(promisedSecret))) {
					t.Errorf("the secret was passed on: %v, %s", err, seen)
				}
				if _, err := os.Lstat(a.Root + "/ran"); err == nil {
					t.Error("a program of the caller's ran on the host")
				}
				os.Remove(a.hook)
				if err := os.WriteFile(a.hook, []byte("#!/bin/sh\ntouch "+a.Root+"/ran\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			})
		}
		a.t = t
		a.refused(t)
		if hosttest.Judged() {
			a.others(t)
		}
		a.outlived(t)
		if left, _ := os.ReadDir(a.State + "/callbacks"); len(left) > 0 {
			t.Errorf("%q: folders were left: %v", most, left)
		}
	}
}

// refused are callbacks that a policy names and must not have: no call begins with them.
func (a *attacker) refused(t *testing.T) {
	for name, tt := range map[string]struct {
		tool, list, want string
		offered          []string
	}{
		"a kind that tool.json does not grant":  {tool: "narrow", list: `[{"kind":"hooks","name":"pre-commit","path":"` + a.hook + `"}]`, want: `"hooks" was not offered`, offered: callbacks.Kinds()},
		"a kind that the caller does not offer": {list: `[{"kind":"scripts","name":"scripts"}]`, want: `"scripts" was not offered`, offered: []string{"pager"}},
		"no offer":                              {list: `[{"kind":"pager","name":"pager"}]`, want: `"pager" was not offered`},
		"a hook that lies elsewhere":            {list: `[{"kind":"hooks","name":"pre-commit","path":"/bin/sh"}]`, want: "not beneath the roots", offered: callbacks.Kinds()},
		"a hook by a detour":                    {list: `[{"kind":"hooks","name":"pre-commit","path":"` + a.Root + `/../x"}]`, want: "not beneath the roots", offered: callbacks.Kinds()},
		"a name that is a path":                 {list: `[{"kind":"hooks","name":"../x","path":"` + a.hook + `"}]`, want: "not a unique, plain name", offered: callbacks.Kinds()},
		"an editor with a path":                 {list: `[{"kind":"editor","name":"editor","path":"` + a.hook + `"}]`, want: "hooks have a path", offered: callbacks.Kinds()},
	} {
		c := &callee{}
		var out strings.Builder
		tool := tt.tool
		if tool == "" {
			tool = "attacker"
		}
		res, err := client.Stream(t.Context(), a.Socket, &wire.Call{Tool: tool, Cwd: a.Root, Stream: true, Callbacks: tt.offered, Args: []string{"callbacks", tt.list, "-e", "print 'ran'"}}, wire.Local{Stdout: &out, Stderr: &out, Callback: c.run})
		if err != nil {
			t.Fatal(err)
		}
		if res.Err == nil || out.String() != "" || len(c.asked) > 0 || !strings.Contains(res.Err.Message+a.Logs(), tt.want) {
			t.Errorf("%s: %+v, %s", name, res, out.String())
		}
	}
}

// others has one run, which has callbacks of its own, go to the relay of another.
func (a *attacker) others(t *testing.T) {
	asked, release := t.TempDir()+"/asked", make(chan struct{})
	if err := syscall.Mkfifo(asked, 0o600); err != nil {
		t.Fatal(err)
	}
	victim := &callee{program: func(cb *callbacks.Program) {
		if cb.Kind == callbacks.Hooks {
			os.WriteFile(asked, []byte("asked\n"), 0)
			<-release
		}
	}}
	over := make(chan string, 1)
	go func() {
		said, _ := a.call(victim, `try(1, ask(message('pre-commit', [])))`)
		over <- said
	}()
	await(t, asked)
	entries, err := os.ReadDir(a.State + "/callbacks")
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	thief := &callee{}
	said, res := a.call(thief, `my $o = $ARGV[0]; symlink "$o/socket", "$R/way"; link "$o/socket", "$R/hard"; symlink $o, "$R/folder"; rename "$o/socket", "$R/moved"; unlink "$o/socket";
		for my $p ("$o/socket", "$R/way", "$R/hard", "$R/folder/socket", "$R/moved", "/proc/self/cwd/way") { print dial($p) ? "connected\n" : "refused\n" }
		symlink "$o/socket", "$F/x"; print -e "$F/x" ? "made\n" : "refused\n"; rename "$F/socket", "$F/y"; print -e "$F/y" ? "moved\n" : "refused\n";
		for my $n ("$o/pre-commit", "$R/folder/pre-commit") { print system({ "$F/pre-commit" } $n, 'x') >> 8, "\n" } print system({ "$o/pre-commit" } "$o/pre-commit") == 0 ? "ran\n" : "refused\n"; try(1, ask(message('pager', [])))`, a.State+"/callbacks/"+entries[0].Name())
	said = regexp.MustCompile(`(?m)^toold.*: .*\n`).ReplaceAllString(said, "")
	if res.Err != nil || said != strings.Repeat("refused\n", 8)+"127\n127\nrefused\n1: x 7\n" || thief.kinds() != "pager" {
		t.Errorf("%v, asked for %q: %s", res.Err, thief.kinds(), said)
	}
	for _, name := range []string{"way", "hard", "folder", "moved"} {
		os.Remove(a.Root + "/" + name)
	}
	close(release)
	if said := <-over; said != "1: x 7\n" || victim.kinds() != "hooks "+a.hook {
		t.Errorf("asked for %q: %s", victim.kinds(), said)
	}
}

// outlived has a tool leave a process that goes on asking: with the call it ends, and
// so does what runs for it.
func (a *attacker) outlived(t *testing.T) {
	ended := make(chan struct{})
	c := &callee{program: func(cb *callbacks.Program) { <-cb.Done; close(ended) }}
	said, res := a.call(c, `pipe(my $r, my $w); if (!fork) { require POSIX; POSIX::setsid(); my $s = dial(); put($s, frame('b', message('scripts', ['-c', 'x']))); syswrite $w, 'x'; close STDOUT; close STDERR; sleep 1 while 1 } sysread $r, my $x, 1; print "over\n"`)
	if res.Err != nil || said != "over\n" {
		t.Errorf("%v: %s", res.Err, said)
	}
	// It may not have come so far; what has begun is over with the call.
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.asked) > 0 {
		<-ended
	}
	if c.ended != len(c.asked) || slices.ContainsFunc(c.asked, func(q callbacks.Request) bool { return q.Kind != callbacks.Scripts }) {
		t.Errorf("%d of %v have ended", c.ended, c.asked)
	}
}

// promisedSSHD is a server that serves until the test ends: that of a parent process
// which has the rights to let somebody log in, or one of this process's own.
func promisedSSHD(t *testing.T) *hosttest.SSHD {
	text := os.Getenv(sshdVar)
	if text == "" {
		return hosttest.NewSSHD(t)
	}
	s := &hosttest.SSHD{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return s
}

const sshdVar = "TOOLD_TEST_SSHD"

// shimWords is what scripts begin with. ask has the daemon's ssh do what args say, and
// returns the exit code, and what is said.
const shimWords = `use strict; use Socket; $| = 1; $SIG{PIPE} = 'IGNORE'; our ($P, $D, $U) = splice @ARGV, 0, 3;
sub dial { socket(my $s, PF_INET, SOCK_STREAM, 0) or return undef; connect($s, sockaddr_in($_[0] // 22, inet_aton('198.19.255.254'))) or return undef; $s }
sub put { my ($s, $b) = @_; while (length $b) { my $n = syswrite($s, $b) or return; substr($b, 0, $n, '') } }
sub text { my $x = shift; $x =~ s/([\x00-\x1f"\\])/sprintf "\\u%04x", ord $1/ge; "\"$x\"" }
sub answer { my $all = ''; while (sysread($_[0], my $b, 65536)) { $all .= $b } my ($o, $x) = ('', 'none'); while (length $all >= 5) { my ($k, $n) = unpack("aN", $all); my $p = substr($all, 5, $n); if ($k eq 'x') { $x = ord $p } else { $o .= $p } $all = substr($all, 5 + $n) } $o =~ s/\n/ /g; "$x $o\n" }
sub raw { my $s = dial() or return "no connection\n"; put($s, $_[0]); shutdown($s, 1); answer($s) }
sub message { my ($args, $protocol) = @_; '{"args":[' . join(',', map { text($_) } @$args) . ']' . (defined $protocol ? ',"protocol":' . text($protocol) : '') . '}' }
sub sized { pack('N', length $_[0]) . $_[0] }
sub ask { raw(sized(message(@_))) }
sub good { my $r = ask(['-o', 'SendEnv=GIT_PROTOCOL', '-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"], 'version=2'); print $r =~ /^(0|128) .*version 2/ ? "good\n" : "bad: $r" }
`

// TestPromisesOfSSH attacks what docs/security.md promises of ssh with a key that the
// daemon holds: no process of the tool has the key, hosts are those that the operator
// knows, and nothing runs there but git's two services.
func TestPromisesOfSSH(t *testing.T) {
	s := promisedSSHD(t)
	if os.Getenv(sshdVar) == "" {
		s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	}
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	parts := secretParts(t, s.Key)
	back := slices.Clone(parts[2]) // backwards, or it would be masked
	slices.Reverse(back)
	levels := []string{"", "seccomp"}
	if os.Getenv("TOOLD_TEST_CONFINE") != "" {
		levels = levels[:1]
	}
	at, target := "localhost:"+s.Port, s.User+"@localhost"
	for _, most := range levels {
		caps := M{"exec": []string{"/usr/bin", "/usr/lib/git-core"}, "network": []string{"localhost", "127.0.0.1", "169.254.169.254"}}
		file := filepath.Join(t.TempDir(), "toold.json") // known_hosts is beside it
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		d := sshToolOf(t, s, config.Config{File: file, ConfineMost: most, LogLevel: "info"}, false, M{"capabilities": caps})
		key := func(host string) M {
			return M{"deploy": M{"from": "file:" + s.Key, "ssh_key": true, "host": host}}
		}
		for name, secrets := range map[string]M{"native": key(at), "elsewhere": key("localhost:1"), "keyless": {}, "signer": {"signer": M{"from": "file:" + s.Key, "ssh_sign": true}}} {
			d.Tool(t, name, M{"binary": "/usr/bin/perl", "mutating": true, "stdin": false, "timeout": 60, "capabilities": caps, "secrets": secrets}, nil)
		}
		for _, tt := range []struct {
			promise, name, tool, script string
			want                        string // a pattern of the output
		}{
			{promise: "only git's services", name: "other commands", script: `for my $c ("touch $D/ran", "git-upload-pack 'x'; touch $D/ran", "git-upload-pack 'x' 'y'", "git-upload-pack x", "git-upload-archive '$D/allow.git'", "git upload-pack '$D/allow.git'", "git-upload-pack --strict 'x'", "git-upload-pack '-x'", "git-upload-pack 'a\nb'", "git-upload-pack ''", "git-upload-pack 'x'\\''", "GIT-UPLOAD-PACK 'x'", '') { print ask(['-p', $P, "$U\@localhost", $c]) }`,
				want: `^(255 toold: read what git asks of ssh: .*\n){13}$`},
			{promise: "only git's services", name: "a path that a shell would run", script: "for my $c (\"git-upload-pack '`touch $D/ran`'\", \"git-receive-pack '\\$(touch $D/ran)'\", \"git-upload-pack 'x'\\\\''; touch $D/ran; '\\\\'''\") { print ask(['-p', $P, \"$U\\@localhost\", $c]) }",
				want: `^([1-9]\d* .*\n){3}$`},
			{promise: "no options, no forwards", name: "of ssh", script: `for my $o (["-oProxyCommand=touch $D/ran"], ['-o', "ProxyCommand=touch $D/ran"], ['-o', 'SendEnv=LD_PRELOAD'], ['-o', 'SendEnv=GIT_PROTOCOL', '-o', 'StrictHostKeyChecking=no'], ['-L', '1:localhost:2'], ['-R', '1:localhost:2'], ['-D', '1'], ['-W', 'localhost:22'], ['-A'], ['-N'], ['-t'], ['-F', "$D/config"], ['-i', "$D/host"], ['-S', 'x'], ['-J', 'x'], ['-E', 'x'], ['--'], ['-p', "+$P"], ['-p', "0$P"], ['-p', "$P -N"], ['-p', 65536 + $P], ['-p', 0]) { print ask([@$o, "$U\@localhost", "git-upload-pack '$D/allow.git'"]) }`,
				want: `^(255 toold: read what git asks of ssh: .*\n){22}$`},
			{promise: "no options, no forwards", name: "in the place of a host or a user", script: `for my $h ("-oProxyCommand=touch $D/ran", "-l\@localhost", "$U\@-x", "$U\@localhost -N", "$U\@localhost\n", "$U\@\[localhost", "$U\@::1%lo", "$U\@local%68ost", "$U;id\@localhost", "$U\x00\@localhost", "$U\@", '@', '', "$U\@" . 'a' x 300) { print ask(['-p', $P, $h, "git-upload-pack '$D/allow.git'"]) }`,
				want: `^(255 toold: read what git asks of ssh: .*\n){14}$`},
			{promise: "no options, no forwards", name: "variables in the protocol", script: `for my $v ('version=2:x', "version=2\nLD_PRELOAD=x", 'version=3', "version=2\x00") { print ask(['-o', 'SendEnv=GIT_PROTOCOL', '-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"], $v) }`,
				want: `^(255 toold: read what git asks of ssh: GIT_PROTOCOL .*\n){4}$`},
			{promise: "hosts that have a key", name: "other names and ports of the same", script: `for my $h (['127.0.0.1', $P], ['::1', $P], ['[::ffff:127.0.0.1]', $P], ['localhost', 22], ['localhost', 1], ['localhost.localdomain', $P], ['169.254.169.254', 80], ['2130706433', $P], ['0x7f000001', $P]) { print ask(['-p', $h->[1], "$U\@$h->[0]", "git-upload-pack '$D/allow.git'"]) } good()`,
				want: `^(255 .*\n){9}good\n`},
			{promise: "hosts that have a key", name: "the key of another tool", tool: "elsewhere", script: `print ask(['-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"]); print raw(sized('{"args":[],"sign":"dHJlZSA="}'))`,
				want: `^255 .*\n255 .*\n(?s:.*)has a key for ssh to localhost:1 only(?s:.*)no key to sign with`},
			{promise: "hosts that have a key", name: "no key at all, and other ports", tool: "keyless", script: `print dial() ? "connected\n" : "refused\n"; print dial(2222) ? "connected\n" : "refused\n"`, want: `^refused\nrefused\n`},
			{promise: "read strictly", name: "lying lengths, and other JSON", script: `my $m = message(['-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"]); for my $b (pack('N', 0xffffffff) . $m, pack('N', (256 << 10) + 1) . $m, pack('N', length($m) + 1) . $m, pack('N', length($m) - 1) . $m, "\0\0", '', pack('N', 0), sized("$m$m"), sized("\xff$m"), sized('[]'), sized('null'), sized($m =~ s/^\{/{"key":"x",/r), sized($m =~ s/^\{/{"args":["x"],/r), sized('{"args":' . '[' x 100000), sized('{"sign":"%%"}')) { print raw($b) } good()`,
				want: `^(255 toold: read what .*\n){15}good\n`},
			{promise: "read strictly", name: "a byte at a time, beside many that say nothing", script: `my @idle = map { dial() } 1 .. 100; my $s = dial(); put($s, $_) for split //, sized(message(['-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"])); shutdown($s, 1); my $r = answer($s); print $r =~ /^128 (.* )?0000/ ? "read\n" : "bad: $r"; good()`,
				want: `^read\ngood\n`},
			{promise: "the key stays", name: "in the daemon's files and processes", script: `my ($known, $back, @files) = @ARGV; my $key = reverse $back; my $h = "$ENV{HOME}/x"; sub seen { print "it is in $_[0]\n" if index($_[1], $key) >= 0 }
				for my $f (@files) { link $f, $h; rename $f, "$h.y"; symlink $f, "$h.z"; for my $n ($f, "/proc/self/root$f", "/proc/1/root$f", $h, "$h.y", "$h.z") { if (open(my $in, '<', $n)) { print "$n is open\n" } unlink $h, "$h.y", "$h.z" } }
				for my $n (glob('/proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/fd/*')) { next unless -f $n && $n !~ m{/$$/(environ|cmdline)}; open(my $in, '<', $n) or next; read $in, my $b, 1 << 20; seen($n, $b) }
				for my $p (grep { $_ != $$ } map { m{(\d+)} } glob('/proc/[0-9]*')) { print "memory of $p is open\n" if open(my $in, '<', "/proc/$p/mem") } seen('the environment', join "\n", %ENV); good()`,
				want: `^good\n$`},
			{promise: "host keys are checked", name: "the daemon's list, and one of its own", script: `my ($known) = @ARGV; my $done = 0; for my $f ($known, "/proc/self/root$known", "/proc/1/root$known") { $done++ if open(my $o, '>>', $f); $done++ if open(my $i, '<', $f); $done++ if truncate $f, 0; $done++ if chmod 0666, $f; $done++ if utime 0, 0, $f; $done++ if rename $f, "$f.x"; $done++ if unlink $f; $done++ if rename "$ENV{HOME}/tmp", $f; $done++ if link $f, "$ENV{HOME}/known" }
				print "done: $done\n"; good()`,
				want: `^done: 0\ngood\n`},
			{promise: "signatures of commits and tags", name: "anything else", tool: "signer", script: `use MIME::Base64; for my $o ('', 'hello', "tree x\n", 'tree ' . 'a' x 40, "SSHSIG\0\0\0\3git", "\0\0\0\x20" . 'x' x 32 . "\x32" . "root", 'tree ' . 'A' x 40 . "\n", 'tree ' . 'a' x 40 . "\n" . 'x' x (128 << 10)) { print raw(sized('{"args":[],"sign":"' . encode_base64($o, '') . '"}')) } print ask(['-p', $P, "$U\@localhost", "git-upload-pack '$D/allow.git'"]);
				my $r = raw(sized('{"args":["-Y","sign","-n","file"],"sign":"' . encode_base64('tree ' . 'a' x 40 . "\n", '') . '"}')); my ($b) = $r =~ /^0 -----BEGIN SSH SIGNATURE----- (.*) -----END/; print decode_base64($b) =~ /^SSHSIG.*\x00\x00\x00\x03git\x00{7}\x06sha512/s ? "git's\n" : "bad: $r"`,
				want: `^(255 \n|255 toold: .*\n){9}git's\n`},
			{promise: "signatures of commits and tags", name: "more than a call may", tool: "signer", script: `use MIME::Base64; my $m = sized('{"args":[],"sign":"' . encode_base64('tree ' . 'a' x 40 . "\n", '') . '"}'); my $n = 0; for (1 .. 1010) { $n++ if raw($m) =~ /^0 / } print "$n\n"`,
				want: `^1000\n`},
		} {
			t.Run(strings.TrimPrefix(most+" ", " ")+tt.promise+": "+tt.name, func(t *testing.T) {
				if tt.tool == "" {
					tt.tool = "native"
				}
				args := []string{"-e", shimWords + tt.script, s.Port, s.Dir, s.User, d.KnownHosts(), string(back), s.Key, d.Config.File, d.State + "/host.key", d.State + "/admin.sock"}
				a := ask(t, d.Socket, M{"tool": tt.tool, "cwd": d.Root, "args": args})
				if a.ExitCode != 0 || !regexp.MustCompile(tt.want).MatchString(a.Stdout+a.Stderr) {
					t.Errorf("%s", a.raw)
				}
				if holds([]byte(a.Stdout+a.Stderr), parts[:3]) {
					t.Error("the tool has the key")
				}
			})
		}
		// What git is told of ssh counts as little.
		git := func(args ...string) *answer {
			t.Helper()
			return ask(t, d.Socket, M{"tool": "git", "cwd": d.Root, "args": args})
		}
		touch := "touch " + d.Root + "/ran"
		git("init", "-q", "repo")
		for _, line := range [][]string{{"core.sshCommand", touch + " #"}, {"core.gitProxy", touch}, {"ssh.variant", "simple"}, {"remote.origin.url", s.URL("allow.git")}, {"remote.origin.uploadpack", touch + "; git-upload-pack"}} {
			git(append([]string{"-C", "repo", "config"}, line...)...)
		}
		for _, args := range [][]string{
			{"-c", "core.sshCommand=" + touch, "ls-remote", s.URL("allow.git")}, {"-C", "repo", "fetch", "origin"}, {"ls-remote", "--upload-pack=" + touch, s.URL("allow.git")},
			{"ls-remote", "ssh://-oProxyCommand=" + strings.ReplaceAll(touch, " ", "%20") + "/x"}, {"ls-remote", "-oProxyCommand=" + touch + ":x"}, {"ls-remote", "ssh://" + target + ":" + s.Port + "/-x"},
			{"-c", "url.ssh://-oProxyCommand=x/.insteadOf=" + s.URL(""), "ls-remote", s.URL("allow.git")},
			{"-c", "ssh.variant=putty", "-c", "core.sshCommand=x", "ls-remote", "ssh://" + target + ":" + s.Port + s.Dir + "/nothing.git"},
		} {
			a := git(args...)
			if _, err := os.Lstat(d.Root + "/ran"); err == nil || a.ExitCode == 0 && strings.Contains(string(a.raw), "uploadpack") {
				t.Errorf("git %q: %v, %s", args, err, a.raw)
				os.Remove(d.Root + "/ran")
			}
		}
		// A list of the tool's own, in its HOME, is nobody's.
		if err := os.WriteFile(d.KnownHosts(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		a := ask(t, d.Socket, M{"tool": "native", "cwd": d.Root, "args": []string{"-e", shimWords + `mkdir "$ENV{HOME}/.ssh"; for my $f ("$ENV{HOME}/.ssh/known_hosts", 'known_hosts') { open(my $o, '>', $f) or die $!; print $o $ARGV[0] } open(my $o, '>', "$ENV{HOME}/.ssh/config"); print $o "Host *\n StrictHostKeyChecking no\n"; close $o; good()`, s.Port, s.Dir, s.User, s.Known}})
		if !strings.Contains(a.Stdout, "the key of "+at+" is not known") {
			t.Errorf("%s", a.raw)
		}
		if _, err := os.Lstat(s.Dir + "/ran"); err == nil {
			t.Error("a command ran at the server")
		}
	}
}

// TestUnprivilegedSSH is TestPromisesOfSSH of a daemon without any privilege, with a
// server to which root can log in.
func TestUnprivilegedSSH(t *testing.T) {
	if !hosttest.Judged() {
		t.Skip("connections are not judged here")
	}
	if os.Getuid() != 0 {
		t.Skip("an ordinary user runs this as it is")
	}
	s := hosttest.NewSSHD(t)
	s.Git(t, "init", "-q", "--bare", "-b", "main", "allow.git")
	text, err := os.ReadFile(s.Key)
	if err != nil {
		t.Fatal(err)
	}
	shared := *s
	dir, err := os.MkdirTemp("", "toold-key")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	shared.Key = dir + "/key"
	if err := errors.Join(os.WriteFile(shared.Key, text, 0o600), os.Chown(shared.Key, 1, 1), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(shared)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(sshdVar, string(b))
	hosttest.Unprivileged(t, "^TestPromisesOfSSH$", nil, nil)
	if _, err := os.Lstat(s.Dir + "/ran"); err == nil {
		t.Error("a command ran at the server")
	}
}
