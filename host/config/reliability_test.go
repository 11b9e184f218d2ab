package config

import (
	"strings"
	"testing"
)

func TestReadReliability(t *testing.T) {
	for in, want := range map[string]string{"true": "all", "TRUE": "all", "1": "all", "false": "off", "Shadow": "shadow", "": ""} {
		if got, err := readReliability(in); got != want || err != nil {
			t.Errorf("%q is %q, %v", in, got, err)
		}
	}
	if _, err := readReliability("on"); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("on: %v", err)
	}
}
