package translate

import (
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// MaxFound is about how many bytes of tools one search finds.
const MaxFound = 128 << 10

// HasWords reports whether t has all words in its name, title or description.
func (t *Tool) HasWords(words []string) bool {
	text := strings.ToLower(t.Name + "\n" + t.Title + "\n" + t.Description)
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

// Found is the result of a search.
type Found struct {
	Tools []*sdk.Tool `json:"tools"`
	More  int         `json:"more"`
}

// Find finds tools with all words, first those that have more of them in their names.
func Find(list []Tool, words []string, limit int) Found {
	type match struct {
		*Tool
		named int
	}
	var matches []match
	names := Names(list)
	for i := range list {
		t := &list[i]
		if _, ok := names[t.Name]; !ok || !t.HasWords(words) {
			continue
		}
		m := match{Tool: t}
		for _, w := range words {
			if strings.Contains(strings.ToLower(t.Name), w) {
				m.named++
			}
		}
		matches = append(matches, m)
	}
	slices.SortStableFunc(matches, func(a, b match) int { return b.named - a.named })
	found, size := Found{Tools: []*sdk.Tool{}}, 0
	for _, m := range matches {
		t := *m.Tool
		t.Icons = nil // for people, and long
		if len(found.Tools) == limit || size > 0 && size+t.Size() > MaxFound {
			break
		}
		size += t.Size()
		found.Tools = append(found.Tools, t.Describe(names[t.Name]))
	}
	found.More = len(matches) - len(found.Tools)
	return found
}

// Size returns the approximate size of t in a response, in bytes.
func (t *Tool) Size() int {
	return len(t.Schema) + len(t.Output) + len(t.Description) + len(t.Annotations) + 256
}
