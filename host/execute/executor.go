package execute

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/config"
	"github.com/toold/toold/host/egress"
	"github.com/toold/toold/host/observe"
	"github.com/toold/toold/host/process"
	"github.com/toold/toold/host/trust"
)

// Config is fixed when an Executor is made.
type Config struct {
	// Config is the daemon's configuration in force.
	Config func() *config.Config
	Runner *process.Runner
	// SecretFiles are the files in which tools have secrets; no binary reads them.
	SecretFiles func() []string
	// CertificateFiles are the files with the certificates of modules. No binary
	// reads those either, but for what is the system's.
	CertificateFiles func() []string
	// ToolCall makes a call that the module of by asked for in a call that is
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

// RemoveLeftSecrets removes from the state folder what a daemon before this one
// could not clean up after.
func RemoveLeftSecrets(state string) error {
	if err := os.RemoveAll(filepath.Join(state, callbacksFolder)); err != nil {
		return fmt.Errorf("remove the shims of calls that are over: %w; remove the folder", err)
	}
	if err := os.RemoveAll(filepath.Join(state, trust.Folder)); err != nil {
		return fmt.Errorf("remove what tools trusted: %w; remove the folder", err)
	}
	if err := os.RemoveAll(filepath.Join(state, secretsFolder)); err != nil {
		return fmt.Errorf("remove the secrets of calls that are over: %w; remove the folder", err)
	}
	return nil
}

// callbacksFolder is the folder in the state folder with the shims of calls that run.
const callbacksFolder = "callbacks"
