package config

import (
	"fmt"
)

// AuditConfig configures the audit log: see package audit. A reload changes it.
type AuditConfig struct {
	// Mode is "on", or "off": then nothing is logged, and calls that change something run without a record. Default
	// "on".
	Mode string `json:"mode,omitempty"`
	// MaxBytes bounds the log, in bytes; at least 1 MiB. The oldest records are removed. Default 1 GiB.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	// MaxAgeDays is the age in days after which a record may be removed. Default 90.
	MaxAgeDays int `json:"max_age_days,omitempty"`
}

const minAuditBytes = 1 << 20

func (a *AuditConfig) complete() error {
	if a.Mode == "" {
		a.Mode = "on"
	}
	if a.MaxBytes == 0 {
		a.MaxBytes = 1 << 30
	}
	if a.MaxAgeDays == 0 {
		a.MaxAgeDays = 90
	}
	switch {
	case a.Mode != "on" && a.Mode != "off":
		return fmt.Errorf("audit: mode %q: use on or off", a.Mode)
	case a.MaxBytes < minAuditBytes:
		return fmt.Errorf("audit: max_bytes %d: give it at least %d", a.MaxBytes, minAuditBytes)
	case a.MaxAgeDays < 0 || a.MaxAgeDays > 36500:
		return fmt.Errorf("audit: max_age_days %d: use 1 to 36500", a.MaxAgeDays)
	}
	return nil
}
