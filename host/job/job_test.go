package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/toold/toold/host/events"
	"github.com/toold/toold/host/fault"
	"github.com/toold/toold/host/wire"
)

// TestJobsAreBounded: a job counts from its registration on, and its id is unique.
func TestJobsAreBounded(t *testing.T) {
	table := NewTable(Config{Events: &events.Hub{}, Log: slog.New(slog.DiscardHandler)})
	var jobs []*Job
	job := func(id string) error {
		j, err := table.New(Spec{ID: id, Owner: "me", Session: "s", Tool: "t"}, func(error) {})
		if err == nil {
			jobs = append(jobs, j)
		}
		return err
	}
	for i := range maxRunning {
		if err := job(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	var e *fault.Error
	if err := job("one more"); !errors.As(err, &e) || e.Code != fault.Overloaded {
		t.Errorf("one more: %v", err)
	}
	if n := len(table.List("me", false)); n != 0 {
		t.Errorf("%d jobs are listed before it is certain that they run", n)
	}
	jobs[0].End(&wire.Result{Err: fault.Errorf(fault.Denied, "no")})
	if err := job("1"); !errors.As(err, &e) || e.Code != fault.InvalidEnvelope {
		t.Errorf("an id twice: %v", err)
	}
	if err := job("one more"); err != nil {
		t.Errorf("after one was refused: %v", err)
	}
	for _, j := range jobs[1:] {
		j.Admit()
		j.End(&wire.Result{Ran: true})
	}
	if n := len(table.List("me", false)); n != maxFinished {
		t.Errorf("%d jobs are kept", n)
	}
}

// logged is a log that calls a function for each record.
type logged struct {
	slog.Handler
	record func()
}

func (l logged) Handle(context.Context, slog.Record) error { l.record(); return nil }

// TestOutputIsKeptBeforeTheEndIsSaid: whoever hears that a job has ended may stop the
// daemon, so its output is written before that.
func TestOutputIsKeptBeforeTheEndIsSaid(t *testing.T) {
	inTheWay := filepath.Join(t.TempDir(), "output")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var j *Job
	writes := 0
	log := slog.New(logged{slog.NewTextHandler(io.Discard, nil), func() { // it cannot be written, and that is logged
		if writes++; j.Done() {
			t.Error("the job had ended before its output was written")
		}
	}})
	table := NewTable(Config{Events: &events.Hub{}, Log: log, Dir: inTheWay, Output: 1 << 20})
	j, err := table.New(Spec{ID: "1", Owner: "me", Session: "s", Tool: "t", Persist: true}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	j.Admit()
	j.End(&wire.Result{Ran: true, Stdout: []byte("kept")})
	if writes != 1 || !j.Done() {
		t.Errorf("its output was written %d times, ended: %v", writes, j.Done())
	}
}
