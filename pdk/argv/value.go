package argv

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Value checks one value of a flag or operand and returns it as it shall be
// written. Its error completes the sentence "flag -x: ..."; a *Refusal keeps
// its own rule and advice.
type Value func(v string, in Scope) (string, error)

// Text is any value.
func Text(v string, _ Scope) (string, error) { return v, nil }

// NonEmpty is any value but the empty one.
func NonEmpty(v string, _ Scope) (string, error) {
	if v == "" {
		return "", errors.New("the value is empty")
	}
	return v, nil
}

// OneLine is a value of one line: no control characters.
func OneLine(v string, _ Scope) (string, error) {
	for i := range len(v) {
		if v[i] < ' ' || v[i] == 0x7f {
			return "", errors.New("the value " + Quote(v) + " holds a control character")
		}
	}
	return v, nil
}

// Bool is "true" or "false".
func Bool(v string, _ Scope) (string, error) {
	if v != "true" && v != "false" {
		return "", errors.New("the value " + Quote(v) + " is neither true nor false")
	}
	return v, nil
}

// Int is a whole number from lo to hi, in decimal.
func Int(lo, hi int64) Value {
	return func(v string, _ Scope) (string, error) {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < lo || n > hi || strconv.FormatInt(n, 10) != v {
			return "", errors.New("the value " + Quote(v) + " is not a number from " + strconv.FormatInt(lo, 10) + " to " + strconv.FormatInt(hi, 10))
		}
		return v, nil
	}
}

// Seconds is a number of seconds from 0 to hi, with or without a fraction.
func Seconds(hi float64) Value {
	return func(v string, _ Scope) (string, error) {
		whole, frac, dot := strings.Cut(v, ".")
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || !isDigits(whole) || dot && !isDigits(frac) || len(v) > 20 || n > hi {
			return "", errors.New("the value " + Quote(v) + " is not a number of seconds up to " + strconv.FormatFloat(hi, 'f', -1, 64))
		}
		return v, nil
	}
}

// OneOf is one of the values given.
func OneOf(values ...string) Value {
	return func(v string, _ Scope) (string, error) {
		for _, w := range values {
			if v == w {
				return v, nil
			}
		}
		return "", errors.New("the value " + Quote(v) + " is not one of " + strings.Join(values, ", "))
	}
}

// Match is a value for which ok is true; what names it in the refusal ("a
// repository of the form OWNER/NAME").
func Match(what string, ok func(string) bool) Value {
	return func(v string, _ Scope) (string, error) {
		if !ok(v) {
			return "", errors.New("the value " + Quote(v) + " is not " + what)
		}
		return v, nil
	}
}

// List is one or more values with sep between them.
func List(sep string, each Value) Value {
	return func(v string, in Scope) (string, error) {
		parts := strings.Split(v, sep)
		for i, part := range parts {
			w, err := each(part, in)
			if err != nil {
				return "", err
			}
			parts[i] = w
		}
		return strings.Join(parts, sep), nil
	}
}

// Path is a file or folder beneath the roots. It is answered cleaned, without
// "a/../b", so that a symlink a cannot change where ".." leads.
func Path(v string, in Scope) (string, error) { return in.Path(v) }

// PathOr is Path, or one of the words given ("-" for standard input).
func PathOr(words ...string) Value {
	return func(v string, in Scope) (string, error) {
		for _, w := range words {
			if v == w {
				return v, nil
			}
		}
		return in.Path(v)
	}
}

// Scope is where a call may read and write.
type Scope struct {
	// Cwd is absolute, without symlinks.
	Cwd string
	// Roots are the folders beneath which paths may lie. With none, only Cwd.
	Roots []string
}

// Path returns v cleaned when it lies beneath the roots, and a *Refusal of
// rule "path.outside" when it does not. A relative v counts from Cwd, stays
// relative, and begins with "./" where it would begin with "-".
//
// It compares names. That a folder on the way is a symlink to elsewhere is
// not seen here, and could be changed after any look: keeping to the roots
// when a file is opened is the host's part.
func (s Scope) Path(v string) (string, error) {
	if v == "" {
		return "", &Refusal{Rule: "path.empty", Arg: v, Reason: "the path is empty", Instead: "name a file"}
	}
	if strings.IndexByte(v, 0) >= 0 {
		return "", &Refusal{Rule: "arg.nul", Arg: v, Reason: "the path holds a NUL byte"}
	}
	clean := path.Clean(v)
	abs := clean
	if !path.IsAbs(abs) {
		if !path.IsAbs(s.Cwd) {
			return "", &Refusal{Rule: "path.outside", Arg: v, Reason: "path " + Quote(v) + " is relative, and the call has no working directory", Instead: "name a working directory"}
		}
		abs = path.Join(s.Cwd, clean)
	}
	roots := s.Roots
	if len(roots) == 0 && path.IsAbs(s.Cwd) {
		roots = []string{s.Cwd}
	}
	for _, root := range roots {
		if beneath(root, abs) {
			if strings.HasPrefix(clean, "-") {
				clean = "./" + clean
			}
			return clean, nil
		}
	}
	return "", &Refusal{Rule: "path.outside", Arg: v, Reason: "path " + Quote(v) + " is outside the folders of this call", Instead: "use a path beneath " + strings.Join(roots, " or ")}
}

func beneath(root, abs string) bool {
	if !path.IsAbs(root) {
		return false
	}
	root = path.Clean(root)
	return abs == root || root == "/" || strings.HasPrefix(abs, root+"/")
}

// Refusal says which argument was refused and why. It is what a denial shows
// to the caller.
type Refusal struct {
	// Rule is one of flag.unknown, flag.abbreviated, flag.refused, flag.value,
	// flag.twice, arg.nul, arg.dash, arg.dashes, path.outside, path.empty, or
	// a policy's own.
	Rule string
	// Arg is the flag or operand, as the caller wrote it.
	Arg string
	// Reason is a sentence without a full stop that names Arg; Instead, when
	// there is one, is what to do.
	Reason  string
	Instead string
}

func (r *Refusal) Error() string {
	if r.Instead == "" {
		return r.Reason
	}
	return r.Reason + "; " + r.Instead
}

// Quote shows what a caller wrote, on one line and not without end.
func Quote(s string) string {
	const most = 120
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// CheckEnv refuses every variable that a caller set, but those that are given
// and those that only choose a language, a time zone or colours. Variables
// are flags by another way: most programs read many more than they document.
func CheckEnv(env map[string]string, allowed ...string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		switch {
		case slices.Contains(allowed, name):
		case name == "LANG", name == "LANGUAGE", name == "TZ", name == "NO_COLOR", name == "COLUMNS":
		case strings.HasPrefix(name, "LC_"):
		default:
			return &Refusal{Rule: "env", Arg: name, Reason: "variable " + Quote(name) + " is not one that this policy knows", Instead: "leave it out"}
		}
		// A time zone may be the path of a file, and a language is part of one.
		if v := env[name]; !slices.Contains(allowed, name) && strings.ContainsFunc(v, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-+.@:/", r))
		}) || strings.Contains(v, "..") || strings.HasPrefix(v, "/") || strings.HasPrefix(v, ":") {
			return &Refusal{Rule: "env", Arg: name, Reason: "variable " + Quote(name) + " has the value " + Quote(env[name]) + ", which this policy does not know", Instead: "leave it out"}
		}
	}
	return nil
}
