package names

import (
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func FuzzQuery(f *testing.F) {
	f.Add(query(f, "localhost.", dnsmessage.TypeA))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Server{}
		if reply, err := s.Answer(t.Context(), b); err == nil {
			var m dnsmessage.Message
			if err := m.Unpack(reply); err != nil {
				t.Errorf("%q: %v", reply, err)
			}
		}
	})
}

func query(t testing.TB, name string, kind dnsmessage.Type) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
