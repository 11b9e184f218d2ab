package config

import (
	"os/user"
	"strings"
	"testing"
)

func TestAccess(t *testing.T) {
	complete := func(c Config) (Config, error) {
		c.Roots = []string{"/w"}
		return c, c.Complete(env(map[string]string{"HOME": "/h"}))
	}
	c, err := complete(Config{Socket: "/s", SocketGroup: "77", Sockets: []Socket{{Path: "/a"}, {Path: "/b", Mode: "0666", Group: "0"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path  string
		mode  uint32
		group int
	}{{"/s", 0o660, 77}, {"/a", 0o660, 77}, {"/b", 0o666, 0}} {
		if mode, group, err := c.Access(tt.path); mode != tt.mode || group != tt.group || err != nil {
			t.Errorf("%s: %o, %d, %v", tt.path, mode, group, err)
		}
	}
	if c, err := complete(Config{Socket: "/s"}); err != nil {
		t.Error(err)
	} else if mode, group, err := c.Access("/s"); mode != 0o660 || group != -1 || err != nil {
		t.Errorf("by default: %o, %d, %v", mode, group, err)
	}
	if g, err := user.LookupGroupId("0"); err == nil {
		if c, err := complete(Config{Socket: "/s", SocketGroup: g.Name}); err != nil {
			t.Error(err)
		} else if _, group, _ := c.Access("/s"); group != 0 {
			t.Errorf("by name: %d", group)
		}
	}
	for want, bad := range map[string]Config{
		`socket_mode "0777": use`:                {SocketMode: "0777"},
		`socket_mode "660": use`:                 {SocketMode: "660"},
		`sockets/0/mode "0662": use`:             {Sockets: []Socket{{Path: "/a", Mode: "0662"}}},
		`socket_group: there is no group "nos"`:  {SocketGroup: "nos"},
		`sockets/0/group: there is no group "-`:  {Sockets: []Socket{{Path: "/a", Group: "-1"}}},
		`socket_group: there is no group "42949`: {SocketGroup: "4294967295"},
	} {
		if _, err := complete(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v is not %s", err, want)
		}
	}
}
