package pdk

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"testing"
)

// TestTinyGo holds what a guest links to what TinyGo has: a few packages, no
// goroutines, channels or select, nothing of reflect by itself.
func TestTinyGo(t *testing.T) {
	packages := []string{
		"encoding/base64", "encoding/binary", "encoding/json", "errors", "fmt", "io", "maps", "path", "runtime", "slices", "strconv", "strings",
		"unicode/utf16", "unicode/utf8", "unsafe", "github.com/toold/toold/pdk/abi",
	}
	guest := build.Default
	guest.GOOS, guest.GOARCH, guest.Compiler, guest.CgoEnabled = "wasip1", "wasm", "gc", false
	files := 0
	for _, tags := range [][]string{nil, {"toold_bulk"}} {
		guest.BuildTags = tags
		for _, dir := range []string{".", "abi", "argv"} {
			p, err := guest.ImportDir(dir, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range p.Imports {
				if !slices.Contains(packages, name) {
					t.Errorf("%s imports %s, which TinyGo may lack", dir, name)
				}
			}
			for _, name := range p.GoFiles {
				files++
				f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				ast.Inspect(f, func(n ast.Node) bool {
					switch n.(type) {
					case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt:
						t.Errorf("%s: %T", name, n)
					}
					return true
				})
			}
		}
	}
	if files < 15 {
		t.Errorf("only %d files were looked at", files)
	}
}
