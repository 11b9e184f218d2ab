package host_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// soakPlot draws the samples of a soak, taken every so often, as an SVG: a panel for
// each thing that must not grow, from zero, so that what looks flat is flat.
func soakPlot(samples []sample, every time.Duration) []byte {
	const width, height, left, top, gap = 720, 110, 60, 26, 44
	panels := []struct {
		title string
		lines []func(*sample) float64
	}{
		{"memory, MiB", []func(*sample) float64{func(s *sample) float64 { return float64(s.memory) / (1 << 20) }}},
		{"descriptors", []func(*sample) float64{func(s *sample) float64 { return float64(s.files) }}},
		{"goroutines", []func(*sample) float64{func(s *sample) float64 { return float64(s.routines) }}},
		{"latency of echo, ms: p50, p95", []func(*sample) float64{
			func(s *sample) float64 { return float64(s.percentile(50)) / 1e6 },
			func(s *sample) float64 { return float64(s.percentile(95)) / 1e6 },
		}},
		{"calls a second", []func(*sample) float64{func(s *sample) float64 { return float64(s.calls) / every.Seconds() }}},
	}
	end := time.Duration(1)
	for _, s := range samples {
		end = max(end, s.at)
	}
	var b bytes.Buffer
	total := len(panels)*(height+gap) + top
	// Colours that can be read on white and on black.
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#888">`+"\n", left+width+20, total)
	for i, p := range panels {
		y0 := top + i*(height+gap)
		most := 0.0
		for _, line := range p.lines {
			for j := range samples {
				most = max(most, line(&samples[j]))
			}
		}
		scale := nice(most)
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", left, y0-8, p.title)
		for _, part := range []float64{0, 0.5, 1} {
			y := float64(y0) + height*(1-part)
			fmt.Fprintf(&b, `<path d="M%d %.1fh%d" stroke="#888" stroke-opacity=".3"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, y, width, left-6, y+4, scale*part)
		}
		for k, line := range p.lines {
			var points []string
			for j := range samples {
				x := left + width*float64(samples[j].at)/float64(end)
				points = append(points, fmt.Sprintf("%.1f,%.1f", x, float64(y0)+height*(1-line(&samples[j])/scale)))
			}
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>`+"\n", []string{"#3b82f6", "#f59e0b"}[k], strings.Join(points, " "))
		}
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%v</text>`+"\n</svg>\n", left+width, total-gap+20, end)
	return b.Bytes()
}

// nice is the least of 1, 2, 5, 10, 20, 50... that v does not exceed.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}

// TestSoakPlot draws samples as a soak would, also without one.
func TestSoakPlot(t *testing.T) {
	samples := []sample{
		{at: time.Minute, memory: 80 << 20, files: 90, routines: 60, calls: 600, latency: []time.Duration{3 * time.Millisecond}},
		{at: 2 * time.Minute, memory: 81 << 20, files: 92, routines: 61, calls: 590},
	}
	for _, list := range [][]sample{samples, nil} {
		plot := soakPlot(list, time.Minute)
		lines, d := 0, xml.NewDecoder(bytes.NewReader(plot))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, plot)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
				lines++
				for _, a := range e.Attr {
					if a.Name.Local == "points" && len(strings.Fields(a.Value)) != len(list) {
						t.Errorf("%d points, want %d: %s", len(strings.Fields(a.Value)), len(list), a.Value)
					}
				}
			}
		}
		if lines != 6 || strings.Contains(string(plot), "NaN") || strings.Contains(string(plot), "Inf") {
			t.Errorf("%d lines in\n%s", lines, plot)
		}
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.1: 2, 87: 100, 100: 100, 101: 200, 0.3: 0.5} {
		if got := nice(v); got != want {
			t.Errorf("nice(%g) = %g, want %g", v, got, want)
		}
	}
}
