package gitwire

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const (
	zeros = "0000000000000000000000000000000000000000"
	ones  = "1111111111111111111111111111111111111111"
	twos  = "2222222222222222222222222222222222222222"
)

// lines are pkt-lines; "0000" is a flush.
func lines(list ...string) string {
	var b []byte
	for _, l := range list {
		if l == "0000" {
			b = append(b, l...)
		} else {
			b = appendLine(b, l)
		}
	}
	return string(b)
}

const caps = "\x00 report-status-v2 side-band-64k object-format=sha1 agent=git/2.47.3"

var goodPushes = []string{
	"0000",
	lines(zeros+" "+ones+" refs/heads/main"+caps, "0000"),
	lines(ones+" "+zeros+" refs/heads/main"+caps, ones+" "+twos+" refs/tags/v1", "0000"),
	lines("shallow "+ones, "shallow "+twos+"\n", ones+" "+twos+" refs/heads/a/b"+caps, "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 atomic push-options quiet", "0000", "ci.skip", "topic=x y", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00", "0000"),
	lines(strings.Repeat("1", 64)+" "+strings.Repeat("2", 64)+" refs/heads/é\x00 object-format=sha256", "0000"),
}

var badPushes = []string{
	"", "0", "000", "00", "0001", "0002", "0003", "0004", "0005", "fff1", "ffff" + strings.Repeat("x", 70000), "000g", "00A5", "+005", "0x05",
	lines(ones + " " + twos + " refs/heads/main" + caps),                        // no flush
	lines(ones+" "+twos+" refs/heads/main", "0000"),                             // no capabilities
	lines(ones+" "+twos+" refs/heads/main"+caps, ones+" "+twos+" refs/heads/x"), // cut off
	lines(ones+" "+twos+" refs/heads/main"+caps, ones+" "+twos+" refs/heads/x\x00 atomic", "0000"),
	lines(ones+" "+twos+" refs/heads/main"+caps, ones+" "+twos+" refs/heads/main", "0000"),
	lines(ones+" "+twos+" refs/heads/main"+caps, "shallow "+ones, "0000"),
	lines(ones+" "+twos+" refs/heads/main"+caps+"\n", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 side-band-64k\x00 atomic", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 push-cert=nonce", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 unheard-of", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 atomic atomic", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 atomic  quiet", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 object-format=sha256", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 object-format=md5", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 object-format=sha1 object-format=sha256", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 push-options", "0000"),
	lines(ones+" "+twos+" refs/heads/main\x00 push-options", "0000", "a\nb", "0000"),
	lines("push-cert\x00 "+"report-status\n", "certificate version 0.1\n", "push-cert-end\n", "0000"),
	lines(ones+" "+twos+" refs/heads/main"+caps, "push-cert\x00", "0000"),
	lines("shallow "+ones, "0000"), lines("shallow x", "0000"), lines("shallow "+ones+"\n\n", "0000"), lines("shallow "+ones+" "+twos, "0000"),
	lines(zeros+" "+zeros+" refs/heads/main"+caps, "0000"),
	lines(strings.ToUpper("a"+ones[1:])+" "+twos+" refs/heads/main"+caps, "0000"),
	lines(ones[1:]+" "+twos+" refs/heads/main"+caps, "0000"),
	lines(ones+"  "+twos+" refs/heads/main"+caps, "0000"),
	lines(ones+"\t"+twos+" refs/heads/main"+caps, "0000"),
	lines(ones+" "+strings.Repeat("2", 64)+" refs/heads/main"+caps, "0000"),
	"0000" + "", // replaced below
}

func init() {
	badPushes = badPushes[:len(badPushes)-1]
	for _, name := range []string{"", "main", "HEAD", "refs/", "refs//x", "refs/heads/", "refs/heads/.x", "refs/heads/x.lock", "refs/heads/x.lock/y", "refs/heads/a..b", "refs/heads/a b", "refs/heads/a^b", "refs/heads/a:b",
		"refs/heads/a?b", "refs/heads/a*", "refs/heads/a[", `refs/heads/a\b`, "refs/heads/a@{b", "refs/heads/a.", "refs/heads/a\x7f", "refs/heads/a\x01", "refs/heads/a\n", "refs/heads/\xff", "refs/heads/" + strings.Repeat("x", 2000), "/refs/heads/x", "Refs/heads/x"} {
		badPushes = append(badPushes, lines(ones+" "+twos+" "+name+caps, "0000"))
	}
}

func TestReadPush(t *testing.T) {
	for _, text := range goodPushes {
		r := strings.NewReader(text + "PACKrest")
		p, err := ReadPush(r)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if rest, _ := io.ReadAll(r); string(rest) != "PACKrest" {
			t.Errorf("%q: what is left is %q", text, rest)
		}
		again, err := ReadPush(bytes.NewReader(p.Head()))
		if err != nil || !bytes.Equal(again.Head(), p.Head()) {
			t.Errorf("%q is sent on as %q: %v", text, p.Head(), err)
		}
	}
	for _, text := range badPushes {
		if p, err := ReadPush(strings.NewReader(text)); err == nil {
			t.Errorf("%.200q is read as %+v", text, p)
		}
	}
	p, err := ReadPush(strings.NewReader(goodPushes[2]))
	if err != nil || len(p.Refs) != 2 || p.Refs[0] != (Ref{"refs/heads/main", ones, zeros}) || !p.Refs[0].Deleted() || p.Refs[0].Created() || !p.HasPack() {
		t.Errorf("%+v, %v", p, err)
	}
	if p, _ = ReadPush(strings.NewReader(lines(ones+" "+zeros+" refs/heads/main"+caps, "0000"))); p.HasPack() {
		t.Error("a deletion has a pack")
	}
	if p, _ = ReadPush(strings.NewReader(goodPushes[4])); strings.Join(p.Options, "|") != "ci.skip|topic=x y" || strings.Join(p.Capabilities, "|") != "atomic|push-options|quiet" {
		t.Errorf("%+v", p)
	}
	for pad, want := range map[int]string{900: "it has over 1048576 bytes", 10: "over 4096 references"} {
		many := []byte(lines(ones + " " + twos + " refs/heads/first" + caps))
		for i := range 5000 {
			many = appendLine(many, fmt.Sprintf("%s %s refs/heads/%d-%s", ones, twos, i, strings.Repeat("x", pad)))
		}
		if _, err := ReadPush(bytes.NewReader(append(many, "0000"...))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the bound %q: %v", want, err)
		}
	}
	if _, err := ReadPush(strings.NewReader(lines("push-cert\x00 report-status\n", "0000"))); err == nil || !strings.Contains(err.Error(), "push without --signed") {
		t.Error(err)
	}
}

// FuzzPktLine: what is read is what is sent on, and nothing behind it is touched.
func FuzzPktLine(f *testing.F) {
	for _, text := range append(goodPushes, badPushes...) {
		if len(text) < 4096 {
			f.Add([]byte(text))
			f.Add([]byte(text + "PACK"))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		p, err := ReadPush(r)
		if err != nil {
			if p != nil {
				t.Errorf("%q: both %+v and %v", b, p, err)
			}
			return
		}
		head := b[:len(b)-r.Len()]
		sent := p.Head()
		again, err := ReadPush(bytes.NewReader(sent))
		if err != nil || !bytes.Equal(again.Head(), sent) {
			t.Fatalf("%q is sent on as %q: %v", head, sent, err)
		}
		// Apart from line ends of shallow lines and the space before the
		// capabilities, it is the same, to the byte.
		normal := func(b []byte) string {
			text := ""
			for r := bytes.NewReader(b); r.Len() > 0; {
				line, err := readLine(r)
				if err == errFlush {
					line = "\x00flush"
				} else if strings.HasPrefix(line, "shallow ") {
					line = strings.TrimSuffix(line, "\n")
				}
				if command, caps, ok := strings.Cut(line, "\x00"); ok {
					line = command + "\x00" + strings.Trim(caps, " ")
				}
				text += line + "\n\n"
			}
			return text
		}
		if normal(head) != normal(sent) {
			t.Errorf("%q is sent on as %q", head, sent)
		}
		for _, ref := range p.Refs {
			if !isRef(ref.Name) || !isID(ref.Old) || !isID(ref.New) || len(ref.Old) != len(ref.New) {
				t.Errorf("%q: %+v", b, ref)
			}
		}
	})
}

func TestReadAdvertised(t *testing.T) {
	text := lines("version 1\n", ones+" refs/heads/main\x00report-status delete-refs\n", twos+" refs/tags/v1\n", twos+" .have\n", "shallow "+ones+"\n", "0000")
	var copied bytes.Buffer
	r := strings.NewReader(text + "rest")
	has, err := ReadAdvertised(r, &copied)
	if err != nil || len(has) != 2 || has["refs/heads/main"] != ones || has["refs/tags/v1"] != twos || copied.String() != text || r.Len() != 4 {
		t.Errorf("%v, %v, %q", has, err, copied.String())
	}
	if has, err := ReadAdvertised(strings.NewReader(lines(zeros+" capabilities^{}\x00report-status\n", "0000")), io.Discard); err != nil || len(has) != 0 {
		t.Errorf("%v, %v", has, err)
	}
	for _, bad := range []string{"", lines(ones + " refs/heads/main"), lines("hello\n", "0000"), "welcome to my server", lines("ERR no\n")} {
		if has, err := ReadAdvertised(strings.NewReader(bad), io.Discard); err == nil {
			t.Errorf("%q is read as %v", bad, has)
		}
	}
	has = Advertised{"refs/heads/main": ones}
	for _, tt := range []struct {
		ref Ref
		ok  bool
	}{
		{Ref{"refs/heads/main", ones, twos}, true}, {Ref{"refs/heads/main", ones, zeros}, true}, {Ref{"refs/heads/new", zeros, twos}, true},
		{Ref{"refs/heads/main", zeros, twos}, false}, {Ref{"refs/heads/main", twos, ones}, false}, {Ref{"refs/heads/new", ones, twos}, false}, {Ref{"refs/heads/new", ones, zeros}, false},
	} {
		if err := (&Push{Refs: []Ref{tt.ref}}).Check(has); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.ref, err)
		}
	}
}

