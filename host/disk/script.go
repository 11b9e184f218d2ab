package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/toold/toold/host/beneath"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/inode"
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/tools"
)

// Program is an executable of the host, or a script with its interpreters, as it was
// found when a tool was loaded. After Guard it is not changed.
type Program struct {
	// name is the program in tool.json, searchPath the PATH of env.
	name, searchPath string
	// File is the absolute path, or empty if there is no such program.
	File string
	// Interpreters are what runs File if it is a script, in the order in which they
	// are started.
	Interpreters []confine.Interpreter
	// parts are the script and its interpreters; empty if File is not a script.
	parts []part
	// stamp is of File.
	stamp Stamp
	// Digest is the sha256 over the parts, in hex.
	Digest string
	// Missing reports that File, or an interpreter, does not exist.
	Missing bool
	// Err is why the program cannot be started, a verb phrase that follows File.
	Err error
}

// part is a script or an interpreter.
type part struct {
	path  string
	stamp Stamp
}

// Limits of Linux: the length of a first line, and how many interpreters may be
// scripts themselves.
const (
	maxFirstLine    = 256
	maxInterpreters = 5
)

// FindProgram finds a program of a definition. searchPath is the PATH of env.
func FindProgram(name, searchPath string) *Program {
	p := &Program{name: name, searchPath: searchPath}
	file, ok := LookBinary(name)
	if !ok {
		p.Missing = true
		return p
	}
	p.File = file
	h := sha256.New()
	if p.Err = p.findInterpreters(searchPath, h); len(p.Interpreters) > 0 || p.Err != nil {
		p.Digest = hex.EncodeToString(h.Sum(nil))
	}
	return p
}

// findInterpreters follows the first line of a script as the kernel does, and env if
// the line names it. It writes what it finds to h.
func (p *Program) findInterpreters(searchPath string, h hash.Hash) error {
	p.stamp = stampOf(p.File)
	// argv is the beginning of file's arguments, up to those of the call.
	file, argv := p.File, []string{p.File}
	for depth := 0; ; depth++ {
		line, script, err := firstLine(file)
		if err != nil || depth == 0 && !script {
			return err
		}
		p.parts = append(p.parts, part{file, stampOf(file)})
		if err := addFile(h, file); err != nil {
			return fmt.Errorf("cannot be read: %w; make it readable for the user that runs toold", err)
		}
		switch {
		case depth > maxInterpreters:
			return fmt.Errorf("is run by more than %d interpreters, one after the other, and the system starts no more; name the last one in its first line", maxInterpreters)
		case script:
			interpreter, arg, err := parseFirstLine(line)
			if err != nil {
				return fmt.Errorf("%w in the first line of %s", err, file)
			}
			if !Executable(interpreter) {
				p.Missing = true
				return fmt.Errorf("is run by %s, which is not on this host; install it, or name another in the first line of %s", interpreter, file)
			}
			p.Interpreters = append(p.Interpreters, confine.Interpreter{Path: interpreter})
			next := []string{interpreter}
			if arg != "" {
				next = append(next, arg)
			}
			argv = append(append(next, file), argv[1:]...)
			file = interpreter
		case filepath.Base(file) == "env":
			words, err := parseEnv(argv[1:])
			if err != nil {
				return err
			}
			found := lookPath(words[0], searchPath)
			if found == "" {
				p.Missing = true
				return fmt.Errorf("is run by %s, which is not in %s; install it, or name another in its first line", words[0], searchPath)
			}
			p.Interpreters = append(p.Interpreters, confine.Interpreter{Path: found, Args: words[1:]})
			file, argv = found, append([]string{found}, words[1:]...)
		default:
			return nil
		}
	}
}

// firstLine returns the first line of a script without #!, and whether file is a
// script. A file that is neither a script nor a program is an error.
func firstLine(file string) (line string, script bool, err error) {
	f, err := regular.Open(file)
	if err != nil {
		return "", false, nil // executable but not readable, so not a script
	}
	defer f.Close()
	head := make([]byte, maxFirstLine)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return "", false, fmt.Errorf("cannot be read: %s; check the file", reason(err))
	}
	head = head[:n]
	rest, script := bytes.CutPrefix(head, []byte("#!"))
	if !script {
		if runtime.GOOS == "linux" && !bytes.HasPrefix(head, []byte("\x7fELF")) {
			return "", false, errors.New(`is neither a program of this system nor a script; begin a script with a line that names its interpreter, such as "#!/bin/sh"`)
		}
		return "", false, nil
	}
	text, _, whole := bytes.Cut(rest, []byte("\n"))
	if !whole && n == maxFirstLine {
		return "", true, fmt.Errorf("has a first line of more than %d bytes, of which the system reads no more; make it shorter", maxFirstLine)
	}
	return string(text), true, nil
}

// parseFirstLine splits a line as the kernel does: into the interpreter and a single
// argument.
func parseFirstLine(line string) (interpreter, arg string, err error) {
	const blank = " \t"
	if strings.HasSuffix(line, "\r") {
		return "", "", errors.New("ends lines as Windows does, which is part of the interpreter's name to this system; convert it (dos2unix)")
	}
	interpreter, arg = strings.Trim(line, blank), ""
	if i := strings.IndexAny(interpreter, blank); i >= 0 {
		interpreter, arg = interpreter[:i], strings.Trim(interpreter[i:], blank)
	}
	if !filepath.IsAbs(interpreter) || strings.ContainsRune(line, 0) {
		return "", "", fmt.Errorf("names the interpreter %q, which is not an absolute path; write the whole path", interpreter)
	}
	return interpreter, arg, nil
}

