package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"
)

// TestPoll: a command that waits for its input or a time is told which came,
// and nothing else.
func TestPoll(t *testing.T) {
	// subscription to a clock, or to standard input with kind 1.
	subscription := func(user, kind byte, clock uint32, timeout uint64, absolute uint16) []byte {
		p := make([]byte, 48)
		p[0], p[8] = user, kind
		binary.LittleEndian.PutUint32(p[16:], clock)
		binary.LittleEndian.PutUint64(p[24:], timeout)
		binary.LittleEndian.PutUint16(p[40:], absolute)
		return p
	}
	const ms = uint64(time.Millisecond)
	input := subscription(1, 1, 0, 0, 0)
	soon := subscription(2, 0, 1, 20*ms, 0)
	late := subscription(3, 0, 1, 3_600_000*ms, 0)
	past := subscription(4, 0, 0, 1, 1)
	today := subscription(5, 0, 0, uint64(time.Now().Add(20*time.Millisecond).UnixNano()), 1)
	silent, _ := io.Pipe()
	defer silent.Close()
	e := newEngine(t)
	for _, tt := range []struct {
		name  string
		stdin io.Reader
		subs  [][]byte
		want  []byte // user, kind and what can be read, of each event
	}{
		{"a time from now on", nil, [][]byte{soon, late}, []byte{2, 0, 0}},
		{"a time of day", nil, [][]byte{late, today}, []byte{5, 0, 0}},
		{"a time that has passed", nil, [][]byte{past, late}, []byte{4, 0, 0}},
		{"nothing to read", silent, [][]byte{input, soon}, []byte{2, 0, 0}},
		{"nothing to read, and the past", silent, [][]byte{input, past}, []byte{4, 0, 0}},
		{"something to read", strings.NewReader("abc"), [][]byte{input, late}, []byte{1, 1, 3}},
		{"the end of the input", strings.NewReader(""), [][]byte{input, late}, []byte{1, 1, 0}},
		{"no input", nil, [][]byte{late, input}, []byte{1, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a asm
			poll := a.imp(wasiModule, "poll_oneoff", op(0x7f, 0x7f, 0x7f, 0x7f), op(0x7f))
			write := a.imp(wasiModule, "fd_write", op(0x7f, 0x7f, 0x7f, 0x7f), op(0x7f))
			a.memory(1)
			a.data(0, cat(tt.subs...))
			a.data(1000, binary.LittleEndian.AppendUint32(nil, 2000))
			// The length of what is written is 32 times the number of events.
			a.export("_start", 0, a.fn(nil, nil, nil,
				i32c(0), i32c(2000), i32c(int32(len(tt.subs))), i32c(900), callf(poll), op(0x04, 0x40), unreachable, op(0x0b),
				i32c(1004), i32c(900), load32(0), i32c(32), op(0x6c), store32(0),
				i32c(1), i32c(1000), i32c(1), i32c(900), callf(write), drop))
			m, err := e.Load(t.Context(), Spec{Name: "poll.wasm", Wasm: a.bytes()})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var out bytes.Buffer
			if _, _, err := m.Run(ctx, Command{Stdin: tt.stdin, Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			var got []byte
			for p := out.Bytes(); len(p) >= 32; p = p[32:] {
				got = append(got, p[0], p[10], p[16])
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("events %v, want %v", got, tt.want)
			}
		})
	}
}