func TestDecode(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write([]byte(goodPushes[1]))
	w.Close()
	r, err := Decode(&z, "gzip")
	if err != nil {
		t.Fatal(err)
	}
	if p, err := ReadPush(r); err != nil || len(p.Refs) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, encoding := range []string{"deflate", "br", "gzip, gzip", "zstd"} {
		if _, err := Decode(&z, encoding); err == nil {
			t.Errorf("%s is taken", encoding)
		}
	}
	for escaped, want := range map[string]string{"/a/b.git/git-receive-pack": "/a/b.git", "/a/git-receive%2dpack?x": "/a", "//a/./%67it-receive-pack": "/a", "/a/x/../git-receive-pack/": "/a", "/a/git-upload-pack": "", "/a/info/refs?service=git-receive-pack": ""} {
		if got, ok := PushPath(escaped); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s, %v", escaped, got, ok)
		}
	}
}

var badExecs = [][]string{
	{}, {"host"}, {"host", "ls"}, {"host", "git-upload-pack"}, {"host", "git-upload-pack /x"}, {"host", "git-upload-pack '/x' '/y'"}, {"host", "git-upload-pack '/x'; id"}, {"host", "git-upload-pack '/x''"},
	{"host", "git-upload-pack  '/x'"}, {"host", "git-upload-pack '-x'"}, {"host", "git-upload-pack ''"}, {"host", "git-upload-pack '/x\n'"}, {"host", "git-upload-archive '/x'"}, {"host", "git upload-pack '/x'"},
	{"host", "git-receive-pack", "'/x'"}, {"-oProxyCommand=x", "host", "git-upload-pack '/x'"}, {"-o", "ProxyCommand=x", "host", "git-upload-pack '/x'"}, {"-L", "1:h:2", "host", "git-upload-pack '/x'"},
	{"-p", "0", "host", "git-upload-pack '/x'"}, {"-p", "022", "host", "git-upload-pack '/x'"}, {"-p", "70000", "host", "git-upload-pack '/x'"}, {"-p"}, {"-N", "host"}, {"-G", "host"}, {"-W", "h:1", "host"},
	{"--", "host", "git-upload-pack '/x'"}, {"ho st", "git-upload-pack '/x'"}, {"", "git-upload-pack '/x'"}, {"@host", "git-upload-pack '/x'"}, {"-x@host", "git-upload-pack '/x'"}, {"a@-h", "git-upload-pack '/x'"}, {"fe80::1%eth0", "git-upload-pack '/x'"},
	{"a\x00b@host", "git-upload-pack '/x'"}, {"host", "git-upload-pack '/x\\''"}, {"host", "git-upload-pack '/x'\\''"}, {"host", "git-upload-pack '/x'\\\"'y'"},
}

