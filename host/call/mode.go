package call

import "github.com/toold/toold/host/config"

// Mode is what the reliability layer does with one call.
type Mode int

const (
	Off     Mode = iota // does nothing
	Shadow              // decides, logs and counts
	Enforce             // enforces what it decides
)

// ModeFor returns what the reliability layer does with a call of that class under mode, as configured by the operator
// (see config.Config.ModeOf).
func ModeFor(mode string, mutating bool) Mode {
	switch {
	case mode == config.ReliabilityAll, mode == config.ReliabilityReadOnly && !mutating:
		return Enforce
	case mode == config.ReliabilityShadow, mode == config.ReliabilityReadOnly:
		return Shadow
	}
	return Off
}
