package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toold/toold/host/guest"
	"github.com/toold/toold/host/tools"
)

// Inspection describes a module.
type Inspection struct {
	*guest.Info
	// Imports are Info.Imports, with what grants them.
	Imports []Import `json:"imports"`
	// Needs are the lines of tool.json that grant its imports.
	Needs []string `json:"needs,omitempty"`
	// Fault is why it does not load, with all capabilities granted.
	Fault string `json:"fault,omitempty"`
	// Unshared is why calls cannot start from a shared image of it.
	Unshared string `json:"unshared,omitempty"`
	// Calls are the outcomes of the cases in its folder.
	Calls []Outcome `json:"calls,omitempty"`
}

// Import is something that a module imports.
type Import struct {
	guest.Imported
	// Needs is the line of tool.json that grants it; empty for what every module
	// may import.
	Needs string `json:"needs,omitempty"`
}

// Inspect reads and loads a module, and calls it with the cases in its folder.
func Inspect(ctx context.Context, file, cache string) (*Inspection, error) {
	if st, err := os.Stat(file); err == nil && st.IsDir() {
		return nil, fmt.Errorf("inspect %s: it is a folder; name a module in it, such as %s", file, filepath.Join(file, handlerFile))
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w; toolctl plugin build makes it", err)
	}
	info, err := guest.Inspect(filepath.Base(file), b)
	if err != nil {
		return nil, tools.Explain(err)
	}
	got := &Inspection{Info: info, Needs: Needs(info)}
	for _, im := range info.Imports {
		got.Imports = append(got.Imports, Import{im, tools.Granting(im.Needs)})
	}
	dir := filepath.Dir(file)
	w, err := OpenRunner(dir, cache)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	// Grant everything: what the operator grants does not change the cost.
	s := spec(filepath.Base(file), b, w.def)
	s.Grants = guest.AllGrants
	m, err := w.engine.Load(ctx, s)
	if err != nil {
		got.Fault = tools.Explain(err).Error()
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