func TestParseExec(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want Exec
		url  string
	}{
		{[]string{"git@GitHub.com", "git-upload-pack 'a/b.git'"}, Exec{"git", "github.com", 22, UploadPack, "a/b.git", ""}, "ssh://git@github.com/a/b.git"},
		{[]string{"-o", "SendEnv=GIT_PROTOCOL", "-p", "2222", "git@h", `git-receive-pack '/it'\''s'\!'/x'`}, Exec{"git", "h", 2222, ReceivePack, "/it's!/x", "version=2"}, "ssh://git@h:2222/it's!/x"},
		{[]string{"::1", "git-receive-pack '~u/x'"}, Exec{"", "::1", 22, ReceivePack, "~u/x", ""}, "ssh://[::1]/~u/x"},
	} {
		got, err := ParseExec(tt.args, "version=2")
		if err != nil || *got != tt.want || got.URL() != tt.url || got.Command() != tt.args[len(tt.args)-1] {
			t.Errorf("%q: %+v, %v", tt.args, got, err)
		}
	}
	for _, args := range badExecs {
		if got, err := ParseExec(args, ""); err == nil {
			t.Errorf("%q is read as %+v", args, got)
		}
	}
	if _, err := ParseExec([]string{"-o", "SendEnv=GIT_PROTOCOL", "h", "git-upload-pack '/x'"}, "version=2:evil"); err == nil {
		t.Error("any GIT_PROTOCOL is taken")
	}
}

