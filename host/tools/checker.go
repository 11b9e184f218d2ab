package tools

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Fault is an error in a tool.json.
type Fault struct {
	File         string
	Line, Column int // from 1; 0 if the fault concerns the file as a whole
	// Pointer is the JSON pointer of the value; empty is the whole document.
	Pointer string
	// Reason is a verb phrase that follows the pointer: "must be positive".
	Reason string
}

func (f Fault) Error() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
	}
	b.WriteString(": ")
	if f.Pointer != "" {
		b.WriteString(f.Pointer)
		b.WriteByte(' ')
	}
	b.WriteString(f.Reason)
	return b.String()
}

// Faults are all errors in a tool.json, in the order of the checks. As an error it is
// never empty.
type Faults []Fault

// Error returns the first fault and the number of further ones, in one line.
func (f Faults) Error() string {
	switch len(f) {
	case 0:
		return "no fault"
	case 1:
		return f[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", f[0].Error(), len(f)-1)
}

// checker collects the faults of a definition that is well-formed.
type checker struct {
	file   string
	data   []byte
	faults Faults
}

func (c *checker) fault(pointer, format string, args ...any) {
	line, column := position(c.data, pointer)
	c.faults = append(c.faults, Fault{File: c.file, Line: line, Column: column, Pointer: pointer, Reason: fmt.Sprintf(format, args...)})
}

// oneOf checks that value is empty, which is the default, or one of allowed.
func (c *checker) oneOf(pointer, value string, allowed ...string) {
	if value != "" && !slices.Contains(allowed, value) {
		c.fault(pointer, "is %q; it must be one of %s", value, strings.Join(allowed, ", "))
	}
}

// within checks that value is from low to high.
func within[N int | int64 | Size | Seconds](c *checker, pointer string, value, low, high N) {
	if value < low || value > high || value != value {
		c.fault(pointer, "is %v; it must be from %v to %v", value, low, high)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// ValidName reports whether name may be a tool's name:
// ^[a-z0-9][a-z0-9_-]{0,63}$.
func ValidName(name string) bool {
	// In Go, $ matches at the end of the text only and not before a final
	// newline.
	return nameRule.MatchString(name)
}

// NameFault says why name cannot be a tool's, and which could: a clause about the name,
// empty if it can.
func NameFault(name string) string {
	if ValidName(name) {
		return ""
	}
	if len(name) > maxName && ValidName(name[:maxName]) {
		return fmt.Sprintf("has %d characters, and a tool's at most %d, as clients of MCP take no more; choose a shorter one", len(name), maxName)
	}
	why := "is not a tool's: use small letters, digits, - and _, and begin with a letter or digit"
	if like := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-_"); ValidName(like) {
		why += ", such as " + like
	}
	return why
}

var notInNames = regexp.MustCompile(`[^a-z0-9_-]+`)

// maxName is how many characters a tool's name may have.
const maxName = 64

// nameRule matches the names that a tool may have. Without separators and dots a
// name is always a single path element.
var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// validHost reports whether h is a host, or with pattern a pattern of hosts.
func validHost(h string, pattern bool) bool {
	if h == "*" {
		return pattern
	}
	if strings.HasPrefix(h, "*.") && !pattern {
		return false
	}
	if _, err := netip.ParseAddr(h); err == nil {
		return true
	}
	if a, err := netip.ParseAddrPort(h); err == nil {
		return a.Port() != 0
	}
	if !hostRule.MatchString(h) || len(h) > 255 {
		return false
	}
	if i := strings.LastIndexByte(h, ':'); i >= 0 {
		n, err := strconv.Atoi(h[i+1:])
		return err == nil && n > 0 && n < 1<<16
	}
	return true
}

// validClaim reports whether name may be the name of a claim: a short text without
// control characters.
func validClaim(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f })
}

var (
	methodRule = regexp.MustCompile(`^[A-Z]{1,16}$`)
	hostRule   = regexp.MustCompile(`^(?i)(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.?(:[0-9]{1,5})?$`)
	headerRule = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)
	secretRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	// variableRule matches the names that every shell can set.
	variableRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)
