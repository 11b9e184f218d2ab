package disk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/tools"
)

func writeProgram(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	sh := confine.Interpreter{Path: "/bin/sh"}
	env := confine.Interpreter{Path: "/usr/bin/env"}
	file := func(name, text string) string { return writeProgram(t, dir+"/"+name, text) }
	other := file("other", "#!/bin/sh")
	for _, tt := range []struct {
		file string
		want []confine.Interpreter
		says string
	}{
		{file: "/bin/true"},
		{file: file("plain", "#!/bin/sh\n"), want: []confine.Interpreter{sh}},
		{file: file("no-newline", "#!/bin/sh"), want: []confine.Interpreter{sh}},
		{file: file("blanks", "#! \t /bin/sh \t -e  -x \n"), want: []confine.Interpreter{sh}},
		{file: file("script-of-script", "#!"+other+" arg\n"), want: []confine.Interpreter{{Path: other}, sh}},
		{file: file("env", "#!/usr/bin/env sh\n"), want: []confine.Interpreter{env, {Path: "/usr/bin/sh", Args: []string{dir + "/env"}}}},
		{file: file("env-s", "#!/usr/bin/env -S sh -e  -x\n"), want: []confine.Interpreter{env, {Path: "/usr/bin/sh", Args: []string{"-e", "-x", dir + "/env-s"}}}},
		{file: file("env-split", "#!/usr/bin/env --split-string=sh -e\n"), want: []confine.Interpreter{env, {Path: "/usr/bin/sh", Args: []string{"-e", dir + "/env-split"}}}},
		{file: file("env-path", "#!/usr/bin/env /bin/sh\n"), want: []confine.Interpreter{env, {Path: "/bin/sh", Args: []string{dir + "/env-path"}}}},
		{file: file("env-script", "#!/usr/bin/env "+other+"\n"), want: []confine.Interpreter{env, {Path: other, Args: []string{dir + "/env-script"}}, sh}},
		{file: file("env-of-env", "#!"+dir+"/env x\n"), want: []confine.Interpreter{{Path: dir + "/env"}, env, {Path: "/usr/bin/sh", Args: []string{dir + "/env", "x", dir + "/env-of-env"}}}},
		{file: file("env-alone", "#!/usr/bin/env\n"), says: "without a program"},
		{file: file("env-i", "#!/usr/bin/env -i\n"), says: "does not follow"},
		{file: file("env-s-i", "#!/usr/bin/env -S -i sh\n"), says: "does not follow"},
		{file: file("env-s-quote", "#!/usr/bin/env -S 'sh'\n"), says: "does not follow"},
		{file: file("env-s-empty", "#!/usr/bin/env -S\n"), says: "does not follow"},
		{file: file("env-variable", "#!/usr/bin/env A=b\n"), says: "does not follow"},
		{file: file("env-relative", "#!/usr/bin/env ./sh\n"), says: "not in " + tools.BinaryPath},
		{file: file("empty", ""), says: "neither a program"},
		{file: file("text", "echo"), says: "neither a program"},
		{file: file("nothing", "#!\n"), says: "whole path"},
		{file: file("zero", "#!/bin/sh\x00\n"), says: "whole path"},
		{file: file("long", "#!/bin/sh "+strings.Repeat("x", 300)), says: "256 bytes"},
		{file: file("gone", "#!/nowhere/x\n"), says: "install it"},
		{file: file("folder", "#!/usr/bin\n"), says: "install it"},
	} {
		p := FindProgram(tt.file, tools.BinaryPath)
		says := ""
		if p.Err != nil {
			says = p.Err.Error()
		}
		equal := func(a, b confine.Interpreter) bool {
			return a.Path == b.Path && slices.Equal(a.Args, b.Args) && (a.Args == nil) == (b.Args == nil)
		}
		if tt.says == "" && !slices.EqualFunc(p.Interpreters, tt.want, equal) || (says == "") != (tt.says == "") || !strings.Contains(says, tt.says) {
			t.Errorf("%s: %+v, %q, want %+v, %q", tt.file, p.Interpreters, says, tt.want, tt.says)
		}
		if p.Changed() {
			t.Errorf("%s: it is changed at once", tt.file)
		}
	}
	// env finds programs where environment says.
	if err := os.Mkdir(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	own := file("bin/sh", "#!/bin/sh\n")
	p := FindProgram(dir+"/env", "relative::"+dir+"/bin:/usr/bin")
	if p.Err != nil || p.Interpreters[1].Path != own {
		t.Errorf("%+v, %v", p.Interpreters, p.Err)
	}
}

// Every part of a script, and every link on the way to one, is looked at.
func TestExposedScript(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root, bin := dir+"/root", dir+"/bin"
	for _, d := range []string{root, bin, bin + "/folder"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		root + "/sh": "/bin/sh", bin + "/sh": root + "/sh", root + "/out": "../bin/folder", bin + "/in": "../root",
	} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	writeProgram(t, bin+"/folder/sh", "#!/bin/sh")
	for _, tt := range []struct{ file, want string }{
		{writeProgram(t, bin+"/safe", "#!/bin/sh"), ""},
		{writeProgram(t, root+"/script", "#!/bin/sh"), root + "/script"},
		{bin + "/in/script", bin + "/in/script"},
		{root + "/out/sh", root + "/out/sh"},
		{bin + "/in/out/sh", bin + "/in/out/sh"},
		{writeProgram(t, bin+"/a", "#!"+root+"/sh"), root + "/sh"},
		{writeProgram(t, bin+"/b", "#!"+bin+"/sh"), bin + "/sh"},
		{writeProgram(t, bin+"/c", "#!/usr/bin/env "+bin+"/sh"), bin + "/sh"},
	} {
		p := FindProgram(tt.file, tools.BinaryPath)
		if p.Err != nil {
			t.Fatal(p.Err)
		}
		if got, _ := p.exposed([]string{"/nowhere", root}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.file, got, tt.want)
		}
	}
}

func FuzzFirstLine(f *testing.F) {
	for _, line := range []string{"/bin/sh", " /usr/bin/env  node ", "/usr/bin/env -S node --flag", "/usr/bin/env -S", "/bin/sh\r", "sh", "/a\x00b", "/usr/bin/env --split-string=a b"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "\n") {
			return
		}
		interpreter, arg, err := parseFirstLine(line)
		if err != nil {
			return
		}
		if !filepath.IsAbs(interpreter) || strings.ContainsAny(interpreter, " \t\x00") || arg != strings.Trim(arg, " \t") {
			t.Fatalf("%q: %q, %q", line, interpreter, arg)
		}
		if !strings.Contains(line, interpreter) || !strings.Contains(line, arg) {
			t.Fatalf("%q: %q, %q are not of it", line, interpreter, arg)
		}
		words, err := parseEnv([]string{arg, "/script"})
		if err != nil {
			return
		}
		if len(words) < 2 || words[0] == "" || words[0][0] == '-' || strings.ContainsAny(words[0], "= \t") || words[len(words)-1] != "/script" {
			t.Fatalf("%q: %q", line, words)
		}
	})
}
