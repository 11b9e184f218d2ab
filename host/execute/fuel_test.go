package execute

import (
	"errors"
	"testing"

	"github.com/toold/toold/host/call"
	"github.com/toold/toold/host/fault"
)

// TestFuelOfACallThatHasNoneLeft: no fuel left is not no bound, which is 0 for the
// engine.
func TestFuelOfACallThatHasNoneLeft(t *testing.T) {
	p := &call.Pinned{}
	if n, err := fuelOf(p); n != 0 || err != nil {
		t.Errorf("of who was called by no module: %d, %v", n, err)
	}
	p.By = &call.Parent{}
	if n, err := fuelOf(p); n != 0 || err != nil {
		t.Errorf("of a job: %d, %v", n, err)
	}
	for _, taken := range []int64{0, 1} { // what a module overran counts too
		p.By.Fuel = &call.Fuel{}
		p.By.Fuel.Take(taken)
		var e *fault.Error
		if n, err := fuelOf(p); !errors.As(err, &e) || e.Code != fault.LimitExceeded {
			t.Errorf("with %d taken of none: %d, %v", taken, n, err)
		}
	}
	p.By.Fuel = &call.Fuel{}
	p.By.Fuel.Take(-5)
	if n, err := fuelOf(p); n != 5 || err != nil {
		t.Errorf("with 5 left: %d, %v", n, err)
	}
}
