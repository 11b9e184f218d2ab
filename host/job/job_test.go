package job

import (
	"errors"
	"fmt"
	"log/slog"
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
