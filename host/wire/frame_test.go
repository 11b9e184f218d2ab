package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// code is the code of err, "" where it has none.
func code(err error) fault.Code {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestFrameBoundary(t *testing.T) {
	if wire.MaxFrame != 65536 {
		t.Fatalf("the limit is %d", wire.MaxFrame)
	}
	for _, n := range []int{0, 1, wire.MaxFrame - 1, wire.MaxFrame} {
		var b bytes.Buffer
		text := bytes.Repeat([]byte{'x'}, n)
		if err := wire.WriteFrame(&b, text); err != nil {
			t.Fatalf("write %d bytes: %v", n, err)
		}
		if b.Len() != n+4 {
			t.Errorf("a frame of %d bytes takes %d", n, b.Len())
		}
		got, err := wire.ReadFrame(iotest.OneByteReader(&b))
		if err != nil || !bytes.Equal(got, text) {
			t.Errorf("read %d bytes: got %d, %v", n, len(got), err)
		}
	}
	var b bytes.Buffer
	if err := wire.WriteFrame(&b, make([]byte, wire.MaxFrame+1)); code(err) != fault.MessageTooLarge || b.Len() != 0 {
		t.Errorf("write over the limit: %v, and wrote %d bytes", err, b.Len())
	}
	header := binary.BigEndian.AppendUint32(nil, wire.MaxFrame+1)
	rest := strings.NewReader(string(header) + "not read")
	if _, err := wire.ReadFrame(rest); code(err) != fault.MessageTooLarge {
		t.Errorf("read over the limit: %v", err)
	}
	if rest.Len() != len("not read") {
		t.Errorf("read past the length of a frame that is too large")
	}
}

func TestReadFrameCutShort(t *testing.T) {
	for in, want := range map[string]error{
		"":                  io.EOF,
		"\x00":              io.ErrUnexpectedEOF,
		"\x00\x00\x00":      io.ErrUnexpectedEOF,
		"\x00\x00\x00\x02":  io.ErrUnexpectedEOF,
		"\x00\x00\x00\x02{": io.ErrUnexpectedEOF,
	} {
		if _, err := wire.ReadFrame(strings.NewReader(in)); err != want {
			t.Errorf("read %q: %v, want %v", in, err, want)
		}
	}
}

func TestWriteFrameIsOneWrite(t *testing.T) {
	w := &countingWriter{}
	if err := wire.WriteFrame(w, []byte("{}")); err != nil || w.writes != 1 {
		t.Errorf("%d writes, %v", w.writes, err)
	}
}

type countingWriter struct{ writes int }

func (w *countingWriter) Write(p []byte) (int, error) {
	w.writes++
	return len(p), nil
}

func TestChunkFitsInAFrame(t *testing.T) {
	data := bytes.Repeat([]byte{0xFF}, wire.MaxChunk+1)
	frame := wire.AppendChunk(nil, wire.TypeStdout, data)
	json, err := wire.ReadFrame(bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	p, err := wire.ParseResponse(json)
	if err != nil || p.Type != wire.TypeStdout || !bytes.Equal(p.Data, data[:wire.MaxChunk]) {
		t.Fatalf("got %d bytes of %q, %v", len(p.Data), p.Type, err)
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}\x00\x00\x00\x01x"))
	f.Add([]byte("\x00\x01\x00\x01"))
	f.Add([]byte("\xFF\xFF\xFF\xFF{}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var again bytes.Buffer
		for {
			frame, err := wire.ReadFrame(r)
			if err != nil {
				if err != io.EOF && err != io.ErrUnexpectedEOF && code(err) != fault.MessageTooLarge {
					t.Fatal(err)
				}
				break
			}
			if err := wire.WriteFrame(&again, frame); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(in, again.Bytes()) {
			t.Fatalf("%q was read as %q", in, again.Bytes())
		}
	})
}
