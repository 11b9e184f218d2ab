package execute

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/disk"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/trust"
)

// Config is fixed when an Executor is made.
type Config struct {
	// Config returns the daemon's current configuration.
	Config func() *config.Config
	Runner *process.Runner
	// SecretFiles returns the files with tools' secrets, which no binary can read.
	SecretFiles func() []string
	// CertificateFiles returns the files with the certificates of modules. No binary
	// can read those either, except the system's.
	CertificateFiles func() []string
	// ToolCall makes the call in envelope for a module of by, as part of the call
	// parent.
	ToolCall func(ctx context.Context, by *call.Pinned, parent *call.Parent, envelope []byte) []byte
	Metrics  *observe.Metrics
	Log      *slog.Logger
}

// Executor executes calls. It is safe for concurrent use.
type Executor struct {
	Config
	vault
	vars   vars
	gate   egress.Gate
	shims  shims
	trusts trust.Store
}

// New makes an Executor.
func New(c Config) *Executor {
	return &Executor{Config: c, vault: vault{c.Config, c.SecretFiles}}
}

// RemoveLeftSecrets removes from the state folder what an earlier daemon did not
// clean up.
func RemoveLeftSecrets(state string) error {
	if err := os.RemoveAll(filepath.Join(state, callbacksFolder)); err != nil {
		return fmt.Errorf("remove the shims of calls that are over: %w; remove the folder", err)
	}
	if err := os.RemoveAll(filepath.Join(state, trust.Folder)); err != nil {
		return fmt.Errorf("remove what tools trusted: %w; remove the folder", err)
	}
	if err := disk.RemoveTree(filepath.Join(state, secretsFolder)); err != nil {
		return fmt.Errorf("remove the secrets of calls that are over: %w; remove the folder", err)
	}
	return nil
}

// callbacksFolder is the folder in the state folder with the shims of running calls.
const callbacksFolder = "callbacks"
