package pdk

import (
	"errors"
	"fmt"

	"github.com/toold/toold/pdk/abi"
)

// Wire is the body of the wire export of a policy: fn is asked about what the
// tool's binary is about to send over the network. It answers with Allow or Deny;
// whatever fails, a nil answer too, refuses what was to be sent.
func Wire(fn func(*abi.Wire) *abi.Decision) (code int32) {
	defer func() {
		if p := recover(); p != nil {
			code = fail(fmt.Errorf("policy panicked: %v", p))
		}
	}()
	return Export(func(in []byte) ([]byte, error) {
		var w abi.Wire
		if err := decodeWire(in, &w); err != nil {
			return nil, fmt.Errorf("read wire: %w", err)
		}
		d := fn(&w)
		if d == nil {
			return nil, errors.New("policy returned no decision")
		}
		return encodeDecision(d), nil
	})
}

// decodeWire reads what wire is asked, as decodeCall reads a Call.
func decodeWire(b []byte, w *abi.Wire) error {
	r := &callReader{b: b}
	r.whole(func(name []byte) {
		switch string(name) {
		case "on":
			w.On = r.string()
		case "host":
			w.Host = r.string()
		case "port":
			w.Port = int(r.int())
		case "path":
			w.Path = r.string()
		case "method":
			w.Method = r.string()
		case "remote":
			w.Remote = r.string()
		case "refs":
			if w.Refs != nil {
				r.fail("refs twice")
				return
			}
			r.sequence('[', ']', func() {
				var ref abi.WireRef
				r.wireRef(&ref)
				w.Refs = append(w.Refs, ref)
			})
		case "push_options":
			w.PushOptions = r.strings()
		case "call":
			w.Call = abi.Call{}
			r.call(&w.Call)
		default:
			r.raw()
		}
	})
	return r.end()
}

func (r *callReader) wireRef(ref *abi.WireRef) {
	r.whole(func(name []byte) {
		switch string(name) {
		case "name":
			ref.Name = r.string()
		case "old":
			ref.Old = r.string()
		case "new":
			ref.New = r.string()
		case "force":
			ref.Force = nil
			if !r.null() {
				force := r.bool()
				ref.Force = &force
			}
		default:
			r.raw()
		}
	})
}
