package guest

import (
	"bufio"
	"errors"
	"io"
	"reflect"

	"github.com/tetratelabs/wazero"
)

// wazero reads a compiled module from its file number by number, each with a
// system call: where functions begin, and for a module with lines, of which
// instruction each piece of code is. That took three quarters of the time in
// which a module in Rust with lines is loaded. wazero has no place to put a
// buffer, so it is put where its cache keeps its files.

// compiledFiles is wazero's internal/filecache.Cache.
type compiledFiles interface {
	Get(key [32]byte) (content io.ReadCloser, ok bool, err error)
	Add(key [32]byte, content io.Reader) error
	Delete(key [32]byte) error
}

// readAhead has c read its files in large pieces. It reports whether it could:
// a version of wazero that is made otherwise works as well, and more slowly.
func readAhead(c wazero.CompilationCache) bool {
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return false
	}
	field := v.Elem().FieldByName("fileCache")
	if !field.IsValid() || field.Kind() != reflect.Interface || !reflect.TypeFor[aheadFiles]().Implements(field.Type()) {
		return false
	}
	field = reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem() // which may be set
	files, ok := field.Interface().(compiledFiles)
	if ok {
		field.Set(reflect.ValueOf(aheadFiles{files}))
	}
	return ok
}

type aheadFiles struct{ compiledFiles }

func (a aheadFiles) Get(key [32]byte) (io.ReadCloser, bool, error) {
	content, ok, err := a.compiledFiles.Get(key)
	if content == nil {
		return content, ok, err
	}
	return &aheadFile{bufio.NewReaderSize(content, 64<<10), content}, ok, err
}

type aheadFile struct {
	r *bufio.Reader
	io.Closer
}

// Read reads as much as a file does: all that was asked for, up to the end.
func (f *aheadFile) Read(p []byte) (int, error) {
	n, err := io.ReadFull(f.r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n, err
}
