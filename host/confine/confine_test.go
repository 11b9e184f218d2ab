package confine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toold/toold/host/confine"
)

func TestLookUpUser(t *testing.T) {
	for text, want := range map[string]string{
		"nobody": "65534:", "54321:54322": "54321:54322", "root": "root", "0": "root", "0:1": "root", "5:0": "root", "54321": "not a user",
		"": "not a user", "no-such-user": "not a user", "-1:5": "neither", "4294967295:5": "neither", "1:2:3": "neither",
	} {
		u, err := confine.LookUpUser(text)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("%d:%d", u.UID, u.GID)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
