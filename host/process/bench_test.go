//go:build linux

package process_test

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/toold/toold/host/process"
)

// BenchmarkTrue runs /bin/true through a Runner with a ready supervisor and
// with os/exec, in turn, both with their output kept, and reports medians.
func BenchmarkTrue(b *testing.B) {
	// A state folder where one usually is.
	b.Run("hidden", func(b *testing.B) { benchmarkTrue(b, process.Confine{Hide: []string{"/var/lib/toold"}}) })
	b.Run("confined", func(b *testing.B) { benchmarkTrue(b, process.Confine{}) })
	b.Run("unconfined", func(b *testing.B) { benchmarkTrue(b, process.Confine{Off: true}) })
}

func benchmarkTrue(b *testing.B, confine process.Confine) {
	dir := b.TempDir()
	confine.Write, confine.Exec = []string{dir}, []string{"/usr/bin/git", "/usr/lib/git-core"}
	r := newRunner(b, process.Config{})
	c := process.Command{
		Path: "/bin/true", Dir: dir, Roots: []string{dir}, Env: []string{"PATH=/usr/bin:/bin"},
		Confine: confine,
	}
	supervised := func() {
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if exit, err := r.Run(context.Background(), c); err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
	}
	direct := func() {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command("/bin/true")
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, c.Env, &stdout, &stderr
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
	for range 8 {
		supervised()
		direct()
	}
	var ours, theirs []time.Duration
	for b.Loop() {
		start := time.Now()
		supervised()
		middle := time.Now()
		direct()
		ours, theirs = append(ours, middle.Sub(start)), append(theirs, time.Since(middle))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	mine, alone := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(mine.Microseconds()), "us/run")
	b.ReportMetric(float64(alone.Microseconds()), "us/os-exec")
	b.ReportMetric(float64((mine - alone).Microseconds()), "us-added")
	b.ReportMetric(float64(mine)/float64(alone), "ratio")
}
