package component

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// uleb writes a number.
func uleb(n int) []byte {
	var out []byte
	for n >= 0x80 {
		out = append(out, byte(n)|0x80)
		n >>= 7
	}
	return append(out, byte(n))
}

func section(id byte, body ...[]byte) []byte {
	b := bytes.Join(body, nil)
	return slices.Concat([]byte{id}, uleb(len(b)), b)
}

func file(sections ...[]byte) []byte {
	return append([]byte(Magic), bytes.Join(sections, nil)...)
}

func text(s string) []byte { return append(uleb(len(s)), s...) }

// types is a section of n types, each of which def answers.
func typesOf(n int, def func(i int) []byte) []byte {
	body := [][]byte{uleb(n)}
	for i := range n {
		body = append(body, def(i))
	}
	return section(7, body...)
}

var module = []byte("\x00asm\x01\x00\x00\x00")

// hostile are files that must be refused, each with what is said of it.
func hostile() map[string]struct {
	b    []byte
	says string
} {
	nested := func(n int) []byte {
		b := file()
		for range n {
			b = file(section(4, b))
		}
		return b
	}
	shapes := func(n int) []byte { // instance types in one another
		b := []byte{0x42, 0}
		for range n {
			b = slices.Concat([]byte{0x42, 1, 1}, b)
		}
		return file(section(7, []byte{1}, b))
	}
	sixteen := func(n int) []byte { // each component instantiates 16 of the one before
		b := file()
		for range n {
			b = file(section(4, b), section(5, append([]byte{16}, bytes.Repeat([]byte{0, 0, 0}, 16)...)))
		}
		return file(section(4, b), section(5, []byte{1, 0, 0, 0}))
	}
	return map[string]struct {
		b    []byte
		says string
	}{
		"nothing":                           {nil, "begin"},
		"a core module":                     {module, "begin"},
		"a component cut off":               {[]byte(Magic)[:7], "begin"},
		"a section that is longer than all": {file([]byte{7, 0xff, 0xff, 0xff, 0xff, 0x0f}), "do not fit"},
		"a length of more than 32 bits":     {file([]byte{7, 0xff, 0xff, 0xff, 0xff, 0x1f}), "more than 32 bits"},
		"a length that does not end":        {file([]byte{7, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}), "more than 32 bits"},
		"more types than bytes":             {file(section(7, []byte{0xff, 0xff, 0x03})), "do not fit"},
		"a section with bytes behind it":    {file(section(7, []byte{0, 0})), "more than it needs"},
		"a section of an unknown kind":      {file(section(77)), "unknown kind 77"},
		"a name that is not UTF-8":          {file(section(0, []byte{1, 0xff})), "not UTF-8"},
		"10,000 components in one another":  {nested(10_000), "deep"},
		"10,000 instance types in one":      {shapes(10_000), "deep"},
		"components that multiply":          {sixteen(5), "definitions"},
		"a list of itself":                  {file(typesOf(1, func(int) []byte { return []byte{0x70, 0} })), "type 0 of 0"},
		"two types of each other":           {file(typesOf(2, func(i int) []byte { return []byte{0x70, byte(1 - i)} })), "type 1 of 0"},
		"tuples that double":                {file(section(7, []byte{41, 0x6f, 1, 0x7d}, bytes.Join(doubling(40), nil))), "10000 types"},
		"lists 1,000 deep":                  {file(typesOf(1000, func(i int) []byte { return slices.Concat([]byte{0x70}, signed(i-1)) })), "deep"},
		"an own of a string":                {file(typesOf(2, func(i int) []byte { return [][]byte{{0x73}, {0x69, 0}}[i] })), "not a resource"},
		"a record without fields":           {file(typesOf(1, func(int) []byte { return []byte{0x72, 0} })), "no fields"},
		"two fields of a name": {file(typesOf(1, func(int) []byte {
			return slices.Concat([]byte{0x72, 2}, text("a"), []byte{0x7d}, text("a"), []byte{0x7d})
		})), "two of the name"},
		"33 flags":                                     {file(typesOf(1, func(int) []byte { return append([]byte{0x6e, 33}, manyNames(33)...) })), "more than 32"},
		"an alias of the 10th outer scope":             {file(section(6, []byte{1, 3, 2, 10, 0})), "outside of the component"},
		"an alias of an instance to come":              {file(section(6, []byte{1, 1, 0, 0, 1, 'x'})), "instance 0 of 0"},
		"a core instance of a module to come":          {file(section(2, []byte{1, 0, 0, 0})), "core module 0 of 0"},
		"a module that is none":                        {file(section(1, []byte("hello, world"))), "begin"},
		"a module whose section lies":                  {file(section(1, module, []byte{1, 0x7f})), "do not fit"},
		"a module of 2^31 definitions":                 {file(section(1, module, []byte{7, 5, 0xff, 0xff, 0xff, 0xff, 0x07})), "do not fit"},
		"a module without its import":                  {file(section(1, module, section(2, []byte{1}, text("a"), text("b"), []byte{0, 0})), section(2, []byte{1, 0, 0, 0})), `without its import "a"`},
		"lifting what is no function type":             {file(typesOf(1, func(int) []byte { return []byte{0x73} }), section(8, []byte{1, 0, 0, 0, 0, 0})), "core function 0 of 0"},
		"streams":                                      {file(typesOf(1, func(int) []byte { return []byte{0x66, 0} })), "WASI 0.3"},
		"async functions":                              {file(typesOf(1, func(int) []byte { return []byte{0x43, 0, 1, 0} })), "WASI 0.3"},
		"an async canonical function":                  {file(section(8, []byte{1, 0x05})), "WASI 0.3"},
		"a resource of numbers of another type":        {file(typesOf(1, func(int) []byte { return []byte{0x3f, 0x7d, 0} })), "another type than i32"},
		"a resource with a destructor to come":         {file(typesOf(1, func(int) []byte { return []byte{0x3f, 0x7f, 1, 0} })), "core function 0 of 0"},
		"a resource with an unknown destructor":        {file(typesOf(1, func(int) []byte { return []byte{0x3f, 0x7f, 2} })), "unknown way"},
		"a resource in the type of an instance":        {file(typesOf(1, func(int) []byte { return []byte{0x42, 1, 1, 0x3f, 0x7f, 0} })), "in the type of an instance"},
		"making a resource that is imported":           {file(importedResource, section(8, []byte{1, 2, 0})), "does not define"},
		"looking into a resource that is imported":     {file(importedResource, section(8, []byte{1, 4, 0})), "does not define"},
		"making a resource of an outer component":      {file(typesOf(1, ownResource), section(4, file(section(6, []byte{1, 3, 2, 1, 0}), section(8, []byte{1, 2, 0}))), section(5, []byte{1, 0, 0, 0})), "does not define"},
		"a resource that is called like another's":     {file(section(10, slices.Concat([]byte{1, 0}, text("wasi:io/streams/input-stream"), []byte{3, 1}))), "no type can have"},
		"a resource of its own, called like another's": {file(typesOf(1, ownResource), section(11, slices.Concat([]byte{1, 0}, text("wasi:io/streams/input-stream"), []byte{3, 0, 0}))), "no type can have"},
		"answering what is lent":                       {file(typesOf(3, func(i int) []byte { return [][]byte{ownResource(0), {0x68, 0}, {0x40, 0, 0, 1}}[i] })), "only lent"},
		"answering a list of what is lent":             {file(typesOf(4, func(i int) []byte { return [][]byte{ownResource(0), {0x68, 0}, {0x70, 1}, {0x40, 0, 0, 2}}[i] })), "only lent"},
		"a start function":                             {file(section(9, []byte{0, 0, 0})), "start function"},
		"no module":                                    {file(), "no module to run"},
		"no export":                                    {file(section(1, module), section(2, []byte{1, 0, 0, 0})), "no module to run"},
	}
}

