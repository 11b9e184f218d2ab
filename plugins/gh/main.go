// Gh is the policy of the tool "gh": the everyday commands on pull requests,
// issues, runs and releases of repositories that the operator allows, and
// "gh api" by a list of endpoints. README.md has the table of what is allowed
// and refused.
//
// The policy names the repository in every call that it allows, so that gh
// never asks git about the working directory, whose configuration is the
// caller's.
package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport describe
func describe() int32 {
	return pdk.Describe(abi.Describe{
		Name:        "gh",
		Description: "GitHub: pull requests, issues, runs, releases, and listed endpoints of its API",
		Wants:       []string{abi.WantRepoConfig},
	})
}

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(decide) }

func decide(c *abi.Call) *abi.Decision {
	p, err := newPolicy(pdk.Config)
	if err != nil {
		return pdk.Deny("gh.config", "the configuration of this policy is broken: "+err.Error(), "the operator corrects config in tools.d/gh/tool.json")
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
