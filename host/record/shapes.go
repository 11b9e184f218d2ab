package record

import (
	"bytes"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toold/toold/host/mask"
)

// Patterns of likely secrets that the caller wrote itself and the daemon does not know: a token of JSON Web Signature
// or Encryption, those of well-known services, a password in a URL, the value of a header that authorizes, what is assigned to a name of a secret
// (--password=X, TOKEN=X, ?api_key=X). They match
// plain text, not other encodings.
var (
	shapes = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){2,4}|` +
		`\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|xox[abprs]-[A-Za-z0-9-]{10,}|sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16})`)
	urlSecret    = regexp.MustCompile(`(?i)\b(https?://)[^/?#\s"'@]+@|([a-z][a-z0-9+.-]*://[^/?#\s"'@:]*):[^/?#\s"'@]+@`)
	headerSecret = regexp.MustCompile(`(?i)\b(authorization|proxy-authorization|cookie|x-api-key|private-token|x-auth-token)(\s*[:=]\s*)[^\r\n]+`)
	// What a shell would run is not hidden with a value: people approve what they see.
	assignment = regexp.MustCompile(`(?i)((?:^|[\s?&;"'])(?:[a-z0-9_-]*(?:` + secretWords + `)[a-z0-9_-]*|(?:[a-z0-9_-]*[_-])?pass)=)[^\s?&;"'$()<>|` + "`" + `]+`)
	secretName = regexp.MustCompile(`(?i)` + secretWords + `|(?:^|[_-])pass$`)
)

const secretWords = `token|secret|passw|passphrase|credential|api[_-]?key|private[_-]?key|access[_-]?key`

// Each pattern has a check that is cheap and never misses a match, since most texts have none: a record of a call of
// git has two hundred texts.
var (
	shapeStarts = []string{"eyJ", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "npm_", "xox", "sk-", "AKIA"}
	headerEnds  = []string{"authorization", "cookie", "x-api-key", "private-token", "x-auth-token"}
	nameParts   = []string{"token", "secret", "pass", "credential", "key"}
)

// HideShapes replaces what looks like a secret by a placeholder.
func HideShapes(t string) string {
	if len(t) < 7 { // the shortest are a://:b@ and token=
		return t
	}
	if hasAny(t, shapeStarts) {
		t = shapes.ReplaceAllString(t, mask.Placeholder)
	}
	if _, rest, found := strings.Cut(t, "://"); found && strings.Contains(rest, "@") {
		t = urlSecret.ReplaceAllStringFunc(t, func(m string) string {
			scheme, rest, _ := strings.Cut(m, "://")
			if user, _, named := strings.Cut(rest, ":"); named && !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
				return scheme + "://" + user + ":" + mask.Placeholder + "@"
			}
			return scheme + "://" + mask.Placeholder + "@"
		})
	}
	if hasHeader(t) {
		t = headerSecret.ReplaceAllString(t, "${1}${2}"+mask.Placeholder)
	}
	if strings.Contains(t, "=") && mayNameSecret(t) {
		t = assignment.ReplaceAllString(t, "${1}"+mask.Placeholder)
	}
	return t
}

// IsSecretName reports whether a value of that name is a secret.
func IsSecretName(name string) bool {
	return mayNameSecret(name) && secretName.MatchString(name)
}

// mayNameSecret reports whether secretName may match in t.
func mayNameSecret(t string) bool {
	return !isASCII(t) || hasAny(strings.ToLower(t), nameParts)
}

// IsSecretFlag reports whether the word after arg is a secret by its name.
func IsSecretFlag(arg string) bool {
	return strings.HasPrefix(arg, "--") && !strings.Contains(arg, "=") && len(arg) < 64 && IsSecretName(arg)
}

// holdsNone reports whether neither HideShapes nor IsSecretName finds anything in any text of a JSON text.
func holdsNone(b []byte) bool {
	if bytes.IndexByte(b, '\\') >= 0 {
		return false // of an escaped text the marks may not be visible
	}
	text := string(b)
	return !hasAny(text, shapeStarts) && !strings.Contains(text, "://") && !hasHeader(text) && !mayNameSecret(text)
}

// hasHeader reports whether headerSecret may match t.
func hasHeader(t string) bool {
	if !isASCII(t) {
		return true // some letters are equal to ASCII's if case is ignored
	}
	for from := 0; ; {
		i := strings.IndexAny(t[from:], ":=")
		if i < 0 {
			return false
		}
		name := strings.TrimRight(t[:from+i], " \t\n\f\r")
		for _, end := range headerEnds {
			if len(name) >= len(end) && strings.EqualFold(name[len(name)-len(end):], end) {
				return true
			}
		}
		from += i + 1
	}
}

func hasAny(t string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(t, part) {
			return true
		}
	}
	return false
}

func isASCII(t string) bool {
	for i := range len(t) {
		if t[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
