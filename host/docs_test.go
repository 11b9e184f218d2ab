package host_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toold/toold/host/hosttest"
)

var (
	namedTest = regexp.MustCompile("`(Test[A-Z]\\w*)`")
	// A link in a page, without those in code.
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	notSlug = regexp.MustCompile("[^a-z0-9 _-]")
	fenced  = regexp.MustCompile("(?ms)^```.*?^```|^    .*?$")
)

// TestManual: every page is in the index, what a page links to is there, and so is
// each test that a page names.
func TestManual(t *testing.T) {
	docs := filepath.Join(hosttest.ModuleRoot(), "docs")
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil || len(pages) < 15 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	anchors := func(file string) (list []string) {
		for _, m := range heading.FindAllStringSubmatch(read(file), -1) {
			plain := strings.ToLower(strings.NewReplacer("`", "", "*", "").Replace(m[1]))
			list = append(list, strings.ReplaceAll(notSlug.ReplaceAllString(plain, ""), " ", "-"))
		}
		return list
	}
	index := read(filepath.Join(docs, "README.md"))
	tests := testsOfTheModule(t)
	named := 0
	for _, page := range append(pages, filepath.Join(hosttest.ModuleRoot(), "README.md"), filepath.Join(hosttest.ModuleRoot(), "CONTRIBUTING.md")) {
		name, text := filepath.Base(page), read(page)
		if filepath.Dir(page) == docs && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
		for _, m := range namedTest.FindAllStringSubmatch(text, -1) {
			named++
			if !tests[m[1]] {
				t.Errorf("%s: there is no %s", name, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			} else if anchor != "" && filepath.Ext(to) == ".md" && !slices.Contains(anchors(to), anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, m[1])
			}
		}
	}
	if named < 60 {
		t.Errorf("only %d tests are named", named)
	}
}

// TestFaultsAreTested: each row of the faults of the host has a test.
func TestFaultsAreTested(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(hosttest.ModuleRoot(), "docs", "operating.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Failures of the host")
	table, _, _ = strings.Cut(table, "\n`make soak`")
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| fault") {
			continue
		}
		rows++
		if !namedTest.MatchString(line) {
			t.Errorf("no test: %s", line)
		}
	}
	if rows < 7 {
		t.Errorf("only %d faults", rows)
	}
}
