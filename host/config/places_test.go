package config

import (
	"fmt"
	"os"
	"testing"
)

func TestFindPlaces(t *testing.T) {
	own := fmt.Sprintf("/run/user/%d", os.Getuid())
	if _, err := os.Stat(own); err != nil {
		own = "/home/u/.local/state/toold/0"
	}
	for _, tt := range []struct {
		name  string
		given Places
		env   map[string]string
		want  Places
	}{
		{"a user's session", Places{}, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7"},
			Places{"0", "/run/user/7/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"no session", Places{}, map[string]string{"HOME": "/home/u"},
			Places{"0", own + "/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"an instance", Places{}, map[string]string{"HOME": "/h", "XDG_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/s", "INSTANCE_ID": "b"},
			Places{"b", "/r/toold/tool-b.sock", "/s/toold/b", "/s/toold/b/admin.sock"}},
		{"variables", Places{}, map[string]string{"TOOL_SOCKET": "/a", "TOOLD_STATE_DIR": "/b", "TOOLD_ADMIN": "/c"},
			Places{"0", "/a", "/b", "/c"}},
		{"relative folders count for nothing", Places{}, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state"},
			Places{"0", own + "/toold/tool-0.sock", "/home/u/.local/state/toold/0", "/home/u/.local/state/toold/0/admin.sock"}},
		{"what is given wins", Places{Socket: "/x", State: "/y"}, map[string]string{"TOOL_SOCKET": "/a", "TOOLD_STATE_DIR": "/b"},
			Places{"0", "/x", "/y", "/y/admin.sock"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := FindPlaces(tt.given, func(k string) string { return tt.env[k] })
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
