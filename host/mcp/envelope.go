package mcp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// envelope returns p as a call. It is written and read as a frame of the tool socket, so
// that the same is taken on both.
func envelope(name string, as Caller, p *sdk.CallToolParamsRaw) (*wire.Call, *fault.Error) {
	payload := p.Arguments
	if len(payload) == 0 || string(payload) == "null" {
		payload = json.RawMessage("{}")
	}
	frame, err := json.Marshal(struct {
		Tool    string          `json:"toolId"`
		ID      string          `json:"executionId"`
		Payload json.RawMessage `json:"payload"`
		Token   string          `json:"token,omitempty"`
		Session string          `json:"session,omitempty"`
		Key     any             `json:"idempotencyKey,omitempty"`
		Retry   any             `json:"retry,omitempty"`
	}{name, wire.NewExecutionID(), payload, as.Token, as.Session, p.Meta[metaKey], p.Meta[metaRetry]})
	if err != nil {
		return nil, fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
	}
	msg, err := wire.Parse(frame)
	if err != nil {
		e, ok := err.(*fault.Error)
		if !ok {
			e = fault.Errorf(fault.InvalidEnvelope, "%w", err)
		}
		return nil, e
	}
	made, ok := msg.(*wire.Call)
	if !ok {
		return nil, fault.Errorf(fault.Internal, "a call was read as %T; report this", msg)
	}
	if made.Cwd == "" && strings.IndexByte(as.Cwd, 0) < 0 {
		made.Cwd = as.Cwd
	}
	return made, nil
}

// maxTurn is the longest name of a turn, in bytes.
const maxTurn = 256

// turnKeyOf derives a key for a call without one from what it is and the turn that its
// client names; empty without a turn. In one turn of an agent
// the same change again is one that is repeated; without that nobody could tell it from
// one that is meant twice.
func turnKeyOf(name string, payload json.RawMessage, meta sdk.Meta) (string, *fault.Error) {
	_, given := meta[metaKey]
	turn, named := meta[metaTurn]
	if given || !named {
		return "", nil
	}
	text, ok := turn.(string)
	if !ok || text == "" || len(text) > maxTurn {
		return "", fault.Errorf(fault.InvalidEnvelope, "_meta %s is not a string of 1 to %d bytes", metaTurn, maxTurn)
	}
	sum, err := digestOfCall(text, name, payload)
	if err != nil {
		return "", fault.Errorf(fault.InvalidPayload, "read the arguments: %w", err)
	}
	return "turn-" + hex.EncodeToString(sum[:]), nil
}

// digestOfCall returns a digest that does not depend on the order of members in the
// arguments.
func digestOfCall(turn, name string, payload json.RawMessage) (sum [32]byte, err error) {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var args any
	if err := decoder.Decode(&args); err != nil {
		return sum, err
	}
	same, err := json.Marshal([]any{turn, name, args})
	return sha256.Sum256(same), err
}
