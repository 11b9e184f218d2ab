package main

import (
	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//lint:file-ignore U1000 the host calls the exports

//go:wasmexport restrict
func restrict() int32 { return pdk.Restrict(newPolicy(pdk.LookupConfig).decide) }

//go:wasmexport wire
func onWire() int32 { return pdk.Wire(newPolicy(pdk.LookupConfig).wire) }

//go:wasmexport reconcile
func reconcile() int32 { return pdk.Reconcile(newPolicy(pdk.LookupConfig).reconcile) }

//go:wasmexport describe
func describe() int32 {
	return pdk.Describe(abi.Describe{
		Name:        "git",
		Description: "git, as a developer uses it, less what runs other programs or leaves the folders of the call",
		Wants:       []string{abi.WantRepoConfig},
	})
}

func main() {}
