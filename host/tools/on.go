package tools

import (
	"fmt"
	"slices"
	"strings"
)

// The events of Definition.On.
const (
	OnCallBegin    = "call.begin"    // a call began, including turns and jobs
	OnCallEnd      = "call.end"      // a call ended
	OnJob          = "job"           // a job was accepted, or ended
	OnSessionState = "session.state" // a session was made, suspended, resumed or closed
	OnToolChange   = "tool.change"   // a tool of tools.d changed
)

// onEvents returns all of them.
func onEvents() []string {
	return []string{OnCallBegin, OnCallEnd, OnJob, OnSessionState, OnToolChange}
}

func checkOn(c *checker, d *Definition) {
	for i, name := range d.On {
		at := fmt.Sprintf("/on/%d", i)
		switch {
		case !slices.Contains(onEvents(), name):
			c.fault(at, "is %q; it must be one of %s", name, strings.Join(onEvents(), ", "))
		case slices.Contains(d.On[:i], name):
			c.fault(at, "is %s, which the list has already", name)
		}
	}
}
