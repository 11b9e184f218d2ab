package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toold/toold/host/strictjson"
)

// ToolCalls are the calls that a module may make: names of tools, "*" for every tool,
// names of session calls. In a file it may also be true, which means all session
// calls except session.watch, with turns of any tool.
type ToolCalls []string

// everySession is the name that true is read as. A list cannot have it.
const everySession = "session.*"

// watchSession is the session call that true does not include, since it was added
// later.
const watchSession = "session.watch"

// SessionCalls returns the session calls that a list may name.
func SessionCalls() []string {
	return []string{"session.query", "session.mutate", "session.prompt", "session.abort", "session.steer", watchSession}
}

// maxToolCalls bounds the names of one list.
const maxToolCalls = 256

// UnmarshalJSON reads true, false or a list of names.
func (t *ToolCalls) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "true":
		*t = ToolCalls{everySession}
		return nil
	case "false":
		*t = nil
		return nil
	}
	var names []string
	if err := strictjson.Unmarshal(b, &names); err != nil {
		return errors.New(`must be true, false or a list of names such as ["git", "hash"]`)
	}
	if slices.Contains(names, everySession) {
		return fmt.Errorf("names %q; name the session calls one by one, or write true for all of them and no tool", everySession)
	}
	*t = names
	return nil
}

// MarshalJSON writes the form that UnmarshalJSON reads.
func (t ToolCalls) MarshalJSON() ([]byte, error) {
	if t.Sessions() {
		return []byte("true"), nil
	}
	return json.Marshal([]string(t))
}

// Sessions reports whether t is true: the session calls, and turns of any tool.
func (t ToolCalls) Sessions() bool { return len(t) == 1 && t[0] == everySession }

// Tool reports whether t has the tool with that name.
func (t ToolCalls) Tool(name string) bool {
	return slices.Contains(t, name) || slices.Contains(t, "*")
}

// Session reports whether t has the session call with that name.
func (t ToolCalls) Session(name string) bool {
	return t.Sessions() && name != watchSession || slices.Contains(t, name)
}
