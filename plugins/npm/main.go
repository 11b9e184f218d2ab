// Npm is the policy of the tool "npm": looking at packages and installing
// them from the registry that the operator names. Scripts run with the caller,
// or not at all. README.md has the table of what is allowed and refused.
//
// A project brings configuration of its own (.npmrc), which a policy cannot
// see and which could change after a look at it. So every call begins with
// pins on the command line, which npm ranks above all other configuration.
package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport describe
func describe() int32 {
	return pdk.Describe(abi.Describe{Name: "npm", Description: "npm packages: look, install and update; scripts run with the caller"})
}

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(decide) }

func decide(c *abi.Call) *abi.Decision {
	p, err := newPolicy(pdk.Config)
	if err != nil {
		return pdk.Deny("npm.config", "the configuration of this policy is broken: "+err.Error(), "the operator corrects config in tools.d/npm/tool.json")
	}
	return p.decide(c)
}

//go:wasmexport reconcile
func reconcile() int32 {
	return pdk.Reconcile(func(q *abi.Reconcile) (*abi.Reconciliation, error) {
		p, err := newPolicy(pdk.Config)
		if err != nil {
			return nil, err
		}
		return p.reconcile(q)
	})
}

func main() {}