// exporting is a component that exports a function of 8,000 types n times.
func exporting(n int) []byte {
	core := slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, []byte{2, 0x60, 1, 0x7f, 0, 0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f}),
		section(3, []byte{2, 0, 1}), section(5, []byte{1, 0, 1}),
		section(7, []byte{3}, text("m"), []byte{2, 0}, text("f"), []byte{0, 0}, text("r"), []byte{0, 1}),
		section(10, []byte{2, 2, 0, 0x0b, 4, 0, 0x41, 0, 0x0b}))
	exports := uleb(n)
	for i := range n {
		exports = slices.Concat(exports, []byte{0}, text(fmt.Sprint("f", i)), []byte{1, 0, 0})
	}
	return file(section(1, core), section(2, []byte{1, 0, 0, 0}),
		section(6, []byte{3, 0, 2, 1, 0}, text("m"), []byte{0, 0, 1, 0}, text("f"), []byte{0, 0, 1, 0}, text("r")),
		section(7, []byte{3, 0x6f, 100}, bytes.Repeat([]byte{0x79}, 100), []byte{0x6f, 40}, make([]byte, 40), []byte{0x40, 1}, text("a"), []byte{1, 1, 0}),
		section(8, []byte{1, 0, 0, 0, 2, 3, 0, 4, 1, 2}), section(11, exports))
}

func TestExportedTypes(t *testing.T) {
	if p, err := Read(exporting(24)); err != nil || len(p.Exports) != 24 {
		t.Error(err)
	}
	if _, err := Read(exporting(25)); err == nil || !strings.Contains(err.Error(), "200000 types in all") {
		t.Errorf("more than can be described: %v", err)
	}
}

// importedResource is the import of a type of the world.
var importedResource = section(10, slices.Concat([]byte{1, 0}, text("thing"), []byte{3, 1}))

func ownResource(int) []byte { return []byte{0x3f, 0x7f, 0} }

