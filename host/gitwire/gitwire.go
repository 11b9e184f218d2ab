// Package gitwire reads what git says to a server before its packs: the changes of
// references that a push asks for, the references that a server has, and the
// command that git has ssh run.
//
// It is for a daemon that stands between the two and has to know what is asked
// before any of it goes on. So it takes what git sends and nothing else: what it
// does not understand is an error, and what a Push sends on (Push.Head) is written
// by this package, of what was understood. Nothing is read beyond the end of a head.
//
// It knows the protocol of receive-pack, versions 0 and 1, which pushes of version 2
// use as well, over ssh and over HTTP. It does not read packs: that what was
// announced is what the pack holds, the server finds out.
package gitwire

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what is read.
const (
	maxLine       = 65520 // of git, with its length
	maxRefs       = 4096
	maxHead       = 1 << 20
	maxName       = 1024
	maxAdvertised = 64 << 20
)

// Push is a push request, up to its pack.
type Push struct {
	Refs []Ref
	// Capabilities are what the client wants to be spoken to it, as
	// it wrote them, Shallow the commits whose parents it does not have, and Options
	// what it says to the hooks of the server.
	Capabilities, Shallow, Options []string
}

// Ref is one reference that a push changes, with object names in lower-case
// hexadecimal.
type Ref struct {
	Name     string
	Old, New string
}

// Created and Deleted report that r does not exist before, or after.
func (r Ref) Created() bool { return isZero(r.Old) }
func (r Ref) Deleted() bool { return isZero(r.New) }

func isZero(id string) bool { return strings.Trim(id, "0") == "" }

// errFlush is a line that is a flush.
var errFlush = errors.New("a flush, where a line has to be")

// readLine reads one pkt-line, without its length. errFlush is for a flush; the end
// of r before a line is io.EOF.
func readLine(r io.Reader) (string, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = errors.New("a line that ends in its length")
		}
		return "", err
	}
	n := 0
	for _, c := range size {
		// Git writes lower case.
		digit := strings.IndexByte("0123456789abcdef", c)
		if digit < 0 {
			return "", fmt.Errorf("a line whose length is %q", size)
		}
		n = n<<4 | digit
	}
	switch {
	case n == 0:
		return "", errFlush
	case n <= 4:
		return "", fmt.Errorf("a line whose length is %q, which this protocol does not have", size)
	case n > maxLine:
		return "", fmt.Errorf("a line of %d bytes, over %d", n, maxLine)
	}
	b := make([]byte, n-4)
	if _, err := io.ReadFull(r, b); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			err = errors.New("a line that is cut off")
		}
		return "", err
	}
	return string(b), nil
}

func appendLine(b []byte, line string) []byte {
	return append(fmt.Appendf(b, "%04x", len(line)+4), line...)
}

// ReadPush reads the commands of a push from r, and nothing after them. A push
// without commands changes nothing.
func ReadPush(r io.Reader) (*Push, error) {
	p, err := readPush(r)
	if err != nil {
		return nil, fmt.Errorf("read what is pushed: %w", err)
	}
	return p, nil
}

func readPush(r io.Reader) (*Push, error) {
	p := &Push{}
	size, names := 0, map[string]bool{}
	next := func() (string, error) {
		line, err := readLine(r)
		if size += 4 + len(line); err == nil && size > maxHead {
			err = fmt.Errorf("it has over %d bytes; push fewer references at once", maxHead)
		}
		return line, err
	}
	for {
		line, err := next()
		if err == errFlush {
			break
		}
		if err != nil {
			return nil, unexpected(err)
		}
		if id, ok := strings.CutPrefix(line, "shallow "); ok {
			if id = strings.TrimSuffix(id, "\n"); !isID(id) || len(p.Refs) > 0 {
				return nil, fmt.Errorf("a line %q that is not one of git's", line)
			}
			p.Shallow = append(p.Shallow, id)
			continue
		}
		if strings.HasPrefix(line, "push-cert") {
			return nil, errors.New("a signed push, which is not understood here; push without --signed")
		}
		if len(p.Refs) == 0 {
			command, capabilities, ok := strings.Cut(line, "\x00")
			if !ok {
				return nil, fmt.Errorf("a first command %q without capabilities", line)
			}
			if p.Capabilities, err = readCapabilities(capabilities); err != nil {
				return nil, err
			}
			line = command
		}
		ref, err := readCommand(line)
		if err != nil {
			return nil, err
		}
		if names[ref.Name] {
			return nil, fmt.Errorf("%q twice", ref.Name)
		}
		names[ref.Name] = true
		if p.Refs = append(p.Refs, ref); len(p.Refs) > maxRefs {
			return nil, fmt.Errorf("over %d references; push fewer at once", maxRefs)
		}
	}
	return p, p.finish(next)
}

