package catalog

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk/abi"
)

// docBlock is one fenced block of a page, and the comment after it.
type docBlock struct {
	info, text string
	// now is what the comment "<!-- now: TOOL STATE -->" after it says.
	tool, state string
}

var fence = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```\n(?:<!-- now: (\\S+) (\\S+) -->\n)?")

func docBlocks(t *testing.T, page string) []docBlock {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	var out []docBlock
	for _, m := range fence.FindAllStringSubmatch(string(data), -1) {
		out = append(out, docBlock{info: m[1], text: m[2], tool: m[3], state: m[4]})
	}
	if len(out) == 0 {
		t.Fatalf("%s has no blocks", page)
	}
	return out
}

// TestDocs reads and runs the blocks of the manual's pages about tools.
func TestDocs(t *testing.T) {
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(tools.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("tool.json", schema); err != nil {
		t.Fatal(err)
	}
	published := c.MustCompile("tool.json")
	for page, setup := range map[string]func(*fixture){
		"tools.md": func(*fixture) {},
		"migrating-policies.md": func(b *fixture) {
			b.write(map[string]string{"vcs/tool.json": `{"handler": "main.wasm"}`, "vcs/main.wasm": string(handler("v")), "vcs/restricted.sh": "exit 0"})
		},
	} {
		t.Run(page, func(t *testing.T) {
			b := newFixture(t)
			setup(b)
			b.open()
			top := filepath.Join(filepath.Dir(b.dir), "work")
			build := filepath.Join(top, "build")
			if err := os.MkdirAll(build, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(b.dir, filepath.Join(top, "tools.d")); err != nil {
				t.Fatal(err)
			}
			for name, data := range map[string][]byte{"handler.wasm": handler("h"), "restricted.wasm": policy("p")} {
				if err := os.WriteFile(filepath.Join(build, name), data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			blocks := docBlocks(t, page)
			for i, block := range blocks {
				switch block.info {
				case "text", "go":
				case "json tool.json":
					if _, err := tools.ParseDefinition("tool.json", []byte(block.text)); err != nil {
						t.Errorf("%s\n%v", block.text, err)
					}
					doc, err := jsonschema.UnmarshalJSON(strings.NewReader(block.text))
					if err == nil {
						err = published.Validate(doc)
					}
					if err != nil {
						t.Errorf("%s\n%v", block.text, err)
					}
				case "json bad tool.json":
					_, err := tools.ParseDefinition("tool.json", []byte(block.text))
					if want := strings.TrimSpace(blocks[i+1].text); err == nil || err.Error() != want {
						t.Errorf("%s\ngot  %v\nwant %s", block.text, err, want)
					}
				case "json plugin.json":
					if _, err := guest.ReadManifest([]byte(block.text)); err != nil {
						t.Errorf("%s\n%v", block.text, err)
					}
				case "sh":
					cmd := exec.Command("/bin/sh", "-e")
					cmd.Dir, cmd.Stdin = top, strings.NewReader(block.text)
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%s\n%v\n%s", block.text, err, out)
					}
					if block.tool == "" {
						t.Errorf("%s\nnobody says what the tool is now", block.text)
						continue
					}
					b.look(block.tool)
					if s := b.status(block.tool); s.State != block.state {
						t.Errorf("%s\n%s is %s (%s), want %s", block.text, block.tool, s.State, s.Reason, block.state)
					}
				default:
					t.Errorf("a block of kind %q, which nobody checks", block.info)
				}
			}
		})
	}
}

// TestReadyTools loads the tools that this repository ships, as make build
// leaves them.
func TestReadyTools(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it compiles every module")
	}
	const ready = "../../tools.d"
	if built, _ := filepath.Glob(ready + "/*/*.wasm"); len(built) == 0 {
		t.Skip("no modules; run make build")
	}
	b := newFixture(t)
	if err := os.CopyFS(b.dir, os.DirFS(ready)); err != nil {
		t.Fatal(err)
	}
	b.cfg.AllowWritable = true // whatever the umask of the checkout was
	b.cfg.Engine = checkoutEngine(t)
	b.open()
	for _, s := range b.c.List() {
		if s.State == StateBroken {
			b.look(s.Name) // a busy machine may have been too slow
		}
	}
	list := b.c.List()
	if len(list) < 6 {
		t.Errorf("only %d tools: %+v", len(list), list)
	}
	for _, s := range list {
		if s.State != StateOK && s.State != StateAbsent {
			t.Errorf("%s is %s: %s", s.Name, s.State, s.Reason)
		}
		if s.Kind == string(tools.Binary) && len(s.Policies) == 0 {
			t.Errorf("%s runs a binary and has no policy", s.Name)
		}
		t.Logf("%s: %s, %s, %v", s.Name, s.State, s.Kind, s.Policies)
	}
}

// TestMigratedPolicy builds the policy of the migration page and holds it to
// what the page says.
func TestMigratedPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles a Go module")
	}
	blocks := docBlocks(t, "migrating-policies.md")
	i := slices.IndexFunc(blocks, func(b docBlock) bool { return b.info == "go" })
	// In a folder of this module, so that it finds pdk, that ./... passes over.
	dir, err := os.MkdirTemp(".", "_migrated-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(blocks[i].text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "restricted.wasm")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s", "-o", out, ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	module, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	b := newFixture(t)
	b.write(map[string]string{"vcs/tool.json": `{"binary": "sh"}`, "vcs/restricted.wasm": string(module)})
	b.open()
	tool, release, err := b.c.Acquire(t.Context(), "vcs")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for args, want := range map[string]string{
		`["status"]`:                         abi.Allow,
		`["log","--oneline","HEAD"]`:         abi.Allow,
		`["log","--output=/etc/cron.d/job"]`: abi.Deny,
		`["push"]`:                           abi.Deny,
		`[]`:                                 abi.Deny,
		`["diff","--cached","--ext-diff","a","b"]`: abi.Deny,
	} {
		r, err := tool.Policies[0].Call(t.Context(), guest.Invocation{Export: "restrict", Input: fmt.Appendf(nil, `{"tool":"vcs","args":%s}`, args)})
		if err != nil {
			t.Fatal(err)
		}
		var d abi.Decision
		if err := strictjson.Unmarshal(r.Output, &d); err != nil || d.Effect != want {
			t.Errorf("%s: %s, %v, want %s", args, r.Output, err, want)
		}
	}
}
