package gitwire

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Services that git has ssh run.
const (
	UploadPack  = "git-upload-pack"
	ReceivePack = "git-receive-pack"
)

// Exec is what git asks ssh to run: Service for the repository Path as User at Host.
type Exec struct {
	User, Host string
	Port       int // 22 where none was said
	Service    string
	Path       string
	// Protocol is that of the variable GIT_PROTOCOL, where git has ssh pass it on.
	Protocol string
}

// ParseExec parses the arguments that git passes to ssh, of the variant "ssh", and the value of
// GIT_PROTOCOL. It accepts only the two services, and only options that git writes.
func ParseExec(args []string, protocol string) (*Exec, error) {
	e, err := parseExec(args, protocol)
	if err != nil {
		return nil, fmt.Errorf("read what git asks of ssh: %w", err)
	}
	return e, nil
}

func parseExec(args []string, protocol string) (*Exec, error) {
	e := &Exec{Port: 22}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case len(args) > 1 && args[0] == "-o" && args[1] == "SendEnv=GIT_PROTOCOL":
			// Anything else would be said to the server as it is.
			if protocol != "" && protocol != "version=1" && protocol != "version=2" {
				return nil, fmt.Errorf("GIT_PROTOCOL is %q, which is not understood here", protocol)
			}
			e.Protocol = protocol
		case len(args) > 1 && args[0] == "-p":
			port, err := strconv.ParseUint(args[1], 10, 16)
			if err != nil || port == 0 || strconv.FormatUint(port, 10) != args[1] {
				return nil, fmt.Errorf("%q is not a port", args[1])
			}
			e.Port = int(port)
		default:
			return nil, fmt.Errorf("the option %q, which is refused; git itself needs no options of ssh here", args[0])
		}
		args = args[2:]
	}
	if len(args) != 2 {
		return nil, errors.New("only " + UploadPack + " and " + ReceivePack + " of one repository are run: there is no shell and no forwarding")
	}
	host := args[0]
	if user, rest, ok := cutLast(host, "@"); ok {
		e.User, host = user, rest
		if !plain(user, "-_.+") {
			return nil, fmt.Errorf("%q is not a user name", user)
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case err == nil && addr.Zone() == "":
		host = addr.String()
	case len(host) > 253 || !plain(host, "-_."):
		return nil, fmt.Errorf("%q is not a host name", host)
	}
	e.Host = strings.ToLower(strings.TrimSuffix(host, "."))
	service, quoted, ok := strings.Cut(args[1], " ")
	if !ok || service != UploadPack && service != ReceivePack {
		return nil, fmt.Errorf("the command %q: only %s and %s are run", args[1], UploadPack, ReceivePack)
	}
	e.Service = service
	if e.Path, err = unquote(quoted); err != nil {
		return nil, err
	}
	if !isText(e.Path) || e.Path == "" || e.Path[0] == '-' || len(e.Path) > 4096 {
		return nil, fmt.Errorf("%q is not the path of a repository", e.Path)
	}
	return e, nil
}

// plain reports whether s is letters, digits and those in more, and begins with one
// of the first two or "_".
func plain(s, more string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
		if !alnum && (i == 0 || strings.IndexByte(more, c) < 0) {
			return false
		}
	}
	return s != ""
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// unquote parses one word as git quotes it for a shell.
func unquote(s string) (string, error) {
	fail := fmt.Errorf("%s is not quoted as git quotes", s)
	rest, ok := strings.CutPrefix(s, "'")
	if !ok {
		return "", fail
	}
	var b strings.Builder
	for {
		text, after, ok := strings.Cut(rest, "'")
		if !ok {
			return "", fail
		}
		b.WriteString(text)
		if after == "" {
			return b.String(), nil
		}
		// Git leaves the quotes for "'" and "!" and comes back.
		if !strings.HasPrefix(after, `\''`) && !strings.HasPrefix(after, `\!'`) {
			return "", fail
		}
		b.WriteByte(after[1])
		rest = after[3:]
	}
}

// Command returns the command for the server.
func (e *Exec) Command() string {
	return e.Service + " '" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(e.Path) + "'"
}

// URL returns the URL of the repository.
func (e *Exec) URL() string {
	host := e.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if e.User != "" {
		host = e.User + "@" + host
	}
	if e.Port != 22 {
		host += ":" + strconv.Itoa(e.Port)
	}
	if strings.HasPrefix(e.Path, "/") {
		return "ssh://" + host + e.Path
	}
	return "ssh://" + host + "/" + e.Path
}
