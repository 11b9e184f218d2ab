package plugin

import (
	"reflect"
	"testing"

	"github.com/toold/toold/host/guest"
)

// TestCasesServeAll: whatever a module may import, a case can answer.
func TestCasesServeAll(t *testing.T) {
	w, err := OpenRunner(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	services := reflect.ValueOf(w.services(&Case{}, &recorder{}))
	for i := range services.NumField() {
		if services.Field(i).IsNil() {
			t.Errorf("a case does not serve %s: add it to Runner.services", reflect.TypeFor[guest.Services]().Field(i).Name)
		}
	}
}
