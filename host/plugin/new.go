package plugin

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toold/toold/host/tools"
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/assemblyscript"
	"github.com/toold/toold/pdk/c"
	"github.com/toold/toold/pdk/rust"
	"github.com/toold/toold/pdk/toolchain"
)

//go:embed all:templates
var templates embed.FS

// New creates dir, a folder with a tool (or, for policy, the policy of a binary of
// that name) that builds and passes its cases. It contains the SDK and needs
// neither this repository nor a network. The tool's name is the folder's.
func New(dir string, l toolchain.Language, policy bool) error {
	kind := "handler"
	if policy {
		kind = "policy"
	}
	return create(dir, l, func(to, name string) error {
		return errors.Join(
			write(to, templates, "templates/common/"+kind, name, nil),
			write(to, templates, "templates/"+string(l)+"/all", name, nil),
			write(to, templates, "templates/"+string(l)+"/"+kind, name, nil),
			writeSDK(to, l),
		)
	})
}

// NewComponent creates dir, a folder with a tool that is a component of WASI 0.2 in
// Rust. It needs no SDK of toold's; cargo fetches wit-bindgen when it is first built.
func NewComponent(dir string) error {
	return create(dir, toolchain.Rust, func(to, name string) error {
		return errors.Join(
			write(to, templates, "templates/common/component", name, nil),
			write(to, templates, "templates/rust/component", name, nil),
		)
	})
}

// create creates the folder of a tool with what fill writes into it.
func create(dir string, l toolchain.Language, fill func(to, name string) error) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	name := filepath.Base(abs)
	if !tools.ValidName(name) {
		return &NameError{dir, fmt.Sprintf("the name %q %s", name, tools.NameFault(name))}
	}
	if !slices.Contains(toolchain.Languages(), l) {
		return &NameError{dir, fmt.Sprintf("there is no SDK for %q; use go, rust, c or assemblyscript", l)}
	}
	// Build in a temporary folder: dir appears complete, or not at all.
	if err := os.MkdirAll(filepath.Dir(abs), 0o755); err != nil {
		return err
	}
	if entries, err := os.ReadDir(abs); err == nil && len(entries) > 0 {
		return &NameError{dir, "the folder is not empty; name another one"}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(abs), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(tmp, name); err != nil {
		return err
	}
	entries, err := os.ReadDir(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.Rename(tmp, abs)
	case err != nil:
		return err
	case len(entries) > 0:
		return &NameError{dir, "the folder is not empty; name another one"}
	}
	// Keep an empty folder: it may be a shell's working directory.
	if entries, err = os.ReadDir(tmp); err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(tmp, e.Name()), filepath.Join(abs, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// NameError is the error of New for an invalid name, language or folder.
type NameError struct{ Dir, Why string }

func (e *NameError) Error() string { return "make " + e.Dir + ": " + e.Why }

func writeSDK(dir string, l toolchain.Language) error {
	switch l {
	case toolchain.Go:
		to := filepath.Join(dir, "toold")
		skip := func(p string) bool { return strings.HasSuffix(p, "_test.go") || p == "source.go" }
		if err := write(filepath.Join(to, "pdk"), pdk.Source, ".", "", skip); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, "go.mod"), []byte("module github.com/toold/toold\n\ngo 1.24\n"), 0o644)
	case toolchain.C:
		return write(dir, c.SDK, ".", "", nil)
	case toolchain.Rust:
		to := filepath.Join(dir, "toold")
		if err := write(to, rust.SDK, ".", "", nil); err != nil {
			return err
		}
		// In a tool's folder it is not a workspace of its own.
		file := filepath.Join(to, "Cargo.toml")
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		b, _, _ = bytes.Cut(b, []byte("[workspace]"))
		return os.WriteFile(file, append(bytes.TrimSpace(b), '\n'), 0o644)
	default:
		return write(filepath.Join(dir, "assembly", "toold"), assemblyscript.SDK, "assembly", "", nil)
	}
}

// write copies the folder root of from to dir. It replaces NAME by name, if given,
// and removes the extension .in, which hides templates from other tools.
func write(dir string, from fs.FS, root, name string, skip func(string) bool) error {
	return fs.WalkDir(from, root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, strings.TrimSuffix(rel, ".in"))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		if skip != nil && skip(p) {
			return nil
		}
		b, err := fs.ReadFile(from, p)
		if err != nil {
			return err
		}
		if name != "" {
			b = bytes.ReplaceAll(b, []byte("NAME"), []byte(name))
		}
		return os.WriteFile(to, b, 0o644)
	})
}