// parseEnv returns the program that env executes and its arguments, given the
// arguments of env.
func parseEnv(args []string) ([]string, error) {
	const instead = `; write "#!/usr/bin/env PROGRAM", "#!/usr/bin/env -S PROGRAM ARGUMENTS" or the interpreter's whole path`
	if len(args) < 2 {
		return nil, errors.New("names env without a program in its first line" + instead)
	}
	text, split := strings.CutPrefix(args[0], "-S")
	if !split {
		text, split = strings.CutPrefix(args[0], "--split-string=")
	}
	words := []string{text}
	if split {
		// Quoting, escapes and variables are not supported.
		if words = strings.Fields(text); strings.ContainsAny(text, "\\\"'$#") {
			words = nil
		}
	}
	if len(words) == 0 || words[0] == "" || words[0][0] == '-' || strings.ContainsAny(words[0], "= \t") {
		return nil, fmt.Errorf("gives env %q in its first line, which toold does not follow%s", args[0], instead)
	}
	return append(words, args[1:]...), nil
}

// lookPath finds a program as env does. Relative folders of searchPath are skipped,
// since they depend on the working folder of the call.
func lookPath(name, searchPath string) string {
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) && Executable(name) {
			return name
		}
		return ""
	}
	for _, dir := range filepath.SplitList(searchPath) {
		if file := filepath.Join(dir, name); filepath.IsAbs(dir) && Executable(file) {
			return file
		}
	}
	return ""
}

// addFile adds the name and the hash of file to h.
func addFile(h hash.Hash, file string) error {
	f, err := regular.Open(file)
	if err != nil {
		// Executable but not readable: only the name counts.
		fmt.Fprintf(h, "%q\n", file)
		return nil
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return errors.New(reason(err))
	}
	fmt.Fprintf(h, "%q %x\n", file, sum.Sum(nil))
	return nil
}

// stampOf returns the stamp of a file of the host.
func stampOf(file string) Stamp {
	fi, err := os.Stat(file)
	if err != nil {
		return Stamp{Fault: absent}
	}
	s := Stamp{Mode: fi.Mode(), size: fi.Size(), modified: fi.ModTime().UnixNano()}
	of, _ := inode.Of(fi)
	s.dev, s.ino, s.changed = of.Dev, of.Ino, of.Changed.UnixNano()
	return s
}

// Changed reports whether p is out of date: a missing program exists now, a part of a
// script was replaced, or the program has become a script.
func (p *Program) Changed() bool {
	if len(p.parts) > 0 {
		if slices.ContainsFunc(p.parts, func(f part) bool { return stampOf(f.path) != f.stamp }) {
			return true
		}
		return p.Missing && !FindProgram(p.name, p.searchPath).Missing
	}
	file, ok := LookBinary(p.name)
	if p.File == "" {
		return ok
	}
	if !ok || stampOf(file) == p.stamp && file == p.File {
		return false
	}
	_, script, err := firstLine(file)
	return script || (err != nil) != (p.Err != nil)
}

// Script reports whether p is a script.
func (p *Program) Script() bool { return len(p.parts) > 0 }

// Guard sets Err if a part of the script p could be replaced by a call, since it lies
// beneath one of roots, or by a user other than its owner, unless allowWritable is set.
func (p *Program) Guard(roots []string, allowWritable bool) {
	if p.Err != nil {
		return
	}
	if file, root := p.exposed(roots); file != "" {
		p.Err = fmt.Errorf("is a script, and %s lies beneath the root %s, where a call could replace it; move it out of the roots", file, root)
		return
	}
	for _, part := range p.parts {
		if !allowWritable && WritableByOthers(part.path, part.stamp.Mode) {
			p.Err = fmt.Errorf(`is a script, and %s can be written by others than its owner (mode %04o); run chmod go-w on it, or say "allow_writable_tools": true in toold.json`, part.path, part.stamp.Mode.Perm())
			return
		}
	}
}

// exposed returns a part of a script that a call could replace, and the root that it
// is in: the file, or a link in its path, lies beneath the root.
func (p *Program) exposed(roots []string) (file, root string) {
	paths := []string{}
	for _, part := range p.parts {
		paths = append(paths, part.path)
	}
	for _, file := range paths {
		for _, way := range ways(file) {
			for _, root := range roots {
				if beneath.Has(root, way) {
					return file, root
				}
			}
		}
	}
	return "", ""
}

// ways returns file, each link that is followed to open it, and the file that it leads
// to.
func ways(file string) []string {
	list := []string{file}
	left := strings.Split(file, "/")
	at := "/"
	for links := 0; len(left) > 0 && links < 40; {
		next := filepath.Join(at, left[0])
		left = left[1:]
		target, err := os.Readlink(next)
		if err != nil {
			at = next
			continue
		}
		links++
		list = append(list, next)
		if filepath.IsAbs(target) {
			at = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return append(list, at)
}

// LookBinary resolves the binary of a definition. ok reports whether it exists and is
// executable.
func LookBinary(name string) (file string, ok bool) {
	if path.IsAbs(name) {
		return name, Executable(name)
	}
	for _, dir := range filepath.SplitList(tools.BinaryPath) {
		if file := filepath.Join(dir, name); Executable(file) {
			return file, true
		}
	}
	return "", false
}

// Executable reports whether file is a regular file that someone may execute.
func Executable(file string) bool {
	fi, err := os.Stat(file)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}
