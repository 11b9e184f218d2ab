package plugin

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toold/toold/pdk/toolchain"
)

// TestReproducible: the same sources give the same bytes in another folder, with
// another home and empty caches, another temporary folder and locale, and other
// file times.
func TestReproducible(t *testing.T) {
	for _, l := range toolchain.Languages() {
		t.Run(string(l), func(t *testing.T) {
			if _, err := toolchain.Find(t.Context(), l, "."); err != nil {
				t.Skip(err)
			}
			// Keep using a compiler in the user's real home.
			keep(t, "RUSTUP_HOME", ".rustup")
			keep(t, "GOMODCACHE", "go/pkg/mod")
			if cargo, err := toolchain.Find(t.Context(), toolchain.Rust, "."); err == nil {
				t.Setenv("PATH", os.Getenv("PATH")+string(filepath.ListSeparator)+filepath.Dir(cargo))
			}
			var first []Module
			for i, home := range []string{"", "home of another"} {
				at := filepath.Join(t.TempDir(), strings.Repeat("deeper/", 3*i), "tool")
				if err := New(at, l, false); err != nil {
					t.Fatal(err)
				}
				if home != "" {
					dir := filepath.Join(t.TempDir(), home)
					if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o755); err != nil {
						t.Fatal(err)
					}
					for name, value := range map[string]string{
						"HOME": dir, "CARGO_HOME": dir + "/cargo", "GOCACHE": dir + "/go-build", "XDG_CACHE_HOME": dir + "/cache",
						"TMPDIR": dir + "/tmp", "LC_ALL": "C", "USER": "another", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "1000000000",
					} {
						t.Setenv(name, value)
					}
					age(t, at)
				}
				p, err := Open(at)
				if err != nil {
					t.Fatal(err)
				}
				built, err := p.Build(t.Context(), false, nil)
				if err != nil {
					t.Fatal(err)
				}
				if first == nil {
					first = built
					nowhere(t, filepath.Join(at, "handler.wasm"), filepath.Dir(at), os.Getenv("HOME"))
				}
				if !slices.EqualFunc(built, first, func(a, b Module) bool { return a.SHA256 == b.SHA256 && a.File == b.File }) {
					t.Errorf("built again it is %+v, was %+v", built, first)
				}
			}
		})
	}
}

// TestNewOfAnyName: a tool's name need not be a valid package name.
func TestNewOfAnyName(t *testing.T) {
	for l, names := range map[toolchain.Language][]string{
		toolchain.Go:   {"tool", "time"},
		toolchain.Rust: {"7z", "toold"},
		toolchain.C:    {"7z"},
	} {
		for _, name := range names {
			t.Run(string(l)+" "+name, func(t *testing.T) {
				if _, err := toolchain.Find(t.Context(), l, "."); err != nil {
					t.Skip(err)
				}
				dir := filepath.Join(t.TempDir(), name)
				if err := New(dir, l, false); err != nil {
					t.Fatal(err)
				}
				p, err := Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := p.Build(t.Context(), false, nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// keep sets a variable to its default folder.
func keep(t *testing.T, name, dir string) {
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	if dir = filepath.Join(home, dir); os.Getenv(name) == "" {
		if _, err := os.Stat(dir); err == nil {
			t.Setenv(name, dir)
		}
	}
}

// age makes all files of a folder a day old.
func age(t *testing.T, dir string) {
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		yesterday := time.Now().Add(-24 * time.Hour)
		return os.Chtimes(p, yesterday, yesterday)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// nowhere checks that a module does not contain its build path.
func nowhere(t *testing.T, file string, dirs ...string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if strings.Contains(string(b), dir) {
			t.Errorf("%s has the path %s in it", filepath.Base(file), dir)
		}
	}
}
