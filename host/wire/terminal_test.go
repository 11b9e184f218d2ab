package wire

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/toold/toold/host/fault"
)

func TestTTY(t *testing.T) {
	offered := &TTY{Rows: 24, Cols: 80, Term: "xterm-256color", ColorTerm: "truecolor", Stderr: true}
	for _, c := range []*Call{
		{Tool: "git", Args: []string{"log"}, Cwd: "/", Stream: true, TTY: offered},
		{Form: Envelope, Tool: "git", ExecutionID: NewExecutionID(), Args: []string{"log"}, Cwd: "/", Stream: true, TTY: offered},
		{Tool: "git", Args: []string{strings.Repeat("long", 1<<15)}, Cwd: "/", Stream: true, TTY: offered},
	} {
		frames, err := EncodeRequest(c)
		if err != nil {
			t.Fatal(err)
		}
		m, err := Parse(frames[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := m.(*Call).TTY; !reflect.DeepEqual(got, offered) {
			t.Errorf("%s: %+v", frames[0], got)
		}
	}
	for frame, want := range map[string]string{
		`{"tool":"git","tty":{}}`:                                                       "/tty: is there, but /stream",
		`{"tool":"git","stream":true,"stdin":"","tty":{}}`:                              "/tty: is there, and so is the input",
		`{"tool":"git","stream":true,"tty":{"term":"../../etc/x"}}`:                     "/tty/term: is not the name",
		`{"tool":"git","stream":true,"tty":{"term":".hidden"}}`:                         "/tty/term: is not the name",
		`{"tool":"git","stream":true,"tty":{"term":"a\nb"}}`:                            "/tty/term: is not the name",
		`{"tool":"git","stream":true,"tty":{"colorterm":"()"}}`:                         "/tty/colorterm: is not a kind",
		`{"tool":"git","stream":true,"tty":{"rows":65536}}`:                             "/tty/rows: ",
		`{"tool":"git","stream":true,"tty":{"rows":-1}}`:                                "/tty/rows: ",
		`{"tool":"git","stream":true,"tty":{"size":1}}`:                                 "/tty/size: is not a known name",
		`{"type":"resize","rows":1}`:                                                    "/cols: is missing",
		`{"type":"resize","cols":1}`:                                                    "/rows: is missing",
		`{"type":"resize","rows":1,"cols":70000}`:                                       "/cols: ",
		`{"tool":"git","stream":true,"tty":{"term":"` + strings.Repeat("x", 65) + `"}}`: "/tty/term: is not the name",
	} {
		_, err := Parse([]byte(frame))
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Code != fault.InvalidEnvelope || !strings.HasPrefix(e.Message, want) {
			t.Errorf("%s: %v, not %q", frame, err, want)
		}
	}
	m, err := Parse(EncodeResize(Size{Rows: 50, Cols: 132}))
	if typed, ok := m.(*Typed); err != nil || !ok || typed.Size != (Size{50, 132}) || typed.Type != TypeResize {
		t.Errorf("%+v, %v", m, err)
	}
	if p, err := ParseResponse(EncodeTerminal()); err != nil || p.Type != TypeStdin || !p.Open || !p.TTY {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := ParseResponse(EncodeOpen()); err != nil || p.TTY {
		t.Errorf("%+v, %v", p, err)
	}
}

// A server without terminals refuses the field by its name.
func TestUnknownTTY(t *testing.T) {
	_, err := Parse([]byte(`{"tool":"git","stream":true,"ttx":{"rows":24}}`))
	old, _ := errors.AsType[*fault.Error](err)
	old.Message = strings.Replace(old.Message, "/ttx", "/tty", 1)
	if !UnknownTTY(old) {
		t.Errorf("%v", old)
	}
	for _, e := range []*fault.Error{nil, fault.Errorf(fault.InvalidEnvelope, "/tty/term: is not the name"), fault.Errorf(fault.Denied, "/tty: no")} {
		if UnknownTTY(e) {
			t.Errorf("%v", e)
		}
	}
}
