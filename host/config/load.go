package config

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/toold/toold/host/places"
	"github.com/toold/toold/host/regular"
	"github.com/toold/toold/host/strictjson"
)

// Load reads toold.json if it exists, and applies variables on top. If file is empty, TOOLD_CONFIG names it, and
// without that the defaults apply. The caller sets flags on the result before Complete.
func Load(file string, env Env) (Config, error) {
	var c Config
	if file == "" {
		file, _ = env("TOOLD_CONFIG")
	}
	if file != "" {
		abs, err := filepath.Abs(file)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w", err)
		}
		data, err := regular.ReadFile(abs)
		if err != nil {
			return c, fmt.Errorf("read configuration: %w; check --config", err)
		}
		if err := strictjson.Unmarshal(data, &c); err != nil {
			return c, fmt.Errorf("read configuration %s: %w; `toolctl schema config` prints what may be there", file, err)
		}
		if err := checkValues(data); err != nil {
			return c, fmt.Errorf("read configuration %s: %w; `toolctl schema config` prints what may be there", file, err)
		}
		c.File = abs
	}
	for _, v := range []struct {
		name string
		to   *string
	}{
		{"INSTANCE_ID", &c.Instance},
		{"TOOLD_TOOLS", &c.Tools},
		{"TOOLD_RESTRICTED", &c.Restricted},
		{"TOOL_SOCKET", &c.Socket},
		{"TOOLD_ADMIN", &c.Admin},
		{"TOOLD_STATE_DIR", &c.State},
		{"TOOLD_METRICS", &c.Metrics},
		{"TOOLD_MCP", &c.MCP},
		{"TOOLD_DASHBOARD", &c.Dashboard},
		{"TOOLD_LOG_LEVEL", &c.LogLevel},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &c.Traces},
		{"TOOLD_STORE", &c.Store},
		{"TOOL_RELIABILITY_ENABLED", &c.Reliability},
	} {
		if s, ok := env(v.name); ok && s != "" {
			*v.to = s
		}
	}
	if s, ok := env("OTEL_EXPORTER_OTLP_ENDPOINT"); ok && s != "" && c.Traces == "" {
		c.Traces = strings.TrimSuffix(s, "/") + "/v1/traces"
	}
	if s, ok := env("TOOLD_ROOTS"); ok && s != "" {
		c.Roots = filepath.SplitList(s)
	}
	return c, nil
}

// Override sets in c every text that is set in o, such as a flag.
func (c *Config) Override(o Config) {
	for _, f := range []struct{ to, from *string }{
		{&c.Tools, &o.Tools}, {&c.Restricted, &o.Restricted}, {&c.Socket, &o.Socket},
		{&c.Admin, &o.Admin}, {&c.Instance, &o.Instance}, {&c.State, &o.State},
		{&c.Metrics, &o.Metrics}, {&c.MCP, &o.MCP}, {&c.Dashboard, &o.Dashboard}, {&c.LogLevel, &o.LogLevel},
		{&c.Store, &o.Store}, {&c.Reliability, &o.Reliability},
	} {
		if *f.from != "" {
			*f.to = *f.from
		}
	}
}

// places returns the paths that c sets so far.
func (c *Config) places() places.Places {
	return places.Places{Instance: c.Instance, Socket: c.Socket, State: c.State, Admin: c.Admin}
}

// LookPlaces returns where a client finds its daemon: flags take precedence over variables, these over the toold.json
// that TOOLD_CONFIG names, and that over the defaults.
func LookPlaces(flags places.Places, env Env) (places.Places, error) {
	c, err := Load("", env)
	if err != nil {
		return places.Places{}, err
	}
	c.Override(Config{Instance: flags.Instance, Socket: flags.Socket, State: flags.State, Admin: flags.Admin})
	return places.Look(c.places(), func(name string) string { v, _ := env(name); return v }), nil
}

// readDotEnv reads NAME=value lines into values. Empty lines and lines that begin with # are skipped; single or double
// quotes around a value are removed; nothing is expanded.
func readDotEnv(path string, values map[string]string) error {
	f, err := OpenSecret(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			// The line may hold a secret: it is not quoted.
			return fmt.Errorf("read %s: line %d is not NAME=value", path, n)
		}
		value = strings.TrimSpace(value)
		if l := len(value); l >= 2 && (value[0] == '"' || value[0] == '\'') && value[l-1] == value[0] {
			value = value[1 : l-1]
		}
		values[name] = value
	}
	return sc.Err()
}
