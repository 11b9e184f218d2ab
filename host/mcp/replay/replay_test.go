package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// by is a context of a request of the identity.
func by(identity string) context.Context {
	return context.WithValue(context.Background(), key{}, identity)
}

type key struct{}

func newStore(most int) *Store {
	return New(most, func(ctx context.Context) string { identity, _ := ctx.Value(key{}).(string); return identity })
}

func (e *Store) must(t testing.TB, session, stream string, index int) []string {
	t.Helper()
	var got []string
	for data, err := range e.After(t.Context(), session, stream, index) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(data))
	}
	return got
}

func TestReplayAfter(t *testing.T) {
	e := newStore(1 << 20)
	if err := e.Open(t.Context(), "a", ""); err == nil {
		t.Error("a session of nobody is opened")
	}
	for _, stream := range []string{"", "one"} {
		e.Open(by("alice"), "a", stream)
		for n := range 3 {
			e.Append(t.Context(), "a", stream, fmt.Append(nil, n))
		}
		for index, want := range map[int][]string{-1: {"0", "1", "2"}, 0: {"1", "2"}, 2: nil, 3: nil, math.MaxInt: nil} {
			if got := e.must(t, "a", stream, index); !slices.Equal(got, want) {
				t.Errorf("after %d of %q: %q, want %q", index, stream, got, want)
			}
		}
	}
	for _, of := range [][2]string{{"a", "two"}, {"b", "one"}, {"", ""}} {
		e.Append(t.Context(), of[0], of[1], []byte("of a stream that is forgotten"))
		said := 0
		for _, err := range e.After(t.Context(), of[0], of[1], -1) {
			said++
			if !errors.Is(err, sdk.ErrEventsPurged) {
				t.Errorf("%q: %v", of, err)
			}
		}
		if said != 1 {
			t.Errorf("%q: %d events and errors, want one error: a client would wait for what does not come", of, said)
		}
	}
	for _, err := range e.After(t.Context(), "a", "one", math.MinInt) {
		if !errors.Is(err, sdk.ErrEventsPurged) {
			t.Errorf("before the first: %v", err)
		}
	}
}

// A flood of one identity, over many sessions, streams or bytes, takes nothing of what
// is kept for another one's client, and what is kept is bounded.
func TestReplayAreShared(t *testing.T) {
	const most = 1 << 20
	for name, flood := range map[string]func(e *Store, n int){
		"streams":  func(e *Store, n int) { e.Open(by("mallory"), "m", fmt.Sprint(n)) },
		"bytes":    func(e *Store, _ int) { e.Append(by("mallory"), "m", "", []byte(strings.Repeat("x", 4<<10))) },
		"one call": func(e *Store, n int) { e.Append(by("mallory"), "m", "long", fmt.Append(nil, n)) },
		"sessions": func(e *Store, n int) {
			session := fmt.Sprint("m", n%64)
			e.Open(by("mallory"), session, "")
			e.Append(by("mallory"), session, "", []byte(strings.Repeat("x", 1<<10)))
		},
	} {
		e := newStore(most)
		e.Open(by("alice"), "a", "")
		e.Open(by("alice"), "a", "call")
		e.Append(t.Context(), "a", "call", []byte("hers"))
		e.Open(by("mallory"), "m", "")
		e.Open(by("mallory"), "m", "long")
		for n := range 20_000 {
			flood(e, n)
		}
		if got := e.must(t, "a", "call", -1); !slices.Equal(got, []string{"hers"}) {
			t.Errorf("%s: what was kept for alice is %q", name, got)
		}
		streams, size := 0, 0
		for _, s := range e.sessions {
			streams += len(s.streams)
		}
		for _, o := range e.owners {
			size += o.size
		}
		if e.size > most || e.size != size || streams > most/perEvent+len(e.sessions) {
			t.Errorf("%s: %d bytes, of owners %d, in %d streams", name, e.size, size, streams)
		}
		// What went is an error, and what is left comes in its order.
		for _, err := range e.After(t.Context(), "m", "long", -1) {
			if name != "sessions" && !errors.Is(err, sdk.ErrEventsPurged) {
				t.Errorf("%s: the first event of a stream that lost it: %v", name, err)
			}
			break
		}
		if name == "one call" {
			if got := e.must(t, "m", "long", 19_996); !slices.Equal(got, []string{"19997", "19998", "19999"}) {
				t.Errorf("the last of it: %q", got)
			}
		}
		e.Append(t.Context(), "unheard", "", []byte("of nobody"))
		e.SessionClosed(t.Context(), "unheard")
		for session := range e.sessions {
			e.SessionClosed(t.Context(), session)
		}
		if e.size != 0 || len(e.owners) != 0 || len(e.sessions) != 0 {
			t.Errorf("%s: %d bytes of %d identities are left of sessions that ended", name, e.size, len(e.owners))
		}
	}
}
