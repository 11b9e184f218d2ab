package hello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// What begins like TLS and is none is refused; what does not is passed on.
func TestHello(t *testing.T) {
	for _, tt := range []struct {
		in   string
		tls  bool
		fail error
	}{
		{"", false, nil},
		{"GET / HTTP/1.1", false, nil},
		{"\x16", false, nil},
		{"\x16\x04\x01\x00\x10\x01", false, nil},
		{"\x16\x03\x01\x00\x10\x02and more of it...", false, ErrNone},
		{"\x16\x03", false, ErrNone},
		{"\x13\x03\x01\x00\x02\x01\x5a", false, nil},
		{"\x16\x03\x01\x00\x10\x01and more of it...", false, ErrNone},
		{"\x16\x03\x01\xff\xff\x01", false, ErrNone},
	} {
		begin, names, err := Read(strings.NewReader(tt.in))
		if !errors.Is(err, tt.fail) || names != nil != tt.tls || err == nil && string(begin) != tt.in {
			t.Errorf("%q: %q, %v, %v", tt.in, begin, names, err)
		}
	}
}

// What servers skip before a ClientHello does not hide its server name.
func TestHelloIsFirst(t *testing.T) {
	var hello bytes.Buffer
	tls.Client(keeps{&hello}, &tls.Config{ServerName: "elsewhere.example"}).Handshake()
	hello.Truncate(5 + int(binary.BigEndian.Uint16(hello.Bytes()[3:]))) // without the alert
	for name, before := range map[string]string{
		"an empty record":            "\x16\x03\x01\x00\x00",
		"a warning":                  "\x15\x03\x01\x00\x02\x01\x5a",
		"a change of ciphers":        "\x14\x03\x01\x00\x01\x01",
		"a request to begin":         "\x16\x03\x01\x00\x04\x00\x00\x00\x00",
		"a record of empty contents": "\x17\x03\x01\x00\x00",
	} {
		if _, names, err := Read(strings.NewReader(before + hello.String())); err != ErrNone {
			t.Errorf("%s: %+v, %v", name, names, err)
		}
	}
	// In two records it is one all the same.
	b := hello.Bytes()
	halves := append([]byte{22, 3, 1, 0, 1}, b[5])
	halves = append(binary.BigEndian.AppendUint16(append(halves, 22, 3, 1), uint16(len(b)-6)), b[6:]...)
	begin, names, err := Read(bytes.NewReader(halves))
	if err != nil || names == nil || names.Server != "elsewhere.example" || !bytes.Equal(begin, halves) {
		t.Errorf("in two records: %+v, %v", names, err)
	}
}

// keeps is a connection that keeps what is written, and has nothing to read.
type keeps struct{ written *bytes.Buffer }

func (k keeps) Read([]byte) (int, error)         { return 0, io.EOF }
func (k keeps) Write(b []byte) (int, error)      { return k.written.Write(b) }
func (keeps) Close() error                       { return nil }
func (keeps) LocalAddr() net.Addr                { return nil }
func (keeps) RemoteAddr() net.Addr               { return nil }
func (keeps) SetDeadline(time.Time) error        { return nil }
func (keeps) SetReadDeadline(t time.Time) error  { return nil }
func (keeps) SetWriteDeadline(t time.Time) error { return nil }

func FuzzHello(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x00\x10\x01and more of it..."))
	f.Add([]byte("SSH-2.0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		begin, names, err := Read(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, begin) {
			t.Errorf("%q became %q", b, begin)
		}
		if names == nil && err == nil && len(b) > 1 && b[0] >= 20 && b[0] <= 24 && b[1] == 3 {
			t.Errorf("%q passes as no TLS", b)
		}
	})
}
