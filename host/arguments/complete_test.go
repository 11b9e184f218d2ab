package arguments_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toold/toold/host/arguments"
)

// TestComplete: flags, and the values that the schema names, are offered; what a file or
// a free text is to be, is not.
func TestComplete(t *testing.T) {
	tool := arguments.Tool{Name: "t", Schema: json.RawMessage(`{"type":"object","required":["title"],"properties":{
		"title":{"type":"string","description":"What it is\ncalled"},"base":{"enum":["main","next"]},"level":{"enum":[1,2,null]},
		"draft":{"type":"boolean"},"label":{"type":"array","items":{"enum":["bug","big fix"]}},
		"author":{"type":"object","properties":{"name":{"type":"string"},"role":{"enum":["owner"]}}},
		"odd":{"enum":["a\nb","ok\u001b[2J","fine"]}}}`)}
	for _, tt := range []struct{ words, want string }{
		{"|--ti", "--title\trequired. What it is called"},
		{"|--b", "--base\tone of main, next"},
		{"|--base|", "main|next"},
		{"|--base|n", "next"},
		{"|--base=", "--base=main|--base=next"},
		{"|base=m", "base=main"},
		{"|--level|", "1|2|null"},
		{"|--label|b", "bug|big fix"},
		{"|--draft=", "--draft=true|--draft=false"},
		{"|--draft|", ""},
		{"|--no-", "--no-draft"},
		{"|--title|", ""},
		{"|--title|--b", ""},
		{"|--author.", "--author.name|--author.role\tone of owner"},
		{"|--author.role|", "owner"},
		{"|--odd|", "fine"},
		{"|--|--", ""},
		{"|", ""},
		{"|nothing=", ""},
		{"|--nothing=", ""},
		{"|--nothing|x", ""},
		{"|--j", "--json\tthe whole payload, without other flags"},
	} {
		words := strings.Split(tt.words, "|")[1:]
		out, err := arguments.Complete(tool, words)
		if got := strings.ReplaceAll(strings.TrimSuffix(out, "\n"), "\n", "|"); got != tt.want || err != nil {
			t.Errorf("%q: %q, %v, not %q", words, got, err, tt.want)
		}
	}
}
