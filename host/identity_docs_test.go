package host

import (
	"os"
	"regexp"
	"testing"

	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// TestIdentityDocs reads the blocks of the pages about identities.
func TestIdentityDocs(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	n := 0
	for _, page := range []string{"identity.md", "clickhouse.md"} {
		b, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllSubmatch(b, -1) {
			n++
			switch kind, text := string(m[1]), m[2]; kind {
			case "json toold.json":
				var c config.Config
				err = strictjson.Unmarshal(text, &c)
			case "json tool.json":
				_, err = tools.ParseDefinition("tool.json", text)
			case "json answer":
				var s abi.Surface
				err = strictjson.Unmarshal(text, &s)
			default:
				t.Errorf("%s: a block of kind %q, which nobody checks", page, kind)
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", page, err, m[2])
			}
		}
	}
	if n != 7 {
		t.Errorf("%d blocks", n)
	}
}
