// A policy for tests of the host that lets every call run, and decides about what
// goes over the network by the path of the repository or request: "allow" in it
// allows, for example. Anything else is denied.
package main

import (
	"encoding/json"
	"strings"

	"github.com/toold/toold/pdk"
	"github.com/toold/toold/pdk/abi"
)

//go:wasmexport restrict
func restrict() int32 {
	return pdk.Restrict(func(*abi.Call) *abi.Decision {
		d := pdk.Allow()
		d.Rule = "wirer.all"
		return d
	})
}

//go:wasmexport wire
func wire() int32 {
	return pdk.Wire(func(w *abi.Wire) *abi.Decision {
		is := func(word string) bool { return strings.Contains(w.Path, word) }
		d := pdk.Allow()
		d.Rule = "wirer"
		switch {
		case is("trap"):
			panic("a policy that panics")
		case is("loop"):
			for n := 1; n != 0; n++ { // until its fuel is used
			}
		case is("mute"):
			return nil
		case is("changes"):
			d.Args = []string{"other"}
		case is("effect"):
			d.Effect = "perhaps"
		case is("allow"):
		default:
			about := *w
			about.Call.DeadlineMS = 0
			b, _ := json.Marshal(about)
			return pdk.Deny("wirer.denied", string(b), "do something else")
		}
		return d
	})
}

func main() {}