// finish checks p as a whole, and reads its options.
func (p *Push) finish(next func() (string, error)) error {
	if len(p.Refs) == 0 {
		if len(p.Shallow) > 0 {
			return errors.New("lines that belong to no push")
		}
		return nil
	}
	digits := 40
	if slices.Contains(p.Capabilities, "object-format=sha256") {
		digits = 64
	}
	ids := slices.Clone(p.Shallow)
	for _, ref := range p.Refs {
		ids = append(ids, ref.Old, ref.New)
	}
	for _, id := range ids {
		if len(id) != digits {
			return fmt.Errorf("the object name %s does not have %d digits", id, digits)
		}
	}
	if !slices.Contains(p.Capabilities, "push-options") {
		return nil
	}
	for {
		option, err := next()
		if err == errFlush {
			return nil
		}
		if err != nil {
			return unexpected(err)
		}
		if !isText(option) {
			return fmt.Errorf("a push option %q that is not text", option)
		}
		p.Options = append(p.Options, option)
	}
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// known are the capabilities that change nothing in what follows the commands but what
// this package knows. A name that ends with "=" has a value.
var known = []string{"report-status", "report-status-v2", "side-band-64k", "quiet", "atomic", "ofs-delta", "delete-refs", "push-options", "object-format=", "agent=", "session-id="}

// readCapabilities parses what follows the NUL of the first command: git begins with a space.
func readCapabilities(text string) ([]string, error) {
	if !isText(text) {
		return nil, fmt.Errorf("capabilities %q that are not text", text)
	}
	var list, names []string
	for c := range strings.SplitSeq(strings.Trim(text, " "), " ") {
		if c == "" {
			if text == "" || text == " " {
				break
			}
			return nil, fmt.Errorf("capabilities %q with an empty one", text)
		}
		name, value, hasValue := strings.Cut(c, "=")
		if hasValue {
			name += "="
		}
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("the capability %q, which is not understood here", c)
		case hasValue && value == "", name == "object-format=" && value != "sha1" && value != "sha256":
			return nil, fmt.Errorf("the capability %q, whose value is not understood here", c)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("the capability %q twice", c)
		}
		list, names = append(list, c), append(names, name)
	}
	return list, nil
}

// readCommand parses OLD SP NEW SP NAME.
func readCommand(line string) (Ref, error) {
	old, rest, ok := strings.Cut(line, " ")
	id, name, ok2 := strings.Cut(rest, " ")
	r := Ref{Name: name, Old: old, New: id}
	switch {
	case !ok || !ok2 || !isID(old) || !isID(id):
		return r, fmt.Errorf("a command %q that is not one of git's", line)
	case !isRef(name):
		return r, fmt.Errorf("the reference %q, whose name is not one that git takes", name)
	case r.Created() && r.Deleted():
		return r, fmt.Errorf("the reference %q from nothing to nothing", name)
	}
	return r, nil
}

func isID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// isText reports whether s is a single line of text.
func isText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// isRef reports whether name is a reference beneath refs/ that git accepts, in UTF-8: a policy
// gets names in JSON, which has nothing else.
func isRef(name string) bool {
	if len(name) > maxName || !isText(name) || !strings.HasPrefix(name, "refs/") || strings.ContainsAny(name, " ~^:?*[\\") || strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.HasSuffix(name, ".") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// Head returns p as it is sent to the server: the commands and options that precede the pack.
func (p *Push) Head() []byte {
	var b []byte
	for _, id := range p.Shallow {
		b = appendLine(b, "shallow "+id)
	}
	for i, ref := range p.Refs {
		line := ref.Old + " " + ref.New + " " + ref.Name
		if i == 0 {
			line += "\x00 " + strings.Join(p.Capabilities, " ")
		}
		b = appendLine(b, line)
	}
	b = append(b, "0000"...)
	if len(p.Refs) > 0 && slices.Contains(p.Capabilities, "push-options") {
		for _, option := range p.Options {
			b = appendLine(b, option)
		}
		b = append(b, "0000"...)
	}
	return b
}

// HasPack reports whether a pack follows: it does not if references are only deleted. Anything
// that follows nevertheless must not be sent on.
func (p *Push) HasPack() bool {
	return slices.ContainsFunc(p.Refs, func(r Ref) bool { return !r.Deleted() })
}

// Check compares p with the references that the server announced: if a client claims others,
// the policy would judge something that does not happen.
func (p *Push) Check(has Advertised) error {
	for _, ref := range p.Refs {
		if was := has[ref.Name]; was != ref.Old && !(was == "" && ref.Created()) {
			return fmt.Errorf("the push says that %s is at %s, and the server has it at %s", ref.Name, ref.Old, cmpOr(was, "nothing"))
		}
	}
	return nil
}

func cmpOr(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// Advertised are the references that a server announced, by name, with their objects.
type Advertised map[string]string

// ReadAdvertised reads from r the references with which receive-pack begins, and writes what it
// read to w as it arrives, up to and including the flush.
func ReadAdvertised(r io.Reader, w io.Writer) (Advertised, error) {
	has, size := Advertised{}, 0
	read := &io.LimitedReader{R: io.TeeReader(r, w), N: maxAdvertised}
	for first := true; ; first = false {
		line, err := readLine(read)
		if err == errFlush {
			return has, nil
		}
		if size += len(line); err == nil && size >= maxAdvertised-maxLine {
			err = fmt.Errorf("over %d bytes", maxAdvertised)
		}
		if err != nil {
			return nil, fmt.Errorf("read the references of the server: %w", unexpected(err))
		}
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "\x00")
		if first && line == "version 1" || strings.HasPrefix(line, "shallow ") {
			continue
		}
		id, name, ok := strings.Cut(line, " ")
		if !ok || !isID(id) {
			return nil, fmt.Errorf("read the references of the server: a line %q that is not one of git's", line)
		}
		if isRef(name) { // .have and capabilities^{} are none
			has[name] = id
		}
	}
}

// Decode returns the body of an HTTP request with that Content-Encoding, decoded. What is sent
// on has to be what was read, and so is not encoded either.
func Decode(body io.Reader, encoding string) (io.Reader, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("read a push: %w", err)
		}
		return z, nil
	}
	return nil, fmt.Errorf("read a push: the encoding %q is not understood here", encoding)
}

// PushPath reports whether a request to the path, as in the request line, may be one to
// receive-pack, and for which repository. Servers decode what is escaped.
func PushPath(escaped string) (repository string, ok bool) {
	escaped, _, _ = strings.Cut(escaped, "?")
	p, err := url.PathUnescape(escaped)
	if err != nil {
		p = escaped
	}
	return strings.CutSuffix(path.Clean("/"+p), "/git-receive-pack")
}
