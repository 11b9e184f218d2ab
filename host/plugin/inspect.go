package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/guest"
)

// Inspected is all that can be said of a module.
type Inspected struct {
	*guest.Info
	// Needs are the lines of tool.json that grant what it imports.
	Needs []string `json:"needs,omitempty"`
	// Fault is why it does not load, with all granted.
	Fault string `json:"fault,omitempty"`
	// Unshared is why calls cannot begin from a shared image of it.
	Unshared string `json:"unshared,omitempty"`
	// Calls are those of the cases beside it, and what each cost.
	Calls []Outcome `json:"calls,omitempty"`
}

// Inspect reads, loads and, where there are cases beside it, calls a module.
func Inspect(ctx context.Context, file, cache string) (*Inspected, error) {
	if st, err := os.Stat(file); err == nil && st.IsDir() {
		return nil, fmt.Errorf("inspect %s: it is a folder; name a module in it, such as %s", file, filepath.Join(file, handlerFile))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w; toolctl plugin build makes it", err)
	}
	info, err := guest.Inspect(filepath.Base(file), b)
	if err != nil {
		return nil, err
	}
	got := &Inspected{Info: info, Needs: Needs(info)}
	dir := filepath.Dir(file)
	w, err := OpenWorkbench(dir, cache)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	// What the module may have is the operator's matter; what it costs is not
	// changed by it.
	s := spec(filepath.Base(file), b, w.def)
	s.Grants = guest.Grants{Exec: true, HTTP: true, State: true, ToolCall: true}
	m, err := w.engine.Load(ctx, s)
	if err != nil {
		got.Fault = err.Error()
		return got, nil
	}
	w.loaded[filepath.Base(file)] = m
	got.Unshared = m.Unshared()
	cases, err := LoadCases(filepath.Join(dir, CasesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return got, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range cases {
		if target, _ := w.target(&cases[i]); target == filepath.Base(file) {
			got.Calls = append(got.Calls, w.Run(ctx, &cases[i]))
		}
	}
	return got, nil
}