func signed(i int) []byte {
	if i < 0 {
		return []byte{0x7d}
	}
	b := uleb(i)
	if b[len(b)-1]&0x40 != 0 {
		b[len(b)-1] |= 0x80
		b = append(b, 0)
	}
	return b
}

func doubling(n int) (out [][]byte) {
	for i := range n {
		out = append(out, slices.Concat([]byte{0x6f, 2}, signed(i), signed(i)))
	}
	return out
}

func manyNames(n int) (out []byte) {
	for i := range n {
		out = append(out, text(strings.Repeat("a", i+1))...)
	}
	return out
}

func TestHostile(t *testing.T) {
	for what, tt := range hostile() {
		_, err := Read(tt.b)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", what, err, tt.says)
		}
	}
}

// Modules that share a memory, or have several, are named.
func TestNotYet(t *testing.T) {
	memory := section(1, module, section(5, []byte{1, 0, 1}))
	exported := slices.Concat(module, section(5, []byte{1, 0, 1}), section(7, []byte{1}, text("m"), []byte{2, 0}))
	sharing := section(1, module, section(2, []byte{1}, text("a"), text("m"), []byte{2, 0, 1}), section(10, []byte{0}))
	instance := []byte{0, 1, 1, 1, 'a', 0x12, 0} // of module 1, with instance 0 as "a"
	shared := file(section(1, exported), sharing, section(2, append([]byte{14, 0, 0, 0}, bytes.Repeat(instance, 13)...)))
	for what, tt := range map[string]struct {
		b    []byte
		says string
	}{
		"two memories":     {file(memory, section(2, []byte{2, 0, 0, 0, 0, 0, 0})), "2 of its modules have a memory"},
		"shared libraries": {shared, "14 modules that share one memory"},
	} {
		_, err := Read(tt.b)
		if e, ok := errors.AsType[*Error](err); !ok || !e.Unsupported || !strings.Contains(e.Reason, tt.says) {
			t.Errorf("%s: %v, want %q", what, err, tt.says)
		}
	}
}

// What toolchains make is taken apart into what it is.
func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name       string
		adapted    bool
		initialize string
		exports    []string
	}{
		{"types", false, "", []string{"test:types/echo@1.0.0#bools: func(v: bool) -> bool"}},
		{"native", false, "", []string{"read: func(path: string) -> result<string, string>"}},
		{"command", false, "", []string{"wasi:cli/run@0.2.0#run: func() -> result"}},
		{"adapted", true, "", []string{"wasi:cli/run@0.2.0#run: func() -> result"}},
		{"policy", false, "", []string{"restrict: func(call: string) -> string"}},
	} {
		b, err := os.ReadFile(filepath.Join("../testdata/components", tt.name+".wasm"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Read(b)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var exports []string
		for _, x := range p.Exports {
			exports = append(exports, x.FullName()+": "+x.Type.String())
		}
		if p.Adapted != tt.adapted || p.Initialize != tt.initialize || !bytes.HasPrefix(p.Module, module) || len(exports) == 0 || exports[0] != tt.exports[0] {
			t.Errorf("%s: %+v, %q", tt.name, p.Adapted, exports)
		}
	}
}

// Every byte of a component that is another makes no more than an error.
func TestBentBytes(t *testing.T) {
	for _, name := range []string{"command", "adapted", "policy", "hostile", "handles"} {
		b, err := os.ReadFile(filepath.Join("../testdata/components", name+".wasm"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			for _, bent := range []byte{0, 1, 0x7f, 0x80, 0xff, b[i] + 1} {
				c := bytes.Clone(b)
				c[i] = bent
				Read(c)
			}
			if _, err := Read(b[:i]); err == nil && i < len(b)-1 && !boundary(b, i) {
				t.Errorf("%s is taken though it is cut off at %d", name, i)
			}
		}
	}
}

// boundary reports whether a section begins at i: what is before may be whole.
func boundary(b []byte, i int) bool {
	p := 8
	for p < i {
		r := &reader{b: b, p: p + 1, end: len(b), work: &budget{}}
		p = r.count("length") + r.p
	}
	return p == i
}

func FuzzDecode(f *testing.F) {
	for _, tt := range hostile() {
		if len(tt.b) < 1<<16 {
			f.Add(tt.b)
		}
	}
	for _, name := range []string{"command", "adapted", "policy", "hostile", "handles"} {
		b, err := os.ReadFile(filepath.Join("../testdata/components", name+".wasm"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Read(b)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("an error of another type: %v", err)
			}
			return
		}
		for _, im := range p.Imports {
			if n := 0; im.Func == nil && im.Drop == nil && im.New == nil && im.Rep == nil && !im.Preview1 {
				t.Errorf("import %q is nothing, %d", im.Name, n)
			}
		}
		for _, x := range p.Exports {
			if x.Core == "" && x.Type == nil {
				t.Errorf("export %q is nothing", x.Name)
			}
		}
	})
}
