// Package offer is what plugins that bring tools for an identity have in common.
package offer

import (
	"hash/fnv"
	"strconv"
	"strings"
)

// Clip is s, or its first n bytes and a sign that there were more.
func Clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// ToolName makes a name of letters, digits and single underscores of any text. One
// that is too long, or has no letter, is told from others by its hash.
func ToolName(s string) string {
	var b strings.Builder
	lower := false // whether the last letter was a small one
	for _, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			if lower {
				b.WriteByte('_')
			}
			b.WriteRune(r - 'A' + 'a')
			lower = false
			continue
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "_"):
			b.WriteByte('_')
		}
		lower = r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
	}
	name := strings.Trim(b.String(), "_")
	if name == "" || len(name) > 64 {
		h := fnv.New32a()
		h.Write([]byte(s))
		name = strings.TrimRight(name[:min(len(name), 54)], "_") + "_" + strconv.FormatUint(uint64(h.Sum32()), 16)
		name = strings.TrimLeft(name, "_")
	}
	return name
}
