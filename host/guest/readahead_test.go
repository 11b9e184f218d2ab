package guest

import (
	"bytes"
	"io"
	"testing"

	"github.com/tetratelabs/wazero"
)

// TestReadAhead: wazero is made as readAhead needs it. If a newer version is
// not, see whether it still reads its files number by number.
func TestReadAhead(t *testing.T) {
	dir := t.TempDir()
	c, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	if !readAhead(c) {
		t.Fatal("the cache is not read ahead")
	}
	var one asm
	one.exported("run", nil, i32c(0))
	compile := func(c wazero.CompilationCache) {
		r := wazero.NewRuntimeWithConfig(t.Context(), runtimeConfig(c))
		defer r.Close(t.Context())
		m, err := r.CompileModule(t.Context(), one.bytes())
		if err != nil {
			t.Fatal(err)
		}
		m.Close(t.Context())
	}
	compile(c)
	// What wazero's own cache wrote is read through ours.
	again, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close(t.Context())
	if !readAhead(again) {
		t.Fatal("the cache is not read ahead")
	}
	compile(again)
	if readAhead(nil) {
		t.Error("no cache is read ahead")
	}
}

// TestAheadFile: a read gives all that was asked for, as that of a file does,
// since wazero takes less for the end.
func TestAheadFile(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), 20_000)
	reads := 0
	files := aheadFiles{fakeFiles{func() io.ReadCloser {
		return io.NopCloser(io.MultiReader(counted{bytes.NewReader(want), &reads}))
	}}}
	f, ok, err := files.Get([32]byte{})
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	var got []byte
	p := make([]byte, 7) // which 64 KiB are no multiple of
	for {
		n, err := f.Read(p)
		got = append(got, p[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n < len(p) && len(got) < len(want) {
			t.Fatalf("%d bytes at %d", n, len(got))
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("it read something else")
	}
	if reads > 10 {
		t.Errorf("%d reads of %d bytes", reads, len(want))
	}
}

type counted struct {
	io.Reader
	n *int
}

func (c counted) Read(p []byte) (int, error) {
	*c.n++
	return c.Reader.Read(p)
}

type fakeFiles struct{ open func() io.ReadCloser }

func (f fakeFiles) Get([32]byte) (io.ReadCloser, bool, error) { return f.open(), true, nil }
func (fakeFiles) Add([32]byte, io.Reader) error               { return nil }
func (fakeFiles) Delete([32]byte) error                       { return nil }
