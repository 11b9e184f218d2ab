package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/confine"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/tools"
)

// sum is a digest of named fields, each with its length, so that no two lists of
// fields have the same bytes.
type sum struct{ hash.Hash }

func (s sum) field(name string, values ...string) {
	fmt.Fprintf(s, "%d:%s%d;", len(name), name, len(values))
	for _, v := range values {
		fmt.Fprintf(s, "%d:", len(v))
		io.WriteString(s, v)
	}
}

// digest returns the digest of everything that determines what d runs: who calls in which session, which version of
// the tool under which policies, in which folder, with which input.
func digest(d *call.Decided) (string, error) {
	s := sum{sha256.New()}
	t := d.Tool
	s.field("call", "1", d.Call.Tool, t.Name, t.Version, t.HandlerDigest)
	s.field("policies", slices.Concat(t.PolicyFiles, t.PolicyDigests)...)
	program, err := programOf(t)
	if err != nil {
		return "", err
	}
	s.field("program", program)
	if d.Discovered != nil {
		binding, err := json.Marshal(d.Discovered.Binding)
		if err != nil {
			return "", err
		}
		s.field("discovered", d.Discovered.Tool.Schema, string(binding), strconv.FormatBool(d.Discovered.Mutating))
	}
	s.field("caller", d.Caller.ID, d.Caller.Owner(), strconv.FormatUint(uint64(d.UID), 10), d.Effective.Fingerprint(), d.Session, d.Socket)
	// The folder of callbacks differs in each call. No argument contains a zero byte, so none can be mistaken for it.
	same := func(v string) string {
		if d.Callbacks.Offered == nil {
			return v
		}
		return strings.ReplaceAll(v, d.Callbacks.Offered.Folder, "\x00callbacks")
	}
	for _, c := range d.Callbacks.Allowed {
		s.field("callback", c.Kind, c.Name, c.Path)
	}
	args := make([]string, len(d.Args))
	for i, a := range d.Args {
		args[i] = same(a)
	}
	s.field("args", args...)
	s.field("has args", strconv.FormatBool(d.Args != nil))
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		s.field("env", name, same(d.Env[name]))
	}
	s.field("payload", same(string(d.Payload)))
	s.field("stdin", string(d.Input.Bytes))
	s.field("cwd", d.Cwd, d.Folder)
	s.field("roots", d.Roots...)
	s.field("shell", strconv.FormatBool(d.Shell.Allowed), strconv.FormatBool(d.Shell.Lines != nil))
	s.field("lines", d.Shell.Lines...)
	s.field("class", strconv.FormatBool(d.Class.Mutating), strconv.FormatBool(d.Class.Idempotent), d.Timeout.String())
	if d.Ask == nil { // a call of a batch that needs no approval by itself
		return hex.EncodeToString(s.Sum(nil)), nil
	}
	s.field("ask", d.Ask.Rule, d.Ask.Text, strconv.FormatBool(d.Ask.Self), d.Ask.TTL.String())
	s.field("by", d.Ask.By...)
	return hex.EncodeToString(s.Sum(nil)), nil
}

// programOf returns a text that identifies the binary of t, and changes when it is replaced or written to.
func programOf(t *tools.Tool) (string, error) {
	if t.Kind != tools.Binary {
		return "", nil
	}
	info, err := os.Stat(t.Binary)
	if err != nil {
		return "", fault.Errorf(fault.ToolNotInstalled, "look at the binary of %s: %w", t.Name, err)
	}
	f, err := regular.Open(t.Binary)
	if err != nil { // which may be executed, and not be read
		return fmt.Sprint(t.Binary, info.Size(), info.ModTime().UnixNano()), nil
	}
	defer f.Close()
	object, err := confine.ObjectOf(f)
	return fmt.Sprint(t.Binary, info.Size(), info.ModTime().UnixNano(), object), err
}
