package main

import (
	"slices"
	"testing"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

func TestPolicy(t *testing.T) {
	host := &pdk.Fake{}
	d, err := host.Restrict(restrict, &abi.Call{Tool: "greet", Args: []string{" Ada "}})
	if err != nil || d.Effect != abi.Allow || !slices.Equal(d.Args, []string{"Ada"}) {
		t.Errorf("%+v, %v", d, err)
	}
	d, err = host.Restrict(restrict, &abi.Call{Tool: "greet", Args: []string{"--shout"}})
	if err != nil || d.Effect != abi.Deny || d.Rule != "greet.flag" {
		t.Errorf("%+v, %v", d, err)
	}
}
