package config

import (
	"fmt"
	"strings"
)

// The modes of the reliability layer, of a daemon and of a tool.
const (
	// ReliabilityOff: calls run as if there were no such layer.
	ReliabilityOff = "off"
	// ReliabilityShadow: the layer's decisions are made, logged and counted; calls run as if it were off.
	ReliabilityShadow = "shadow"
	// ReliabilityReadOnly: calls that change nothing go through the layer, mutating ones are as in shadow.
	ReliabilityReadOnly = "read-only"
	// ReliabilityAll: every call goes through the layer.
	ReliabilityAll = "all"
)

// readReliability parses the mode that an operator set; "" means unset.
func readReliability(s string) (string, error) {
	switch strings.ToLower(s) {
	case "true", "1":
		return ReliabilityAll, nil
	case "false", "0":
		return ReliabilityOff, nil
	case "", ReliabilityOff, ReliabilityShadow, ReliabilityReadOnly, ReliabilityAll:
		return strings.ToLower(s), nil
	}
	return "", fmt.Errorf("reliability %q: use off, shadow, read-only or all", s)
}
