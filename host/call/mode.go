package call

import "github.com/toold/toold/host/config"

// ModeFor is what the reliability layer does with a call of that class, where an
// operator wrote mode (see config.Config.ModeOf).
func ModeFor(mode string, mutating bool) Mode {
	switch {
	case mode == config.ReliabilityAll, mode == config.ReliabilityReadOnly && !mutating:
		return Enforce
	case mode == config.ReliabilityShadow, mode == config.ReliabilityReadOnly:
		return Shadow
	}
	return Off
}
