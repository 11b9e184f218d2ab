package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/toold/toold/host/tools"
)

// Measurement is the cost of a module.
type Measurement struct {
	File string `json:"file"`
	Size int    `json:"size"`
	// LoadMS is the time to read, compile without a cache, and initialise.
	LoadMS float64 `json:"load_ms"`
	// FirstUS is the time of the first call; P50US and P99US are those of Calls
	// further ones, each from the same initial state.
	FirstUS float64 `json:"first_us"`
	P50US   float64 `json:"p50_us"`
	P99US   float64 `json:"p99_us"`
	Calls   int     `json:"calls"`
	Fuel    int64   `json:"fuel"`
	Pages   int     `json:"pages"`
	Memory  int64   `json:"peak_memory"`
	// NotRestored is why calls do not share an image; such calls are slower.
	NotRestored string `json:"not_restored,omitempty"`
}

// Bench measures the calls of a case. module, if not empty, replaces the folder's.
func Bench(ctx context.Context, dir, module string, c *Case, calls int) (*Measurement, error) {
	w, err := OpenRunner(dir, "")
	if err != nil {
		return nil, err
	}
	defer w.Close()
	file, _ := w.target(c)
	path := firstNonEmpty(module, filepath.Join(dir, file))
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; toolctl plugin build makes it", err)
	}
	start := time.Now()
	m, err := w.engine.Load(ctx, spec(filepath.Base(path), b, w.def))
	if err != nil {
		return nil, tools.Explain(err)
	}
	out := &Measurement{File: path, Size: len(b), LoadMS: float64(time.Since(start).Microseconds()) / 1000, NotRestored: m.Unshared()}
	w.loaded[file] = m
	times := make([]float64, 0, calls)
	for i := range calls + 1 {
		reply, rec, took, err := w.call(ctx, c)
		if i == 0 {
			// The measured call must return the right result.
			if diff := w.compare(c, reply.Output, rec, err); len(diff) > 0 {
				return nil, fmt.Errorf("measure %q of %s: %s; toolctl plugin test shows all of it", c.Name, file, diff[0])
			}
			out.FirstUS = float64(took.Nanoseconds()) / 1000
			out.Fuel, out.Memory, out.NotRestored = reply.Stats.Fuel, reply.Stats.PeakMemory, firstNonEmpty(out.NotRestored, reply.Stats.NotRestored)
			continue
		}
		out.Pages = max(out.Pages, reply.Stats.PagesRestored)
		times = append(times, float64(took.Nanoseconds())/1000)
	}
	slices.Sort(times)
	if n := len(times); n > 0 {
		out.Calls, out.P50US, out.P99US = n, times[n/2], times[n*99/100]
	}
	return out, nil
}
