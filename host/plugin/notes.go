package plugin

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/toold/toold/pdk/toolchain"
)

// note is a warning about code that compiles but does not work in a guest, where
// it fails silently or with a misleading error.
type note struct {
	in   *regexp.Regexp // matches a line
	says string
}

const noFiles = `a guest sees only the folders that tool.json grants: add "capabilities": {"files": {"/data": {"path": "/srv/data"}}}`

var notes = map[toolchain.Language][]note{
	toolchain.Go: {
		{regexp.MustCompile(`^//\s+go:wasm(export|import)\b`), "with a space it is a comment; write //go:wasmexport"},
		{regexp.MustCompile(`\bos\.(Getenv|LookupEnv|Environ|ExpandEnv)\(`), "a guest's environment is empty; what a caller passes on is in Call.Env, settings are in pdk.Config"},
		{regexp.MustCompile(`^(import )?\s*([\w.]+ )?"net(/http)?"$`), "a guest has no sockets; ask the host with pdk.HTTP"},
		{regexp.MustCompile(`^(import )?\s*([\w.]+ )?"os/exec"$`), "a guest starts no programs; ask the host with pdk.Exec"},
		{regexp.MustCompile(`\bos\.(Open|OpenFile|OpenRoot|Create|ReadFile|WriteFile|ReadDir|Stat|Mkdir\w*|DirFS)\(`), noFiles},
	},
	toolchain.Rust: {
		{regexp.MustCompile(`\b(e?println|e?print|dbg)!\s*[(\[{]`), "what is printed goes nowhere; log it with toold::log, or answer it as stdout"},
		{regexp.MustCompile(`\benv::(var|vars|var_os|args)\(`), "a guest's environment is empty; what a caller passes on is in Call.env, settings are in toold::config"},
		{regexp.MustCompile(`\bstd::(fs|net|thread)\b|\bprocess::Command\b`), "this target has no files, sockets, threads or programs; ask the host with toold::http or toold::exec"},
		{regexp.MustCompile(`\b(SystemTime|Instant)::now\(`), "this target has no clock, and std's panics; import clock_time_get of wasi_snapshot_preview1"},
	},
}

var sourceNames = map[toolchain.Language]string{toolchain.Go: ".go", toolchain.Rust: ".rs"}

// notesOn returns the notes on the sources of one module, in a folder of dir, each
// once, with its position. files reports that the tool is granted folders.
func notesOn(language toolchain.Language, dir, source string, files bool) []string {
	list := notes[language]
	if list == nil {
		return nil
	}
	var out []string
	seen := map[string]bool{}
	add := func(file string, line int, says string) {
		if !seen[says] {
			seen[says] = true
			out = append(out, fmt.Sprintf("%s:%d: %s", file, line, says))
		}
	}
	root := filepath.Join(dir, source)
	// The compiler reports files that cannot be read.
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil
		case d.IsDir():
			if path != root && (isSkipped(d.Name()) || d.Name() == "toold" || d.Name() == "tests" || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(path) != sourceNames[language] || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return nil
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			n++
			line = strings.TrimRight(line, "\r\n")
			if strings.HasPrefix(line, "#[cfg(test)]") {
				break
			}
			comment := strings.HasPrefix(strings.TrimSpace(line), "//")
			for _, x := range list {
				if x.in.MatchString(line) && (!comment || strings.Contains(x.says, "comment")) && !(x.says == noFiles && files) {
					add(rel, n, x.says)
				}
			}
		}
		if line := mainLine(b); language == toolchain.Go && line > 0 {
			add(rel, line, "main is not run in a tool; move what it does into init")
		}
		return nil
	})
	return out
}

// mainLine returns the line of a Go program's main function if it is not empty,
// else 0.
func mainLine(source []byte) int {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, "", source, parser.SkipObjectResolution)
	if err != nil || f.Name.Name != "main" {
		return 0
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "main" && fn.Recv == nil && fn.Body != nil && len(fn.Body.List) > 0 {
			return set.Position(fn.Pos()).Line
		}
	}
	return 0
}
