package main

import (
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestGreet(t *testing.T) {
	host := &pdk.Fake{Config: map[string]string{"greeting": "Moin"}}
	r, err := host.Handle(handle, &abi.Call{Tool: "greet", Args: []string{"Ada"}})
	if err != nil || r.Stdout != "Moin, Ada!\n" {
		t.Errorf("%+v, %v", r, err)
	}
}
