package sshshim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
)

// What a shim is answered has the bounds that it holds the daemon to, and one that
// takes no more is told of once.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out)
	text := strings.Repeat("x", 2*maxFrame+1)
	io.WriteString(w.Stdout(), text)
	io.WriteString(w.Stderr(), "e")
	w.Exit(3)
	got := map[byte]string{}
	for out.Len() > 0 {
		head := out.Next(5)
		n := binary.BigEndian.Uint32(head[1:])
		if n > maxFrame {
			t.Fatalf("a frame of %d bytes", n)
		}
		got[head[0]] += string(out.Next(int(n)))
	}
	if got[frameOut] != text || got[frameErr] != "e" || got[frameExit] != "\x03" {
		t.Errorf("%.100q", got)
	}
	left := 0
	w = NewWriter(closed{})
	w.OnLeft(func() error { left++; return nil })
	for range 2 {
		if _, err := io.WriteString(w.Stdout(), "x"); err == nil {
			t.Error("it was written")
		}
	}
	if left != 1 {
		t.Errorf("told %d times", left)
	}
}

type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("closed") }

// FuzzReadRequest: whatever comes, it is read or refused, and a bound is kept.
func FuzzReadRequest(f *testing.F) {
	for _, s := range []string{`{"args":["git@host","git-upload-pack 'x'"],"protocol":"version=2"}`, `{"args":[],"sign":"dHJlZQ=="}`, `{}`, `{"args":null,"more":1}`} {
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...))
	}
	f.Add(binary.BigEndian.AppendUint32(nil, maxRequest+1))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		q, err := ReadRequest(in)
		if (q == nil) != (err != nil) {
			t.Errorf("%v, %v", q, err)
		}
		if len(b) >= 4 && binary.BigEndian.Uint32(b) > maxRequest && (err == nil || len(b)-in.Len() > 4) {
			t.Error("more than the bound was read")
		}
	})
}
