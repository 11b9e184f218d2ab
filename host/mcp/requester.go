package mcp

import "context"

// requester makes requests: a client with the calls of it that ask something, and the
// lists that it was given.
type requester struct {
	*client
	dialogs dialogs
	lists   lists
}

func newRequester(config Config, waits *waits, who Peer, maxCalls, maxListens int) *requester {
	c := &client{config: config, who: who, maxCalls: maxCalls, maxListens: maxListens}
	c.left, c.leave = context.WithCancelCause(context.Background())
	return &requester{
		client:  c,
		dialogs: dialogs{client: c, waits: waits, states: map[string]*dialog{}},
		lists:   lists{client: c, changed: make(chan struct{}, 1), listed: map[string]listed{}, mirrored: map[string]string{}},
	}
}