// FuzzExec: what the server is asked to run is one of two programs with one word, as a
// shell reads it.
func FuzzExec(f *testing.F) {
	for _, args := range append(badExecs, []string{"-p", "22", "git@host", `git-receive-pack '/it'\''s'\!'/x'`}, []string{"-o", "SendEnv=GIT_PROTOCOL", "h", "git-upload-pack 'x'"}) {
		f.Add(strings.Join(args, "\n"), "version=2")
	}
	f.Fuzz(func(t *testing.T, text, protocol string) {
		e, err := ParseExec(strings.Split(text, "\n"), protocol)
		if err != nil {
			return
		}
		if strings.ContainsAny(e.Host+e.User, " \t\r\n\x00'\"@") || e.Port < 1 || e.Port > 65535 || e.Path[0] == '-' {
			t.Errorf("%q: %+v", text, e)
		}
		again, err := ParseExec([]string{e.Host, e.Command()}, "")
		if err != nil || again.Path != e.Path || again.Service != e.Service {
			t.Errorf("%q: %+v, %v", text, again, err)
		}
	})
}

// TestShellAgrees has a shell read what is asked of a server.
func TestShellAgrees(t *testing.T) {
	for _, path := range []string{"/a b", "it's", "!x!", "$(id)", "a;b|c&d", `\`, "'", "''!''", "`id`", "*"} {
		e := Exec{Service: UploadPack, Path: path}
		out, err := exec.Command("/bin/sh", "-c", `git-upload-pack() { printf "%s|" "$#" "$1"; }; `+e.Command()).CombinedOutput()
		if err != nil { // a shell whose functions have no "-"
			out, err = exec.Command("/bin/sh", "-c", "printf '%s|' 1 "+strings.TrimPrefix(e.Command(), UploadPack+" ")).CombinedOutput()
		}
		if err != nil || string(out) != "1|"+path+"|" {
			t.Errorf("%s: %s, %v", e.Command(), out, err)
		}
	}
}
