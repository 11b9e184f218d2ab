package catalog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/tools"
)

// Await waits until every call of the tool that begins is one of the version with
// digest: the beginning, of 8 characters or more, of the version, or of the sha256
// of a policy or of the module. It looks at the disk itself. Errors are
// *fault.Error: UNKNOWN_TOOL, TOOL_BROKEN when what is on disk does not load, and
// TIMEOUT when ctx ends.
func (c *Catalog) Await(ctx context.Context, name, digest string) error {
	for {
		// A load that began after the caller asked has seen the files of then.
		select {
		case <-c.reconcile(name):
		case <-ctx.Done():
			return fault.Errorf(fault.Timeout, "the version %s of tool %s does not serve yet; toolctl tools %s says what does", digest, name, name)
		case <-c.ctx.Done():
			return fault.Errorf(fault.Overloaded, "this daemon is shutting down; try again")
		}
		list := c.List()
		at := slices.IndexFunc(list, func(s Status) bool { return s.Name == name })
		if at < 0 {
			return tools.Unknown(name)
		}
		switch s := &list[at]; {
		case s.has(digest):
			return nil
		case s.State == StateBroken, s.State == StateStale:
			return fault.Errorf(fault.ToolBroken, "%s", s.Reason)
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
		}
	}
}

// has reports whether digest is that of a part of the version that serves.
func (s *Status) has(digest string) bool {
	return slices.ContainsFunc(append([]string{s.Version, s.HandlerDigest}, s.PolicyDigests...), func(d string) bool {
		return len(digest) >= 8 && strings.HasPrefix(d, strings.ToLower(digest))
	})
}
