package config

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"
)

// Access returns the mode of the socket at path, which is one of c, and its group, -1 for the daemon's own.
func (c *Config) Access(path string) (mode uint32, group int, err error) {
	text, name := c.SocketMode, c.SocketGroup
	for _, s := range c.Sockets {
		if s.Path == path {
			text, name = s.Mode, s.Group
		}
	}
	bits, err := strconv.ParseUint(text, 8, 32)
	if err != nil {
		return 0, -1, fmt.Errorf("socket mode %q: %w", text, err)
	}
	group, err = groupID(name)
	return uint32(bits), group, err
}

// groupID returns the number of a group given by name or number; -1 if none is given.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	// To the kernel, the highest number means "leave unchanged".
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && n < 1<<32-1 {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if errors.As(err, new(user.UnknownGroupError)) {
		return -1, fmt.Errorf("there is no group %q; groupadd makes one, or give its number", name)
	}
	if err != nil {
		return -1, fmt.Errorf("find the group %q: %w; give its number", name, err)
	}
	return strconv.Atoi(g.Gid)
}
