package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/toold/toold/host/strictjson"
	"github.com/toold/toold/host/wire/callbacks"
)

// maxCallbackKinds is the maximum number of kinds of programs that a request offers.
const maxCallbackKinds = 16

// checkCallbacks validates what a request offers.
func (c *Call) checkCallbacks() error {
	switch {
	case len(c.Callbacks) == 0:
		return nil
	case !c.Stream:
		return refuse("/callbacks", "is there, but /stream is not true: a callback is a part of the stream")
	case len(c.Callbacks) > maxCallbackKinds:
		return refuse("/callbacks", "has more than 16 kinds")
	}
	for i, kind := range c.Callbacks {
		if !callbackName(kind) {
			return refuse("/callbacks/"+strconv.Itoa(i), "is not a name of small letters, digits and -, of at most 64 bytes")
		}
	}
	return nil
}

func callbackName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

func parseCallbackReply(frame []byte) (*callbacks.Reply, error) {
	var q struct {
		Type   string     `json:"type"`
		ID     *int       `json:"id"`
		Stdout base64Text `json:"stdout"`
		Stderr base64Text `json:"stderr"`
		Ack    int        `json:"ack"`
		Exit   *int       `json:"exit"`
		Error  string     `json:"error"`
	}
	if err := strictjson.Unmarshal(frame, &q); err != nil {
		return nil, err
	}
	switch {
	case q.ID == nil || *q.ID < 1:
		return nil, refuse("/id", "is missing or not positive; it is that of the callback")
	case q.Ack < 0:
		return nil, refuse("/ack", "is below 0; it is how many further bytes were taken")
	case q.Exit != nil && (*q.Exit < 0 || *q.Exit > 255):
		return nil, refuse("/exit", "is not from 0 to 255")
	}
	return &callbacks.Reply{ID: *q.ID, Stdout: q.Stdout, Stderr: q.Stderr, Ack: q.Ack, Exit: q.Exit, Error: q.Error}, nil
}

// parseCallback parses a callback frame from a server. Unknown fields are ignored.
func parseCallback(frame []byte) (*callbacks.Frame, error) {
	var f callbacks.Frame
	if err := json.Unmarshal(frame, &f); err != nil {
		return nil, fmt.Errorf("read a callback: %w", err)
	}
	if f.ID < 1 || f.Ack < 0 {
		return nil, errors.New("read a callback: /id or /ack is out of bounds")
	}
	return &f, nil
}
